"""Reorder beyond the table: random problems with every operand, layout and type to the bit, all
pairs of types over the values where conversions go wrong, torch's and ONNX's quantization."""

import math
import random

import pytest
import torch
from oracles.reorder import FLOAT8, INTEGERS
from oracles.reorder import reorder as oracle

import torch_dnnl.functional as D

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, *FLOAT8, *INTEGERS)


def assert_same_bits(actual, expected, *context):
    """Equal type, sizes and values; one NaN is as good as another, 0 and -0 are not."""
    assert actual.dtype == expected.dtype and actual.shape == expected.shape, context
    if actual.is_floating_point():
        actual, expected = actual.double(), expected.double()
        assert torch.equal(actual.isnan(), expected.isnan()), context
        actual, expected = actual.nan_to_num(0.25), expected.nan_to_num(0.25)
        assert torch.equal(actual.signbit(), expected.signbit()), context
    assert torch.equal(actual, expected), context


def random_tag(choose: random.Random, rank: int) -> str:
    order = choose.sample(range(rank), rank)
    blocks = []
    if choose.random() < 0.6:
        blocks = [
            (choose.randint(1, 5), choose.randrange(rank)) for _ in range(choose.randint(1, 4))
        ]
    blocked = {dim for _, dim in blocks}
    front = "".join(chr(ord("A" if dim in blocked else "a") + dim) for dim in order)
    return front + "".join(f"{size}{chr(ord('a') + dim)}" for size, dim in blocks)


def random_values(choose: random.Random, shape, dtype):
    """Of every magnitude, with ties, infinities and NaN; in any strides."""
    if dtype in INTEGERS:
        info = torch.iinfo(dtype)
        values = torch.randint(info.min, info.max, shape, dtype=torch.int64)
        values = torch.where(torch.rand(shape) < 0.5, values, values % 7)
    else:
        values = torch.randn(shape, dtype=torch.float64) * choose.choice([1, 30, 1e5])
        values = torch.where(torch.rand(shape) < 0.3, (values * 2).round() / 2, values)
        for special in (math.nan, math.inf, -math.inf, -0.0):
            values = torch.where(torch.rand(shape) < 0.03, special, values)
    values = values.to(dtype)
    layout = choose.randrange(4)
    if layout == 1:
        order = choose.sample(range(len(shape)), len(shape))
        return (
            values.permute(order).contiguous().permute([order.index(d) for d in range(len(shape))])
        )
    if layout == 2 and min(shape, default=0) > 0:
        wide = torch.zeros([2 * n + 1 for n in shape], dtype=dtype)
        view = wide[tuple(slice(1, None, 2) for _ in shape)]
        return view.copy_(values)
    if layout == 3 and shape:
        return values.narrow(0, 0, min(1, shape[0])).expand(shape)
    return values


def random_operand(choose: random.Random, size, scale, limits=None):
    """A number or a tensor with groups; `limits`: of a zero point of an integer."""
    if choose.random() < 0.5:
        return None
    values = torch.rand if scale else torch.randn
    if limits is not None:
        low, high = max(limits.min, -100), min(limits.max, 100)
        if choose.random() < 0.3:
            return choose.randint(low, high)
        dtype = choose.choice([torch.int32, torch.float32, torch.int64])
    elif choose.random() < 0.3:
        return choose.choice([0.1, 3.0, 255.0, -0.5])
    else:
        dtype = choose.choice([torch.float64, torch.float32, torch.float16])
    shape = [choose.choice([d for d in range(1, n + 1) if n % d == 0] or [n]) for n in size]
    if choose.random() < 0.2:
        shape = []
    if limits is not None:
        return torch.randint(low, high, shape).to(dtype)
    return (values(shape, dtype=torch.float64) + (0.05 if scale else 0)).to(dtype)


def add_random_steps(choose: random.Random, src, size, options):
    """Often: scales, zero points, a sum, as options of the reorder of `src`, of logical `size`."""
    limits = {
        name: torch.iinfo(t) if t in INTEGERS else None
        for name, t in [("src", src.dtype), ("dst", options["dtype"])]
    }
    if choose.random() < 0.7:
        options |= {
            "scale": random_operand(choose, size, True),
            "dst_scale": random_operand(choose, size, True),
            "src_zero_point": random_operand(choose, size, False, limits["src"]),
            "dst_zero_point": random_operand(choose, size, False, limits["dst"]),
            "round_before_zero_point": choose.random() < 0.5,
        }
        if choose.random() < 0.5:
            like = oracle(src, **options)
            options["accumulate"] = random_values(choose, list(like.shape), choose.choice(DTYPES))
            options["beta"] = choose.choice([1.0, -0.3, 0.0])


def random_problem(choose: random.Random):
    rank = choose.choice([1, 2, 3, 4, 4, 5, 6])
    size = [
        choose.randint(0 if choose.random() < 0.05 else 1, 9 if rank < 5 else 4)
        for _ in range(rank)
    ]
    src_dtype, dtype = choose.choice(DTYPES), choose.choice(DTYPES)
    options = {"dtype": dtype}
    src = random_values(choose, size, src_dtype)
    if choose.random() < 0.4:
        tag = options["src_format"] = random_tag(choose, rank)
        if tag[-1].isalpha() and any(c.isdigit() for c in tag):
            options["size"] = size
            src = oracle(src, tag)
    if choose.random() < 0.7:
        options["dst_format"] = random_tag(choose, rank)
    add_random_steps(choose, src, size, options)
    return src, options


@pytest.mark.parametrize("seed", range(20))
def test_random_problems(seed):
    choose = random.Random(seed)
    torch.manual_seed(seed)
    for trial in range(15):
        src, options = random_problem(choose)
        context = (seed, trial, src.shape, src.stride(), src.dtype, options)
        assert_same_bits(D.reorder(src, **options), oracle(src, **options), context)


@pytest.mark.parametrize(
    ("size", "tags", "groups"),
    [
        ((20, 7, 3, 3), (None, "oihw", "hwio", "OIhw4i16o4i", "OIhw16i16o", "acdb"), False),
        ((20, 7), (None, "io", "OI16i16o"), False),
        ((3, 10, 6, 5), ("goiw", "gOIw4i16o4i", "wgio"), True),
        ((3, 10, 6, 5), ("abcd", "aBCd4c16b4c"), False),  # a generic tag names no groups
    ],
)
def test_compensation_of_int8_weights(size, tags, groups):
    """u8 x s8 and s8 x s8 products differ by 128 times the sum of the weights."""
    weights = torch.randn(size)
    scale = torch.rand(size[0], *[1] * (len(size) - 1)) * 0.02 + 0.01
    expected = D.reorder(weights, dtype=torch.int8, dst_scale=scale)
    sums = expected.long().flatten(2 if groups else 1).sum(-1)
    for tag in tags:
        options = {"dtype": torch.int8, "dst_scale": scale}
        result, compensation = D.reorder(weights, tag, **options, compensation="s8s8")
        assert_same_bits(result, D.reorder(weights, tag, **options))
        assert compensation.dtype == torch.int32
        assert torch.equal(compensation.long(), -128 * sums)
        if tag is not None and any(c.isdigit() for c in tag):
            again, compensation = D.reorder(
                *(result, "".join(c for c in tag.lower() if c.isalpha())[: len(size)]),
                src_format=tag, size=size, compensation="s8s8",
            )  # fmt: skip
            assert torch.equal(again, expected)
            assert torch.equal(compensation.long(), -128 * sums)


def test_compensation_makes_the_product_right():
    src = torch.randint(-128, 128, (5, 7), dtype=torch.int8)
    weights, compensation = D.reorder(
        torch.randn(4, 7), dtype=torch.int8, dst_scale=0.02, compensation="s8s8"
    )
    as_uint8 = src.int() + 128
    expected = src.int() @ weights.int().T
    assert torch.equal(as_uint8 @ weights.int().T + compensation, expected)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("compensation to be 's8s8' or None, got 'u8'", {"compensation": "u8"}),
        ("dtype to be int8 with compensation, got torch.uint8", {"dtype": torch.uint8}),
        ("src to be weights .* got 1-D with sizes", {"src": torch.ones(3)}),
    ],
)
def test_bad_compensation(message, options):
    call = {"src": torch.ones(2, 3), "dtype": torch.int8, "compensation": "s8s8", **options}
    with pytest.raises(ValueError, match=f"^reorder: expected {message}"):
        D.reorder(**call)
