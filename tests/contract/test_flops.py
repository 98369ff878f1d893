"""What torch counts of our operators: FlopCounterMode and the profiler, beside what they count of
torch's."""

import pytest
import torch
from torch.profiler import profile
from torch.utils.flop_counter import FlopCounterMode

import torch_dnnl.functional as D


def flops_of(call):
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    "n, sizes, kernel, groups",
    [
        (1, (3, 4, 11), (5,), 1),
        (2, (2, 6, 9, 8), (3, 3), 1),
        (2, (2, 6, 9, 8), (3, 1), 2),
        (2, (2, 6, 9, 8), (3, 3), 6),
        (3, (1, 3, 5, 6, 7), (1, 2, 3), 3),
    ],
)
@pytest.mark.parametrize("wanted", ["input", "weight", "both"])
def test_operations_are_counted_as_those_of_torch(n, sizes, kernel, groups, wanted):
    def train(module):
        x = torch.randn(sizes, requires_grad=wanted != "weight")
        w = torch.randn(12, sizes[1] // groups, *kernel, requires_grad=wanted != "input")
        y = getattr(module, f"conv{n}d")(x, w, torch.zeros(12), 1, 1, 1, groups)
        y.square().sum().backward()
        return y.numel() * w[0].numel()

    products, passes = train(D), 3 if wanted == "both" else 2
    assert flops_of(lambda: train(D)) == 2 * products * passes
    if groups == 1 or wanted == "input":  # torch counts all pairs of channels in that of weights
        assert flops_of(lambda: train(torch.nn.functional)) == 2 * products * passes


def test_operations_of_a_transposed_convolution():
    def train(module):
        x = torch.randn(2, 6, 5, 7, requires_grad=True)
        w = torch.randn(6, 4, 3, 2, requires_grad=True)
        y = module.conv_transpose2d(x, w, torch.zeros(4), 2, 1)
        y.square().sum().backward()

    products = 2 * 6 * 5 * 7 * 4 * 3 * 2
    assert flops_of(lambda: train(D)) == flops_of(lambda: train(torch.nn.functional))
    assert flops_of(lambda: train(D)) == 2 * products * 3


@pytest.mark.parametrize("weights_format", ["OIX", "XIO"])
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("src, weights", [(True, True), (True, False), (False, True)])
def test_operations_of_a_fused_activation(data_format, weights_format, src, weights):
    x = torch.randn((2, 6, 9, 8) if data_format == "NCX" else (2, 9, 8, 6), requires_grad=src)
    shape = (12, 3, 3, 3) if weights_format == "OIX" else (3, 3, 3, 12)
    w = torch.randn(shape, requires_grad=weights)

    def train():
        options = {"data_format": data_format, "weights_format": weights_format, "groups": 2}
        y = D.convolution(x, w, pads_begin=1, pads_end=1, activation="silu", **options)
        y.square().sum().backward()

    products = 2 * 12 * 9 * 8 * 3 * 3 * 3
    assert flops_of(train) == 2 * products * (1 + src + weights)


def profiled(call, **options):
    with profile(**options) as profiler:
        call()
    return profiler.key_averages()


@pytest.mark.parametrize("stride, padding, dilation, groups", [(1, 1, 1, 1), (2, 0, 2, 3)])
def test_profiler_counts_forward_passes_as_those_of_torch(stride, padding, dilation, groups):
    x = torch.randn(2, 6, 9, 8, requires_grad=True)
    w = torch.randn(12, 6 // groups, 3, 2, requires_grad=True)

    def train(module):
        y = module.conv2d(x, w, torch.zeros(12), stride, padding, dilation, groups)
        y.square().sum().backward()

    def counted(module):
        rows = profiled(lambda: train(module), with_flops=True)
        return sum(row.flops for row in rows if "conv" in row.key)

    assert counted(D) == counted(torch.nn.functional) > 0


@pytest.mark.parametrize(
    "spatial, kernel", [((11,), (5,)), ((9, 8), (3, 2)), ((5, 6, 7), (1, 2, 3))]
)
@pytest.mark.parametrize("activation", [None, "relu"])
def test_profiler_counts_every_rank_and_layout(spatial, kernel, activation):
    x, w = torch.randn(2, *spatial, 6), torch.randn(*kernel, 2, 12)
    options = {"data_format": "NXC", "weights_format": "XIO", "groups": 3}

    def call():
        return D.convolution(x, w, pads_begin=1, pads_end=2, activation=activation, **options)

    rows = profiled(call, with_flops=True)
    assert sum(row.flops for row in rows) == 2 * call().numel() * w[..., 0].numel()
    assert not any(row.key.startswith("aten::conv") for row in profiled(call))
