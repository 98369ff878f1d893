"""convert: what a converted copy has of its own, and what it shares with the model."""

import pytest
import torch
from test_fuse import ready
from test_fuse_classes import Block, X
from torch import nn

import torch_dnnl


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

    def __copy__(self):
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
