"""Reorder: layout, type, scale, zero point and accumulation in one pass; fake quantization.

`reorder` spells its arguments for the operator `torch_dnnl::reorder`, which validates them.
`fake_reorder` composes it with differentiable torch operations.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_dnnl.functional._errors import check_types, describe, in_words_of

_reorder = torch.ops.torch_dnnl.reorder.default

Number = float | Tensor


def reorder(
    src: Tensor,
    dst_format: str | None = None,
    *,
    src_format: str | None = None,
    size: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    scale: Number | None = None,
    dst_scale: Number | None = None,
    src_zero_point: Number | None = None,
    dst_zero_point: Number | None = None,
    accumulate: Tensor | None = None,
    beta: float = 1.0,
    round_before_zero_point: bool = False,
) -> Tensor:
    """Changes layout and type, scales, shifts and accumulates in one pass over memory:

        v = scale * (src - src_zero_point) + beta * accumulate     in float32 (float64 for float64)
        w = v / dst_scale
        u = round(w + dst_zero_point)      for an integer destination; or, with
            round(w) + dst_zero_point      round_before_zero_point=True
        dst = saturate(u)

    Rounds to nearest even. Integers and float8 saturate, infinities included; NaN becomes 0 in an
    integer. Other floating types convert as IEEE 754 does.

    Args:
        src: a tensor of one to twelve dimensions of float64, float32, bfloat16, float16,
            float8_e4m3fn, float8_e5m2, int32, int8 or uint8.
        dst_format: oneDNN tag of the destination: named ("nhwc", "OIhw4i16o4i") or generic
            ("acdb", "ABcd4b16a4b"). None keeps the layout of the source. See
            `torch_dnnl.formats`.
        src_format: the tag of `src`, where that is the dense physical tensor of a blocked layout.
        size: with a blocked `src_format`, the logical sizes, where the padding is to be dropped.
        dtype: type of the destination. None keeps the type of the source.
        scale, dst_scale: a number, or a tensor of the logical rank of `src` in which every
            dimension is 1, the full length or a divisor of it (block-wise groups). Default: 1.
        src_zero_point, dst_zero_point: the same. Default: 0.
        accumulate: a tensor of the destination's shape and layout that is added with factor
            `beta`.
        beta: factor of `accumulate`.
        round_before_zero_point: round before the destination's zero point is added, as ONNX's
            QuantizeLinear and torch's fake quantization do.

    Returns:
        With a plain tag, a tensor of the logical sizes with the tag's strides. With a blocked
        tag, the dense physical tensor, [outer dimensions, inner blocks], its padding zero.

    Raises:
        ValueError: a malformed tag, sizes that do not fit, a number that is not finite, a scale
            of 0, a zero point outside the destination type.
        TypeError: an argument of a wrong type.

    Example:
        >>> image = torch.randint(256, (1, 8, 8, 3), dtype=torch.uint8)
        >>> nchw = image.permute(0, 3, 1, 2)
        >>> reorder(nchw, "nchw", dtype=torch.float32, scale=1 / 255).stride()
        (192, 64, 8, 1)
        >>> reorder(torch.rand(1, 20, 8, 8), "nChw16c").shape
        torch.Size([1, 2, 8, 8, 16])

    Definition: the oneDNN Reorder primitive and its memory format tags.
    """
    scale_value = dst_scale_value = 1.0
    src_zero_point_value = dst_zero_point_value = 0.0
    if not (scale is None or isinstance(scale, Tensor)):
        scale_value, scale = scale, None
    if not (dst_scale is None or isinstance(dst_scale, Tensor)):
        dst_scale_value, dst_scale = dst_scale, None
    if not (src_zero_point is None or isinstance(src_zero_point, Tensor)):
        src_zero_point_value, src_zero_point = src_zero_point, None
    if not (dst_zero_point is None or isinstance(dst_zero_point, Tensor)):
        dst_zero_point_value, dst_zero_point = dst_zero_point, None
    try:
        if not (dtype is None or isinstance(dtype, torch.dtype)):
            raise TypeError  # explained below; the schema takes an int
        return _reorder(  # type: ignore[no-any-return]
            src,
            dst_format,
            src_format,
            size,
            dtype,
            scale,
            dst_scale,
            src_zero_point,
            dst_zero_point,
            accumulate,
            scale_value,
            dst_scale_value,
            src_zero_point_value,
            dst_zero_point_value,
            beta,
            round_before_zero_point,
        )
    except Exception:
        check_types(
            "reorder",
            {
                "src": (src, "a Tensor"),
                "dst_format": (dst_format, "a str or None"),
                "src_format": (src_format, "a str or None"),
                "size": (size, "a sequence of ints or None"),
                "dtype": (dtype, "a torch.dtype or None"),
                "scale": (scale_value, "a number or a Tensor"),
                "dst_scale": (dst_scale_value, "a number or a Tensor"),
                "src_zero_point": (src_zero_point_value, "a number or a Tensor"),
                "dst_zero_point": (dst_zero_point_value, "a number or a Tensor"),
                "accumulate": (accumulate, "a Tensor or None"),
                "beta": (beta, "a number"),
                "round_before_zero_point": (round_before_zero_point, "a bool"),
            },
        )
        raise


# The largest magnitude that rounds to a finite float8 value: the middle between the largest value
# and the next one up belongs to the even of the two.
_FLOAT8_LIMIT = {
    torch.float8_e4m3fn: 464.0,
    torch.float8_e5m2: 61439.99609375,  # the float32 before 61440
}
_FAKE_TYPES = (torch.int32, torch.int8, torch.uint8, *_FLOAT8_LIMIT)


def fake_reorder(
    src: Tensor,
    dst_format: str | None = None,
    *,
    src_format: str | None = None,
    size: Sequence[int] | None = None,
    dtype: torch.dtype | None = None,
    scale: Number | None = None,
    dst_scale: Number | None = None,
    src_zero_point: Number | None = None,
    dst_zero_point: Number | None = None,
    accumulate: Tensor | None = None,
    beta: float = 1.0,
    round_before_zero_point: bool = False,
) -> Tensor:
    """Quantizes as `reorder` with the same arguments does, and dequantizes the result:

        dst_scale * (reorder(src, ...) - dst_zero_point)     in the type of `src`

    The gradient passes straight through the rounding and is zero where the rounded value lay
    outside the range of `dtype`. A `dst_scale` or `dst_zero_point` that is a tensor gets the
    gradient of learned step size quantization.

    Args:
        src: float64, float32, bfloat16 or float16.
        dtype: int32, int8, uint8, float8_e4m3fn or float8_e5m2. Required.
        others: as in `reorder`.

    Returns:
        The dequantized values, in the type of `src` and in the layout that `reorder` returns.

    Raises:
        ValueError, TypeError: as `reorder`, and for a `dtype` or a `src` of another type.

    Example:
        >>> fake_reorder(torch.tensor([-0.9, 0.3, 80.0]), dtype=torch.int8, dst_scale=0.5)
        tensor([-1.0000,  0.5000, 63.5000])

    Definition: oneDNN Reorder; Esser et al., Learned Step Size Quantization, ICLR 2020.
    """
    check_types(
        "fake_reorder",
        {
            "src": (src, "a Tensor"),
            "dst_format": (dst_format, "a str or None"),
            "src_format": (src_format, "a str or None"),
            "dtype": (dtype, "a torch.dtype"),
        },
    )
    if not src.is_floating_point() or src.element_size() == 1:
        raise TypeError(
            "fake_reorder: expected src to be float64, float32, bfloat16 or float16, got "
            f"{describe(src)}"
        )
    if dtype not in _FAKE_TYPES:
        raise ValueError(f"fake_reorder: expected dtype to be one of {_FAKE_TYPES}, got {dtype}")
    layout = dst_format
    if src_format is not None and _blocked_rank(src_format):
        layout = src_format if dst_format is None else dst_format
        src = _to_plain(src, src_format, size, {})
        src_format = size = None
    if accumulate is not None and layout is not None and _blocked_rank(layout):
        names = {"src_format": "dst_format", "src": "accumulate"}
        accumulate = _to_plain(accumulate, layout, src.shape, names)
    quantized = _reorder_for_fake(
        {},
        src.detach(),
        src_format=src_format,
        size=size,
        dtype=dtype,
        scale=_detached(scale),
        dst_scale=_detached(dst_scale),
        src_zero_point=_detached(src_zero_point),
        dst_zero_point=_detached(dst_zero_point),
        accumulate=_detached(accumulate),
        beta=beta,
        round_before_zero_point=round_before_zero_point,
    )

    compute = torch.float64 if src.dtype == torch.float64 else torch.float32
    s, t, zs, zd = (
        _per_element(value, src, compute)
        for value in (scale, dst_scale, src_zero_point, dst_zero_point)
    )

    def unrounded(x: Tensor, y: Tensor | None, s: Any, t: Any, zs: Any) -> Tensor:
        if zs is not None:
            x = x - zs
        if s is not None:
            x = x * s
        if y is not None:
            x = x + beta * y
        return x if t is None else x / t

    x = src.to(compute)
    y = None if accumulate is None else accumulate.to(compute)
    with torch.no_grad():
        w = unrounded(*map(_detached, (x, y, s, t, zs)))
        inside = _inside_range(w, _detached(zd), dtype, round_before_zero_point)

    # Elements that saturated are taken out, lest an infinity among them turn a zero gradient of
    # a scale into NaN.
    x = torch.where(inside, x, 0)
    y = None if y is None else torch.where(inside, y, 0)
    u = unrounded(x, y, s, t, zs)
    u = u if zd is None else u + zd
    q = quantized.to(compute)
    # The difference is zero, and its derivative -1: q keeps its bits and gets u's gradient.
    q = torch.where(inside, q - (u.detach() - u), q)
    q = q if zd is None else q - zd
    result = (q if t is None else q * t).to(src.dtype)
    return result if layout is None else _reorder_for_fake({}, result, layout)


def _reorder_for_fake(names: Mapping[str, str], *args: Any, **kwargs: Any) -> Tensor:
    """`reorder`, with errors in the words of `fake_reorder`."""
    try:
        return reorder(*args, **kwargs)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise type(error)(in_words_of("fake_reorder", error, names)) from error


def _blocked_rank(format: str) -> int:
    """The number of dimensions of a blocked tag, 0 for a plain one. The operator checks the tag."""
    rank = len(format) - len(format.lstrip(string.ascii_letters))
    return rank if rank < len(format) else 0


def _to_plain(
    tensor: Tensor, format: str, size: Sequence[int] | None, names: Mapping[str, str]
) -> Tensor:
    contiguous = string.ascii_lowercase[: _blocked_rank(format)]
    return _reorder_for_fake(names, tensor, contiguous, src_format=format, size=size)


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _per_element(value: Number | None, src: Tensor, compute: torch.dtype) -> Tensor | None:
    """A scale or zero point as a tensor that broadcasts to `src`."""
    if value is None:
        return None
    if not isinstance(value, Tensor):
        # Not a Python number: CUDA would multiply by its inverse instead of dividing.
        return torch.full((), value, dtype=compute, device=src.device)
    for dim, (groups, length) in enumerate(zip(value.shape, src.shape, strict=False)):  # 0-D: none
        if groups != 1 and groups != length:
            value = value.repeat_interleave(length // groups, dim)
    return value.to(compute)


def _inside_range(w: Tensor, zd: Tensor | None, dtype: torch.dtype, round_first: bool) -> Tensor:
    """Where the rounded value lies in the range of `dtype`, bounds included."""
    if dtype in _FLOAT8_LIMIT:
        return (w if zd is None else w + zd).to(torch.float32).abs() <= _FLOAT8_LIMIT[dtype]
    if round_first:
        w = w.round()
    if zd is not None:
        w = w + zd
    if not round_first:
        w = w.round()
    info = torch.iinfo(dtype)
    return (w >= info.min) & (w < info.max + 1)  # max itself is no float32 for int32
