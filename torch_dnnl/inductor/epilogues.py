"""What follows a convolution of ours becomes part of it: batch norm with constant statistics, a
residual, an activation."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

from torch_dnnl._quantized_graph import arguments_of
from torch_dnnl.inductor.activations import activation_of
from torch_dnnl.inductor.convolutions import is_frozen
from torch_dnnl.inductor.graphs import (
    are_alike,
    aten,
    call,
    erase_unused,
    expected_numel,
    in_order,
    ours,
    value,
)

_convert = torch.ops.prims.convert_element_type.default


def fold_channels(graph: Graph) -> None:
    """Sums with, and products by, a number for each channel go into weights and bias.

    That is what batch norm with constant statistics is.
    """
    for conv in graph.find_nodes(op="call_function", target=ours.convolution.default):
        if _may_change(conv) and (chain := _chain(conv)) and _is_worth_it(conv):
            _fold(graph, conv, chain)


def fuse_epilogues(graph: Graph) -> None:
    """Residuals first: an activation is applied to the sum."""
    for node in graph.find_nodes(op="call_function", target=aten.add.Tensor):
        _fuse_residual(node)
    for node in list(graph.nodes):
        if node.op == "call_function" and node.users:
            _fuse_activation(node)


def _may_change(conv: Node) -> bool:
    """Whether the choice of a kernel is ours: one that is named may not have the epilogue."""
    return bool(arguments_of(conv)["algorithm"] == "auto")


def _only_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _chain(conv: Node) -> list[tuple[Node, Node | None]]:
    """The operators after a convolution that act by channels, each with its other operand.

    Types may change between, to wider ones and back: narrower ones would round. The last result has
    the type of the convolution.
    """
    chain: list[tuple[Node, Node | None]] = []
    last, complete = conv, 0
    axis = _channel_axis(conv)
    while (user := _only_user(last)) is not None:
        if user.target is _convert:
            if not _is_at_least(value(user).dtype, value(conv).dtype):
                break
            chain.append((user, None))
        else:
            operand = _operand_by_channel(user, last, value(conv), axis)
            if operand is None:
                break
            chain.append((user, operand))
        last = user
        if value(last).dtype == value(conv).dtype:
            complete = len(chain)
    chain = chain[:complete]
    return chain if any(operand is not None for _, operand in chain) else []


def _is_at_least(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Whether a floating type has all numbers of another."""
    if not dtype.is_floating_point or dtype.itemsize == 1:  # float8 is promoted to nothing
        return False
    return torch.promote_types(dtype, other) == dtype


_BY_CHANNEL = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)


def _channel_axis(conv: Node) -> int:
    """The axis of the channels in the result, counted from the end as broadcasting does."""
    return 1 - value(conv).dim() if arguments_of(conv)["data_format"] == "NCX" else -1


def _operand_by_channel(node: Node, last: Node, result: Tensor, axis: int) -> Node | None:
    """What a node combines `last` with, if that has a number for each channel of `result`."""
    if node.target not in _BY_CHANNEL or node.kwargs:
        return None
    first, second = node.args
    if second is last and node.target in (aten.add.Tensor, aten.mul.Tensor):
        first, second = second, first
    if first is not last or second is last or not isinstance(second, Node):
        return None
    if not isinstance(value(second), Tensor):
        return None
    channels = result.shape[axis]
    sizes = tuple(value(second).shape)
    if not all(isinstance(n, int) for n in (channels, *sizes)):
        return None
    expected = tuple(channels if i - len(sizes) == axis else 1 for i in range(len(sizes)))
    if len(sizes) > result.dim() or sizes != expected or math.prod(sizes) != channels:
        return None
    return second if _is_made_of_vectors(second, channels) else None


def _is_made_of_vectors(node: Node, channels: int) -> bool:
    """Whether nothing larger is behind a tensor: of parameters that is so, of features not."""
    tensor = value(node)
    if not isinstance(tensor, Tensor) or not all(isinstance(n, int) for n in tensor.shape):
        return False
    return tensor.numel() <= channels and all(
        _is_made_of_vectors(source, channels) for source in node.all_input_nodes
    )


def _is_worth_it(conv: Node) -> bool:
    """New weights must cost less than a pass over the result, unless they are made only once."""
    if is_frozen():
        return True
    weights, result = (expected_numel(value(node).shape) for node in (conv.args[1], conv))
    return 4 * weights <= result


def _fold(graph: Graph, conv: Node, chain: list[tuple[Node, Node | None]]) -> None:
    arguments = arguments_of(conv)
    weights, bias = arguments["weights"], arguments["bias"]
    dtype, channels = value(conv).dtype, value(conv).shape[_channel_axis(conv)]
    last = chain[-1][0]
    # As the results would be computed, whatever the type of a vector: it may be one of integers.
    operands = [operand for _, operand in chain if operand is not None]
    is_double = torch.float64 in (dtype, *(value(operand).dtype for operand in operands))
    wide = torch.float64 if is_double else torch.float32

    def make(target: Any, *args: Any) -> Node:
        return call(graph, last, target, *args)

    def in_type(tensor: Node, dtype: torch.dtype) -> Node:
        return tensor if value(tensor).dtype == dtype else make(_convert, tensor, dtype)

    scale: Node | None = None
    shift: Node | None = None
    with graph.inserting_before(last):
        if bias is not None:
            shift = in_type(bias, wide)
        for node, operand in chain:
            if operand is None:
                continue
            kind = node.target
            vector = in_type(make(aten.reshape.default, operand, [channels]), wide)
            if kind in (aten.mul.Tensor, aten.div.Tensor):
                if scale is None and kind is aten.div.Tensor:
                    scale = make(aten.reciprocal.default, vector)
                else:
                    scale = vector if scale is None else make(kind, scale, vector)
                shift = shift if shift is None else make(kind, shift, vector)
            elif shift is None:
                is_sum = kind is aten.add.Tensor
                shift = vector if is_sum else make(aten.neg.default, vector)
            else:
                shift = make(kind, shift, vector)
        if scale is not None:
            if arguments["weights_format"] == "OIX":
                scale = make(aten.reshape.default, scale, [-1, *[1] * (value(weights).dim() - 1)])
            weights = in_type(make(aten.mul.Tensor, weights, scale), dtype)
        shift = shift if shift is None else in_type(shift, dtype)
        arguments |= {"weights": weights, "bias": shift}
        target = ours.convolution.default
        new = call(graph, conv, target, *in_order(target, arguments), val=value(last))
    last.replace_all_uses_with(new)
    erase_unused(last)


def _fuse_residual(node: Node) -> None:
    operands: Any = node.args
    if node.kwargs or not all(isinstance(operand, Node) for operand in operands):
        return
    if not all(are_alike(value(operand), value(node)) for operand in operands):
        return
    # The later of two convolutions takes the result of the other one.
    for result, residual in sorted(zip(operands, operands[::-1], strict=True), reverse=True):
        conv = _open_convolution(result)
        if conv is None or result is residual or _only_user(result) is not node:
            continue
        if arguments_of(conv).get("residual") is None and len(conv.users) == 1:
            with node.graph.inserting_before(node):
                _fuse(node, conv, {"residual": residual}, result)
            return


def _fuse_activation(node: Node) -> None:
    found = activation_of(node)
    if found is None:
        return
    name, before = found
    views: list[Node] = []
    while before.target in _VIEWS:
        views.insert(0, before)
        before = before.args[0]  # type: ignore[assignment]
    conv = _open_convolution(before)
    if conv is None:
        return
    with node.graph.inserting_before(before):
        fused = _fuse(node, conv, {"activation": name}, before, views)
        if before.users:
            arguments = arguments_of(fused) | {"keep_preactivation": True}
            fused.args = tuple(in_order(fused.target, arguments))
            fused.meta["val"] = (fused.meta["val"][0], value(before))
            kept = call(node.graph, before, operator.getitem, fused, 1, val=value(before))
            before.replace_all_uses_with(kept)
            erase_unused(before)


# An activation may come before these as well as after them.
_VIEWS = (
    *(aten.view.default, aten.reshape.default, aten.permute.default, aten.transpose.int),
    *(aten.squeeze.dim, aten.squeeze.dims, aten.unsqueeze.default),
)


def _open_convolution(result: Node) -> Node | None:
    """The convolution of ours whose result a node is, if that has no activation yet."""
    conv: Any = result
    if result.target is operator.getitem:
        conv = result.args[0] if result.args[1] == 0 else None
    elif result.target is not ours.convolution.default:
        return None
    if conv is None or conv.target not in _WITH_EPILOGUE or not _may_change(conv):
        return None
    return conv if arguments_of(conv).get("activation") is None else None


# With the operator that has the epilogue too.
_WITH_EPILOGUE = {
    ours.convolution.default: ours.convolution_fused.default,
    ours.convolution_fused.default: ours.convolution_fused.default,
    ours.convolution_transpose.default: ours.convolution_transpose.default,
}


def _fuse(
    node: Node, conv: Node, more: dict[str, Any], before: Node, views: Sequence[Node] = ()
) -> Node:
    """Puts a convolution with more arguments in the place of what `node` makes of its result.

    That is `before`, which `node` may see through views.
    """
    target: Any = _WITH_EPILOGUE[conv.target]  # type: ignore[index]
    arguments = {"residual": None, "activation": None, "keep_preactivation": False}
    arguments = arguments | arguments_of(conv) | more
    graph = node.graph
    new = call(graph, conv, target, *in_order(target, arguments))
    result = call(graph, before, operator.getitem, new, 0, val=value(before))
    with graph.inserting_before(node):
        for view in views:
            target = view.target
            result = call(graph, view, target, result, *view.args[1:], val=value(view))
    node.replace_all_uses_with(result)
    erase_unused(node)
    return new
