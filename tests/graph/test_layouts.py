"""optimize: one memory format for a graph."""

import pytest
import torch
import torch.nn.functional as F
from checks import calls, check, check_values, randomized
from torch import nn

from torch_dnnl.graph.optimize import optimize

BODY = [layer for _ in range(4) for layer in (nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())]


def network(*last, channels=16):
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), *BODY, *last)


def images():
    return torch.rand(2, 3, 17, 19)


def copies(optimized):
    """How often a tensor is copied into another layout."""
    return calls(optimized)["contiguous"] + calls(optimized)["clone"]


def test_enters_once():
    """check() compares strides of results with strides of the model's results."""
    optimized = check(network(nn.Conv2d(16, 3, 1)), images())
    assert calls(optimized)["convolution"] == 6
    assert copies(optimized) == 2


def test_costs_more_than_it_saves():
    assert not copies(check(nn.Conv2d(3, 3, 3), images()))


@pytest.mark.parametrize(
    "last", [nn.Flatten(), nn.Flatten(2), nn.PixelShuffle(2), nn.AdaptiveAvgPool2d(1)]
)
def test_views_and_results(last):
    assert copies(check(network(last), images()))


class Custom(nn.Module):
    """Views and operators that ask for a layout."""

    def __init__(self, kind):
        super().__init__()
        self.body, self.kind = network(), kind

    def forward(self, x):
        y = self.body(x)
        if self.kind == "as_strided":
            return y.as_strided((4, 5), (7, 3))
        if self.kind == "complex":
            pairs = F.pad(y, (0, 1)).view(*y.shape[:3], -1, 2)
            return torch.view_as_real(torch.view_as_complex(pairs) * 2j)
        return y.view(-1), y


@pytest.mark.parametrize("kind", ["as_strided", "complex", "view"])
def test_layouts_that_are_asked_for(kind):
    assert copies(check(Custom(kind), images())) == 2


class Rewritten(nn.Module):
    """A function of a network's result, and of an image after a scale and a shift."""

    def __init__(self, function):
        super().__init__()
        self.body, self.function = network(), function

    def forward(self, x):
        return self.function(self.body(x), (x.mT * 2 + 1).mT)


@pytest.mark.parametrize(
    "function",
    [
        lambda y, z: (y.permute(0, 2, 3, 1), z.permute(0, 3, 1, 2)),
        lambda y, z: (y[:, :2], *z.chunk(3, 1)),
        lambda y, z: (y.flatten(2).transpose(1, 2), z.mT),
        lambda y, z: (y.unbind(1)[3], z[:, :, ::2]),
        lambda y, z: (y.view(torch.int16).view(y.dtype), z.view(torch.int16).view(z.dtype)),
        lambda y, z: torch.as_strided_copy(y, (4, 5), (7, 3)),
        lambda y, z: z.as_strided((4, 5), (5, 1)),
        lambda y, z: torch.cond(
            y.sum() > 0, lambda t: t.view(2, -1) * 2, lambda t: t.view(2, -1) * 3, (y,)
        ),
        lambda y, z: (y, z, z.sum(1)),
        lambda y, z: (y[:, :, 1:-1, ::2], y[:, 3], y[:, :1].expand(-1, 4, -1, -1)),
        lambda y, z: (y.diagonal(0, 2, 3), y.permute(0, 2, 3, 1)[..., :4], y.split(5, 1)[1]),
        # Fake tensors say other strides than kernels give, or kernels take contiguous images alone.
        lambda y, z: (y.roll(1, 2), F.channel_shuffle(y, 4), torch.fft.fftshift(y, dim=(2, 3))),
        lambda y, z: (F.pad(y, (1,) * 6, mode="reflect"), F.max_pool3d(y, 2)),
        lambda y, z: F.max_unpool2d(*F.max_pool2d(y, 3, 2, return_indices=True), 3, 2),
        lambda y, z: y.roll(1, 2).as_strided((2, 16, 4, 4), (5168, 323, 19, 1)),
        lambda y, z: torch.linalg.matrix_exp(y[..., :17] / 100),
        lambda y, z: (y > 0).nonzero(),
    ],
)
def test_strides_of_results(function):
    check(Rewritten(function), images())


def test_input_that_is_a_result_or_changes():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = network()

        def forward(self, x, y):
            y.add_(1)
            return x, self.body(x), self.body(y)

    model = randomized(Both())
    x, y = images(), images()
    optimized = optimize(model, (x, y))
    z = y.clone()
    with torch.no_grad():
        results, expected = optimized(x, y), model(x, z)
    assert results[0] is x and torch.equal(y, z)
    for a, b in zip(results, expected):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()


def test_channels_last_model():
    """A model whose results are channels_last keeps them so."""
    model = randomized(network(nn.Conv2d(16, 8, 1))).to(memory_format=torch.channels_last)
    x = images().to(memory_format=torch.channels_last)
    check_values(optimize(model, (x,)), model, x)


@pytest.mark.parametrize("layer", [nn.Conv3d(4, 4, 3), nn.ConvTranspose3d(4, 4, 3)])
def test_channels_last_volume(layer):
    """torch.export says that such a result is contiguous."""
    x = torch.randn(2, 4, 5, 6, 7).to(memory_format=torch.channels_last_3d)
    assert not copies(check(layer, x))


class Pooled(nn.Module):
    """The pool stands between two operators that keep the image contiguous."""

    def __init__(self, **options):
        super().__init__()
        self.pool = nn.MaxPool2d(3, 2, **options)

    def forward(self, x):
        return self.pool(x.exp()).flatten(1).cumsum(1)


@pytest.mark.parametrize("options", [{}, {"padding": 1}, {"ceil_mode": True}, {"dilation": 2}])
@pytest.mark.parametrize("channels", [3, 24])
def test_max_pools_of_contiguous_images(channels, options):
    image = torch.randn(2, channels, 13, 18)
    image[0, 1, 3, 4] = torch.nan
    module = Pooled(**options)
    optimized = optimize(module, (image,))
    torch.testing.assert_close(optimized(image), module(image), rtol=0, atol=0, equal_nan=True)
    assert calls(optimized)["clone"] == (channels == 24)
    image = (
        image.nan_to_num().round().requires_grad_()
    )  # equal elements: the first has the gradient
    expected, found = (
        torch.autograd.grad(each(image).square().sum(), image)[0] for each in (module, optimized)
    )
    torch.testing.assert_close(found, expected)


@torch.no_grad()
def test_vmap():
    """vmap knows no copies into channels_last."""
    model = randomized(network())
    x = torch.rand(3, 2, 3, 17, 19)
    optimized = optimize(model, (x[0],))
    assert copies(optimized)
    torch.testing.assert_close(torch.vmap(optimized)(x), torch.vmap(model)(x))
