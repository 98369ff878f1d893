"""Convolution: `conv1d` to `conv3d`, with torch's contract, and `convolution`, with oneDNN's.

All of these functions call one operator, `torch_dnnl::convolution`, which validates the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.overrides import handle_torch_function, has_torch_function_variadic

from torch_dnnl._literals import Activation, AutoPad, DataFormat, TorchPadding, WeightsFormat
from torch_dnnl.functional import _algorithm
from torch_dnnl.functional._epilogue import epilogue, epilogue_kinds
from torch_dnnl.functional._errors import check_types, in_words_of, is_int
from torch_dnnl.functional._packed import PackedWeights
from torch_dnnl.functional._quick import quick

_NAMES = ("convolution", "convolution_fused", "convolution_packed")
_OPERATORS = {name: getattr(torch.ops.torch_dnnl, name).default for name in _NAMES}
_QUICK = {name: quick(name) for name in _NAMES}

Size = int | Sequence[int]
Padding = TorchPadding | int | Sequence[int] | Sequence[tuple[int, int]]

# The values that torch's padding argument may have as a str, and auto_pad for each.
AUTO_PAD: dict[str, AutoPad] = {
    "valid": "valid",
    "same": "same_upper",
    "same_upper": "same_upper",
    "same_lower": "same_lower",
}


def conv1d(
    input: Tensor,
    weight: Tensor | PackedWeights,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Padding = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """Convolves over one spatial dimension, as `torch.nn.functional.conv1d` does.

    The arguments are those of `conv2d`, but `input` is [N, C, W] or [C, W], and `weight` is
    [O, C / groups, K].

    Example:
        >>> conv1d(torch.rand(1, 4, 10), torch.rand(8, 4, 3), padding=((2, 0),)).shape
        torch.Size([1, 8, 10])
    """
    if has_torch_function_variadic(input, weight, bias):
        return overridden(conv1d, input, weight, bias, stride, padding, dilation, groups)
    return _conv(1, input, weight, bias, stride, padding, dilation, groups)


def conv2d(
    input: Tensor,
    weight: Tensor | PackedWeights,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Padding = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """Convolves over two spatial dimensions, as `torch.nn.functional.conv2d` does.

    Arguments, results and exception types are torch's. `padding` also takes what torch lacks.

    Args:
        input: [N, C, H, W] or, unbatched, [C, H, W]; float64, float32, bfloat16 or float16, in
            any memory format.
        weight: [O, C / groups, KH, KW], of the input's type; or what `pack_weights` returns for it.
        bias: [O] or None.
        stride: step between outputs in pixels, one for all dimensions or one for each.
        padding: zeros added around the input, in pixels: one number, a number for each dimension,
            or a (begin, end) pair for each dimension. "valid" adds none. "same" is torch's, for
            stride 1. "same_upper" and "same_lower" take any stride and give an output of
            ceil(input / stride) pixels; if the number of pads is odd, "same_upper" puts the odd
            one at the end, "same_lower" at the beginning.
        dilation: distance between the taps of the kernel in pixels; 1 is dense.
        groups: number of blocks of channels, each of which is convolved by itself.

    Returns:
        [N, O, OH, OW], or [O, OH, OW] for unbatched input; channels_last if the input or the
        weight is.

    Raises:
        RuntimeError: sizes or values that do not fit, as in torch.
        TypeError: an argument of a wrong type.

    Example:
        >>> conv2d(torch.rand(1, 3, 9, 9), torch.rand(8, 3, 3, 3), None, 2, "same_upper").shape
        torch.Size([1, 8, 5, 5])

    Definition: `torch.nn.functional.conv2d`; for SAME padding, oneDNN Graph.
    """
    if has_torch_function_variadic(input, weight, bias):
        return overridden(conv2d, input, weight, bias, stride, padding, dilation, groups)
    return _conv(2, input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: Tensor,
    weight: Tensor | PackedWeights,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Padding = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """Convolves over three spatial dimensions, as `torch.nn.functional.conv3d` does.

    The arguments are those of `conv2d`, but `input` is [N, C, D, H, W] or [C, D, H, W], and
    `weight` is [O, C / groups, KD, KH, KW].

    Example:
        >>> conv3d(torch.rand(1, 2, 5, 6, 7), torch.rand(4, 2, 3, 3, 3), padding="same").shape
        torch.Size([1, 4, 5, 6, 7])
    """
    if has_torch_function_variadic(input, weight, bias):
        return overridden(conv3d, input, weight, bias, stride, padding, dilation, groups)
    return _conv(3, input, weight, bias, stride, padding, dilation, groups)


def overridden(
    function: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor | PackedWeights,
    bias: Tensor | None,
    *args: object,
) -> Tensor:
    return handle_torch_function(function, (input, weight, bias), input, weight, bias, *args)


def conv_quickly(
    n: int,
    input: Tensor,
    weight: Tensor | PackedWeights,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> Any:
    """The result of a plain call, one of numbers outside of graphs; else NotImplemented."""
    if is_dynamo_compiling() or input.dim() != n + 2 or _algorithm.convolution.options:
        return NotImplemented
    if stride is None or padding is None or dilation is None:  # the operator's defaults
        return NotImplemented
    # fmt: off
    if isinstance(weight, PackedWeights):
        return _QUICK["convolution_packed"](
            input, weight.weights, bias, stride, padding, padding, dilation, "none", groups, "NCX",
            "OIX", "auto", None, None, None, None, None, False, weight.packed,
        )
    return _QUICK["convolution"](
        input, weight, bias, stride, padding, padding, dilation, "none", groups, "NCX", "OIX"
    )
    # fmt: on


def _conv(
    n: int,
    input: Tensor,
    weight: Tensor | PackedWeights,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    groups: int,
) -> Tensor:
    try:
        dst = conv_quickly(n, input, weight, bias, stride, padding, dilation, groups)
        if dst is not NotImplemented:
            return dst  # type: ignore[no-any-return]
        check_rank(f"conv{n}d", n, input)
        check_ints(stride, dilation, groups)
        if not isinstance(padding, str):
            check_ints(*padding) if isinstance(padding, (list, tuple)) else check_ints(padding)
        strides = None if stride == 1 else per_dimension("stride", stride, n)
        dilations = None if dilation == 1 else per_dimension("dilation", dilation, n)
        auto_pad = "none"
        if isinstance(padding, str):
            auto_pad = AUTO_PAD[padding]
            if padding == "same" and any(s != 1 for s in strides or ()):
                raise ValueError(
                    "convolution: expected stride to be 1 with padding='same' "
                    f"(padding='same_upper' takes any stride), got {stride}"
                )
            begin = end = None
        else:
            begin = None if padding == 0 else per_dimension("padding", padding, n)
            end = None  # as begin
            if begin and isinstance(begin[0], (list, tuple)):
                begin, end = zip(*begin, strict=True)
        batched = input.dim() != n + 1
        # A single image has no memory format: torch's result is contiguous then.
        src = input if batched else input.contiguous().unsqueeze(0)
        options: dict[str, Any] = _algorithm.convolution.options
        pads = (begin, end)
        dst = _call(
            src, weight, bias, strides, *pads, dilations, auto_pad, groups, "NCX", "OIX", **options
        )
        return dst if batched else dst.squeeze(0)
    except Exception as error:
        _explain_conv(error, n, input, weight, bias, stride, padding, dilation, groups)
        raise


def _call(
    src: Tensor,
    weights: Tensor | PackedWeights,
    *args: Any,
    **options: Any,
) -> Tensor:
    if isinstance(weights, PackedWeights):
        options["packed"] = weights.for_call()
        weights, name = weights.weights, "convolution_packed"
    else:
        name = "convolution_fused" if "activation" in options else "convolution"
    result = NotImplemented
    if not is_dynamo_compiling():
        result = _QUICK[name](src, weights, *args, **options)
    if result is NotImplemented:
        result = _OPERATORS[name](src, weights, *args, **options)
    return result[0] if isinstance(result, tuple) else result  # type: ignore[no-any-return]


def check_ints(*values: Any) -> None:
    """Raises a TypeError for numbers that are not ints, which the schema would round to an int.

    The caller explains the error.
    """
    for value in values:
        if type(value) is int:
            continue
        for entry in value if isinstance(value, (list, tuple)) else (value,):
            if type(entry) is not int and not is_int(entry):
                raise TypeError


def per_dimension(name: str, value: Any, n: int, function: str = "convolution") -> Any:
    """One entry per dimension from a number or, as torch allows, from a list of one number.

    The operator would take an empty list for the default; here it is a bad call.
    """
    if not isinstance(value, (list, tuple)):
        return (value,) * n
    if not value:
        raise ValueError(
            f"{function}: expected {name} to have one entry per dimension, got {value}"
        )
    return value * n if len(value) == 1 < n and not isinstance(value[0], (list, tuple)) else value


def _explain_conv(
    error: Exception,
    n: int,
    input: Tensor,
    weight: Tensor | PackedWeights,
    bias: Tensor | None,
    stride: object,
    padding: Any,
    dilation: object,
    groups: object,
) -> None:
    """Raises a RuntimeError for bad values, as torch does, and a TypeError for bad types."""
    function = f"conv{n}d"
    check_types(
        function,
        {
            "input": (input, "a Tensor"),
            "weight": (weight, "a Tensor or PackedWeights"),
            "bias": (bias, "a Tensor or None"),
            "stride": (stride, "an int or a sequence of ints"),
            "dilation": (dilation, "an int or a sequence of ints"),
            "groups": (groups, "an int"),
        },
    )
    if isinstance(padding, str):
        if padding not in AUTO_PAD:
            raise RuntimeError(
                f"{function}: expected padding to be one of {', '.join(map(repr, AUTO_PAD))}, "
                f"got {padding!r}"
            )
    else:
        entries = padding if isinstance(padding, (list, tuple)) else [padding]
        pairs = [entry for entry in entries if isinstance(entry, (list, tuple))]
        if pairs and (len(pairs) < len(entries) or any(len(pair) != 2 for pair in pairs)):
            raise TypeError(
                f"{function}: expected padding to be ints or (begin, end) pairs, got {padding}"
            )
        for entry in entries:
            check_types(function, {"padding": (entry, "an int or a sequence of ints")})
    check_rank(function, n, input)
    raise_as_torch(function, error, input, weight, bias)


def check_rank(function: str, n: int, input: Tensor) -> None:
    """Raises a RuntimeError unless there are n spatial dimensions, with a batch or without."""
    if input.dim() not in (n + 1, n + 2):
        raise RuntimeError(
            f"{function}: expected input to be {n + 2}-D or, unbatched, {n + 1}-D, got "
            f"{input.dim()}-D with sizes {list(input.shape)}"
        )


# What torch's functions call the arguments of the operators.
_TORCH_NAMES = {
    "src": "input",
    "weights": "weight",
    "strides": "stride",
    "dilations": "dilation",
    "pads_begin": "padding",
    "pads_end": "padding",
    "pads": "padding",
}


def raise_as_torch(
    function: str,
    error: Exception,
    input: Tensor,
    weight: Tensor | PackedWeights,
    bias: Tensor | None,
) -> None:
    """Raises what torch raises for an operator's ValueError or TypeError, in torch's words.

    The caller raises any other error: raised here, it would refer to itself by this frame, and keep
    the tensors of the call until garbage is collected.
    """
    if isinstance(error, (ValueError, TypeError)):
        # torch raises NotImplementedError for a type without a kernel, and RuntimeError for types
        # that differ.
        has_one_type = weight.dtype == input.dtype and (bias is None or bias.dtype == input.dtype)
        is_type = isinstance(error, TypeError) and has_one_type
        refusal = NotImplementedError if is_type else RuntimeError
        raise refusal(in_words_of(function, error, _TORCH_NAMES)) from error


def convolution(
    src: Tensor,
    weights: Tensor | PackedWeights,
    bias: Tensor | None = None,
    *,
    strides: Size = 1,
    pads_begin: Size = 0,
    pads_end: Size = 0,
    dilations: Size = 1,
    auto_pad: AutoPad = "none",
    groups: int = 1,
    data_format: DataFormat = "NXC",
    weights_format: WeightsFormat = "XIO",
    activation: Activation | None = None,
    alpha: float | Tensor | None = None,
    beta: float | None = None,
    residual: Tensor | None = None,
    algorithm: str | None = None,
) -> Tensor:
    """The Convolution operation of oneDNN Graph, with its names and its defaults.

    Computes activation(convolution + bias + residual) in one pass and rounds once. No tensor is
    copied to another layout. For the gradients, the call saves `src` and `weights`; for relu,
    relu6, sigmoid and tanh also the result; for the other activations also a tensor of its size.

    Args:
        src: [N, *X, C] in NXC or [N, C, *X] in NCX, with one to three spatial dimensions X;
            float64, float32, bfloat16 or float16, in any memory format.
        weights: [*K, C / groups, O] in XIO or [O, C / groups, *K] in OIX, of the type of `src`; or
            what `pack_weights` returns for these.
        bias: [O] or None.
        strides: step between outputs in pixels, one for all spatial dimensions or one for each.
        pads_begin, pads_end: zeros before and after each spatial dimension, in pixels.
        dilations: distance between the taps of the kernel in pixels; 1 is dense.
        auto_pad: "none" takes the pads given; the other values override them. "valid" pads
            nothing. "same_upper" and "same_lower" pad to an output of ceil(input / stride)
            pixels; if the number of pads is odd, "same_upper" puts the odd one at the end,
            "same_lower" at the beginning.
        groups: number of blocks of channels, each of which is convolved by itself.
        data_format: "NXC" or "NCX", of `src`, `residual` and the output.
        weights_format: "XIO" or "OIX".
        activation: None, "relu", "relu6", "silu", "gelu" (exact), "gelu_tanh", "sigmoid", "tanh",
            "hardswish", "hardsigmoid", "mish", "softplus", "leaky_relu", "elu", "clamp" or "prelu":
            torch's functions of these names.
        alpha: of "leaky_relu" the slope below 0 (default 0.01); of "elu" its alpha (default 1); of
            "clamp" the lower bound (default none); of "prelu" a tensor of one element or [O], the
            slopes below 0.
        beta: of "clamp" the upper bound (default none).
        residual: a tensor of the output's type, added before the activation. It has the output's
            shape, or 1 in the place of the batch or of spatial sizes, over which it is broadcast.
        algorithm: "auto", "direct", "winograd", "reference" or the name of a kernel; None takes
            that of `torch_dnnl.conv_algorithm`, which says what they are.

    Returns:
        [N, *OX, O] in NXC or [N, O, *OX] in NCX.

    Raises:
        ValueError: sizes or values that do not fit.
        TypeError: an argument of a wrong type, or tensors of types that cannot be convolved.

    Example:
        >>> src, weights = torch.rand(1, 8, 8, 3), torch.rand(3, 3, 3, 16)
        >>> convolution(src, weights, auto_pad="same_upper", activation="relu").shape
        torch.Size([1, 8, 8, 16])

    Definition: oneDNN Graph, operation Convolution.
    """
    try:
        check_ints(strides, pads_begin, pads_end, dilations, groups)
        # The schema takes bytes for a str.
        for name in (auto_pad, data_format, weights_format, algorithm):
            if isinstance(name, bytes):
                raise TypeError
        n = src.dim() - 2
        args = (
            src,
            weights,
            bias,
            None if strides == 1 else per_dimension("strides", strides, n),
            None if pads_begin == 0 else per_dimension("pads_begin", pads_begin, n),
            None if pads_end == pads_begin else per_dimension("pads_end", pads_end, n),
            None if dilations == 1 else per_dimension("dilations", dilations, n),
            auto_pad,
            groups,
            data_format,
            weights_format,
        )
        options: dict[str, Any] = _algorithm.convolution.options_with(algorithm)
        is_plain = residual is None and activation is None and alpha is None and beta is None
        if not is_plain:
            options = options | epilogue(residual, activation, alpha, beta)
        return _call(*args, **options)
    except Exception:
        check_types(
            "convolution",
            {
                "src": (src, "a Tensor"),
                "weights": (weights, "a Tensor or PackedWeights"),
                "bias": (bias, "a Tensor or None"),
                "strides": (strides, "an int or a sequence of ints"),
                "pads_begin": (pads_begin, "an int or a sequence of ints"),
                "pads_end": (pads_end, "an int or a sequence of ints"),
                "dilations": (dilations, "an int or a sequence of ints"),
                "auto_pad": (auto_pad, "a str"),
                "groups": (groups, "an int"),
                "data_format": (data_format, "a str"),
                "weights_format": (weights_format, "a str"),
                **epilogue_kinds(residual, activation, alpha, beta),
                "algorithm": (algorithm, "a str or None"),
            },
        )
        raise


def same_padding(
    sizes: Sequence[int],
    kernel_size: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    auto_pad: str,
) -> list[tuple[int, int]]:
    """The (begin, end) pads of each spatial dimension under "same_upper" or "same_lower".

    With these pads there are ceil(size / stride) outputs. The larger half of the pads is at the end
    for "same_upper" and at the beginning for "same_lower". For padding with values other than 0.
    """
    pads = []
    for size, kernel, stride, dilation in zip(sizes, kernel_size, strides, dilations, strict=True):
        outputs = (size + stride - 1) // stride
        reach = (outputs - 1) * stride + (kernel - 1) * dilation + 1
        at_least: Any = torch.sym_max
        if isinstance(size, Tensor):  # while torch.jit traces, so that the trace takes any size
            at_least = torch.clamp_min
        total = at_least(reach - size, 0)
        smaller, larger = total // 2, total - total // 2
        pads.append((smaller, larger) if auto_pad == "same_upper" else (larger, smaller))
    return pads
