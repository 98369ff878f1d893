"""Reorder and fake quantization.

The layout of a plain tag is a matter of strides, of which ONNX knows nothing. What remains are
casts and QuantizeLinear, DequantizeLinear or their arithmetic.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from onnxscript import ir

from torch_dnnl.onnx import _linear
from torch_dnnl.onnx._graph import (
    DOUBLE,
    FLOAT,
    FLOAT8,
    INTEGERS,
    UINT8,
    Value,
    cast,
    constant,
    convert,
    is_neutral,
    operand,
    opset,
    refuse,
    saturated,
    shape,
    translates,
)


def check_plain(operator: str, argument: str, tag: str | None) -> None:
    if tag is not None and torch.ops.torch_dnnl.parse_format(tag)[1]:
        refuse(operator, f"{argument} to be a plain tag, not a blocked one,", f'"{tag}"')


@translates("reorder")
def reorder(call: SimpleNamespace) -> Value:
    for argument in ("src_format", "dst_format"):
        check_plain("reorder", argument, getattr(call, argument))
    op, sizes = opset(), shape(call.src)
    source, target = call.src.dtype, call.dtype or call.src.dtype
    names = ("scale", "src_zero_point", "dst_scale", "dst_zero_point")
    scale, src_zero_point, dst_scale, dst_zero_point = (operand(call, name) for name in names)
    changes_dst = not (is_neutral(dst_scale, 1) and is_neutral(dst_zero_point, 0))
    changes_src = not (is_neutral(scale, 1) and is_neutral(src_zero_point, 0))
    if not (changes_src or changes_dst or call.accumulate):
        # Infinities of float8_e5m2 saturate.
        is_copy = source == target and target != ir.DataType.FLOAT8E5M2
        return op.Identity(call.src) if is_copy else convert("reorder", call.src, source, target)

    computed = DOUBLE if source == DOUBLE else FLOAT
    value = _linear.dequantized("reorder", call.src, source, scale, src_zero_point, sizes, computed)
    if call.accumulate is not None:
        added = cast(call.accumulate, call.accumulate.dtype, computed)
        if call.beta != 1:
            added = op.Mul(added, constant(call.beta, computed))
        value = op.Add(value, added)
    if changes_dst and target in _linear.BYTES and computed == FLOAT:
        known = _linear.rounds_alike(dst_zero_point, call.round_before_zero_point) and (
            _linear.found(dst_scale, dst_zero_point, target, sizes)
        )
        if known:
            return op.QuantizeLinear(value, known[0], known[1], **known[2])
    is_rounded_first = call.round_before_zero_point and target in INTEGERS
    value = _linear.scaled(
        "reorder", value, dst_scale, dst_zero_point, sizes, computed, is_rounded_first
    )
    return convert("reorder", value, computed, target)


@translates("fake_reorder")
def fake_reorder(call: SimpleNamespace) -> tuple[Value, Value]:
    check_plain("fake_reorder", "dst_format", call.dst_format)
    if call.step_gradient:
        refuse("fake_reorder", "step_gradient to be False", "the gradient of a step")
    mask = constant([], UINT8)  # is for the gradient alone
    return fake_quantized(call), mask


def fake_quantized(call: SimpleNamespace) -> Value:
    op, sizes, source, target = opset(), shape(call.src), call.src.dtype, call.dtype
    scale, zero_point = operand(call, "dst_scale"), operand(call, "dst_zero_point")
    computed = DOUBLE if source == DOUBLE else FLOAT
    value = cast(call.src, source, computed)
    if target in _linear.BYTES and computed == FLOAT:
        known = _linear.rounds_alike(zero_point, call.round_before_zero_point) and (
            _linear.found(scale, zero_point, target, sizes)
        )
        if known:
            quantized = op.QuantizeLinear(value, known[0], known[1], **known[2])
            value = op.DequantizeLinear(quantized, known[0], known[1], **known[2])
            return cast(value, FLOAT, source)
    is_rounded_first = call.round_before_zero_point and target in INTEGERS
    value = _linear.scaled(
        "fake_reorder", value, scale, zero_point, sizes, computed, is_rounded_first
    )
    if target in FLOAT8:
        value = cast(convert("fake_reorder", value, computed, target), target, computed)
    else:
        value = saturated(value, computed, target)
    if not is_neutral(zero_point, 0):
        value = op.Sub(value, _linear.spread("fake_reorder", zero_point, sizes, computed))
    if not is_neutral(scale, 1):
        value = op.Mul(value, _linear.spread("fake_reorder", scale, sizes, computed))
    return cast(value, computed, source)
