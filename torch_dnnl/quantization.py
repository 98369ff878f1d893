"""`lower`: a model of quantize and dequantize operators, computed in integers by torch_dnnl.

torchao's `convert_pt2e` returns a graph in float32, in which pairs of quantize and dequantize
operators say where the values are those of integers. Here each convolution between such pairs
becomes one `quantized_convolution`, and the operators that remain become reorders. torchao itself
is not needed: its operators are known by their names.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule

from torch_dnnl.graph.quantized import lower_quantized

__all__ = ["lower"]


def lower(model: torch.nn.Module) -> GraphModule:
    """Replaces quantize and dequantize operators, and the convolutions between them.

    Each of these patterns becomes one `torch.ops.torch_dnnl.quantized_convolution`; in brackets,
    what may be missing:

        dequantize, convolution of constant int8 weights, [bias], [addition of a residual],
        [relu, silu, gelu, sigmoid, tanh, hardswish, or relu6, hardtanh, clamp before quantize],
        [quantize]

    A pattern ends before a value that is used elsewhere too. Without quantize, the result is
    float32. A residual may be dequantized or float32. The other quantize and dequantize operators
    become `torch.ops.torch_dnnl.reorder`, and everything else stays as it is, but for the layout:
    images are quantized to channels_last, and what is made of them, results too, keeps that.

    The results of a layer are those of `model` but for float32 rounding: where that carries a value
    across the middle between two integers, the integers differ by 1. So they do where a value lies
    in the middle exactly and the zero point is odd, as a convolution rounds after adding it, and
    torch before. Each such integer moves what later layers make of it.

    Args:
        model: what torchao's `convert_pt2e` returns, with any quantizer that gives int8 or uint8,
            for each tensor or for each channel. It stays as it is, and shares with the result what
            both of them need.

    Returns:
        A GraphModule of the same inputs and outputs. Weights are int8, in memory channels last.

    Raises:
        TypeError: `model` is not a `torch.fx.GraphModule`.

    Example:
        >>> from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
        >>> from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86
        >>> quantizer = x86.X86InductorQuantizer()
        >>> config = x86.get_default_x86_inductor_quantization_config()
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
        >>> image = torch.rand(1, 3, 8, 8)
        >>> exported = torch.export.export(model, (image,)).module()
        >>> prepared = prepare_pt2e(exported, quantizer.set_global(config))
        >>> _ = prepared(image)  # calibrates
        >>> lowered = lower(convert_pt2e(prepared))
        >>> [str(node.target) for node in lowered.graph.nodes if node.op == "call_function"]
        ['torch_dnnl.reorder.default', 'torch_dnnl.quantized_convolution.default']
    """
    if not isinstance(model, GraphModule):
        raise TypeError(
            "lower: expected model to be a torch.fx.GraphModule, as convert_pt2e returns it, got "
            f"{type(model).__name__}"
        )
    graph = torch.fx.Graph()
    graph.set_codegen(model.graph._codegen)  # how the inputs and outputs are nested
    graph.output(graph.graph_copy(model.graph, {}))
    lowered = GraphModule(model, graph)
    lowered.meta.update(model.meta)
    lower_quantized(lowered)
    graph.lint()
    # Another GraphModule has nothing but what the graph still uses.
    result = GraphModule(lowered, graph)
    result.meta.update(model.meta)
    return result
