"""Random convolutions: all three operators in every layout and type against float64."""

import math
import random

import torch
from oracles import conv as oracle
from torch import Tensor

import torch_dnnl  # noqa: F401

OPS = torch.ops.torch_dnnl
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# Bounds of the error's norm over the result's. float32 is summed in float32; the narrower types are
# too, and then rounded once to 8 or 11 bits.
TOLERANCE = {
    torch.float64: 1e-13,
    torch.float32: 2e-5,
    torch.bfloat16: 2**-8 + 2e-5,
    torch.float16: 2**-11 + 2e-5,
}


def random_tensor(choose: random.Random, shape: list[int], dtype: torch.dtype) -> Tensor:
    """Random values in random strides: dense in any order of dimensions, cut out of something
    larger, or expanded."""
    values = torch.randn(shape).to(dtype)
    layout = choose.randrange(5)
    if layout == 1 and len(shape) in (4, 5):
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        return values.contiguous(memory_format=formats[len(shape)])
    if layout == 2:
        order = choose.sample(range(len(shape)), len(shape))
        return (
            values.permute(order).contiguous().permute([order.index(d) for d in range(len(order))])
        )
    if layout == 3:
        wide = torch.full([n + choose.randint(0, 3) for n in shape], torch.nan, dtype=dtype)
        return wide[tuple(slice(m - n, m) for m, n in zip(wide.shape, shape))].copy_(values)
    if layout == 4 and choose.random() < 0.3:
        return values.narrow(choose.randrange(len(shape)), 0, 1).expand(shape)
    return values


def check(
    choose: random.Random,
    dtype: torch.dtype,
    channels: tuple[int, int, int, int],  # batch, groups, of src in a group, of dst in a group
    size: list[int],
    kernel: list[int],
    strides: list[int],
    pads: list[list[int]],
    dilations: list[int],
    algorithm: str = "auto",
) -> float:
    """All three operators in one random pair of formats; returns the largest error. A kernel that
    is named is left out where it does not support the problem."""
    out = [
        (i + b + e - (k - 1) * d - 1) // s + 1
        for i, b, e, k, d, s in zip(size, *pads, kernel, dilations, strides)
    ]
    n, groups, ic, oc = channels
    nxc, xio = choose.random() < 0.5, choose.random() < 0.5
    formats = ("NXC" if nxc else "NCX", "XIO" if xio else "OIX")
    attributes = (strides, *pads, dilations, "none", groups, *formats)
    ic_all, oc_all = groups * ic, groups * oc
    x = random_tensor(choose, [n, *size, ic_all] if nxc else [n, ic_all, *size], dtype)
    g = random_tensor(choose, [n, *out, oc_all] if nxc else [n, oc_all, *out], dtype)
    w = random_tensor(choose, [*kernel, ic, oc_all] if xio else [oc_all, ic, *kernel], dtype)
    bias = choose.choice([None, random_tensor(choose, [oc_all], dtype)])
    worst = 0.0
    for name, args in {
        "convolution": (x, w, bias),
        "convolution_backward_data": (g, w, size),
        "convolution_backward_weights": (g, x, kernel),
    }.items():
        wide = [a.double() if isinstance(a, Tensor) else a for a in args]
        expected = getattr(oracle, name)(*wide, *attributes)
        torch.full(expected.shape, torch.nan, dtype=dtype)  # memory that is not 0, if it is reused
        try:
            actual = getattr(OPS, name)(*args, *attributes, algorithm).double()
        except NotImplementedError:
            assert algorithm != "auto"
            continue
        error = (actual - expected).norm() / expected.norm().clamp(min=1e-30)
        assert error <= TOLERANCE[dtype], (name, dtype, x.shape, x.stride(), w.shape, attributes)
        worst = max(worst, error.item())
    return worst


def random_problem(choose: random.Random, dtype: torch.dtype, algorithm: str = "auto") -> float:
    """Any rank, groups, channels, strides, dilations and pads."""
    rank = choose.choice([1, 2, 2, 3])
    groups, ic, oc = choose.choice([1, 1, 1, 2, 5]), choose.randint(1, 70), choose.randint(1, 70)
    kernel = [choose.randint(1, [0, 7, 4, 3][rank]) for _ in range(rank)]
    strides = [choose.choice([1, 1, 1, 2, 3]) for _ in range(rank)]
    dilations = [choose.choice([1, 1, 2, 3]) for _ in range(rank)]
    pads = [[choose.choice([0, 0, 1, 2, 4]) for _ in range(rank)] for _ in range(2)]
    size = [
        max(choose.randint(1, [0, 60, 14, 6][rank]), (k - 1) * d + 1 - b - e)
        for k, d, b, e in zip(kernel, dilations, *pads)
    ]
    channels = (choose.randint(1, 3), groups, ic, oc)
    return check(choose, dtype, channels, size, kernel, strides, pads, dilations, algorithm)


def random_narrow_problem(
    choose: random.Random, dtype: torch.dtype, algorithm: str = "auto"
) -> float:
    """Groups of few channels, most of them of one."""
    rank = choose.choice([1, 2, 2, 3])
    ic, oc = choose.choice([(1, 1), (1, 1), (1, 1), (1, 2), (1, 5), (2, 2), (4, 4), (3, 5), (8, 8)])
    kernel = [choose.randint(1, [0, 9, 5, 3][rank]) for _ in range(rank)]
    strides = [choose.choice([1, 1, 2, 3, 4]) for _ in range(rank)]
    dilations = [choose.choice([1, 1, 2, 3]) for _ in range(rank)]
    pads = [[choose.randint(0, 5) for _ in range(rank)] for _ in range(2)]
    size = [
        max(choose.randint(1, [0, 90, 20, 8][rank]), (k - 1) * d + 1 - b - e)
        for k, d, b, e in zip(kernel, dilations, *pads)
    ]
    channels = (choose.randint(1, 3), choose.choice([1, 2, 3, 5, 8, 16, 19, 33, 70]), ic, oc)
    return check(choose, dtype, channels, size, kernel, strides, pads, dilations, algorithm)


def random_wide_problem(
    choose: random.Random, dtype: torch.dtype, algorithm: str = "auto"
) -> float:
    """Up to several hundred channels and a few thousand pixels, which fill many blocks of any
    kernel; of patches and pointwise products more than of others."""
    rank = choose.choice([1, 2, 2, 2, 3])
    kernel = [choose.choice([1, 1, 2, 3]) for _ in range(rank)]
    is_patches = choose.random() < 0.4
    strides = kernel if is_patches else [choose.choice([1, 1, 2]) for _ in range(rank)]
    dilations = [1 if is_patches else choose.choice([1, 1, 2]) for _ in range(rank)]
    pads = [[0 if is_patches else choose.randint(0, 2) for _ in range(rank)] for _ in range(2)]
    taps = math.prod(kernel)
    groups = choose.choice([1, 1, 1, 1, 2, 4])
    ic, oc = (round(2 ** choose.uniform(3, 9.5)) // groups + 1 for _ in range(2))
    pixels = min(6000, 2**27 // (ic * oc * groups * taps) + 10)
    side = [round((pixels * choose.uniform(0.3, 1)) ** (1 / rank)) for _ in range(rank)]
    size = [s * m + k * d for s, m, k, d in zip(strides, side, kernel, dilations)]
    channels = (choose.randint(1, 2), groups, ic, oc)
    return check(choose, dtype, channels, size, kernel, strides, pads, dilations, algorithm)
