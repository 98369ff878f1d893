"""convert(fuse=True): batch norms are a part of the weights only as long as these are what they
were."""

import copy
import gc

import pytest
import torch
from test_fuse import Block, operators, ready
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, vmap
from torch.nn.utils import prune

import torch_dnnl
from torch_dnnl.fusion import folds


def pair(**kwargs):
    return ready(nn.Sequential(nn.Conv2d(4, 4, 3, **kwargs), nn.BatchNorm2d(4), nn.ReLU()))


def write_data(model):
    model.eval()
    model[0].weight.data.mul_(2)
    model.eval()


def replace(layer, name):
    def change(model):
        value = torch.rand(4, generator=torch.Generator().manual_seed(0)) + 0.5
        kind = nn.Parameter if name in ("weight", "bias") else torch.Tensor
        setattr(model[layer], name, kind(value))

    return change


CHANGES = {
    "weights in place": lambda model: model[0].weight.mul_(2),
    "weights in inference mode": torch.inference_mode()(lambda model: model[0].weight.mul_(2)),
    "data in eval()": write_data,
    "other data": lambda model: setattr(model[0].weight, "data", model[0].weight.data * 2),
    "other bias": replace(0, "bias"),
    "other scale": replace(1, "weight"),
    "other mean": replace(1, "running_mean"),
    "variance in place": lambda model: model[1].running_var.add_(1),
    "eps": lambda model: setattr(model[1], "eps", 0.5),
    "state": lambda model: model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()}),
    "statistics of another image": lambda model: (
        model[1].train(),
        model(torch.ones(2, 4, 6, 5, dtype=model[0].weight.dtype)),
        model[1].eval(),
    ),
    "plain bias": lambda model: (
        delattr(model[0], "bias"),
        setattr(model[0], "bias", torch.ones(4)),
        model(torch.ones(2, 4, 6, 5)),
        setattr(model[0], "bias", torch.ones(4) * 3),
    ),
    "plain scale": lambda model: (
        delattr(model[1], "weight"),
        setattr(model[1], "weight", torch.ones(4)),
        model(torch.ones(2, 4, 6, 5)),
        setattr(model[1], "weight", torch.ones(4) * 3),
    ),
    "training of the norm": lambda model: model[1].train(),
    "no statistics": lambda model: (
        setattr(model[1], "running_mean", None),
        setattr(model[1], "running_var", None),
    ),
    "hook of the norm": lambda model: model[1].register_forward_hook(lambda *args: args[2] * 2),
    "hook of the convolution": lambda model: model[0].register_forward_hook(
        lambda *args: args[2] * 2
    ),
    "no scale, no shift": lambda model: (
        setattr(model[1], "weight", None),
        setattr(model[1], "bias", None),
    ),
    "parametrized": lambda model: nn.utils.parametrizations.weight_norm(model[0]),
    "pruned": lambda model: prune.l1_unstructured(model[0], "weight", amount=0.5),
    "double": lambda model: model.double(),
    "half": lambda model: model.bfloat16(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_later(name):
    model = pair()
    fused, x = torch_dnnl.convert(copy.deepcopy(model), fuse=True), torch.randn(2, 4, 6, 5)
    assert operators(fused, x) == ["convolution_fused"]
    with torch.no_grad():
        for network in (model, fused):
            CHANGES[name](network)
    dtype = model[0].weight.dtype
    tolerance = 5e-2 if dtype == torch.bfloat16 else 1e-4
    for record in (torch.no_grad(), torch.enable_grad(), torch.inference_mode()):
        with record:
            torch.testing.assert_close(
                fused(x.to(dtype)), model(x.to(dtype)), rtol=tolerance, atol=tolerance
            )


def test_training_goes_on():
    """A fused model is the model, whose batch norms learn in training mode."""
    model = ready(Block(None))
    fused = torch_dnnl.convert(copy.deepcopy(model), fuse=True)
    optimizers = [torch.optim.SGD(network.parameters(), 0.05) for network in (model, fused)]
    for step in range(4):
        x = torch.randn(3, 4, 5, 6)
        for network, optimizer in zip((model, fused), optimizers, strict=True):
            optimizer.zero_grad()
            network.train(step % 2 == 0)(x).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(fused.state_dict(), model.state_dict(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("cls", [torch.optim.SGD, torch.optim.Adam])
def test_optimizers_that_write_in_silence(cls):
    model = pair()
    fused, x = torch_dnnl.convert(copy.deepcopy(model), fuse=True), torch.randn(2, 4, 6, 5)
    optimizers = [cls(network.parameters(), 0.1, fused=True) for network in (model, fused)]
    for _ in range(3):
        for network, optimizer in zip((model, fused), optimizers, strict=True):
            optimizer.zero_grad()
            network(x).square().mean().backward()
            optimizer.step()
        with torch.no_grad():
            torch.testing.assert_close(fused(x), model(x), rtol=1e-2, atol=1e-2)
            expected = fused[2](fused[1](fused[0](x)))
            torch.testing.assert_close(fused(x), expected, rtol=1e-4, atol=1e-5)


def test_converted_in_inference_mode():
    model, x = pair(), torch.randn(2, 4, 6, 5)
    with torch.inference_mode():
        fused = torch_dnnl.convert(model, fuse=True)
        fused(x)
    x.requires_grad_()
    model.requires_grad_(False)
    for network in (fused, model):
        network(x).sum().backward()
    torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)
    assert operators(fused, x) == ["convolution_fused"]


def test_weights_of_inference_mode():
    with torch.inference_mode():
        model, x = pair(), torch.randn(2, 4, 6, 5)
        fused = torch_dnnl.convert(model, fuse=True)
        for network in (model, fused):
            network[0].weight.mul_(2)
        torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)


def test_transforms():
    model, x = pair(), torch.randn(3, 2, 4, 6, 5)
    fused = torch_dnnl.convert(model, fuse=True)
    weights = {name: value.detach() for name, value in model.named_parameters()}
    stacked = {name: torch.stack([value, value * 2, value - 1]) for name, value in weights.items()}

    def loss(network, values, image):
        return functional_call(network, values, (image,)).square().sum()

    for transform in (vmap, lambda f: vmap(grad(f))):
        results = [
            transform(lambda *args, n=network: loss(n, *args))(stacked, x)
            for network in (fused, model)
        ]
        torch.testing.assert_close(*results, rtol=1e-3, atol=1e-2)


def test_without_values():
    with FakeTensorMode():
        model = nn.Sequential(nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6), nn.ReLU()).eval()
        assert torch_dnnl.convert(model, fuse=True)(torch.randn(1, 4, 2, 2)).shape == (1, 6, 2, 2)
    model, x = pair(), torch.randn(2, 4, 6, 5)
    fused = torch_dnnl.convert(model, fuse=True)
    with FakeTensorMode(allow_non_fake_inputs=True):
        fused(x)
    model[0].weight.data.mul_(0.5)
    torch.testing.assert_close(fused.eval()(x), model(x), rtol=1e-4, atol=1e-5)
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6), nn.ReLU()).eval()
    fused = torch_dnnl.convert(model, fuse=True)
    assert fused(torch.empty(1, 4, 2, 2, device="meta")).shape == (1, 6, 2, 2)
    filled = fused.to_empty(device="cpu")
    filled.load_state_dict(nn.Sequential(nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6)).state_dict())
    x = torch.randn(2, 4, 3, 3)
    expected = filled[2](filled[1](filled[0](x)))
    torch.testing.assert_close(filled(x), expected, rtol=1e-4, atol=1e-5)


def test_memory_goes_with_the_model():
    gc.collect()
    before = len(folds._made)
    fused = torch_dnnl.convert(pair(), fuse=True)
    assert len(folds._made) == before + 1
    del fused
    gc.collect()
    assert len(folds._made) == before
