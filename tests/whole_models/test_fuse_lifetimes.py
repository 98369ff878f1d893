"""convert(fuse=True): what a fused model leaves behind, and what of it outlives it."""

import copy
import gc
import io
import linecache
import weakref
from abc import ABCMeta
from typing import ClassVar, Generic, TypeVar

import pytest
import torch
from test_fuse import ready
from test_fuse_surroundings import Block, Residual, pair
from torch import nn

import torch_dnnl
from torch_dnnl.fusion import folds

X = torch.randn(2, 4, 6, 6)


def test_memory():
    """A fused model goes when it is dropped, without the collector of cycles; and what it keeps of
    weights with their batch norms, when it is reverted."""
    model = ready(Block(Residual(), nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))))
    torch_dnnl.convert(model, fuse=True)  # what is made once
    gc.collect()
    kept = sum(map(len, folds._made.values()))
    gc.disable()
    try:
        fused = torch_dnnl.convert(copy.deepcopy(model), fuse=True)
        fused(X)
        assert sum(map(len, folds._made.values())) > kept
        fused = torch_dnnl.revert(fused, inplace=True)
        assert sum(map(len, folds._made.values())) == kept
        fused = torch_dnnl.convert(fused, inplace=True, fuse=True)
        fused(X)
        gone = [weakref.ref(part) for part in fused.modules()]
        weights = weakref.ref(fused.conv.weight)
        del fused
        assert {part() for part in gone} == {None} and weights() is None
    finally:
        gc.enable()


class Registry(type):
    classes: ClassVar[dict[str, type]] = {}

    def __init__(cls, name, bases, members):
        super().__init__(name, bases, members)
        cls.classes[name] = cls


def test_classes_that_are_registered():
    class Known(Block, metaclass=Registry):
        pass

    class KnownConv(nn.Conv2d, metaclass=Registry):
        pass

    class Abstract(nn.Conv2d, metaclass=ABCMeta):
        pass

    model = ready(Known(KnownConv(4, 4, 1), Abstract(4, 4, 1)))
    converted = torch_dnnl.convert(model, fuse=True)
    assert type(converted.others[0]) is KnownConv is Registry.classes["KnownConv"]
    assert type(converted) is Known is Registry.classes["Known"]
    assert isinstance(converted.others[1], torch_dnnl.nn.Conv2d)


def test_sources_of_graphs_do_not_pile_up():
    fused = pair(Block())[1]
    before = len(linecache.cache)
    for _ in range(3):
        copy.deepcopy(fused)(X)
    assert len(linecache.cache) == before


@pytest.mark.parametrize("name", ["", "conv", "others.0"])
def test_forwards_that_were_kept(name):
    """As wrappers do, before the model is reverted."""
    model, fused = pair(Block(nn.ConvTranspose2d(4, 4, 2)))
    kept = fused.get_submodule(name).forward
    torch_dnnl.revert(fused, inplace=True)
    expected = model.get_submodule(name)(X)
    torch.testing.assert_close(kept(X), expected, rtol=1e-4, atol=1e-4)


def test_classes_that_are_told_of_subclasses():
    known = {}

    class Told(nn.Conv2d):
        def __init_subclass__(cls, **kwargs):
            super().__init_subclass__(**kwargs)
            assert cls.__name__ not in known
            known[cls.__name__] = cls

    class Mine(Told):
        pass

    class Parameter(nn.Conv2d, Generic[TypeVar("T")]):
        pass

    converted = torch_dnnl.convert(nn.Sequential(Mine(4, 4, 1), Parameter(4, 4, 1)))
    assert type(converted[0]) is Mine is known["Mine"]
    assert isinstance(converted[1], torch_dnnl.nn.Conv2d)


def test_a_layer_that_was_replaced_goes():
    _, fused = pair(nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU()))
    weight = weakref.ref(fused[0].weight)
    fused[0] = torch_dnnl.convert(nn.Conv2d(4, 4, 1)).eval()
    expected = fused(X)
    gc.collect()
    assert weight() is None
    fused.eval()  # fuses again
    torch.testing.assert_close(fused(X), expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad(), torch.profiler.profile() as profile:
        fused(X)
    assert "aten::batch_norm" not in {event.key for event in profile.key_averages()}


def test_copies_by_attributes():
    activation = nn.functional.relu

    class Copied(Block):
        def forward(self, x):
            return activation(self.norm(self.conv(x)))

        def __deepcopy__(self, memo):
            result = self.__class__.__new__(self.__class__)
            memo[id(self)] = result
            for name, value in vars(self).items():
                object.__setattr__(result, name, copy.deepcopy(value, memo))
            return result

    model, fused = pair(Copied())
    torch.testing.assert_close(copy.deepcopy(fused)(X), model(X), rtol=1e-4, atol=1e-4)
    torch.save(vars(fused), io.BytesIO())
