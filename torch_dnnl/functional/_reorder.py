"""Reorder: layout, type, scale, zero point and accumulation in one pass; fake quantization.

`reorder` and `fake_reorder` spell their arguments for the operators of these names, which validate
them. What the operator `fake_reorder` does not take comes before or after it as a `reorder`.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, overload

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

from torch_dnnl._literals import Compensation
from torch_dnnl.formats import parse
from torch_dnnl.functional._algorithm import reorder as reorder_choice
from torch_dnnl.functional._errors import check_types, describe, in_words_of
from torch_dnnl.functional._quick import quick
from torch_dnnl.functional._tracing import holds, is_dense, read_numbers

_quick_reorder = quick("reorder")
_reorder = torch.ops.torch_dnnl.reorder.default
_fake_reorder = torch.ops.torch_dnnl.fake_reorder.default

Number = float | Tensor

# What check_types() expects.
_KINDS = {
    "src": "a Tensor",
    "dst_format": "a str or None",
    "src_format": "a str or None",
    "size": "a sequence of ints or None",
    "dtype": "a torch.dtype or None",
    "scale": "a number or a Tensor or None",
    "dst_scale": "a number or a Tensor or None",
    "src_zero_point": "a number or a Tensor or None",
    "dst_zero_point": "a number or a Tensor or None",
    "accumulate": "a Tensor or None",
    "beta": "a number",
    "round_before_zero_point": "a bool",
    "axis": "an int or None",
}
_OPERANDS = ("scale", "dst_scale", "src_zero_point", "dst_zero_point")


# fmt: off
@overload
def reorder(
    src: Tensor, dst_format: str | None = None, *, src_format: str | None = None,
    size: Sequence[int] | None = None, dtype: torch.dtype | None = None,
    scale: Number | None = None, dst_scale: Number | None = None,
    src_zero_point: Number | None = None, dst_zero_point: Number | None = None,
    accumulate: Tensor | None = None, beta: float = 1.0, round_before_zero_point: bool = False,
    compensation: None = None, axis: int | None = None,
) -> Tensor: ...
@overload
def reorder(
    src: Tensor, dst_format: str | None = None, *, src_format: str | None = None,
    size: Sequence[int] | None = None, dtype: torch.dtype | None = None,
    scale: Number | None = None, dst_scale: Number | None = None,
    src_zero_point: Number | None = None, dst_zero_point: Number | None = None,
    accumulate: Tensor | None = None, beta: float = 1.0, round_before_zero_point: bool = False,
    compensation: Compensation, axis: int | None = None,
) -> tuple[Tensor, Tensor]: ...
# fmt: on
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
    compensation: Compensation | None = None,
    axis: int | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
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
            dimension is 1, the full length or a divisor of it (block-wise groups). With `axis` also
            a tensor of shape [1] or [C]. Default: 1.
        src_zero_point, dst_zero_point: the same. Default: 0.
        accumulate: a tensor of the destination's shape and layout that is added with factor
            `beta`.
        beta: factor of `accumulate`.
        round_before_zero_point: round before the destination's zero point is added, as ONNX's
            QuantizeLinear and torch's fake quantization do.
        compensation: "s8s8" for int8 weights of a convolution whose int8 source is computed with
            as uint8, 128 larger: also returns what to add to each output channel for that.
        axis: the logical dimension of `src` along which scales and zero points of shape [C] lie; C
            is its size. Negative ones count from the end.

    Returns:
        With a plain tag, a tensor of the logical sizes with the tag's strides. With a blocked
        tag, the dense physical tensor, [outer dimensions, inner blocks], its padding zero.
        With `compensation`, that and an int32 tensor, -128 times the sum of the weights of each
        output channel: [O], or [G, O] where a tag names groups ("goihw").

    Raises:
        ValueError: a malformed tag, sizes that do not fit, a number that is not finite, a scale
            of 0, a zero point outside the destination type, an `axis` that is no dimension; with
            `compensation`, what are no int8 weights or more than 131071 of them for an output
            channel.
        TypeError: an argument of a wrong type.

    Example:
        >>> image = torch.randint(256, (1, 8, 8, 3), dtype=torch.uint8)
        >>> nchw = image.permute(0, 3, 1, 2)
        >>> reorder(nchw, "nchw", dtype=torch.float32, scale=1 / 255).stride()
        (192, 64, 8, 1)
        >>> reorder(torch.rand(1, 20, 8, 8), "nChw16c").shape
        torch.Size([1, 2, 8, 8, 16])
        >>> rows = torch.tensor([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]])
        >>> reorder(rows, dtype=torch.int8, dst_scale=torch.tensor([1.0, 0.5]), axis=0)
        tensor([[1, 2, 4],
                [2, 4, 8]], dtype=torch.int8)

    Definition: the oneDNN Reorder primitive and its memory format tags.
    """
    # Every argument of an operator takes its time, even a default.
    options: dict[str, Any] = reorder_choice.options  # copied where there are more
    if axis is not None:
        _check_types("reorder", axis=axis, src=src, src_format=src_format, size=size)
        sizes = _logical_size(src, src_format, size)
        operands = (scale, dst_scale, src_zero_point, dst_zero_point)
        scale, dst_scale, src_zero_point, dst_zero_point = _along(axis, "reorder", sizes, operands)
    read_numbers(scale, dst_scale, src_zero_point, dst_zero_point, beta)
    has_bool = type(beta) is bool or type(round_before_zero_point) is not bool
    if not (scale is dst_scale is src_zero_point is dst_zero_point is None):
        has_bool |= bool in map(type, (scale, dst_scale, src_zero_point, dst_zero_point))
        options = options | _given(
            scale=scale,
            dst_scale=dst_scale,
            src_zero_point=src_zero_point,
            dst_zero_point=dst_zero_point,
        )
    if accumulate is not None:
        options = options | {"accumulate": accumulate}
    try:
        if beta != 1.0:
            options = options | {"beta": beta}
        if round_before_zero_point:
            options = options | {"round_before_zero_point": round_before_zero_point}
        if has_bool:
            raise TypeError  # explained below; the schema takes bools as other numbers
        dst: Any = NotImplemented
        if size is None and not is_dynamo_compiling():
            dst = _quick_reorder(src, dst_format, src_format, None, dtype, **options)
        if dst is NotImplemented:
            if not (dtype is None or isinstance(dtype, torch.dtype)):
                raise TypeError  # explained below; the schema takes ints
            dst = _reorder(src, dst_format, src_format, size, dtype, **options)
    except Exception as error:
        _check_types(
            "reorder",
            src=src,
            dst_format=dst_format,
            src_format=src_format,
            size=size,
            dtype=dtype,
            scale=scale,
            dst_scale=dst_scale,
            src_zero_point=src_zero_point,
            dst_zero_point=dst_zero_point,
            accumulate=accumulate,
            beta=beta,
            round_before_zero_point=round_before_zero_point,
        )
        _explain_axis(error)
        raise
    if compensation is None:
        return dst  # type: ignore[no-any-return]
    logical = _logical_size(src, src_format, size)
    sums = _compensation(compensation, dst, dst_format, src_format, logical)
    return dst, sums


def _check_types(function: str, **arguments: object) -> None:
    check_types(function, {name: (value, _KINDS[name]) for name, value in arguments.items()})


# The quick call tells names by identity, which literals have.
_VALUES = {
    "scale": "scale_value",
    "dst_scale": "dst_scale_value",
    "src_zero_point": "src_zero_point_value",
    "dst_zero_point": "dst_zero_point_value",
}


def _given(**operands: Number | None) -> dict[str, Any]:
    """The scales and zero points that are there, as the operators take them."""
    return {
        name if isinstance(operand, Tensor) else _VALUES[name]: operand
        for name, operand in operands.items()
        if operand is not None
    }


def _logical_size(src: Tensor, src_format: str | None, size: Sequence[int] | None) -> Sequence[int]:
    """The logical sizes of `src`, with the padding unless there is a `size`."""
    if size is not None:
        return size
    if src_format is None or not _blocked_rank(src_format):
        return src.shape
    _reorder(src.to("meta"), None, src_format)  # checks that they belong together
    format = parse(src_format)
    sizes = [0] * format.ndim
    for dim, length in zip(format.order, src.shape, strict=False):
        sizes[dim] = length * format.block_size(dim)
    return sizes


def _along(
    axis: int, function: str, sizes: Sequence[int], operands: Sequence[Number | None]
) -> list[Number | None]:
    """Scales and zero points; those of shape [1] or [C], in the rank of a source of these sizes."""
    rank = len(sizes)
    if not -rank <= axis < rank:
        raise ValueError(
            f"{function}: expected axis to be from {-rank} to {rank - 1}, a dimension of the "
            f"logical size of src, {list(sizes)}, got {axis}"
        )
    axis = list(range(rank))[axis]  # counted from the start, and a plain int where it was traced
    shape = [1] * rank
    shape[axis] = -1
    spread = list(operands)
    for i, (name, operand) in enumerate(zip(_OPERANDS, operands, strict=True)):
        _check_types(function, **{name: operand})
        # In one dimension, a tensor has the full rank as it is.
        if isinstance(operand, Tensor) and operand.dim() == 1 and rank != 1:
            _check_length(function, name, operand.shape[0], axis, sizes)
            spread[i] = operand.reshape(shape)
    return spread


# Whether an assertion of a compiled program may have a message that depends on the call.
_TRACES_CLOSURES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)


def _check_length(function: str, name: str, length: int, axis: int, sizes: Sequence[int]) -> None:
    fits = (length == 1) | (length == sizes[axis])  # `or` would ask for a bool
    expected = (
        f"{function}: expected {name} to be {len(sizes)}-D, or to have 1 entry or as many as src "
        f"has along axis {axis}"
    )
    if torch.compiler.is_compiling():
        # Where sizes are unknown, an assertion of the program.
        why = (lambda: expected,) if _TRACES_CLOSURES else ()
        torch._check_value(fits, *why)  # type: ignore[no-untyped-call]
    elif not fits:
        raise ValueError(f"{expected} ({sizes[axis]}), got 1-D with sizes [{length}]")


def _explain_axis(error: Exception) -> None:
    """Where a tensor should have more than one dimension, says what else could be meant by it."""
    if re.search(r" to be ([2-9]|\d\d)-D with each size .*, got 1-D with ", str(error)):
        raise ValueError(f"{error}; a tensor along one dimension needs axis=") from error


def _compensation(
    kind: str,
    weights: Tensor,
    dst_format: str | None,
    src_format: str | None,
    size: Sequence[int],
) -> Tensor:
    """What belongs to reordered weights of this logical size; see `reorder`."""
    check_types("reorder", {"compensation": (kind, "a str or None")})
    if kind != "s8s8":
        raise ValueError(f"reorder: expected compensation to be 's8s8' or None, got {kind!r}")
    if weights.dtype != torch.int8:
        raise ValueError(
            f"reorder: expected dtype to be int8 with compensation, got {weights.dtype}"
        )
    blocked = dst_format or src_format
    if blocked is not None and _blocked_rank(blocked):
        plain = string.ascii_lowercase[: _blocked_rank(blocked)]
        weights = reorder(weights, plain, src_format=blocked, size=size)
    kept = 1  # the output channels come first, or groups and then they
    for tag in (dst_format, src_format):
        if tag is not None and set("goi") <= set(tag.lower()) and not set("al") & set(tag.lower()):
            kept = 2
    if weights.dim() <= kept:
        raise ValueError(
            "reorder: expected src to be weights with output and input channels with "
            f"compensation, got {weights.dim()}-D with sizes {list(weights.shape)}"
        )
    products = math.prod(weights.shape[kept:])
    if products > 131071:
        raise ValueError(
            "reorder: expected at most 131071 weights of an output channel with compensation, "
            f"whose sums times 128 fit in int32, got {products}"
        )
    return weights.sum(list(range(kept, weights.dim())), dtype=torch.int32) * -128


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
    axis: int | None = None,
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
    check_types("fake_reorder", {"dtype": (dtype, "a torch.dtype")})
    _check_types(
        "fake_reorder",
        src=src,
        dst_format=dst_format,
        src_format=src_format,
        size=size,
        scale=scale,
        dst_scale=dst_scale,
        src_zero_point=src_zero_point,
        dst_zero_point=dst_zero_point,
        accumulate=accumulate,
        beta=beta,
        round_before_zero_point=round_before_zero_point,
        axis=axis,
    )
    if not src.is_floating_point() or src.element_size() == 1:
        raise TypeError(
            "fake_reorder: expected src to be float64, float32, bfloat16 or float16, got "
            f"{describe(src)}"
        )
    if accumulate is None and not abs(beta) < math.inf:  # no operator sees it
        raise ValueError(f"fake_reorder: expected beta to be finite, got {beta}")
    assert dtype is not None
    own_dtype = src.dtype
    layout = dst_format
    if src_format is not None or size is not None:
        if src_format is not None and _blocked_rank(src_format) and dst_format is None:
            layout = src_format
        src = _to_plain(src, src_format, size, {})
    if axis is not None:
        operands = (scale, dst_scale, src_zero_point, dst_zero_point)
        scale, dst_scale, src_zero_point, dst_zero_point = _along(
            axis, "fake_reorder", src.shape, operands
        )
    read_numbers(dst_scale, dst_zero_point)
    is_blocked = layout is not None and _blocked_rank(layout) > 0
    if not (scale is None and src_zero_point is None and accumulate is None):
        wide = torch.float64 if own_dtype == torch.float64 else torch.float32
        if accumulate is not None and is_blocked:
            names = {"src_format": "dst_format", "src": "accumulate"}
            accumulate = _to_plain(accumulate, layout, src.shape, names, wide)
        scaled = partial(
            _reorder_for_fake,
            {},
            dtype=wide,
            scale=scale,
            src_zero_point=src_zero_point,
            accumulate=accumulate,
            beta=beta,
        )
        value = scaled(src)
        if isinstance(scale, Tensor) and scale.requires_grad and torch.is_grad_enabled():
            # Its gradient is a product with the source, which must not make NaN of the zero
            # gradient and an infinity.
            value = value.detach()
            finite = value.isfinite()
            value = torch.where(finite, scaled(torch.where(finite, src, 0)), value)
        src = value
    try:
        result: Tensor = _fake_reorder(
            src,
            dtype,
            _layout_of(src) if layout is None or is_blocked else layout,
            **_given(dst_scale=dst_scale, dst_zero_point=dst_zero_point),
            round_before_zero_point=round_before_zero_point,
            **reorder_choice.options,
        )[0]
    except ValueError as error:
        _explain_axis(error)
        raise
    if result.dtype != own_dtype:
        result = result.to(own_dtype)
    return _reorder_for_fake({}, result, layout) if is_blocked else result


def _reorder_for_fake(names: Mapping[str, str], *args: Any, **kwargs: Any) -> Tensor:
    """`reorder`, with errors in the words of `fake_reorder`."""
    try:
        result: Tensor = reorder(*args, **kwargs)
        return result
    except (ValueError, TypeError, NotImplementedError) as error:
        raise type(error)(in_words_of("fake_reorder", error, names)) from error


def _blocked_rank(format: str) -> int:
    """The number of dimensions of a blocked tag, 0 for a plain one. The operator checks the tag."""
    rank = len(format) - len(format.lstrip(string.ascii_letters))
    return rank if rank < len(format) else 0


def _to_plain(
    tensor: Tensor,
    format: str | None,
    size: Sequence[int] | None,
    names: Mapping[str, str],
    dtype: torch.dtype | None = None,
) -> Tensor:
    rank = 0 if format is None else _blocked_rank(format)
    contiguous = string.ascii_lowercase[:rank] or None
    return _reorder_for_fake(names, tensor, contiguous, src_format=format, size=size, dtype=dtype)


def _layout_of(src: Tensor) -> str | None:
    """The tag of the layout that `torch.empty_like` gives a result; None: contiguous."""
    order = list(reversed(range(src.dim())))  # the dimensions, innermost first
    if is_dense(src, order):
        return None
    for last in range(1, len(order)):
        place = last
        for other in reversed(range(last)):
            a, b = (src.stride(order[other]), src.stride(order[place]))
            if holds(a == 0) or holds(b == 0):
                continue  # an expanded dimension is at home anywhere
            is_larger = holds(a == b) and holds(src.size(order[other]) > src.size(order[place]))
            if holds(a > b) or is_larger:
                order[other], order[place] = order[place], order[other]
                place = other
            elif holds(a < b):
                break
    return "".join(string.ascii_lowercase[dim] for dim in reversed(order))
