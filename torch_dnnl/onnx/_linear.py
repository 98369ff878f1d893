"""QuantizeLinear and DequantizeLinear, and the same arithmetic in nodes of its own.

ONNX's QuantizeLinear is saturate(round(x / scale) + zero point), ours saturate(round(x / scale +
zero point)) unless a call asks for the other. They differ where x / scale is half-way between two
integers and the zero point is odd.
"""

from __future__ import annotations

from typing import Any

from onnxscript import ir

from torch_dnnl.onnx._graph import (
    BFLOAT16,
    DOUBLE,
    FLOAT,
    FLOAT8,
    FLOAT16,
    INT8,
    INT64,
    UINT8,
    Size,
    Value,
    cast,
    constant,
    convert,
    elements,
    is_known,
    is_neutral,
    opset,
    refuse,
    shape,
)

BYTES = (INT8, UINT8)
FLOATING = (BFLOAT16, DOUBLE, FLOAT, FLOAT16, *FLOAT8)

Number = Any  # a float or a tensor of the graph
Parameters = tuple[Value, Value, dict[str, int]]  # scale, zero point, attributes


def axis_of(number: Number, sizes: tuple[Size, ...]) -> int | None:
    """The dimension along which a scale or zero point lies, None where it is one number; ValueError
    where ONNX has nothing like it: several dimensions, or blocks of one."""
    if not isinstance(number, ir.Value) or elements(number) == 1:
        return None
    lengths = shape(number)
    long = [d for d, length in enumerate(lengths) if not is_known(length == 1)]
    if len(long) != 1 or not is_known(lengths[long[0]] == sizes[long[0]]):
        raise ValueError(lengths)
    return long[0]


def as_tensor(number: Number, dtype: Any, is_long: bool = False) -> Value:
    """A scale or zero point as a tensor without dimensions or, if it is long, of one."""
    if not isinstance(number, ir.Value):
        return constant(number if dtype in FLOATING else int(number), dtype)
    value = cast(number, number.dtype, dtype)
    return opset().Reshape(value, constant([-1] if is_long else [], INT64))


def parameters(
    scale: Number,
    zero_point: Number,
    dtype: Any,
    scale_axis: int | None = None,
    axis: int | None = None,
) -> Parameters:
    """What both operators take. `scale_axis`: of the scale; `dtype`, `axis`: of the zero point."""
    op = opset()
    scales = as_tensor(scale, FLOAT, scale_axis is not None)
    points = as_tensor(zero_point, dtype, axis is not None)
    if scale_axis is not None and axis is None:
        axis, points = scale_axis, op.Expand(points, op.Shape(scales))
    elif axis is not None and scale_axis is None:
        scales = op.Expand(scales, op.Shape(points))
    return scales, points, {} if axis is None else {"axis": axis}


def found(
    scale: Number, zero_point: Number, dtype: Any, sizes: tuple[Size, ...]
) -> Parameters | None:
    """The parameters of a tensor of these sizes; None where the operators take no such thing."""
    if isinstance(zero_point, ir.Value) and zero_point.dtype in FLOATING:
        return None  # it may be no integer
    try:
        scale_axis, axis = axis_of(scale, sizes), axis_of(zero_point, sizes)
    except ValueError:
        return None
    if scale_axis != axis and scale_axis is not None and axis is not None:
        return None
    return parameters(scale, zero_point, dtype, scale_axis, axis)


def rounds_alike(zero_point: Number, round_before_zero_point: bool) -> bool:
    """Whether QuantizeLinear rounds as the call does."""
    is_even = not isinstance(zero_point, ir.Value) and zero_point % 2 == 0
    return round_before_zero_point or is_even


def spread(operator: str, number: Number, sizes: tuple[Size, ...], dtype: Any) -> Value:
    """A scale or zero point as a tensor that broadcasts to one of these sizes."""
    if not isinstance(number, ir.Value):
        return constant(number, dtype)
    op = opset()
    value, lengths = cast(number, number.dtype, dtype), shape(number)
    fits = [
        is_known(length == 1) or is_known(length == size)
        for length, size in zip(lengths, sizes, strict=False)
    ]
    if all(fits):
        return value
    if not all(isinstance(size, int) for size in (*lengths, *sizes)):
        refuse(operator, "known sizes with scales and zero points of blocks", list(sizes))
    repeats = [
        1 if fit else size // length for fit, length, size in zip(fits, lengths, sizes, strict=True)
    ]
    # [a, b] -> [a, 1, b, 1] -> [a, repeats of it, b, repeats of it] -> one size for each pair
    apart = [size for length in lengths for size in (length, 1)]
    repeated = [size for pair in zip(lengths, repeats, strict=True) for size in pair]
    whole = [length * times for length, times in zip(lengths, repeats, strict=True)]
    value = op.Expand(op.Reshape(value, constant(apart, INT64)), constant(repeated, INT64))
    return op.Reshape(value, constant(whole, INT64))


def dequantized(
    operator: str,
    value: Value,
    source: Any,
    scale: Number,
    zero_point: Number,
    sizes: tuple[Size, ...],
    dtype: Any,
) -> Value:
    """scale * (value - zero point) in `dtype`, float32 or float64."""
    op = opset()
    if is_neutral(scale, 1) and is_neutral(zero_point, 0):
        return convert(operator, value, source, dtype)
    is_linear = source in BYTES and dtype == FLOAT
    if is_linear and (known := found(scale, zero_point, source, sizes)) is not None:
        scales, points, attributes = known
        return op.DequantizeLinear(value, scales, points, **attributes)
    value = convert(operator, value, source, dtype)
    if not is_neutral(zero_point, 0):
        value = op.Sub(value, spread(operator, zero_point, sizes, dtype))
    if not is_neutral(scale, 1):
        value = op.Mul(value, spread(operator, scale, sizes, dtype))
    return value


def scaled(
    operator: str,
    value: Value,
    scale: Number,
    zero_point: Number,
    sizes: tuple[Size, ...],
    dtype: Any,
    is_rounded: bool,
) -> Value:
    """value / scale + zero point in `dtype`, or round(value / scale) + zero point."""
    op = opset()
    if not is_neutral(scale, 1):
        value = op.Div(value, spread(operator, scale, sizes, dtype))
    if not is_neutral(zero_point, 0):
        value = op.Round(value) if is_rounded else value
        value = op.Add(value, spread(operator, zero_point, sizes, dtype))
    return value
