"""convert: subclasses of the layers, parametrized layers and the way back."""

import copy
import gc
import io
import pickle
import typing
from abc import ABCMeta

import pytest
import torch
from test_convert import Network
from torch.nn.utils import parametrizations, parametrize

import torch_dnnl
from torch_dnnl.convert import _made


class Plus(torch.nn.Conv2d):
    """A layer with a constructor and attributes of its own, and torch's forward."""

    def __init__(self, channels, note="default"):
        super().__init__(channels, channels, 3, padding=1)
        self.note = note

    def doubled(self):
        return self.weight * 2


class PlusPlus(Plus):
    pass


class Twice(torch.nn.ConvTranspose1d):
    def _output_padding(self, *args, **kwargs):
        return [0]


class Up(torch.nn.Upsample):
    pass


SUBCLASSES = [
    (Plus(2, note="own"), torch_dnnl.nn.Conv2d, (1, 2, 5, 4)),
    (PlusPlus(2), torch_dnnl.nn.Conv2d, (1, 2, 5, 4)),
    (Twice(2, 3, 3, stride=2), torch_dnnl.nn.ConvTranspose1d, (1, 2, 5)),
    (Up(scale_factor=2), torch_dnnl.nn.Upsample, (1, 2, 5)),
]


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(
    ("layer", "ours", "shape"), SUBCLASSES, ids=lambda value: type(value).__name__
)
def test_subclasses_keep_their_class(layer, ours, shape, inplace):
    layer, x = copy.deepcopy(layer), torch.randn(shape)
    old, expected = type(layer), layer(x)
    converted = torch_dnnl.convert(layer, inplace=inplace)
    assert isinstance(converted, old) and isinstance(converted, ours)
    assert type(converted).__name__ == old.__name__
    assert str(converted).startswith(f"torch_dnnl.{old.__name__}(")
    torch.testing.assert_close(converted(x), expected, rtol=1e-4, atol=1e-5)
    assert type(torch_dnnl.convert(torch_dnnl.revert(converted))) is type(converted)

    buffer = io.BytesIO()
    torch.save(converted, buffer)
    buffer.seek(0)
    copies = [pickle.loads(pickle.dumps(converted, protocol)) for protocol in (0, 2, 5)]
    copies += [copy.deepcopy(converted), copy.copy(converted)]
    for other in (*copies, torch.load(buffer, weights_only=False)):
        assert type(other) is type(converted)
        torch.testing.assert_close(other(x), converted(x), rtol=0, atol=0)
    reverted = torch_dnnl.revert(converted)
    assert type(reverted) is old
    torch.testing.assert_close(reverted(x), expected, rtol=0, atol=0)


def test_subclasses_can_be_constructed():
    converted = torch_dnnl.convert(Plus(2, note="own"))
    other = type(converted)(3, note="other")
    assert (converted.note, other.note, other.in_channels) == ("own", "other", 3)
    torch.testing.assert_close(converted.doubled(), converted.weight * 2)


class Told(torch.nn.Conv2d):
    classes: typing.ClassVar = []

    def __init_subclass__(cls):
        super().__init_subclass__()
        cls.classes.append(cls)


class OfTold(Told):
    pass


class Registry(type):
    def __init__(cls, name, bases, members):
        super().__init__(name, bases, members)
        Told.classes.append(cls)


class Registered(torch.nn.Conv2d, metaclass=Registry):
    pass


class Forwarded(torch.nn.Conv2d):
    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(input, weight * 2, bias)


class Reduced(torch.nn.Conv2d):
    def __reduce__(self):
        return self.__class__, (2, 2, 1), vars(self)


LEFT_ALONE = {
    OfTold: "its class has a __init_subclass__ of its own",
    Registered: "its class has the metaclass Registry",
    Forwarded: "a subclass of Conv2d with its own _conv_forward",
    Reduced: "its class has a __reduce__ of its own",
}


@pytest.mark.parametrize("cls", LEFT_ALONE)
def test_subclasses_that_are_left_alone(cls, capsys):
    model, known = torch.nn.Sequential(cls(2, 2, 1)), list(Told.classes)
    converted, x = torch_dnnl.convert(model, verbose=True), torch.randn(1, 2, 5, 5)
    assert type(converted[0]) is cls and Told.classes == known
    assert LEFT_ALONE[cls] in capsys.readouterr().out
    torch.testing.assert_close(pickle.loads(pickle.dumps(converted))(x), model(x))


class Abstract(torch.nn.Conv2d, metaclass=ABCMeta):
    pass


class Parameter(torch.nn.Conv2d, typing.Generic[typing.TypeVar("T")]):
    pass


class Closed(torch.nn.Conv2d):
    """Its attributes do not change, and two of them have names of torch_dnnl's."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._pads = self._function = 3
        self.is_done = True

    def __setattr__(self, name, value):
        if vars(self).get("is_done"):
            raise AttributeError(name)
        super().__setattr__(name, value)


class Empty(torch.nn.Conv2d):
    """It is false."""

    def __len__(self):
        return 0


@pytest.mark.parametrize("cls", [Abstract, Parameter, Closed, Empty])
def test_unusual_subclasses_are_replaced(cls):
    layer = cls(2, 2, 3, padding=1, padding_mode="circular")
    model, x = torch.nn.Sequential(layer), torch.randn(1, 2, 5, 5)
    converted = torch_dnnl.convert(model)
    assert isinstance(converted[0], torch_dnnl.nn.Conv2d)
    torch.testing.assert_close(converted(x), model(x), rtol=1e-4, atol=1e-4)


def test_classes_go_with_their_layers():
    made = _made.copy
    gc.collect()
    before = dict(made())
    converted = torch_dnnl.convert(type("Local", (Plus,), {})(2))
    assert [cls.__name__ for cls in made() if cls not in before] == ["Local"]
    del converted
    gc.collect()
    assert dict(made()) == before


class Negative(torch.nn.Module):
    def forward(self, x):
        return -x


def weight_and_bias(layer):
    parametrize.register_parametrization(layer, "bias", Negative())
    return parametrizations.weight_norm(layer)


PARAMETRIZATIONS = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": lambda layer: parametrizations.spectral_norm(layer).eval(),
    "weight_and_bias": weight_and_bias,
}


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("kind", PARAMETRIZATIONS)
@pytest.mark.parametrize("make", [lambda: torch.nn.Conv2d(2, 2, 3, padding=1), lambda: Plus(2)])
def test_parametrized_layers(make, kind, inplace):
    layer = PARAMETRIZATIONS[kind](make())
    old = type(layer).__bases__[0]
    x, state = torch.randn(1, 2, 5, 4), list(layer.state_dict())
    expected = layer(x)
    converted = torch_dnnl.convert(layer, inplace=inplace)
    assert isinstance(converted, old) and isinstance(converted, torch_dnnl.nn.Conv2d)
    assert list(converted.state_dict()) == state
    for other in (converted, copy.deepcopy(converted), torch_dnnl.revert(converted)):
        torch.testing.assert_close(other(x), expected, rtol=1e-4, atol=1e-5)
        other(x).sum().backward()
    assert type(torch_dnnl.revert(converted)).__bases__ == (old,)

    parametrize.remove_parametrizations(converted, "weight")
    assert isinstance(converted, old) and isinstance(converted, torch_dnnl.nn.Conv2d)
    assert parametrize.is_parametrized(converted) == (kind == "weight_and_bias")
    torch.testing.assert_close(converted(x), expected, rtol=1e-4, atol=1e-5)
    if not inplace:  # the original still has its own
        assert type(layer).__bases__ == (old,) and parametrize.is_parametrized(layer)
        torch.testing.assert_close(layer(x), expected)


def test_parametrized_after_the_conversion():
    converted = parametrizations.weight_norm(torch_dnnl.convert(Plus(2)))
    x = torch.randn(1, 2, 5, 4)
    reverted = torch_dnnl.revert(converted)
    assert type(reverted).__bases__ == (Plus,)
    torch.testing.assert_close(reverted(x), converted(x), rtol=1e-4, atol=1e-5)


def test_same_padding_of_timm():
    def forward(self, x):
        size = [0, 0]
        for i in range(2):
            outputs = -(-x.shape[i + 2] // self.stride[i])
            reach = (
                (outputs - 1) * self.stride[i] + (self.kernel_size[i] - 1) * self.dilation[i] + 1
            )
            size[i] = max(0, reach - x.shape[i + 2])
        h, w = size
        x = torch.nn.functional.pad(x, (w // 2, w - w // 2, h // 2, h - h // 2))
        options = (self.stride, 0, self.dilation, self.groups)
        return torch.nn.functional.conv2d(x, self.weight, self.bias, *options)

    members = {"forward": forward, "__module__": "timm.layers.conv2d_same"}
    same = type("Conv2dSame", (torch.nn.Conv2d,), members)
    layers = [same(2, 3, 3, stride=2), same(2, 3, 4, stride=(1, 3)), same(2, 3, 3, dilation=2)]
    for layer in [*layers, type("More", (same,), {})(2, 3, 3, stride=2)]:
        converted = torch_dnnl.convert(layer)
        assert isinstance(converted, same) and isinstance(converted, torch_dnnl.nn.Conv2d)
        for shape in ((1, 2, 9, 8), (2, 2, 8, 11)):
            x = torch.randn(shape)
            torch.testing.assert_close(converted(x), layer(x), rtol=1e-4, atol=1e-5)
        assert type(torch_dnnl.revert(converted)) is type(layer)
    other = type("Conv2dSame", (torch.nn.Conv2d,), {"forward": forward})(2, 3, 3)
    assert type(torch_dnnl.convert(other)) is type(other)


@pytest.mark.parametrize("inplace", [False, True])
def test_revert(inplace):
    model, x = Network(), torch.randn(2, 3, 6, 5)
    expected = model.eval()(x)
    types = [type(layer) for layer in model.modules()]
    converted = torch_dnnl.convert(model, inplace=inplace)
    reverted = torch_dnnl.revert(converted, inplace=inplace)
    assert (reverted is converted) == inplace
    assert [type(layer) for layer in reverted.modules()] == types
    shared = [a is b for a, b in zip(reverted.parameters(), model.parameters(), strict=True)]
    assert shared == [inplace] * len(shared)
    assert reverted.head is reverted.heads["a"]
    torch.testing.assert_close(reverted(x), expected, rtol=0, atol=0)
    if not inplace:
        assert type(converted.head) is torch_dnnl.nn.Conv2d


@pytest.mark.parametrize("mode", ["zeros", "circular"])
@pytest.mark.parametrize(
    ("padding", "expected"),
    [
        ("same_upper", "same"),
        ("same", "same"),
        (((1, 1), (2, 2)), (1, 2)),
        ("same_lower", None),
        (((1, 0), (2, 2)), None),
    ],
)
def test_revert_of_paddings(padding, expected, mode):
    layer = torch_dnnl.nn.Conv2d(2, 3, (2, 5), padding=padding, padding_mode=mode)
    model, x = torch.nn.Sequential(torch_dnnl.nn.Conv2d(2, 2, 1), layer), torch.randn(1, 2, 7, 8)
    if expected is None:
        with pytest.raises(ValueError, match=r"revert: expected module to have paddings .* 1 "):
            torch_dnnl.revert(model, inplace=True)
        assert type(model[0]) is torch_dnnl.nn.Conv2d
        return
    reverted = torch_dnnl.revert(model)
    assert type(reverted[1]) is torch.nn.Conv2d and reverted[1].padding == expected
    assert layer.padding == padding
    torch.testing.assert_close(reverted(x), model(x), rtol=1e-4, atol=1e-5)


def test_revert_with_a_stride():
    with pytest.raises(ValueError, match="the model got 'same_upper' with stride"):
        torch_dnnl.revert(torch_dnnl.nn.Conv2d(2, 2, 3, stride=2, padding="same_upper"))
    with pytest.raises(TypeError, match="revert: expected module"):
        torch_dnnl.revert(3)


def test_types():
    hints = typing.get_type_hints(torch_dnnl.convert)
    assert hints["return"] is hints["module"] and hints["return"].__bound__ is torch.nn.Module


class Noisy(torch.nn.Module):
    def forward(self, weight):
        return weight + torch.randn_like(weight)


def test_no_parametrization_is_computed():
    model = torch.nn.Sequential(
        parametrizations.spectral_norm(torch.nn.Conv2d(3, 8, 4)), torch.nn.Conv2d(8, 8, 1)
    )
    parametrize.register_parametrization(model[1], "weight", Noisy())
    before, numbers = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    converted = torch_dnnl.convert(model)
    assert isinstance(converted[0], torch_dnnl.nn.Conv2d)
    assert torch.equal(torch.get_rng_state(), numbers)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
