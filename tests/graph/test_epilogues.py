"""optimize: residuals and activations in the kernels of convolutions."""

import math

import pytest
import torch
import torch.nn.functional as F
from checks import AUTO, calls, check, convolutions
from torch import nn

from torch_dnnl.graph.optimize import optimize

ACTIVATIONS = {
    "relu": [F.relu, nn.ReLU(inplace=True), lambda x: x.clamp(min=0), lambda x: x.clamp_(min=0.0)],
    "relu6": [
        F.relu6,
        nn.ReLU6(inplace=True),
        nn.Hardtanh(0, 6),
        lambda x: torch.clamp(x, 0.0, 6.0),
        lambda x: x.relu().clamp(max=6),
    ],
    "silu": [
        F.silu,
        nn.SiLU(inplace=True),
        lambda x: x * torch.sigmoid(x),
        lambda x: x.sigmoid() * x,
    ],
    "gelu": [F.gelu, lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))],
    "sigmoid": [torch.sigmoid, nn.Sigmoid()],
    "tanh": [torch.tanh, lambda x: x.tanh_()],
    "hardswish": [
        F.hardswish,
        lambda x: x * F.relu6(x + 3.0) / 6.0,
        lambda x: x * F.relu6(x + 3, inplace=True).div_(6),
        lambda x: x * F.hardsigmoid(x),
        lambda x: (F.relu6(x + 3) * (1 / 6)) * x,
        lambda x: x * (x + 3).clamp(0, 6) * (1 / 6),
    ],
    "gelu_tanh": [
        nn.GELU(approximate="tanh"),
        lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ],
    "hardsigmoid": [
        F.hardsigmoid,
        nn.Hardsigmoid(inplace=True),
        lambda x: F.relu6(x + 3) / 6,
        lambda x: (x + 3.0).clamp(0, 6).div_(6.0),
        lambda x: F.relu6(3 + x, inplace=True) * (1 / 6),
    ],
    "mish": [nn.Mish(inplace=True), lambda x: x * torch.tanh(F.softplus(x))],
    "softplus": [F.softplus],
    "leaky_relu": [nn.LeakyReLU(inplace=True), nn.LeakyReLU(0.2), nn.LeakyReLU(-1.5)],
    "elu": [nn.ELU(inplace=True), nn.ELU(0.3)],
    "clamp": [
        nn.Hardtanh(),
        nn.Hardtanh(-3, 0.5, inplace=True),
        lambda x: x.clamp(max=0.25),
        lambda x: x.relu().clamp(max=4),
        lambda x: x.clamp(-1, 2).clamp(min=0.5),
        lambda x: F.relu6(x).clamp(1, 3).relu(),
        lambda x: x.clamp(3, 4).clamp(-1, 2),
    ],
    "prelu": [nn.PReLU(), nn.PReLU(4, init=-0.5)],
}
CASES = [(name, i) for name, functions in ACTIVATIONS.items() for i in range(len(functions))]


class Block(nn.Module):
    def __init__(self, function, dtype):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1).to(dtype)
        self.function = function.to(dtype) if isinstance(function, nn.Module) else function

    def forward(self, x):
        return self.function(self.conv(x * 3))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name, index", CASES)
def test_activations(name, index, dtype):
    block = Block(ACTIVATIONS[name][index], dtype)
    optimized = check(block, torch.randn(2, 4, 7, 9).mul(3).to(dtype))
    assert [call["activation"] for call in convolutions(optimized)] == [name]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.celu(x, 0.1),
        lambda x: F.selu(x),
        lambda x: F.softplus(x, beta=2),
        lambda x: x.clamp(torch.tensor(-1.0), torch.tensor(6.0)),
        lambda x: F.prelu(x, x.mean((0, 2, 3))),
        lambda x: x * torch.sigmoid(x + 1),
        lambda x: (x + 1) * torch.sigmoid(x),
        lambda x: x * F.relu6(x + 2) / 6,
    ],
)
def test_other_activations_stay(function):
    optimized = check(Block(function, torch.float32), torch.randn(2, 4, 7, 9))
    assert {call["activation"] for call in convolutions(optimized)} <= {None, "sigmoid"}


class Sum(nn.Module):
    def __init__(self, add):
        super().__init__()
        self.one, self.two = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.norm, self.add = nn.BatchNorm2d(4), add

    def forward(self, x):
        y = self.one(x)
        return F.relu(self.add(self.norm(self.two(y)), y))


def added_in_place(a, b):
    a += b
    return a


@pytest.mark.parametrize("add", [lambda a, b: a + b, lambda a, b: b + a, torch.add, added_in_place])
@pytest.mark.parametrize("dynamic", [False, True])
def test_residuals(add, dynamic):
    options = {"dynamic_shapes": ({0: AUTO, 2: AUTO, 3: AUTO},)} if dynamic else {}
    optimized = check(Sum(add), torch.rand(2, 4, 9, 11), **options)
    first, second = convolutions(optimized)
    assert first["residual"] is None and second["residual"] is not None
    assert second["activation"] == "relu" and not calls(optimized)["add"]


class Embedded(nn.Module):
    """As in the networks of diffusion, where the residual is a vector for each image."""

    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, x, y):
        return F.silu(self.conv(x) + y)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("conv", [nn.Conv2d, nn.ConvTranspose2d])
@pytest.mark.parametrize(
    "sizes",
    [
        (2, 4, 1, 1),
        (1, 4, 9, 11),
        (1, 4, 1, 1),
        (2, 4, 1, 11),
        (4, 9, 11),
        (2, 1, 9, 11),
        (2, 1, 1, 1),
    ],
)
def test_residuals_that_broadcast(sizes, conv, dynamic, last):
    x, y = torch.rand(2, 4, 9, 11), torch.rand(sizes)
    if last:
        x = x.to(memory_format=torch.channels_last)
    of_residual = {d: AUTO for d, size in enumerate(sizes) if size in (2, 9, 11)}
    shapes = ({0: AUTO, 2: AUTO, 3: AUTO}, of_residual)
    options = {"dynamic_shapes": shapes} if dynamic else {}
    optimized = check(Embedded(conv(4, 4, 3, padding=1)), x, y, **options)
    found = convolutions(optimized)[0]
    is_taken = len(sizes) == 4 and sizes[1] == 4
    assert (found["residual"] is not None) == is_taken
    assert (found["activation"] == "silu") == is_taken
    y.requires_grad_()
    module = Embedded(conv(4, 4, 3, padding=1))
    optimized = optimize(module, (x, y.detach()))
    expected, given = (torch.autograd.grad(each(x, y).sum(), y)[0] for each in (module, optimized))
    torch.testing.assert_close(given, expected)


def test_residual_of_another_type():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3, padding=1).half()

        def forward(self, x):
            return self.conv(x).float() + x.float()

    check(Mixed(), torch.rand(2, 4, 9, 11).half())


def test_scaled_sum_stays():
    check(Sum(lambda a, b: torch.add(a, b, alpha=2)), torch.rand(2, 4, 9, 11))


def test_sum_with_itself():
    check(Sum(lambda a, b: a + a), torch.rand(2, 4, 9, 11))


def test_result_that_others_use_too():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x):
            y = self.conv(x) + x
            return F.relu(y), y, y * 2

    (call,) = convolutions(check(Both(), torch.rand(2, 4, 9, 11)))
    assert call["activation"] in (None, "relu")


def test_in_place_on_a_view():
    """The activation writes to a part of the result, and the whole is used."""

    class View(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x):
            y = self.conv(x)
            y[:, :2].relu_()
            return y

    check(View(), torch.rand(2, 4, 9, 11))


class Program(nn.Module):
    """A function of the result of a convolution, its input and its bias."""

    def __init__(self, function):
        super().__init__()
        self.conv, self.function = nn.Conv2d(4, 4, 3, padding=1), function

    def forward(self, x):
        return self.function(self.conv(x), x, self.conv.bias)


@pytest.mark.parametrize(
    "slope",
    [
        lambda b: b.abs(),
        lambda b: b.flip(0),
        lambda b: b * 2,
        lambda b: torch.cat([b[:2], b[2:]]),
        lambda b: b.double().to(b.dtype),
        lambda b: torch.full((4,), 0.3, dtype=b.dtype),
    ],
)
def test_computed_slopes(slope):
    check(Program(lambda y, x, b: F.prelu(y, slope(b))), torch.randn(2, 4, 9, 11))


@pytest.mark.parametrize("bounds", [(torch.inf, None), (None, -torch.inf), (-torch.inf, 0.1)])
def test_infinite_bounds(bounds):
    model = Program(lambda y, x, b: y.clamp(*bounds)).eval()
    x = torch.randn(2, 4, 9, 11)
    torch.testing.assert_close(optimize(model, (x,))(x), model(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda y: F.leaky_relu(y, math.inf),
        lambda y: F.leaky_relu(y, math.nan),
        lambda y: F.elu(y, math.inf),
    ],
)
@torch.no_grad()
def test_parameters_that_are_no_numbers(function):
    model = Program(lambda y, x, b: function(y)).eval()
    x = torch.randn(2, 4, 9, 11)
    torch.testing.assert_close(optimize(model, (x,))(x), model(x), equal_nan=True)


@pytest.mark.parametrize("d", [0, 1, -1])
def test_squeeze_of_nothing(d):
    check(Program(lambda y, x, b: y.squeeze(d) + x), torch.randn(2, 4, 9, 11))


def test_result_that_aliases_the_input():
    class Alias(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x):
            return self.conv(x), x, x.flatten(1)

    check(Alias(), torch.rand(2, 4, 9, 11))
