"""Reorder's fast kernels, to the bit: sizes that fill their tiles and leave odd ends, the layouts
that they are made for, and every bit pattern that the conversions between types can meet."""

import math
import random

import pytest
import torch
from oracles.reorder import FLOAT8
from oracles.reorder import reorder as oracle
from test_reorder import (
    DTYPES,
    add_random_steps,
    assert_exact,
    assert_same_bits,
    random_values,
)

import torch_dnnl.functional as D

TAGS = {
    1: ("a", "A16a", "A3a"),
    2: ("ab", "ba", "AB16b16a", "AB4b16a4b", "aB8b", "bA2a"),
    3: ("abc", "acb", "cab", "aBc16b", "aBc8b", "ABc8b16a2b"),
    4: (
        *("abcd", "acdb", "bacd", "cdba", "dcba", "aBcd4b", "aBcd8b", "aBcd16b", "aBcd64b"),
        *("ABcd16b16a", "ABcd16a16b", "ABcd4b16a4b", "ABcd8b16a2b", "Abcd32a", "AcdB16b64a4b"),
    ),
    5: ("abcde", "acdeb", "aBcde16b", "aBCde4c16b4c", "aBCde16c16b", "Abcde8a"),
}  # fmt: skip
SIZES = (1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 48, 64, 65, 80, 130)
MOST = 60_000  # elements


def random_size(choose: random.Random, rank: int):
    size = [choose.choice(SIZES) for _ in range(rank)]
    while math.prod(size) > MOST:
        size[choose.randrange(rank)] = choose.choice(SIZES[:6])
    if choose.random() < 0.1:  # longer than a piece and than a tile
        size = [1] * rank
        size[choose.randrange(rank)] = choose.choice([1023, 1025, 20_000])
        size[choose.randrange(rank)] = choose.choice([1, 3, 20_000 if max(size) < 1000 else 17])
    return size


def random_problem(choose: random.Random):
    rank = choose.choice([1, 2, 2, 3, 4, 4, 4, 4, 5])
    size = random_size(choose, rank)
    src_dtype, dtype = choose.choice(DTYPES), choose.choice(DTYPES)
    if choose.random() < 0.3:
        dtype = src_dtype
    options = {"dtype": dtype}
    src = random_values(choose, size, src_dtype)
    if choose.random() < 0.7:
        tag = choose.choice(TAGS[rank])
        if any(c.isdigit() for c in tag):
            options |= {"src_format": tag, "size": size}
        src = oracle(src, tag)
    if choose.random() < 0.9:
        options["dst_format"] = choose.choice(TAGS[rank])
    add_random_steps(choose, src, size, options)
    return src, options


@pytest.mark.parametrize("seed", range(20))
def test_kernels_match_oracle(seed):
    choose = random.Random(1000 + seed)
    torch.manual_seed(seed)
    for trial in range(20):
        src, options = random_problem(choose)
        context = (seed, trial, src.shape, src.stride(), src.dtype, options)
        result = D.reorder(src, **options)
        assert_same_bits(result, oracle(src, **options), context)
        assert_exact(choose, result, src, options)


# The only NaN that a conversion stores.
NAN = {
    torch.float64: (torch.int64, 0x7FF8 << 48),
    torch.float32: (torch.int32, 0x7FC0 << 16),
    torch.bfloat16: (torch.int16, 0x7FC0),
    torch.float16: (torch.int16, 0x7E00),
    torch.float8_e4m3fn: (torch.uint8, 0x7F),
    torch.float8_e5m2: (torch.uint8, 0x7F),
}


def every_pattern(dtype):
    """All values of a narrow type; of a wide one those around every tie of the narrow ones,
    denormals, powers of two and random bits."""
    if dtype in FLOAT8 or dtype in (torch.int8, torch.uint8):
        return torch.arange(256).to(torch.uint8).view(dtype)
    if dtype in (torch.bfloat16, torch.float16):
        return torch.arange(1 << 16).to(torch.uint16).view(dtype)
    bits = {torch.float32: torch.int32, torch.int32: torch.int32}.get(dtype, torch.int64)
    info = torch.iinfo(bits)
    anything = torch.randint(info.min, info.max, (1 << 17,), dtype=bits).view(dtype)
    if dtype == torch.int32:
        return torch.cat([anything, torch.arange(-400, 400, dtype=dtype)])
    halves = torch.arange(1 << 16).to(torch.uint16)
    near = torch.cat([halves.view(t).to(dtype) for t in (torch.bfloat16, torch.float16)])
    near = near[near.isfinite()].sort().values.unique()
    ties = (near[1:] / 2 + near[:-1] / 2)[:, None]
    up = torch.nextafter(ties, torch.full_like(ties, math.inf))
    down = torch.nextafter(ties, torch.full_like(ties, -math.inf))
    integers = torch.arange(-1000, 1000, dtype=dtype) / 4
    limits = torch.tensor([-1.0, 1.0], dtype=dtype)[:, None] * torch.tensor(
        [2.0**31 - 128, 2.0**31 - 0.5, 2.0**31, 2.0**23 - 0.5, 2.0**52 - 0.5, math.inf, math.nan],
        dtype=dtype,
    )
    return torch.cat([x.flatten() for x in (anything, near, ties, up, down, integers, limits)])


@pytest.mark.parametrize("src_dtype", DTYPES, ids=str)
def test_kernels_convert_every_pattern(src_dtype):
    torch.manual_seed(0)
    src = every_pattern(src_dtype)
    for dtype in DTYPES:
        actual = D.reorder(src, dtype=dtype)
        assert_same_bits(actual, oracle(src, dtype=dtype), src_dtype, dtype)
        if dtype in NAN and src_dtype != dtype:
            bits, nan = NAN[dtype]
            assert (actual.view(bits)[actual.isnan()] == nan).all(), (src_dtype, dtype)


def test_kernels_of_scales_along_rows_and_columns():
    """Per channel where the channel is the row, the column, or within a block."""
    choose = random.Random(0)
    torch.manual_seed(0)
    for channels, tag in [(48, "acdb"), (64, "aBcd16b"), (40, "aBcd16b"), (19, "abcd")]:
        src = torch.randn(2, channels, 19, 23) * 10
        for shape in [(1, channels, 1, 1), (2, 1, 1, 1), (1, 1, 19, 23), tuple(src.shape), ()]:
            scale = torch.rand(shape) + 0.1
            zero_point = torch.randint(0, 200, shape, dtype=torch.int32)
            for round_before in (False, True):
                options = {
                    "dtype": choose.choice([torch.uint8, torch.int8, torch.bfloat16]),
                    "dst_scale": scale,
                    "dst_zero_point": zero_point,
                    "round_before_zero_point": round_before,
                }
                for source in (src, src.contiguous(memory_format=torch.channels_last)):
                    expected = oracle(source, tag, **options)
                    assert_same_bits(D.reorder(source, tag, **options), expected, tag, options)


def test_kernels_of_images_and_weights():
    """Few channels; blocks of 2 and 4 that the source has too; more of a dimension than a tile."""
    torch.manual_seed(0)
    image = torch.randint(0, 256, (2, 37, 45, 3), dtype=torch.uint8)
    for channels in (1, 2, 3, 4, 5):
        nhwc = image[..., :channels].permute(0, 3, 1, 2)
        for dtype in (torch.uint8, torch.bfloat16, torch.float32, torch.float64):
            for src, tag in [(nhwc, "nchw"), (nhwc.contiguous(), "nhwc"), (nhwc, "nChw16c")]:
                src = src.to(dtype)
                assert_same_bits(D.reorder(src, tag), oracle(src, tag), channels, dtype, tag)
        scaled = {"dtype": torch.float32, "scale": 1 / 255, "src_zero_point": 3}
        assert_same_bits(D.reorder(nhwc, "nchw", **scaled), oracle(nhwc, "nchw", **scaled))
    for size in [(64, 48, 1, 1), (80, 36, 3, 3), (16, 300, 7, 1)]:
        weights = torch.randn(size) * 50
        for src in (weights, weights.contiguous(memory_format=torch.channels_last)):
            for tag in ("OIhw4i16o4i", "OIhw8i16o2i", "OIhw16i16o", "Ohwi32o", "OIhw8o4i"):
                for dtype in (torch.int8, torch.bfloat16, torch.float32):
                    options = {"dtype": dtype, "dst_scale": torch.rand(size[0], 1, 1, 1) + 0.5}
                    actual = D.reorder(src, tag, **options)
                    assert_same_bits(actual, oracle(src, tag, **options), size, tag, dtype)
                    back = {"src_format": tag, "size": size}
                    plain = D.reorder(actual, "oihw", **back)
                    assert_same_bits(plain, oracle(actual, "oihw", **back), size, tag, dtype)


@pytest.mark.parametrize("width", [136, 135])  # columns that begin where cache lines do, or not
def test_kernels_with_results_larger_than_caches(width):
    torch.manual_seed(0)
    src = torch.randn(1, 64, 130, width)
    nhwc = src.contiguous(memory_format=torch.channels_last)
    for x, tag in [(src, "nhwc"), (nhwc, "nchw"), (src, "nChw16c"), (src, "nChw8c")]:
        assert_same_bits(D.reorder(x, tag), oracle(x, tag), tag)
        assert_same_bits(
            D.reorder(x.half(), tag, dtype=torch.float32), oracle(x.half().float(), tag)
        )
        wide = x.repeat(2, 1, 1, 1)
        options = {"dtype": torch.bfloat16, "scale": 3.0}
        assert_same_bits(D.reorder(wide, tag, **options), oracle(wide, tag, **options), tag)
    many = src.repeat(3, 1, 1, 1)
    other = torch.randn_like(many)
    assert_same_bits(D.reorder(many, accumulate=other, beta=0.5), many + 0.5 * other)
