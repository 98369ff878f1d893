"""The bits of reorder, as one hash for each type of source: every type of destination, several
layouts on both sides, every step. They are the same in every library and on every machine."""

import hashlib
import itertools
import math

import numpy as np
import pytest
import torch
from oracles.reorder import pack, parse
from test_reorder import DTYPES

import torch_dnnl
import torch_dnnl.functional as D

SIZE = (3, 36, 5, 18)  # none a multiple of a block of 8 or 16
LAYOUTS = (
    *(("abcd", None), ("abcd", "acdb"), ("acdb", "abcd"), ("abcd", "dcba"), ("abcd", "aBcd8b")),
    *(("aBcd16b", "abcd"), ("acdb", "aBcd16b"), ("aBcd8b", "ABcd4b2a4b")),
)
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def random_bits(count, seed):
    """uint64 from a counter (SplitMix64): they depend on no library's generator."""
    with np.errstate(over="ignore"):
        x = (np.arange(count, dtype=np.uint64) + np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def values(dtype, seed, size=SIZE):
    """Any bit patterns, NaN and infinities among them, and as many small numbers and ties."""
    random = random_bits(math.prod(size), seed)
    bits = BITS[dtype.itemsize]
    anything = torch.from_numpy(random.view(np.int64)).to(bits)
    small = torch.from_numpy((random >> np.uint64(40)).astype(np.int64) % 241 - 120)
    small = (small / 4 if dtype.is_floating_point else small).to(dtype).view(bits)
    choice = torch.from_numpy(random >> np.uint64(63) == 1)
    return torch.where(choice, anything, small).view(dtype).reshape(size)


def laid_out(x, tag):
    """As integers, which torch moves without a look at what they mean."""
    outer, inner = parse(tag)
    memory = pack(x.view(BITS[x.dtype.itemsize]), tag).view(x.dtype)
    return memory if inner else memory.permute([outer.index(dim) for dim in range(len(outer))])


def operand(seed, *size):
    """Numbers from 1/16 to 16 + 1/16, exact in float32."""
    random = random_bits(math.prod(size), seed) >> np.uint64(44)
    return torch.from_numpy((random + np.uint64(2**16)).astype(np.float32) / 2**16).reshape(size)


def steps(dst_format, device):
    """What is done besides the conversion."""
    per_channel = {"dst_scale": operand(1, 1, 36, 1, 1), "scale": 0.3, "src_zero_point": 3}
    zero_point = (operand(2, 1, 36, 1, 1) * 4).int()
    groups = {"scale": operand(3, 3, 12, 1, 6), "dst_scale": operand(4, 1, 6, 5, 1)}
    accumulate = laid_out(values(torch.bfloat16, 5), dst_format)
    for options in (
        {},
        per_channel | {"dst_zero_point": zero_point, "round_before_zero_point": True},
        groups | {"dst_zero_point": 17},
        {"accumulate": accumulate, "beta": -0.7, "scale": operand(6, *SIZE)},
    ):
        yield {
            name: value.to(device) if isinstance(value, torch.Tensor) else value
            for name, value in options.items()
        }


def reorder_by(kernel, *args, **kwargs):
    """The result, by the kernel if it supports the call; and whether it did."""
    try:
        with torch_dnnl.reorder_algorithm(kernel):
            return D.reorder(*args, **kwargs), True
    except NotImplementedError:
        return D.reorder(*args, **kwargs), False


def digest(src_dtype, device="cpu", kernel="auto"):
    """The hash of the memory of all results."""
    supported = 0
    sha256 = hashlib.sha256()
    src = values(src_dtype, seed=0)
    for src_format, dst_format in LAYOUTS:
        source = laid_out(src, src_format).to(device)
        sizes = {"src_format": src_format, "size": SIZE}
        like = dst_format or src_format
        for options, dtype in itertools.product(steps(like, device), DTYPES):
            result, ran = reorder_by(kernel, source, dst_format, **sizes, dtype=dtype, **options)
            supported += ran
            memory = result.as_strided((result.numel(),), (1,)).view(torch.uint8)
            sha256.update(memory.cpu().numpy())
    assert supported
    return sha256.hexdigest()


SHA256 = {
    torch.float64: "4277a1975f7a875b2f2a3db4bd57a97afe1added571bd577d0b0f51539595f11",
    torch.float32: "02cb2d8a99e4f63ee645509cd441809b0b73b2dcabda1e2a38c6409c71d9ad41",
    torch.bfloat16: "8144ceaaaeb2147d97911d7a5b1ade367c6790a5251052335e30fb94d39c6e28",
    torch.float16: "a541c5ff15c2f1c1a42a40051479f0bb10e450c9630bd7d1ff1207f67cd0eb7e",
    torch.float8_e4m3fn: "3c8a9266be4c5511418d5237451b160770375c6521d669a2760427624579ccff",
    torch.float8_e5m2: "cafa8c19cefee1501215b066d0ebef09dab3b251679c884a561e7c6c111848e7",
    torch.int32: "8791fcb78bb222801a1f2eb8bc4f0cabee3c0002d6800701b5c15504f9e69e08",
    torch.int8: "ed2b037d062a34ae909b5abd6062751007cf28cf2a5ab848b4e771df80229b76",
    torch.uint8: "99d016be6871ec99edbe572ff4ae73d3394caff3d1bc756f76d28b3f6267cbbb",
}


@pytest.mark.parametrize("kernel", ["auto", *torch.ops.torch_dnnl.reorder_kernels_cpu()])
@pytest.mark.parametrize("src_dtype", DTYPES, ids=str)
def test_same_bits(src_dtype, kernel):
    assert digest(src_dtype, kernel=kernel) == SHA256[src_dtype]


@pytest.mark.cuda
@pytest.mark.parametrize("src_dtype", DTYPES, ids=str)
def test_same_bits_on_cuda(src_dtype):
    assert digest(src_dtype, "cuda") == SHA256[src_dtype]
