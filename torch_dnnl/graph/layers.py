"""Convolutions and linear layers in graphs: operators of torch_dnnl in place of aten's."""

from __future__ import annotations

import operator
from typing import Any

from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torch_dnnl.functional._algorithm import has_kernels
from torch_dnnl.graph.constants import Constants
from torch_dnnl.graph.nodes import (
    arguments_of,
    aten,
    call,
    call_with,
    dnnl,
    erase_unused,
    expected_numel,
    is_floating,
    per_dimension,
    replace,
    spatial_sizes,
    value,
)

_TRANSPOSED = (
    aten.conv_transpose1d.default,
    aten.conv_transpose2d.input,
    aten.conv_transpose3d.input,
)
ATEN = (
    *(aten.conv1d.default, aten.conv2d.default, aten.conv3d.default),
    *(aten.conv1d.padding, aten.conv2d.padding, aten.conv3d.padding),
    *_TRANSPOSED,
    aten.convolution.default,
)
CONVOLUTIONS = (
    *(dnnl.convolution.default, dnnl.convolution_fused.default),
    dnnl.convolution_transpose.default,
)
# For each operator, the operator that also takes a residual and an activation.
FUSED: dict[Any, Any] = {
    dnnl.convolution.default: dnnl.convolution_fused.default,
    dnnl.convolution_fused.default: dnnl.convolution_fused.default,
    dnnl.convolution_transpose.default: dnnl.convolution_transpose.default,
    dnnl.quantized_convolution.default: dnnl.quantized_convolution.default,
}
# Operators with two results: the second is the input of the activation.
HAS_PAIR = (dnnl.convolution_fused.default, dnnl.convolution_transpose.default)


def aten_arguments(node: Node) -> dict[str, Any]:
    """The arguments of one of aten's convolutions, under the names of `aten.convolution`."""
    arguments = {"transposed": node.target in _TRANSPOSED, "output_padding": [0]}
    return arguments | arguments_of(node)


def is_possible(arguments: dict[str, Any], *tensors: Any) -> bool:
    """Whether torch_dnnl has the convolution whose tensors these are."""
    values = [value(tensor) for tensor in tensors]
    is_known = all(v is not None for v, t in zip(values, tensors, strict=True) if t is not None)
    if not is_known or not is_floating(*values) or values[0].dim() not in (3, 4, 5):
        return False
    if values[0].dim() != values[1].dim() or not has_kernels(values[0]):
        return False  # an image without a batch, or another device
    src = arguments["input"]
    if src.target is aten.unsqueeze.default and not value(src.args[0]).is_contiguous():
        return False  # one image without a batch, of which torch's result is contiguous
    if not arguments["transposed"]:
        return True
    # More than that is added to the result only with dilations, and then src needs more pixels.
    added, strides = (
        per_dimension(arguments[name], values[0].dim() - 2) for name in ("output_padding", "stride")
    )
    return all(statically_known_true(a < s) for a, s in zip(added, strides, strict=True))


def attributes_of(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of torch_dnnl's operator, from `strides` on, for a convolution of aten."""
    n = value(arguments["input"]).dim() - 2
    strides, dilations = (per_dimension(arguments[name], n) for name in ("stride", "dilation"))
    padding = arguments["padding"]
    is_named = isinstance(padding, str)
    pads = None if is_named else per_dimension(padding, n)
    return {
        "strides": strides,
        "pads_begin": pads,
        "pads_end": pads,
        "dilations": dilations,
        "auto_pad": {"same": "same_upper", "valid": "valid"}[padding] if is_named else "none",
        "groups": arguments["groups"],
        "data_format": "NCX",
        "weights_format": "OIX",
    }


def replace_convolution(node: Node, arguments: dict[str, Any]) -> Node:
    """Puts an operator of torch_dnnl in the place of a convolution of aten."""
    taken = {"src": "input", "weights": "weight", "bias": "bias"}
    new_arguments = attributes_of(arguments) | {new: arguments[old] for new, old in taken.items()}
    with node.graph.inserting_before(node):
        if arguments["transposed"]:
            new_arguments["dst_size"] = _transposed_sizes(node, arguments)
            pair = call_with(node, dnnl.convolution_transpose.default, new_arguments)
            new = call(node, operator.getitem, pair, 0, val=value(node))
        else:
            new = call_with(node, dnnl.convolution.default, new_arguments, val=value(node))
    replace(node, new)
    return new


def replace_convolutions(graph: Graph) -> None:
    """Replaces every convolution of aten that torch_dnnl has."""
    for node in list(graph.nodes):
        if node.target in ATEN and not _is_empty(node):
            arguments = aten_arguments(node)
            if is_possible(arguments, *(arguments[name] for name in ("input", "weight", "bias"))):
                replace_convolution(node, arguments)


def _is_empty(node: Node) -> bool:
    """Whether a result has no pixels: a transposed convolution may leave none."""
    result = value(node)
    sizes = result.shape[2:] if isinstance(result, Tensor) else ()
    return any(type(n) is int and n == 0 for n in sizes)


def _transposed_sizes(node: Node, arguments: dict[str, Any]) -> list[Any]:
    """The spatial sizes of a transposed convolution's result, as arguments of a call."""
    src = arguments["input"]
    n = value(src).dim() - 2
    kernel = value(arguments["weight"]).shape[2:]
    names = ("stride", "padding", "dilation", "output_padding")
    lists = [per_dimension(arguments[name], n) for name in names]
    sizes = spatial_sizes(node, src)
    results = []
    for size, result, k, s, p, d, added in zip(
        sizes, value(node).shape[2:], kernel, *lists, strict=True
    ):
        if isinstance(size, Node):
            scaled = call(node, operator.mul, size, s, val=value(size) * s)
            more = (k - 1) * d + 1 - s - 2 * p + added
            result = call(node, operator.add, scaled, more, val=value(scaled) + more)
        results.append(result)
    return results


_IS_LINEAR = "torch_dnnl_linear"  # in the data of a convolution that was a linear layer
# Fewer rows do not make up for packing the weights in every call.
_FEWEST_ROWS = 32
# With this many weights, the kernel is faster than torch's without an epilogue too (float32, Zen 4,
# one thread and two). For few rows, torch's kernel has one thread.
_LARGE, _LARGE_OF_FEW_ROWS = 1 << 19, 1 << 17


def is_linear(node: Node) -> bool:
    """Whether a node has the weights of `torch.nn.Linear`: a matrix, and a bias of [O] or none."""
    if node.target is not aten.linear.default:
        return False
    rows, matrix, bias = (value(arguments_of(node)[name]) for name in ("input", "weight", "bias"))
    if not isinstance(rows, Tensor) or not isinstance(matrix, Tensor) or matrix.dim() != 2:
        return False
    has_bias = isinstance(bias, Tensor)
    is_plain = not has_bias or tuple(bias.shape) == (matrix.shape[0],)
    return is_plain and is_floating(rows, matrix, bias) and 0 not in matrix.shape


def replace_linears(graph: Graph, constants: Constants) -> None:
    """Replaces linear layers of many rows, or of constant weights, by convolutions with one tap.
    Convolutions take an epilogue."""
    for node in graph.find_nodes(op="call_function", target=aten.linear.default):
        if not is_linear(node):
            continue
        arguments = arguments_of(node)
        rows, matrix, bias = (arguments[name] for name in ("input", "weight", "bias"))
        image, dim = value(rows), value(rows).dim()
        if not image.is_cpu or dim not in (2, 3, 4, 5):
            continue
        # Spatial sizes of a convolution are 1 or more.
        is_never_empty = all(statically_known_true(n >= 1) for n in image.shape[:-1])
        is_constant = constants.value(matrix) is not None and image.dtype.itemsize != 2
        if not is_never_empty or not (is_constant or _has_many_rows(image)):
            continue
        with graph.inserting_before(node):
            src = call(node, aten.unsqueeze.default, rows, 0) if dim == 2 else rows
            n = value(src).dim() - 2
            weights = call(node, aten.reshape.default, matrix, [*value(matrix).shape, *[1] * n])
            options = {"data_format": "NXC", "weights_format": "OIX"}
            taken = {"src": src, "weights": weights, "bias": bias}
            new = call_with(node, dnnl.convolution.default, taken | options)
            new.meta[_IS_LINEAR] = dim
            result = call(node, aten.squeeze.dim, new, 0) if dim == 2 else new
        replace(node, result)


def _has_many_rows(image: Tensor) -> bool:
    return bool(expected_numel(image.shape[:-1]) >= _FEWEST_ROWS)


def restore_linears(graph: Graph) -> None:
    """Restores linear layers where no epilogue was found and the weights are few."""
    for node in graph.find_nodes(op="call_function", target=dnnl.convolution.default):
        arguments = arguments_of(node)
        dim = node.meta.pop(_IS_LINEAR, None)
        matrix = None if dim is None else arguments["weights"].args[0]
        if matrix is None:
            continue
        large = _LARGE if _has_many_rows(value(arguments["src"])) else _LARGE_OF_FEW_ROWS
        if expected_numel(value(matrix).shape) >= large:
            continue
        last = next(iter(node.users)) if dim == 2 else node
        rows = arguments["src"].args[0] if dim == 2 else arguments["src"]
        with graph.inserting_before(node):
            args = (rows, matrix, arguments["bias"])
            new = call(node, aten.linear.default, *args, val=value(last))
        last.replace_all_uses_with(new)
        erase_unused(last)


def may_be_empty(layer: Node) -> bool:
    """Whether a call may have no rows: torch_dnnl's operator has no image without pixels."""
    sizes = value(arguments_of(layer)["src"]).shape[1:-1] if _IS_LINEAR in layer.meta else ()
    return not all(isinstance(n, int) for n in sizes)


def open_layer(result: Node) -> Node | None:
    """The convolution of torch_dnnl that computes `result`, if an epilogue can still be added.

    A convolution with an activation takes nothing more. A call that names a kernel stays: the
    kernel may lack the epilogue.
    """
    layer: Any = result
    if result.target is operator.getitem and result.args[1] == 0:
        layer = result.args[0]
        if layer.target not in HAS_PAIR:
            return None
    elif result.target not in FUSED or result.target in HAS_PAIR:
        return None
    arguments = arguments_of(layer)
    is_open = arguments["algorithm"] == "auto" and arguments.get("activation") is None
    return layer if is_open else None


def channel_axis(layer: Node) -> int:
    """The axis of the channels in the result, counted from the end as broadcasting does."""
    if layer.target is aten.linear.default:
        return -1
    result = value(layer)
    dim = (result[0] if layer.target in HAS_PAIR else result).dim()
    return 1 - dim if arguments_of(layer)["data_format"] == "NCX" else -1
