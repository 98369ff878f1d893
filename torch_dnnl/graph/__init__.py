"""Passes over graphs of models, for `optimize`, `quantization.lower` and the backend of
`torch.compile`.

A pass is a function of a graph of torch's operators. The nodes carry the values of `torch.export`
and Inductor: fake tensors in `meta["val"]`. A pass leaves a node alone whose value is unknown.
"""

__all__: list[str] = []
