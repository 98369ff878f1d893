"""Constant weights of convolutions in the layout of the kernels, packed once."""

from __future__ import annotations

import operator
from typing import Any

from torch import Tensor
from torch.fx import Graph

from torch_dnnl.graph.constants import Constants
from torch_dnnl.graph.nodes import (
    arguments_of,
    call,
    call_with,
    dnnl,
    expected_numel,
    replace,
    value,
)

# For each operator, the operator that takes packed weights.
_PACKED: dict[Any, Any] = {
    dnnl.convolution.default: dnnl.convolution_packed.default,
    dnnl.convolution_fused.default: dnnl.convolution_packed.default,
    dnnl.quantized_convolution.default: dnnl.quantized_convolution_packed.default,
}


def pack_weights(graph: Graph, constants: Constants) -> None:
    """Gives packed weights to convolutions whose weights are constants, where their kernels read
    packed weights."""
    for node in list(graph.nodes):
        arguments = arguments_of(node) if node.target in _PACKED else {}
        packed = _packed(arguments, constants) if arguments else None
        if packed is None:
            continue
        with graph.inserting_before(node):
            arguments["packed"] = constants.add(f"{arguments['weights'].name}_packed", packed)
            is_pair = node.target is dnnl.convolution.default
            val = (value(node), value(node).new_empty(0)) if is_pair else value(node)
            new = call_with(node, _PACKED[node.target], arguments, val=val)
            if is_pair:
                new = call(node, operator.getitem, new, 0, val=value(node))
        replace(node, new)


def _packed(arguments: dict[str, Any], constants: Constants) -> Tensor | None:
    """Constant weights in the layout of the kernel; None if the kernel reads plain weights."""
    weights, image = constants.value(arguments["weights"]), value(arguments["src"])
    if weights is None or image is None or not image.is_cpu:
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
