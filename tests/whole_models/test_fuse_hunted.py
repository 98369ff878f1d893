"""convert(fuse=True): forwards that once had other results when they were fused, or raised."""

import collections
import copy
import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Annotated, ClassVar

import pytest
import torch
from test_fuse import operators, ready
from torch import Tensor, nn
from torch.nn import functional as F

import torch_dnnl

X = torch.randn(2, 4, 6, 5, generator=torch.Generator().manual_seed(1))


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)
        self.act, self.inner = nn.ReLU(inplace=True), nn.Conv2d(4, 4, 1)
        self.register_buffer("kept", torch.zeros(2, 4, 6, 5))

    def stem(self, x):
        return self.conv(x)


def forward(function):
    """A module with this forward."""
    return type(function.__name__, (Parts,), {"forward": function})


def checked(model, *inputs, **options):
    """The fused model, whose results, inputs and gradients are the model's."""
    model = ready(model)
    fused = torch_dnnl.convert(copy.deepcopy(model), fuse=True)
    compare(model, fused, *inputs, **options)
    return fused


def compare(model, fused, *inputs, rtol=1e-4, atol=1e-4):
    for record in (False, True):
        results = []
        for network in (model, fused):
            given = [value.clone() if torch.is_tensor(value) else value for value in inputs]
            with torch.set_grad_enabled(record):
                result = network(*given)
            gradients = []
            if record:
                leaves = [p for p in network.parameters() if p.requires_grad]
                gradients = torch.autograd.grad(result.sum(), leaves, allow_unused=True)
                gradients = [torch.zeros(()) if g is None else g for g in gradients]
            results.append(([result, *given, *gradients], result))
        for ours, theirs in zip(results[1][0], results[0][0], strict=True):
            if torch.is_tensor(ours):
                scale = max(1.0, theirs.abs().max().item())
                torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol * scale)
        assert results[0][1].stride() == results[1][1].stride()


@forward
def input_changed(self, x):
    x = x * 1
    y = self.conv(x)
    x += 1
    return F.relu(y) + x


@forward
def input_changed_by_a_module(self, x):
    x = x * 1
    gate = self.conv(x)
    out = self.inner(self.act(x))
    return out + torch.sigmoid(gate)


@forward
def into_a_buffer(self, x):
    torch.sigmoid(self.conv(x), out=self.kept)
    return self.kept * 2 + self.conv(x)


@forward
def other_operators_in_place(self, x):
    y = x > 0
    z = y
    y &= x > 1
    return F.relu(self.conv(x)) * z


@forward
def relu6_in_place(self, x):
    y = F.relu6(self.norm(self.conv(x)))
    y *= 2
    return y


@forward
def sum_with_another_format(self, x):
    y = F.relu(x.contiguous(memory_format=torch.channels_last) + self.conv(x))
    return y.permute(0, 2, 3, 1).reshape(2, -1)


@forward
def pairs_within_lists(self, x):
    for first, second in [(self.conv, self.norm)]:
        y = first(x)
        x = second(y) + y
    return x


@pytest.mark.parametrize(
    "cls",
    [
        *(input_changed, input_changed_by_a_module, into_a_buffer, other_operators_in_place),
        *(relu6_in_place, sum_with_another_format, pairs_within_lists),
    ],
)
def test_order(cls):
    if cls in (input_changed, input_changed_by_a_module, into_a_buffer):  # not to be derived
        model = ready(cls().requires_grad_(False))
        fused = torch_dnnl.convert(copy.deepcopy(model), fuse=True)
        torch.testing.assert_close(fused(X), model(X), rtol=1e-4, atol=1e-4)
    else:
        checked(cls(), X)


@forward
def sum_in_place(self, x, residual):
    y = self.norm(self.conv(x))
    y += residual
    return F.relu(y)


@forward
def sum_by_method(self, x, residual):
    return F.relu(self.conv(x).add_(residual))


@pytest.mark.parametrize("cls", [sum_in_place, sum_by_method])
def test_sums_in_place_keep_their_type(cls):
    fused = checked(cls(), X, X.double())
    assert fused(X, X.double()).dtype == torch.float32
    # torch rounds to 8 bits after each operation, the kernel once.
    checked(cls().bfloat16(), X.bfloat16(), X, rtol=0.1, atol=2**-6)
    model = ready(cls())
    fused = torch_dnnl.convert(model, fuse=True)
    with torch.autocast("cpu", torch.bfloat16):
        assert fused(X, X).dtype == model(X, X).dtype


def log(function):
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


class Block(nn.Module):
    """Other code reaches `block[0]`, in some way."""

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4))
        self.pairs = nn.ModuleList([copy.deepcopy(self.block)])
        self.__hidden = copy.deepcopy(self.block)

    @log
    def decorated(self, x):
        return self.block[0](x)

    def mangled(self, x):
        return self.__hidden(x) + self.__hidden[0](x)

    def unpacked(self, x):
        for index, (conv, norm) in enumerate(self.pairs):
            y = conv(x)
            x = norm(y) + y * index
        return x + y

    def moved(self, x):
        return self.block.to(x.dtype)[0](x)

    def hooked(self, x):
        handle = self.block.register_forward_hook(lambda m, args, out: out + m[0](args[0]))
        y = self.block(x)
        handle.remove()
        return y

    def forward(self, x, name="decorated"):
        return self.block(x) + getattr(self, name)(x)


@pytest.mark.parametrize("name", ["decorated", "mangled", "unpacked", "moved", "hooked"])
def test_other_ways_to_a_convolution(name):
    fused = checked(Block(), X, name)
    assert "convolution_fused" not in operators(fused, X, name)


class Scaled(Parts):
    scale = 2.0

    def __init__(self):
        super().__init__()
        self.register_buffer("offset", torch.ones(1), persistent=False)

    def set_past_us(self, value):
        super().__setattr__("scale", value)

    def helper(self, x):
        return x * 3

    def forward(self, x):
        return F.relu(self.norm(self.conv(x))) * self.scale + self.helper(x) + self.offset


def on_class(name, value):
    def change(model, other):
        old = getattr(Scaled, name)
        setattr(Scaled, name, value)
        return lambda: setattr(Scaled, name, old)

    return change


def on_both(change):
    def both(model, fused):
        change(model)
        change(fused)
        return lambda: None

    return both


LATER = {
    "class attribute": on_class("scale", 5.0),
    "method of the class": on_class("helper", lambda self, x: x),
    "forward of the class": on_class("forward", lambda self, x: self.norm(self.conv(x))),
    "attribute": on_both(lambda m: setattr(m, "scale", 5.0)),
    "attribute past ours": on_both(lambda m: m.set_past_us(5.0)),
    "attribute by dict": on_both(lambda m: vars(m).update(scale=5.0)),
    "attribute by object": on_both(lambda m: object.__setattr__(m, "scale", 5.0)),
    "method": on_both(lambda m: setattr(m, "helper", types.MethodType(lambda self, x: x, m))),
    "buffer": on_both(lambda m: setattr(m, "offset", torch.ones(1) * 3)),
    "convolution's method": on_both(
        lambda m: setattr(
            m.conv,
            "_conv_forward",
            types.MethodType(lambda self, x, w, b: F.conv2d(x + 1, w, b), m.conv),
        )
    ),
    "class of the norm": on_both(lambda m: setattr(m.norm, "__class__", nn.Identity)),
}


@pytest.mark.parametrize("name", LATER)
def test_changed_later(name):
    model = ready(Scaled())
    fused = torch_dnnl.convert(copy.deepcopy(model), fuse=True)
    assert "convolution_fused" in operators(fused, X)
    undo = LATER[name](model, fused)
    try:
        torch.testing.assert_close(fused(X), model(X), rtol=1e-4, atol=1e-4)
    finally:
        undo()


class Tied(Parts):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.ones(4, 1, 1))
        self.b = self.a

    def forward(self, x):
        return F.relu(self.norm(self.conv(x))) * self.a + self.b


class Named(Parts):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.ReLU(), nn.Tanh()

    def forward(self, x):
        return self.a(self.conv(x)) + self.b(x)


def rename(model):
    a, b = model.a, model.b
    del model.a, model.b
    model.b, model.a = a, b


def test_names_that_change():
    for cls, change in [
        (Tied, lambda m: setattr(m, "b", nn.Parameter(torch.full((4, 1, 1), 5.0)))),
        (Named, rename),
    ]:
        model = ready(cls())
        fused = torch_dnnl.convert(copy.deepcopy(model), fuse=True)
        change(model)
        change(fused)
        torch.testing.assert_close(fused(X), model(X), rtol=1e-4, atol=1e-4)


def test_clones_by_hand():
    """As learn2learn makes them: they have the attributes of the original."""

    def clone(module):
        made = module.__new__(type(module))
        vars(made).update(vars(module))
        made._modules = {name: clone(child) for name, child in module._modules.items()}
        return made

    fused = torch_dnnl.convert(ready(Named()), fuse=True)
    copied = clone(fused)
    copied.a = nn.Sigmoid()
    expected = copied.a(copied.conv(X)) + copied.b(X)
    torch.testing.assert_close(copied(X), expected, rtol=1e-4, atol=1e-4)


def test_way_back_of_parametrized_layers():
    fused = torch_dnnl.convert(ready(Scaled()), fuse=True)
    nn.utils.parametrizations.weight_norm(fused.conv)
    back = torch_dnnl.revert(fused)
    assert isinstance(back.conv, nn.Conv2d) and not isinstance(back.conv, torch_dnnl.nn.Conv2d)
    torch.testing.assert_close(back(X), fused(X), rtol=1e-4, atol=1e-4)


@dataclasses.dataclass
class Factor:
    """Has no hash."""

    value: float = 2.0

    def __call__(self, x):
        return x * self.value


class Cached(Parts):
    factor = Factor()

    @functools.lru_cache  # noqa: B019
    def half(self):
        return 0.5

    def forward(self, x):
        return self.factor(F.relu(self.norm(self.conv(x)))) * self.half()


class Annotations(Parts):
    def forward(
        self,
        x: Annotated[Tensor, ["b"]],
        y: Callable[[int], int] = abs,
        z: [1, 2] = None,  # type: ignore[valid-type]
    ):
        return F.relu(self.norm(self.conv(x)))


class Registered(Parts):
    made: ClassVar = collections.Counter()

    def __init_subclass__(cls, *, tag, **kwargs):
        cls.made[tag] += 1

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


@forward
def argument_self(this, self):
    return F.relu(this.conv(self))


class Deleted(nn.Module):
    smooth = False

    def __init__(self):
        super().__init__()
        self.beta = 2.0

    def forward(self, x):
        return F.silu(x * self.beta) if self.smooth else F.relu(x)


def test_conversion_raises_nothing():
    for cls in (Cached, Annotations, Registered, argument_self):
        checked(cls(), X)
    assert not Registered.made
    for compiled in (
        torch.jit.trace(ready(nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))), X),
        torch.jit.script(nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)).eval()),
        torch.jit.trace(nn.Conv2d(4, 4, 1).eval(), X),
    ):
        for model in (nn.Sequential(compiled, nn.Conv2d(4, 4, 1), nn.ReLU()).eval(), compiled):
            fused = torch_dnnl.convert(model, fuse=True)
            torch.testing.assert_close(fused(X), model(X), rtol=1e-4, atol=1e-4)
    model = nn.Sequential(nn.Conv2d(4, 4, 1), Deleted()).eval()
    fused = torch_dnnl.convert(model, fuse=True)
    del fused[1].beta
    torch.testing.assert_close(fused(X), model(X), rtol=1e-4, atol=1e-4)
