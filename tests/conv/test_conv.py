"""Convolution beyond the table: random problems of all three operators, in all four format pairs
and in every layout and type, to the bit; the same bits from any number of threads."""

import math
import random

import pytest
import torch
import torch.nn.functional as F
from op_db import assert_matches
from oracles import conv as oracle
from threads import same_on_threads

import torch_dnnl.functional as D

OPS = torch.ops.torch_dnnl
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
NO_PADS = ([0], [0], [1], "none", 1, "NCX", "OIX")


def random_tensor(choose: random.Random, shape, dtype):
    """Small integers, whose products and sums are exact in every type; in any strides."""
    values = torch.randint(-2, 3, shape).to(dtype)
    layout = choose.randrange(5)
    if layout == 1:
        order = choose.sample(range(len(shape)), len(shape))
        inverse = [order.index(dim) for dim in range(len(shape))]
        return values.permute(order).contiguous().permute(inverse)
    if layout == 2:
        wide = torch.full([2 * n + 1 for n in shape], float("nan"), dtype=dtype)
        return wide[tuple(slice(1, None, 2) for _ in shape)].copy_(values)
    if layout == 3:
        return values.narrow(choose.randrange(len(shape)), 0, 1).expand(shape)
    return values


def random_problem(choose: random.Random):
    """Sizes of src, weights and dst, the channels of dst, and the attributes in order."""
    rank = choose.choice([1, 2, 2, 3])
    groups, most = choose.choice([1, 1, 2, 3]), choose.choice([3, 20, 70])
    ic, oc = choose.randint(1, most), groups * choose.randint(1, most)
    longest = {1: choose.choice([20, 200]), 2: 12, 3: 5}[rank]
    pads = [[choose.randint(0, 3) for _ in range(rank)] for _ in range(2)]
    strides = [choose.randint(1, 3) for _ in range(rank)]
    dilations = [choose.choice([1, 1, 2, 3]) for _ in range(rank)]
    auto_pad = choose.choice(["none", "none", "same_upper", "same_lower", "valid"])
    kernel = [choose.randint(1, 4) for _ in range(rank)]
    size = [
        max(choose.randint(1, longest), (k - 1) * d + 1 - (b + e if auto_pad == "none" else 0))
        for k, d, b, e in zip(kernel, dilations, *pads)
    ]
    nxc, xio = choose.random() < 0.5, choose.random() < 0.5
    formats = ("NXC" if nxc else "NCX", "XIO" if xio else "OIX")
    attributes = (strides, *pads, dilations, auto_pad, groups, *formats)
    begin, end = oracle.padding(size, kernel, *attributes[:5])
    out = [
        (n + b + e - (k - 1) * d - 1) // s + 1
        for n, b, e, k, d, s in zip(size, begin, end, kernel, dilations, strides)
    ]
    n = choose.randint(1, 3)
    src = [n, *size, groups * ic] if nxc else [n, groups * ic, *size]
    dst = [n, *out, oc] if nxc else [n, oc, *out]
    weights = [*kernel, ic, oc] if xio else [oc, ic, *kernel]
    return src, weights, dst, size, kernel, oc, attributes


@pytest.mark.parametrize("seed", range(20))
def test_random_problems(seed):
    choose = random.Random(seed)
    for trial in range(8):
        src, weights, dst, size, kernel, oc, attributes = random_problem(choose)
        dtype = choose.choice(DTYPES)
        x, w, g = (random_tensor(choose, shape, dtype) for shape in (src, weights, dst))
        bias = choose.choice([None, random_tensor(choose, [oc], dtype)])
        for name, args in {
            "convolution": (x, w, bias),
            "convolution_backward_data": (g, w, size),
            "convolution_backward_weights": (g, x, kernel),
        }.items():
            result = getattr(OPS, name)(*args, *attributes)
            expected = getattr(oracle, name)(*args, *attributes).to(dtype)
            assert torch.equal(result, expected), (trial, name, src, weights, dtype, attributes)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_threads_change_no_bit(dtype):
    def results():
        for weights, options in [
            ((40, 24, 3, 3), {"padding": 1}),
            ((40, 24, 3, 3), {"stride": 2, "padding": "same_lower"}),
            ((24, 1, 5, 5), {"groups": 24}),
        ]:
            torch.manual_seed(0)
            x = torch.randn(2, 24, 37, 41, dtype=dtype, requires_grad=True)
            w = torch.randn(weights, dtype=dtype, requires_grad=True)
            y = D.conv2d(x, w, **options)
            yield from (y, *torch.autograd.grad(y, (x, w), torch.randn_like(y)))
        for channels in (1, 3):
            bias = torch.randn(channels, dtype=dtype, requires_grad=True)
            y = D.conv1d(torch.randn(1, 1, 70001, dtype=dtype), w.new_ones(channels, 1, 2), bias)
            (grad,) = torch.autograd.grad(y, bias, torch.randn_like(y))
            assert grad.shape == bias.shape
            yield grad
        # The gradient of a sum is one number, expanded.
        bias = torch.randn(50, dtype=dtype, requires_grad=True)
        y = D.conv2d(torch.randn(2, 3, 36, 10, dtype=dtype), w.new_ones(50, 3, 1, 1), bias)
        (grad,) = torch.autograd.grad(y.sum() * 0.125, bias)
        assert torch.equal(grad, torch.full_like(bias, 90))
        yield grad

    same_on_threads(results)


def test_more_than_2_to_the_31_elements():
    """64-bit offsets: the image is one pixel, expanded."""
    channels = torch.arange(4.0).reshape(1, 4, 1)
    x = channels.expand(1, 4, 2**30 + 1)
    for oc in (1, 16):
        w = torch.randn(oc, 4, 1)
        y = D.conv1d(x, w, stride=2**29)
        torch.testing.assert_close(y, torch.nn.functional.conv1d(channels, w).expand(1, oc, 3))
        grad = torch.ones(1, oc, 3)
        dw = OPS.convolution_backward_weights(grad, x, [1], [2**29], *NO_PADS)
        assert torch.equal(dw, (3 * channels).expand(oc, 4, 1))


def test_gradient_of_a_sum_has_the_format_of_weights():
    """It is expanded, and tells no format; that of a channels_last model is that of its weights."""
    for memory_format in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(2, 3, 5, 6).to(memory_format=memory_format).requires_grad_()
        w = torch.randn(4, 3, 2, 2).to(memory_format=memory_format)
        D.conv2d(x, w).sum().backward()
        assert x.grad.is_contiguous(memory_format=memory_format)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("apart", [1, 2, 3, 5])
@pytest.mark.parametrize("stride", [2, 3, 5])
@pytest.mark.parametrize("ic, oc", [(70, 130), (70, 3), (3, 70)])
def test_pixels_of_a_row_lie_apart(dtype, apart, stride, ic, oc):
    """In memory, or as taps meet them; what lies between them is not read as numbers."""
    wide = torch.randn(2, ic, 11, 37 * apart).to(dtype)
    x = wide[..., ::apart]
    exact = x.double().requires_grad_()
    for between in range(1, apart):
        wide[..., between::apart] = math.nan
    x = x.requires_grad_()
    w = torch.randn(oc, ic, 3, 3).to(dtype)
    exact_w = w.double().requires_grad_()
    y = D.conv2d(x, w.requires_grad_(), stride=stride, padding=1)
    theirs = torch.nn.functional.conv2d(exact, exact_w, stride=stride, padding=1)
    assert_matches(y, theirs)
    grad = torch.randn_like(y)
    expected = torch.autograd.grad(theirs, (exact, exact_w), grad.double())
    for ours, right in zip(torch.autograd.grad(y, (x, w), grad), expected, strict=True):
        assert_matches(ours, right)


@pytest.mark.parametrize("of_weights", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("of_src", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("groups", [1, 8])
def test_result_has_torchs_format(of_src, of_weights, groups):
    """Of a concatenation, say, the channels of a channels_last model are elsewhere for once."""
    x = torch.randn(2, 8, 5, 6).to(memory_format=of_src).requires_grad_()
    w = torch.randn(8, 8 // groups, 3, 3).to(memory_format=of_weights)
    y, theirs = D.conv2d(x, w, groups=groups), torch.nn.functional.conv2d(x, w, groups=groups)
    torch.testing.assert_close(y, theirs)
    assert y.stride() == theirs.stride()
    assert D.conv2d(x.to("meta"), w.to("meta"), groups=groups).stride() == y.stride()
    grad = torch.randn_like(y)
    ours, expected = (torch.autograd.grad(r, x, grad)[0] for r in (y, theirs))
    torch.testing.assert_close(ours, expected)
    assert ours.stride() == expected.stride()


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
def test_sizes_that_only_data_decide(data_format, activation):
    """A batch whose size no guard can know, and the expanded gradient of a sum."""

    def loss(x, mask, w):
        chosen = x[mask.nonzero().flatten()]
        options = {"data_format": data_format, "weights_format": "OIX", "activation": activation}
        return D.convolution(chosen, w, None, **options).sum()

    shape = (5, 3, 6, 6) if data_format == "NCX" else (5, 6, 6, 3)
    x, w = torch.randn(shape, requires_grad=True), torch.randn(4, 3, 2, 2, requires_grad=True)
    mask = torch.tensor([1, 0, 1, 1, 0])
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
        actual = torch.autograd.grad(compiled(x, mask, w), (x, w))
    expected = torch.autograd.grad(loss(x, mask, w), (x, w))
    for a, b in zip(actual, expected):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("algorithm", "channels", "size", "kernel"),
    [
        ("pixel_lanes", 48, 112, 5),
        ("blocked", 64, 112, 5),
        ("brgemm", 64, 112, 5),
        ("winograd_4x4", 64, 212, 3),
        ("gemm", 256, 92, 1),
    ],
)
def test_sums_that_threads_share(algorithm, channels, size, kernel):
    """So many weights, in so many chunks of the pixels, that two threads add the chunks' sums."""
    torch.manual_seed(0)
    x, grad = (
        torch.randint(-2, 3, (1, channels, n, n)).float().contiguous(memory_format=layout)
        for n, layout in ((size, torch.channels_last), (size - kernel + 1, torch.contiguous_format))
    )
    formats = {"data_format": "NCX", "weights_format": "OIX"}
    (result,) = same_on_threads(
        lambda: [
            OPS.convolution_backward_weights(grad, x, [kernel] * 2, algorithm=algorithm, **formats)
        ]
    )
    exact = torch.nn.grad.conv2d_weight(x, result.shape, grad)
    error = (result - exact).norm() / exact.norm()
    assert error < 1e-5 if "winograd" in algorithm else error == 0


@pytest.mark.parametrize("batch", [0, 1, 2, None])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_transposed_convolution_of_no_pixels(n, batch):
    """Pads may leave nothing, in one dimension or in all, as in torch."""
    for pads in ((3,) * n, (3, *(0,) * (n - 1)), (*(0,) * (n - 1), 3)):
        shape = [3, *(2,) * n] if batch is None else [batch, 3, *(2,) * n]
        shapes = (shape, [3, 2, *(5,) * n], [2])
        inputs = [torch.randn(each, requires_grad=True) for each in shapes]

        def call(x, w, b, pads=pads):
            return getattr(D, f"conv_transpose{n}d")(x, w, b, padding=pads)

        expected = [2, *(0 if pad == 3 else 6 for pad in pads)]
        expected = expected if batch is None else [batch, *expected]
        torch._dynamo.reset()
        compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
        for function in (call, compiled):
            result = function(*inputs)
            assert list(result.shape) == expected
            for x, gradient in zip(inputs, torch.autograd.grad(result.sum(), inputs)):
                assert torch.equal(gradient, torch.zeros_like(x))
        assert list(call(*(x.to("meta") for x in inputs)).shape) == expected
        try:  # torch refuses some, in one dimension
            theirs = getattr(F, f"conv_transpose{n}d")(*inputs, padding=pads)
        except RuntimeError:
            continue
        assert theirs.shape == result.shape


@pytest.mark.parametrize("n", [1, 2, 3])
def test_attributes_that_are_tensors(n):
    """As torch has it, of no dimension, one for all axes or one for each."""
    x, w = torch.randn(2, 3, *(6,) * n), torch.randn(3, 3, *(2,) * n)
    for name in (f"conv{n}d", f"conv_transpose{n}d"):
        for value in (torch.tensor(2), [torch.tensor(2)] * n):
            for attribute in ("stride", "padding", "dilation"):
                results = [getattr(of, name)(x, w, **{attribute: value}) for of in (D, F)]
                torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


def test_transposed_convolution_of_no_pixels_and_its_residual():
    src, weights = torch.randn(2, 2, 2, 3), torch.randn(5, 5, 1, 3)
    residual = torch.randn(2, 0, 0, 1, requires_grad=True)
    for pads in ({"pads_begin": 3, "pads_end": 3}, {"pads_begin": 6, "pads_end": 0}):
        options = {"activation": "silu", **pads}
        result = D.convolution_transpose(src, weights, residual=residual, **options)
        assert result.shape == residual.shape
        assert torch.autograd.grad(result.sum(), residual)[0].shape == residual.shape
        broadcast = torch.zeros(2, 1, 1, 1)
        result = D.convolution_transpose(src, weights, residual=broadcast, **options)
        assert result.shape == residual.shape
        with pytest.raises(ValueError, match=r"residual .* \[2, 0, 0, 1\], got \[2, 2, 1, 1\]"):
            D.convolution_transpose(src, weights, residual=torch.zeros(2, 2, 1, 1), **options)
    with pytest.raises(ValueError, match="leaves"):
        D.convolution_transpose(src, weights, pads_begin=7)
