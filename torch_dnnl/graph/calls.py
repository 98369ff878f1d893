"""The calls of convolutions in a graph of `optimize`, without the overhead of torch.ops."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling, is_exporting
from torch.fx import Graph

from torch_dnnl.functional._quick import quick
from torch_dnnl.graph.nodes import arguments_of, dnnl, replace, value

_convolution = dnnl.convolution_packed.default
_FORMAT = [each.name for each in _convolution._schema.arguments].index("data_format")
_quick_convolution = quick("convolution_packed")
_FUSED = (dnnl.convolution_fused.default, _convolution)


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


def quicken(graph: Graph) -> None:
    """Replaces convolutions by calls of `convolution`."""
    names = ("residual", "activation", "alpha", "beta", "slope", "packed")
    defaults: dict[str, Any] = dict.fromkeys(names) | {"keep_preactivation": False}
    for node in list(graph.nodes):
        if node.target not in (dnnl.convolution.default, *_FUSED):
            continue
        arguments = defaults | arguments_of(node)
        if arguments["keep_preactivation"]:  # there are two results
            continue
        with graph.inserting_before(node):
            args = tuple(arguments[each.name] for each in _convolution._schema.arguments)
            new = graph.call_function(convolution, args)
        result = value(node)
        new.meta = node.meta | {"val": result if isinstance(result, Tensor) else result[0]}
        if node.target is dnnl.convolution.default:
            replace(node, new)
            continue
        for user in list(node.users):
            replace(user, new)
        graph.erase_node(node)
