"""How the tensors of a graph lie in memory: channels_last inside, where most kernels are faster,
and as in the model where somebody may ask."""

from __future__ import annotations

import operator
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.node import map_arg

from torch_dnnl.graph.layers import CONVOLUTIONS
from torch_dnnl.graph.nodes import (
    arguments_of,
    aten,
    call,
    computed,
    erase_unused,
    expected_numel,
    name_of,
    replace,
    value,
)

# The share of a copy of its result that a convolution saves in channels_last. An estimate:
# ResNet-50 takes 0.07 less time, MobileNetV2 0.13, VGG-11 0.19 (one image, float32, 2 threads of a
# Zen 4).
_SAVED = 0.25
# Operators that take tensors in any layout, but for some.
_ANY = ("aten::", "prims::", "torch_dnnl::", "quantized_decomposed::", "torchao::")
_PARTICULAR = (
    *("aten::as_strided", "aten::view_as_complex", "aten::view_as_real"),
    # These kernels need contiguous tensors, or give channels_last results other strides than
    # torch's fake tensors (tests/graph/test_fake_layouts.py).
    *("aten::max_pool3d", "aten::linalg_matrix_exp", "aten::roll", "aten::native_channel_shuffle"),
    *("aten::channel_shuffle", "aten::fft_", "aten::max_unpool", "aten::reflection_pad3d"),
    *("aten::replication_pad3d", "aten::copysign", "aten::one_hot", "aten::max_pool1d"),
    *("aten::log_sigmoid", "aten::rrelu", "aten::angle", "aten::isin"),
)
# Views, whose strides follow from those of their first argument.
_VIEWS = (
    *(aten.slice.Tensor, aten.select.int, aten.permute.default, aten.transpose.int),
    *(aten.expand.default, aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims),
    *(aten.diagonal.default, aten.narrow.default, aten.alias.default, aten.detach.default),
)

Layouts = dict[Node, list[Any]]
_Copies = list[tuple[Node, Node]]  # each with what it is a copy of


def layouts_of(graph: Graph) -> Layouts:
    """The tensors whose strides have to stay: results, and inputs of operators that need a layout.

    The keys are the nodes that take the tensors.
    """
    return {node: list(map(value, _inputs(node))) for node in graph.nodes if _asks(node)}


def _inputs(node: Node) -> list[Node]:
    found: list[Node] = []
    map_arg((node.args, node.kwargs), found.append)
    return found


def _asks(node: Node) -> bool:
    if node.op != "call_function" or node.target is operator.getitem:
        return node.op == "output"
    name = name_of(node)  # a higher-order operator has none
    is_padded_by_3d = node.target is aten.pad.default and len(node.args[1]) == 6  # type: ignore[arg-type]
    return (
        is_padded_by_3d
        or node.target is aten.view.dtype
        or name.startswith(_PARTICULAR)
        or not name.startswith(_ANY)
    )


def allow_any_layout(graph: Graph) -> None:
    """Replaces views, which fit some layouts only, by reshapes."""
    for node in graph.find_nodes(op="call_function", target=aten.view.default):
        node.target = aten.reshape.default


def use_channels_last(graph: Graph, layouts: Layouts) -> None:
    """Converts the images of convolutions to channels_last if that saves more than the copies cost.

    `layouts` is what `layouts_of` returned before the graph was changed: these strides stay.
    """
    saved = sum(_SAVED * _size(node) for node in graph.nodes if _has_images(node))
    before = {node: value(node) for node in graph.nodes}
    copies = [*_convert_images(graph), *_restore(graph, layouts, before)]
    if saved <= sum(_size(source) for _, source in copies):
        for copy, source in copies:
            copy.replace_all_uses_with(source)
        refresh(graph)
        _restore(graph, layouts, before)


def convert_pools(graph: Graph) -> None:
    """Has max pools of contiguous images compute channels_last images: torch's kernel for these
    takes a sixth of the time, the two copies included (24 to 192 channels, Zen 4)."""
    for node in graph.find_nodes(op="call_function", target=aten.max_pool2d.default):
        source: Any = node.args[0]
        image = value(source)
        if image.dim() != 4 or not image.is_cpu or not _is_planar(image):
            continue
        if not image.is_floating_point() or not statically_known_true(image.shape[1] >= 8):
            continue
        with graph.inserting_before(node):
            copy = _dense(source, [0, 2, 3, 1])
            pool = call(node, aten.max_pool2d.default, copy, *node.args[1:], **node.kwargs)
            result = call(node, aten.contiguous.default, pool)
        replace(node, result)


def _convert_images(graph: Graph) -> _Copies:
    copies: dict[Node, Node] = {}
    for node in graph.nodes:
        source: Any = node.args[0] if _has_images(node) else None
        image = value(source)
        if isinstance(image, Tensor) and image.dim() == 4 and image.is_cpu and _is_planar(image):
            if source not in copies:
                with graph.inserting_before(node):
                    copies[source] = _dense(source, [0, 2, 3, 1])
            node.replace_input_with(source, copies[source])
        _refresh(node)
    return [(copy, source) for source, copy in copies.items()]


def _restore(graph: Graph, layouts: Layouts, before: dict[Node, Any]) -> _Copies:
    """Copies tensors whose strides differ from `layouts`.

    For a view, the copy is one of its base. `before` has the strides of the base.
    """
    copies = []
    for user, wanted in layouts.items():
        if user._erased:
            continue
        for source, expected in zip(_inputs(user), wanted, strict=True):
            if not isinstance(expected, Tensor) or have_same_strides(value(source), expected):
                continue
            views, base = _views(source)
            old = before.get(base)
            with graph.inserting_before(user):
                if views and isinstance(old, Tensor):
                    copy = copied = _dense(base, memory_order(old))
                    for view in views:
                        kind: Any = view.target
                        copied = call(view, kind, copied, *view.args[1:], **view.kwargs)
                    if have_same_strides(value(copied), expected):
                        user.replace_input_with(source, copied)
                        copies.append((copy, base))
                        continue
                    erase_unused(copied)
                copy = _dense(source, memory_order(expected))
            user.replace_input_with(source, copy)
            copies.append((copy, source))
    return copies


def _views(node: Node) -> tuple[list[Node], Node]:
    """The chain of views that ends with a node, and the base of the chain."""
    views: list[Node] = []
    while node.target in _VIEWS or _splits(node):
        views.insert(0, node)
        node = node.args[0]  # type: ignore[assignment]
    return views, node


def _splits(node: Node) -> bool:
    part: Any = node.args[0] if node.target is operator.getitem else node
    return part.target in (aten.unbind.int, aten.split.Tensor, aten.split_with_sizes.default)


def memory_order(tensor: Tensor) -> list[int]:
    """The dimensions in the order of their strides, the largest first."""
    strides = [-expected_numel([stride]) for stride in tensor.stride()]
    return sorted(range(tensor.dim()), key=strides.__getitem__)


def _dense(source: Node, order: list[int]) -> Node:
    """A dense tensor, whose dimensions come in this order in memory."""
    if order == sorted(order):
        return call(source, aten.contiguous.default, source)
    permuted = call(source, aten.permute.default, source, order)
    dense = call(source, aten.clone.default, permuted, memory_format=torch.contiguous_format)
    return call(source, aten.permute.default, dense, [order.index(d) for d in range(len(order))])


def refresh(graph: Graph) -> None:
    for node in graph.nodes:
        _refresh(node)


def _refresh(node: Node) -> None:
    """The value of a node, as its arguments lie in memory now."""
    is_operator = isinstance(node.target, torch._ops.OpOverload) or node.target is operator.getitem
    if is_operator and isinstance(value(node), (Tensor, tuple, list)):
        with suppress(Exception):  # sizes that come from data
            found = computed(node.target, node.args, node.kwargs)  # type: ignore[arg-type]
            node.meta["val"] = value(node) if found is None else found


def _has_images(node: Node) -> bool:
    return node.target in CONVOLUTIONS and arguments_of(node)["data_format"] == "NCX"


def _is_planar(image: Tensor) -> bool:
    """Whether an image is contiguous, and not channels_last as well."""
    sizes, (_, channel, row, column) = image.shape, image.stride()
    is_first = statically_known_true(column == 1) and statically_known_true(row == sizes[3])
    return is_first and not statically_known_true(channel == 1)


def have_same_strides(now: Any, before: Tensor) -> bool:
    """Whether the strides are known to be equal."""
    dims = [d for d, size in enumerate(before.shape) if not statically_known_true(size == 1)]
    return isinstance(now, Tensor) and all(
        statically_known_true(now.stride(d) == before.stride(d)) for d in dims
    )


def _size(node: Node) -> int:
    result: Any = value(node)
    return expected_numel((result if isinstance(result, Tensor) else result[0]).shape)
