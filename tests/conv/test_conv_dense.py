"""Convolution with many channels: on CUDA, matrix products on tensor cores. Each pass in every
type and layout against float64, in problems that choose each tile and end inside it, with steps,
gaps and pads of every kind; offsets of more than 32 bits; what TF32 rounds.

With a GPU these run there, else on the kernels that are loaded (see test_cuda_on_host.py).
"""

import os

import numpy as np
import pytest
import torch
from oracles import conv as oracle
from oracles.conv import ACTIVATIONS
from torch import Tensor

import torch_dnnl.functional as D

OPS = torch.ops.torch_dnnl
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ON_CUDA_KERNELS = DEVICE == "cuda" or "TORCH_DNNL_LIBRARY" in os.environ
# One rounding of the result, relative to it.
ROUNDING = {
    torch.float64: 2**-53,
    torch.float32: 2**-24,
    torch.bfloat16: 2**-8,
    torch.float16: 2**-11,
}
# What sums lose, relative to the root of the mean square of the results.
SUMMATION = {dtype: 1e-12 if dtype == torch.float64 else 2e-5 for dtype in ROUNDING}
DTYPES = pytest.mark.parametrize("dtype", ROUNDING, ids=lambda d: str(d).removeprefix("torch."))

# batch, groups, channels of src and of dst in a group, size, kernel, strides, pads at both ends,
# dilations.
PROBLEMS = {
    "aligned": (2, 1, 32, 64, [9, 8], [3, 3], [1, 1], [[1, 1], [1, 1]], [1, 1]),
    "pointwise": (3, 1, 40, 72, [7, 5], [1, 1], [1, 1], [[0, 0], [0, 0]], [1, 1]),
    "ends-in-tiles": (2, 1, 88, 136, [5, 7], [2, 3], [1, 1], [[1, 0], [0, 2]], [1, 1]),
    "unaligned-channels": (2, 1, 21, 67, [6, 7], [3, 2], [1, 1], [[0, 1], [1, 1]], [1, 1]),
    "unaligned-groups": (2, 3, 12, 34, [6, 5], [3, 3], [2, 1], [[1, 1], [1, 1]], [1, 1]),
    "groups": (1, 4, 16, 32, [6, 9], [3, 3], [1, 1], [[1, 1], [1, 1]], [1, 1]),
    "line": (2, 1, 24, 40, [67], [5], [1], [[3], [0]], [1]),
    "causal-dilated-line": (1, 1, 16, 48, [90], [2], [1], [[37], [0]], [37]),
    "volume": (1, 1, 24, 32, [4, 5, 6], [3, 2, 3], [1, 2, 1], [[1, 0, 2], [0, 1, 1]], [1, 1, 2]),
    "stride-2": (2, 1, 32, 40, [9, 10], [3, 3], [2, 2], [[1, 1], [0, 1]], [1, 1]),
    "residues-of-unequal-size": (1, 1, 16, 32, [11, 13], [4, 3], [3, 4], [[2, 1], [1, 0]], [1, 1]),
    "residues-without-taps": (1, 2, 16, 32, [11, 9], [2, 1], [4, 3], [[0, 0], [0, 0]], [1, 1]),
    "strides-and-dilations": (1, 1, 16, 32, [23, 30], [3, 4], [4, 6], [[1, 5]] * 2, [6, 4]),
    "stride-beyond-the-image": (2, 1, 16, 32, [3, 2], [3, 2], [5, 7], [[1, 1], [1, 1]], [1, 1]),
    "patches": (1, 1, 24, 32, [12, 8], [4, 4], [4, 4], [[0, 0], [0, 0]], [1, 1]),
    "pads-beyond-the-kernel": (1, 1, 16, 32, [3, 4], [2, 2], [1, 1], [[5, 0], [0, 6]], [1, 2]),
    "few-pixels": (1, 1, 256, 72, [5, 4], [3, 3], [1, 1], [[1, 1], [1, 1]], [1, 1]),
    "few-pixels-split-groups": (1, 2, 128, 88, [6, 5], [3, 3], [2, 2], [[1, 1], [0, 1]], [1, 1]),
    "split-sums": (2, 1, 16, 64, [29, 31], [3, 1], [1, 1], [[1, 0], [1, 0]], [1, 1]),
}  # fmt: skip


def tensors(problem, dtype: torch.dtype, data: str, kernels: str) -> tuple[list[Tensor], tuple]:
    """src, weights, bias and the gradient of dst, and the operators' attributes."""
    n, groups, ic, oc, size, kernel, strides, pads, dilations = problem
    out = [
        (i + b + e - (k - 1) * d - 1) // s + 1
        for i, b, e, k, d, s in zip(size, *pads, kernel, dilations, strides)
    ]
    ic_all, oc_all = groups * ic, groups * oc
    nxc = data == "NXC"
    shapes = [
        [n, *size, ic_all] if nxc else [n, ic_all, *size],
        [*kernel, ic, oc_all] if kernels == "XIO" else [oc_all, ic, *kernel],
        [oc_all],
        [n, *out, oc_all] if nxc else [n, oc_all, *out],
    ]
    values = [torch.randn(shape).to(dtype).to(DEVICE) for shape in shapes]
    if data == "channels_last":  # in memory as NXC
        for i in (0, 3):
            values[i] = values[i].movedim(1, -1).contiguous().movedim(-1, 1)
    attributes = (strides, *pads, dilations, "none", groups, "NXC" if nxc else "NCX", kernels)
    return values, attributes


def calls(values: list[Tensor], attributes) -> dict[str, tuple]:
    """The arguments of each pass."""
    src, weights, bias, grad = values
    first = 1 if attributes[6] == "NXC" else 2
    size = list(src.shape[first : first + src.dim() - 2])
    first = 0 if attributes[7] == "XIO" else 2
    kernel = list(weights.shape[first : first + src.dim() - 2])
    return {
        "convolution": (src, weights, bias),
        "convolution_backward_data": (grad, weights, size),
        "convolution_backward_weights": (grad, src, kernel),
    }


def assert_rounded_once(actual: Tensor, expected: Tensor, *context) -> None:
    """Element by element."""
    dtype = actual.dtype
    error = (actual.cpu().double() - expected).abs()
    scale = expected.square().mean().sqrt()
    allowed = ROUNDING[dtype] * expected.abs() + SUMMATION[dtype] * scale
    if dtype == torch.float16:  # subnormal results
        allowed += 2**-25
    assert (error <= 1.01 * allowed).all(), ((error / allowed).max().item(), *context)


def check(values: list[Tensor], attributes, *context, operators=None) -> None:
    for name, args in calls(values, attributes).items():
        if operators is not None and name not in operators:
            continue
        wide = [a.cpu().double() if isinstance(a, Tensor) else a for a in args]
        expected = getattr(oracle, name)(*wide, *attributes)
        # Winograd's algorithm, which a CPU may choose, loses more bits.
        actual = getattr(OPS, name)(*args, *attributes, "direct")
        assert_rounded_once(actual, expected, name, *context)


@DTYPES
@pytest.mark.parametrize("name", PROBLEMS)
def test_dense_matches_float64(name, dtype):
    for data in ("NXC", "channels_last", "NCX"):
        for kernels in ("OIX", "XIO"):
            check(*tensors(PROBLEMS[name], dtype, data, kernels), data, kernels)


# Problems large enough that a larger tile has less to do, and no larger: see dense_run.h.
POINT = ([1, 1], [1, 1], [[0, 0], [0, 0]], [1, 1])
LARGE = {
    "forward-128x128": ("convolution", (1, 1, 24, 120, [73, 120], *POINT)),
    "forward-128x64-of-float32": ("convolution", (1, 1, 24, 136, [73, 120], *POINT)),
    "forward-256x64": ("convolution", (1, 1, 16, 56, [131, 131], *POINT)),
    "data-128x128": ("convolution_backward_data", (1, 1, 120, 24, [73, 120], *POINT)),
    "data-256x64": ("convolution_backward_data", (1, 1, 56, 16, [131, 131], *POINT)),
    "weights-128x128": (
        "convolution_backward_weights",
        (1, 1, 232, 1032, [5, 7], [3, 3], [1, 1], [[1, 1], [1, 1]], [1, 1]),
    ),
    "weights-128x64-of-float32": (
        "convolution_backward_weights",
        (1, 1, 344, 56, [5, 7], [7, 7], [1, 1], [[3, 3], [3, 3]], [1, 1]),
    ),
    "weights-256x64": (
        "convolution_backward_weights",
        (1, 1, 352, 56, [5, 7], [7, 7], [1, 1], [[3, 3], [3, 3]], [1, 1]),
    ),
}


@DTYPES
@pytest.mark.parametrize("name", LARGE)
def test_dense_in_large_tiles(name, dtype):
    operator, problem = LARGE[name]
    for data, kernels in (("NXC", "OIX"), ("NCX", "XIO")):
        values, attributes = tensors(problem, dtype, data, kernels)
        check(values, attributes, data, operators=[operator])


@DTYPES
def test_dense_with_long_sums(dtype):
    """More stages than fit in shared memory, forward and in a split of the weights gradient."""
    deep = (1, 1, 200, 32, [3, 3], [3, 3], [1, 1], [[1, 1], [1, 1]], [1, 1])
    wide = (1, 1, 16, 32, [150, 331], [1, 1], [1, 1], [[0, 0], [0, 0]], [1, 1])
    check(*tensors(deep, dtype, "NXC", "OIX"), "deep")
    values, attributes = tensors(wide, dtype, "NXC", "OIX")
    check(values, attributes, "wide", operators=["convolution_backward_weights"])
    args = calls(values, attributes)["convolution_backward_weights"]
    first, again = (OPS.convolution_backward_weights(*args, *attributes) for _ in range(2))
    assert torch.equal(first, again)


@DTYPES
def test_dense_of_views(dtype):
    """Channels cut out of more, at multiples of 16 bytes and not; every second pixel; expanded
    images and weights; something else between images."""
    problem = (2, 1, 32, 40, [6, 7], [3, 3], [1, 1], [[1, 1], [1, 1]], [1, 1])
    for offset in (0, 8, 1):
        values, attributes = tensors(problem, dtype, "NXC", "OIX")
        for i in (0, 3):
            x = values[i]
            wide = torch.full([3, 7, 20, 64], torch.nan, dtype=dtype, device=DEVICE)
            values[i] = wide[1:, 1:, 1:15:2, offset : offset + x.shape[-1]].copy_(x)
        wide = torch.full([40, 32, 4, 5], torch.nan, dtype=dtype, device=DEVICE)
        values[1] = wide[:, :, :3, offset % 2 : offset % 2 + 3].copy_(values[1])
        values[2] = values[2][:1].expand(40)
        check(values, attributes, offset)
    values, attributes = tensors(problem, dtype, "NXC", "XIO")
    values[0] = values[0][:1, :, :1].expand(2, 6, 7, 32)
    values[1] = values[1][:1].expand(3, 3, 32, 40)
    values[3] = values[3][..., :1].expand(2, 6, 7, 40)
    check(values, attributes, "expanded")


@DTYPES
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_dense_endings(activation, dtype):
    """Bias, residual, activation and what it is applied to, in 16-byte and in single elements, of
    sums that are split and not."""
    f = ACTIVATIONS[activation]
    cases = [(32, 72, "NXC"), (32, 35, "NXC"), (32, 40, "NCX"), (208, 40, "NXC"), (208, 35, "NCX")]
    for ic, oc, data in cases:
        problem = (2, 1, ic, oc, [5, 9], [3, 1], [1, 1], [[1, 0], [1, 0]], [1, 1])
        (src, weights, bias, residual), attributes = tensors(problem, dtype, data, "OIX")
        residuals = {
            "dense": residual,
            "absent": None,
            "expanded": residual[:1, :1].expand(residual.shape),
            "reversed": residual.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
        }
        wide = (src.cpu().double(), weights.cpu().double(), bias.cpu().double())
        sums = oracle.convolution(*wide, *attributes)
        for name, r in residuals.items():
            result, u = OPS.convolution_fused(
                *(src, weights, bias, *attributes, "direct", r, activation), keep_preactivation=True
            )
            expected = sums if r is None else sums + r.cpu().double()
            assert_rounded_once(u, expected, name, data, oc)
            # Functions as steep as 1.1 of sums with errors relative to their own scale.
            error = (result.cpu().double() - f(expected)).abs()
            scale = 1.1 * SUMMATION[dtype] * expected.square().mean().sqrt()
            allowed = ROUNDING[dtype] * f(expected).abs() + scale
            assert (error <= 1.01 * allowed + 1e-7 * (dtype != torch.float64)).all(), (name, data)


def far_apart(shape: list[int], dtype: torch.dtype, steps: list[int]) -> Tensor:
    """Zeros with the given strides; on the host, memory that nobody touches does not exist."""
    elements = 1 + sum((n - 1) * step for n, step in zip(shape, steps))
    if DEVICE == "cuda":
        memory = torch.zeros(elements, dtype=dtype, device=DEVICE)
    else:
        memory = torch.from_numpy(np.zeros(elements, np.int16)).view(dtype)
    return memory.as_strided(shape, steps)


def test_dense_with_64_bit_offsets():
    """More than 2^31 elements between images, rows and channels."""
    far = 2**31 + 64
    problem = (2, 1, 32, 40, [3, 5], [3, 3], [1, 1], [[1, 1], [1, 1]], [1, 1])
    values, attributes = tensors(problem, torch.bfloat16, "NXC", "OIX")
    for steps in ([far, 5 * 40, 40, 1], [40, far // 4, 80, 1], [15 * 40, 5, 1, far // 16 + 15]):
        moved = list(values)
        for i in (0, 3):
            moved[i] = far_apart(list(values[i].shape), torch.bfloat16, steps).copy_(values[i])
        check(moved, attributes, steps)


OPERATORS = ["convolution", "convolution_backward_data", "convolution_backward_weights"]
TF32 = [(PROBLEMS[name], OPERATORS) for name in ("stride-2", "volume", "split-sums")]
TF32 += [(problem, [name]) for label, (name, problem) in LARGE.items() if "128x128" in label]


@pytest.mark.parametrize("data", ["NXC", "NCX"])
def test_tf32_rounds_factors_to_10_bits(data):
    """And no more: products of factors that have no more bits are exact."""
    torch.backends.cudnn.allow_tf32 = True
    for problem, operators in TF32:
        values, attributes = tensors(problem, torch.float32, data, "OIX")
        errors = []
        for name in operators:
            args = calls(values, attributes)[name]
            wide = [a.cpu().double() if isinstance(a, Tensor) else a for a in args]
            expected = getattr(oracle, name)(*wide, *attributes)
            actual = getattr(OPS, name)(*args, *attributes, "direct").cpu().double()
            errors.append(((actual - expected).norm() / expected.norm()).item())
        assert max(errors) < 2**-11
        assert min(errors) > (2**-14 if ON_CUDA_KERNELS else 0)
        check([(v * 4).round() / 4 for v in values], attributes, operators=operators)


def test_algorithm_reference_is_the_definition():
    """The dense kernels round sums in another order than the reference."""
    src, weights = torch.randn(2, 64, 9, 9, device=DEVICE), torch.randn(64, 64, 3, 3, device=DEVICE)
    ours, exact = (
        D.convolution(src, weights, data_format="NCX", weights_format="OIX", algorithm=algorithm)
        for algorithm in ("direct", "reference")
    )
    assert not torch.equal(ours, exact)
    torch.testing.assert_close(ours, exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("groups", [1, 4, 16])
def test_dense_matches_zeros_for_an_empty_batch(groups):
    x = torch.randn(0, 16, 5, 5, device=DEVICE)
    weights = torch.randn(16, 16 // groups, 3, 3, device=DEVICE, requires_grad=True)
    D.conv2d(x, weights, padding=1, groups=groups).sum().backward()
    assert torch.equal(weights.grad, torch.zeros_like(weights))


@pytest.mark.parametrize("stride", [7, 2**30, 2**31 - 1])
def test_dense_matches_with_huge_strides(stride):
    """One output, whose gradient reaches one pixel."""
    x = torch.randn(1, 64, 5, 5, device=DEVICE, requires_grad=True)
    weights = torch.randn(64, 64, 1, 1, device=DEVICE)
    y = D.conv2d(x, weights, stride=stride)
    grad = torch.randn_like(y)
    (ours,) = torch.autograd.grad(y, x, grad)
    expected = torch.zeros_like(x, dtype=torch.float64)
    expected[:, :, 0, 0] = grad.double()[:, :, 0, 0] @ weights.double()[:, :, 0, 0]
    assert torch.allclose(ours.double(), expected, rtol=1e-5, atol=1e-5)
