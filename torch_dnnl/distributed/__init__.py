"""DTensor's rules for the operators of `torch.ops.torch_dnnl`.

Importing registers them. `import torch_dnnl` does that by itself once `torch.distributed.tensor` is
imported, before or after. What lies how on a mesh is in docs/distributed.md.
"""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor

from torch_dnnl.distributed import convolution, reorder, resample
from torch_dnnl.distributed.dispatch import handler

__all__: list[str] = []


# The operators of each family, its rules, and what computes a rank's part.
_FAMILIES = (
    (convolution.OPERATORS, convolution.rules, convolution.compute),
    (resample.OPERATORS, resample.rules, resample.compute),
    (reorder.OPERATORS, reorder.rules, reorder.compute),
    (reorder.FAKE_OPERATORS, reorder.fake_rules, reorder.fake_compute),
)

for _names, _rules, _compute in _FAMILIES:
    DTensor._op_dispatcher._custom_op_handlers.update(
        {getattr(torch.ops.torch_dnnl, n).default: handler(_rules, _compute) for n in _names}
    )
