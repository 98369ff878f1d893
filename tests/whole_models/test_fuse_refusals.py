"""convert(fuse=True): what cannot be proved stays outside of the convolutions."""

import pytest
import torch
from test_fuse import FRelu, Relu, check, operators, ready
from torch import nn
from torch.nn import functional as F

import torch_dnnl

# Models of which something must not be fused, and the operators that are left.
CONV_NORM = ["convolution", "native_batch_norm"]


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.act = nn.ReLU(inplace=True)


class SeenTwice(Parts):
    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) + y


class CalledTwice(Parts):
    def forward(self, x):
        return self.norm(self.conv(self.conv(x)))


class NormTwice(Parts):
    def forward(self, x):
        return self.norm(self.conv(self.norm(x)))


class WeightUsed(Parts):
    def forward(self, x):
        return self.norm(self.conv(x)) * self.conv.weight.mean()


class InputChanged(Parts):
    """The sum comes after the convolution's input has changed."""

    def forward(self, x):
        y = self.conv(x)
        z = self.act(x)
        return y + z


class IdentityChanged(Parts):
    """The sum is in the place of the input, which is used again."""

    def forward(self, x):
        y = x
        x += self.conv(x)
        return x * y


class Alpha(Parts):
    def forward(self, x):
        return torch.add(self.conv(x), x, alpha=2)


class Approximate(Parts):
    def forward(self, x):
        return F.gelu(self.conv(x), approximate="tanh")


class Gate(nn.Module):
    def forward(self, x):
        return F.relu(x) * x


class ByHelper(nn.Module):
    """What the forward does follows from another method."""

    def forward(self, x):
        return self.apply_to(x)

    def apply_to(self, x):
        return F.relu(x)


class Gated(Parts):
    def __init__(self):
        super().__init__()
        self.act = Gate()

    def forward(self, x):
        return self.act(self.conv(x))


class Helped(Gated):
    def __init__(self):
        super().__init__()
        self.act = ByHelper()


class Number(Parts):
    def forward(self, x):
        return self.conv(x) + 1


class Doubled(Parts):
    def forward(self, x):
        y = self.conv(x)
        return y + y


class Lists(Parts):
    """Tracing would lose what the forward keeps."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        y = self.conv(x)
        self.seen.append(y.mean())
        return self.norm(y)


class Kinds(Parts):
    def forward(self, x):
        y = self.conv(x)
        if isinstance(y, torch.Tensor):
            y = y.neg()
        return y.relu()


class Random(Parts):
    def forward(self, x):
        y = self.conv(x)
        scale = 1 if torch.rand(1) < 2 else 2
        return y.relu() if scale == 1 else y


class Perceptual(nn.Module):
    """Another forward looks at the results within a Sequential."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))

    def forward(self, x):
        results = []
        for layer in self.layers:
            x = layer(x)
            results.append(x)
        return results[0] + results[1]


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.ModuleList([Perceptual().layers])

    def forward(self, x, flag=None):
        total = x.sum() if flag is not None else 0
        for stage in self.stages:
            total = total + stage[0](x) + stage(x)
        return total


class Reaching(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = FRelu()

    def forward(self, x, flag=None):
        return self.block(x) + self.block.conv(x) if flag is None else x


class ByName(Reaching):
    def forward(self, x, flag=None):
        return self.block(x) + getattr(getattr(self, "block"), "co" + "nv")(x)  # noqa: B009


class ByGraph(Reaching):
    def forward(self, x):
        return self.block(x) + self.block.conv(x)


class Method2(Relu):
    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))

    def raw(self, x):
        return self.conv(x)


class OtherMethod(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Method2()

    def forward(self, x, flag=None):
        return self.block(x) + self.block.raw(x) if flag is None else x


class Held(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = FRelu()
        self.kept = {"conv": [self.block.conv]}

    def forward(self, x, flag=None):
        return self.block(x) + self.kept["conv"][0](x) if flag is None else x


UNFUSED = [
    (SeenTwice, [*CONV_NORM, "add"]),
    (CalledTwice, ["convolution"] * 2),
    (NormTwice, ["native_batch_norm", "convolution"]),
    (WeightUsed, [*CONV_NORM, "mean", "mul"]),
    (InputChanged, ["convolution", "relu", "add"]),
    (IdentityChanged, ["convolution", "add", "mul"]),
    (Alpha, ["convolution", "add"]),
    (Approximate, ["convolution", "gelu"]),
    (Gated, ["convolution", "relu", "mul"]),
    (Helped, ["convolution", "relu"]),
    (Number, ["convolution", "add"]),
    (Doubled, ["convolution", "add"]),
    (Lists, ["convolution", "mean", "native_batch_norm"]),
    (Kinds, ["convolution", "neg", "relu"]),
    (Random, ["convolution", "rand", "lt", "_local_scalar_dense", "relu"]),
    (Perceptual, [*CONV_NORM, "add"]),
    (Nested, ["convolution", "add", "convolution", "add"]),
    (Reaching, ["convolution_fused"] * 2),
    (ByName, ["convolution_fused", "convolution", "add"]),
    (ByGraph, ["convolution_fused"] * 2),
    (OtherMethod, ["convolution_fused", "convolution", "add"]),
    (Held, ["convolution_fused", "convolution", "add"]),
]


@pytest.mark.parametrize(
    ("kind", "expected"), UNFUSED, ids=lambda value: getattr(value, "__name__", "")
)
def test_what_cannot_be_proved_stays(kind, expected):
    check(kind(), expected=expected)


def test_side_effects_stay():
    fused, x = torch_dnnl.convert(ready(Lists()), fuse=True), torch.randn(1, 4, 2, 2)
    for count in range(3):
        assert len(fused.seen) == count
        fused(x)


def test_layers_that_stay():
    def pair(norm=None, **kwargs):
        return ready(nn.Sequential(nn.Conv2d(4, 4, 1), norm or nn.BatchNorm2d(4, **kwargs)))

    check(pair(track_running_stats=False), expected=CONV_NORM)
    check(pair(nn.BatchNorm2d(4)), expected=["convolution"])

    def training(model):
        model = ready(model)
        model[1].train()
        model[1].momentum, model[1].num_batches_tracked = 0.0, None
        return model

    check(pair(), expected=CONV_NORM, ready=training)
    for part in (0, 1):
        for register in ("register_forward_hook", "register_forward_pre_hook"):
            model = pair()
            getattr(model[part], register)(lambda *args: None)
            check(model, expected=CONV_NORM)
    shared = nn.BatchNorm2d(4)
    model = nn.Sequential(nn.Conv2d(4, 4, 1), shared, nn.Conv2d(4, 4, 1), shared)
    check(model, expected=["convolution"] * 2)
    normed = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 1)), nn.BatchNorm2d(4), nn.ReLU()
    )
    names = operators(torch_dnnl.convert(ready(normed), fuse=True), torch.randn(1, 4, 3, 3))
    assert names[-3:] == [*CONV_NORM, "relu"]
    huge = pair()
    nn.init.constant_(huge[1].weight, 1e38)
    nn.init.constant_(huge[0].weight, 1e10)
    assert operators(torch_dnnl.convert(huge, fuse=True), torch.randn(1, 4, 3, 3)) == CONV_NORM


def test_residuals_that_do_not_fit():
    """The layer does the operations one by one."""

    class Add(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x, y):
            return torch.relu(self.conv(x) + y)

    model = Add().eval()
    fused = torch_dnnl.convert(model, fuse=True)
    x = torch.randn(2, 4, 5, 6)
    others = [torch.randn(shape) for shape in ((4, 1, 1), (2, 1, 5, 6), (3, 2, 4, 5, 6))]
    for y in [
        *others,
        3,
        torch.randn(2, 4, 5, 6).double(),
        torch.ones(2, 4, 5, 6, dtype=torch.int),
    ]:
        assert operators(fused, x, y)[-3:] == ["convolution", "add", "relu"]
        torch.testing.assert_close(fused(x, y), model(x, y), rtol=1e-4, atol=1e-5)
    assert operators(fused, x, x) == ["convolution_fused"]
    torch.testing.assert_close(fused(x[0], x[0]), model(x[0], x[0]), rtol=1e-4, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        assert fused(x, x).dtype == model(x, x).dtype == torch.float32
        torch.testing.assert_close(fused(x, x), model(x, x), rtol=2e-2, atol=2e-2)
    with pytest.raises(RuntimeError, match="size of tensor"):
        fused(x, x[:, :3])


def test_padding_modes():
    conv = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
    model = ready(nn.Sequential(conv, nn.BatchNorm2d(4), nn.ReLU()))
    fused, x = torch_dnnl.convert(model, fuse=True), torch.randn(1, 4, 5, 5)
    torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)
    assert "native_batch_norm" not in operators(fused, x)


@pytest.mark.parametrize("n, shape", [(1, (4, 8)), (2, (4, 9, 9)), (3, (4, 5, 5, 5))])
def test_images_without_a_batch(n, shape):
    """To a batch norm the channels of a single image are the batch."""
    conv, norm = getattr(nn, f"Conv{n}d"), getattr(nn, f"BatchNorm{n}d")
    model = nn.Sequential(conv(4, 6, 3), norm(6)).eval()
    fused = torch_dnnl.convert(model, fuse=True)
    for network in (model, fused):
        if n == 1:  # 6 images of 6 channels
            assert network(torch.randn(shape)).shape == (6, 6)
        else:
            with pytest.raises(ValueError, match=f"expected {n + 2}D input"):
                network(torch.randn(shape))


def test_hooks_of_all_modules_see_every_module():
    model = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU()).eval()
    fused = torch_dnnl.convert(model, fuse=True)
    x = torch.randn(2, 4, 5, 6)
    assert operators(fused, x) == ["convolution_fused"]

    def clear(module, args, result):
        return result * 0 if isinstance(module, nn.ReLU) else None

    handle = nn.modules.module.register_module_forward_hook(clear)
    try:
        assert not fused(x).any()
    finally:
        handle.remove()
    torch.testing.assert_close(fused(x), model(x))
