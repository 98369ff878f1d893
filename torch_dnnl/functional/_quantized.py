"""Convolution of int8 and uint8 images."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from torch_dnnl._literals import Activation, AutoPad, DataFormat, WeightsFormat
from torch_dnnl.functional import _algorithm
from torch_dnnl.functional._conv import Size, check_ints, per_dimension
from torch_dnnl.functional._epilogue import epilogue, epilogue_kinds
from torch_dnnl.functional._errors import check_types
from torch_dnnl.functional._packed import PackedWeights
from torch_dnnl.functional._tracing import read_numbers

_quantized_convolution = torch.ops.torch_dnnl.quantized_convolution.default
_quantized_packed = torch.ops.torch_dnnl.quantized_convolution_packed.default

Number = float | Tensor


def quantized_convolution(
    src: Tensor,
    weights: Tensor | PackedWeights,
    bias: Tensor | None = None,
    *,
    src_scale: Number = 1.0,
    src_zero_point: Number = 0,
    weights_scale: Number = 1.0,
    dst_scale: Number = 1.0,
    dst_zero_point: Number = 0,
    dtype: torch.dtype | None = None,
    residual: Tensor | None = None,
    residual_scale: Number = 1.0,
    residual_zero_point: Number = 0,
    activation: Activation | None = None,
    alpha: float | Tensor | None = None,
    beta: float | None = None,
    strides: Size = 1,
    pads_begin: Size = 0,
    pads_end: Size = 0,
    dilations: Size = 1,
    auto_pad: AutoPad = "none",
    groups: int = 1,
    data_format: DataFormat = "NXC",
    weights_format: WeightsFormat = "XIO",
    algorithm: str | None = None,
) -> Tensor:
    """Convolves integers that stand for real numbers, scale * (integer - zero point):

        acc = sum over taps of (src - src_zero_point) * weights
        v   = float(acc) * (src_scale * weights_scale[o]) + bias[o]
        v   = activation(v + residual_scale * (residual - residual_zero_point))
        dst = v, or saturate(round(v / dst_scale + dst_zero_point)) in an integer type

    The sum is exact. The other steps are rounded to float32 one by one, so that a result has the
    same bits on every machine and device. Rounding to an integer is to nearest, ties to even; NaN
    becomes 0.

    Args:
        src: uint8 or int8, [N, *X, C] in NXC or [N, C, *X] in NCX, with one to three spatial
            dimensions X, in any memory format.
        weights: int8, [*K, C / groups, O] in XIO or [O, C / groups, *K] in OIX.
        bias: float32 [O] or None.
        src_scale, dst_scale, residual_scale: numbers or tensors of one element.
        weights_scale: a number or float32 [O].
        src_zero_point, dst_zero_point, residual_zero_point: numbers or tensors of one element,
            values of the type that they belong to.
        dtype: of the result: uint8, int8 (the default), int32, float32, bfloat16 or float16.
            `dst_scale` and `dst_zero_point` are for the integers. int32 without bias, scales,
            residual and activation is `acc` itself, saturated.
        residual: a tensor of the output's shape, or one that is broadcast as in `convolution`, of
            any type that `dtype` may be.
        activation, alpha, beta: as of `convolution`; the slopes of "prelu" are float32.
        strides, pads_begin, pads_end, dilations, auto_pad, groups, data_format, weights_format: as
            in `convolution`. Pads mean the value 0, which is `src_zero_point` in integers.
        algorithm: "auto", "reference" or the name of a kernel
            (`torch_dnnl.build_info()["kernels"]` lists them); all have the same bits.

    Returns:
        [N, *OX, O] in NXC or [N, O, *OX] in NCX. It has no gradient.

    Raises:
        ValueError: sizes or values that do not fit, a scale of 0, a zero point out of range.
        TypeError: an argument of a wrong type, or tensors of types that cannot be convolved.

    Example:
        >>> src = torch.randint(256, (1, 8, 8, 3), dtype=torch.uint8)
        >>> weights = torch.randint(-128, 128, (3, 3, 3, 16), dtype=torch.int8)
        >>> dst = quantized_convolution(
        ...     src, weights, src_scale=0.02, src_zero_point=128, weights_scale=0.01,
        ...     dst_scale=0.5, dtype=torch.uint8, auto_pad="same_upper", activation="relu")
        >>> dst.shape, dst.dtype
        (torch.Size([1, 8, 8, 16]), torch.uint8)

    Definition: oneDNN's convolution with scales and zero points; ONNX QLinearConv and ConvInteger.
    """
    numbers = {
        "src_scale": src_scale,
        "src_zero_point": src_zero_point,
        "weights_scale": weights_scale,
        "dst_scale": dst_scale,
        "dst_zero_point": dst_zero_point,
        "residual_scale": residual_scale,
        "residual_zero_point": residual_zero_point,
    }
    try:
        check_ints(strides, pads_begin, pads_end, dilations, groups)
        # The schema takes bytes for a str, and bools and ints for other numbers.
        for name in (auto_pad, data_format, weights_format, algorithm):
            if isinstance(name, bytes):
                raise TypeError
        if bool in map(type, numbers.values()) or not isinstance(dtype, torch.dtype | None):
            raise TypeError
        read_numbers(*numbers.values())
        lists = partial(per_dimension, n=src.dim() - 2, function="quantized_convolution")
        options: dict[str, Any] = _algorithm.convolution.options_with(algorithm)
        call = _quantized_convolution
        if isinstance(weights, PackedWeights):
            call, options = _quantized_packed, options | {"packed": weights.for_call()}
            weights = weights.weights
        return call(  # type: ignore[no-any-return]
            src,
            weights,
            bias,
            None if strides == 1 else lists("strides", strides),
            None if pads_begin == 0 else lists("pads_begin", pads_begin),
            None if pads_end == pads_begin else lists("pads_end", pads_end),
            None if dilations == 1 else lists("dilations", dilations),
            auto_pad,
            groups,
            data_format,
            weights_format,
            dtype=dtype,
            **epilogue(residual, activation, alpha, beta),
            **options,
            **{
                name if isinstance(value, Tensor) else f"{name}_value": value
                for name, value in numbers.items()
            },
        )
    except Exception:
        check_types(
            "quantized_convolution",
            {
                "src": (src, "a Tensor"),
                "weights": (weights, "a Tensor or PackedWeights"),
                "bias": (bias, "a Tensor or None"),
                **{name: (value, "a number or a Tensor") for name, value in numbers.items()},
                "dtype": (dtype, "a torch.dtype or None"),
                **epilogue_kinds(residual, activation, alpha, beta),
                "strides": (strides, "an int or a sequence of ints"),
                "pads_begin": (pads_begin, "an int or a sequence of ints"),
                "pads_end": (pads_end, "an int or a sequence of ints"),
                "dilations": (dilations, "an int or a sequence of ints"),
                "auto_pad": (auto_pad, "a str"),
                "groups": (groups, "an int"),
                "data_format": (data_format, "a str"),
                "weights_format": (weights_format, "a str"),
                "algorithm": (algorithm, "a str or None"),
            },
        )
        raise
