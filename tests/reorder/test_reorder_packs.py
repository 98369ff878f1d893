"""Cases for each of reorder's CUDA kernels, to the bit: packs of neighbouring elements and tiles,
whole and with odd ends, aligned and not. They run on the CPU, where TORCH_DNNL_LIBRARY may put the
CUDA kernels in the place of the CPU's (tests/cuda/test_cuda_on_host.py), and on a GPU."""

import numpy as np
import pytest
import torch
from oracles.reorder import FLOAT8, INTEGERS
from oracles.reorder import fake_reorder as fake_oracle
from oracles.reorder import reorder as oracle
from test_reorder import DTYPES, assert_same_bits

import torch_dnnl.functional as D

NARROW = (torch.bfloat16, torch.float16, *FLOAT8, torch.int8, torch.uint8)
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
QUANTIZED = (torch.int8, torch.uint8, torch.int32, *FLOAT8)


def values(size, dtype):
    """All kinds of them, out of every range too."""
    if dtype in INTEGERS:
        info = torch.iinfo(dtype)
        return torch.randint(info.min, info.max, size, dtype=torch.int64).to(dtype)
    x = torch.randn(size) * 100
    for special in (float("nan"), float("inf"), -float("inf"), -0.0, 2.5, 1e9):
        x = torch.where(torch.rand(size) < 0.03, special, x)
    return x.to(dtype)


def check(device, src, dst_format=None, **options):
    """`src` is moved with its strides and its offset into a whole number of vectors."""
    memory = src.untyped_storage().nbytes() // src.element_size()
    whole = torch.as_strided(src, (memory,), (1,), 0).to(device)
    there = whole.as_strided(src.size(), src.stride(), src.storage_offset())
    on_device = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    result = D.reorder(there, dst_format, **on_device).cpu()
    expected = oracle(src, dst_format, **options)
    assert_same_bits(result, expected, src.dtype, src.size(), src.stride(), dst_format, options)


def misaligned(src, elements):
    """The same values, a few elements into their memory."""
    memory = torch.zeros(src.numel() + elements, dtype=src.dtype)
    view = memory[elements:].view(src.shape)
    return view.copy_(src)


@DEVICES
def test_packs_of_every_type(device):
    torch.manual_seed(0)
    for src_dtype in DTYPES:
        for dtype in DTYPES:
            for count in (1, 15, 16, 1027, 20_011):  # more than a block's
                check(device, values((count,), src_dtype), dtype=dtype)


@DEVICES
@pytest.mark.parametrize("offset", [1, 2, 3, 4, 8])
def test_packs_of_any_alignment(device, offset):
    torch.manual_seed(0)
    for src_dtype in (torch.float32, torch.bfloat16, torch.uint8, torch.float64):
        src = misaligned(values((3, 45), src_dtype), offset)
        for dtype in (src_dtype, torch.float32, torch.uint8, torch.float16):
            check(device, src, dtype=dtype)
            check(device, src[:, :32], dtype=dtype)  # rows apart
            check(device, src[:, ::3], dtype=dtype)  # elements apart


@DEVICES
@pytest.mark.parametrize("tag", ["abcd", "acdb"])
def test_packs_with_scales(device, tag):
    """Per tensor, channel and group, where the channels are rows and where they are columns."""
    torch.manual_seed(0)
    size = (2, 24, 3, 8)
    for src_dtype, dtype in [
        *((torch.float32, t) for t in QUANTIZED),
        *((t, torch.float32) for t in NARROW),
        (torch.bfloat16, torch.int8),
        (torch.uint8, torch.int8),
        (torch.float64, torch.uint8),
    ]:
        src = oracle(values(size, src_dtype), tag)
        for shape in [(1, 24, 1, 1), (2, 3, 1, 4), size, ()]:
            for before in (False, True):
                options = {
                    "dtype": dtype,
                    "dst_scale": torch.rand(shape) + 0.1,
                    "scale": (torch.rand(shape) + 0.1).half(),
                    "dst_zero_point": torch.randint(0, 9, shape, dtype=torch.int64),
                    "src_zero_point": torch.randint(0, 9, shape, dtype=torch.int32),
                    "round_before_zero_point": before,
                }
                check(device, src, **options)
        other = oracle(values(size, torch.bfloat16), tag)
        check(device, src, dtype=dtype, accumulate=other, beta=0.3, scale=1.7)


@DEVICES
@pytest.mark.parametrize("size", [(5, 3, 64), (2, 3, 2, 560), (3, 9008), (1, 20_003)], ids=str)
def test_packs_of_rows(device, size):
    """Each row has a scale of its own, also such that quotients leave the range of numbers."""
    torch.manual_seed(0)
    shape = (*size[:2], *[1] * (len(size) - 2)) if size[0] * size[1] < 20 else (size[0], 1)
    scale = torch.tensor([0.3, -0.7, 1e-30, 1e30, 1e-42, 0.0, 2.0, 3.3, 1e-5, -1e19])
    scale = scale.repeat(4)[: shape[0] * shape[1]].reshape(shape)
    types = [t for t in DTYPES if t != torch.float64]
    for src_dtype in types:
        src = values(size, src_dtype)
        for dtype in types:
            check(device, src, dtype=dtype, dst_scale=scale)
            check(device, src, dtype=dtype, scale=scale.double(), src_zero_point=scale.bfloat16())
            zero_point = torch.randint(-9, 9, shape)
            options = {"dst_zero_point": zero_point, "round_before_zero_point": True}
            check(device, src, dtype=dtype, dst_scale=0.37, **options)
            for summed in (src_dtype, dtype, torch.bfloat16):
                sums = {"accumulate": values(size, summed), "beta": 0.3}
                check(device, src, dtype=dtype, dst_scale=-1.7, scale=scale, **sums)


@DEVICES
@pytest.mark.parametrize(
    "size",
    [
        *((1, 64, 32, 32), (2, 37, 9, 11), (3, 3, 13, 16), (1, 130, 1, 17)),
        *((2, 4, 1, 1), (1, 16, 40, 5), (5, 1, 6, 7), (1, 200, 8, 24)),
    ],
    ids=str,
)
def test_tiles_of_images(device, size):
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.bfloat16, torch.uint8, torch.float64):
        src = values(size, dtype)
        nhwc = src.contiguous(memory_format=torch.channels_last)
        for tag in ("acdb", "dcba", "aBcd16b", "aBcd8b", "ABcd4b16a4b"):
            check(device, src, tag)
        check(device, nhwc, "abcd")
        blocked = oracle(src, "aBcd16b")
        check(device, blocked, "abcd", src_format="aBcd16b", size=size)
        check(device, blocked, "acdb", src_format="aBcd16b", size=size)


@DEVICES
def test_tiles_of_every_type(device):
    torch.manual_seed(0)
    size = (1, 48, 5, 20)
    channel = {"dst_scale": torch.rand(1, 48, 1, 1) + 0.1, "scale": torch.rand(1, 3, 5, 1)}
    for src_dtype in DTYPES:
        src = values(size, src_dtype)
        for dtype in DTYPES:
            check(device, src, "acdb", dtype=dtype)
            check(device, src, "acdb", dtype=dtype, **channel)
            check(device, src, "aBcd16b", dtype=dtype, dst_zero_point=3, **channel)


@DEVICES
@pytest.mark.parametrize("size", [(64, 48, 3, 3), (33, 18, 3, 5), (64, 32, 1, 1), (8, 3, 7, 7)])
def test_tiles_of_weights(device, size):
    torch.manual_seed(0)
    src = torch.randn(size) * 50
    scale = {"dst_scale": torch.rand(size[0], 1, 1, 1) + 0.5}
    for x in (src, src.contiguous(memory_format=torch.channels_last)):
        for tag in ("OIhw4i16o4i", "OIhw8i16o2i", "OIhw16i16o", "Ohwi32o", "hwio"):
            for dtype in (torch.int8, torch.bfloat16, torch.float32):
                check(device, x, tag, dtype=dtype, **scale)


@DEVICES
def test_tiles_of_views(device):
    """Sources that are slices, expanded, permuted and misaligned; sums of another layout."""
    torch.manual_seed(0)
    for dtype in (torch.float32, torch.float16, torch.uint8):
        src = values((3, 40, 33, 10), dtype)
        check(device, src[:, ::2, 1:, 3:], "acdb")
        check(device, src[1:, :, ::3, ::2], "bcda")
        check(device, src.permute(3, 1, 0, 2), "abcd")
        check(device, src[:1].expand(4, -1, -1, -1), "acdb")
        check(device, src[:, :1].expand(-1, 24, -1, -1), "acdb")
        check(device, misaligned(src, 1), "acdb")
        check(device, misaligned(src, 1), "aBcd16b", dtype=torch.bfloat16)
        check(device, src, "acdb", dtype=torch.float32, accumulate=values(src.shape, dtype))
    deep = values((2, 3, 4, 2, 3, 2, 3, 2, 2), torch.float32)
    check(device, deep.permute(8, 1, 0, 3, 2, 5, 4, 7, 6), "abcdefghi")
    check(device, deep, "ihgfedcba")


@pytest.mark.parametrize("columns", [70, 72])
def test_tiles_and_packs_beyond_4_gigabytes(columns):
    """Offsets in 64 bits: rows further apart than 2^31 elements and 2^32 bytes."""
    step, rows = 2**31 + 72, 3
    memory = torch.from_numpy(np.zeros((rows - 1) * step + columns, dtype=np.uint8))
    view = memory.as_strided((rows, columns), (step, 1))
    view.copy_(torch.randint(0, 256, (rows, columns), dtype=torch.uint8))
    plain = view.clone()
    for tag in ("ab", "ba"):
        for dtype in (torch.uint8, torch.float32):
            assert_same_bits(D.reorder(view, tag, dtype=dtype), oracle(plain, tag, dtype=dtype))


def test_packs_of_fake_quantization_beyond_4_gigabytes():
    step, rows, columns = 2**31 + 72, 2, 72
    memory = torch.from_numpy(np.zeros((rows - 1) * step + columns, np.int16))
    view = memory.view(torch.bfloat16).as_strided((rows, columns), (step, 1))
    near = values((rows, columns), torch.bfloat16).requires_grad_()
    view.copy_(near.detach())
    options = {"dtype": torch.int8, "dst_scale": 0.7, "dst_zero_point": 3}
    result = D.fake_reorder(near, **options)
    assert_same_bits(D.fake_reorder(view, **options), result.detach())
    expected = torch.autograd.grad(result, near, near.detach(), retain_graph=True)[0]
    assert_same_bits(torch.autograd.grad(result, near, view)[0], expected)


@DEVICES
def test_packs_of_fake_quantization(device):
    torch.manual_seed(0)
    for size in [(1027,), (2, 24, 3, 8), (3, 5, 7), (4, 16)]:
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
            src = values(size, dtype)
            scale = torch.rand((1, size[1], *[1] * (len(size) - 2)) if len(size) > 1 else ()) + 0.3
            for source in (src, misaligned(src, 1)):
                for quantized in QUANTIZED:
                    options = {"dtype": quantized, "dst_scale": scale, "dst_zero_point": 3}
                    there = {**options, "dst_scale": scale.to(device)}
                    result = D.fake_reorder(source.to(device), **there).cpu()
                    expected = fake_oracle(source, **options)
                    assert_same_bits(result, expected, size, dtype, quantized)
                x = source.to(device).detach().requires_grad_()
                learned = scale.to(device).requires_grad_()
                result = D.fake_reorder(x, dtype=torch.int8, dst_scale=learned)
                result.nan_to_num(0).sum().backward()
                wide = torch.promote_types(dtype, torch.float32)
                rounded = (source.to(wide) / scale.to(wide)).round()
                inside = (rounded >= -128) & (rounded <= 127)
                assert torch.equal(x.grad.cpu(), inside.to(dtype)), (size, dtype)
                assert learned.grad.shape == scale.shape
