"""Quantized convolution: DequantizeLinear, Conv and QuantizeLinear, the form that runtimes know and
compute in integers; sums by themselves are ConvInteger.

Runtimes round the sums, or scale before they add: where a result is close to half-way between two
integers, theirs may be the other one.
"""

from __future__ import annotations

from types import SimpleNamespace

from torch_dnnl.onnx import _linear
from torch_dnnl.onnx._convolution import (
    Attributes,
    activated,
    as_called,
    ncx,
    oix,
    spatial_sizes,
)
from torch_dnnl.onnx._graph import (
    FLOAT,
    INT8,
    INT32,
    INTEGERS,
    Value,
    cast,
    convert,
    is_neutral,
    operand,
    opset,
    translates,
)


# Of the plain weights.
@translates("quantized_convolution", "quantized_convolution_packed")
def quantized_convolution(call: SimpleNamespace) -> Value:
    op, target = opset(), call.dtype or INT8
    attributes = Attributes.of("quantized_convolution", call)
    src, weights = ncx(call.src, call), oix(call.weights, call)
    names = ("src_scale", "weights_scale", "dst_scale")
    src_scale, weights_scale, dst_scale = scales = [operand(call, name) for name in names]
    zero_point = operand(call, "dst_zero_point")
    of_src = _linear.parameters(src_scale, operand(call, "src_zero_point"), call.src.dtype)[:2]
    is_plain = all(is_neutral(scale, 1) for scale in scales) and is_neutral(zero_point, 0)
    if target == INT32 and is_plain and call.bias is call.residual is call.activation is None:
        src, pads = attributes.padded(src, spatial_sizes(call), of_src[1])
        sums = op.ConvInteger(src, weights, of_src[1], **attributes.shared(), **pads)
        return as_called(sums, call)

    image = op.DequantizeLinear(src, *of_src)
    image, pads = attributes.padded(image, spatial_sizes(call))
    is_per_channel = len(getattr(weights_scale, "shape", ())) == 1
    *of_weights, axis = _linear.parameters(weights_scale, 0, INT8, 0 if is_per_channel else None)
    kernel = op.DequantizeLinear(weights, *of_weights, **axis)
    value = op.Conv(image, kernel, call.bias, **attributes.shared(), **pads)
    if call.residual is not None:
        value = op.Add(value, residual(call))
    value = activated(value, call, FLOAT)
    if target in _linear.BYTES:
        of_dst = _linear.parameters(dst_scale, zero_point, target)[:2]
        return as_called(op.QuantizeLinear(value, *of_dst), call)
    if target in INTEGERS:
        value = op.Div(value, _linear.as_tensor(dst_scale, FLOAT))
        value = op.Add(value, _linear.as_tensor(zero_point, FLOAT))
    return as_called(convert("quantized_convolution", value, FLOAT, target), call)


def residual(call: SimpleNamespace) -> Value:
    """What is added, in float32."""
    op, dtype = opset(), call.residual.dtype
    value = ncx(call.residual, call)
    scale, zero_point = operand(call, "residual_scale"), operand(call, "residual_zero_point")
    if dtype in _linear.BYTES:
        return op.DequantizeLinear(value, *_linear.parameters(scale, zero_point, dtype)[:2])
    value = op.Sub(cast(value, dtype, FLOAT), _linear.as_tensor(zero_point, FLOAT))
    return op.Mul(value, _linear.as_tensor(scale, FLOAT))
