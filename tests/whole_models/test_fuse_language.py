"""convert(fuse=True): statements and calls of which the record would be another program, what comes
before a forward, and layers that torch itself refuses."""

import copy
import importlib
import sys

import pytest
import torch
from test_fuse import ready
from test_fuse_surroundings import Block, both, pair
from torch import cat, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

import torch_dnnl
from torch_dnnl.fusion.definitions import definition

torch.fx.wrap("cat")
X = torch.randn(2, 4, 6, 6)


class Body(Block):
    def body(self, x):
        return self.act(self.norm(self.conv(x)))


class Powers(Body):
    base = -2.0

    def forward(self, x):
        sign = -1
        sign **= x.shape[0] + 1
        return self.body(x) + (-1) ** x.shape[0] + sign + self.base ** self.body(x).round()


class Texts(Body):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x):
        text = "%s"
        text %= x.shape[0]
        names = ["a", "b"]
        return self.body(x), text, "%s" % self.scale.shape, names, names  # noqa: UP031


class Infinite(Body):
    def forward(self, x):
        return self.body(x) * 1e999j


class Keys(Body):
    def forward(self, x, i=1, j=1):
        return {i: self.body(x), j: x}[i]


class Named(Body):
    def __init__(self):
        super().__init__()
        self.mode, self.count = "batch-norm", 0

    def forward(self, x):
        if self.mode is "batch-norm":  # noqa: F632
            self.count += 1
        return self.body(x), self.count


class Concatenated(Body):
    def forward(self, x):
        return cat([self.body(x), x])


class Root:
    root, attr = X, "text"


class Attributes(Body):
    def forward(self, of):
        return self.body(of.root), of.attr


@pytest.mark.filterwarnings('ignore:"is" with a literal:SyntaxWarning')
@pytest.mark.parametrize("cls", [Powers, Texts, Infinite, Keys, Named, Concatenated, Attributes])
def test_programs(cls):
    model, fused = pair(cls())
    given = Root() if cls is Attributes else X
    for _ in range(2):
        expected, result = (tree_leaves(network(given)) for network in (model, fused))
        for ours, theirs in zip(result, expected, strict=True):
            if isinstance(ours, torch.Tensor):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4, equal_nan=True)
            else:
                assert ours == theirs
    torch.fx.symbolic_trace(nn.Sequential(nn.ReLU()))  # which is as it was


def test_attributes_that_are_not_used():
    class Unused(Body):
        def forward(self, x, targets=None):
            boxes = targets.boxes  # noqa: F841
            return self.body(x)

    for network in pair(Unused()):
        with pytest.raises(AttributeError):
            network(X)


def test_a_global_variable_of_a_branch():
    class Kept(Body):
        debug = False

        def forward(self, x):
            if self.debug:
                global last
            last = self.body(x)
            return last

    model, fused = pair(Kept())
    globals().pop("last", None)
    fused(X)
    torch.testing.assert_close(globals().pop("last"), model(X), rtol=1e-4, atol=1e-4)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.count = 0

    def __call__(self, x):
        self.count += 1
        return x * self.count


class Shifted(nn.ReLU):
    def _call_impl(self, x):
        return super()._call_impl(x) + 1


class ShiftedConv(nn.Conv2d):
    def _call_impl(self, x):
        return super()._call_impl(x) + 1


def test_calls_of_their_own():
    class Counted(Body):
        def forward(self, x):
            return self.body(self.others[0](x))

    model, fused = pair(Counted(Counting()))
    for _ in range(3):
        torch.testing.assert_close(fused(X), model(X), rtol=1e-4, atol=1e-4)
    both(nn.Sequential(nn.Conv2d(4, 4, 1), Shifted()), X)
    both(nn.Sequential(ShiftedConv(4, 4, 1), nn.ReLU()), X)
    model, fused = pair(Body())
    for network in (model, fused):
        old = network.act._call_impl
        network.act._call_impl = lambda x, old=old: old(x) + 1
    torch.testing.assert_close(fused(X), model(X), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("cls", "new"),
    [
        (nn.ReLU, lambda self, x: F.leaky_relu(x, 0.2)),
        (nn.Identity, lambda self, x: x * 2),
        (nn.Dropout, lambda self, x: x * 3),
    ],
)
def test_layers_of_torch_that_were_replaced(cls, new, monkeypatch):
    monkeypatch.setattr(cls, "forward", new)
    both(nn.Sequential(nn.Conv2d(4, 4, 1), nn.Dropout(), nn.Identity(), nn.ReLU()), X)


def test_modules_that_choose():
    class Choosing(Body):
        def __init__(self):
            super().__init__()
            self.conv2, self.which = nn.Conv2d(4, 4, 3, padding=1), "conv"

        def __getattr__(self, name):
            return super().__getattr__(self.which if name == "conv" else name)

    model, fused = pair(Choosing())
    for network in (model, fused):
        network.which = "conv2"
    torch.testing.assert_close(fused(X), model(X), rtol=1e-4, atol=1e-4)


def test_methods_that_ask_for_their_class():
    class Frozen(Body):
        def train(self, mode=True):
            super(self.__class__, self).train(mode)
            self.norm.eval()
            return self

    class Conv(nn.Conv2d):
        def extra_repr(self):
            return super(type(self), self).extra_repr()

    _, fused = pair(Frozen(Conv(4, 4, 1)))
    assert fused.train() is fused and fused.training and not fused.norm.training
    assert "others" in repr(fused)


def refused(conv=None, norm=None):
    def change(network):
        for layer, changes in ((network.conv, conv), (network.norm, norm)):
            for name, value in (changes or {}).items():
                layer.register_parameter(name, None)
                layer.__dict__.pop(name, None)
                setattr(layer, name, nn.Parameter(value))

    return change


@pytest.mark.parametrize(
    "change",
    [
        refused(conv={"bias": torch.ones(4, dtype=torch.float64)}),
        refused(conv={"bias": torch.ones(1)}),
        refused(norm={"weight": torch.ones(1)}),
        refused(norm={"bias": torch.ones(())}),
    ],
)
def test_parameters_that_torch_refuses(change):
    model, fused = pair(Body())
    for network in (model, fused):
        change(network)
        with pytest.raises(RuntimeError):
            network(X)


def test_small_numbers_of_halves():
    model = nn.Sequential(nn.Conv2d(64, 8, 3, bias=False), nn.BatchNorm2d(8))
    nn.init.normal_(model[0].weight, std=0.02)
    nn.init.constant_(model[1].weight, 1e-3)
    model[1].running_var.fill_(100.0)
    model = model.eval().half()
    fused = torch_dnnl.convert(model, fuse=True)
    x = (torch.randn(2, 64, 6, 6) * 20).half()
    exact = copy.deepcopy(model).double()(x.double())
    errors = [((net(x).double() - exact).norm() / exact.norm()).item() for net in (model, fused)]
    assert errors[1] < 3 * errors[0]


def test_memory_format_of_a_sum():
    """Of tensors that are in both formats, the strides decide."""

    class Sum(nn.Module):
        def __init__(self, channels, size):
            super().__init__()
            self.conv = nn.Conv2d(channels, 4, size, padding=size // 2)

        def forward(self, x, y):
            return F.relu(y + self.conv(x))

    last = {"memory_format": torch.channels_last}
    gray = torch.randn(2, 1, 6, 6)
    for model, x in ((Sum(4, 1), X), (Sum(4, 1).to(**last), X), (Sum(1, 3), gray.to(**last))):
        for y in (X, X.to(**last)):
            with torch.no_grad():
                expected, result = both(model, x, y)
            assert result.stride() == expected.stride()


def test_inputs_that_have_themselves():
    class OfDict(Body):
        def forward(self, given):
            return self.body(given["x"])

    given = {"x": X}
    given["self"] = given
    both(OfDict(), given)


def test_hooks_of_all_modules():
    class Inner(Block):
        def forward(self, x):
            return self.norm(self.conv(x))

    class Outer(Block):
        def forward(self, x):
            return self.act(self.others[0](x))

    seen = []
    hook = nn.modules.module.register_module_forward_hook(lambda *given: seen.append(given))
    try:
        torch_dnnl.convert(ready(Outer(Inner())), fuse=True)
    finally:
        hook.remove()
    assert not seen


@pytest.mark.parametrize("text", ["# a\n" * 20, "\n" * 6 + "    def forward(self, x):\n  (x,\n"])
def test_files_that_are_being_written(text, tmp_path, monkeypatch):
    path = tmp_path / "being_written.py"
    path.write_text("class A:\n\n\n\n\n\n    def forward(self, x):\n        return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    code = importlib.import_module(path.stem).A.forward.__code__
    monkeypatch.delitem(sys.modules, path.stem)
    path.write_text(text)
    assert definition(code) is None
