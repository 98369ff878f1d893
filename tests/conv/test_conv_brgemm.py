"""The implicit GEMM of 16-bit floats, forced: a CPU without instructions for them multiplies one by
one, the same operands in the same order."""

import random

import pytest
import torch
import torch.nn.functional as F
from random_convolutions import TOLERANCE, check, random_problem, random_wide_problem
from threads import same_on_threads

OPS = torch.ops.torch_dnnl
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
every_type = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@every_type
@pytest.mark.parametrize("seed", range(3))
def test_random_problems_match_float64(dtype, seed):
    choose = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(25):
        random_problem(choose, dtype, "brgemm")


@every_type
def test_random_wide_problems_match_float64(dtype):
    """Several panels, chunks of the depth, and tasks."""
    choose = random.Random(1)
    torch.manual_seed(1)
    for _ in range(4):
        random_wide_problem(choose, dtype, "brgemm")


@every_type
def test_groups_that_are_merged(dtype):
    choose = random.Random(2)
    torch.manual_seed(2)
    for groups, ic, oc in [(16, 1, 1), (12, 2, 3), (8, 3, 4), (6, 4, 8), (5, 9, 2)]:
        pads = [[1, 0], [1, 2]]
        check(choose, dtype, (2, groups, ic, oc), [7, 70], [3, 3], [1, 2], pads, [1, 1], "brgemm")


@every_type
def test_rows_that_are_multiplied_together(dtype):
    """AMX multiplies 16 pixels by 32 channels: short rows with the pixels between them, long rows
    in parts, weights in parts, and taps whose rows meet only padding."""
    choose = random.Random(4)
    torch.manual_seed(4)
    for channels, size, kernel, pads, strides, dilations in [
        ((1, 1, 32, 64), [9, 7], [3, 3], [[1, 1], [1, 1]], [1, 1], [1, 1]),
        ((2, 1, 64, 80), [20, 14], [3, 3], [[1, 1], [1, 1]], [1, 1], [1, 1]),
        ((1, 1, 160, 70), [11, 17], [3, 3], [[0, 1], [0, 1]], [1, 1], [1, 1]),
        ((1, 1, 32, 30), [5, 140], [3, 3], [[1, 1], [1, 1]], [2, 1], [1, 1]),
        ((1, 2, 24, 20), [6, 33], [2, 3], [[4, 0], [4, 2]], [1, 2], [1, 1]),
        ((1, 1, 64, 17), [13, 15], [3, 1], [[1, 0], [1, 0]], [1, 1], [1, 1]),
        ((1, 1, 32, 16), [40, 41], [3, 3], [[2, 2], [2, 2]], [1, 1], [2, 2]),
        ((1, 1, 96, 16), [9, 9, 9], [3, 3, 3], [[1, 1, 1]] * 2, [1, 1, 1], [1, 1, 1]),
        ((3, 1, 256, 40), [5, 5], [1, 1], [[0, 0], [0, 0]], [1, 1], [1, 1]),
        ((1, 1, 5, 40), [30, 31], [7, 7], [[3, 3], [3, 3]], [2, 2], [1, 1]),
    ]:
        for _ in range(4):  # formats
            check(choose, dtype, channels, size, kernel, strides, pads, dilations, "brgemm")


@every_type
def test_distant_taps(dtype):
    """Rows that no tap meets take no memory."""
    choose = random.Random(3)
    torch.manual_seed(3)
    for size, kernel, dilations, pads in [
        ([90, 110], [3, 3], [40, 50], [[20, 0], [0, 30]]),
        ([9], [3], [100_000], [[100_001], [100_000]]),
        ([300_000], [2], [200_000], [[7], [0]]),
    ]:
        ones = [1] * len(size)
        check(choose, dtype, (1, 1, 17, 18), size, kernel, ones, pads, dilations, "brgemm")


@every_type
def test_taps_with_lines_of_their_own(dtype):
    """Along a row they are farther apart than the outputs of a task are long."""
    choose = random.Random(4)
    torch.manual_seed(4)
    for size, kernel, strides, pads, dilations in [
        ([400], [3], [1], [[5], [70]], [70]),
        ([5, 331], [2, 2], [1, 2], [[1, 0], [0, 150]], [2, 150]),
        ([2, 3, 200], [2, 1, 4], [1, 1, 1], [[0, 0, 66], [1, 0, 0]], [1, 1, 65]),
    ]:
        check(choose, dtype, (2, 2, 9, 20), size, kernel, strides, pads, dilations, "brgemm")


@every_type
def test_taps_that_are_copied(dtype):
    """All those of a pixel, an odd number of terms among them, for several panels; and in gradients
    of weights those of a row, for few channels or distant taps."""
    choose = random.Random(5)
    torch.manual_seed(5)
    for channels, size, kernel, strides, dilation, pad in [
        ((2, 1, 3, 20), [21, 33], [7, 7], [2, 2], 1, 3),
        ((1, 1, 3, 200), [33, 50], [16, 16], [16, 16], 1, 0),
        ((2, 1, 1, 70), [13, 9], [5, 3], [1, 1], 1, 2),
        ((1, 2, 5, 130), [9, 15], [3, 3], [1, 2], 1, 1),
        ((1, 1, 20, 24), [19, 17], [3, 3], [1, 1], 6, 6),
        ((1, 1, 40, 16), [30], [4], [3], 5, 2),
        ((3, 1, 33, 70), [13, 11], [1, 1], [2, 2], 1, 0),
    ]:
        for _ in range(3):  # layouts
            pads, dilations = [[pad] * len(size)] * 2, [dilation] * len(size)
            check(choose, dtype, channels, size, kernel, strides, pads, dilations, "brgemm")


@every_type
@pytest.mark.parametrize("channels", [3, 16])
def test_what_is_not_finite_stays_with_its_outputs(dtype, channels):
    """It lies beside the inputs of other outputs in products."""
    x = torch.randn(1, channels, 6, 9).to(dtype)
    x[0, 0, 2, 4] = torch.inf
    x[0, -1, 5, 0] = torch.nan
    x = x.contiguous(memory_format=torch.channels_last)
    w = torch.randn(16, channels, 3, 3).to(dtype)
    attributes = ([1, 1], [1, 1], [1, 1], [1, 1], "none", 1, "NCX", "OIX")
    result = OPS.convolution(x, w, None, *attributes, "brgemm")
    assert torch.equal(result.isfinite(), F.conv2d(x.double(), w.double(), padding=1).isfinite())


@every_type
def test_gradients_of_what_is_not_finite(dtype):
    """It lies beside the zeros between lines in products."""
    x = torch.randn(2, 20, 6, 9).to(dtype)
    x[0, 0, 2, 0] = torch.inf
    x[1, -1, 5, 8] = torch.nan
    g = torch.randn(2, 17, 6, 9).to(dtype)
    attributes = ([1, 1], [1, 1], [1, 1], [1, 1], "none", 1, "NCX", "OIX")
    result = OPS.convolution_backward_weights(g, x, [3, 3], *attributes, "brgemm")
    wide = torch.randn(17, 20, 3, 3, dtype=torch.float64, requires_grad=True)
    F.conv2d(x.double(), wide, padding=1).backward(g.double())
    assert torch.equal(result.isfinite(), wide.grad.isfinite())
    assert not result.isfinite().all() and result.isfinite().any()


@every_type
def test_same_bits_for_any_number_of_threads(dtype):
    def compute():
        for stride, channels, size in [(1, 70, (20, 33)), (2, 33, (9, 150)), (1, 300, (7, 7))]:
            torch.manual_seed(0)
            x = torch.randn(3, channels, *size).to(dtype)
            w = torch.randn(130, channels, 3, 3).to(dtype)
            attributes = ([stride] * 2, [1, 1], [1, 1], [1, 1], "none", 1, "NCX", "OIX", "brgemm")
            y = OPS.convolution(x, w, None, *attributes)
            yield y
            yield OPS.convolution_backward_data(y, w, size, *attributes)
            yield OPS.convolution_backward_weights(y, x, (3, 3), *attributes)

    same_on_threads(compute)


@every_type
def test_without_onednn(dtype):
    """torch's switch also turns off the products that oneDNN generates."""
    x, w = torch.randn(2, 16, 9, 9).to(dtype), torch.randn(16, 16, 3, 3).to(dtype)
    attributes = ([1, 1], [0, 0], [0, 0], [1, 1], "none", 1, "NCX", "OIX", "brgemm")
    with torch.backends.mkldnn.flags(enabled=False):
        result = OPS.convolution(x, w, None, *attributes).double()
    expected = F.conv2d(x.double(), w.double())
    assert (result - expected).norm() <= TOLERANCE[dtype] * expected.norm()
