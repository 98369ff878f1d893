"""The kernels for depthwise and grouped convolution and for few channels: random problems of all
three operators in every layout and type against float64, shapes that split into tiles, the same
bits from any number of threads."""

import random

import pytest
import torch
import torch.nn.functional as F
from random_convolutions import (
    DTYPES,
    TOLERANCE,
    check,
    random_narrow_problem,
    random_problem,
    random_wide_problem,
)
from threads import same_on_threads

import torch_dnnl
import torch_dnnl.functional as D

OPS = torch.ops.torch_dnnl


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("seed", range(5))
def test_kernels_match_float64(dtype, seed):
    choose = random.Random(seed)
    for _ in range(6):
        random_narrow_problem(choose, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_random_problems_match_float64(dtype, seed):
    choose = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(30):
        random_problem(choose, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_random_wide_problems_match_float64(dtype, seed):
    choose = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(6):
        random_wide_problem(choose, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_taps_that_never_meet(dtype):
    """One product: 1x1 kernels with strides, patches with and without gaps between and behind them,
    sizes on both sides of every block."""
    choose = random.Random(1)
    torch.manual_seed(1)
    for n, groups, ic, oc, size, kernel, strides in [
        (2, 1, 65, 70, [13, 11], [1, 1], [1, 1]),
        (1, 1, 17, 19, [11, 13], [1, 1], [2, 3]),
        (2, 3, 20, 16, [9], [1], [2]),
        (1, 1, 3, 40, [19, 34], [4, 8], [4, 8]),
        (2, 2, 5, 33, [12, 9], [2, 3], [3, 3]),
        (1, 1, 16, 16, [5, 6, 7], [2, 1, 2], [2, 2, 3]),
        (3, 1, 300, 530, [5, 9], [1, 1], [1, 1]),
        (2, 1, 33, 96, [37, 29], [1, 1], [1, 1]),
        (2, 2, 17, 40, [37, 70], [1, 1], [2, 1]),
        (1, 1, 530, 16, [30, 25], [1, 1], [1, 1]),
        (1, 1, 16, 48, [41, 53], [1, 1], [1, 1]),
        (1, 1, 1, 24, [2500], [16], [16]),
    ]:
        pads = [[0] * len(size)] * 2
        for _ in range(3):
            check(choose, dtype, (n, groups, ic, oc), size, kernel, strides, pads, [1] * len(size))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_taps_that_never_meet_in_many_blocks(dtype):
    """Products of several blocks of rows and of columns, whose depth is one chunk or several, of
    one part or several."""
    choose = random.Random(5)
    torch.manual_seed(5)
    for groups, ic, oc, size, kernel in [
        (1, 264, 530, [700], [1]),
        (1, 530, 264, [34, 33], [1, 1]),
        (2, 300, 270, [17, 16], [1, 1]),
        (1, 770, 768, [13, 25], [1, 1]),
        (1, 70, 300, [62, 61], [2, 2]),
    ]:
        for _ in range(2):
            zeros = [[0] * len(size)] * 2
            check(choose, dtype, (3, groups, ic, oc), size, kernel, kernel, zeros, [1] * len(size))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_narrow_images_of_many_channels(dtype):
    """Several rows share weights, several panels of outputs share copied inputs."""
    choose = random.Random(2)
    torch.manual_seed(2)
    for ic, oc, size, kernel, stride in [
        (150, 270, [7, 7], [3, 3], 1),
        (20, 300, [9, 5], [2, 3], 2),
        (130, 70, [3, 6, 4], [3, 2, 3], 1),
        (17, 140, [33], [5], 1),
    ]:
        rank = len(size)
        check(
            choose,
            dtype,
            (1, 1, ic, oc),
            size,
            kernel,
            [stride] * rank,
            [[1] * rank] * 2,
            [1] * rank,
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_images_of_few_channels(dtype):
    """Rows of the result share copies of the image or not, taps share one or have their own, all
    are one product or several, results are whole vectors or not, tiles have several rows."""
    choose = random.Random(3)
    torch.manual_seed(3)
    for groups, ic, oc, size, kernel, strides, pads, dilations in [
        (1, 3, 64, [45, 67], [7, 7], [2, 2], [[3, 3], [3, 3]], [1, 1]),
        (1, 3, 64, [21, 130], [3, 3], [1, 1], [[1, 1], [1, 1]], [1, 1]),
        (2, 5, 33, [30, 35], [5, 3], [4, 3], [[2, 0], [1, 4]], [2, 1]),
        (1, 2, 70, [17, 33], [3, 3], [2, 1], [[4, 3], [0, 3]], [2, 3]),
        (1, 4, 17, [19, 29], [3, 2], [1, 5], [[1, 1], [1, 1]], [1, 1]),
        (1, 15, 100, [12, 40], [6, 7], [1, 2], [[3, 3], [2, 3]], [1, 1]),
        (1, 1, 80, [900], [600], [3], [[20], [7]], [1]),
        (1, 4, 64, [700], [300], [1], [[20], [7]], [1]),
        (1, 7, 48, [5, 9, 20], [3, 3, 3], [2, 1, 1], [[1, 1, 1], [1, 0, 1]], [1, 1, 1]),
        (3, 9, 600, [4, 16], [2, 2], [1, 1], [[0, 0], [1, 1]], [1, 1]),
        (1, 7, 64, [16, 19], [13, 13], [1, 1], [[6, 5], [6, 7]], [1, 1]),
        (1, 3, 40, [11, 7], [3, 3], [1, 1], [[1, 1], [1, 1]], [1, 1]),
    ]:
        for _ in range(3):
            check(choose, dtype, (2, groups, ic, oc), size, kernel, strides, pads, dilations)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_planes(dtype):
    """Rows of one vector, of several images at once, and of several; more columns, rows, or rows of
    taps than are taken at once; strides, of which the last rows of taps meet fewer outputs; taps
    that all outputs miss; groups of several channels; pixels that lie apart, and rows so short that
    columns are taken instead."""
    choose = random.Random(4)
    torch.manual_seed(4)
    for n, groups, ic, oc, size, kernel, strides, pads, dilations in [
        (5, 6, 1, 1, [14, 14], [3, 3], [1, 1], [[1, 1], [1, 1]], [1, 1]),
        (2, 3, 1, 1, [29, 28], [7, 7], [1, 1], [[3, 3], [3, 3]], [1, 1]),
        (1, 2, 1, 1, [9, 2100], [2, 5], [1, 1], [[0, 4], [1, 0]], [1, 1]),
        (1, 3, 1, 1, [150, 60], [4, 2], [1, 1], [[2, 0], [0, 3]], [1, 1]),
        (2, 3, 1, 1, [31, 57], [5, 5], [2, 2], [[2, 2], [2, 2]], [1, 1]),
        (2, 3, 1, 1, [31, 57], [3, 3], [3, 1], [[1, 0], [0, 1]], [1, 1]),
        (2, 3, 1, 1, [31, 28], [3, 3], [1, 1], [[2, 6], [2, 6]], [2, 3]),
        (2, 3, 1, 1, [13, 30], [3, 3], [1, 1], [[9, 40], [8, 0]], [1, 1]),
        (1, 4, 1, 1, [3000], [9], [1], [[8]] * 2, [2]),
        (1, 4, 1, 1, [6, 15, 16], [3, 3, 3], [2, 1, 1], [[1, 1, 1], [2, 1, 1]], [1, 1, 1]),
        (1, 3, 1, 1, [7, 20, 30], [2, 3, 3], [1, 1, 1], [[4, 1, 1], [3, 1, 1]], [3, 1, 1]),
        (2, 5, 4, 4, [19, 29], [3, 3], [1, 1], [[1, 1], [1, 1]], [1, 1]),
        (2, 3, 5, 9, [17, 30], [3, 2], [2, 2], [[1, 0], [0, 1]], [1, 2]),
        (1, 1, 1, 15, [40, 40], [11, 3], [1, 1], [[5, 1], [5, 1]], [1, 1]),
        (1, 2, 15, 1, [40, 40], [5, 3], [1, 1], [[5, 1], [0, 1]], [1, 1]),
        (1, 1, 1, 1, [64, 64], [1, 1], [8, 8], [[0, 0], [0, 0]], [1, 1]),
        (2, 1, 3, 3, [60, 101], [3, 3], [3, 3], [[1, 2], [1, 0]], [1, 1]),
        (1, 1, 2, 3, [40, 160], [3, 5], [1, 4], [[1, 2], [0, 7]], [1, 3]),
        (1, 2, 1, 1, [50, 230], [2, 3], [1, 5], [[1, 2], [0, 1]], [1, 1]),
        (2, 1, 1, 2, [5000], [3], [3], [[1], [2]], [1]),
        (1, 1, 3, 3, [9, 5000], [1, 3], [1, 1], [[0, 0], [0, 2]], [1, 1]),
        (2, 1, 1, 2, [300, 3], [3, 3], [1, 1], [[1, 1], [2, 1]], [1, 1]),
        (2, 1, 3, 2, [1500, 8], [4, 5], [2, 3], [[1, 0], [2, 1]], [1, 1]),
        (2, 1, 40, 2, [37, 50], [3, 3], [1, 1], [[1, 1], [1, 0]], [1, 1]),
        (1, 2, 17, 1, [37, 50], [2, 4], [1, 2], [[1, 1], [1, 3]], [2, 1]),
        (1, 2, 1, 17, [37, 50], [2, 4], [1, 2], [[1, 1], [1, 3]], [2, 1]),
        (2, 1, 20, 2, [900], [1], [1], [[0], [0]], [1]),
        (1, 2, 2, 1, [3, 70, 2], [3, 3, 2], [1, 2, 1], [[1, 1, 0], [1, 1, 1]], [1, 2, 1]),
    ]:
        for _ in range(4):
            check(choose, dtype, (n, groups, ic, oc), size, kernel, strides, pads, dilations)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_axes_of_few_pixels(dtype):
    """Axes along which one tap, some or none meet the image; axes that are one with the next."""
    choose = random.Random(5)
    torch.manual_seed(5)
    for n, groups, ic, oc, size, kernel, strides, pads, dilations in [
        (2, 1, 1, 1, [700, 1], [3, 3], [1, 1], [[1, 1], [0, 1]], [1, 1]),
        (1, 3, 2, 1, [1, 1, 300], [3, 5, 3], [2, 1, 1], [[2, 2, 1], [0, 4, 1]], [1, 1, 1]),
        (1, 1, 20, 20, [40, 2], [3, 7], [1, 1], [[1, 3], [1, 3]], [1, 1]),
        (1, 1, 33, 20, [1, 1], [3, 3], [1, 1], [[1, 1], [1, 1]], [1, 1]),
        (2, 1, 18, 17, [12, 13], [3, 3], [1, 2], [[20, 18], [20, 17]], [20, 18]),
        (1, 5, 1, 1, [30, 3], [3, 3], [1, 1], [[2, 5], [2, 5]], [2, 5]),
        (1, 5, 1, 1, [30, 3], [2, 4], [3, 3], [[9, 9], [9, 9]], [1, 2]),
        (1, 1, 4, 4, [40, 1], [3, 3], [1, 1], [[1, 2], [1, 2]], [1, 2]),
        (2, 1, 3, 5, [60, 17], [1, 1], [1, 1], [[0, 0], [0, 0]], [1, 1]),
        (2, 2, 3, 5, [9, 5, 6], [1, 1, 1], [1, 1, 1], [[0] * 3] * 2, [1, 1, 1]),
        (2, 1, 3, 5, [9, 5, 6], [1, 1, 1], [1, 1, 2], [[0] * 3] * 2, [1, 1, 1]),
        (2, 1, 2, 2, [60, 17], [1, 1], [1, 1], [[0, 0], [1, 2]], [1, 1]),
        (2, 6, 1, 1, [60, 20], [5, 1], [1, 1], [[3, 0], [1, 0]], [2, 1]),
        (2, 1, 16, 20, [60, 20], [5, 1], [1, 1], [[3, 0], [1, 0]], [2, 1]),
        (1, 2, 4, 4, [11, 12, 5], [1, 3, 1], [1, 1, 1], [[0, 1, 0]] * 2, [1, 1, 1]),
        (1, 2, 4, 4, [31, 3, 5], [3, 1, 1], [1, 1, 1], [[1, 0, 0]] * 2, [1, 1, 1]),
        (1, 2, 4, 4, [31, 3, 5], [3, 1, 1], [2, 1, 1], [[1, 0, 0]] * 2, [1, 1, 1]),
    ]:
        for _ in range(3):
            check(choose, dtype, (n, groups, ic, oc), size, kernel, strides, pads, dilations)


def test_residuals_of_axes_that_are_one():
    """Axes that are one in src and in the result may not be in a residual."""
    torch.manual_seed(0)
    x, w, bias = torch.randn(2, 3, 40, 17), torch.randn(5, 3, 3, 1), torch.randn(5)
    dense = torch.randn(2, 5, 40, 17)
    residuals = [dense, dense.mT.contiguous().mT, dense[:, :, :1].expand(dense.shape)]
    for residual in residuals:
        results = [
            OPS.convolution_fused(
                *(x, w, bias, [1, 1], [1, 0], [1, 0], [1, 1], "none", 1, "NCX", "OIX", algorithm),
                *(residual, "silu"),
                keep_preactivation=True,
            )
            for algorithm in ("auto", "reference")
        ]
        for actual, expected in zip(*results):
            torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [(9, 33), (90, 5)], ids=str)
@pytest.mark.parametrize("value", [torch.inf, torch.nan])
def test_planes_keep_infinities_where_they_are(size, value):
    """Zeros around an image, and behind a row of a vector, are not multiplied by them."""
    attributes = ([1, 1], [1, 1], [1, 1], [1, 1], "none", 3, "NCX", "OIX")
    x, w, g = torch.randn(2, 3, *size), torch.randn(3, 1, 3, 3), torch.randn(2, 3, *size)
    infinite = w.clone()
    infinite[1, 0, 0, 2] = value
    gradient, image = g.clone(), x.clone()
    gradient[0, 2, 3, -1] = image[1, 0, 4, 0] = value
    for name, args in [
        ("convolution", (x, infinite, None)),
        ("convolution", (image, w, None)),
        ("convolution_backward_data", (g, infinite, size)),
        ("convolution_backward_data", (gradient, w, size)),
        ("convolution_backward_weights", (gradient, x, [3, 3])),
        ("convolution_backward_weights", (g, image, [3, 3])),
    ]:
        actual = getattr(OPS, name)(*args, *attributes)
        with torch_dnnl.conv_algorithm("reference"):
            expected = getattr(OPS, name)(*args, *attributes)
        assert not expected.isfinite().all() and expected.isfinite().any()
        torch.testing.assert_close(actual, expected, equal_nan=True, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_kernels_split_into_tiles(dtype):
    """Rows longer than a tile, taps further apart than a tile, more taps than pixels."""
    choose = random.Random(0)
    for groups, size, kernel, stride, pad, dilation in [
        (16, [5000], [4], 1, [[3], [0]], 1),
        (20, [1500], [5], 3, [[7], [9]], 7),
        (5, [2300], [2], 1, [[700], [0]], 700),
        (9, [13, 11], [31, 29], 1, [[15, 14], [15, 14]], 1),
        (130, [9, 300], [3, 3], 2, [[1, 0], [0, 1]], 1),
        (12, [6, 40, 50], [3, 3, 3], 1, [[1, 1, 1], [1, 1, 1]], 1),
    ]:
        rank = len(size)
        strides, dilations = [stride] * rank, [dilation] * rank
        check(choose, dtype, (1, groups, 1, 1), size, kernel, strides, pad, dilations)


@pytest.mark.parametrize("channels_last", [False, True])
def test_kernels_and_threads_change_no_bit(channels_last):
    def results():
        torch.manual_seed(0)
        for groups, ic, size, kernel, attributes in [
            (40, 1, (37, 41), (5, 5), ([1], [2], [2], [1])),
            (72, 1, (37, 41), (3, 3), ([2], [1], [0], [1])),
            (10, 4, (37, 41), (3, 3), ([1], [1], [1], [1])),
            (3, 1, (200, 29), (3, 3), ([1], [1], [1], [1])),
            (1, 90, (37, 41), (1, 1), ([1], [0], [0], [1])),
            (2, 40, (37, 41), (2, 2), ([2], [0], [0], [1])),
            (1, 290, (7, 7), (3, 3), ([1], [1], [1], [1])),
            (3, 6, (37, 41), (5, 5), ([2], [2], [2], [1])),
        ]:
            attributes = ([value * 2 for value in attributes]) + ["none", groups, "NCX", "OIX"]
            x = torch.randn(2, groups * ic, *size)
            w = torch.randn(groups * ic, ic, *kernel)
            if channels_last:
                x = x.contiguous(memory_format=torch.channels_last)
            y = OPS.convolution(x, w, None, *attributes)
            yield y
            yield OPS.convolution_backward_data(y, w, size, *attributes)
            yield OPS.convolution_backward_weights(y, x, kernel, *attributes)

    same_on_threads(results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("channels_last", [False, True])
def test_few_channels_on_one_side(dtype, channels_last):
    """Kernels for 1 to 4 channels: of the source, and so of its gradient, or of the result."""
    choose = random.Random(str((dtype, channels_last)))
    torch.manual_seed(0)
    for trial in range(12):
        few, many = choose.randint(1, 4), choose.choice([16, 17, 40, 70])
        groups = choose.choice([1, 1, 2])
        ic, oc = (few, many) if trial % 2 else (many, few)
        kernel = [choose.choice([1, 3, 4]), choose.choice([2, 3, 7])]
        size = [choose.randint(5, 9), choose.choice([8, 21, 40, 600])]
        options = {
            "stride": [choose.randint(1, 3), choose.choice([1, 1, 2, kernel[1]])],
            "padding": [0, choose.randint(0, kernel[1])],
            "dilation": [1, 1 if size[1] == 8 else choose.randint(1, 2)],
            "groups": groups,
        }
        src = torch.randn(2, groups * ic, *size).to(dtype)
        weight = torch.randn(groups * oc, ic, *kernel).to(dtype)
        bias = torch.randn(groups * oc).to(dtype) if choose.random() < 0.5 else None
        if channels_last:
            src = src.contiguous(memory_format=torch.channels_last)
        src.requires_grad_()
        exact_src = src.detach().double().requires_grad_()
        result = D.conv2d(src, weight, bias, **options)
        exact = F.conv2d(
            exact_src, weight.double(), None if bias is None else bias.double(), **options
        )
        upstream = torch.randn_like(result)
        (grad,) = torch.autograd.grad(result, src, upstream)
        (exact_grad,) = torch.autograd.grad(exact, exact_src, upstream.double())
        # One rounding of the type after sums in float32.
        bar = {torch.float32: 2e-6, torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
        for ours, reference in ((result, exact), (grad, exact_grad)):
            error = (ours.double() - reference).norm() / reference.norm()
            assert error < bar, (trial, src.shape, weight.shape, options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_few_channels_of_the_result(dtype):
    """Gradients that are computed with the two images exchanged; pads within the kernel and beyond
    it, which cut pixels off then."""
    choose = random.Random(3)
    torch.manual_seed(3)
    for rank in (1, 2, 2, 2, 3):
        for oc in (1, 3, 12):
            kernel = [choose.randint(1, [0, 9, 5, 3][rank]) for _ in range(rank)]
            dilations = [choose.choice([1, 1, 2]) for _ in range(rank)]
            pads = [[choose.randint(0, 6) for _ in range(rank)] for _ in range(2)]
            size = [
                max(choose.randint(1, [0, 200, 40, 12][rank]), (k - 1) * d + 1)
                for k, d in zip(kernel, dilations)
            ]
            channels = (choose.randint(1, 2), 1, choose.choice([16, 33, 70]), oc)
            check(choose, dtype, channels, size, kernel, [1] * rank, pads, dilations)


def test_few_channels_in_any_number_of_threads():
    src, weight = torch.randn(2, 24, 5, 1100), torch.randn(24, 3, 1, 7)
    same_on_threads(
        lambda: [
            OPS.convolution_backward_data(
                src, weight, (5, 1106), data_format="NCX", weights_format="OIX"
            )
        ]
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_vectors_of_channels_in_place(dtype: torch.dtype) -> None:
    """Channels-last images of whole vectors of channels, of vectors that overlap, and of so many
    that pixels are pages apart, whose edges are met by some of the taps only."""
    choose = random.Random(0)
    torch.manual_seed(0)
    for channels in (16, 28, 48, 80, 108, 240, 1024):
        for _ in range(6):
            kernel = [choose.randint(1, 5), choose.randint(1, 9)]
            stride, pad, dilation = (
                [choose.randint(low, 3) for _ in range(2)] for low in (1, 0, 1)
            )
            size = [
                choose.randint(max(1, (k - 1) * d + 1 - 2 * p), 20)
                for k, d, p in zip(kernel, dilation, pad)
            ]
            src = torch.randn(2, channels, *size, dtype=dtype)
            weights = torch.randn(channels, 1, *kernel, dtype=dtype)
            arguments = {"stride": stride, "padding": pad, "dilation": dilation, "groups": channels}
            exact_inputs = [t.double().requires_grad_() for t in (src, weights)]
            exact = F.conv2d(*exact_inputs, **arguments)
            grad = torch.randn(exact.shape, dtype=dtype)
            exact_grads = torch.autograd.grad(exact, exact_inputs, grad.double())
            inputs = [src.contiguous(memory_format=torch.channels_last), weights]
            ours = D.conv2d(*(t.requires_grad_() for t in inputs), **arguments)
            grad = grad.contiguous(memory_format=torch.channels_last)
            ours_grads = torch.autograd.grad(ours, inputs, grad)
            for got, expected in zip((ours, *ours_grads), (exact, *exact_grads)):
                error = (got.double() - expected).norm() / expected.norm().clamp(min=1e-9)
                assert error <= TOLERANCE[dtype], (channels, kernel, stride, pad, dilation, size)


def test_results_that_exceed_the_caches() -> None:
    """What is stored past the caches is there when the call ends."""
    torch.manual_seed(0)
    channels, options = 48, {"stride": 2, "padding": 1, "groups": 48}
    weights = torch.randn(channels, 1, 3, 3)
    src = torch.randn(2, channels, 310, 301).contiguous(memory_format=torch.channels_last)
    assert src.nbytes > 32 << 20
    for attributes in (options, options | {"stride": 1}):
        inputs = (src.detach().requires_grad_(), weights)
        ours, theirs = D.conv2d(*inputs, **attributes), F.conv2d(*inputs, **attributes)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
        grad = torch.randn_like(ours)
        (ours,) = torch.autograd.grad(ours, inputs[0], grad)
        (theirs,) = torch.autograd.grad(theirs, inputs[0], grad)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [(7, 9), (40, 33)], ids=str)
@pytest.mark.parametrize("channels_last", [False, True])
def test_depthwise_kernels_leave_pads_out(dtype, size, channels_last):
    """Infinite taps and gradients make no NaN of the pixels outside the image."""
    src = torch.randn(2, 20, *size).to(dtype).abs() + 1
    if channels_last:
        src = src.contiguous(memory_format=torch.channels_last)
    for stride in (1, 2):
        attributes = ([stride] * 2, [3] * 2, [3] * 2, [1] * 2, "none", 20, "NCX", "OIX")
        weights = torch.ones(20, 1, 7, 7, dtype=dtype)
        weights[:, :, 0, 0] = torch.inf
        y = OPS.convolution(src, weights, None, *attributes)
        before = -(-3 // stride)  # outputs that the first tap meets outside the image
        assert y[:, :, before:, before:].isinf().all()
        assert y[:, :, :before].isfinite().all() and y[..., :before].isfinite().all()
        grad = torch.full_like(y, torch.inf)
        grads = OPS.convolution_backward_weights(grad, src, (7, 7), *attributes)
        assert (grads == torch.inf).all()
