"""optimize: batch norms and other arithmetic by channel, in weights and biases or in one pass."""

import pytest
import torch
import torch.nn.functional as F
from checks import calls, check, check_values, convolutions, randomized
from torch import nn

from torch_dnnl.graph.optimize import optimize

CONVOLUTIONS = {
    "1d": (lambda: nn.Conv1d(4, 6, 3, padding=1), nn.BatchNorm1d, (2, 4, 11)),
    "2d": (lambda: nn.Conv2d(4, 6, 3, padding=1, bias=False), nn.BatchNorm2d, (2, 4, 9, 11)),
    "3d": (lambda: nn.Conv3d(4, 6, 3, stride=2), nn.BatchNorm3d, (2, 4, 5, 7, 9)),
    "groups": (lambda: nn.Conv2d(4, 6, 3, groups=2), nn.BatchNorm2d, (2, 4, 9, 11)),
    "transposed": (
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1),
        nn.BatchNorm2d,
        (2, 4, 9, 11),
    ),
    "transposed groups": (
        lambda: nn.ConvTranspose2d(4, 6, 3, groups=2, bias=False),
        nn.BatchNorm2d,
        (2, 4, 9, 11),
    ),
    "linear": (lambda: nn.Linear(4, 6), nn.BatchNorm1d, (5, 4)),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_folded(name, affine, dtype):
    make, norm, sizes = CONVOLUTIONS[name]
    module = nn.Sequential(make(), norm(6, affine=affine, momentum=None), nn.ReLU()).to(dtype)
    optimized = check(module, torch.randn(sizes).to(dtype))
    assert not calls(optimized)["_native_batch_norm_legit_no_training"]


class Frozen(nn.Module):
    """As torchvision's FrozenBatchNorm2d computes it."""

    def __init__(self, channels):
        super().__init__()
        for name in ("weight", "bias", "mean", "var"):
            self.register_buffer(name, torch.rand(channels) + 0.5)

    def forward(self, x):
        scale = self.weight * (self.var + 1e-5).rsqrt()
        shift = self.bias - self.mean * scale
        return x * scale[:, None, None] + shift[:, None, None]


def test_frozen_norm_and_numbers():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), Frozen(8))
    assert calls(check(model, torch.rand(2, 3, 9, 11))) == {"convolution": 1}

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, x):
            return (2 * self.conv(x) - 1) / 3 + 0.5

    assert calls(check(Scaled(), torch.rand(2, 3, 9, 11))) == {"convolution": 1}


@pytest.mark.parametrize("padding", [0, 1])
def test_before_a_convolution(padding):
    """What is added before a padded convolution stays: the padding is zero."""

    class Normalized(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm2d(4)
            self.conv = nn.Conv2d(4, 6, 3, padding=padding, groups=2)

        def forward(self, x):
            return self.conv(self.norm(x / 0.25))

    optimized = check(Normalized(), torch.rand(2, 4, 9, 11))
    assert calls(optimized) == {"convolution": 1 + padding}


def test_norm_and_activation_in_one_pass():
    """DenseNet's: a norm between a concatenation and an activation."""

    class Dense(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 5, 3, padding=1)
            self.norm = nn.BatchNorm2d(8)
            self.last = nn.Conv2d(8, 4, 1)

        def forward(self, x):
            y = torch.cat([x, self.conv(x)], 1)
            return self.last(F.relu(self.norm(y)))

    optimized = check(Dense(), torch.rand(2, 3, 9, 11))
    assert calls(optimized) == {"convolution": 3, "cat": 1}
    assert [call["activation"] for call in convolutions(optimized)] == [None, "relu", None]


class Response(nn.Module):
    """ConvNeXt V2's response norm of channels_last images."""

    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, x):
        norm = torch.linalg.vector_norm(x, **self.options)
        return x * (norm / (norm.mean() + 1e-6))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dims", [(1, 2), (1,), (3,), (1, 2, 3)])
def test_norm_across_the_memory(dims, dtype):
    x = torch.randn(2, 5, 7, 9).to(dtype)
    optimized = check(Response(dim=dims, keepdim=True), x)
    is_quick = 3 not in dims and dtype != torch.bfloat16
    assert calls(optimized)["vector_norm"] == is_quick
    for order in (1, 3, torch.inf):
        check(Response(dim=dims, keepdim=True, ord=order), x)
    if dtype == torch.float64:
        x[:, :, :, 2] = 0
        x.requires_grad_()
        expected, found = (
            torch.autograd.grad(each(x).sum(), x)[0]
            for each in (Response(dim=dims, keepdim=True), optimized)
        )
        torch.testing.assert_close(found, expected)
        program = torch.export.export(optimized, (x.detach(),))
        torch.testing.assert_close(program.module()(x), optimized(x))


def test_shared_convolution():
    """A convolution that is called twice has other weights only where a norm follows."""

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

        def forward(self, x):
            y = self.norm(self.conv(x))
            return self.conv(y), y

    check(Shared(), torch.rand(2, 3, 9, 11))


def test_two_users_of_a_result():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

        def forward(self, x):
            y = self.conv(x)
            return self.norm(y), y + 1

    check(Two(), torch.rand(2, 3, 9, 11))


@pytest.mark.parametrize("variance, eps", [(0.0, 0.0), (torch.inf, 1e-5), (0.0, 1e-5)])
def test_extreme_variances(variance, eps):
    """Weights that are no numbers are not taken: 0 * inf is not what the norm computes."""
    model = randomized(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, eps=eps)))
    model[1].running_var[1] = variance
    x = torch.rand(2, 3, 9, 11)
    with torch.no_grad():
        torch.testing.assert_close(
            optimize(model, (x,))(x), model(x), rtol=1e-4, atol=1e-4, equal_nan=True
        )


class Before(nn.Module):
    """Arithmetic that cancels digits if it is a product before a sum."""

    def __init__(self, function, *last):
        super().__init__()
        self.function, self.last = function, nn.Sequential(*last)

    def forward(self, x):
        return self.last(self.function(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("last", [[], [nn.Conv2d(3, 8, 3)], [nn.Conv2d(3, 8, 1, bias=False)]])
@pytest.mark.parametrize("mean, deviation", [(123.0, 5.0), (100.0, 0.1)])
def test_differences_keep_their_digits(mean, deviation, last, dtype):
    model = Before(lambda x: (x - mean) / deviation, *last).to(dtype)
    check(model, (torch.randn(2, 3, 9, 11) * deviation + mean).to(dtype))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_norm_of_half_types_before_a_convolution(dtype):
    model = randomized(nn.Sequential(nn.BatchNorm2d(3), nn.Conv2d(3, 8, 1)))
    model[0].running_mean.fill_(10), model[0].running_var.fill_(0.01)
    model, x = model.to(dtype), (10 + 0.1 * torch.randn(2, 3, 9, 11)).to(dtype)
    check_values(optimize(model, (x,)), model, x)


def test_small_weights_keep_their_digits():
    """float16 has no digits for the product of these weights."""
    model = nn.Sequential(nn.BatchNorm2d(4), nn.Conv2d(4, 4, 1, bias=False)).eval()
    with torch.no_grad():
        model[0].running_var[:] = torch.tensor([6e4, 6e4, 6e4, 0])
        model[0].weight.fill_(0.1), model[1].weight.mul_(0.05)
    x = torch.randn(2, 4, 6, 5) * 250
    x[:, 3] = 0
    check_values(optimize(model.half(), (x.half(),)), model, x.half())

    class Tiny(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 1, bias=False)
            nn.init.uniform_(self.conv.weight, 1e-18, 2e-18)

        def forward(self, x):
            return self.conv(x) * 1e-25

    check(Tiny(), torch.randn(2, 4, 6, 5) * 1e20)


@pytest.mark.parametrize("steps", [40, 300])
def test_many_operators_on_a_vector(steps):
    class Long(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.scale = nn.Conv2d(3, 4, 3), nn.Parameter(torch.rand(4, 1, 1))

        def forward(self, x):
            a, b = self.scale, self.scale + 1
            for _ in range(steps):
                a, b = b, a * 0.5 + b * 0.25 if steps > 40 else (a * b).sigmoid() + a * 0.5
            return self.conv(x) * b

    assert calls(check(Long(), torch.rand(2, 3, 9, 11))) == {"convolution": 1}


def test_division_by_zero():
    class Divided(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x):
            return self.conv(x) / 0

    model, x = Divided().eval(), torch.rand(2, 3, 9, 11)
    assert torch.equal(optimize(model, (x,))(x), model(x))


@pytest.mark.parametrize("sizes", [(2, 0, 9, 11), (2, 3, 0, 11), (0, 3, 9, 11)])
def test_empty_images(sizes):
    model = Before(lambda x: x * 2 + 1).eval()
    assert optimize(model, (torch.rand(sizes),))(torch.rand(sizes)).shape == sizes


def test_norm_of_training_mode():
    """Statistics of the images at hand are no constants."""
    norm = nn.BatchNorm2d(4, track_running_stats=False)
    optimized = check(nn.Sequential(nn.Conv2d(3, 4, 3), norm), torch.rand(2, 3, 9, 11))
    assert not convolutions(optimized)[0]["activation"]


def test_changed_statistics():
    """A buffer that the model writes to is no constant."""

    class Counted(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.register_buffer("scale", torch.ones(4, 1, 1))
            self.view = self.scale.view(4)

        def forward(self, x):
            self.scale += 1
            return self.conv(x) * self.scale

    model, x = Counted().eval(), torch.rand(2, 3, 9, 11)
    optimized = optimize(model, (x,))
    first, second = optimized(x), optimized(x)
    torch.testing.assert_close(second, first * 1.5)
    assert model.scale.eq(1).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_float32_norm_of_half_types(dtype):
    """As mixed precision leaves it: half types in the convolution, float32 in the norm."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3).to(dtype), nn.BatchNorm2d(4))
    x = torch.rand(2, 3, 9, 11, dtype=dtype)
    model = randomized(model)
    check_values(optimize(model, (x,)), model, x)


@pytest.mark.parametrize("mean, variance", [(123.456, 1e-4), (100.0, 1.0), (0.7, 1e-4)])
def test_norm_of_a_large_mean(mean, variance):
    """x * scale + shift would lose the digits that x - mean keeps."""
    norm = nn.BatchNorm2d(3).eval()
    for part, number in (("running_mean", mean), ("running_var", variance), ("weight", 3.3)):
        nn.init.constant_(getattr(norm, part), number)
    x = mean + variance**0.5 * torch.randn(2, 3, 9, 9)
    for model in (norm, nn.Sequential(norm, nn.Conv2d(3, 8, 3)).eval()):
        check_values(optimize(model, (x,)), model, x)


@pytest.mark.parametrize("numbers", [(1.0, 3.3, 1e-5), (300.0, 0.01, 0.01)])
def test_difference_before_a_product(numbers):
    mean, scale, deviation = numbers
    model, x = Before(lambda x: (x - mean) * scale), mean + deviation * torch.randn(2, 4, 9, 9)
    model = randomized(model)
    check_values(optimize(model, (x,)), model, x)


@pytest.mark.parametrize("transposed", [False, True])
def test_small_scale_of_one_group(transposed):
    """A fold is refused if it makes the weights of one group subnormal."""
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    conv = kind(8, 8, 1, groups=2, bias=False).half()
    nn.init.uniform_(conv.weight, 0.2, 0.4)
    scale = torch.ones(8, 1, 1, dtype=torch.float16)
    scale[4] = 1e-6

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = conv
            self.register_buffer("scale", scale)

        def forward(self, x):
            y = self.conv(x) * self.scale if transposed else self.conv(x * self.scale)
            return y[:, 4:5]

    x = torch.zeros(1, 8, 5, 5)
    x[:, 4:] = 5e3 * torch.rand(5, 5)
    model = Scaled().eval()
    check_values(optimize(model, (x.half(),)), model, x.half())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "arithmetic",
    [lambda x: x - 100, lambda x: x * 2 - 200, lambda x: x - torch.full((4, 1, 1), 100.0).to(x)],
)
def test_cancellation(arithmetic, dtype):
    """A shift does not become part of a convolution: the difference has more digits than weights
    times x."""

    class Shifted(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3)

        def forward(self, x):
            return self.conv(arithmetic(x))

    check(Shifted().to(dtype), (100 + torch.randn(2, 4, 9, 11)).to(dtype))
