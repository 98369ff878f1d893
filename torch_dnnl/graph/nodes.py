"""Reading calls in a graph, and making them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import map_arg

aten = torch.ops.aten
dnnl = torch.ops.torch_dnnl

# Inductor keeps here how the tensors of a call lay in memory. It copies tensors that lie in another
# way. The operators of torch_dnnl take any strides.
CONSTRAINT = "eager_input_vals"

_MANY = 1 << 12  # what a size that comes from data counts for


def value(node: Any) -> Any:
    """The fake tensor or symbolic number that a node computes; None if it is unknown. Any other
    object is its own value."""
    return node.meta.get("val") if isinstance(node, Node) else node


def name_of(node: Node) -> str:
    """`aten::relu` of `torch.ops.aten.relu.default`; the name of an operator in place ends in _."""
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.name
    if isinstance(node.target, torch._ops.OpOverloadPacket):
        return node.target._qualified_op_name
    return ""


def arguments_of(node: Node) -> dict[str, Any]:
    """The arguments of an operator's call by their names, defaults included."""
    target = node.target
    if isinstance(target, torch._ops.OpOverloadPacket):
        target = target.default
    assert isinstance(target, torch._ops.OpOverload)
    schema = target._schema.arguments
    names = [argument.name for argument in schema]
    defaults = {a.name: a.default_value for a in schema if a.has_default_value()}
    return defaults | dict(zip(names, node.args, strict=False)) | node.kwargs


def call(
    like: Node, target: Callable[..., Any], *args: Any, val: Any = None, **kwargs: Any
) -> Node:
    """A call at the graph's point of insertion that takes the part of the node `like`.

    Args:
        like: its data says where a call comes from and whether it is part of the backward pass.
        target, args, kwargs: the call.
        val: the value of the call; by default `target` computes it from fake tensors.
    """
    node = like.graph.call_function(target, args, kwargs)
    node.meta = {key: item for key, item in like.meta.items() if key != CONSTRAINT}
    node.meta["val"] = computed(target, args, kwargs) if val is None else val
    return node


def call_with(like: Node, target: Any, arguments: dict[str, Any], val: Any = None) -> Node:
    """As `call`, with arguments by name. The call leaves out those that have their default."""
    schema = target._schema.arguments
    # aten's tensors that may be missing have no default.
    args = [arguments.get(each.name) for each in schema if not each.has_default_value()]
    kwargs = {
        each.name: arguments[each.name]
        for each in schema
        if each.has_default_value()
        and each.name in arguments
        and not _is_same(arguments[each.name], each.default_value)
    }
    return call(like, target, *args, val=val, **kwargs)


def _is_same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and not isinstance(a, Node) and bool(a == b))


def computed(target: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """What a call computes from the values of its arguments; None if one is unknown."""
    values: list[Any] = []
    fake_args, fake_kwargs = map_arg((args, kwargs), lambda node: _kept(values, value(node)))
    leaves = torch.utils._pytree.tree_leaves(values)  # an operator may have several results
    modes = [fake.fake_mode for fake in leaves if isinstance(fake, FakeTensor)]
    if not modes or any(fake is None for fake in values):
        return None
    with modes[0]:
        return target(*fake_args, **fake_kwargs)


def _kept(values: list[Any], item: Any) -> Any:
    values.append(item)
    return item


def mode_of(graph: Graph) -> FakeTensorMode | None:
    """The mode of the fake tensors in a graph; None if it has no values."""
    fakes = (value(node) for node in graph.nodes)
    return next((fake.fake_mode for fake in fakes if isinstance(fake, FakeTensor)), None)


def only_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def is_mutated(node: Node) -> bool:
    """Whether an operator in place may change its tensor after it was made."""
    return any(
        argument.alias_info is not None and argument.alias_info.is_write and argument_value is node
        for user in node.users
        if isinstance(user.target, torch._ops.OpOverload)
        for argument, argument_value in zip(user.target._schema.arguments, user.args, strict=False)
    )


def make_functional(graph: Graph) -> None:
    """Operators in place become those that return a new tensor, where nothing else has the tensor
    that they write to: it is the result of an operator that makes one, and they are its only user.
    """
    for node in graph.nodes:
        name = name_of(node)
        written: Any = node.args[0] if node.args else None
        if not name.startswith("aten::") or not name.endswith("_") or not isinstance(written, Node):
            continue
        makes = getattr(written.target, "_schema", None)
        is_new = makes is not None and all(r.alias_info is None for r in makes.returns)
        packet = getattr(aten, name.removeprefix("aten::").removesuffix("_"), None)
        overload = getattr(packet, getattr(node.target, "_overloadname", ""), None)
        if is_new and list(written.users) == [node] and overload is not None:
            node.target = overload


def spatial_sizes(like: Node, tensor: Node) -> list[Any]:
    """The sizes of the spatial dimensions of a [N, C, *X] tensor, as arguments of a call."""
    sizes = value(tensor).shape
    return [
        size if isinstance(size, int) else call(like, aten.sym_size.int, tensor, axis)
        for axis, size in enumerate(sizes)
        if axis >= 2
    ]


def replace(old: Node, new: Node) -> None:
    """Puts `new` in the place of `old`, and removes `old`."""
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)


def erase_unused(node: Node) -> None:
    """Removes an unused call, then the inputs that became unused."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if each.op == "call_function" and not (each.users or each.is_impure() or each._erased):
            waiting += each.all_input_nodes
            each.graph.erase_node(each)


def per_dimension(values: Sequence[Any], n: int) -> list[Any]:
    """One entry for each of n dimensions; aten takes one for all of them."""
    return list(values) * n if len(values) == 1 else list(values)


def is_floating(*tensors: Tensor | None) -> bool:
    """Whether tensors have the one type, and the operators of torch_dnnl compute with it."""
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
    """The number of elements; of symbolic sizes, in the call for which the graph is compiled.

    Sizes that come from data have no value in that call, and count as many.
    """
    return math.prod(n if isinstance(n, int) else n.node.hint or _MANY for n in sizes)
