"""Convolutions of aten, and their gradients, as operators of torch_dnnl; and back."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.decomposition import select_decomp_table
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

from torch_dnnl.graph.channels import fold_channels
from torch_dnnl.graph.layers import aten_arguments, attributes_of, is_possible, replace_convolution
from torch_dnnl.graph.nodes import (
    CONSTRAINT,
    arguments_of,
    aten,
    call,
    call_with,
    dnnl,
    expected_numel,
    replace,
    spatial_sizes,
    value,
)
from torch_dnnl.inductor.preferences import Convolution

# The key of a node's data for the call of aten that the node replaced: a description for the
# choice, and the arguments of the call.
_ORIGIN = "torch_dnnl_origin"


def is_frozen() -> bool:
    """Whether parameters become constants of the graph that is compiled."""
    return bool(config.freezing) and not torch.is_grad_enabled()


def replace_convolutions(graph: Graph) -> None:
    """Replaces convolutions that torch_dnnl computes faster, at least with an epilogue."""
    for node in graph.find_nodes(op="call_function", target=aten.convolution.default):
        _replace_result(node)
    for node in graph.find_nodes(op="call_function", target=aten.convolution_backward.default):
        _replace_gradients(node)


def fold(graph: Graph) -> None:
    """Arithmetic by channel, where new weights cost less than a pass over the result. With freezing
    the new weights are made only once."""
    fold_channels(graph, _computed_in_each_call)


def _computed_in_each_call(
    layer: Node, function: Callable[..., Any], nodes: Sequence[Node]
) -> tuple[Node, Node | None] | None:
    """The calls that compute new weights and a new bias, at the graph's point of insertion."""
    if layer.target is aten.linear.default or not (is_frozen() or _are_weights_small(layer)):
        return None
    fakes = [value(node) for node in nodes]
    with fakes[0].fake_mode:
        table = select_decomp_table()
        traced = make_fx(lambda *tensors: function(*tensors), decomposition_table=table)(*fakes)
    made: dict[Any, Any] = dict(zip(traced.graph.find_nodes(op="placeholder"), nodes, strict=True))
    for node in traced.graph.nodes:
        if node.op == "call_function":
            args, kwargs = map_arg((node.args, node.kwargs), made.__getitem__)
            made[node] = call(layer, node.target, *args, val=value(node), **kwargs)
    results: Any = traced.graph.output_node().args[0]
    weights, bias = results
    return made[weights], None if bias is None else made[bias]


def _are_weights_small(layer: Node) -> bool:
    result = value(layer)
    sizes = (result if isinstance(result, torch.Tensor) else result[0]).shape
    return 4 * expected_numel(value(layer.args[1]).shape) <= expected_numel(sizes)


def restore_convolutions(graph: Graph) -> None:
    """Restores convolutions without an epilogue that torch computes faster."""
    for node in list(graph.nodes):
        described, arguments = node.meta.pop(_ORIGIN, (None, {}))
        if described is None or node.target is not dnnl.convolution.default:
            continue
        if _prefers(described, has_epilogue=False):
            continue
        now = arguments_of(node)
        arguments |= {"input": now["src"], "weight": now["weights"], "bias": now["bias"]}
        with graph.inserting_before(node):
            new = call_with(node, aten.convolution.default, arguments, val=value(node))
        replace(node, new)


def _prefers(described: Convolution, has_epilogue: bool) -> bool:
    if is_frozen():
        return described.choice.frozen
    return described.prefers_result(has_epilogue)


def _described(arguments: dict[str, Any]) -> Convolution:
    strides, dilations = tuple(arguments["stride"]), tuple(arguments["dilation"])
    src, weights = value(arguments["input"]), value(arguments["weight"])
    pixels = expected_numel((src.shape[0], *src.shape[2:]))
    groups, transposed = arguments["groups"], arguments["transposed"]
    return Convolution(weights, strides, dilations, groups, transposed, pixels)


def _replace_result(node: Node) -> None:
    arguments = aten_arguments(node)
    if not is_possible(arguments, *(arguments[name] for name in ("input", "weight", "bias"))):
        return
    described = _described(arguments)
    if _prefers(described, has_epilogue=True):
        new = replace_convolution(node, arguments)
        if not described.transposed:
            new.meta[_ORIGIN] = (described, arguments)


def _replace_gradients(node: Node) -> None:
    """Replaces the gradients that the call asks for and torch_dnnl computes faster."""
    graph = node.graph
    arguments = aten_arguments(node)
    grad, src, weights = (arguments[name] for name in ("grad_output", "input", "weight"))
    if not is_possible(arguments, grad, src, weights):
        return
    wanted, described = list(arguments["output_mask"]), _described(arguments)
    of_data = wanted[0] and described.choice.data
    of_weights = wanted[1] and described.choice.weights
    if not of_data and not of_weights:
        return
    attributes = attributes_of(arguments)
    new: list[Node | None] = [None, None, None]

    def gradient(index: int, target: Any, *args: Any, **kwargs: Any) -> None:
        new[index] = call(node, target, *args, **kwargs, val=value(node)[index])

    with graph.inserting_before(node):
        if of_data and described.transposed:
            gradient(0, dnnl.convolution.default, grad, weights, **attributes)
        elif of_data:
            sizes = spatial_sizes(node, src)
            gradient(0, dnnl.convolution_backward_data.default, grad, weights, sizes, **attributes)
        if of_weights:
            # A transposed convolution takes what the convolution gives.
            pair = (src, grad) if described.transposed else (grad, src)
            sizes = spatial_sizes(node, weights)
            target = dnnl.convolution_backward_weights.default
            gradient(1, target, *pair, sizes, **attributes)
        if wanted[2]:
            gradient(2, aten.sum.dim_IntList, grad, [0, *range(2, value(grad).dim())])
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
    """Lets Inductor choose the strides of torch_dnnl's inputs, as its operators take any strides.

    A call that the model itself made records the strides of eager mode. Inductor would copy a
    tensor that has other strides.
    """
    for node in graph.nodes:
        if str(node.target).startswith(("torch_dnnl.convolution", "torch_dnnl.resample")):
            node.meta.pop(CONSTRAINT, None)
