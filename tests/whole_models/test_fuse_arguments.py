"""convert(fuse=True): forwards that ask which arguments they got."""

import copy

import pytest
import torch
from test_fuse import operators, ready
from torch import nn
from torch.nn import functional as F

import torch_dnnl

FUSED, PLAIN = ["convolution_fused"], ["convolution", "native_batch_norm"]
X, Y = torch.randn(2, 4, 6, 5), torch.randn(2, 4, 6, 5)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()


class Shortcut(Block):
    """The block of a DLA or ResNet."""

    def forward(self, x, shortcut=None, children=None):
        if shortcut is None:
            shortcut = x
        y = self.norm(self.conv(x))
        y += shortcut
        return self.act(y)


class Conditional(Block):
    def forward(self, x, shortcut=None):
        shortcut = x if shortcut is None else shortcut * 2
        return F.relu(self.norm(self.conv(x)) + shortcut)


class Skip(Block):
    """The argument has no default."""

    def forward(self, x, skip):
        y = self.norm(self.conv(x))
        if skip is not None:
            y = y + skip
        return self.act(y)


class Activate(Block):
    def forward(self, x, activate: bool = True, scale: float = 2.0):
        y = self.norm(self.conv(x * scale))
        if activate:
            y = self.act(y)
        return y


class Deep(Block):
    """The test is two methods away, under another name."""

    def forward(self, x, shortcut=None):
        return self.first(x, other=shortcut)

    def first(self, image, other):
        return self.second(image, other)

    def second(self, image, residual=0):
        y = self.norm(self.conv(image))
        if residual is not None:
            y = y + residual
        return self.act(y)


class Rounds(Block):
    """What the test finds in the second round, the first one made."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)])

    def forward(self, x, before=None):
        for layer in self.layers:
            x = F.relu(self.norm(self.conv(x)))
            if before is not None:
                x = x + before
            before = layer(x)
        return x + before


class Truth(Block):
    """Which a tensor of many elements has not."""

    def forward(self, x, shortcut=None):
        y = self.norm(self.conv(x))
        return y + shortcut if shortcut else y


class Equal(Block):
    def forward(self, x, shortcut=None):
        y = self.norm(self.conv(x))
        return y if shortcut == None else y + shortcut  # noqa: E711


class Four(Block):
    def forward(self, x, a=None, b=None, c=None, d=None):
        y = self.norm(self.conv(x))
        for_all = x
        if a is not None:
            for_all = for_all + a
        if b is not None:
            for_all = for_all + b
        if c is not None:
            for_all = for_all + c
        if d is not None:
            for_all = for_all + d
        return y + for_all


class Changed(Block):
    """No longer what was given."""

    def forward(self, x, shortcut=None):
        shortcut = x
        return F.relu(self.norm(self.conv(x)) + (x if shortcut is None else shortcut))


# The positional and the named arguments after the image, and the operators of the call.
NO = {}
CASES = [
    (Shortcut, (), NO, FUSED),
    (Shortcut, (Y,), NO, FUSED),
    (Shortcut, (None,), NO, FUSED),
    (Shortcut, (), {"shortcut": Y}, FUSED),
    (Shortcut, (), {"shortcut": Y, "children": [X]}, FUSED),
    (Shortcut, (), {"children": None}, FUSED),
    (Shortcut, (2.0,), NO, [*PLAIN, "add", "relu"]),
    (Conditional, (), NO, FUSED),
    (Conditional, (Y,), NO, ["mul", *FUSED]),
    (Skip, (None,), NO, FUSED),
    (Skip, (), {"skip": Y}, FUSED),
    (Skip, (3,), NO, [*PLAIN, "add", "relu"]),
    (Activate, (), NO, ["mul", *FUSED]),
    (Activate, (True,), {"scale": 3.0}, ["mul", *FUSED]),
    (Activate, (False,), NO, ["mul", *PLAIN]),
    (Activate, (1,), NO, ["mul", *PLAIN, "relu"]),
    (Deep, (), NO, FUSED),
    (Deep, (Y,), NO, FUSED),
    (Deep, (True,), NO, [*PLAIN, "add", "relu"]),
    (Truth, (), NO, ["convolution"]),
    (Truth, (torch.ones(1),), NO, [*PLAIN, "add"]),
    (Equal, (), NO, ["convolution"]),
    (Equal, (Y,), NO, [*PLAIN, "add"]),
    (Four, (), NO, [*PLAIN, "add"]),
    (Four, (Y, Y), {"d": Y}, [*PLAIN, *["add"] * 4]),
    (Changed, (), NO, [*PLAIN, "add", "relu"]),
    (Rounds, (), NO, None),
    (Rounds, (Y,), NO, None),
]


@pytest.mark.parametrize(("kind", "args", "kwargs", "expected"), CASES)
def test_each_way_to_call(kind, args, kwargs, expected):
    model = ready(kind())
    fused, before = torch_dnnl.convert(model, fuse=True), copy.deepcopy(model.state_dict())
    result = fused(X.clone(), *args, **kwargs)
    torch.testing.assert_close(result, model(X, *args, **kwargs), rtol=1e-4, atol=1e-5)
    if expected is not None:
        with torch.no_grad():
            names = operators(lambda: fused(X, *args, **kwargs))
        assert [name for name in names if name != "_local_scalar_dense"] == expected
    torch.testing.assert_close(fused.state_dict(), before, rtol=0, atol=0)
