"""The calls in a graph of `optimize`: convolutions of packed weights, without the overhead of
torch.ops."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling, is_exporting
from torch.fx import Graph

from torch_dnnl.functional._quick import quick
from torch_dnnl.graph.constants import Constants
from torch_dnnl.graph.nodes import arguments_of, dnnl, expected_numel, replace, value

_convolution = dnnl.convolution_packed.default
_FORMAT = [each.name for each in _convolution._schema.arguments].index("data_format")
_quick_convolution = quick("convolution_packed")


def convolution(*args: Any) -> Any:
    """The first result of `torch_dnnl::convolution_packed`, given all of its arguments.

    A convolution with one tap also takes an image without pixels, as linear layers and norms do.
    """
    try:
        if is_exporting():  # programs and ONNX models are for any CPU
            return dnnl.convolution_fused.default(*args[:-1])[0]
        result = NotImplemented if is_dynamo_compiling() else _quick_convolution(*args)
        return _convolution(*args)[0] if result is NotImplemented else result
    except ValueError:
        src, weights = args[0], args[1]
        if src.numel() or weights.shape[2:].numel() != 1:
            raise
        axis = -1 if args[_FORMAT] == "NXC" else 1
        channels = src.sum(axis, keepdim=True)  # has a gradient
        return channels.expand(
            [n if d != axis % src.dim() else weights.shape[0] for d, n in enumerate(src.shape)]
        )


class Tracer(torch.fx.Tracer):
    """Reads the code of a graph again when a module is unpickled."""

    def __init__(self) -> None:
        super().__init__(autowrap_functions=(convolution,))


def quicken(graph: Graph, constants: Constants) -> None:
    """Replaces convolutions by calls of `convolution`, with constant weights packed."""
    for node in graph.find_nodes(op="call_function", target=dnnl.quantized_convolution.default):
        packed = _packed(arguments_of(node), constants)
        if packed is not None:
            with graph.inserting_before(node):
                new = constants.add(f"{node.name}_packed", packed)
            node.target = dnnl.quantized_convolution_packed.default
            node.update_kwarg("packed", new)
    names = ("residual", "activation", "alpha", "beta", "slope")
    defaults: dict[str, Any] = dict.fromkeys(names) | {"keep_preactivation": False}
    for node in list(graph.nodes):
        if node.target not in (dnnl.convolution.default, dnnl.convolution_fused.default):
            continue
        arguments = defaults | arguments_of(node)
        if arguments["keep_preactivation"]:  # there are two results
            continue
        packed = _packed(arguments, constants)
        with graph.inserting_before(node):
            name = arguments["weights"].name
            arguments["packed"] = (
                packed if packed is None else constants.add(f"{name}_packed", packed)
            )
            args = tuple(arguments[each.name] for each in _convolution._schema.arguments)
            new = graph.call_function(convolution, args)
        result = value(node)
        new.meta = node.meta | {"val": result if isinstance(result, Tensor) else result[0]}
        if node.target is dnnl.convolution_fused.default:
            for user in list(node.users):
                replace(user, new)
            graph.erase_node(node)
        else:
            replace(node, new)


def _packed(arguments: dict[str, Any], constants: Constants) -> Tensor | None:
    """Constant weights in the layout of the kernel; None if the kernel reads plain weights."""
    weights, image = constants.value(arguments["weights"]), value(arguments["src"])
    if weights is None or not image.is_cpu:
        return None
    sizes = [expected_numel([size]) for size in image.shape]
    names = ("strides", "pads_begin", "pads_end", "dilations", "auto_pad", "groups", "data_format")
    options = {name: arguments[name] for name in (*names, "weights_format", "algorithm")}
    if options["data_format"] == "NCX" and image.stride(1) == 1:
        sizes, options["data_format"] = [sizes[0], *sizes[2:], sizes[1]], "NXC"
    is_float = weights.is_floating_point()
    packed: Tensor = (dnnl.pack_weights if is_float else dnnl.pack_quantized_weights)(
        weights, sizes, **options
    )
    return packed if packed.numel() else None
