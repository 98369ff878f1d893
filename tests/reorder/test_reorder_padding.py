"""Blocked tags with padding, and from such tags, on CUDA: all boxes of a small problem, or of one
that transposes, are one launch, to the bit. On the CPU, TORCH_DNNL_LIBRARY may put the CUDA kernels
in the place of the CPU's (tests/cuda/test_cuda_on_host.py)."""

import ctypes
import os

import pytest
import torch
from oracles.reorder import reorder as oracle
from test_reorder import DTYPES, assert_same_bits
from test_reorder_packs import DEVICES, QUANTIZED, check, misaligned, values
from torch.profiler import ProfilerActivity, profile

import torch_dnnl
import torch_dnnl.functional as D

LIBRARY = os.environ.get("TORCH_DNNL_LIBRARY")
COUNT = getattr(ctypes.CDLL(LIBRARY) if LIBRARY else None, "cuda_on_host_launches", None)
if COUNT is not None:
    COUNT.restype = ctypes.c_int64
# The CPU's own kernels are not launched.
COUNTED = pytest.mark.parametrize(
    "device", [*(["cpu"] if COUNT else []), pytest.param("cuda", marks=pytest.mark.cuda)]
)


def launches(device, *arguments, **options):
    """How many kernels a reorder launches."""

    def call():
        return D.reorder(*arguments, **options)

    if device == "cuda":
        call()  # loads the kernels
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            call()
            torch.cuda.synchronize()
        return sum("reorder_cuda" in event.name for event in profiled.events())
    before = COUNT()
    call()
    return COUNT() - before


# The size, the tag, how many launches.
PADDED = {
    "channels": ((2, 20, 5, 7), "aBcd16b", 1),
    "fewer than a block": ((2, 3, 9, 11), "aBcd16b", 1),
    "one more than a block": ((1, 17, 4, 4), "aBcd16b", 1),
    "pixels that are not multiples of packs": ((1, 37, 3, 3), "aBcd8b", 1),
    "one pixel": ((3, 21, 1, 1), "aBcd16b", 1),
    "a line": ((21,), "A16a", 1),
    "weights": ((20, 18, 2, 2), "ABcd16b16a", 1),
    "weights of fewer than a block": ((3, 5, 3, 3), "ABcd16a16b", 1),
    "blocks of blocks": ((32, 18, 2, 2), "ABcd4b16a4b", 1),
    "blocks of blocks, both odd": ((33, 18, 2, 2), "ABcd4b16a4b", 2),  # six boxes
}
CASES = pytest.mark.parametrize(("size", "tag", "expected"), PADDED.values(), ids=PADDED)
SIZES = pytest.mark.parametrize(("size", "tag"), [case[:2] for case in PADDED.values()], ids=PADDED)
# Of each size, and of mixed ones.
MOVED = (torch.uint8, torch.bfloat16, torch.float32, torch.float64)
CONVERTED = ((torch.float32, torch.bfloat16), (torch.uint8, torch.float32), (torch.float64,) * 2)


@COUNTED
@CASES
@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_padding_takes_no_launch_of_its_own(device, size, tag, expected, dtype):
    plain = values(size, dtype).to(device)
    nxc = plain.movedim(1, -1).contiguous().movedim(-1, 1) if plain.dim() > 1 else plain
    blocked = D.reorder(plain, tag)
    back = {"dst_format": "abcd"[: len(size)], "src_format": tag, "size": size}
    for to in (dtype, torch.bfloat16):
        scale = None if to == dtype else 0.5
        for src in (plain, nxc):
            assert launches(device, src, tag, dtype=to, scale=scale) == expected, (src.stride(), to)
        assert launches(device, blocked, dtype=to, **back) == 1


@COUNTED
def test_plain_tags_are_one_launch(device):
    src = values((2, 20, 5, 7), torch.float32).to(device)
    for tag in ("abcd", "acdb", "dcba"):
        for dtype in (torch.float32, torch.int8):
            assert launches(device, src, tag, dtype=dtype) == 1


@DEVICES
@SIZES
@pytest.mark.parametrize("src_dtype", DTYPES, ids=str)
def test_padding_in_every_type(device, size, tag, src_dtype):
    src = values(size, src_dtype)
    for dtype in DTYPES:
        check(device, src, tag, dtype=dtype)
        check(device, src, tag, dtype=dtype, scale=0.7, dst_zero_point=3)


@DEVICES
@SIZES
@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_padding_of_views(device, size, tag, dtype):
    """Sources whose memory ends with their last element, and with odd strides and offsets."""
    src = values(size, dtype)
    last = src.dim() - 1
    wide = values((*size[:last], 3 * size[last] + 1), dtype)
    sources = (
        *(src.movedim(0, -1).contiguous().movedim(-1, 0), misaligned(src, 1)),
        *(wide[..., 1::3], src.narrow(0, 0, 1).expand(size)),
        *(src.movedim(min(1, last), -1).contiguous().movedim(-1, min(1, last)),),
    )
    for source in sources:
        for to in (dtype, torch.bfloat16, torch.int8):
            check(device, source, tag, dtype=to)


@DEVICES
@SIZES
def test_padding_of_quantized_tensors(device, size, tag):
    """Scales and zero points of channels, where the padding has none, and sums."""
    ones = [1] * (len(size) - 1)
    for dim in range(min(2, len(size))):
        shape = (*ones[:dim], size[dim], *ones[dim:])
        for src_dtype in (torch.float32, torch.bfloat16, torch.uint8):
            src = values(size, src_dtype)
            for dtype in (*QUANTIZED, torch.bfloat16):
                options = {
                    "dtype": dtype,
                    "dst_scale": torch.rand(shape) + 0.1,
                    "scale": torch.rand(shape) + 0.1,
                    "dst_zero_point": torch.randint(-9, 9, shape, dtype=torch.int32),
                }
                check(device, src, tag, **options)
                sums = oracle(values(size, dtype), tag)
                check(device, src, tag, accumulate=sums, beta=0.3, **options)


@DEVICES
@SIZES
def test_from_padded_tags(device, size, tag):
    """Also into tags with other padding."""
    for dtype in MOVED:
        blocked = oracle(values(size, dtype), tag)
        options = {"src_format": tag, "size": size}
        plain = "abcd"[: len(size)]
        last = plain[-1]
        for other in (plain, plain[::-1], tag, f"{plain[:-1]}{last.upper()}8{last}"):
            for to in (dtype, torch.float16):
                check(device, blocked, other, dtype=to, **options)


@DEVICES
@pytest.mark.parametrize(
    "size", [(1, 20, 30, 31), (2, 35, 16, 16), (40, 50, 4, 4), (4, 18, 7, 7)], ids=str
)
def test_padding_of_larger_tensors(device, size):
    """Several tiles along each axis, some of nothing but padding. On the CPU, what has more than
    64 KB is too large for one launch."""
    for src_dtype, dtype in [(t, t) for t in MOVED] + [(torch.float32, torch.bfloat16)]:
        src = values(size, src_dtype)
        nhwc = src.contiguous(memory_format=torch.channels_last)
        for tag in ("aBcd16b", "aBcd8b", "ABcd4b16a4b", "ABcd16b16a"):
            check(device, src, tag, dtype=dtype)
            check(device, nhwc, tag, dtype=dtype)
            blocked = oracle(src, tag)
            check(device, blocked, "abcd", dtype=dtype, src_format=tag, size=size)


@DEVICES
def test_padding_agrees_with_the_reference(device):
    src = values((20, 18, 5, 3), torch.float32).to(device)
    for tag in ("aBcd16b", "ABcd16b16a", "ABcd4b16a4b"):
        for dtype in (torch.float32, torch.bfloat16, torch.int8):
            options = {"dtype": dtype, "dst_scale": torch.rand(20, 1, 1, 1, device=device) + 0.1}
            with torch_dnnl.reorder_algorithm("reference"):
                expected = D.reorder(src, tag, **options)
            assert_same_bits(D.reorder(src, tag, **options), expected, tag, dtype)
