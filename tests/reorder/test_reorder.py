"""Reorder beyond the table: random problems with every operand, layout and type, to the bit."""

import itertools
import math
import random

import pytest
import torch
from oracles.exact_reorder import element, reorder_element
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


def assert_exact(choose: random.Random, actual, src, options):
    """Some elements at random, as by fractions that are rounded once per step."""
    size = options.get("size", src.shape)
    tag = options.get("dst_format") or options.get("src_format")
    for _ in range(24 if all(size) else 0):
        index = [choose.randrange(n) for n in size]
        expected = reorder_element(index, size, src, options)
        # repr: tells 0 from -0, and NaN equals NaN.
        assert repr(element(actual, index, tag)) == repr(expected), (index, src.dtype, options)


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


def random_problem(choose: random.Random, dtype):
    rank = choose.choice([1, 2, 3, 4, 4, 5, 6])
    size = [
        choose.randint(0 if choose.random() < 0.05 else 1, 9 if rank < 5 else 4)
        for _ in range(rank)
    ]
    options = {"dtype": dtype}
    src = random_values(choose, size, choose.choice(DTYPES))
    if choose.random() < 0.4:
        tag = options["src_format"] = random_tag(choose, rank)
        if tag[-1].isalpha() and any(c.isdigit() for c in tag):
            options["size"] = size
            src = oracle(src, tag)
    if choose.random() < 0.7:
        options["dst_format"] = random_tag(choose, rank)
    add_random_steps(choose, src, size, options)
    return src, options


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_problems(dtype):
    choose = random.Random(str(dtype))
    for trial in range(200):
        src, options = random_problem(choose, dtype)
        context = (trial, src.shape, src.stride(), src.dtype, options)
        result = D.reorder(src, **options)
        assert_same_bits(result, oracle(src, **options), context)
        assert_exact(choose, result, src, options)


def middles(dtype):
    """Numbers in the middle between two neighbours of an integer or float8 type."""
    if dtype in FLOAT8:
        every = torch.arange(256, dtype=torch.uint8).view(dtype).double()
        every = every[every.isfinite()].unique()
        return (every[1:] + every[:-1]) / 2
    limits = torch.iinfo(dtype)
    return torch.randint(max(limits.min, -1000), min(limits.max, 1000), (300,)).double() + 0.5


@pytest.mark.parametrize("dtype", [*INTEGERS, *FLOAT8], ids=str)
@pytest.mark.parametrize("round_before_zero_point", [False, True])
def test_every_step_is_rounded(dtype, round_before_zero_point):
    """Sources that come out in the middle between two values: there, one rounding more, or less,
    or a product with the inverse of a scale, gives the other one."""
    middle = middles(dtype)[:, None]
    scale, dst_scale = (torch.rand(1, 8) + 0.05 for _ in range(2))
    for zero_point in (None, torch.randint(0, 100, (1, 8), dtype=torch.int32)):
        src = (middle - (0 if zero_point is None else zero_point)) * dst_scale / scale + 3
        options = {
            "dtype": dtype,
            "scale": scale,
            "dst_scale": dst_scale,
            "src_zero_point": 3,
            "dst_zero_point": zero_point,
            "round_before_zero_point": round_before_zero_point,
        }
        result = D.reorder(src.float(), **options)
        for index in itertools.product(*map(range, src.shape)):
            expected = reorder_element(index, src.shape, src.float(), options)
            assert repr(result[index].item()) == repr(expected), (index, options)


@pytest.mark.parametrize(
    "size,stride",
    [((1, 3, 4, 5), (7, 20, 5, 1)), ((2, 1, 4, 5), (20, 9, 5, 1)), ((2, 3, 1, 1), (3, 1, 7, 5))],
)
def test_strides_along_sizes_of_1_on_meta(size, stride):
    """They are kept, as `Tensor.to` keeps them."""
    for device in ("cpu", "meta"):
        src = torch.empty_strided(size, stride, device=device)
        assert D.reorder(src, dtype=torch.float16).stride() == stride
        assert D.reorder(src, dtype=torch.int8, scale=2.0).stride() == stride
