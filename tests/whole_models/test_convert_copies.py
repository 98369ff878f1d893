"""convert and revert: the result is a deep copy, and nothing done to it reaches the model."""

import copy
import functools
import threading
from itertools import chain

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import torch_dnnl

X = torch.randn(2, 4, 6, 5)


class Keeper(nn.Module):
    """A model with tensors and layers in every kind of place."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(4, 4, 1)
        self.block = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))
        self.tied = nn.Conv2d(4, 4, 1)
        self.tied.weight = self.layer.weight
        self.register_buffer("mask", torch.ones(2), persistent=False)
        self.plain, self.listed = torch.ones(3), [self.layer, ("name", self.block[0])]
        self.scales = {self.layer: 2.0}
        self.layer.register_forward_hook(functools.partial(self.scale, by=torch.ones(1)))
        self.layer.register_forward_hook(self.see)
        self.seen = []

    def scale(self, module, args, output, by):
        return output * by * self.scales[module]

    def see(self, module, args, output):
        self.seen.append(module)

    def forward(self, x):
        return self.tied(self.block(self.layer(x)))

    def tensors(self):
        hook = next(iter(self.layer._forward_hooks.values()))
        return [*self.parameters(), *self.buffers(), self.plain, hook.keywords["by"]]


def converted(how):
    """A model that `torch_dnnl.<how>` changes a copy of, and the copy."""
    model = Keeper().eval()
    if how == "revert":
        torch_dnnl.convert(model, inplace=True)
    return model, getattr(torch_dnnl, how)(model)


HOW = pytest.mark.parametrize("how", ["convert", "revert"])


@HOW
def test_a_copy_has_its_own_tensors(how):
    model, result = converted(how)
    before, expected = copy.deepcopy(model.tensors()), model(X)
    torch.testing.assert_close(result(X), expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        for tensor in result.tensors():
            tensor.add_(1)
    torch.testing.assert_close(model.tensors(), before, rtol=0, atol=0)
    torch.testing.assert_close(model(X), expected, rtol=0, atol=0)
    assert (result(X) - expected).abs().max() > 0.1


@HOW
def test_training_a_copy_leaves_the_model(how):
    model, result = converted(how)
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(result.train().parameters(), 0.1)
    result(X).square().sum().backward()
    optimizer.step()
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    assert not any(layer.training for layer in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


@HOW
def test_a_copy_has_its_own_objects(how):
    model, result = converted(how)
    assert not set(result.modules()) & set(model.modules())
    assert result.listed == [result.layer, ("name", result.block[0])]
    assert list(result.scales) == [result.layer]
    assert result.tied.weight is result.layer.weight
    result(X)
    assert (result.seen, model.seen) == ([result.layer], [])
    result.listed.clear()
    result.block.append(nn.ReLU())
    assert len(model.listed) == len(model.block) == 2


class Locked(nn.Sequential):
    def __init__(self, *layers):
        super().__init__(*layers)
        self.lock = threading.Lock()


class Computed(nn.Sequential):
    """Keeps the result of a computation with gradients."""

    def __init__(self, *layers):
        super().__init__(*layers)
        self.kept = self[0].weight * 2


class Single(nn.Sequential):
    def __deepcopy__(self, memo):
        return self


@HOW
@pytest.mark.parametrize(
    ("cls", "got"),
    [
        (Locked, "TypeError: cannot pickle '_thread.lock'"),
        (Computed, "RuntimeError: Only Tensors created explicitly"),
        (Single, "TypeError: the copy of Single is the module itself"),
    ],
)
def test_what_cannot_be_copied(how, cls, got):
    model, function = nn.Sequential(cls(nn.Conv2d(1, 1, 1))), getattr(torch_dnnl, how)
    message = rf"^{how}: expected module .* \(inplace=True needs no copy\), got {got}"
    with pytest.raises(TypeError, match=message):
        function(model)
    assert type(model[0][0]) is nn.Conv2d
    assert function(model, inplace=True) is model
    expected = torch_dnnl.nn.Conv2d if how == "convert" else nn.Conv2d
    assert type(model[0][0]) is expected


# Modules with copies of their own.


def programs():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph.code)
        return graph

    return graphs, backend


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("inner", [nn.Sequential, torch.fx.symbolic_trace])
def test_compiled_models_run_the_new_layers(inner, inplace):
    """`copy.deepcopy` of a compiled GraphModule gives the module within, which is not compiled."""
    torch._dynamo.reset()
    graphs, backend = programs()
    within = inner(nn.Sequential(nn.Conv2d(4, 4, 1)))
    model = torch.compile(within, backend=backend)
    expected = model(X)
    result = torch_dnnl.convert(model, inplace=inplace)
    is_compiled = inplace or inner is nn.Sequential
    assert (type(result) is type(model)) == is_compiled
    (layer,) = (part for part in result.modules() if isinstance(part, nn.Conv2d))
    assert type(layer) is torch_dnnl.nn.Conv2d
    torch.testing.assert_close(result(X), expected, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        layer.weight.zero_()
        torch.testing.assert_close(result(X), layer.bias[:, None, None].expand(2, 4, 6, 5))
        assert torch.equal(model(X), result(X)) == inplace
    assert any("torch_dnnl" in graph for graph in graphs) == is_compiled


def test_copies_do_not_call_what_module_compile_made():
    """It would run the layers of the original."""
    graphs, backend = programs()
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.Conv2d(4, 4, 1)))
    model = nn.Sequential(traced, parametrizations.weight_norm(nn.Conv2d(4, 4, 1)))
    for module in model.modules():
        module.compile(backend=backend)
    for result in (torch_dnnl.convert(model), torch_dnnl.revert(torch_dnnl.convert(model))):
        calls = {module._compiled_call_impl for module in result.modules()}
        result(X)
        assert calls == {None} and graphs == []


def test_modules_of_torchscript_are_copied():
    model = nn.Sequential(nn.Conv2d(4, 4, 1), torch.jit.script(nn.Conv2d(4, 4, 1)))
    result = torch_dnnl.convert(model)
    torch.testing.assert_close(result(X), model(X), rtol=1e-4, atol=1e-5)
    pointers = [p.data_ptr() for p in chain(model.parameters(), result.parameters())]
    assert len(set(pointers)) == 8
