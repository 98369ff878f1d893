"""convert(fuse=True): models that a hunt for wrong results found, as they are and changed later."""

import functools

import pytest
import torch
from test_fuse import ready
from test_fuse_of_others import norm_act
from torch import nn
from torch.nn import functional as F

import torch_dnnl


def pair():
    return nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4))


class Parts(nn.Module):
    def __init__(self, act=None, norm=None):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(4, 4, 1, bias=False), norm or nn.BatchNorm2d(4)
        self.act = act or nn.SiLU()

    def body(self, x):
        x = self.conv(x)
        return self.act(self.bn(x))


class Gamma(Parts):
    def forward(self, x):
        gamma = getattr(self, "gamma", None)
        x = self.act(self.bn(self.conv(x)))
        if gamma is not None:
            x = x * self.gamma
        return x


class Halved(Parts):
    halve = False

    def forward(self, x):
        x = self.act(self.bn(self.conv(x)))
        if self.halve:
            return x * 0.5
        return x


class Hard(nn.Module):
    def forward(self, x):
        hard = getattr(self, "hard", False)
        if hard:
            return F.hardtanh(x)
        return F.relu(x)


class Extra(Parts):
    def __init__(self):
        super().__init__()
        self.extra = nn.ModuleList()

    def forward(self, x):
        x = self.act(self.bn(self.conv(x)))
        for layer in self.extra:
            x = layer(x)
        return x


class Outer(nn.Sequential):
    """An activation after a module that has an empty list."""

    def __init__(self):
        super().__init__(Inner(), nn.SiLU())


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.extra, self.body = nn.ModuleList(), pair()

    def forward(self, x):
        for layer in self.extra:
            x = layer(x)
        return self.body(x)


def plain(act=None):
    model = Parts(act)
    return nn.Sequential(model.conv, model.bn, model.act)


def halved():
    model = Halved()
    model.halve = True
    return model


CHANGES = {
    "buffer": (Gamma, lambda m: m.register_buffer("gamma", torch.tensor(3.0))),
    "parameter": (Gamma, lambda m: m.register_parameter("gamma", nn.Parameter(torch.ones(1) * 3))),
    "deleted": (halved, lambda m: delattr(m, "halve")),
    "attribute of an activation": (lambda: plain(Hard()), lambda m: setattr(m[2], "hard", True)),
    "list": (Extra, lambda m: m.extra.append(nn.Tanh())),
    "list of an inner module": (Outer, lambda m: m[0].extra.append(nn.Tanh())),
    "hooks": (
        plain,
        lambda m: (
            setattr(m[2], "_forward_hooks", type(m[2]._forward_hooks)()),
            m[2].register_forward_hook(lambda module, args, result: result * 2),
        ),
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_later(name):
    make, change = CHANGES[name]
    model, x = ready(make()), torch.randn(2, 4, 5, 6)
    fused = torch_dnnl.convert(model, fuse=True)
    torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)
    for network in (model, fused):
        change(network)
    torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)


def test_hooks_of_all_modules_after_a_second_conversion():
    x = torch.randn(2, 4, 5, 6)
    fused = torch_dnnl.convert(torch_dnnl.convert(ready(plain()), fuse=True))
    expected = fused(x)
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, args, result: result * 2 if isinstance(module, nn.SiLU) else None
    )
    with handle:
        torch.testing.assert_close(fused(x), expected * 2, rtol=1e-4, atol=1e-5)


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = pair()

    def __getitem__(self, i):
        return self.block[i]

    def forward(self, x):
        return self.block(x)


class Items(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = Holder()

    def forward(self, x, times=1):
        y = self.layers(x)
        return y + self.layers[0](x) if times > 0 else y


class OwnCall(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = pair()

    def __call__(self, x):
        return super().__call__(x) + self.block[0](x)

    def forward(self, x):
        return self.block(x)


class Again(nn.Module):
    """The activation of a batch norm, by its name."""

    def __init__(self):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(4, 4, 1), norm_act(nn.ReLU(), channels=4)

    def forward(self, x):
        y = self.bn(self.conv(x))
        return self.bn.act(x - y)


class Shadowed(Parts):
    aa = None

    def __init__(self):
        super().__init__()
        self.scale = [1.0]
        self._modules["aa"] = nn.Tanh()

    def forward(self, x):
        aa = getattr(self, "aa", None)
        x = self.act(self.bn(self.conv(x)))
        if aa is not None:
            return x
        return x * self.scale[0]


class Upsampled(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.bn = nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4)

    def forward(self, x, size=(10, 11)):
        y = self.up(x, size)
        y = self.bn(y)
        return y if size is None else y + 1


class Tested(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = pair()

    def forward(self, x):
        y = self.block(x)
        if isinstance(self.block[1], nn.BatchNorm2d) and self.block[0].bias is None:
            y = y * 2
        return y


class Counted(Tested):
    def forward(self, x):
        y = self.block(x)
        if len(list(self.parameters())) > 2:
            y = y * 2
        return y


class Stem(Tested):
    @functools.cached_property
    def stem(self):
        return self.block[0]

    def forward(self, x, times=1):
        y = self.block(x) + self.stem(x)
        return y * 2 if times > 0 else y


class Expanding(Tested):
    def expand(self, x):
        return self.block[0](x)


class NamedAsOfTensors(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Expanding()

    def forward(self, x, times=1):
        y = self.inner.block(x) + self.inner.expand(x)
        return y * 2 if times > 0 else y


class Kept(Tested):
    def __init__(self):
        super().__init__()
        self.kept = [self.block]

    def forward(self, x):
        first = self.kept[0]
        return self.block(x) + first[0](x)


@pytest.mark.parametrize(
    "make",
    [
        *(Items, OwnCall, lambda: nn.Sequential(OwnCall()), Again, Shadowed, Upsampled),
        *(Tested, Counted, Stem, NamedAsOfTensors, Kept),
    ],
)
def test_results(make):
    model, x = ready(make()), torch.randn(2, 4, 5, 6)
    expected = model(x)
    fused = torch_dnnl.convert(model, fuse=True)
    torch.testing.assert_close(fused(x), expected, rtol=1e-4, atol=1e-5)


def test_a_dropout_that_goes_on():
    model = ready(nn.Sequential(nn.Conv2d(4, 6, 1), norm_act(nn.ReLU(), nn.Dropout(0.5))))
    model[1].drop.train()
    fused, x = torch_dnnl.convert(model, fuse=True), torch.randn(2, 4, 5, 6)
    results = []
    for network in (model, fused):
        torch.manual_seed(0)
        results.append(network(x))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
    assert not torch.equal(fused(x), fused(x))
