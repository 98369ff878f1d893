"""optimize: calls of convolutions that were checked once, for the same weights and sizes."""

import copy
import gc
import threading

import pytest
import torch
from checks import AUTO, check_values, randomized
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.profiler import ProfilerActivity, profile

import torch_dnnl
from torch_dnnl.functional._quick import quick
from torch_dnnl.graph import calls
from torch_dnnl.graph.optimize import optimize

PLAIN = quick("convolution_packed")


class Network(nn.Module):
    """Every kind of call: strides, groups, a transposed image, a residual and activations."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.Hardswish())
        self.depthwise = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.ELU(0.7))
        self.grouped, self.prelu = nn.Conv2d(16, 16, 1, groups=2), nn.PReLU(16)
        self.linear = nn.Linear(16, 16)

    def forward(self, x):
        x = self.stem(x)
        x = self.prelu(self.grouped(self.depthwise(x)) + x)
        return torch.relu(self.linear(x.permute(0, 2, 3, 1)))


@pytest.fixture
def network():
    torch.manual_seed(0)
    return randomized(Network())


def optimized_for_any_size(network):
    example = torch.randn(2, 3, 17, 18).to(network.linear.weight.dtype)
    return optimize(network, (example,), dynamic_shapes=({0: AUTO, 2: AUTO, 3: AUTO},))


def without_preparing(function, *args):
    before, calls._quick_convolution = calls._quick_convolution, PLAIN
    try:
        return function(*args)
    finally:
        calls._quick_convolution = before


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@torch.no_grad()
def test_same_bits_for_changing_images(network, dtype):
    optimized = optimized_for_any_size(network.to(dtype))
    images = [torch.randn(n, 3, h, 19).to(dtype) for n in (1, 2, 3) for h in (17, 5, 31)]
    images += [image.to(memory_format=torch.channels_last) for image in images]
    images += [image[:, :, ::2, 1:] for image in images]
    expected = [without_preparing(optimized, image) for image in images]
    for image, result in zip(images, expected, strict=True):
        before = calls._quick_convolution.prepared
        for _ in range(3):
            again = optimized(image)
            assert torch.equal(again, result) and again.stride() == result.stride()
        # All but the convolution with prelu, the second time and the third.
        assert calls._quick_convolution.prepared - before >= 2 * 3


def test_gradients_and_transforms(network):
    network = network.double()
    optimized = optimized_for_any_size(network)
    image = torch.randn(2, 3, 17, 18, dtype=torch.float64)
    with torch.no_grad():
        expected = [optimized(image) for _ in range(3)][-1]
    image.requires_grad_()
    result = optimized(image)
    (gradient,) = torch.autograd.grad(result.sum(), image)
    torch.testing.assert_close(gradient, torch.autograd.grad(network(image).sum(), image)[0])
    detached = image.detach()
    assert not optimized(detached).requires_grad
    tangent = torch.randn_like(detached)
    _, found = torch.func.jvp(optimized, (detached,), (tangent,))
    torch.testing.assert_close(found, torch.func.jvp(network, (detached,), (tangent,))[1])
    torch.testing.assert_close(torch.func.vmap(optimized)(detached[None])[0], expected)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(detached, tangent)
        moved = torch.autograd.forward_ad.unpack_dual(optimized(dual)).tangent
    torch.testing.assert_close(moved, found)
    with torch.inference_mode():
        assert torch.equal(optimized(detached), expected)
        assert optimized(detached).is_inference()
    assert not optimized(detached).is_inference()


@torch.no_grad()
def test_modes(network):
    optimized, image = optimized_for_any_size(network), torch.randn(2, 3, 17, 18)
    expected = [optimized(image) for _ in range(3)][-1]
    known = calls._quick_convolution.prepared
    with torch.autocast("cpu", torch.bfloat16):
        assert optimized(image).dtype == torch.bfloat16
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        optimized(image)
    names = [event.key for event in profiled.key_averages()]
    assert "torch_dnnl::convolution_packed" in names
    with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
        optimized(image)
    assert counter.get_total_flops() > 0
    assert calls._quick_convolution.prepared == known
    assert torch.equal(optimized(image), expected)
    with pytest.raises(TypeError, match="expected weights to have the type of src"):
        optimized(image.to(torch.float64))


@torch.no_grad()
def test_changed_weights(network):
    """New tensors and new memory are other weights. A copy has weights of its own."""
    optimized, image = optimized_for_any_size(network), torch.randn(2, 3, 17, 18)
    expected = [optimized(image) for _ in range(3)][-1]
    changed = copy.deepcopy(optimized)
    biases = [t for name, t in changed.state_dict().items() if name.endswith("bias")]
    assert biases
    for bias in biases:
        bias += 1  # a kernel reads the memory of the bias
    moved = changed(image)
    assert not torch.equal(moved, expected) and torch.equal(optimized(image), expected)
    for bias in changed.parameters():
        bias.data = bias.data.clone()
    for name, buffer in changed.named_buffers():
        if name.endswith("bias"):
            buffer.data = buffer.data - 1
    torch.testing.assert_close(without_preparing(changed, image), changed(image), rtol=0, atol=0)


@torch.no_grad()
def test_weights_come_to_an_end(network):
    references = []
    for _ in range(3):
        optimized = optimized_for_any_size(network)
        optimized(torch.randn(2, 3, 17, 18))
        storages = [t.untyped_storage() for t in optimized.state_dict().values()]
        references += [StorageWeakRef(storage) for storage in storages]
        del optimized, storages
    gc.collect()  # modules of torch.fx are in cycles
    assert references and all(reference.expired() for reference in references)


@torch.no_grad()
def test_more_weights_than_are_known_before_some_are_forgotten():
    image, kept = torch.randn(1, 4, 2, 2), torch.randn(4, 4, 1, 1)
    options = (*[None] * 4, "none", 1, "NCX", "OIX", "auto", *[None] * 5, False, None)
    expected = calls.convolution(image, kept, None, *options)
    for _ in range(600):
        weights = torch.randn(4, 4, 1, 1)
        result = calls.convolution(image, weights, None, *options)
        torch.testing.assert_close(result, torch.conv2d(image, weights))
        assert torch.equal(calls.convolution(image, weights, None, *options), result)
    assert torch.equal(calls.convolution(image, kept, None, *options), expected)


@torch.no_grad()
def test_calls_that_are_more_than_a_kernel():
    """Slopes are copied in every call, so no such call is prepared."""
    image, weights = torch.randn(1, 4, 5, 6), torch.randn(4, 4, 1, 1)
    options = (*[None] * 4, "none", 1, "NCX", "OIX", "auto", None, "prelu", None, None)
    slope, before = torch.rand(4), calls._quick_convolution.prepared
    for _ in range(3):
        result = calls.convolution(image, weights, None, *options, slope, False, None)
        torch.testing.assert_close(result, torch.prelu(torch.conv2d(image, weights), slope))
    assert calls._quick_convolution.prepared == before


@torch.no_grad()
def test_threads(network):
    optimized = optimized_for_any_size(network)
    images = [torch.randn(2, 3, 17 + i, 18) for i in range(6)]
    expected = [without_preparing(optimized, image) for image in images]
    wrong = []

    def run():
        for _ in range(30):
            for image, result in zip(images, expected, strict=True):
                if not torch.equal(optimized(image), result):
                    wrong.append(image.shape)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_without_the_library(network, monkeypatch):
    monkeypatch.setattr(calls, "_quick_convolution", lambda *args: NotImplemented)
    image = torch.randn(2, 3, 17, 18)
    check_values(torch_dnnl.optimize(network, image), network, image)


def quantized_call(**given):
    """The arguments of `quantized_convolution_packed` by position."""
    schema = torch.ops.torch_dnnl.quantized_convolution_packed.default._schema
    defaults = {a.name: a.default_value for a in schema.arguments if a.has_default_value()}
    return [(defaults | given)[argument.name] for argument in schema.arguments]


@pytest.mark.parametrize("has_residual", [False, True])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.float32])
@torch.no_grad()
def test_quantized(dtype, has_residual):
    plain = quick("quantized_convolution_packed")
    weights = torch.randint(-128, 128, (16, 16, 3, 3), dtype=torch.int8)
    given = {
        "weights": weights,
        "bias": torch.randn(16),
        "pads_begin": (1, 1),
        "pads_end": (1, 1),
        "data_format": "NCX",
        "weights_format": "OIX",
        "activation": "relu",
        "dtype": dtype,
        "src_scale_value": 0.02,
        "src_zero_point_value": 3.0,
        "weights_scale": torch.rand(16) / 100,
        "dst_scale": torch.tensor(0.3) if dtype != torch.float32 else None,
        "residual_scale_value": 0.1,
        "packed": torch.ops.torch_dnnl.pack_quantized_weights(
            weights, (2, 16, 9, 11), pads_begin=(1, 1), data_format="NCX", weights_format="OIX"
        ),
    }
    images = [
        torch.randint(0, 256, (n, 16, 9, 11), dtype=torch.uint8).to(memory_format=layout)
        for n in (1, 2)
        for layout in (torch.contiguous_format, torch.channels_last)
    ]
    for image in images:
        given["src"] = image
        if has_residual:
            given["residual"] = torch.randint(0, 256, image.shape, dtype=torch.uint8)
        args = quantized_call(**given)
        before = calls._quick_quantized.prepared
        for _ in range(3):
            result, expected = calls.quantized_convolution(*args), plain(*args)
            assert torch.equal(result, expected) and result.stride() == expected.stride()
        assert calls._quick_quantized.prepared - before == 2
    changed = given["weights_scale"] if dtype == torch.float32 else given["dst_scale"]
    changed *= 2
    result = calls.quantized_convolution(*args)
    assert torch.equal(result, plain(*args)) and not torch.equal(result, expected)
