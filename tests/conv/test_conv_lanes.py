"""The kernels whose lanes are channels or pixels, asked for by name: what they are never chosen for
they compute all the same. And empty batches, whatever kernel is asked for."""

import random

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import torch_dnnl

OPS = torch.ops.torch_dnnl
TOLERANCE = {  # of the error's norm over the result's
    torch.float64: 1e-13,
    torch.float32: 2e-5,
    torch.bfloat16: 2**-8 + 2e-5,
    torch.float16: 2**-11 + 2e-5,
}


@pytest.mark.parametrize("algorithm", torch_dnnl.build_info()["kernels"]["cpu"]["convolution"])
def test_empty_batches(algorithm: str) -> None:
    attributes = ([1] * 2, [1] * 2, [1] * 2, [1] * 2, "none", 1, "NCX", "OIX", algorithm)
    src, grad = torch.randn(0, 16, 8, 8), torch.randn(0, 32, 8, 8)
    weights = torch.randn(32, 16, 3, 3)
    assert OPS.convolution(src, weights, None, *attributes).shape == grad.shape
    assert OPS.convolution_backward_data(grad, weights, [8, 8], *attributes).shape == src.shape
    grads = OPS.convolution_backward_weights(grad, src, [3, 3], *attributes)
    assert torch.equal(grads, torch.zeros(32, 16, 3, 3))


def in_random_order(choose: random.Random, values: Tensor) -> Tensor:
    """The same tensor with its dimensions in another order in memory."""
    order = choose.sample(range(values.dim()), values.dim())
    back = [order.index(d) for d in range(len(order))]
    return values.permute(order).contiguous().permute(back)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("algorithm", ["pixel_lanes", "channel_lanes"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_groups_of_any_size(algorithm: str, dtype: torch.dtype, rank: int) -> None:
    choose = random.Random(rank)

    def pick(*values: int) -> list[int]:
        return [choose.choice(values) for _ in range(rank)]

    for _ in range(6):
        kernel, strides, dilations = pick(1, 2, 3, 5, 8), pick(1, 1, 2, 3, 5), pick(1, 1, 2, 3)
        before, after = pick(0, 1, 6), pick(0, 2, 5)
        least = [(k - 1) * d + 1 - b for k, d, b in zip(kernel, dilations, before)]
        size = [max(n, m) for n, m in zip(pick(6, 9, 13 if rank < 3 else 7), least)]
        groups = choose.choice((1, 2, 5))
        ic, oc = choose.choice((1, 3, 17)), choose.choice((1, 9, 23))
        attributes = (strides, before, after, dilations, "none", groups, "NCX", "OIX")
        src = in_random_order(choose, torch.randn(2, groups * ic, *size).to(dtype))
        weights = in_random_order(choose, torch.randn(groups * oc, ic, *kernel).to(dtype))
        bias = torch.randn(groups * oc).to(dtype)
        shape = OPS.convolution(src, weights, bias, *attributes, "reference").shape
        grad = in_random_order(choose, torch.randn(shape).to(dtype))
        for operator, *tensors, last in (
            (OPS.convolution, src, weights, bias),
            (OPS.convolution_backward_data, grad, weights, size),
            (OPS.convolution_backward_weights, grad, src, kernel),
        ):
            ours = operator(*tensors, last, *attributes, algorithm).double()
            wide = [values.double() for values in tensors]
            last = last if isinstance(last, list) else last.double()
            exact = operator(*wide, last, *attributes, "reference")
            assert (ours - exact).norm() <= TOLERANCE[dtype] * exact.norm()


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("channels", [16, 24, 33, 96])
def test_depthwise_in_channels_last(dtype: torch.dtype, channels: int) -> None:
    """Vectors of channels stay in the images; the last may begin in the one before. Gradients, too,
    are of memory that is not zero."""
    torch.manual_seed(channels)
    for kernel, stride, dilation, padding in [
        ((3, 3), 1, 1, 1),
        ((3, 3), 2, 1, (1, 0)),
        ((5, 5), 2, 1, 2),
        ((7, 7), 1, 1, 3),
        ((2, 3), 3, 1, 0),
        ((3, 3), 1, 2, 2),
    ]:
        x, w = torch.randn(2, channels, 13, 37), torch.randn(channels, 1, *kernel)
        x, w = (t.to(dtype).contiguous(memory_format=torch.channels_last) for t in (x, w))
        bias = torch.randn(channels).to(dtype)
        results = []
        for convolve, arguments in (
            (F.conv2d, (x.double(), w.double(), bias.double())),
            (torch_dnnl.functional.conv2d, (x, w, bias)),
        ):
            inputs = [t.clone().requires_grad_() for t in arguments]
            with torch_dnnl.conv_algorithm("channel_lanes"):
                y = convolve(*inputs, stride, padding, dilation, channels)
                torch.manual_seed(1)
                grad = torch.randn(y.shape).to(dtype).contiguous(memory_format=torch.channels_last)
                y.backward(grad.to(y.dtype))
            results.append([y, *(t.grad for t in inputs)])
        for actual, expected in zip(results[1], results[0], strict=True):
            error = (actual.double() - expected).norm() / expected.norm()
            assert error <= TOLERANCE[dtype], (kernel, stride, dilation, error)
