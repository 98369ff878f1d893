"""convert(fuse=True) of what the models of timm and torchvision are made of: frozen batch norms and
those that go on with an activation, TensorFlow's padding, layers that a block may have (`getattr`),
loops over `self.children()`."""

import copy

import pytest
import torch
from test_fuse import check, ready
from torch import nn
from torch.nn import functional as F

import torch_dnnl


def norm_act(act, drop=None, channels=6):
    """A layer with the class of timm's, by name, and what it does."""

    def forward(self, x):
        y = F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, 0.1,
            self.eps,
        )  # fmt: skip
        return self.act(self.drop(y))

    names = {"__module__": "timm.layers.norm_act", "__qualname__": "BatchNormAct2d"}
    layer = type("BatchNormAct2d", (nn.BatchNorm2d,), {"forward": forward, **names})(channels)
    layer.drop, layer.act = drop or nn.Identity(), act
    return layer


class Block(nn.Module):
    def __init__(self, conv, norm):
        super().__init__()
        self.conv, self.bn = conv, norm

    def forward(self, x):
        x = self.conv(x)
        x = self.bn(x)
        aa = getattr(self, "aa", None)
        if aa is not None:
            x = self.aa(x)
        return x


class Stage(nn.Module):
    def __init__(self, *blocks):
        super().__init__()
        for i, block in enumerate(blocks):
            self.add_module(f"b{i}", block)

    def forward(self, x):
        for block in self.children():
            x = block(x)
        return x


def conv(i=4, o=6):
    return nn.Conv2d(i, o, 3, padding=1, bias=False)


@pytest.mark.parametrize(
    ("act", "operators"),
    [
        (nn.SiLU(inplace=True), ["convolution_fused"]),
        (nn.Identity(), ["convolution"]),
        (nn.Hardsigmoid(), ["convolution", "hardsigmoid"]),
    ],
)
def test_batch_norm_with_an_activation(act, operators):
    model = Stage(Block(conv(), norm_act(act)))
    fused = check(model, expected=operators)
    assert list(fused.state_dict()) == list(model.state_dict())


def test_batch_norm_with_dropout_and_an_activation():
    fused = check(nn.Sequential(conv(), norm_act(nn.ReLU(), nn.Dropout(0.5))))
    x = torch.randn(2, 4, 7, 6)
    fused[1].drop.train()
    assert not torch.equal(fused(x), fused(x))


def test_hooks_of_the_activation_are_called():
    norm, seen = norm_act(nn.ReLU()), []
    norm.act.register_forward_hook(lambda *args: seen.append(1))
    fused = torch_dnnl.convert(ready(nn.Sequential(conv(), norm)), fuse=True)
    fused(torch.randn(1, 4, 5, 5))
    assert seen == [1]


def test_frozen_batch_norm():
    def forward(self, x):
        scale = self.weight * (self.running_var + self.eps).rsqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)

    members = {"forward": forward, "__module__": "torchvision.ops.misc"}
    norm = type("FrozenBatchNorm2d", (nn.Module,), members)()
    norm.eps = 1e-3
    for name in ("weight", "bias", "running_mean", "running_var"):
        norm.register_buffer(name, torch.rand(6) + 0.5)
    fused = check(nn.Sequential(conv(), norm, nn.ReLU()))
    assert "0.bias" not in fused.state_dict()


def test_subclasses_stay():
    norm = norm_act(nn.ReLU())
    norm.__class__ = type("More", (type(norm),), {})
    check(nn.Sequential(conv(), norm), expected=["convolution", "native_batch_norm", "relu"])


def test_padding_of_tensorflow():
    def forward(self, x):
        h, w = (
            max(0, (-(-x.shape[i + 2] // self.stride[i]) - 1) * self.stride[i] + 3 - x.shape[i + 2])
            for i in range(2)
        )
        x = F.pad(x, (w // 2, w - w // 2, h // 2, h - h // 2))
        return F.conv2d(x, self.weight, self.bias, self.stride)

    members = {"forward": forward, "__module__": "timm.layers.conv2d_same"}
    same = type("Conv2dSame", (nn.Conv2d,), members)
    block = Block(same(4, 6, 3, stride=2, bias=False), norm_act(nn.SiLU()))
    for shape in ((2, 4, 7, 6), (1, 4, 8, 9)):
        fused = check(copy.deepcopy(block), shape)
        assert isinstance(fused.conv, same)


def test_a_layer_that_a_block_may_have():
    block = Block(conv(), nn.BatchNorm2d(6))
    block.aa = nn.AvgPool2d(2)
    check(Stage(block, Block(conv(6, 4), nn.BatchNorm2d(4))), expected=[
        "convolution", "avg_pool2d", "convolution",
    ])  # fmt: skip


def test_a_layer_that_a_block_gets_or_loses():
    model = ready(
        nn.Sequential(Block(conv(), norm_act(nn.ReLU())), Block(conv(6), norm_act(nn.ReLU())))
    )
    model[1].aa = nn.Sigmoid()
    fused, x = torch_dnnl.convert(model, fuse=True), torch.randn(2, 4, 7, 6)
    torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)
    for network in (model, fused):
        network[0].aa = nn.Tanh()
        del network[1].aa
    torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)


def test_children_that_come_later():
    model = ready(Stage(Block(conv(), norm_act(nn.ReLU()))))
    fused, x, last = torch_dnnl.convert(model, fuse=True), torch.randn(2, 4, 7, 6), nn.Tanh()
    model.add_module("last", last)
    fused.add_module("last", last)
    torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)


class Twice(Block):
    """The variable is not what the attribute is, the second time."""

    def forward(self, x):
        aa = getattr(self, "aa", None)
        for layer in (0, 1):
            if aa is not None:
                x = self.conv(x)
            aa = layer
        return self.bn(self.conv(x))


class Invented(Block):
    def __getattr__(self, name):
        return nn.Tanh() if name == "aa" else super().__getattr__(name)


class Computed(Block):
    @property
    def aa(self):
        return nn.Tanh()


class Shadowed(Block):
    def forward(self, x, getattr=lambda *args: torch.tanh):
        y = self.bn(self.conv(x))
        aa = getattr(self, "aa", None)
        if aa is not None:
            y = aa(y)
        return y


class Handed(Block):
    def forward(self, x):
        aa = getattr(self, "conv", None)
        return self.bn(self.conv(x)) + self.helper(aa, x)

    def helper(self, layer, x):
        return layer(x)


class Renamed(Block):
    def forward(self, x):
        y = self.bn(self.conv(x))
        layer = getattr(self, "conv", None)
        return y + layer(x)


class OwnChildren(Stage):
    def children(self):
        yield self.b0.conv

    def forward(self, x):
        y = self.b0(x)
        for layer in self.children():
            y = y + layer(x)
        return y


@pytest.mark.parametrize("cls", [Twice, Invented, Computed, Shadowed, Handed, Renamed])
def test_what_getattr_may_hide(cls):
    model = ready(cls(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)))
    x = torch.randn(2, 4, 5, 6)
    torch.testing.assert_close(
        torch_dnnl.convert(model, fuse=True)(x), model(x), rtol=1e-4, atol=1e-5
    )


def test_children_of_their_own():
    model = ready(OwnChildren(Block(conv(), norm_act(nn.Identity()))))
    x = torch.randn(2, 4, 5, 6)
    torch.testing.assert_close(
        torch_dnnl.convert(model, fuse=True)(x), model(x), rtol=1e-4, atol=1e-5
    )


def test_variables_may_have_the_names_of_methods():
    class Node(Block):
        def forward(self, x, children=None, values=None):
            values = [] if children is None else [child + 1 for child in children]
            y = self.conv(x)
            y = self.bn(y)
            return torch.cat([y, *values], 1)

    check(Node(conv(), nn.BatchNorm2d(6)), expected=["convolution", "native_batch_norm", "cat"])


def drop_path(p=0.3):
    """A layer with the class of timm's, by name, and what it does."""

    def forward(self, x):
        return x if not self.training else x * (torch.rand(len(x), 1, 1, 1) >= p) / (1 - p)

    names = {"__module__": "timm.layers.drop", "__qualname__": "DropPath"}
    return type("DropPath", (nn.Module,), {"forward": forward, **names})()


class Residual(nn.Module):
    """The residual of a stochastic depth, as EfficientNets have it."""

    def __init__(self, drop):
        super().__init__()
        self.block = nn.Sequential(conv(4, 4), nn.BatchNorm2d(4))
        self.drop = drop

    def forward(self, x):
        result = self.block(x)
        result = self.drop(result)
        result += x
        return result


@pytest.mark.parametrize("drop", [nn.Dropout(0.5), drop_path()], ids=repr)
def test_layers_that_pass_their_input_on_in_eval_mode(drop):
    fused, x = check(Residual(drop)), torch.randn(2, 4, 7, 6)
    before = fused(x)
    fused.drop.train()
    assert not torch.equal(fused(x), before)
    fused.eval()
    torch.testing.assert_close(fused(x), before, rtol=0, atol=0)
    fused.drop.register_forward_hook(lambda *args: args[-1] * 2)
    torch.testing.assert_close(fused(x), 2 * before - x, rtol=1e-4, atol=1e-5)


def test_layers_that_drop_in_eval_mode_too():
    model = Residual(nn.Dropout(0.5)).eval()
    model.drop.train()
    fused, x = torch_dnnl.convert(model, fuse=True), torch.randn(2, 4, 7, 6)
    assert not torch.equal(fused(x), fused(x))
    kind = type("Dropout", (nn.Dropout,), {"forward": lambda self, x: x * 3})
    check(Residual(kind(0.5)), expected=["convolution", "mul", "add"])
