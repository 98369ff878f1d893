"""Convolutions of aten, and their gradients, as operators of ours; and back."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._inductor import config
from torch.fx import Graph, Node

from torch_dnnl._quantized_graph import arguments_of
from torch_dnnl.inductor.graphs import (
    CONSTRAINT,
    aten,
    call,
    expected_numel,
    in_order,
    is_floating,
    ours,
    per_dimension,
    replace,
    spatial_sizes,
    value,
)
from torch_dnnl.inductor.preferences import Convolution

# In the data of a node that stands for a call of aten: what the choice depends on there, and the
# arguments of that call after its tensors.
_ORIGIN = "torch_dnnl_origin"


def is_frozen() -> bool:
    """Whether parameters become constants of the graph that is compiled."""
    return bool(config.freezing) and not torch.is_grad_enabled()


def replace_convolutions(graph: Graph) -> None:
    """Puts ours where the table of preferences may have it, if an epilogue is found."""
    for node in graph.find_nodes(op="call_function", target=aten.convolution.default):
        _replace_result(graph, node)
    for node in graph.find_nodes(op="call_function", target=aten.convolution_backward.default):
        _replace_gradients(graph, node)


def restore_convolutions(graph: Graph) -> None:
    """Puts torch's back where ours has found no epilogue and is not the faster without one."""
    for node in list(graph.nodes):
        described, attributes = node.meta.pop(_ORIGIN, (None, ()))
        if described is None or node.target is not ours.convolution.default:
            continue
        if _prefers(described, False, not _is_followed_by_arithmetic(node)):
            continue
        with graph.inserting_before(node):
            args = (*node.args[:3], *attributes)
            new = call(graph, node, aten.convolution.default, *args, val=value(node))
        replace(node, new)


def _prefers(described: Convolution, has_epilogue: bool, is_complete: bool) -> bool:
    if is_frozen():
        return described.prefers_frozen(is_complete)
    return described.prefers_result(has_epilogue)


def _is_followed_by_arithmetic(node: Node) -> bool:
    return any(torch.Tag.pointwise in getattr(user.target, "tags", ()) for user in node.users)


def _attributes(arguments: dict[str, Any]) -> tuple[Any, ...]:
    """Of our operators, from `strides` on, for a call of aten's."""
    n = value(arguments["input"]).dim() - 2
    names = ("stride", "padding", "dilation")
    strides, pads, dilations = (per_dimension(arguments[name], n) for name in names)
    return (strides, pads, pads, dilations, "none", arguments["groups"], "NCX", "OIX")


def _described(arguments: dict[str, Any]) -> Convolution:
    strides, dilations = tuple(arguments["stride"]), tuple(arguments["dilation"])
    src, weights = value(arguments["input"]), value(arguments["weight"])
    pixels = expected_numel((src.shape[0], *src.shape[2:]))
    groups, transposed = arguments["groups"], arguments["transposed"]
    return Convolution(weights, strides, dilations, groups, transposed, pixels)


def _is_possible(arguments: dict[str, Any], *tensors: Any) -> bool:
    values = [value(tensor) for tensor in tensors]
    if not is_floating(*values) or values[0].dim() not in (3, 4, 5):
        return False
    src = arguments["input"]
    if src.target is aten.unsqueeze.default and not value(src.args[0]).is_contiguous():
        return False  # one image without a batch, of which torch's result is contiguous
    if not arguments["transposed"]:
        return True
    # More than that is added to the result only with dilations, and then src needs more pixels.
    added, strides = (
        per_dimension(arguments[name], values[0].dim() - 2) for name in ("output_padding", "stride")
    )
    return all(a < s for a, s in zip(added, strides, strict=True))


def _replace_result(graph: Graph, node: Node) -> None:
    arguments = arguments_of(node)
    tensors = [arguments[name] for name in ("input", "weight", "bias")]
    if not _is_possible(arguments, *tensors):
        return
    described = _described(arguments)
    if not _prefers(described, True, True):
        return
    attributes = _attributes(arguments)
    with graph.inserting_before(node):
        if described.transposed:
            more = {"dst_size": _transposed_sizes(graph, node, arguments)}
            target = ours.convolution_transpose.default
            pair = call(graph, node, target, *tensors, *attributes, **more)
            new = call(graph, node, operator.getitem, pair, 0, val=value(node))
        else:
            target = ours.convolution.default
            new = call(graph, node, target, *tensors, *attributes, val=value(node))
            new.meta[_ORIGIN] = (described, in_order(aten.convolution.default, arguments)[3:])
    replace(node, new)


def _transposed_sizes(graph: Graph, node: Node, arguments: dict[str, Any]) -> list[Any]:
    """The spatial sizes of a transposed convolution's result, as arguments of a call."""
    src = arguments["input"]
    n = value(src).dim() - 2
    kernel = value(arguments["weight"]).shape[2:]
    names = ("stride", "padding", "dilation", "output_padding")
    lists = [per_dimension(arguments[name], n) for name in names]
    sizes = spatial_sizes(graph, node, src)
    results = []
    for size, result, k, s, p, d, added in zip(
        sizes, value(node).shape[2:], kernel, *lists, strict=True
    ):
        if isinstance(size, Node):
            scaled = call(graph, node, operator.mul, size, s, val=value(size) * s)
            more = (k - 1) * d + 1 - s - 2 * p + added
            result = call(graph, node, operator.add, scaled, more, val=value(scaled) + more)
        results.append(result)
    return results


def _replace_gradients(graph: Graph, node: Node) -> None:
    """Those of the three gradients that are asked for and for which ours is the faster."""
    arguments = arguments_of(node)
    grad, src, weights = (arguments[name] for name in ("grad_output", "input", "weight"))
    if not _is_possible(arguments, grad, src, weights):
        return
    wanted, described = list(arguments["output_mask"]), _described(arguments)
    of_data = wanted[0] and described.choice.data
    of_weights = wanted[1] and described.choice.weights
    if not of_data and not of_weights:
        return
    attributes = _attributes(arguments)
    new: list[Node | None] = [None, None, None]

    def gradient(index: int, target: Any, *args: Any) -> None:
        new[index] = call(graph, node, target, *args, val=value(node)[index])

    with graph.inserting_before(node):
        if of_data and described.transposed:
            gradient(0, ours.convolution.default, grad, weights, None, *attributes)
        elif of_data:
            sizes = spatial_sizes(graph, node, src)
            target = ours.convolution_backward_data.default
            gradient(0, target, grad, weights, sizes, *attributes)
        if of_weights:
            # A transposed convolution takes what the convolution gives.
            pair = (src, grad) if described.transposed else (grad, src)
            sizes = spatial_sizes(graph, node, weights)
            gradient(1, ours.convolution_backward_weights.default, *pair, sizes, *attributes)
        if wanted[2]:
            axes = [0, *range(2, value(grad).dim())]
            gradient(2, aten.sum.dim_IntList, grad, axes)
    for user in list(node.users):
        index: Any = user.args[1]
        found = new[index] if user.target is operator.getitem else None
        if found is not None:
            replace(user, found)
    left = [asked and found is None for asked, found in zip(wanted, new, strict=True)]
    if any(left):
        node.args = (*node.args[:-1], left)
    else:
        graph.erase_node(node)


def relax_layouts(graph: Graph) -> None:
    """Lets Inductor choose how the tensors of our operators lie: they take any strides.

    A call that the model itself made has the strides that it would meet without Inductor; a tensor
    that Inductor lays out otherwise would be copied.
    """
    for node in graph.nodes:
        if str(node.target).startswith(("torch_dnnl.convolution", "torch_dnnl.resample")):
            node.meta.pop(CONSTRAINT, None)
