"""Numbers at the edges of floating point: subnormal ones, with and without flushing; the bits of
NaN; infinities."""

import pytest
import torch
from op_db import FLOAT8, FLOATING
from threads import threads

import torch_dnnl
import torch_dnnl.functional as D

KERNELS = torch_dnnl.build_info()["kernels"]["cpu"]
LAYOUT = {"data_format": "NCX", "weights_format": "OIX"}
# Channels, groups, kernel and stride of layers, of which every kernel takes some.
LAYERS = [(16, 1, 3, 1), (16, 16, 3, 1), (64, 1, 1, 1), (3, 1, 3, 2), (32, 8, 3, 1)]


@pytest.fixture
def flushing():
    assert torch.set_flush_denormal(True)
    yield
    torch.set_flush_denormal(False)


def subnormal(*shape):
    """Multiples of the least number, by 16 at least: halves of them are exact, too."""
    return torch.randint(-64, 64, shape).mul(16).double().mul(2.0**-149).float()


def supported(call):
    """The result, or None where the kernel is not for it."""
    try:
        return call()
    except NotImplementedError:
        return None


def convolutions(kernel, x_of, w_of):
    """Results of the layers that a kernel takes, with their inputs, in both layouts."""
    for channels, groups, size, stride in LAYERS:
        for format in (torch.contiguous_format, torch.channels_last):
            x = x_of(2, channels, 13, 18).contiguous(memory_format=format)
            w = w_of(channels if groups > 1 else 32, channels // groups, size, size)
            arguments = {"strides": stride, "groups": groups, **LAYOUT}
            y = supported(lambda: D.convolution(x, w, **arguments, algorithm=kernel))  # noqa: B023
            if y is not None:
                yield x, w, arguments, y


@pytest.mark.parametrize("kernel", KERNELS["convolution"])
def test_subnormal_sums(kernel):
    """None is lost: sums of multiples of the least number are exact."""
    ran = 0
    for x, w, arguments, y in convolutions(kernel, subnormal, lambda *s: torch.ones(s)):
        ran += 1
        exact = D.convolution(x.double(), w.double(), **arguments)
        # Tiles of 4x4 are made with divisions by 6 and more: each of the factors rounds, to a
        # multiple of the least number, and sums of some hundred products of them are made.
        most = 1000 * 2.0**-149 if kernel == "winograd_4x4" else 0
        assert exact.abs().max() > 5000 * 2.0**-149
        assert (y.double() - exact).abs().max() <= most
    assert ran > 0


@pytest.mark.usefixtures("flushing")
@pytest.mark.parametrize("kernel", KERNELS["convolution"])
def test_subnormal_inputs_are_flushed(kernel):
    with threads(1):
        for *_, y in convolutions(kernel, subnormal, lambda *s: torch.ones(s)):
            assert torch.equal(y, torch.zeros_like(y))


@pytest.mark.usefixtures("flushing")
@pytest.mark.parametrize("count", [1, 2])
def test_flushing_is_of_a_thread(count):
    """docs/deployment.md: as in torch's own functions, threads flush that were told to, and those
    that they start. An element is flushed or exact."""
    x = torch.full((8, 64, 64, 64), 2.0**-140)
    with threads(count):
        y = D.conv2d(x, torch.ones(64, 1, 3, 3), groups=64)
    seen = set(y.view(torch.int32).unique().tolist())  # a subnormal number's bits are its multiple
    assert seen <= ({0} if count == 1 else {0, 9 << 9})


@pytest.mark.parametrize("kernel", KERNELS["resample"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "area"])
def test_subnormal_images(kernel, mode):
    x = subnormal(2, 4, 18, 32)
    with torch_dnnl.resample_algorithm(kernel):
        y = D.resample(x, scale_factor=0.5, mode=mode)
    exact = D.resample(x.double(), scale_factor=0.5, mode=mode)
    assert exact.abs().max() > 0 and torch.equal(y.double(), exact)


def patterns(dtype):
    """Random bits as numbers of a type, every value of small ones among them."""
    if dtype.itemsize == 1:
        return torch.arange(256, dtype=torch.int64).to(torch.uint8).repeat(6).view(dtype)
    raw = torch.randint(256, (1536 * dtype.itemsize,), dtype=torch.uint8)
    values = raw.view(dtype).clone()
    ones = {8: 0x7FF0 << 48, 4: 0x7F80 << 16, 2: 0x7F80}[dtype.itemsize]
    if dtype == torch.float16:
        ones = 0x7C00
    integers = {8: torch.int64, 4: torch.int32, 2: torch.int16}[dtype.itemsize]
    values.view(integers)[::2] |= ones  # exponents of NaN: quiet ones, signalling ones, of any sign
    assert values[::2].isnan().sum() > 700
    return values


def raw(x):
    return x.contiguous().view(-1).view(torch.uint8)


@pytest.mark.parametrize("kernel", KERNELS["reorder"])
@pytest.mark.parametrize("dtype", [*FLOATING, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("is_flushing", [False, True], ids=["", "flushing"])
def test_moves_keep_all_bits(kernel, dtype, is_flushing):
    """docs/reorder.md: a move within a type. Subnormal numbers and the payloads of NaN are among
    them."""
    x = patterns(dtype).view(2, 24, 4, 8)
    torch.set_flush_denormal(is_flushing)
    try:
        with torch_dnnl.reorder_algorithm(kernel):
            for tag in ("nhwc", "nChw16c", "aBcd4b", "dcba", "nchw"):
                moved = D.reorder(x, tag)
                back = D.reorder(moved, "nchw", src_format=tag, size=x.shape)
                assert torch.equal(raw(back), raw(x)), tag
    finally:
        torch.set_flush_denormal(False)


@pytest.mark.parametrize("kernel", KERNELS["reorder"])
@pytest.mark.parametrize("source", [*FLOATING, *FLOAT8], ids=str)
@pytest.mark.parametrize("result", [*FLOATING, *FLOAT8, torch.int8, torch.int32], ids=str)
def test_nan_and_infinity_of_conversions(kernel, source, result):
    """docs/reorder.md: one NaN, quiet and positive, or 0 in an integer; infinities stay, or
    saturate."""
    x = patterns(source).view(2, 24, 4, 8)
    with torch_dnnl.reorder_algorithm(kernel):
        y = D.reorder(x, "nchw", dtype=result, scale=-1.0)
    nan, infinite = x.isnan(), x.double().isinf()
    if result.is_floating_point:
        assert torch.equal(y.isnan(), nan)
        (bits,) = raw(y).view(-1, result.itemsize)[nan.view(-1)].unique(dim=0)
        assert bits[-1] < 128  # the sign
    else:
        assert (y[nan] == 0).all()
    limits = torch.finfo(result) if result.is_floating_point else torch.iinfo(result)
    saturates = result in FLOAT8 or not result.is_floating_point
    bounds = torch.tensor([limits.max, limits.min], dtype=torch.float64)
    expected = bounds[(x.double() > 0).long()] if saturates else -x.double()
    assert torch.equal(y.double()[infinite], expected[infinite])


@pytest.mark.parametrize("kernel", KERNELS["convolution"])
def test_nan_reaches_the_results(kernel):
    """At least those whose window it is in; and infinities are not made finite."""
    ran = 0
    for value in (float("nan"), float("inf")):

        def image(*shape, value=value):
            x = torch.randn(shape)
            x[1, 1, 6, 8] = value
            return x

        for x, w, arguments, y in convolutions(kernel, image, lambda *s: torch.rand(s) + 0.5):
            ran += 1
            reached = D.convolution((~x.isfinite()).float(), w, **arguments) > 0
            assert reached.any() and not y[reached].isfinite().any()
            assert y[0].isfinite().all(), "another image"
    assert ran > 0
