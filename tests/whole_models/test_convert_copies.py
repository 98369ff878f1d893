"""convert and revert: what a copy has of its own, and what it shares with the model."""

import collections
import copy
import functools
import threading
import types
import weakref
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from test_fuse import ready
from test_fuse_classes import Block, X
from torch import nn
from torch.nn.utils import parametrizations

import torch_dnnl

COPY = {
    "convert": torch_dnnl.convert,
    "fuse": lambda model: torch_dnnl.convert(model, fuse=True),
    "revert": torch_dnnl.revert,
}


def prepared(model, how):
    """A model in eval mode that `COPY[how]` changes a copy of."""
    model = ready(model)
    return torch_dnnl.convert(model, inplace=True, fuse=True) if how == "revert" else model


class Equal(Block):
    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout()

    def __eq__(self, other):
        return type(other) is type(self)

    def __hash__(self):
        return 1


class Frozen(dict):
    def __setitem__(self, key, value):
        raise TypeError("it does not change")

    def __deepcopy__(self, memo):
        return self


class Counts(dict):
    def __setitem__(self, key, value):
        super().__setitem__(key, self.get(key, ()) + value)


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.scales = {layer: 1.0 + i for i, layer in enumerate(self.layers)}
        self.chosen, self.frozen, self.counts = {self.layers[1]}, Frozen(a=1), Counts()
        self.fixed, self.counts["a"] = frozenset(self.chosen), (1,)
        self.register_buffer("mask", torch.ones(1), persistent=False)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x) * self.scales[layer]
            x = x + 1 if layer in self.chosen else x
        return x


@pytest.mark.parametrize("fuse", [False, True])
def test_copies_of_dicts_and_sets(fuse):
    model = ready(Holder())
    names = list(model.state_dict())
    result = torch_dnnl.convert(model, fuse=fuse)
    torch.testing.assert_close(result(X), model(X), rtol=1e-4, atol=1e-4)
    assert list(result.scales) == list(result.layers) and result.chosen == {result.layers[1]}
    assert result.fixed == {result.layers[1]} != model.fixed
    assert (result.frozen, result.counts) == (model.frozen, model.counts)
    result.register_buffer("mask", torch.ones(1))
    assert list(model.state_dict()) == names != list(result.state_dict())


def test_modules_that_are_equal_are_copied_each():
    model = ready(nn.Sequential(nn.Sequential(Equal()), nn.Sequential(Equal())))
    result = torch_dnnl.convert(model)
    assert result[1][0] is not model[1][0]
    result.train()
    assert not model[1][0].training


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass
class Data:
    kept: Any
    rest: dict = field(default_factory=dict)


class Slots:
    __slots__ = ("kept",)

    def __init__(self, kept):
        self.kept = kept


class Mine(collections.OrderedDict):
    pass


class Identity:
    """A key for a dictionary of weak references."""


KEY = Identity()
# What holds two layers, and how to get them back.
CONTAINERS = {
    "list": (lambda a, b: [a, [b]], lambda kept: [kept[0], *kept[1]]),
    "tuple": (lambda a, b: (a, (b,)), lambda kept: [kept[0], *kept[1]]),
    "namedtuple": (Pair, list),
    "namedtuple in a list": (
        lambda a, b: [Pair(a, 1), Pair(b, 2)],
        lambda kept: [p[0] for p in kept],
    ),
    "deque": (lambda a, b: collections.deque([a, b], maxlen=5), list),
    "defaultdict": (
        lambda a, b: collections.defaultdict(list, x=[a, b]),
        lambda kept: [*kept["x"], *kept["none"]],
    ),
    "OrderedDict": (
        lambda a, b: collections.OrderedDict(x=a, y=b),
        lambda kept: list(kept.values()),
    ),
    "subclass of OrderedDict": (lambda a, b: Mine(x=a, y=b), lambda kept: list(kept.values())),
    "keys": (lambda a, b: {a: 1, b: 2}, list),
    "set": (lambda a, b: {a, b}, lambda kept: sorted(kept, key=lambda layer: layer.out_channels)),
    "frozenset": (
        lambda a, b: frozenset([a, b]),
        lambda kept: sorted(kept, key=lambda layer: layer.out_channels),
    ),
    "dataclass": (lambda a, b: Data(a, {"x": b}), lambda kept: [kept.kept, kept.rest["x"]]),
    "SimpleNamespace": (
        lambda a, b: types.SimpleNamespace(a=a, b=b),
        lambda kept: [kept.a, kept.b],
    ),
    "object with slots": (lambda a, b: Slots([a, b]), lambda kept: kept.kept),
    "UserList": (lambda a, b: collections.UserList([a, b]), list),
    "ChainMap": (
        lambda a, b: collections.ChainMap({0: a}, {1: b}),
        lambda kept: [kept[0], kept[1]],
    ),
    "partial": (lambda a, b: functools.partial(a, b), lambda kept: [kept.func, *kept.args]),
    "bound methods": (
        lambda a, b: (a.forward, b.extra_repr),
        lambda kept: [method.__self__ for method in kept],
    ),
    "cycle": (
        lambda a, b: (lambda kept: kept.append(kept) or kept)([a, b]),
        lambda kept: kept[2][:2],
    ),
    "weak keys": (
        lambda a, b: weakref.WeakKeyDictionary({KEY: [a, b]}),
        lambda kept: kept[KEY],
    ),
    "modules as weak keys": (
        lambda a, b: weakref.WeakKeyDictionary({a: 1, b: 2}),
        lambda kept: list(kept.keys()),
    ),
    "weak values": (
        lambda a, b: weakref.WeakValueDictionary({0: a, 1: b}),
        lambda kept: [kept[0], kept[1]],
    ),
    "weak references": (
        lambda a, b: (weakref.ref(a), weakref.ref(b)),
        lambda kept: [ref() for ref in kept],
    ),
}


class Keeper(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 1, 1), nn.Conv2d(1, 2, 1)
        self.kept = make(self.first, self.second)
        self.again = self.kept

    def forward(self, x):
        return self.second(self.first(x))


def places(model, layers):
    """The names of layers in a model; None for those of another model."""
    names = {id(layer): name for name, layer in model.named_modules()}
    return [names.get(id(layer)) for layer in layers]


@pytest.mark.parametrize("how", COPY)
@pytest.mark.parametrize(("make", "layers"), CONTAINERS.values(), ids=CONTAINERS)
def test_containers(make, layers, how):
    """A copy has the containers that `copy.deepcopy` gives, with the layers of the copy."""
    model = prepared(Keeper(make), how)
    kept, before = model.kept, layers(model.kept)
    expected, result = copy.deepcopy(model), COPY[how](model)
    assert type(result.kept) is type(expected.kept)
    assert places(result, layers(result.kept)) == places(expected, layers(expected.kept))
    assert (result.kept is kept) == (expected.kept is kept)
    assert result.again is result.kept
    assert model.kept is kept and all(a is b for a, b in zip(layers(kept), before))


@pytest.mark.parametrize("function", [torch_dnnl.convert, torch_dnnl.revert])
@pytest.mark.parametrize(("make", "layers"), CONTAINERS.values(), ids=CONTAINERS)
def test_containers_inplace(make, layers, function):
    model = Keeper(make)
    kept, before = model.kept, layers(model.kept)
    assert function(model, inplace=True).kept is kept
    assert all(a is b for a, b in zip(layers(kept), before))


class Tensors(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(1, 1, 1)
        self.register_buffer("mask", torch.ones(2), persistent=False)
        self.plain, self.made = torch.ones(3), self.layer.weight * 2
        self.outputs = [self.layer.bias.exp()]
        self.teacher = (nn.Linear(2, 2),)
        self.layer.register_forward_hook(functools.partial(self.scale, by=torch.ones(1)))
        self.layer.weight.register_hook(torch.neg)

    def scale(self, module, args, output, by):
        return output * by

    def tensors(self):
        (hook,) = self.layer._forward_hooks.values()
        own = [*self.parameters(), *self.buffers(), self.plain, self.made, *self.outputs]
        return [*own, *self.teacher[0].parameters(), hook.keywords["by"]]


@pytest.mark.parametrize("how", COPY)
def test_tensors_are_shared(how):
    model = prepared(Tensors(), how)
    result = COPY[how](model)
    assert all(a is b for a, b in zip(result.tensors(), model.tensors(), strict=True))
    result.outputs.clear()
    assert len(model.outputs) == 1
    assert result.teacher[0] is not model.teacher[0]


class Unregistered(nn.Module):
    """Modules, their functions and proxies that `copy.deepcopy` copies to other parameters or not
    at all."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(1, 1, 1)
        self.scripted = torch.jit.script(nn.Conv2d(1, 1, 1))
        self.function = torch.jit.script(doubled)
        self.proxies = [weakref.proxy(self.layer)]

    def forward(self, x):
        return self.function(self.scripted(self.layer(x)))


def doubled(x: torch.Tensor):
    return x * 2


@pytest.mark.parametrize("how", ["convert", "revert"])
def test_what_has_no_copies(how):
    model, x = prepared(Unregistered(), how), torch.randn(1, 1, 3, 3)
    result = COPY[how](model)
    torch.testing.assert_close(result(x), model(x))
    assert result.scripted is model.scripted and result.proxies[0] is model.proxies[0]
    assert all(a is b for a, b in zip(result.parameters(), model.parameters()))


class Locked(nn.Sequential):
    def __init__(self, *layers):
        super().__init__(*layers)
        self.lock = threading.Lock()


class Unlocked(Locked):
    """`copy.deepcopy` can copy it by its own methods."""

    def __getstate__(self):
        return {**super().__getstate__(), "lock": None}


@pytest.mark.parametrize("function", [torch_dnnl.convert, torch_dnnl.revert])
def test_what_cannot_be_copied(function):
    model = nn.Sequential(Locked(nn.Conv2d(1, 1, 1)))
    with pytest.raises(TypeError) as expected:
        copy.deepcopy(model)
    message = (
        rf"{function.__name__}: .* \(inplace=True .* got TypeError: cannot pickle '_thread.lock'"
    )
    with pytest.raises(TypeError, match=message) as error:
        function(model)
    assert str(error.value.__cause__) == str(expected.value)
    assert type(model[0][0]) is nn.Conv2d
    assert function(model, inplace=True) is model
    assert function(nn.Sequential(Unlocked(nn.Conv2d(1, 1, 1))))[0].lock is None


class Single(nn.Sequential):
    def __deepcopy__(self, memo):
        return self


def test_modules_whose_copies_are_themselves():
    """A change of such a copy would change the model."""
    model = nn.Sequential(Single(nn.Conv2d(1, 1, 1)))
    with pytest.raises(TypeError, match=r"convert: .* Single.__deepcopy__ returns the module"):
        torch_dnnl.convert(model)
    assert type(model[0][0]) is nn.Conv2d


# Modules of torch, of which its own copies lack something.


def test_graph_modules():
    """torch's copy of a GraphModule has no hooks, and not all attributes."""
    model = torch.fx.symbolic_trace(ready(nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU())))
    model.extra, model.note = nn.Conv2d(1, 1, 1), ["note"]
    model.register_buffer("mask", torch.ones(1), persistent=False)
    model.register_forward_hook(lambda module, args, output: module.note.append(1))
    result, x = torch_dnnl.convert(model), torch.randn(1, 1, 3, 3)
    torch.testing.assert_close(result(x), model(x))
    assert result.note == model.note == ["note", 1]
    assert list(result.state_dict()) == list(model.state_dict())
    assert isinstance(result.extra, torch_dnnl.nn.Conv2d)
    assert type(result) is not type(model) and result.graph.owning_module is result
    last = next(iter(reversed(result.graph.nodes)))
    last.args = (last.args[0].args[0],)  # without the activation
    result.recompile()
    assert result(x).min() < 0 <= model(x).min()


def test_exported_programs():
    """The hooks of an exported program check the inputs."""
    x = torch.randn(1, 1, 3, 3)
    model = torch.export.export(nn.Sequential(nn.Conv2d(1, 2, 1)), (x,)).module()
    result = torch_dnnl.convert(model)
    torch.testing.assert_close(result(x), model(x))
    for network in (model, result):
        with pytest.raises((AssertionError, RuntimeError)):
            network(torch.randn(1, 1, 4, 4))


class Wrapper(nn.Module):
    """Its attributes are also those of the module within."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    def forward(self, x):
        return self.inner(x) * 3


@pytest.mark.parametrize("inner", [torch.fx.symbolic_trace, parametrizations.weight_norm])
@pytest.mark.parametrize("wrapper", [Wrapper, functools.partial(torch.compile, backend="eager")])
def test_wrappers_of_modules_with_a_copy_of_their_own(wrapper, inner):
    """`copy.deepcopy` would give a copy of the module within."""
    model, x = wrapper(inner(nn.Conv2d(1, 1, 1))), torch.randn(1, 1, 3, 3)
    result = torch_dnnl.convert(nn.Sequential(model))[0]
    assert type(result) is type(model)
    assert next(result.children()) is not next(model.children())
    torch.testing.assert_close(result(x), model(x))


def test_compiled_calls_of_copies():
    """A copy of a module that calls its compiled original would run the original."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    model = ready(nn.Sequential(Block(), parametrizations.weight_norm(nn.Conv2d(8, 8, 1))))
    fused = torch_dnnl.convert(model, inplace=True, fuse=True)
    for module in fused.modules():
        module.compile(backend=backend)
    for result in (copy.deepcopy(fused)[0], torch_dnnl.convert(fused), torch_dnnl.revert(fused)):
        assert {module._compiled_call_impl for module in result.modules()} == {None}
        result(X)
    assert graphs == []
