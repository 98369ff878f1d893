"""Transposed convolution: `conv_transpose1d` to `conv_transpose3d`, with torch's contract, and
`convolution_transpose`, with oneDNN's.

A transposed convolution is the gradient of a convolution with respect to its data, as a function of
its own. All of these functions call one operator, `torch_dnnl::convolution_transpose`, whose
attributes are those of that convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling
from torch.overrides import has_torch_function_variadic

from torch_dnnl._literals import (
    Activation,
    AutoPad,
    DataFormat,
    TransposedWeightsFormat,
    WeightsFormat,
)
from torch_dnnl.functional import _algorithm, _tracing
from torch_dnnl.functional._conv import (
    Size,
    check_ints,
    check_rank,
    overridden,
    per_dimension,
    raise_as_torch,
)
from torch_dnnl.functional._epilogue import epilogue
from torch_dnnl.functional._errors import check_types, in_words_of_pads
from torch_dnnl.functional._packed import PackedWeights
from torch_dnnl.functional._quick import quick
from torch_dnnl.functional._transposed_sizes import plan, plan_of_numbers

_quick_transpose = quick("convolution_transpose")
_convolution_transpose = torch.ops.torch_dnnl.convolution_transpose.default

_AUTO_PADS = get_args(AutoPad)

# The formats of weights, and what they are to the convolution that is transposed.
_WEIGHTS_FORMATS: dict[TransposedWeightsFormat, WeightsFormat] = {"XOI": "XIO", "IOX": "OIX"}


def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """Transposed convolution in one dimension, as `torch.nn.functional.conv_transpose1d`.

    The arguments are those of `conv_transpose2d`, but `input` is [N, C, W] or [C, W], and `weight`
    is [C, O / groups, K].

    Example:
        >>> conv_transpose1d(torch.rand(1, 4, 10), torch.rand(4, 8, 4), stride=2, padding=1).shape
        torch.Size([1, 8, 20])
    """
    args = (stride, padding, output_padding, groups, dilation)
    if has_torch_function_variadic(input, weight, bias):
        return overridden(conv_transpose1d, input, weight, bias, *args)
    return _conv_transpose(1, input, weight, bias, *args)


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """Transposed convolution in two dimensions, as `torch.nn.functional.conv_transpose2d`.

    Arguments, results and exception types are torch's.

    Args:
        input: [N, C, H, W] or, unbatched, [C, H, W]; float64, float32, bfloat16 or float16, in
            any memory format.
        weight: [C, O / groups, KH, KW], of the input's type.
        bias: [O] or None.
        stride: step between the outputs of neighbouring inputs in pixels, one for all dimensions
            or one for each.
        padding: pixels that are cut off from each side of the result.
        output_padding: pixels added to the end of the result, fewer than stride or dilation.
        groups: number of blocks of channels, each of which is convolved by itself.
        dilation: distance between the taps of the kernel in pixels; 1 is dense.

    Returns:
        [N, O, OH, OW], or [O, OH, OW] for unbatched input, channels_last if a batch or the weight
        is, with
        OH = (H - 1) stride - 2 padding + dilation (KH - 1) + output_padding + 1.

    Raises:
        RuntimeError: sizes or values that do not fit, as in torch.
        TypeError: an argument of a wrong type.

    Example:
        >>> conv_transpose2d(torch.rand(1, 8, 5, 5), torch.rand(8, 3, 2, 2), stride=2).shape
        torch.Size([1, 3, 10, 10])

    Definition: `torch.nn.functional.conv_transpose2d`.
    """
    args = (stride, padding, output_padding, groups, dilation)
    if has_torch_function_variadic(input, weight, bias):
        return overridden(conv_transpose2d, input, weight, bias, *args)
    return _conv_transpose(2, input, weight, bias, *args)


def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """Transposed convolution in three dimensions, as `torch.nn.functional.conv_transpose3d`.

    The arguments are those of `conv_transpose2d`, but `input` is [N, C, D, H, W] or [C, D, H, W],
    and `weight` is [C, O / groups, KD, KH, KW].

    Example:
        >>> conv_transpose3d(torch.rand(1, 4, 2, 3, 4), torch.rand(4, 2, 2, 2, 2), stride=2).shape
        torch.Size([1, 2, 4, 6, 8])
    """
    args = (stride, padding, output_padding, groups, dilation)
    if has_torch_function_variadic(input, weight, bias):
        return overridden(conv_transpose3d, input, weight, bias, *args)
    return _conv_transpose(3, input, weight, bias, *args)


def _conv_transpose(
    n: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: int,
    dilation: Any,
) -> Tensor:
    try:
        # To the operator the output padding is a part of other numbers.
        if type(output_padding) is int or all(type(more) is int for more in output_padding):
            dst = _conv_transpose_quickly(
                n, input, weight, bias, stride, padding, output_padding, groups, dilation
            )
            if dst is not NotImplemented:
                return dst  # type: ignore[no-any-return]
        check_ints(stride, padding, output_padding, groups, dilation)
        batched = input.dim() != n + 1
        src = input if batched else input.contiguous().unsqueeze(0)  # as in a convolution
        strides = _per_axis("strides", stride, n)
        dilations = _per_axis("dilations", dilation, n)
        added = _per_axis("output_padding", output_padding, n)
        for more, s, d in zip(added, strides, dilations, strict=True):
            if more >= s and more >= d:
                raise ValueError(
                    "convolution_transpose: expected output_padding to be less than stride or "
                    f"dilation, got {output_padding}"
                )
        pads = _per_axis("padding", padding, n)
        dst = _transpose(
            *(src, weight, bias, strides, pads, pads, dilations, added, groups, "NCX", "OIX"),
            _algorithm.convolution.options,
        )
        return dst if batched else dst.squeeze(0)
    except Exception as error:
        function = f"conv_transpose{n}d"
        _check_transpose_types(
            function,
            input=input,
            weight=weight,
            bias=bias,
            stride=stride,
            padding=padding,
            output_padding=output_padding,
            dilation=dilation,
            groups=groups,
        )
        check_rank(function, n, input)
        raise_as_torch(function, in_words_of_pads(error, padding), input, weight, bias)
        raise


def convolution_transpose(
    src: Tensor,
    weights: Tensor | PackedWeights,
    bias: Tensor | None = None,
    *,
    strides: Size = 1,
    pads_begin: Size = 0,
    pads_end: Size = 0,
    dilations: Size = 1,
    auto_pad: AutoPad = "none",
    output_padding: Size = 0,
    groups: int = 1,
    data_format: DataFormat = "NXC",
    weights_format: TransposedWeightsFormat = "XOI",
    activation: Activation | None = None,
    alpha: float | Tensor | None = None,
    beta: float | None = None,
    residual: Tensor | None = None,
    algorithm: str | None = None,
) -> Tensor:
    """The ConvTranspose operation of oneDNN Graph, with its names and its defaults.

    Computes activation(transposed convolution + bias + residual) in one pass and rounds once. No
    tensor is copied to another layout; only where `output_padding` reaches a whole stride beyond
    `pads_end`, `src` is copied with a pixel more.

    Args:
        src: [N, *X, C] in NXC or [N, C, *X] in NCX, with one to three spatial dimensions X;
            float64, float32, bfloat16 or float16, in any memory format.
        weights: [*K, O / groups, C] in XOI or [C, O / groups, *K] in IOX, of the type of `src`.
        bias: [O] or None.
        strides: step between the outputs of neighbouring inputs in pixels, one for all spatial
            dimensions or one for each.
        pads_begin, pads_end: pixels that are cut off from the result's beginning and end.
        dilations: distance between the taps of the kernel in pixels; 1 is dense.
        auto_pad: "none" takes the pads given; the other values override them. "valid" cuts off
            nothing. "same_upper" and "same_lower" give a result of X * stride pixels; if an odd
            number of pixels is cut off, "same_upper" takes the odd one from the end, "same_lower"
            from the beginning.
        output_padding: pixels added to the end of the result.
        groups: number of blocks of channels, each of which is convolved by itself.
        data_format: "NXC" or "NCX", of `src`, `residual` and the output.
        weights_format: "XOI" or "IOX".
        activation, alpha, beta: as of `convolution`.
        residual: as of `convolution`.
        algorithm: as of `convolution`.

    Returns:
        [N, *OX, O] in NXC or [N, O, *OX] in NCX, where without auto_pad each OX is (X - 1) stride -
        pads_begin - pads_end + dilation (K - 1) + output_padding + 1.

    Raises:
        ValueError: sizes or values that do not fit.
        TypeError: an argument of a wrong type, or tensors of types that cannot be convolved.

    Example:
        >>> src, weights = torch.rand(1, 8, 8, 16), torch.rand(4, 4, 3, 16)
        >>> convolution_transpose(src, weights, strides=2, auto_pad="same_upper").shape
        torch.Size([1, 16, 16, 3])

    Definition: oneDNN Graph, operation ConvTranspose; SAME as in ONNX's operator ConvTranspose.
    """
    try:
        check_ints(strides, pads_begin, pads_end, dilations, output_padding, groups)
        if weights_format not in _WEIGHTS_FORMATS:
            raise ValueError(
                'convolution_transpose: expected weights_format to be "XOI" or "IOX", got '
                f"{weights_format!r}"
            )
        if auto_pad not in _AUTO_PADS:
            raise ValueError(
                'convolution_transpose: expected auto_pad to be one of "none", "same_upper", '
                f'"same_lower", "valid", got {auto_pad!r}'
            )
        # The schema takes bytes for a str.
        for name in (data_format, algorithm):
            if isinstance(name, bytes):
                raise TypeError
        if isinstance(weights, PackedWeights):  # its kernels read plain weights
            weights = weights.weights
        n = src.dim() - 2
        strides_of = _per_axis("strides", strides, n)
        dilations_of = _per_axis("dilations", dilations, n)
        begin, end = _per_axis("pads_begin", pads_begin, n), _per_axis("pads_end", pads_end, n)
        if auto_pad != "none":
            begin = end = (0,) * n
        if auto_pad.startswith("same") and weights.dim() == n + 2:
            kernel = weights.shape[:n] if weights_format == "XOI" else weights.shape[2:]
            cut = [
                max(0, (k - 1) * d + 1 - s)
                for k, d, s in zip(kernel, dilations_of, strides_of, strict=True)
            ]
            begin, end = [c // 2 for c in cut], [c - c // 2 for c in cut]
            if auto_pad == "same_lower":
                begin, end = end, begin
        return _transpose(
            src,
            weights,
            bias,
            strides_of,
            begin,
            end,
            dilations_of,
            _per_axis("output_padding", output_padding, n),
            groups,
            data_format,
            _WEIGHTS_FORMATS[weights_format],
            _algorithm.convolution.options_with(algorithm),
            epilogue(residual, activation, alpha, beta),
            is_same=auto_pad.startswith("same"),
        )
    except Exception as error:
        _check_transpose_types(
            "convolution_transpose",
            src=src,
            weights=weights,
            bias=bias,
            strides=strides,
            pads_begin=pads_begin,
            pads_end=pads_end,
            dilations=dilations,
            auto_pad=auto_pad,
            output_padding=output_padding,
            groups=groups,
            data_format=data_format,
            weights_format=weights_format,
            activation=activation,
            alpha=alpha,
            beta=beta,
            residual=residual,
            algorithm=algorithm,
        )
        raise in_words_of_pads(error, f"pads_begin {pads_begin} and pads_end {pads_end}") from None


def _per_axis(name: str, value: Any, n: int) -> Sequence[int]:
    """One entry for each spatial dimension."""
    result: Sequence[int] = per_dimension(name, value, n, "convolution_transpose")
    if len(result) != n:
        raise ValueError(
            f"convolution_transpose: expected {name} to have one entry for each of {n} spatial "
            f"dimensions, got {value}"
        )
    return result


def _transpose(
    src: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    strides: Sequence[int],
    begin: Sequence[int],
    end: Sequence[int],
    dilations: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
    data_format: DataFormat,
    weights_format: WeightsFormat,  # of the convolution
    options: dict[str, str],
    ending: dict[str, Any] | None = None,
    is_same: bool = False,
) -> Tensor:
    n = src.dim() - 2
    pixels, steps = (*begin, *end, *output_padding, 0), (*strides, *dilations, 1)
    if min(pixels) < 0 or min(steps) < 1 or max(*pixels, *steps) >= 2**31:
        raise ValueError(
            "convolution_transpose: expected strides and dilations of 1 to 2^31 - 1 and pads and "
            f"output_padding of 0 to 2^31 - 1, got strides {tuple(strides)}, dilations "
            f"{tuple(dilations)}, pads {tuple(begin)} and {tuple(end)}, output_padding "
            f"{tuple(output_padding)}"
        )
    sizes: Sequence[int] = src.shape[1:-1] if data_format == "NXC" else src.shape[2:]
    kernel: Sequence[int] = weights.shape[:-2] if weights_format == "XIO" else weights.shape[2:]
    if _tracing.is_tracing():  # they are tensors then
        sizes, kernel = [int(size) for size in sizes], [int(size) for size in kernel]
    if len(kernel) != n:
        raise ValueError(
            f"convolution_transpose: expected weights to be {n + 2}-D, got {weights.dim()}-D with "
            f"sizes {list(weights.shape)}"
        )
    dst_size, ends, more = plan(
        sizes, kernel, strides, dilations, begin, end, output_padding, is_same
    )
    nothing = [d for d, size in enumerate(dst_size) if _tracing.holds(size == 0)]
    if nothing:
        # With a pad less there is one pixel. A slice of nothing keeps the derivatives.
        first, last = list(begin), list(end)
        for d in nothing:
            (last if end[d] > 0 else first)[d] -= 1
        rest: Any = (dilations, output_padding, groups, data_format, weights_format, options)
        result = _transpose(src, weights, bias, strides, first, last, *rest)
        for d in nothing:
            result = result.narrow(d + (1 if data_format == "NXC" else 2), 0, 0)
        residual = (ending or {}).get("residual")
        if residual is None:
            return result
        try:
            total: Tensor = result + residual.expand(result.shape)
            return total
        except RuntimeError:
            raise ValueError(
                "convolution_transpose: expected residual to have the sizes of the output, "
                f"{list(result.shape)}, got {list(residual.shape)}"
            ) from None
    if any(more):
        pads = [pad for added in reversed(more) for pad in (0, added)]
        src = torch.nn.functional.pad(src, [0, 0, *pads] if data_format == "NXC" else pads)
    lists = map(list, (strides, begin, ends, dilations))
    args = (src, weights, bias, *lists, "none", groups, data_format, weights_format)
    algorithm = options.get("algorithm", "auto")
    if _tracing.is_tracing():
        beyond = [out - size * s for out, size, s in zip(dst_size, sizes, strides, strict=True)]
        names = ("residual", "activation", "alpha", "beta", "slope")
        listed = [(ending or {}).get(name) for name in names]
        return _tracing.convolution_transpose(*args, algorithm, *listed, beyond)
    dst, _ = _convolution_transpose(*args, algorithm, **(ending or {}), dst_size=dst_size)
    return dst  # type: ignore[no-any-return]


def _conv_transpose_quickly(
    n: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: int,
    dilation: Any,
) -> Any:
    """The result of a plain call, one of numbers outside of graphs; else NotImplemented."""
    if (
        is_dynamo_compiling()
        or input.dim() != n + 2
        or weight.dim() != n + 2
        or _algorithm.convolution.options
    ):
        return NotImplemented
    try:
        planned = plan_of_numbers(
            n, input.shape, weight.shape, stride, padding, output_padding, dilation
        )
    except TypeError:  # such as a list, which is no key
        return NotImplemented
    if planned is None:
        return NotImplemented
    ends, dst_size = planned
    # fmt: off
    return _quick_transpose(
        input, weight, bias, stride, padding, ends, dilation, "none", groups, "NCX", "OIX", "auto",
        None, None, None, None, None, False, dst_size,
    )
    # fmt: on


def _check_transpose_types(function: str, **arguments: object) -> None:
    kinds = {
        "input": "a Tensor",
        "src": "a Tensor",
        "weight": "a Tensor",
        "weights": "a Tensor",
        "bias": "a Tensor or None",
        "residual": "a Tensor or None",
        "groups": "an int",
        "auto_pad": "a str",
        "data_format": "a str",
        "weights_format": "a str",
        "activation": "a str or None",
        "alpha": "a number or a Tensor or None",
        "beta": "a number or None",
        "algorithm": "a str or None",
    }
    sizes = "an int or a sequence of ints"
    check_types(
        function, {name: (value, kinds.get(name, sizes)) for name, value in arguments.items()}
    )
