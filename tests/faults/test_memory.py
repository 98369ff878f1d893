"""Inputs whose memory is not torch's: the same results, and nothing is written there."""

import numpy as np
import pytest
import torch
from calls import with_gradients
from elsewhere import MAKERS, odd_address, read_only_file
from failing import bits
from op_db import CASES

import torch_dnnl.functional as D


def by_maker(maker):
    return maker.__name__


@pytest.mark.parametrize("maker", MAKERS, ids=by_maker)
def test_same_bits(maker):
    """Every row of op_db, forward and backward. Strides are kept: other ones may be another
    kernel's, whose sums differ."""
    for case in CASES:
        elsewhere = [maker(x) for x in case.inputs()]
        before = bits(elsewhere)
        own = [torch.empty_strided(x.shape, x.stride()).copy_(x) for x in elsewhere]
        results = [
            with_gradients(case.call, [x.requires_grad_() for x in tensors])
            for tensors in (own, elsewhere)
        ]
        assert all(map(torch.equal, *map(bits, results))), case.name
        assert all(map(torch.equal, bits(elsewhere), before)), case.name


@pytest.mark.parametrize("maker", MAKERS, ids=by_maker)
def test_integers(maker):
    pixels = torch.randint(256, (2, 12, 9, 7), dtype=torch.uint8)
    weights = torch.randint(-128, 128, (20, 12, 3, 3), dtype=torch.int8)
    scale = torch.rand(20)
    layout = {"data_format": "NCX", "weights_format": "OIX"}

    def calls(pixels, weights, scale):
        yield D.quantized_convolution(pixels, weights, weights_scale=scale, dst_scale=9.0, **layout)
        yield D.interpolate(pixels, scale_factor=1.7, mode="bilinear", antialias=True)
        yield D.reorder(pixels, "nChw8c", dtype=torch.int8, dst_scale=2.0)
        yield D.reorder(weights, "OIhw4i16o4i", dtype=torch.float16, scale=scale, axis=0)

    expected = bits(list(calls(pixels, weights, scale)))
    results = bits(list(calls(maker(pixels), maker(weights), maker(scale))))
    assert all(map(torch.equal, results, expected))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_odd_addresses_of_other_types(dtype):
    """Types that NumPy lacks, too: their bytes."""
    x, w = torch.randn(2, 8, 9, 11, dtype=dtype), torch.randn(16, 8, 3, 3, dtype=dtype)

    def odd(t):
        return odd_address(t.view(torch.uint8)).view(-1).view(dtype).view(t.shape)

    assert odd(x).data_ptr() % 2 == 1
    for call in (
        lambda x, w: D.conv2d(x, w, padding=1),
        lambda x, w: D.reorder(x, "nhwc", dtype=torch.float32, accumulate=odd(x).float()),
        lambda x, w: D.interpolate(x, scale_factor=0.6, mode="bicubic", antialias=True),
    ):
        assert torch.equal(call(odd(x), odd(w)), call(x, w))


def test_results_leave_as_they_came():
    """To NumPy and by DLPack, without a copy."""
    result = D.reorder(read_only_file(torch.rand(2, 3, 5, 4)), "nhwc")
    for array in (result.numpy(), np.from_dlpack(result)):
        assert array.ctypes.data == result.data_ptr()
        assert array.strides == tuple(4 * s for s in result.stride())


def test_storage_that_was_made_smaller():
    """By a byte: each argument of each operator is checked."""
    x, w, b = torch.randn(1, 4, 6, 5), torch.randn(4, 4, 3, 3), torch.randn(4)
    codes, taps = x.to(torch.int8), w.to(torch.int8)
    layout = {"data_format": "NCX", "weights_format": "OIX"}
    ops = torch.ops.torch_dnnl

    def short(tensor):
        tensor = tensor.clone()
        tensor.untyped_storage().resize_(tensor.untyped_storage().nbytes() - 1)
        return tensor

    calls = {
        "input": (lambda t: D.interpolate(t, scale_factor=2), x),
        "src": (lambda t: D.resample(t, scale_factor=2), x),
        "grad": (lambda t: ops.resample_backward(t, [3, 3]), x),
        "src of reorder": (lambda t: D.reorder(t, "nhwc"), x),
        "scale": (lambda t: D.reorder(x, "nhwc", dtype=torch.int8, scale=t, axis=1), b),
        "src of fake_reorder": (lambda t: D.fake_reorder(t, dtype=torch.int8), x),
        "input of conv2d": (lambda t: D.conv2d(t, w), x),
        "weight": (lambda t: D.conv2d(x, t), w),
        "bias": (lambda t: D.conv2d(x, w, t), b),
        "residual": (lambda t: D.convolution(x, w, residual=t, **layout), x[..., :4, :3]),
        "weight of conv_transpose2d": (lambda t: D.conv_transpose2d(x, t), w),
        "src of quantized": (lambda t: D.quantized_convolution(t, taps, **layout), codes),
        "weights": (lambda t: D.quantized_convolution(codes, t, **layout), taps),
        "grad of data": (lambda t: ops.convolution_backward_data(t, w, [8, 7], **layout), x),
        "grad of weights": (
            lambda t: ops.convolution_backward_weights(t, x, [1, 1], **layout),
            x,
        ),
    }
    for name, (call, tensor) in calls.items():
        tensor = tensor.contiguous()
        call(tensor)
        bytes = tensor.nbytes
        expected = f": expected {name.split()[0]} to have a storage of at least {bytes} bytes, got "
        with pytest.raises((ValueError, RuntimeError), match=f"{expected}{bytes - 1}$"):
            call(short(tensor))
