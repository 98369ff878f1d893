"""Reordering by whole-tensor steps: unpack, compute, convert, pack.

Written from the oneDNN pages on memory formats and reorder, not from the
library's code. A physical tensor becomes logical by permuting and merging axes;
the arithmetic is one torch operation per step, so every step rounds by itself.
"""

import math
import re

import torch
import torch.nn.functional as F

INTEGERS = (torch.int32, torch.int8, torch.uint8)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def parse(tag):
    """The dimensions in the order of memory, and the (dimension, size) of each block."""
    front = re.match("[A-Za-z]+", tag)[0]
    letters = front.lower()
    if "a" in letters:
        order = sorted(letters)
    elif "l" in letters:
        order = [letter for letter in "ldnicgo" if letter in letters]
    elif "o" in letters:
        order = [letter for letter in "goidhw" if letter in letters]
    else:
        order = [letter for letter in "tncdhwx" if letter in letters]
    blocks = re.findall("([0-9]+)([a-z])", tag[len(front) :])
    return [order.index(c) for c in letters], [(order.index(c), int(n)) for n, c in blocks]


def axes_by_dimension(outer, inner):
    """The axes of the physical tensor that make up each dimension, most significant first."""
    dims = [*outer, *(dim for dim, _ in inner)]
    return [[axis for axis, d in enumerate(dims) if d == dim] for dim in range(len(outer))]


def unpack(physical, tag, size):
    outer, inner = parse(tag)
    groups = axes_by_dimension(outer, inner)
    padded = [math.prod(physical.shape[axis] for axis in group) for group in groups]
    logical = physical.permute([axis for group in groups for axis in group]).reshape(padded)
    for dim, length in enumerate(padded if size is None else size):
        logical = logical.narrow(dim, 0, length)
    return logical


def pack(logical, tag):
    outer, inner = parse(tag)
    groups = axes_by_dimension(outer, inner)
    padding, split = [], []
    for dim, length in enumerate(logical.shape):
        blocks = [n for d, n in inner if d == dim]
        count = -(-length // math.prod(blocks))
        padding = [0, count * math.prod(blocks) - length, *padding]
        split += [count, *blocks]
    if any(padding):  # float8 has no padding of its own: through float32, which keeps every value
        wide = logical.float() if logical.dtype in FLOAT8 else logical
        logical = F.pad(wide, padding).to(logical.dtype)
    position = [axis for group in groups for axis in group]
    order = [position.index(axis) for axis in range(len(position))]
    return logical.reshape(split).permute(order).contiguous()


def spread(operand, logical, axis=None):
    """A scale or zero point, repeated over its groups of elements; None stays None.

    `axis`: the dimension that a 1-D operand belongs to.
    """
    if operand is None:
        return None
    operand = torch.as_tensor(operand, dtype=logical.dtype, device=logical.device)
    if operand.dim() == 0:
        return operand
    if axis is not None and operand.dim() == 1:
        own = range(logical.dim())[axis]
        operand = operand[(None,) * own + (slice(None),) + (None,) * (logical.dim() - own - 1)]
    for dim, length in enumerate(operand.shape):
        operand = operand.repeat_interleave(logical.shape[dim] // max(length, 1), dim)
    return operand


def rounded_once(value, dtype):
    """float64 to bfloat16 or float16 with one rounding, where torch goes through float32."""
    bits = {torch.bfloat16: 8, torch.float16: 11}[dtype]
    smallest = {torch.bfloat16: -133, torch.float16: -24}[dtype]
    _, exponent = torch.frexp(value)
    unit = 2.0 ** (exponent - bits).clamp(min=smallest).double()
    result = (value / unit).round() * unit
    return torch.where(value.isfinite(), result, value).to(dtype)


def convert(value, dtype):
    if dtype == value.dtype:
        return value
    if dtype in INTEGERS:
        limits = torch.iinfo(dtype)
        if value.is_floating_point():
            value = value.double().nan_to_num(0.0, math.inf, -math.inf).round()
        return value.clamp(limits.min, limits.max).to(dtype)
    if dtype in FLOAT8:
        limit = torch.finfo(dtype).max
        return value.float().clamp(-limit, limit).to(dtype)
    if value.dtype == torch.float64 and dtype in (torch.bfloat16, torch.float16):
        return rounded_once(value, dtype)
    return value.to(dtype)


def reorder(
    src,
    dst_format=None,
    *,
    src_format=None,
    size=None,
    dtype=None,
    scale=None,
    dst_scale=None,
    src_zero_point=None,
    dst_zero_point=None,
    accumulate=None,
    beta=1.0,
    round_before_zero_point=False,
    axis=None,
):
    blocked = src_format is not None and bool(parse(src_format)[1])
    if dst_format is None and blocked:
        dst_format = src_format
    dtype = src.dtype if dtype is None else dtype
    logical = unpack(src, src_format, size) if blocked else src
    size = logical.shape
    affine = (scale, dst_scale, src_zero_point, dst_zero_point, accumulate)

    if src.dtype in INTEGERS and dtype in INTEGERS and all(operand is None for operand in affine):
        value = logical.long()
    else:
        value = logical.to(torch.float64 if src.dtype == torch.float64 else torch.float32)
        scale, dst_scale, src_zero_point, dst_zero_point = (
            spread(operand, value, axis) for operand in affine[:4]
        )
        if src_zero_point is not None:
            value = value - src_zero_point
        if scale is not None:
            value = scale * value
        if accumulate is not None:
            if dst_format is not None and parse(dst_format)[1]:
                accumulate = unpack(accumulate, dst_format, size)
            value = value + torch.tensor(beta, dtype=value.dtype) * accumulate.to(value.dtype)
        if dst_scale is not None:
            value = value / dst_scale
        if dst_zero_point is not None:
            if round_before_zero_point and dtype in INTEGERS:
                value = value.round()
            value = value + dst_zero_point
    if dtype == torch.float8_e5m2 or dtype != value.dtype:
        value = convert(value, dtype)
    if dst_format is None:
        return value
    outer, inner = parse(dst_format)
    if inner:
        return pack(value, dst_format)
    inverse = [outer.index(dim) for dim in range(len(outer))]
    return value.permute(outer).contiguous().permute(inverse)


def fake_reorder(src, dst_format=None, *, src_format=None, size=None, dtype, **options):
    """Quantized, and dequantized with the gradients of learned step size quantization.

    What does not saturate is w, its rounding a constant; what does is the bound, a constant. Then
    autograd gives (q - z) t with respect to everything.
    """
    blocked = src_format is not None and bool(parse(src_format)[1])
    if blocked:
        dst_format = dst_format or src_format
        src = unpack(src, src_format, size)
    in_blocks = dst_format is not None and bool(parse(dst_format)[1])
    accumulate = options.pop("accumulate", None)
    if accumulate is not None and in_blocks:
        accumulate = unpack(accumulate, dst_format, src.shape)
    options["accumulate"] = accumulate
    with torch.no_grad():
        q = reorder(src, dtype=dtype, **options)
    wide = torch.float64 if src.dtype == torch.float64 else torch.float32
    q = q.to(wide)
    scale, shift = options.pop("dst_scale", None), options.pop("dst_zero_point", None)
    rounds_first = options.pop("round_before_zero_point", False)
    v = reorder(src, dtype=wide, **options)
    scale, shift = (spread(operand, v, options.get("axis")) for operand in (scale, shift))

    u = v if scale is None else v / scale
    if dtype in INTEGERS:
        u = u.round() if rounds_first else u
        u = u if shift is None else u + shift
        limits = torch.iinfo(dtype)
        inside = (u.round() >= limits.min) & (u.round().double() <= limits.max)
    else:
        # The last float32 before what would round to the next value up, if there were one.
        limit = {torch.float8_e4m3fn: 464.0, torch.float8_e5m2: 61439.99609375}[dtype]
        u = u if shift is None else u + shift
        inside = u.float().abs() <= limit
    # q, with the derivative of what was rounded. No gradient goes to what saturated, where an
    # infinity would make NaN of 0.
    straight = torch.where(inside, v, 0)
    straight = straight if scale is None else straight / scale
    straight = straight if shift is None else straight + shift
    q = torch.where(inside, q - (straight.detach() - straight), q)
    q = q if shift is None else q - shift
    result = (q if scale is None else q * scale).to(src.dtype)
    return result if dst_format is None else reorder(result, dst_format)
