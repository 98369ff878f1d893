"""convert: what programs see of the classes that it makes, and what becomes of changed ones."""

import copy
import functools
import inspect
import pickle

import pytest
import torch
from test_fuse import operators, ready
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import torch_dnnl

X = torch.randn(2, 8, 9, 9, generator=torch.Generator().manual_seed(1))


class Parts(nn.Module):
    def __init__(self, conv=nn.Conv2d):
        super().__init__()
        self.conv, self.norm = conv(8, 8, 1), nn.BatchNorm2d(8)


class Block(Parts):
    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


def fused(model):
    return torch_dnnl.convert(model, fuse=True)


def is_fused(model, *inputs):
    return not any("batch_norm" in name for name in operators(model, *inputs))


def check(model, *inputs):
    """The fused model, which has the model's results."""
    model = ready(model)
    result = fused(model)
    torch.testing.assert_close(result(*inputs), model(*inputs), rtol=1e-4, atol=1e-4)
    return result


# The layout of sums.


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(8, 8, 3, padding=1, groups=8), nn.BatchNorm1d(8)

    def forward(self, x):
        y = x.transpose(1, 2)
        y = y + self.norm(self.conv(y))
        return y.transpose(1, 2).view(-1, 8)


class Columns(Parts):
    def forward(self, x):
        y = x.transpose(2, 3)
        y = F.relu(torch.add(y, self.norm(self.conv(y))))
        return y.transpose(2, 3).view(x.shape[0], -1)


class Residual(Parts):
    def forward(self, x):
        return F.relu(x + self.norm(self.conv(x)))


def test_sums_lie_in_memory_as_their_first_operand_does():
    check(Tokens(), torch.randn(2, 9, 8))
    check(Columns(), X)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        x = X.contiguous(memory_format=memory_format)
        model = check(Residual().to(memory_format=memory_format), x)
        assert operators(model, x) == ["convolution_fused"]


# Classes that change afterwards.


class Helper(Parts):
    def helper(self, x):
        return x * 3

    def forward(self, x):
        return self.helper(F.relu(self.norm(self.conv(x))))


class Around(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Pair()

    def forward(self, x):
        return F.relu(self.part(x))


class Pair(Parts):
    def forward(self, x):
        return self.norm(self.conv(x))


class OwnConv(nn.Conv2d):
    pass


def test_methods_that_are_set_on_the_class_of_a_module(monkeypatch):
    model = ready(Helper())
    result = fused(model)
    assert is_fused(result, X)
    monkeypatch.setattr(type(result), "helper", lambda self, x: x + 100, raising=False)
    torch.testing.assert_close(result(X), F.relu(model.norm(model.conv(X))) + 100)
    model = ready(Around())
    result = fused(model)
    assert operators(result, X) == ["convolution_fused"]
    monkeypatch.setattr(type(result.part), "forward", lambda self, x: x + 100)
    torch.testing.assert_close(result(X), X + 100)


@pytest.mark.parametrize("name", ["forward", "_conv_forward"])
def test_methods_that_are_set_on_the_class_of_a_convolution(name, monkeypatch):
    model = ready(Block(OwnConv))
    result = fused(model)
    assert is_fused(result, X)
    method = getattr(type(result.conv), name)
    changed = lambda self, input, *args: method(self, input + 1, *args)  # noqa: E731
    monkeypatch.setattr(type(result.conv), name, changed, raising=False)
    torch.testing.assert_close(result(X), model(X + 1), rtol=1e-4, atol=1e-4)


def test_modules_get_another_class():
    model = ready(Helper())
    result = fused(model)
    assert is_fused(result, X)
    for network in (model, result):
        cls = type(network)
        patched = type("Patched", (cls,), {"helper": lambda self, x: x + 100})
        network.__class__ = patched
    torch.testing.assert_close(result(X), model(X), rtol=1e-4, atol=1e-4)
    result.eval()
    torch.testing.assert_close(result(X), model(X), rtol=1e-4, atol=1e-4)


class Reversed(nn.ModuleList):
    def __iter__(self):
        return iter(list(super().__iter__())[::-1])


class Loop(Parts):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Tanh(), nn.Softplus()])

    def forward(self, x):
        x = self.norm(self.conv(x))
        for layer in self.layers:
            x = layer(x)
        return x


def test_lists_get_another_class():
    model = ready(Loop())
    result = fused(model)
    assert is_fused(result, X)
    for network in (model, result):
        network.layers.__class__ = Reversed
    torch.testing.assert_close(result(X), model(X), rtol=1e-4, atol=1e-4)


# What is asked of a forward.


class Embedded(Parts):
    def forward(self, x, embedding=None):
        y = F.relu(self.norm(self.conv(x)))
        return y if embedding is None else y + embedding


class Up(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.ConvTranspose2d(8, 8, 3, 2, 1), nn.BatchNorm2d(8)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


def test_signatures_are_those_of_the_classes():
    for model in (Embedded(), Up()):
        result = fused(ready(model))
        assert is_fused(result, X)
        for ours, theirs in ((result, model), (result.conv, model.conv)):
            first, second = (inspect.signature(m.forward).parameters for m in (ours, theirs))
            assert list(first) == list(second)
            first, second = (inspect.getfullargspec(m.forward) for m in (ours, theirs))
            assert (first.args, first.varargs) == (second.args, second.varargs)
    with pytest.raises(TypeError, match="activation"):
        result.conv(X, activation="relu")
    torch.testing.assert_close(result.conv(X, output_size=[18, 18]), model.conv(X, [18, 18]))


# Classes that ask for their class.


def decorated(method):
    @functools.wraps(method)
    def call(*args):
        return method(*args)

    return call


class Top(nn.Module):
    label = property(lambda self: "top")

    def __init__(self, conv=nn.Conv2d):
        super().__init__()
        self.conv, self.norm = conv(8, 8, 1), nn.BatchNorm2d(8)

    def reset(self):
        return "reset"

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


class Decorated(Top):
    @decorated
    def reset(self):
        return super(self.__class__, self).reset()


class NoGrad(Top):
    @torch.no_grad()
    def reset(self):
        return super(self.__class__, self).reset()


class Property(Top):
    label = property(lambda self: super(self.__class__, self).label + "!")


class Variable(Top):
    def reset(self):
        cls = type(self)
        return super(cls, self).reset()


class Bases(Top):
    def reset(self):
        return self.__class__.__bases__[0].reset(self)


class Closure(Top):
    def reset(self):
        found = [name for name, _ in self.named_modules() if name in self._modules]
        return super(self.__class__, self).reset() if found else None


class Inner(Top):
    def reset(self):
        return (lambda: super(self.__class__, self).reset())()


class Base(Top):
    def reset(self):
        return type(self).__base__.reset(self)


class Order(Top):
    def reset(self):
        return type(self).mro()[1].reset(self)


CLASSES = [Decorated, NoGrad, Property, Variable, Bases, Closure, Inner, Base, Order]


@pytest.mark.parametrize("cls", CLASSES)
def test_classes_that_ask_for_their_class(cls):
    model = check(cls(), X)
    assert (model.reset(), model.label.rstrip("!")) == ("reset", "top")
    assert type(model) is cls
    assert is_fused(fused(ready(Top())), X)


class AskingConv(nn.Conv2d):
    @torch.no_grad()
    def reset_parameters(self):
        super(self.__class__, self).reset_parameters()


class PickledConv(nn.Conv2d):
    def __reduce__(self):
        return self.__class__, (8, 8, 1), vars(self)


class ShadowingConv(nn.Conv2d):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._pads = self._function = 3


def test_layers_that_cannot_have_another_class():
    model = nn.Sequential(AskingConv(8, 8, 1), PickledConv(8, 8, 1)).eval()
    result = torch_dnnl.convert(model)
    result[0].reset_parameters()
    again = pickle.loads(pickle.dumps(result))
    assert torch.equal(again(X), result(X))
    assert [type(layer) for layer in result] == [AskingConv, PickledConv]


def test_attributes_of_subclasses_hide_none_of_ours():
    layer = ShadowingConv(8, 8, 3, padding=1, padding_mode="circular")
    result = torch_dnnl.convert(nn.Sequential(layer))
    assert type(result[0]) is not ShadowingConv
    torch.testing.assert_close(result(X), layer(X), rtol=1e-4, atol=1e-4)


def test_nobody_is_deleted_by_a_look_at_it():
    class Features(Block):
        def __init__(self):
            super().__init__()
            self.inner, self.seen = Block(), []
            self.handle = self.inner.register_forward_hook(lambda *args: self.seen.append(1))

        def __del__(self):
            self.handle.remove()

        def forward(self, x):
            return self.inner(F.relu(self.norm(self.conv(x))))

    model = torch_dnnl.convert(ready(Features()), inplace=True, fuse=True)
    model(X)
    model.eval()(X)
    assert len(model.seen) == 2


# What else was wrong, or raised.


class Stochastic(Parts):
    def __init__(self, drop):
        super().__init__()
        self.drop = drop

    def forward(self, x):
        return x + self.drop(self.norm(self.conv(x)))


class Power(Parts):
    def forward(self, x):
        return F.relu(self.norm(self.conv(x))) * 1j ** x.shape[0]


class Dots(Parts):
    def forward(self, Ellipsis):
        return F.relu(self.norm(self.conv(Ellipsis))[..., 0])


class Wrap(nn.Module):
    def forward(self, x):
        return x.as_subclass(Doubling)


class Doubling(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func in (F.relu, torch.relu) else result


class Wrapped(Parts):
    def __init__(self):
        super().__init__()
        self.wrap = Wrap()

    def forward(self, x):
        return F.relu(self.norm(self.conv(self.wrap(x))))


MODELS = {
    "probability-in-a-tensor": lambda: Stochastic(nn.Dropout(torch.tensor(0.1))),
    "activation-with-a-tensor": lambda: Stochastic(nn.Hardswish(inplace=torch.tensor(False))),
    "complex-power": Power,
    "argument-called-ellipsis": Dots,
    "tensor-of-a-subclass": Wrapped,
}


@pytest.mark.parametrize("name", MODELS)
def test_values(name):
    with torch.no_grad():
        check(MODELS[name](), X)


def test_conversions_of_weights_that_do_not_fit_or_have_no_values():
    model = ready(nn.Sequential(Block(), Block()))
    model[1].conv.weight, model[1].conv.bias = nn.Parameter(torch.randn(4, 8, 1, 1)), None
    result = fused(model)
    torch.testing.assert_close(result[0](X), model[0](X), rtol=1e-4, atol=1e-4)
    with torch._subclasses.FakeTensorMode():
        fake = Block().eval()
    fused(fake)


@pytest.mark.parametrize("name", ["conv.weight", "norm.running_mean", "conv"])
def test_attributes_in_the_place_of_tensors_and_modules(name):
    model = ready(Block())
    result = fused(model)
    assert is_fused(result, X)
    for network in (model, result):
        path, _, last = name.rpartition(".")
        value = torch.tanh if name == "conv" else network.get_submodule(path)
        value = value if name == "conv" else getattr(value, last).detach() * 2
        vars(network.get_submodule(path))[last] = value
    with torch.no_grad():
        torch.testing.assert_close(result(X), model(X), rtol=1e-4, atol=1e-4)


class Halving(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        is_float = isinstance(result, torch.Tensor) and result.is_floating_point()
        return result * 0.5 if is_float and func._schema.name != "aten::detach" else result


@torch.no_grad()
def test_modes_see_the_forward_of_the_class_and_leave_nothing():
    model = ready(Block())
    with Halving():
        results = [fused(model)]
    results.append(fused(model))
    for result in results:
        copies = [copy.deepcopy(model), result]
        for network in copies:
            network.load_state_dict(copy.deepcopy(model.state_dict()))
            with Halving():
                network(X)
        with Halving():
            expected, actual = (network(X) for network in copies)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(result(X), model(X), rtol=1e-4, atol=1e-4)
        assert is_fused(result, X)
