"""convert(fuse=True): what goes into a convolution, and what has to stay outside."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import torch_dnnl

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
    """What a call runs beside views and copies."""
    with torch.no_grad(), Calls() as calls:
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
    assert list(fused.state_dict()) == ["0.weight", "0.bias"]
    assert type(fused[1]) is nn.Identity
    assert (fused is model) == inplace
    assert isinstance(fused[0], type(conv)) and isinstance(fused, nn.Sequential)
    # The layer alone has what was folded and no activation.
    x = torch.randn(SIZES[n])
    assert fused[0](x).min() < 0
    torch.testing.assert_close(fused[0](x).relu(), fused(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", CONVS)
def test_residual_of_every_convolution(name):
    conv, n = copy.deepcopy(CONVS[name])
    other = copy.deepcopy(conv)
    is_transposed = isinstance(conv, nn.modules.conv._ConvTransposeNd)
    kind = "convolution_transpose" if is_transposed else "convolution"
    fused = "convolution_transpose" if is_transposed else "convolution_fused"
    check(Residual(conv, NORMS[n](6), other), SIZES[n], [kind, fused])


MODULES = [
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
    expected = F.relu(fused.conv2(fused.relu(fused.conv1(x))) + fused.downsample(x))
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
    """A forward that depends on its arguments; the pair is found in its source."""

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


def test_pairs_in_a_forward_without_a_graph():
    fused = check(
        Opaque(), expected=["convolution"] * 2 + ["mul", "mean"] + ["convolution_fused", "add"]
    )
    model, (x, mask) = ready(Opaque()), torch.randn(2, 2, 4, 7, 6)
    fused = torch_dnnl.convert(model, fuse=True)
    torch.testing.assert_close(fused(x, mask[:, :1]), model(x, mask[:, :1]), rtol=1e-4, atol=1e-5)


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
    (CalledTwice, ["convolution", *CONV_NORM]),
    (NormTwice, ["native_batch_norm", *CONV_NORM]),
    (WeightUsed, [*CONV_NORM, "mean", "mul"]),
    (InputChanged, ["convolution", "relu", "add"]),
    (IdentityChanged, ["convolution", "add", "mul"]),
    (Alpha, ["convolution", "add"]),
    (Approximate, ["convolution", "gelu"]),
    (Number, ["convolution", "add"]),
    (Doubled, ["convolution", "add"]),
    (Lists, ["convolution", "mean", "native_batch_norm"]),
    (Kinds, ["convolution", "neg", "relu"]),
    (Random, ["convolution", "rand", "lt", "_local_scalar_dense", "relu"]),
    (Perceptual, [*CONV_NORM, "add"]),
    (Nested, ["convolution", "add", *CONV_NORM, "add"]),
    (Reaching, [*CONV_NORM, "relu", "convolution", "add"]),
    (ByName, [*CONV_NORM, "relu", "convolution", "add"]),
    (ByGraph, [*CONV_NORM, "relu", "convolution_fused"]),
    (OtherMethod, [*CONV_NORM, "relu", "convolution", "add"]),
    (Held, [*CONV_NORM, "relu", "convolution", "add"]),
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
    check(model, expected=CONV_NORM * 2)
    normed = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 4, 1)), nn.BatchNorm2d(4), nn.ReLU()
    )
    names = operators(torch_dnnl.convert(ready(normed), fuse=True), torch.randn(1, 4, 3, 3))
    assert names[-3:] == [*CONV_NORM, "relu"]
    huge = pair()
    nn.init.constant_(huge[1].weight, 1e38)
    nn.init.constant_(huge[0].weight, 1e10)
    assert type(torch_dnnl.convert(huge, fuse=True)[1]) is nn.BatchNorm2d


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


def test_needs_eval_mode():
    with pytest.raises(ValueError, match="convert: expected module to be in eval mode for fuse"):
        torch_dnnl.convert(nn.Sequential(nn.Conv2d(1, 1, 1)), fuse=True)


def test_no_way_back():
    fused = torch_dnnl.convert(ready(Block(None)), fuse=True)
    with pytest.raises(ValueError, match=r"revert: expected .* no fused layers, conv1 is one"):
        torch_dnnl.revert(fused)


def test_verbose(capsys):
    torch_dnnl.convert(ready(Block(None)), fuse=True, verbose=True)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fused")]
    assert sorted(lines) == [
        "fused      conv1: batch norm, relu",
        "fused      conv2: batch norm, residual and relu",
    ]


def test_again_changes_nothing():
    fused = torch_dnnl.convert(ready(block_with_downsample()), fuse=True)
    x = torch.randn(1, 4, 5, 5)
    again = torch_dnnl.convert(fused, fuse=True)
    torch.testing.assert_close(again(x), fused(x), rtol=0, atol=0)
    assert operators(again, x) == operators(fused, x)


def test_copies():
    fused = torch_dnnl.convert(ready(block_with_downsample()), fuse=True)
    x, buffer = torch.randn(1, 4, 5, 5), io.BytesIO()
    torch.save(fused, buffer)
    buffer.seek(0)
    copies = [copy.deepcopy(fused), pickle.loads(pickle.dumps(fused)), torch_dnnl.convert(fused)]
    for other in (*copies, torch.load(buffer, weights_only=False)):
        assert isinstance(other, Block)
        assert operators(other, x) == operators(fused, x)
        torch.testing.assert_close(other(x), fused(x), rtol=0, atol=0)
    copies[0].conv1.weight.data.zero_()
    assert (copies[0](x) != fused(x)).any()


def test_training_mode_and_changes_take_the_forward_of_the_class():
    model = ready(block_with_downsample())
    fused, x = torch_dnnl.convert(model, fuse=True), torch.randn(1, 4, 5, 5)
    expected = fused(x)
    fused.train()
    assert "relu" in operators(fused, x)
    torch.testing.assert_close(fused(x), expected, rtol=1e-4, atol=1e-5)
    fused.eval()
    assert "relu" not in operators(fused, x)
    fused.relu = nn.Tanh()
    changed = copy.deepcopy(model)
    changed.relu = nn.Tanh()
    torch.testing.assert_close(fused(x), changed(x), rtol=1e-4, atol=1e-5)


def test_hooks_of_blocks_run():
    model, calls = nn.Sequential(ready(Block(None)), nn.ReLU()).eval(), []
    model[0].register_forward_hook(lambda module, args, out: calls.append(out) or out + 1)
    fused, x = torch_dnnl.convert(model, fuse=True), torch.randn(1, 4, 5, 5)
    torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(calls) == 2


CHANGES = {
    "append": lambda model: model.append(nn.Tanh()),
    "insert": lambda model: model.insert(2, nn.Tanh()),
    "delete": lambda model: model.__delitem__(2),
    "replace": lambda model: model.__setitem__(2, nn.Tanh()),
    "dict": lambda model: model._modules.update({"2": nn.Tanh()}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_submodules_are_called(change):
    model = ready(nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU()))
    fused, x = torch_dnnl.convert(model, fuse=True), torch.randn(1, 4, 5, 5)
    block = ready(Inverted())
    fused_block = torch_dnnl.convert(block, fuse=True)
    for sequential in (model, fused):
        CHANGES[change](sequential)
    for sequential in (block.conv, fused_block.conv):
        sequential.append(nn.Tanh())
    torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fused[:3](x), model[:3](x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fused_block(x), block(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["conv", "conv.0", "conv.0.2", "conv.1"])
def test_hooks_that_come_later_run(name):
    model, calls = ready(Inverted()), []
    fused, x = torch_dnnl.convert(model, fuse=True), torch.randn(1, 4, 5, 5)
    expected = fused(x)
    layer = fused.get_submodule(name)
    handle = layer.register_forward_hook(lambda module, args, out: calls.append(out))
    copied = torch_dnnl.convert(fused)
    for network in (fused, copied):
        torch.testing.assert_close(network(x), expected, rtol=1e-4, atol=1e-5)
    assert len(calls) == 2
    with torch.no_grad():
        before = {"conv": model.conv, "conv.0": model.conv[0], "conv.0.2": model.conv[0]}
        values = before[name](x) if name in before else model.conv(x)
    torch.testing.assert_close(calls[0], values, rtol=1e-4, atol=1e-5)
    handle.remove()
    assert operators(fused, x) == ["convolution_fused"] * 2


def test_changed_lists_are_called():
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Conv2d(4, 4, 1), nn.ReLU()])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    model = Layers().eval()
    fused, x = torch_dnnl.convert(model, fuse=True), torch.randn(1, 4, 5, 5)
    assert operators(fused, x) == ["convolution_fused"]
    fused.layers.append(nn.Tanh())
    torch.testing.assert_close(fused(x), model(x).tanh(), rtol=1e-4, atol=1e-5)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.scale = nn.Conv2d(4, 4, 1), 2.0

    def forward(self, x):
        return self.conv(x * self.scale)


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.scale = Scaled(), 3.0

    def forward(self, x):
        return F.relu(self.inner(x)) * self.inner.scale


class Loop(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Scaled()])

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x)) * layer.scale
        return x


def test_attributes_are_not_taken_for_good():
    x = torch.randn(1, 4, 5, 5)
    for model in (
        Residual(Scaled()),
        Outer(),
        Loop(),
        Residual(nn.Conv2d(4, 4, 1), other=Scaled()),
    ):
        model = model.eval()
        fused = torch_dnnl.convert(model, fuse=True)
        for network in (model, fused):
            for part in network.modules():
                if isinstance(part, Scaled):
                    part.scale = 5.0
        torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [lambda: Block(None), block_with_downsample, Inverted])
def test_gradients(make):
    model = ready(make())
    fused, x = torch_dnnl.convert(model, fuse=True), torch.randn(2, 4, 5, 6, requires_grad=True)
    torch.testing.assert_close(
        torch.autograd.grad(fused(x).square().sum(), x),
        torch.autograd.grad(model(x).square().sum(), x),
        rtol=1e-3,
        atol=1e-4,
    )
    fused(x).sum().backward()
    assert all(parameter.grad is not None for parameter in fused.parameters())
    model.requires_grad_(False)
    assert not any(p.requires_grad for p in torch_dnnl.convert(model, fuse=True).parameters())


def test_memory_format_and_types():
    model = ready(block_with_downsample()).to(memory_format=torch.channels_last)
    fused = torch_dnnl.convert(model, fuse=True)
    assert fused.conv1.weight.is_contiguous(memory_format=torch.channels_last)
    x = torch.randn(2, 4, 5, 6).to(memory_format=torch.channels_last)
    assert fused(x).is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)
    for dtype in (torch.float64, torch.bfloat16):
        other = torch_dnnl.convert(copy.deepcopy(model).to(dtype), fuse=True)
        assert other(x.to(dtype)).dtype == dtype
        tolerance = 1e-4 if dtype == torch.float64 else 0.1
        torch.testing.assert_close(
            other(x.to(dtype)).float(), model(x), rtol=tolerance, atol=tolerance
        )


def test_compile_and_export():
    fused, x = (
        torch_dnnl.convert(ready(block_with_downsample()), fuse=True),
        torch.randn(2, 4, 5, 6),
    )
    compiled = torch.compile(fused, backend="aot_eager", fullgraph=True, dynamic=True)
    torch.testing.assert_close(compiled(x), fused(x), rtol=0, atol=0)
    exported = torch.export.export(fused, (x,)).module()
    torch.testing.assert_close(exported(x), fused(x), rtol=0, atol=0)


def test_traced_models():
    model = torch.fx.symbolic_trace(ready(block_with_downsample()))
    fused, x = torch_dnnl.convert(model, fuse=True), torch.randn(2, 4, 5, 6)
    torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)
    assert "native_batch_norm" not in operators(fused, x)
