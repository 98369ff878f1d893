"""Nodes for the graphs that Inductor compiles, with the fake tensors that its passes read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import map_arg

aten = torch.ops.aten
ours = torch.ops.torch_dnnl

# What says how the tensors of the replaced call lay in memory. Our operators take any strides, and
# without it Inductor makes no copy for them.
CONSTRAINT = "eager_input_vals"


def value(node: Any) -> Any:
    """The fake tensor, or symbolic number, that a node computes; what is no node is itself."""
    return node.meta["val"] if isinstance(node, Node) else node


def call(
    graph: Graph, like: Node, target: Callable[..., Any], *args: Any, val: Any = None, **kwargs: Any
) -> Node:
    """A call at the point of insertion that takes the part of the node `like`.

    Where it came from, and whether it belongs to the backward pass, is said in the data that
    `like` has. `val`: what it computes, where that is known.
    """
    node = graph.call_function(target, args, kwargs)
    node.meta = {key: item for key, item in like.meta.items() if key != CONSTRAINT}
    if val is None:
        fake: Any = map_arg((args, kwargs), value)
        with _mode_of(fake):
            val = target(*fake[0], **fake[1])
    node.meta["val"] = val
    return node


def in_order(target: Any, arguments: dict[str, Any]) -> list[Any]:
    """The arguments of a call as positional ones."""
    return [arguments[argument.name] for argument in target._schema.arguments]


def _mode_of(values: Any) -> Any:
    found: list[Any] = []
    torch.utils._pytree.tree_map_only(FakeTensor, found.append, values)
    return found[0].fake_mode


def spatial_sizes(graph: Graph, like: Node, tensor: Node) -> list[Any]:
    """The sizes of the spatial dimensions of a [N, C, *X] tensor, as arguments of a call."""
    sizes = value(tensor).shape
    return [
        size if isinstance(size, int) else call(graph, like, aten.sym_size.int, tensor, axis)
        for axis, size in enumerate(sizes)
        if axis >= 2
    ]


def replace(old: Node, new: Node) -> None:
    """Puts `new` in the place of `old`, and removes `old`."""
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)


def erase_unused(node: Node) -> None:
    """Removes a call that nobody uses, and the calls that were made only for it."""
    if node.op == "call_function" and not node.users and not node.is_impure():
        sources = node.all_input_nodes
        node.graph.erase_node(node)
        for source in sources:
            erase_unused(source)


def per_dimension(values: Sequence[Any], n: int) -> list[Any]:
    """One entry for each of n dimensions; aten takes one for all of them."""
    return list(values) * n if len(values) == 1 else list(values)


def is_floating(*tensors: Tensor | None) -> bool:
    """Whether they have the one type, and our operators compute with it."""
    types = {tensor.dtype for tensor in tensors if tensor is not None}
    return len(types) == 1 and types <= {
        *(torch.float64, torch.float32, torch.bfloat16, torch.float16)
    }


def are_alike(a: Any, b: Any) -> bool:
    """Whether both are tensors of the same type and sizes; symbolic sizes have to be known so."""
    return (
        isinstance(a, Tensor)
        and isinstance(b, Tensor)
        and a.dtype == b.dtype
        and a.dim() == b.dim()
        and all(statically_known_true(m == n) for m, n in zip(a.shape, b.shape, strict=True))
    )


def expected_numel(sizes: Sequence[Any]) -> int:
    """The number of elements; of symbolic sizes, in the call for which the graph is compiled."""
    return math.prod(n if isinstance(n, int) else n.node.hint or 1 for n in sizes)
