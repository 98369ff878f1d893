"""convert(fuse=True): what goes into a convolution, and what has to stay outside."""

import copy
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import torch_dnnl
from torch_dnnl.fusion import calls as fused_calls

NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
SIZES = {1: (2, 4, 9), 2: (2, 4, 7, 6), 3: (1, 4, 5, 4, 3)}


class Calls(TorchDispatchMode):
    """Counts the operators that a call runs."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name.partition("::")[2].removesuffix("_"))
        return func(*args, **(kwargs or {}))


def operators(model, *inputs):
    """What a call runs beside views and copies, once the weights are there. Within a mode that sees
    calls, the forward of the class would run."""
    with torch.no_grad():
        model(*inputs)
        with mock.patch.object(fused_calls, "_is_traced", return_value=False), Calls() as calls:
            model(*inputs)
    return [name for name in calls.names if name not in ("alias", "detach", "empty", "view", "pad")]


def ready(model):
    """A model in eval mode whose batch norms have statistics of their own."""
    for module in model.modules():
        if isinstance(module, tuple(NORMS.values())) and module.running_mean is not None:
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.3, 2)
            if module.affine:
                nn.init.uniform_(module.weight, 0.5, 2)
                nn.init.normal_(module.bias)
    return model.eval()


def check(model, shape=(2, 4, 7, 6), expected=("convolution_fused",), ready=ready, inplace=False):
    """The fused model has the model's results, and runs the operators expected."""
    model = ready(model)
    x, state = torch.randn(shape), copy.deepcopy(model.state_dict())
    exact = copy.deepcopy(model).double()(x.double())
    before = model(x.clone())
    fused = torch_dnnl.convert(model, fuse=True, inplace=inplace)
    torch.testing.assert_close(fused(x.clone()), before, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fused(x.clone()).double(), exact, rtol=1e-4, atol=1e-5)
    names = operators(fused, x.clone())
    assert names == list(expected)
    if not inplace:
        torch.testing.assert_close(model(x.clone()), before, rtol=0, atol=0)
        torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)
    return fused


CONVS = {
    "Conv1d": (nn.Conv1d(4, 6, 3, bias=False), 1),
    "Conv2d": (nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), 2),
    "Conv2d-same": (nn.Conv2d(4, 6, (2, 3), padding="same", dilation=2), 2),
    "Conv2d-valid": (nn.Conv2d(4, 6, 3, padding="valid"), 2),
    "Conv3d": (nn.Conv3d(4, 6, (1, 2, 3), padding=(0, 1, 1)), 3),
    "same_upper": (torch_dnnl.nn.Conv2d(4, 6, 3, stride=2, padding="same_upper"), 2),
    "pairs": (torch_dnnl.nn.Conv2d(4, 6, 3, padding=((2, 0), (0, 1))), 2),
    "ConvTranspose1d": (nn.ConvTranspose1d(4, 6, 3, stride=2, bias=False), 1),
    "ConvTranspose2d": (
        nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        2,
    ),
    "ConvTranspose3d": (nn.ConvTranspose3d(4, 6, 2, stride=(1, 2, 1)), 3),
}


class Residual(nn.Module):
    """The sum of a convolution, batch norm or none, and what the second function makes of x."""

    def __init__(self, conv, norm=None, other=None):
        super().__init__()
        self.conv, self.norm = conv, norm if norm is not None else nn.Identity()
        self.other = other if other is not None else nn.Identity()

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)) + self.other(x))


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("name", CONVS)
def test_every_convolution(name, inplace):
    conv, n = copy.deepcopy(CONVS[name])
    model = nn.Sequential(conv, NORMS[n](6, affine=name != "Conv2d"), nn.ReLU(inplace=True))
    is_transposed = isinstance(conv, nn.modules.conv._ConvTransposeNd)
    expected = "convolution_transpose" if is_transposed else "convolution_fused"
    fused = check(model, SIZES[n], [expected], inplace=inplace)
    assert list(fused.state_dict()) == list(model.state_dict())
    assert (fused is model) == inplace
    assert isinstance(fused[0], type(conv)) and isinstance(fused, nn.Sequential)
    # The layers alone are what they were.
    x = torch.randn(SIZES[n])
    torch.testing.assert_close(fused[0](x), conv(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fused[1](fused[0](x)).relu(), fused(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CONVS)
def test_residual_of_every_convolution(name):
    conv, n = copy.deepcopy(CONVS[name])
    other = copy.deepcopy(conv)
    is_transposed = isinstance(conv, nn.modules.conv._ConvTransposeNd)
    kind = "convolution_transpose" if is_transposed else "convolution"
    fused = "convolution_transpose" if is_transposed else "convolution_fused"
    check(Residual(conv, NORMS[n](6), other), SIZES[n], [kind, fused])


class OwnActivation(nn.Module):
    """As transformers' are: a function that the module keeps."""

    def __init__(self):
        super().__init__()
        self.function = F.gelu

    def forward(self, input):
        return self.function(input)


MODULES = [
    OwnActivation(),
    nn.ReLU(),
    nn.ReLU6(True),
    nn.SiLU(),
    nn.GELU(),
    nn.Sigmoid(),
    nn.Tanh(),
    nn.Hardswish(inplace=True),
]
FUNCTIONS = {
    "F.relu": lambda x: F.relu(x, inplace=True),
    "torch.relu_": lambda x: torch.relu_(x),
    "relu": lambda x: x.relu(),
    "F.relu6": lambda x: F.relu6(x, True),
    "F.silu": lambda x: F.silu(x),
    "F.gelu": lambda x: F.gelu(x, approximate="none"),
    "torch.sigmoid": lambda x: torch.sigmoid(x),
    "sigmoid_": lambda x: x.sigmoid_(),
    "F.tanh": lambda x: F.tanh(x),
    "F.hardswish": lambda x: F.hardswish(x),
}


@pytest.mark.parametrize("layer", MODULES, ids=lambda value: type(value).__name__)
def test_modules_of_activations(layer):
    check(nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), copy.deepcopy(layer)))


class Relu(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6)


class FRelu(Relu):
    def forward(self, x):
        return F.relu(self.norm(self.conv(x)), inplace=True)


class Relu_(Relu):
    def forward(self, x):
        return torch.relu_(self.norm(self.conv(x)))


class Method(Relu):
    def forward(self, x):
        y = self.conv(x)
        y = self.norm(y)
        return y.sigmoid_()


class Gelu(Relu):
    def forward(self, x):
        return F.gelu(self.norm(self.conv(x)), approximate="none")


class Swish(Relu):
    def forward(self, x):
        return F.silu(self.norm(self.conv(x)), True)


class ByMethod(Relu):
    """The forward calls a method, and tests what the module is."""

    def forward(self, x):
        if torch.jit.is_scripting() or self.norm is None:
            return x
        return self.features(x)

    def features(self, x, raw=False):
        x = self.norm(self.conv(x))
        return x if raw else torch.tanh(x)


@pytest.mark.parametrize("kind", [FRelu, Relu_, Method, Gelu, Swish, ByMethod])
def test_functions(kind):
    check(kind())


class Block(nn.Module):
    """torchvision's way to write a residual block: one activation for all, and sums in place."""

    def __init__(self, downsample):
        super().__init__()
        self.conv1 = nn.Conv2d(4, 6, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(6)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(6, 6 if downsample else 4, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(6 if downsample else 4)
        self.downsample = downsample

    def forward(self, x):
        identity = x
        out = self.conv1(x)
        out = self.bn1(out)
        out = self.relu(out)
        out = self.conv2(out)
        out = self.bn2(out)
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        out = self.relu(out)
        return out


def block_with_downsample():
    return Block(nn.Sequential(nn.Conv2d(4, 6, 1, bias=False), nn.BatchNorm2d(6)))


def test_residual_blocks():
    check(Block(None), expected=["convolution_fused"] * 2)
    fused = check(
        block_with_downsample(), expected=["convolution_fused", "convolution", "convolution_fused"]
    )
    # Parts that are called by themselves are what they were.
    x = torch.randn(2, 4, 7, 6)
    inner = fused.relu(fused.bn1(fused.conv1(x)))
    expected = F.relu(fused.bn2(fused.conv2(inner)) + fused.downsample(x))
    torch.testing.assert_close(fused(x), expected, rtol=1e-4, atol=1e-5)


class Inverted(nn.Module):
    """The residual is added to a Sequential, whose last convolution takes it."""

    def __init__(self):
        super().__init__()
        first = nn.Sequential(nn.Conv2d(4, 8, 1), nn.BatchNorm2d(8), nn.SiLU())
        self.conv = nn.Sequential(first, nn.Conv2d(8, 4, 3, padding=1), nn.BatchNorm2d(4))

    def forward(self, x):
        return x + self.conv(x)


def test_residual_across_modules():
    fused = check(Inverted(), expected=["convolution_fused"] * 2)
    x = torch.randn(1, 4, 5, 5)
    torch.testing.assert_close(fused(x), x + fused.conv(x), rtol=1e-4, atol=1e-5)


class Opaque(nn.Module):
    """A forward that depends on its arguments, so that only its parts have graphs."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6)
        self.block = FRelu()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Conv2d(6, 6, 1), nn.BatchNorm2d(6))])

    def forward(self, x, mask=None):
        hidden = self.conv(x)
        hidden = self.norm(hidden)
        for index, layer in enumerate(self.blocks):
            hidden = layer(hidden) * (index + 1)
        if mask is not None:
            hidden = hidden * mask
        return hidden.mean() + self.block(x)


def test_a_forward_without_a_graph():
    names = ["convolution", "native_batch_norm", "convolution", "mul", "mean"]
    fused = check(Opaque(), expected=[*names, "convolution_fused", "add"])
    model, (x, mask) = ready(Opaque()), torch.randn(2, 2, 4, 7, 6)
    fused = torch_dnnl.convert(model, fuse=True)
    torch.testing.assert_close(fused(x, mask[:, :1]), model(x, mask[:, :1]), rtol=1e-4, atol=1e-5)
