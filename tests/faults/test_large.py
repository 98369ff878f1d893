"""Tensors of more than 2^31 elements and of more than 4 GB: results at their ends, where an offset
of 32 bits would have wrapped around, compared with those of small tensors.

`make test-large` runs them, one after the other. They take up to 10 GB of memory.
"""

import pytest
import torch
from torch import Tensor

import torch_dnnl.functional as D

pytestmark = pytest.mark.large

LAYOUT = {"data_format": "NCX", "weights_format": "OIX"}
SIDE = 46_500  # SIDE * SIDE > 2^31
ROWS = 24  # of the slices that are compared


@pytest.fixture(autouse=True)
def unfilled():
    """Filling fresh results would take as long as computing them."""
    torch.utils.deterministic.fill_uninitialized_memory = False


def image(height: int, width: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    """[1, 1, height, width] of numbers that differ from row to row and from column to column."""
    rows = torch.randint(64, (height, 1), dtype=torch.uint8)
    columns = torch.randint(64, (1, width), dtype=torch.uint8)
    if dtype.is_floating_point:
        rows, columns = rows.to(dtype) / 8, columns.to(dtype) / 8
    return (rows + columns).to(dtype)[None, None]


def ends(height: int, crossing: int = 2**31 // SIDE):
    """The first and last rows, some in the middle, and those about that one of 2^31 elements."""
    for start in (0, height // 2, crossing - ROWS // 2, height - ROWS):
        yield slice(start, start + ROWS)


def test_resample_from_large():
    x = image(SIDE, SIDE)
    y = D.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=False)
    for rows in ends(SIDE // 2, 2**31 // SIDE // 2):
        part = x[:, :, 2 * rows.start : 2 * rows.stop]
        expected = D.interpolate(part, scale_factor=0.5, mode="bilinear")
        assert torch.equal(y[:, :, rows], expected)


def test_resample_to_large():
    """4.3 GB of bfloat16, channels last."""
    x = image(SIDE // 2, SIDE // 4, torch.bfloat16).expand(1, 2, -1, -1)
    x = x.contiguous(memory_format=torch.channels_last)
    y = D.interpolate(x, scale_factor=2, mode="nearest")
    assert y.numel() > 2**31 and y.is_contiguous(memory_format=torch.channels_last)
    for rows in ends(SIDE):
        expected = x[:, :, rows.start // 2 : rows.stop // 2]
        expected = expected.repeat_interleave(2, 2).repeat_interleave(2, 3)
        start = rows.start // 2 * 2
        assert torch.equal(y[:, :, start : start + ROWS], expected)


@pytest.mark.parametrize("tag", ["nhwc", "nwhc", "nChw2c"])
def test_reorder_large(tag):
    """Layouts of more than 2^31 bytes."""
    x = image(2 * SIDE, SIDE // 2, torch.int8).view(1, 2, SIDE, SIDE // 2)
    y = D.reorder(x, tag)
    assert y.numel() > 2**31
    for rows in ends(SIDE):
        got = y[0, 0, rows].movedim(-1, 0)[None] if tag == "nChw2c" else y[:, :, rows]
        assert torch.equal(got, x[:, :, rows])


def test_reorder_to_4_gb():
    """Another type: twice as many bytes."""
    x = image(SIDE, SIDE, torch.int8)
    y = D.reorder(x, dtype=torch.bfloat16, scale=0.25)
    assert y.nbytes > 2**32
    for rows in ends(SIDE):
        assert torch.equal(y[:, :, rows], x[:, :, rows].to(torch.bfloat16) / 4)


def rows_of(convolve, x: Tensor, y: Tensor, exact: bool) -> None:
    """Rows of a 3x3 convolution without pads, from those of its image."""
    for rows in ends(y.shape[2]):
        expected = convolve(x[:, :, rows.start : rows.stop + 2].contiguous())
        got = y[:, :, rows]
        # Another kernel may add in another order.
        tolerance = {} if exact else {"rtol": 2**-7, "atol": 2**-7}
        torch.testing.assert_close(got, expected, **({"rtol": 0, "atol": 0} | tolerance))


def test_convolution_of_large():
    """An image of 4.3 GB, a result of as many."""
    x = image(SIDE, SIDE, torch.bfloat16)
    w = torch.randn(1, 1, 3, 3, dtype=torch.bfloat16)
    convolve = lambda x: D.conv2d(x, w)  # noqa: E731
    y = convolve(x)
    assert x.nbytes > 2**32 and y.numel() > 2**31
    rows_of(convolve, x, y, exact=False)


def test_dense_convolution_to_large():
    """Of many channels, channels last."""
    x = image(SIDE // 4, SIDE // 8, torch.bfloat16).expand(1, 8, -1, -1)
    x = x.contiguous(memory_format=torch.channels_last)
    w = torch.randn(33, 8, 3, 3, dtype=torch.bfloat16)
    convolve = lambda x: D.conv2d(x, w)  # noqa: E731
    y = convolve(x)
    assert y.numel() > 2**31
    for start in (0, y.shape[2] // 2, y.shape[2] - ROWS):
        part = x[:, :, start : start + ROWS + 2].contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(
            y[:, :, start : start + ROWS], convolve(part), rtol=2**-7, atol=2**-5
        )


def test_quantized_convolution_of_large():
    x = image(SIDE, SIDE)
    w = torch.randint(-128, 128, (1, 1, 3, 3), dtype=torch.int8)
    convolve = lambda x: D.quantized_convolution(x, w, dst_scale=100.0, **LAYOUT)  # noqa: E731
    y = convolve(x)
    assert y.numel() > 2**31
    rows_of(convolve, x, y, exact=True)
