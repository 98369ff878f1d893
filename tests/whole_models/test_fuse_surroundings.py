"""convert(fuse=True): arguments and methods that layers have beside the usual ones, names, types,
memory, and sources that are not what runs."""

import copy
import importlib
import sys
from collections import OrderedDict

import pytest
import torch
from test_fuse import ready
from torch import nn
from torch.nn import functional as F

import torch_dnnl
from torch_dnnl.fusion.definitions import definition

X = torch.randn(2, 4, 6, 6)


class Block(nn.Module):
    def __init__(self, *others):
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()
        self.others = nn.ModuleList(others)

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


def pair(model):
    model = ready(model)
    return model, torch_dnnl.convert(copy.deepcopy(model), fuse=True)


def both(model, *inputs):
    """The results of a model and of the fused one, which are the same."""
    model, fused = pair(model)
    results = model(*inputs), fused(*inputs)
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)
    return results


def test_transposed_layers_take_an_output_size():
    class Up(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.norm = nn.ConvTranspose2d(4, 4, 3, 2, 1), nn.BatchNorm2d(4)

        def forward(self, x, size=None):
            y = self.up(x) if size is None else self.up(x, output_size=size)
            return F.relu(self.norm(y))

    both(Up(), X)
    both(Up(), X, [12, 12])
    model, fused = pair(nn.Sequential(nn.ConvTranspose2d(4, 4, 3, 2, 1), nn.ReLU()))
    for size in ([11, 12], [12, 11]):
        expected = model[0](X, size)
        assert fused[0](X, size).shape == fused[0](X, output_size=size).shape == expected.shape


@pytest.mark.parametrize("name", ["global", "in", "None", "ﬁ", 'a"b', "a b", "a-b", "a{b}"])
def test_names_of_layers(name):
    both(nn.Sequential(OrderedDict([(name, nn.Conv2d(4, 4, 1)), ("act", nn.ReLU())])), X)


def test_train_of_their_own():
    class Freezing(Block):
        def train(self, mode=True, freeze=False):
            super().train(mode)
            self.norm.train(mode and not freeze)
            return "trained" if freeze else self

    _, fused = pair(Freezing())
    assert fused.train(True, freeze=True) == "trained"
    assert fused.training and not fused.norm.training
    assert fused.eval() is fused and not fused.training


@pytest.mark.parametrize("frozen", ["torchvision", "timm"])
def test_frozen_norms_under_autocast(frozen):
    """Their result is float32, whatever the convolution gives."""
    module, name = {
        "torchvision": ("torchvision.ops.misc", "FrozenBatchNorm2d"),
        "timm": ("timm.layers.norm_act", "FrozenBatchNormAct2d"),
    }[frozen]
    norm = of_its_name(module, name)(4)
    model, fused = pair(nn.Sequential(nn.Conv2d(4, 4, 1), norm, nn.ReLU()))
    with torch.no_grad():
        torch.testing.assert_close(fused(X), model(X))
        with torch.autocast("cpu", torch.bfloat16):
            expected, result = model(X), fused(X)
    assert expected.dtype == result.dtype == torch.float32
    torch.testing.assert_close(result, expected)


def of_its_name(module, name):
    """A batch norm of other people's, as they write it: constants in buffers."""

    class Frozen(nn.Module):
        def __init__(self, channels, eps=1e-5):
            super().__init__()
            self.eps = eps
            for each in ("weight", "bias", "running_mean", "running_var"):
                self.register_buffer(each, torch.rand(channels) + 0.5)
            self.drop, self.act = nn.Identity(), nn.ReLU()

        def forward(self, x):
            scale = self.weight * (self.running_var + self.eps).rsqrt()
            shift = self.bias - self.running_mean * scale
            y = x * scale.reshape(1, -1, 1, 1) + shift.reshape(1, -1, 1, 1)
            return self.act(self.drop(y)) if name.endswith("Act2d") else y

    Frozen.__module__, Frozen.__qualname__, Frozen.__name__ = module, name, name
    return Frozen


class Residual(Block):
    def forward(self, x):
        return self.act(self.norm(self.conv(x)) + x)


@pytest.mark.parametrize("cls", [Block, Residual])
@pytest.mark.parametrize(
    ("name", "value"),
    [("padding", 1), ("padding", (1,)), ("stride", 1), ("dilation", (1,)), ("kernel_size", 3)],
)
def test_attributes_that_are_numbers(cls, name, value):
    """As torch takes them, too."""
    model, fused = pair(cls())
    for network in (model, fused):
        setattr(network.conv, name, value)
    torch.testing.assert_close(fused(X), model(X), rtol=1e-4, atol=1e-4)


def vectors(network, x):
    values = nn.utils.parameters_to_vector(network.parameters()).clone()
    for factor in (1.1, 1.2, 3):
        nn.utils.vector_to_parameters(values * factor, network.parameters())
        network(x) if factor == 1.1 else None


def halves(network, x):
    network[0].bfloat16().float()


def eights(network, x):
    network[0].to(torch.float8_e4m3fn).float()


@pytest.mark.parametrize("change", [vectors, halves, eights])
def test_weights_where_others_were(change):
    """An allocator gives the memory of what is gone to what comes."""
    for seed in range(12):
        torch.manual_seed(seed)
        model, fused = pair(nn.Sequential(nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.ReLU()))
        x = torch.randn(1, 16, 6, 6)
        with torch.no_grad():
            for network in (model, fused):
                network(x)
                change(network, x)
            torch.testing.assert_close(fused(x), model(x), rtol=1e-3, atol=1e-3)


class Loud(torch.Tensor):
    """Whose relu is twice torch's."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result * 2 if func is F.relu else result


class OfList(Block):
    def forward(self, images):
        return F.relu(self.norm(self.conv(images[0])))


def test_subclasses_of_tensor():
    model, fused = pair(OfList())
    for images in ([X.as_subclass(Loud)], ({}, X.as_subclass(Loud))[1:], {0: X.as_subclass(Loud)}):
        expected = model(images)
        torch.testing.assert_close(fused(images), expected, rtol=1e-4, atol=1e-4)
    for network in (model, fused):
        weight = model.conv.weight.detach()
        network.conv.weight = nn.Parameter(weight.as_subclass(Loud))
    torch.testing.assert_close(fused([X]), model([X]), rtol=1e-4, atol=1e-4)


def test_image_that_changes_before_its_gradient():
    class Before(Block):
        def forward(self, x):
            skip = self.norm(self.conv(x))
            return F.relu_(x) + skip

    model, fused = pair(Before())
    for network in (model, fused):
        network.conv.requires_grad_(False)
        network(X.clone()).sum().backward()
    torch.testing.assert_close(fused.norm.weight.grad, model.norm.weight.grad)


def test_code_that_is_another(tmp_path, monkeypatch):
    """Replaced, as by autoreload; and a file that was edited since it was imported."""

    class Plain(Block):
        def forward(self, x):
            return F.relu(self.conv(x))

    def counting(self, x):
        y = self.conv(x)
        self.seen.append(1)
        return F.relu(y)

    pair(Plain())
    Plain.forward.__code__ = counting.__code__
    model = ready(Plain())
    model.seen = []
    fused = torch_dnnl.convert(model, fuse=True)
    fused(X)
    before = len(fused.seen)
    fused(X)
    assert len(fused.seen) == before + 1

    lines = (
        "import torch\nclass Edited(torch.nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.conv, self.seen = torch.nn.Conv2d(4, 4, 1), []\n"
        "    def forward(self, x):\n        y = self.conv(x)\n        self.seen.append(1)\n"
        "        return torch.relu(y)\n"
    )
    path = tmp_path / "edited_since.py"
    path.write_text(lines)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module(path.stem)
    path.write_text(lines.replace("        self.seen.append(1)\n", ""))
    fused = torch_dnnl.convert(module.Edited().eval(), fuse=True)
    before = len(fused.seen)
    fused(X)
    assert len(fused.seen) == before + 1
    del sys.modules[path.stem]


def test_code_with_other_jumps():
    """The same instructions, of which an `if` skips more."""

    def written(self, x):
        if self.extra is not None:
            x = self.extra(x)
        x = self.act(x)
        return self.conv(x)

    def other(self, x):
        if self.extra is not None:
            x = self.extra(x)
            x = self.act(x)
        return self.conv(x)

    code = written.__code__
    assert definition(code) is not None
    assert code.co_code != other.__code__.co_code
    assert definition(code.replace(co_code=other.__code__.co_code)) is None


class OfTorch(nn.Module):
    forward = torch.relu


class WithoutForward(nn.Module):
    forward = None

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.conv = WithoutForward(), nn.Conv2d(4, 4, 1)

    def forward(self, x):
        return F.relu(self.conv(self.inner.conv(x)))


class Closed(Block):
    def __init__(self):
        super().__init__()
        self.is_done = True

    def __setattr__(self, name, value):
        if vars(self).get("is_done") and name != "training":
            raise AttributeError(name)
        super().__setattr__(name, value)


class Strict(nn.Module):
    def __getattr__(self, name):
        return vars(self)["_buffers"][name]

    def forward(self, x):
        return torch.relu(x)


class Mapping(nn.Module, dict):
    __hash__ = nn.Module.__hash__

    def __init__(self):
        nn.Module.__init__(self)
        self.conv = nn.Conv2d(4, 4, 1)

    def __eq__(self, other):
        return self is other

    def forward(self, x):
        return F.relu(self.conv(x))


class Slots(Block):
    __slots__ = ("gain",)

    def __init__(self):
        super().__init__()
        self.gain = 2.0

    def forward(self, x):
        return F.relu(self.conv(x)) * self.gain


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Sequential(nn.Conv2d(4, 4, 1), OfTorch()),
        lambda: nn.Sequential(nn.Conv2d(4, 4, 1), Strict()),
        *(Holder, Closed, Mapping),
    ],
)
def test_unusual_modules(make):
    model = make().eval()
    expected = model(X)
    fused = torch_dnnl.convert(model, inplace=True, fuse=True)
    torch.testing.assert_close(fused(X), expected, rtol=1e-4, atol=1e-4)


def test_slots_are_copied():
    model = Slots().eval()
    for fuse in (False, True):
        converted = torch_dnnl.convert(model, fuse=fuse)
        model.gain, before = 3.0, model(X)
        torch.testing.assert_close(converted(X), before, rtol=1e-4, atol=1e-4)
        model.gain = 2.0


@pytest.mark.parametrize("is_theirs", [True, False])
def test_class_of_a_layer_changes(is_theirs, monkeypatch):
    class Mine(nn.Conv2d):
        pass

    model, fused = pair(nn.Sequential((Mine if is_theirs else nn.Conv2d)(4, 4, 1), nn.ReLU()))
    monkeypatch.setattr(
        Mine if is_theirs else nn.Conv2d, "forward", lambda self, x: self.weight.sum() + x
    )
    torch.testing.assert_close(fused(X), model(X))


class Empty(nn.Module):
    """Which is false."""

    is_on = True

    def __len__(self):
        return 0

    def forward(self, x):
        return F.relu(x) if self.is_on else torch.tanh(x)


class EmptyConv(nn.Conv2d):
    def __len__(self):
        return 0


def test_modules_that_are_false():
    both(nn.Sequential(EmptyConv(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU()), X)
    model, fused = pair(nn.Sequential(nn.Conv2d(4, 4, 1), Empty()))
    for network in (model, fused):
        network[1].is_on = False
    torch.testing.assert_close(fused(X), model(X), rtol=1e-4, atol=1e-4)
    for network in (model, fused):
        network[1].register_forward_hook(lambda module, args, result: result * 0 + 7)
    assert torch.equal(fused(X), model(X))


@pytest.mark.parametrize(
    ("layer", "dtype"),
    [("norm", torch.float64), ("conv", torch.float64), ("norm", torch.bfloat16)],
)
def test_types_that_batch_norm_refuses(layer, dtype):
    model, fused = pair(Block())
    x = X.to(dtype) if layer == "conv" else X
    for network in (model, fused):
        getattr(network, layer).to(dtype)
        with pytest.raises(RuntimeError, match="mixed dtype"):
            network(x)


def test_function_of_an_enclosing_scope():
    act = F.relu

    class Inner(Block):
        def forward(self, x):
            return act(self.conv(x))

    model, fused = pair(Inner())
    act = torch.tanh
    torch.testing.assert_close(fused(X), model(X), rtol=1e-4, atol=1e-4)


def test_memory_format_of_depthwise_weights():
    model = nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.BatchNorm2d(4), nn.ReLU())
    for network in (model, model.to(memory_format=torch.channels_last)):
        expected, result = both(network, X)
        assert result.stride() == expected.stride()


def test_arguments_that_an_activation_refuses():
    class Own(nn.Module):
        def forward(self, x):
            return F.relu(x)

    class Called(Block):
        def forward(self, x):
            return self.others[0](self.conv(x), 1)

    for act in (Own(), nn.ReLU()):
        for network in pair(Called(act)):
            with pytest.raises(TypeError):
                network(X)


def test_arguments_that_a_method_refuses():
    class Method(Block):
        def forward(self, x):
            return self.conv(x).relu(inplace=True)

    for network in pair(Method()):
        with pytest.raises(TypeError):
            network(X)
