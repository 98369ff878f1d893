"""convert(fuse=True): whoever calls a convolution by itself, however he gets at it, has its own
result, and whoever reads its weights has those."""

import collections
import dataclasses
import functools
import weakref
from typing import Any

import pytest
import torch
from test_fuse import operators, ready
from torch import nn

import torch_dnnl


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)


class Next(Parts):
    def forward(self, x):
        first = next(self.parameters())
        return self.norm(self.conv(x)) * first.sum()


class Named(Parts):
    def forward(self, x):
        y = self.norm(self.conv(x))
        return y * sum(p.sum() for name, p in self.named_parameters() if "conv" in name)


class State(Parts):
    def forward(self, x):
        y = self.norm(self.conv(x))
        return y * self.state_dict()["conv.weight"].sum()


class Buffer(Parts):
    def forward(self, x):
        y = self.norm(self.conv(x))
        return y * self.get_buffer("norm.running_mean").sum()


class Visitor(Parts):
    def forward(self, x):
        y, seen = self.norm(self.conv(x)), []
        self.apply(seen.append)
        return y + seen[0](x)


class Spelled(Parts):
    def forward(self, x):
        y = self.norm(self.conv(x))
        return y + self.__getattr__("conv")(x)


class Alias(Parts):
    def __getattr__(self, name):
        return super().__getattr__("conv" if name == "alias" else name)

    def forward(self, x):
        y = self.norm(self.conv(x))
        return y + self.alias(x) if y is not x else x


def adding(forward):
    @functools.wraps(forward)
    def wrapper(self, x):
        return forward(self, x) + self.conv(x)

    return wrapper


class Decorated(Parts):
    @adding
    def forward(self, x):
        return self.norm(self.conv(x))


class Patched(Parts):
    def forward(self, x):
        return self.norm(self.conv(x))


Patched.forward = adding(Patched.forward)


def hooked():
    model = nn.Sequential(Patched(), nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)))
    model[1].register_forward_hook(lambda module, args, result: result + module[0](args[0]))
    return model


class Items(nn.Module):
    """Calls items of what it holds, in a forward that is no graph."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4))

    def forward(self, x, times=1):
        y = self.layers(x)
        if times > 0:
            y = y + self.layers[0](x)
        return y


class Parted(Items):
    def forward(self, x, times=1):
        return self.layers(x) + self.layers[:times](x)


class Nested(Items):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([self.layers])

    def forward(self, x, times=1):
        y = self.layers[0](x)
        return y + self.layers[0][0](x) if times > 0 else y


@pytest.mark.parametrize(
    "make",
    [
        *(Next, Named, State, Buffer, Visitor, Spelled, Alias, Decorated, Patched, hooked),
        *(Items, Parted, Nested),
    ],
)
def test_forwards_that_reach_their_convolutions(make):
    model, x = ready(make()), torch.randn(2, 4, 6, 5)
    fused = torch_dnnl.convert(model, fuse=True)
    with torch.no_grad():
        torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)


class Branches(Items):
    """Only whole items."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([self.layers])

    def forward(self, x, times=1):
        if times == 1:
            return [self.layers[0](x)]
        return [layer(x) for layer in self.layers]


def test_whole_items_have_graphs():
    model, x = ready(Branches()), torch.randn(2, 4, 6, 5)
    fused = torch_dnnl.convert(model, fuse=True)
    for times in (1, 2):
        torch.testing.assert_close(fused(x, times), model(x, times), rtol=1e-4, atol=1e-5)
    assert operators(fused, x) == ["convolution"]


class ByMethod(Parts):
    def features(self, x):
        return self.conv(x)

    def forward(self, x):
        return torch.relu(self.norm(self.features(x)))


def test_methods_that_call_a_convolution_alone_may_be_called():
    model, x = ready(ByMethod()), torch.randn(2, 4, 6, 5)
    fused = torch_dnnl.convert(model, fuse=True)
    torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fused.features(x), model.features(x), rtol=1e-4, atol=1e-5)


class Plain:
    def __init__(self, kept):
        self.kept = kept


@dataclasses.dataclass
class Data:
    kept: Any


class Slots:
    __slots__ = ("kept",)

    def __init__(self, kept):
        self.kept = kept


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.norm.running_mean.normal_()

    def forward(self, x):
        return self.norm(self.conv(x))


def closure(conv):
    return lambda x: conv(x)


@pytest.mark.parametrize(
    "kept",
    [
        lambda conv: conv.forward,
        lambda conv: conv.__call__,
        lambda conv: [{"calls": [conv.forward]}],
        lambda conv: ({"k": [([{"deep": {conv}}],)]},),
        lambda conv: functools.partial(conv, input=None),
        closure,
        Plain,
        Data,
        Slots,
        lambda conv: collections.UserList([conv]),
        lambda conv: collections.ChainMap({0: conv}),
        weakref.ref,
        lambda conv: [weakref.proxy(conv)],
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_convolutions_that_are_kept_elsewhere(kept):

    class Keeper(nn.Module):
        def __init__(self):
            super().__init__()
            self.pair = Pair()
            self.kept = kept(self.pair.conv)

        def forward(self, x):
            return self.pair(x)

    model = Keeper().eval()
    x = torch.randn(2, 4, 5, 6)
    convolved = model.pair.conv(x)
    fused = torch_dnnl.convert(model, inplace=True, fuse=True)
    assert operators(fused, x) == ["convolution"]
    torch.testing.assert_close(fused.pair.conv(x), convolved)
