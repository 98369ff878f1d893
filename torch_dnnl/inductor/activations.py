"""What the activations of `convolution_fused` look like in Inductor's graphs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._inductor.decomposition import select_decomp_table
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx

from torch_dnnl.inductor.graphs import value

_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.nn.functional.relu,
    "relu6": torch.nn.functional.relu6,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": torch.nn.functional.hardswish,
}


@cache
def _patterns(dtype: torch.dtype) -> dict[str, Graph]:
    """The graph of each activation, as Inductor's decompositions make it for this type."""
    example = torch.empty(2, 2, 2, dtype=dtype, device="cpu")

    def trace(function: Callable[[Tensor], Tensor]) -> Graph:
        made = make_fx(lambda x: function(x), decomposition_table=select_decomp_table())(example)
        return made.graph

    with torch._C._DisableAutocast():
        return {name: trace(function) for name, function in _FUNCTIONS.items()}


def activation_of(node: Node) -> tuple[str, Node] | None:
    """The name of the activation that a node is the result of, and what it is applied to."""
    tensor = value(node)
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        return None
    for name, pattern in _patterns(tensor.dtype).items():
        leaves: list[Node] = []
        if _matches(pattern.output_node().args[0], node, leaves) and len(set(leaves)) == 1:
            return name, leaves[0]
    return None


def _matches(pattern: Any, found: Any, leaves: list[Node]) -> bool:
    """Whether both are the same calls. Appends what stands where the pattern has its input."""
    if isinstance(pattern, Node):
        if not isinstance(found, Node):
            return False
        if pattern.op == "placeholder":
            leaves.append(found)
            return True
        return (
            pattern.target == found.target
            and pattern.kwargs == found.kwargs
            and _matches(list(pattern.args), list(found.args), leaves)
        )
    if isinstance(pattern, (list, tuple)):
        return (
            isinstance(found, (list, tuple))
            and len(pattern) == len(found)
            and all(_matches(p, f, leaves) for p, f in zip(pattern, found, strict=True))
        )
    numbers = (int, float)  # the bounds of a clamp may be either
    is_alike = type(pattern) is type(found) or {type(pattern), type(found)} <= set(numbers)
    return is_alike and bool(pattern == found)
