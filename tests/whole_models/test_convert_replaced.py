"""convert and revert: methods that somebody replaced on a module, and not on its class."""

import copy
import functools
import types

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.nn.utils.parametrize import type_before_parametrizations
from torch.utils._python_dispatch import TorchDispatchMode

import torch_dnnl

X = torch.randn(1, 2, 5, 5)


class Libraries(TorchDispatchMode):
    """The libraries of the operators that compute something."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(name in str(func) for name in ("convolution", "resample", "upsample")):
            self.names.add(func.namespace)
        return func(*args, **(kwargs or {}))


def libraries(model):
    with torch.no_grad(), Libraries() as seen:
        model(X)
    return seen.names


class Hook:
    """A hook of accelerate."""

    def __init__(self, owner):
        self.owner, self.seen = owner, []

    def pre_forward(self, module, *args, **kwargs):
        self.seen.append(module)
        return args, kwargs

    def post_forward(self, module, output):
        self.seen.append(module)
        return output * 2


def new_forward(module, *args, **kwargs):
    args, kwargs = module._hf_hook.pre_forward(module, *args, **kwargs)
    return module._hf_hook.post_forward(module, module._old_forward(*args, **kwargs))


def with_hook(module, owner):
    """What accelerate's `add_hook_to_module` does."""
    module._old_forward, module._hf_hook = module.forward, Hook(owner)
    partial = functools.partial(new_forward, module)
    module.forward = functools.update_wrapper(partial, module._old_forward)


def with_method(module, owner):
    with_hook(module, owner)
    module.forward = types.MethodType(new_forward, module)


def with_hooks(module, owner):
    """Twice, as a partial of a partial."""
    with_hook(module, owner)
    module.forward = functools.partial(functools.partial(new_forward), module)


def doubled(layer, forward, *args):
    layer._hf_hook.seen.append(layer)
    return forward(*args) * 2


def with_conv_forward(layer, owner):
    layer._hf_hook = Hook(owner)
    layer._conv_forward = functools.partial(doubled, layer, layer._conv_forward)


REPLACE = [with_hook, with_method, with_hooks]


class Parent(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 2, 3), nn.Sequential(nn.Conv2d(2, 2, 1), nn.ReLU())

    def forward(self, x):
        return self.second(self.first(x))


def check(result, model, expected, name):
    """The result has the model's values, by the method that was replaced on the submodule."""
    hook, own = result.get_submodule(name)._hf_hook, model.get_submodule(name)._hf_hook
    hook.seen.clear()
    torch.testing.assert_close(result(X), expected, rtol=1e-4, atol=1e-5)
    assert set(hook.seen) == {result.get_submodule(name)} and hook.owner is result
    assert (hook is own) == (result is model) and (hook is own or own.seen == [])


@pytest.mark.parametrize("how", ["convert", "revert"])
@pytest.mark.parametrize("replace", REPLACE)
@pytest.mark.parametrize("name", ["0", "0.second", ""])
def test_parents(name, replace, how):
    """A replaced forward runs over the copy and its new layers, as in a copy by `copy.deepcopy`."""
    model = nn.Sequential(Parent(), nn.Conv2d(2, 1, 1)).eval()
    if how == "revert":
        torch_dnnl.convert(model, inplace=True)
    replace(model.get_submodule(name), model)
    expected = model(X)
    model.get_submodule(name)._hf_hook.seen.clear()
    result = getattr(torch_dnnl, how)(model)
    for copied in (copy.deepcopy(model), result):
        check(copied, model, expected, name)
    assert libraries(result) == {"aten" if how == "revert" else "torch_dnnl"}


@pytest.mark.parametrize("replace", REPLACE)
def test_parents_inplace(replace):
    model = nn.Sequential(Parent(), nn.Conv2d(2, 1, 1)).eval()
    replace(model[0], model)
    expected = model(X)
    assert torch_dnnl.convert(model, inplace=True) is model
    check(model, model, expected, "0")
    assert libraries(model) == {"torch_dnnl"}
    check(torch_dnnl.revert(model, inplace=True), model, expected, "0")
    assert libraries(model) == {"aten"}


class Mine(nn.Conv2d):
    pass


def same_of_timm(*args):
    def forward(self, x):
        size = 2 * [self.kernel_size[0] - 1]
        pads = [pad for each in size for pad in (each // 2, each - each // 2)]
        return nn.functional.conv2d(nn.functional.pad(x, pads), self.weight, self.bias)

    members = {"forward": forward, "__module__": "timm.layers.conv2d_same"}
    return type("Conv2dSame", (nn.Conv2d,), members)(*args)


LAYERS = {
    "Conv2d": nn.Conv2d,
    "padded": functools.partial(nn.Conv2d, padding="same", padding_mode="circular"),
    "subclass": Mine,
    "parametrized": lambda *args: parametrizations.weight_norm(nn.Conv2d(*args)),
    "Conv2dSame": same_of_timm,
    "ConvTranspose2d": nn.ConvTranspose2d,
    "Upsample": lambda *args: nn.Upsample(scale_factor=3),
}
CASES = [(make, replace) for make in LAYERS for replace in REPLACE] + [
    (make, with_conv_forward) for make in LAYERS if make in ("Conv2d", "padded", "subclass")
]


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(("make", "replace"), CASES)
def test_layers_are_left_alone(make, replace, inplace, capsys):
    model = nn.Sequential(LAYERS[make](2, 2, 3), nn.ReLU()).eval()
    replace(model[0], model)
    expected, old = model(X), type(model[0])
    model[0]._hf_hook.seen.clear()
    result = torch_dnnl.convert(model, inplace=inplace, verbose=True)
    method = "_conv_forward" if replace is with_conv_forward else "forward"
    line = capsys.readouterr().out
    assert line.startswith("left alone 0: ") and line.endswith(f", its {method} was replaced\n")
    assert type(result[0]) is old
    check(result, model, expected, "0")
    assert libraries(result) == {"aten"}


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(("make", "replace"), CASES)
def test_layers_are_reverted(make, replace, inplace):
    """A layer gets its class back. The method that somebody replaced stays, and may call a method
    of the class that the layer had."""
    model = nn.Sequential(LAYERS[make](2, 2, 3), nn.ReLU()).eval()
    old = type_before_parametrizations(model[0])
    torch_dnnl.convert(model, inplace=True)
    replace(model[0], model)
    expected = model(X)
    model[0]._hf_hook.seen.clear()
    result = torch_dnnl.revert(model, inplace=inplace)
    assert type_before_parametrizations(result[0]) is old
    check(result, model, expected, "0")


def test_methods_replaced_on_a_class(monkeypatch, capsys):
    """They are not replaced on the layer."""
    model = nn.Sequential(nn.Conv2d(2, 2, 3), Mine(2, 2, 1))
    monkeypatch.setattr(Mine, "forward", lambda self, x: x * 2)
    result = torch_dnnl.convert(model, verbose=True)
    assert [type(layer) for layer in result] == [torch_dnnl.nn.Conv2d, Mine]
    assert "with its own forward" in capsys.readouterr().out
    torch.testing.assert_close(result(X), model(X), rtol=1e-4, atol=1e-5)
