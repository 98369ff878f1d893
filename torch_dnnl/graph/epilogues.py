"""A residual and an activation after a convolution as part of its kernel."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torch_dnnl.graph.activations import QUANTIZED, activation_of
from torch_dnnl.graph.layers import FUSED, HAS_PAIR, channel_axis, may_be_empty, open_layer
from torch_dnnl.graph.nodes import (
    are_alike,
    arguments_of,
    aten,
    call,
    call_with,
    dnnl,
    erase_unused,
    is_mutated,
    only_user,
    value,
)

_permute, _squeeze = aten.permute.default, aten.squeeze.dim
_quantized = dnnl.quantized_convolution.default
_Options = Callable[[Node, Node], dict[str, Any]]

# An activation may come before these as well as after them.
_VIEWS = (
    *(aten.view.default, aten.reshape.default, aten.permute.default, aten.transpose.int),
    *(aten.squeeze.dim, aten.squeeze.dims, aten.unsqueeze.default, aten.flatten.using_ints),
)


def fuse_epilogues(
    graph: Graph, residual_of: _Options | None = None, broadcasts: bool = False
) -> None:
    """Puts residuals, then activations, into the convolutions before them.

    If a result has several activations, the activation of most operators comes first: a SiLU
    contains a sigmoid, and its gradient contains another.

    Args:
        graph: is changed.
        residual_of: gives the arguments of a convolution for a residual, which may be the integers
            that the residual was dequantized from.
        broadcasts: whether a residual may have sizes of 1 in the batch and the spatial dimensions.
    """
    for node in graph.find_nodes(op="call_function", target=aten.add.Tensor):
        _fuse_residual(node, residual_of or _plain_residual, broadcasts)
    calls = [node for node in graph.nodes if node.op == "call_function"]
    found = [(activation, node) for node in calls if (activation := activation_of(node))]
    for _, node in sorted(found, key=lambda each: -each[0].size):
        if node.users:
            _fuse_activation(node)


def _plain_residual(layer: Node, residual: Node) -> dict[str, Any]:
    return {"residual": residual}


def _fuse_residual(node: Node, residual_of: _Options, broadcasts: bool) -> None:
    operands: Any = node.args
    if node.kwargs or not all(isinstance(operand, Node) for operand in operands):
        return
    # The later of two convolutions takes the result of the other one.
    pairs: Any = sorted(zip(operands, operands[::-1], strict=True), reverse=True)
    for result, residual in pairs:
        if result is residual or only_user(result) is not node or is_mutated(residual):
            continue
        is_same = are_alike(value(residual), value(node))
        if not are_alike(value(result), value(node)) or not (is_same or broadcasts):
            continue
        views: list[Any] = []
        while _is_turned(result) and len(result.args[0].users) == 1:
            views.insert(0, result)
            result = result.args[0]
        layer = open_layer(result)
        is_free = layer is not None and arguments_of(layer).get("residual") is None
        if layer is None or not is_free or len(layer.users) != 1:
            continue
        if not is_same and (views or not _broadcasts(value(residual), value(result), layer)):
            continue
        with node.graph.inserting_before(node):
            for view in reversed(views):
                if view.target is _squeeze:
                    residual = call(node, aten.unsqueeze.default, residual, view.args[1])
                    continue
                dims = [d % len(view.args[1]) for d in view.args[1]]
                inverse = [dims.index(d) for d in range(len(dims))]
                residual = call(node, _permute, residual, inverse)
            fuse(node, layer, residual_of(layer, residual), result, views)
        return


def _broadcasts(residual: Any, result: Any, layer: Node) -> bool:
    """Whether a convolution takes a residual of these sizes."""
    if not isinstance(residual, Tensor) or residual.dtype != result.dtype:
        return False
    if residual.dim() != result.dim() or layer.target is _quantized:
        return False
    pairs = list(zip(residual.shape, result.shape, strict=True))
    channels = pairs.pop(channel_axis(layer))
    is_one = [statically_known_true(m == 1) for m, _ in pairs]
    is_same = [statically_known_true(m == n) for m, n in pairs]
    fits = all(one or same for one, same in zip(is_one, is_same, strict=True))
    return fits and statically_known_true(channels[0] == channels[1])


def _is_turned(node: Any) -> bool:
    """Whether the inverse of a view is known: a permutation, or a dimension of one that goes."""
    if node.target is _squeeze:
        return bool(value(node).dim() < value(node.args[0]).dim())
    return node.target is _permute


def _fuse_activation(node: Node) -> None:
    found = activation_of(node)
    if found is None:
        return
    name, before = found.name, found.input
    views: list[Node] = []
    while before.target in _VIEWS:
        views.insert(0, before)
        before = before.args[0]  # type: ignore[assignment]
    layer = open_layer(before)
    if layer is None:
        return
    if name == "prelu" and (views or channel_axis(layer) != 1 - value(before).dim()):
        return  # the slopes are for the second dimension
    is_kept = any(only_user(each) is None for each in (before, *views))
    if is_kept and may_be_empty(layer):  # a call with two results takes no empty image
        return
    if layer.target is _quantized and (name not in QUANTIZED or only_user(before) is None or views):
        return
    with node.graph.inserting_before(before):
        fused = fuse(node, layer, {"activation": name} | found.parameters, before, views)
        if before.users:
            fused.update_kwarg("keep_preactivation", True)
            fused.meta["val"] = (fused.meta["val"][0], value(before))
            kept = call(before, operator.getitem, fused, 1, val=value(before))
            before.replace_all_uses_with(kept)
            erase_unused(before)


def fuse(
    node: Node, layer: Node, more: dict[str, Any], before: Node, views: Sequence[Node] = ()
) -> Node:
    """Replaces `node` by a convolution with more arguments.

    `before` is the result of the convolution `layer`. `node` is applied to `before`, or to `before`
    after `views`.
    """
    target: Any = FUSED[layer.target]
    arguments = {"residual": None, "activation": None, "keep_preactivation": False}
    arguments = arguments | arguments_of(layer) | more
    new = call_with(layer, target, arguments)
    result = new
    if target in HAS_PAIR:
        result = call(before, operator.getitem, new, 0, val=value(before))
    with node.graph.inserting_before(node):
        for view in views:
            kind: Any = view.target
            result = call(view, kind, result, *view.args[1:], val=value(view))
    node.replace_all_uses_with(result)
    erase_unused(node)
    return new
