"""Small networks whose layers and sums a rewriter of graphs may fuse: convolutions, norms,
activations, residuals.

NETWORKS maps a name to a function that makes the model, in eval mode, and to its inputs.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune

Case = tuple[Callable[[], nn.Module], tuple[Tensor, ...]]

NORMS = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}


def image(*sizes: int) -> Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(len(sizes) + sum(sizes)))


IMAGES = {1: image(2, 4, 9), 2: image(2, 4, 7, 6), 3: image(1, 4, 5, 4, 3)}
X, Y = image(2, 4, 6, 5), image(2, 4, 6, 5).flip(0) + 0.5


def ready(model: nn.Module) -> nn.Module:
    """The model in eval mode, with batch norms that have seen images."""
    for module in model.modules():
        if isinstance(module, tuple(NORMS.values())) and module.running_mean is not None:
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.3, 2)
            if module.affine:
                nn.init.uniform_(module.weight, 0.5, 2)
                nn.init.normal_(module.bias)
    return model.eval()


def layers(*makers: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: ready(nn.Sequential(*(make() for make in makers)))


class Parts(nn.Module):
    """What most programs are made of. `others` are more attributes."""

    def __init__(self, **others: object) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.act, self.inner = nn.ReLU(), nn.Conv2d(4, 4, 1)
        for name, value in others.items():
            setattr(self, name, value)

    def body(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))


def forward(function: Callable[..., object], **others: Callable[[], object]) -> Callable:
    """What makes a model of `Parts` with this forward."""
    name = function.__name__
    cls = type(name, (Parts,), {"forward": function, "__module__": function.__module__})
    return lambda: ready(cls(**{key: make() for key, make in others.items()}))


def registry(networks: dict[str, Case]) -> Callable:
    """A decorator that puts what makes a model of `Parts` with a forward among the networks, by the
    name of the forward."""

    def program(*inputs: Tensor, **others: Callable[[], object]) -> Callable:
        def register(function: Callable) -> Callable:
            networks[function.__name__] = forward(function, **others), inputs or (X,)
            return function

        return register

    return program


conv2d = partial(nn.Conv2d, 4, 6, 3)
norm2d = partial(nn.BatchNorm2d, 6)

# Convolutions, each with a batch norm and an activation, alone, and in a residual block.

CONVS: dict[str, tuple[int, Callable[[], nn.Module]]] = {
    "conv1d": (1, partial(nn.Conv1d, 4, 6, 3, bias=False)),
    "conv2d": (2, conv2d),
    "strided and grouped": (2, partial(conv2d, stride=2, padding=1, groups=2)),
    "same and dilated": (2, partial(nn.Conv2d, 4, 6, (2, 3), padding="same", dilation=2)),
    "valid": (2, partial(conv2d, padding="valid")),
    "depthwise": (2, partial(nn.Conv2d, 4, 4, 3, padding=1, groups=4, bias=False)),
    "depthwise, more outputs": (2, partial(nn.Conv2d, 4, 8, 3, groups=4)),
    "reflect": (2, partial(conv2d, padding=1, padding_mode="reflect")),
    "circular": (2, partial(conv2d, padding=1, padding_mode="circular")),
    "conv3d": (3, partial(nn.Conv3d, 4, 6, (1, 2, 3), padding=(0, 1, 1))),
    "transposed 1d": (1, partial(nn.ConvTranspose1d, 4, 6, 3, stride=2, bias=False)),
    "transposed 2d": (2, partial(nn.ConvTranspose2d, 4, 6, 3, 2, 1, 1, groups=2)),
    "transposed, depthwise": (2, partial(nn.ConvTranspose2d, 4, 4, 3, 2, groups=4)),
    "transposed 3d": (3, partial(nn.ConvTranspose3d, 4, 6, 2, stride=(1, 2, 1))),
}


class Residual(nn.Module):
    """Adds other(x) to a convolution with a batch norm."""

    def __init__(self, conv: nn.Module, norm: nn.Module, other: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm, self.other = conv, norm, other

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)) + self.other(x))


def normed(make: Callable[[], nn.Module], n: int) -> nn.Module:
    conv = make()
    return ready(nn.Sequential(conv, NORMS[n](conv.out_channels), nn.ReLU(inplace=True)))


def residual(make: Callable[[], nn.Module], n: int) -> nn.Module:
    conv = make()
    return ready(Residual(conv, NORMS[n](conv.out_channels), make()))


CONVOLUTIONS: dict[str, Case] = {}
for _name, (_n, _make) in CONVS.items():
    CONVOLUTIONS[f"{_name}, norm, relu"] = partial(normed, _make, _n), (IMAGES[_n],)
    CONVOLUTIONS[f"{_name}, residual"] = partial(residual, _make, _n), (IMAGES[_n],)


class Up(nn.Module):
    """A transposed convolution that is told the size of its result."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.ConvTranspose2d(4, 4, 3, 2, 1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.up(x, output_size=[12, 9])))


class Tied(nn.Module):
    """Two convolutions with one weight, which is also read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.first(x)) + self.second(x) * self.first.weight.mean()


class Computed(nn.Module):
    """A convolution as a function, of a view of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.matrix, self.norm = nn.Parameter(torch.randn(8, 36)), nn.BatchNorm2d(6)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(F.conv2d(x, self.matrix.view(8, 4, 3, 3)[:6], padding=1)))


@torch.no_grad()
def pruned() -> nn.Module:
    return prune.l1_unstructured(conv2d(), "weight", amount=0.5)


CONVOLUTIONS |= {
    "output size": (lambda: ready(Up()), (X,)),
    "tied weights": (lambda: ready(Tied()), (X,)),
    "a view of a parameter": (lambda: ready(Computed()), (X,)),
    "weight norm": (layers(lambda: parametrizations.weight_norm(conv2d()), norm2d, nn.ReLU), (X,)),
    "pruned": (layers(pruned, norm2d, nn.ReLU), (X,)),
    "a row of convolutions": (layers(conv2d, partial(nn.Conv2d, 6, 4, 1), nn.ReLU), (X,)),
    "frozen": (lambda: layers(conv2d, norm2d)().requires_grad_(False), (X,)),
    "one image without a batch": (layers(conv2d, nn.ReLU), (image(4, 9, 9),)),
    "linear": (layers(partial(nn.Linear, 5, 8), nn.GELU, partial(nn.Linear, 8, 3)), (X,)),
}

# Norms.


def scaled(norm: nn.Module, **values: float) -> nn.Module:
    for name, value in values.items():
        nn.init.constant_(getattr(norm, name), value)
    return norm


def training() -> nn.Module:
    """A batch norm that goes on with the statistics of its batch, and does not count."""
    model = layers(conv2d, norm2d)()
    model[1].train()
    model[1].momentum, model[1].num_batches_tracked = 0.0, None
    return model


def with_variance(value: float) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = layers(conv2d, norm2d, nn.ReLU)()
        model[1].running_var[1:3] = value
        return model

    return make


def huge() -> nn.Module:
    """The folded weights are infinite, and the results are not."""
    model = layers(conv2d, norm2d)()
    nn.init.constant_(model[0].weight, 1e10)
    nn.init.constant_(model[1].weight, 1e30)
    return model


def small_halves() -> nn.Module:
    """The folded weights are below the smallest normal number of the type."""
    model = nn.Sequential(nn.Conv2d(64, 8, 3, bias=False), nn.BatchNorm2d(8))
    nn.init.normal_(model[0].weight, std=0.02)
    nn.init.constant_(model[1].weight, 1e-3)
    model[1].running_var.fill_(100.0)
    return model.eval().half()


class Frozen(nn.Module):
    """Frozen batch norm, as torchvision and detectron2 write it."""

    def __init__(self, channels: int = 6) -> None:
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.rand(channels) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        w, b = self.weight.reshape(1, -1, 1, 1), self.bias.reshape(1, -1, 1, 1)
        var, mean = self.running_var.reshape(1, -1, 1, 1), self.running_mean.reshape(1, -1, 1, 1)
        scale = w * (var + 1e-5).rsqrt()
        return x * scale + (b - mean * scale)


class NormAct(nn.BatchNorm2d):
    """Batch norm that goes on with dropout and an activation, as timm has it."""

    def __init__(self, channels: int = 6) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Dropout(0.5), nn.SiLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        statistics = (self.running_mean, self.running_var, self.weight, self.bias)
        return self.act(self.drop(F.batch_norm(x, *statistics, False, 0.1, self.eps)))


class Scale(nn.Module):
    """Arithmetic by channel before and after a convolution."""

    def __init__(self, padding: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 6, 3, padding=padding)
        self.mean, self.gamma = torch.rand(4, 1, 1), nn.Parameter(torch.rand(6, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.conv((x - self.mean) / 0.25) * self.gamma - 0.5)


one = partial(nn.Conv2d, 4, 4, 1)
of4 = partial(nn.BatchNorm2d, 4)


def shared() -> nn.Module:
    norm = of4()
    return ready(nn.Sequential(one(), norm, one(), norm))


NORMED: dict[str, Case] = {
    "without affine": (layers(conv2d, partial(norm2d, affine=False), nn.ReLU), (X,)),
    "momentum None": (layers(conv2d, partial(norm2d, momentum=None), nn.ReLU), (X,)),
    "without statistics": (layers(conv2d, partial(norm2d, track_running_stats=False)), (X,)),
    "other eps": (layers(conv2d, partial(norm2d, eps=0.5)), (X,)),
    "in training": (training, (X,)),
    "variance 0": (with_variance(0.0), (X,)),
    "infinite variance": (with_variance(float("inf")), (X,)),
    "scale 0": (layers(conv2d, lambda: scaled(norm2d(), weight=0.0)), (X,)),
    "huge": (huge, (X / 1e10,)),
    "small numbers of halves": (small_halves, ((image(2, 64, 6, 6) * 20).half(),)),
    "shared by two convolutions": (shared, (X,)),
    "before a convolution": (layers(of4, conv2d, nn.ReLU), (X,)),
    "before a padded convolution": (layers(of4, partial(conv2d, padding=1), nn.ReLU), (X,)),
    "norm, relu, convolution": (layers(of4, nn.ReLU, conv2d, norm2d, nn.ReLU), (X,)),
    "two norms": (layers(conv2d, norm2d, norm2d), (X,)),
    "alone": (layers(of4, nn.ReLU), (X,)),
    "of tokens": (
        layers(partial(nn.Conv1d, 4, 4, 1), partial(nn.BatchNorm1d, 4)),
        (image(2, 4, 9),),
    ),
    "frozen norm": (layers(conv2d, Frozen, nn.ReLU), (X,)),
    "norm with an activation": (layers(conv2d, NormAct), (X,)),
    "scale and shift": (lambda: ready(Scale(0)), (X,)),
    "scale and shift, padded": (lambda: ready(Scale(1)), (X,)),
    "group norm": (layers(conv2d, partial(nn.GroupNorm, 3, 6), nn.ReLU), (X,)),
    "double": (lambda: layers(conv2d, norm2d, nn.ReLU)().double(), (X.double(),)),
    "bfloat16": (lambda: layers(conv2d, norm2d, nn.ReLU)().bfloat16(), (X.bfloat16(),)),
}

# Activations.


class Hard(nn.Module):
    """The hard swish and the hard sigmoid as MobileNets once spelled them."""

    def forward(self, x: Tensor) -> Tensor:
        return x * F.relu6(x + 3) / 6 + F.relu6(x + 3.0, inplace=True) / 6.0


class Swish(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)


class Kept(nn.Module):
    """As transformers' are: a function that the module keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.function = F.gelu

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Gate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x) * x


MODULES = [
    *(nn.ReLU, partial(nn.ReLU6, True), nn.SiLU, nn.GELU, nn.Sigmoid, nn.Tanh, nn.Hardswish, Kept),
    *(partial(nn.GELU, "tanh"), nn.Hardsigmoid, partial(nn.Hardtanh, 0, 6), nn.LeakyReLU, nn.ELU),
    *(Hard, Swish, Gate, nn.Identity, nn.Dropout, nn.Mish, nn.Softplus, nn.PReLU),
]
FUNCTIONS = {
    "F.relu in place": lambda x: F.relu(x, inplace=True),
    "torch.relu_": torch.relu_,
    "Tensor.relu": Tensor.relu,
    "F.relu6": lambda x: F.relu6(x, True),
    "F.silu": lambda x: F.silu(x, inplace=True),
    "F.gelu": lambda x: F.gelu(x, approximate="none"),
    "sigmoid_": Tensor.sigmoid_,
    "F.tanh": F.tanh,
    "F.hardswish": F.hardswish,
    "clamp": lambda x: x.clamp(min=0),
    "clamp_": lambda x: x.clamp_(0, 6),
    "torch.maximum": lambda x: torch.maximum(x, torch.zeros(())),
    "of a view": lambda x: x.flatten(2).relu(),
    "of a transpose": lambda x: x.permute(0, 2, 3, 1).relu(),
    "negated": lambda x: -F.relu(-x),
    "twice": lambda x: F.relu(torch.tanh(x)),
}


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv, self.norm, self.function = conv2d(), norm2d(), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.norm(self.conv(x)))


def name_of(make: object) -> str:
    cls, args = getattr(make, "func", make), getattr(make, "args", ())
    return cls.__name__ + "".join(f" {arg}" for arg in args)


ACTIVATIONS: dict[str, Case] = {
    name_of(make): (layers(conv2d, norm2d, make), (X,)) for make in MODULES
} | {
    name: (lambda function=function: ready(Function(function)), (X,))
    for name, function in FUNCTIONS.items()
}

# Sums.


class Block(nn.Module):
    """torchvision's way to write a residual block: one activation for all, and sums in place."""

    def __init__(self, downsample: nn.Module | None = None) -> None:
        super().__init__()
        channels = 4 if downsample is None else 6
        self.conv1, self.bn1 = nn.Conv2d(4, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(6, channels, 3, padding=1, bias=False)
        self.bn2, self.downsample = nn.BatchNorm2d(channels), downsample

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Inverted(nn.Module):
    """The last convolution of a Sequential takes the residual, through dropout."""

    def __init__(self) -> None:
        super().__init__()
        first = nn.Sequential(nn.Conv2d(4, 8, 1), nn.BatchNorm2d(8), nn.SiLU())
        last = nn.Sequential(nn.Conv2d(8, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Dropout2d(0.5))
        self.conv = nn.Sequential(first, last)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x)


def down() -> nn.Module:
    return ready(Block(nn.Sequential(nn.Conv2d(4, 6, 1, bias=False), nn.BatchNorm2d(6))))


def plus(function: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> Callable[[], nn.Module]:
    """What makes a model that adds its second input in this way."""
    return forward(lambda self, x, y: function(self, self.norm(self.conv(x)), y))


SUMS: dict[str, Case] = {
    "block": (lambda: ready(Block()), (X,)),
    "block with a downsample": (down, (X,)),
    "inverted": (lambda: ready(Inverted()), (X,)),
    "in place": (plus(lambda self, a, b: self.act(a.add_(b))), (X, Y)),
    "on the left": (plus(lambda self, a, b: self.act(b + a)), (X, Y)),
    "torch.add": (plus(lambda self, a, b: self.act(torch.add(a, b))), (X, Y)),
    "alpha": (plus(lambda self, a, b: torch.add(a, b, alpha=2)), (X, Y)),
    "difference": (plus(lambda self, a, b: self.act(a - b)), (X, Y)),
    "difference, on the left": (plus(lambda self, a, b: self.act(b - a)), (X, Y)),
    "a number": (plus(lambda self, a, b: self.act(a + 1) + b), (X, Y)),
    "itself": (plus(lambda self, a, b: self.act(a + a) * b), (X, Y)),
    "two residuals": (plus(lambda self, a, b: self.act(a + b + b.flip(0))), (X, Y)),
    "activation, then sum": (plus(lambda self, a, b: self.act(a) + b), (X, Y)),
    "two convolutions": (plus(lambda self, a, b: self.act(a + self.inner(b))), (X, Y)),
    "broadcast over pixels": (plus(lambda self, a, b: self.act(a + b)), (X, Y[:, :, :1, :1])),
    "broadcast over channels": (plus(lambda self, a, b: self.act(a + b)), (X, Y[:, :1])),
    "broadcast over the batch": (plus(lambda self, a, b: self.act(a + b)), (X, Y[0])),
    "broadcast of the convolution": (plus(lambda self, a, b: self.act(a + b)), (X[:1], Y)),
    "a larger rank": (plus(lambda self, a, b: self.act(a + b)), (X, image(3, 2, 4, 6, 5))),
    "a wider type": (plus(lambda self, a, b: self.act(a + b)), (X, Y.double())),
    "a wider type, in place": (plus(lambda self, a, b: self.act(a.add_(b))), (X, Y.double())),
    "integers": (plus(lambda self, a, b: self.act(a + b)), (X, Y.int())),
    "without a batch": (forward(lambda self, x: F.relu(self.inner(x) + x)), (X[0],)),
}

NETWORKS: dict[str, Case] = {
    f"{subject}: {name}": case
    for subject, cases in (
        *(("convolution", CONVOLUTIONS), ("norm", NORMED), ("activation", ACTIVATIONS)),
        ("sum", SUMS),
    )
    for name, case in cases.items()
}
