"""Resample's CUDA kernels, each in every type and at the ends of its vectors, tiles and strips.

On a GPU they run there; tests/cuda/test_cuda_on_host.py runs them on the CPU. Elsewhere the same
problems go to the CPU's kernels.
"""

import numpy as np
import pytest
import torch
from op_db import FLOATING, assert_matches
from oracles.resample import resample as oracle

import torch_dnnl.functional as D

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [*FLOATING, torch.uint8]


def name_of(dtype):
    return str(dtype).removeprefix("torch.")


def channels_last(x):
    """The same values with channels innermost, in 3 dimensions too."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def misaligned(x):
    """The same strides, one element into the memory."""
    memory = torch.empty(x.untyped_storage().size() // x.element_size() + 1, dtype=x.dtype)
    return memory.to(x.device)[1:].as_strided(x.shape, x.stride()).copy_(x)


def cropped(x):
    """Dense rows that do not follow each other."""
    wide = torch.zeros([*x.shape[:-2], x.shape[-2] + 2, x.shape[-1] + 16], dtype=x.dtype)
    return wide.to(x.device)[..., 1:-1, :-16].copy_(x)


def images(shape, dtype, layout):
    x = torch.randint(256, shape) if dtype == torch.uint8 else torch.randn(shape)
    return layout(x.to(dtype).to(DEVICE))


def assert_right(result, expected):
    if result.dtype == torch.uint8:
        # Within the error of the sum, a tie may be rounded either way.
        error = (result.cpu().double() - expected.clamp(0, 255)).abs().max().item()
        assert result.shape == expected.shape and error <= 0.5 + 1e-4
    else:
        assert_matches(result, expected)


def check(shape, size, layout, dtype, **options):
    x = images(shape, dtype, layout)
    exact = x.cpu().double().requires_grad_()
    expected = oracle(exact, size, **options)
    if dtype == torch.uint8:
        assert_right(D.resample(x, size, **options), expected)
        return
    x.requires_grad_()
    result = D.resample(x, size, **options)
    assert_right(result, expected)
    grad = images(result.shape, dtype, layout)
    (ours,) = torch.autograd.grad(result, x, grad)
    (theirs,) = torch.autograd.grad(expected, exact, grad.cpu().double())
    assert_matches(ours, theirs)


ANTIALIAS = {"antialias": True, "exclude_outside": True}
# NCX shapes. Twice and half the size are the commonest; the other sizes leave odd ends.
PLANAR = {
    "x2": ((2, 3, 9, 20), (18, 40), {}),
    "x2 corners": ((1, 2, 7, 24), (14, 48), {"coordinates": "align_corners"}),
    "x2 asymmetric": ((1, 2, 7, 24), (14, 48), {"coordinates": "asymmetric"}),
    "x2 of one column": ((2, 3, 5, 1), (10, 2), {}),
    "x2 nearest": ((2, 3, 9, 20), (18, 40), {"mode": "nearest"}),
    "x2 cubic": ((2, 3, 9, 20), (18, 40), {"mode": "cubic"}),
    "x5": ((1, 2, 6, 11), (30, 55), {}),
    "x5 nearest": ((1, 2, 6, 16), (30, 80), {"mode": "nearest"}),
    "x5 cubic": ((1, 2, 6, 11), (30, 55), {"mode": "cubic"}),
    "x5 lanczos": ((1, 1, 12, 16), (60, 80), {"mode": "lanczos3"}),
    "x0.5": ((2, 3, 18, 160), (9, 80), {}),
    "x0.5 nearest": ((2, 3, 18, 160), (9, 80), {"mode": "nearest"}),
    "x0.5 antialias": ((2, 3, 18, 160), (9, 80), ANTIALIAS),
    "x0.5 cubic antialias": ((2, 3, 18, 160), (9, 80), {"mode": "cubic", **ANTIALIAS}),
    "x0.25 area": ((2, 3, 20, 160), (5, 40), {"mode": "area"}),
    "x0.25 antialias": ((2, 3, 20, 160), (5, 40), ANTIALIAS),
    "x4": ((2, 3, 5, 40), (20, 160), {}),
    "x0.1 antialias": ((1, 3, 41, 320), (4, 31), ANTIALIAS),
    "x0.1 cubic antialias": ((1, 3, 41, 320), (4, 31), {"mode": "cubic", **ANTIALIAS}),
    "x0.3 lanczos antialias": ((1, 3, 40, 144), (12, 43), {"mode": "lanczos5", **ANTIALIAS}),
    "x0.7": ((2, 3, 19, 160), (13, 111), {}),
    "area": ((2, 3, 19, 320), (7, 101), {"mode": "area"}),
    "nearest to odd": ((2, 3, 9, 20), (7, 13), {"mode": "nearest"}),
    "higher and narrower": ((1, 2, 10, 160), (16, 64), {}),
    "much higher and narrower": ((1, 2, 4, 160), (20, 16), {}),
    "high and narrow": ((1, 2, 150, 3), (60, 7), {}),
    "low and wide": ((1, 2, 3, 700), (7, 333), ANTIALIAS),
    "several tiles": ((1, 1, 4, 3000), (2, 1500), {}),
    "one row": ((1, 1, 1, 2048), (1, 1024), ANTIALIAS),
    "one column": ((1, 1, 2048, 1), (1024, 1), ANTIALIAS),
    "width alone": ((2, 3, 5, 64), (5, 128), {}),
    "height alone": ((2, 3, 5, 64), (11, 64), {}),
    "long": ((1, 2, 1500), (3000,), {}),
    "short and many": ((4, 5, 6), (12,), {}),
    "volume": ((1, 2, 4, 5, 16), (8, 10, 32), {}),
    "volume x0.5": ((1, 2, 6, 8, 160), (3, 4, 80), ANTIALIAS),
    "depth alone": ((1, 2, 4, 5, 16), (9, 5, 16), {}),
    "many taps along the depth": ((1, 1, 40, 3, 16), (3, 6, 32), ANTIALIAS),
    "outside": (
        (2, 2, 8, 64),
        (10, 72),
        {"coordinates": "tf_crop_and_resize", "roi": [-0.3, 0.2, 0.8, 1.4]},
    ),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("name", PLANAR)
def test_planes(name, dtype):
    shape, size, options = PLANAR[name]
    if options.get("coordinates") == "tf_crop_and_resize" and dtype == torch.uint8:
        options = {**options, "extrapolation_value": 7}
    check(shape, size, torch.Tensor.contiguous, dtype, **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("channels", [3, 8, 16])
@pytest.mark.parametrize("name", PLANAR)
def test_pixels(name, channels, dtype):
    """Channels innermost: vectors of them, or pixels that are no whole vector."""
    (_, _, *spatial), size, options = PLANAR[name]
    spatial, size = ([-(-n // 8) if n > 1000 else n for n in s] for s in (spatial, size))
    check((2, channels, *spatial), size, channels_last, dtype, **options)


# For each of the CUDA kernels, how many times src is larger than dst, its layout, and the options.
KERNELS = {
    "copy": (1 / 2, torch.Tensor.contiguous, {"mode": "nearest"}),
    "sliding window": (1 / 2, torch.Tensor.contiguous, {}),
    "sums of windows": (2, torch.Tensor.contiguous, ANTIALIAS),
    "sums of rows": (3, torch.Tensor.contiguous, {"mode": "area"}),
    "sums of pixels": (2, channels_last, ANTIALIAS),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=name_of)
@pytest.mark.parametrize("width", [48, 352, 2200])
@pytest.mark.parametrize("name", KERNELS)
def test_tables_of_every_size(name, width, dtype):
    """Those that a few arguments have room for, or most, or none: 16 to 40 bytes a pixel. The
    second call has what was kept. Two equal axes have one table, of which the kernels may want
    records with different numbers of slots."""
    factor, layout, options = KERNELS[name]
    for size in [(6, width), (6, width), (48, 48)]:
        check((1, 4, *(int(factor * n) for n in size)), size, layout, dtype, **options)


@pytest.mark.parametrize("layout", [misaligned, cropped])
@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("name", ["x2", "x2 nearest", "x5 cubic", "x0.5", "volume"])
def test_strides(name, dtype, layout):
    shape, size, options = PLANAR[name]
    check(shape, size, layout, dtype, **options)
    if layout is misaligned:
        shape = (2, 16, *shape[2:])
        check(shape, size, lambda x: misaligned(channels_last(x)), dtype, **options)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8, *FLOATING], ids=name_of)
@pytest.mark.parametrize("layout", [torch.Tensor.contiguous, channels_last])
def test_nearest_copies_bits(layout, dtype):
    """Elements of every type, zeros of either sign and infinities included."""
    x = torch.randint(-(2**31), 2**31 - 1, (2, 16, 7, 12), dtype=torch.int64).to(dtype)
    if dtype.is_floating_point:
        x.view(-1)[::3] = -0.0
        x.view(-1)[::7] = torch.inf
    size = (15, 24)
    rows = [y * 7 // 15 for y in range(15)]
    options = {"mode": "nearest", "coordinates": "asymmetric", "nearest_mode": "floor"}
    result = D.resample(layout(x.to(DEVICE)), size, **options).cpu()
    expected = x[:, :, rows].repeat_interleave(2, 3)
    assert torch.equal(result, expected)
    if dtype.is_floating_point:
        assert torch.equal(result.signbit(), expected.signbit())


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
@pytest.mark.parametrize("name", ["x2", "x2 cubic", "x5", "x0.5", "x0.5 antialias", "volume"])
@pytest.mark.parametrize("layout", [torch.Tensor.contiguous, channels_last])
def test_only_taps_are_read(name, value, layout):
    """An infinity or a NaN goes to the outputs that have it as a tap, and to no others."""
    (_, _, *spatial), size, options = PLANAR[name]
    x = torch.rand(1, 8, *spatial)
    last = [n - 1 for n in spatial]
    for corner in ([0] * len(spatial), last, [n // 2 for n in spatial]):
        image, reached = x.clone(), torch.zeros_like(x)
        image[(..., *corner)] = value
        reached[(..., *corner)] = 1
        result = D.resample(layout(image.to(DEVICE)), size, **options).cpu()
        weight = oracle(reached.double(), size, **options)
        assert torch.equal(result.isfinite(), weight == 0)
        if value == torch.inf:
            assert (result[weight > 0] == torch.inf).all()


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_offsets_beyond_32_bits(mode):
    """A plane of 2.5e9 elements, of which few are read; the others need no memory."""
    side = 50_000
    x = torch.zeros(1, 1, side, side, dtype=torch.uint8, device=DEVICE)
    x[0, 0, -side // 4 :: 997, -side // 4 :: 997] = 200
    rows = side - side // 4 + 997 * torch.arange(4)
    begin, end = (int(rows[i]) / (side - 1) for i in (0, -1))
    roi = [begin, begin, end, end]
    result = D.resample(x, (4, 4), mode=mode, coordinates="tf_crop_and_resize", roi=roi)
    assert (result == 200).all()


def far_apart(x, dim):
    """The same values, more than 2^31 elements apart along a dimension; between them is memory
    that nobody touches."""
    strides = list(x.stride())
    strides[dim] = 2**31 // (x.shape[dim] - 1) // 16 * 16 + 16
    elements = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, strides))
    if DEVICE == "cuda":
        memory = torch.empty(elements, dtype=x.dtype, device=DEVICE)
    else:
        memory = torch.from_numpy(np.zeros(elements, np.int16)).view(x.dtype)
    return memory.as_strided(x.shape, strides).copy_(x)


@pytest.mark.parametrize("dim", [0, -2])
@pytest.mark.parametrize("layout", [torch.Tensor.contiguous, channels_last])
@pytest.mark.parametrize(
    "name", ["x2", "x2 nearest", "x5 cubic", "x0.5", "x0.1 antialias", "high and narrow", "volume"]
)
def test_images_far_apart(name, layout, dim):
    """Images or rows whose offsets take more than 32 bits, each way: the same bits."""
    (_, _, *spatial), size, options = PLANAR[name]
    x = images((2, 8, *spatial), torch.bfloat16, layout).requires_grad_()
    result = D.resample(x, size, **options)
    far = far_apart(x.detach(), dim)
    assert torch.equal(D.resample(far, size, **options), result)
    grad = images(result.shape, torch.bfloat16, layout)
    (expected,) = torch.autograd.grad(result, x, grad, retain_graph=True)
    assert torch.equal(torch.autograd.grad(result, x, far_apart(grad, dim))[0], expected)
