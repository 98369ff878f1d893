"""Reorder one element at a time, in exact fractions that are rounded once per step.

Written from the formula of `reorder` and from IEEE 754; it shares no arithmetic with the library,
torch or NumPy. A value is a Python float, which holds every number of every type here. Where a
step meets an infinity, NaN or a zero, that float's own rules give the result, and its sign.
"""

import math
import operator
from fractions import Fraction

from .reorder import parse

# Significant bits, exponent of the smallest denormal, largest finite value.
FLOATING = {
    "float64": (53, -1074, (2.0 - 2.0**-52) * 2.0**1023),
    "float32": (24, -149, (2.0 - 2.0**-23) * 2.0**127),
    "bfloat16": (8, -133, (2.0 - 2.0**-7) * 2.0**127),
    "float16": (11, -24, 65504.0),
    "float8_e4m3fn": (4, -9, 448.0),
    "float8_e5m2": (3, -16, 57344.0),
}
INTEGERS = {"int32": (-(2**31), 2**31 - 1), "int8": (-128, 127), "uint8": (0, 255)}


def rounded(exact, dtype):
    """A fraction, other than 0, to the nearest float of a type; ties go to the even one."""
    bits, smallest, largest = FLOATING[dtype]
    magnitude = abs(exact)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1  # now 2^exponent <= magnitude < 2^(exponent + 1)
    unit = Fraction(2) ** max(exponent - bits + 1, smallest)
    result = round(magnitude / unit) * unit  # Python rounds a fraction to even
    return math.copysign(math.inf if result > largest else float(result), 1 if exact > 0 else -1)


def to_float(value, dtype):
    """A float or int to a floating type."""
    if not math.isfinite(value) or value == 0:
        return float(value)
    return rounded(Fraction(value), dtype)


def to_float8(value, dtype):
    """A float to float32, if it is none yet, and saturated to float8."""
    largest = FLOATING[dtype][2]
    value = to_float(value, "float32")
    if math.isnan(value):
        return value
    return to_float(min(max(value, -largest), largest), dtype)


def to_integer(value, dtype):
    """A float or int to an integer type."""
    low, high = INTEGERS[dtype]
    if math.isnan(value):
        return 0
    if math.isinf(value):
        return low if value < 0 else high
    return min(max(round(Fraction(value)), low), high)


def step(function, a, b, dtype):
    """a + b, a - b, a * b or a / b, rounded once."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return function(a, b)
    exact = function(Fraction(a), Fraction(b))
    return rounded(exact, dtype) if exact != 0 else function(a, b)


def to_nearest_integer(value):
    if not math.isfinite(value):
        return value
    return math.copysign(float(round(Fraction(value))), value)


def position(index, tag):
    """Where a logical index lies in the physical tensor of a blocked tag."""
    outer, inner = parse(tag)
    index, digits = list(index), []
    for dim, size in reversed(inner):
        index[dim], digit = divmod(index[dim], size)
        digits.insert(0, digit)
    return (*(index[dim] for dim in outer), *digits)


def element(tensor, index, tag):
    if tag is not None and parse(tag)[1]:
        index = position(index, tag)
    return tensor[tuple(index)].item()


def operand(value, index, size, compute):
    """The entry of a scale or zero point that belongs to an index; None stays None."""
    if value is None or isinstance(value, int | float):
        return None if value is None else to_float(value, compute)
    groups = (i * entries // n for i, entries, n in zip(index, value.shape, size))
    return to_float(value[tuple(groups)].item(), compute)


def reorder_element(index, size, src, options):
    """What the destination holds at a logical index of a tensor of logical `size`."""
    name = lambda dtype: str(dtype).removeprefix("torch.")  # noqa: E731
    src_dtype, dtype = name(src.dtype), name(options["dtype"])
    compute = "float64" if src_dtype == "float64" else "float32"
    src_format = options.get("src_format")
    value = element(src, index, src_format)
    scale, dst_scale, src_zero_point, dst_zero_point = (
        operand(options.get(argument), index, size, compute)
        for argument in ("scale", "dst_scale", "src_zero_point", "dst_zero_point")
    )
    accumulate = options.get("accumulate")
    steps = (scale, dst_scale, src_zero_point, dst_zero_point, accumulate)
    if src_dtype in INTEGERS and dtype in INTEGERS and all(s is None for s in steps):
        return to_integer(value, dtype)

    value = to_float(value, compute)
    if src_zero_point is not None:
        value = step(operator.sub, value, src_zero_point, compute)
    if scale is not None:
        value = step(operator.mul, scale, value, compute)
    if accumulate is not None:
        # It lies as the destination does, and that as the source does where nothing else is said.
        added = element(accumulate, index, options.get("dst_format") or src_format)
        beta = to_float(options["beta"], compute)
        added = step(operator.mul, beta, to_float(added, compute), compute)
        value = step(operator.add, value, added, compute)
    if dst_scale is not None:
        value = step(operator.truediv, value, dst_scale, compute)
    if dst_zero_point is not None:
        if options["round_before_zero_point"] and dtype in INTEGERS:
            value = to_nearest_integer(value)
        value = step(operator.add, value, dst_zero_point, compute)
    if dtype in INTEGERS:
        return to_integer(value, dtype)
    return to_float8(value, dtype) if "float8" in dtype else to_float(value, dtype)
