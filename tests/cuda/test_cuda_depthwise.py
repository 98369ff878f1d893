"""Depthwise and grouped convolution on CUDA: problems that reach every kernel, in each layout, pass
and type, against float64. They run on a GPU, over the CUDA kernels on the CPU (see cuda_on_host),
and over the CPU's own kernels."""

import numpy as np
import pytest
import torch
from op_db import FLOATING
from oracles import conv as oracle

OPS = torch.ops.torch_dnnl
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
# Bounds of the error's norm over the result's: sums in float32, rounded once.
TOLERANCE = {
    torch.float64: 1e-13,
    torch.float32: 2e-6,
    torch.bfloat16: 2**-8 + 2e-6,
    torch.float16: 2**-11 + 2e-6,
}
# Batch, groups, channels of the source and of the result in a group; then sizes, kernel, strides,
# pads at both ends, dilations.
PROBLEMS = {
    "3x3": (2, 8, 1, 1, (9, 21), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "5x5": (2, 12, 1, 1, (7, 18), (5, 5), (1, 1), ((2, 2), (2, 2)), (1, 1)),
    "7x7": (3, 36, 1, 1, (7, 7), (7, 7), (1, 1), ((3, 3), (3, 3)), (1, 1)),
    "unaligned-3x3": (2, 19, 1, 1, (9, 21), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "unaligned-strided": (2, 7, 1, 1, (8, 19), (3, 3), (2, 2), ((1, 0), (0, 1)), (1, 1)),
    "1x1": (1, 4, 1, 1, (5, 6), (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1)),
    "2x6": (2, 8, 1, 1, (6, 13), (2, 6), (1, 1), ((0, 3), (1, 1)), (1, 1)),
    "11x9": (1, 8, 1, 1, (12, 17), (11, 9), (1, 1), ((5, 4), (5, 4)), (1, 1)),
    "31x29": (1, 20, 1, 1, (13, 11), (31, 29), (1, 1), ((15, 14), (15, 14)), (1, 1)),
    "more-pad-than-kernel": (1, 4, 1, 1, (3, 4), (3, 3), (1, 1), ((5, 4), (3, 6)), (1, 1)),
    "strided-3x3": (2, 8, 1, 1, (12, 23), (3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1)),
    "strided-3x3-even-pad": (2, 8, 1, 1, (12, 22), (3, 3), (2, 2), ((0, 0), (1, 1)), (1, 1)),
    "strided-5x5": (2, 12, 1, 1, (11, 14), (5, 5), (2, 2), ((2, 2), (2, 2)), (1, 1)),
    "strided-7x7": (1, 4, 1, 1, (11, 15), (7, 7), (2, 2), ((3, 3), (2, 3)), (1, 1)),
    "strided-2x8": (1, 4, 1, 1, (8, 30), (2, 8), (1, 2), ((0, 3), (0, 2)), (1, 1)),
    "stride-3": (2, 8, 1, 1, (10, 20), (3, 5), (3, 3), ((1, 2), (1, 1)), (1, 1)),
    "decoder-16x16": (1, 3, 1, 1, (37, 41), (16, 16), (8, 8), ((4, 4), (4, 4)), (1, 1)),
    "strides-that-share-divisors": (1, 4, 1, 1, (20, 30), (3, 5), (4, 4), ((2, 9), (2, 9)), (2, 6)),
    "taps-that-miss": (1, 8, 1, 1, (9, 16), (1, 1), (2, 4), ((0, 0), (0, 0)), (1, 1)),
    "dilated": (2, 8, 1, 1, (14, 33), (3, 3), (1, 1), ((2, 4), (2, 3)), (2, 3)),
    "dilated-strided": (1, 8, 1, 1, (14, 33), (3, 3), (2, 2), ((2, 4), (2, 3)), (2, 3)),
    "causal": (2, 8, 1, 1, (300,), (4,), (1,), ((3,), (0,)), (1,)),
    "causal-dilated": (1, 4, 1, 1, (700,), (3,), (1,), ((512,), (0,)), (256,)),
    "planes": (1, 12, 1, 1, (5, 6, 9), (3, 3, 3), (1, 1, 1), ((1, 1, 1), (1, 1, 1)), (1, 1, 1)),
    "planes-strided": (
        1,
        4,
        1,
        1,
        (6, 7, 9),
        (3, 2, 3),
        (2, 2, 2),
        ((1, 0, 1), (0, 1, 1)),
        (1, 1, 1),
    ),
    "multiplier": (2, 5, 1, 3, (8, 11), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "multiplier-strided": (1, 4, 1, 2, (8, 11), (3, 2), (2, 2), ((1, 1), (0, 1)), (1, 1)),
    "one-channel": (2, 1, 1, 6, (8, 11), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "large-planes": (1, 4, 1, 1, (37, 150), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "many-small-planes": (5, 36, 1, 1, (4, 3), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "many-channels": (1, 300, 1, 1, (3, 4), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "long-rows": (2, 4, 1, 1, (3, 700), (1, 3), (1, 1), ((0, 1), (0, 1)), (1, 1)),
    "grouped-3x3": (2, 3, 4, 4, (7, 19), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "grouped-3x5": (1, 2, 8, 4, (7, 19), (3, 5), (1, 1), ((1, 2), (1, 2)), (1, 1)),
    "grouped-dilated": (1, 2, 4, 8, (9, 37), (3, 3), (1, 1), ((1, 3), (1, 3)), (1, 3)),
    "grouped-strided": (2, 3, 4, 4, (8, 20), (3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1)),
    "grouped-strided-even-pad": (1, 3, 4, 4, (9, 18), (4, 4), (2, 2), ((0, 2), (1, 1)), (1, 1)),
    "grouped-stride-3": (1, 3, 4, 4, (9, 18), (3, 3), (3, 3), ((1, 1), (1, 1)), (1, 1)),
    "grouped-few": (2, 5, 2, 3, (7, 11), (3, 2), (1, 1), ((1, 1), (1, 0)), (1, 1)),
    "grouped-planes": (
        1,
        2,
        4,
        4,
        (3, 5, 9),
        (3, 3, 3),
        (1, 1, 1),
        ((1, 1, 1), (1, 1, 1)),
        (1, 1, 1),
    ),
    "grouped-pairs": (2, 20, 2, 2, (9, 17), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "grouped-eights": (1, 5, 8, 8, (7, 10), (3, 5), (2, 1), ((1, 2), (1, 2)), (1, 1)),
    "grouped-16": (1, 3, 16, 16, (5, 9), (3, 3), (1, 1), ((1, 2), (1, 2)), (1, 2)),
    "one-group": (1, 1, 32, 32, (5, 9), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    # Tiles of several vectors, and what moves their beginnings off them.
    "wide-3x3": (2, 3, 1, 1, (22, 72), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "wide-3x3-unpadded": (2, 3, 1, 1, (22, 72), (3, 3), (1, 1), ((0, 0), (0, 0)), (1, 1)),
    "wide-strided-3x3": (1, 4, 1, 1, (38, 144), (3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1)),
    "wide-strided-5x5": (1, 4, 1, 1, (38, 144), (5, 5), (2, 2), ((2, 2), (2, 2)), (1, 1)),
    "wide-to-narrower-vectors": (1, 4, 1, 1, (20, 56), (3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1)),
    "wide-1x9": (1, 4, 1, 1, (5, 88), (1, 9), (1, 1), ((0, 4), (0, 4)), (1, 1)),
    "dilated-rows": (2, 4, 1, 1, (14, 33), (3, 3), (1, 2), ((2, 1), (2, 1)), (2, 1)),
    "far-rows": (1, 32, 1, 1, (45, 70), (3, 3), (1, 1), ((20, 1), (20, 1)), (20, 1)),
    # Rows that meet otherwise than columns do.
    "5x3": (1, 5, 1, 1, (11, 20), (5, 3), (1, 1), ((2, 1), (2, 1)), (1, 1)),
    "strided-columns": (1, 5, 1, 1, (11, 20), (3, 3), (1, 2), ((1, 1), (1, 1)), (1, 1)),
    "strided-rows": (1, 5, 1, 1, (11, 20), (3, 3), (2, 1), ((1, 1), (1, 1)), (1, 1)),
    "strided-rows-of-3": (1, 5, 1, 1, (56, 56), (1, 3), (3, 1), ((0, 0), (0, 0)), (1, 1)),
    "pads-of-small-planes": (2, 9, 1, 1, (7, 6), (2, 2), (1, 1), ((4, 3), (3, 3)), (1, 1)),
    "strided-other-pads": (1, 5, 1, 1, (11, 20), (3, 3), (2, 2), ((0, 1), (1, 1)), (1, 1)),
    "planes-of-few-groups": (3, 5, 1, 2, (6, 5), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "first-layer": (2, 1, 3, 16, (9, 23), (7, 7), (2, 2), ((3, 3), (3, 3)), (1, 1)),
}
# Channels innermost, rows innermost, and rows that begin at any element.
LAYOUTS = ("nxc", "ncx", "cut")


def image(shape, layout, dtype, device):
    """Of sizes (N, C, spatial...)."""
    values = torch.randn(shape, dtype=torch.float64).to(dtype).to(device)
    if layout == "nxc":
        return values.movedim(1, -1).contiguous().movedim(-1, 1)
    if layout == "cut":
        wide = torch.full([size + 1 for size in shape], torch.nan, dtype=dtype, device=device)
        return wide[tuple(slice(1, None) for _ in shape)].copy_(values)
    return values


def assert_close(actual, expected):
    actual, dtype = actual.cpu().double(), actual.dtype
    error = (actual - expected).norm() / expected.norm().clamp(min=1e-30)
    assert error <= TOLERANCE[dtype], error


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("device", DEVICES)
def test_problem_matches_oracle(device, name, layout, dtype):
    n, groups, ic, oc, size, kernel, strides, pads, dilations = PROBLEMS[name]
    attributes = (strides, *pads, dilations, "none", groups, "NCX", "OIX")
    x = image((n, groups * ic, *size), layout, dtype, device)
    w = torch.randn(groups * oc, ic, *kernel, dtype=torch.float64).to(dtype).to(device)
    bias = torch.randn(len(w), dtype=torch.float64).to(dtype).to(device)
    y = OPS.convolution(x, w, bias, *attributes)
    g = image(y.shape, layout, dtype, device)
    exact_x, exact_w, exact_g, exact_bias = (t.cpu().double() for t in (x, w, g, bias))
    assert_close(y, oracle.convolution(exact_x, exact_w, exact_bias, *attributes))
    data = OPS.convolution_backward_data(g, w, size, *attributes)
    assert_close(data, oracle.convolution_backward_data(exact_g, exact_w, size, *attributes))
    weights = OPS.convolution_backward_weights(g, x, kernel, *attributes)
    expected = oracle.convolution_backward_weights(exact_g, exact_x, kernel, *attributes)
    assert_close(weights, expected)


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
@pytest.mark.parametrize("channels", [8, 7])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("device", DEVICES)
def test_epilogue_matches_oracle(device, layout, channels, dtype):
    """Bias, residual and activation, of whole vectors of outputs and of cut ones, in the weights'
    other format."""
    kernel, size = (3, 3), (6, 12)
    attributes = ((1, 1), (1, 1), (1, 1), (1, 1), "none", channels, "NCX", "XIO")
    x, residual = (image((2, channels, *size), layout, dtype, device) for _ in range(2))
    w = torch.randn(*kernel, 1, channels, dtype=torch.float64).to(dtype).to(device)
    bias = torch.randn(2 * channels, dtype=torch.float64).to(dtype).to(device)[::2]
    exact = [t.cpu().double() for t in (x, w, bias)]
    u = oracle.convolution(*exact, *attributes) + residual.cpu().double()
    for activation, function in {
        "gelu": torch.nn.functional.gelu,
        "relu": torch.nn.functional.relu,
        "hardswish": torch.nn.functional.hardswish,
        None: lambda u: u,
    }.items():
        result, before = OPS.convolution_fused(
            *(x, w, bias, *attributes, "auto", residual, activation), keep_preactivation=True
        )
        assert_close(result, function(u))
        assert_close(before, u)


@pytest.mark.parametrize("kernel", [(1, 3), (1, 5), (1, 1), (1, 8), (3, 1)], ids=str)
@pytest.mark.parametrize("channels", [8, 7])
@pytest.mark.parametrize("layout", ["nxc", "ncx"])
@pytest.mark.parametrize("device", DEVICES)
def test_infinite_gradient_reaches_what_it_meets_any_layout(device, layout, channels, kernel):
    """Odd pads of rows of stride 2 are computed as even ones, with a tap that does not exist."""
    size, pads, dilations = (7, 21), (0, 1), (2 if kernel[0] > 1 else 1, 1)
    attributes = ((1, 2), pads, pads, dilations, "none", channels, "NCX", "OIX")
    w = torch.ones(channels, 1, *kernel, device=device)
    y = OPS.convolution(image((1, channels, *size), layout, w.dtype, device), w, None, *attributes)
    g = torch.zeros_like(y)
    g[..., 3] = torch.inf
    algorithm = "depthwise" if device == "cuda" else "auto"  # the CPU has no kernel of that name
    actual = OPS.convolution_backward_data(g, w, size, *attributes, algorithm)
    expected = OPS.convolution_backward_data(g, w, size, *attributes, "reference")
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("layout", ["nxc", "ncx"])
@pytest.mark.parametrize("device", DEVICES)
def test_images_far_apart_matches_oracle(device, layout):
    """Images that are further apart than 2^31 elements; between them is memory never touched."""
    n, channels, size, kernel, apart = 2, 4, (5, 6), (3, 3), 2**31 + 8
    attributes = ((1, 1), (1, 1), (1, 1), (1, 1), "none", channels, "NCX", "OIX")
    if device == "cuda":
        memory = torch.empty(apart + 256, dtype=torch.float16, device=device)
    else:
        memory = torch.from_numpy(np.zeros(apart + 256, dtype=np.float16))
    dense = image((1, channels, *size), layout, torch.float16, device)
    far = memory.as_strided((n, channels, *size), (apart, *dense.stride()[1:]))
    values = torch.randn(far.shape).half()
    far.copy_(values)
    w = torch.randn(channels, 1, *kernel).half().to(device)
    exact, exact_w = values.double(), w.cpu().double()
    expected = oracle.convolution(exact, exact_w, None, *attributes)
    assert_close(OPS.convolution(far, w, None, *attributes), expected)
    fused, _ = OPS.convolution_fused(far, w, None, *attributes, "auto", far)
    assert_close(fused, expected + exact)
    assert_close(
        OPS.convolution_backward_data(far, w, size, *attributes),
        oracle.convolution_backward_data(exact, exact_w, size, *attributes),
    )
    assert_close(
        OPS.convolution_backward_weights(far, far, kernel, *attributes),
        oracle.convolution_backward_weights(exact, exact, kernel, *attributes),
    )


@pytest.mark.parametrize("size", [(600_000,), (301, 290)], ids=str)
@pytest.mark.parametrize("layout", ["nxc", "ncx"])
@pytest.mark.parametrize("device", DEVICES)
def test_many_runs_matches_oracle(device, layout, size):
    """Blocks take several runs of outputs, slices several rows."""
    channels, kernel, ones = 4, (3,) * len(size), (1,) * len(size)
    pads = (2,) * len(size), (0,) * len(size)
    attributes = (ones, *pads, ones, "none", channels, "NCX", "OIX")
    x, g = (image((1, channels, *size), layout, torch.float32, device) for _ in range(2))
    w = torch.randn(channels, 1, *kernel, device=device)
    exact_x, exact_w, exact_g = (t.cpu().double() for t in (x, w, g))
    expected = oracle.convolution(exact_x, exact_w, None, *attributes)
    assert_close(OPS.convolution(x, w, None, *attributes), expected)
    actual = OPS.convolution_backward_weights(g, x, kernel, *attributes)
    expected = oracle.convolution_backward_weights(exact_g, exact_x, kernel, *attributes)
    assert_close(actual, expected)
