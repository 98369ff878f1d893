"""Small networks whose programs a rewriter of graphs has to keep: values that are used twice,
shared layers, containers, arguments, numbers, layouts.

NETWORKS maps names to networks and their inputs, as in `networks_of_layers`.
"""

import math
from collections import OrderedDict
from functools import partial

import torch
from networks_of_layers import (
    Case,
    X,
    Y,
    conv2d,
    down,
    image,
    layers,
    norm2d,
    of4,
    one,
    plus,
    ready,
    registry,
)
from torch import Tensor, nn
from torch.nn import functional as F

NETWORKS: dict[str, Case] = {}
LAST = {"memory_format": torch.channels_last}
program = registry(NETWORKS)

# Values that are used twice.


@program()
def convolution_used_twice(self, x):
    y = self.conv(x)
    return self.norm(y) + y


@program()
def convolution_called_twice(self, x):
    return self.norm(self.conv(self.conv(x)))


@program()
def norm_called_twice(self, x):
    return self.norm(self.conv(self.norm(x)))


@program()
def weight_used(self, x):
    return self.norm(self.conv(x)) * self.conv.weight.mean()


@program()
def statistics_used(self, x):
    return self.norm(self.conv(x)) * self.norm.running_mean.sum()


@program()
def first_parameter_used(self, x):
    return self.norm(self.conv(x)) * next(self.parameters()).sum()


@program()
def all_parameters_counted(self, x):
    y = self.norm(self.conv(x))
    return y * 2 if len(list(self.parameters())) > 2 else y


@program()
def convolution_also_alone(self, x):
    return F.relu(self.norm(self.conv(x))) + self.conv(x)


@program()
def sum_used_twice(self, x):
    y = self.norm(self.conv(x)) + x
    return F.relu(y) * y


@program()
def activation_used_twice(self, x):
    y = self.body(x)
    return self.inner(y) + y


@program()
def two_outputs(self, x):
    y = self.conv(x)
    return F.relu(self.norm(y)), y


@program()
def one_output_twice(self, x):
    y = self.body(x)
    return y, y


@program()
def an_input_among_the_outputs(self, x):
    return self.body(x), x


@program()
def outputs_in_a_dict(self, x):
    y = self.body(x)
    return {"features": [y, self.inner(y)], "size": y.shape[2], "none": None}


@program()
def the_norm_does_not_matter(self, x):
    self.norm(self.conv(x))
    return self.inner(x)


@program()
def between(self, x):
    """A convolution stands between another one and its sum."""
    y = self.conv(x)
    z = self.inner(x)
    return F.relu(y + x), z


@program()
def residual_is_the_input_of_the_next(self, x):
    y = self.body(x)
    z = self.inner(y)
    return F.relu(z + y) + self.conv(z)


# Shared layers and parameters.


class TwoNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Module(), nn.Module()
        self.a.conv = self.b.conv = nn.Conv2d(4, 4, 1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.b.conv(x))) + self.a.conv(x)


class Perceptual(nn.Module):
    """Looks at the results within a Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        results = []
        for layer in self.layers:
            x = layer(x)
            results.append(x)
        return results[0] + results[1] * results[2]


class Recurrent(nn.Module):
    """The same layers in each round, and one more by an index."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)])

    def forward(self, x: Tensor) -> Tensor:
        for i in range(3):
            y = self.layers[1](self.layers[0](x))
            x = F.relu(y + x) * (i + 1)
        return self.layers[0](x)


class Scaled(nn.Module):
    def __init__(self, scale: nn.Parameter) -> None:
        super().__init__()
        self.conv, self.scale = nn.Conv2d(4, 4, 1), scale

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x * self.scale)


def tied_scales() -> nn.Module:
    scale = nn.Parameter(torch.rand(4, 1, 1))
    return ready(nn.Sequential(Scaled(scale), nn.ReLU(), Scaled(scale)))


def siamese() -> nn.Module:
    layer = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
    return ready(nn.Sequential(layer, layer, nn.Sequential(layer, nn.Conv2d(4, 2, 1))))


@program(tied=lambda: nn.Parameter(torch.rand(4, 1, 1) + 0.5))
def scale_and_shift_of_one_parameter(self, x):
    return F.relu(self.norm(self.conv(x))) * self.tied + self.tied


@program()
def bias_used_elsewhere(self, x):
    return self.norm(self.conv(x)) + self.conv.bias.view(1, -1, 1, 1) * self.inner(x)


@program()
def weight_of_another_layer(self, x):
    return F.relu(F.conv2d(x, self.conv.weight.transpose(0, 1), self.inner.bias, padding=1)) + x


@program()
def weight_as_an_output(self, x):
    return self.norm(self.conv(x)), self.conv.weight, self.norm.running_var


@program(X, image(4, 4, 1, 1))
def weight_is_an_input(self, x, weight):
    return F.relu(self.norm(F.conv2d(x, weight, self.inner.bias)))


@program()
def weight_depends_on_the_image(self, x):
    gate = x.mean((0, 2, 3)).sigmoid()
    weight = self.conv.weight * gate.view(-1, 1, 1, 1)
    return F.relu(self.norm(F.conv2d(x, weight, padding=1)))


NETWORKS |= {
    "two names": (lambda: ready(TwoNames()), (X,)),
    "perceptual": (lambda: ready(Perceptual()), (X,)),
    "recurrent": (lambda: ready(Recurrent()), (X,)),
    "tied scales": (tied_scales, (X,)),
    "siamese": (siamese, (X,)),
}

# Containers and arguments.


@program()
def pairs_within_lists(self, x):
    for first, second in [(self.conv, self.norm), (self.inner, self.act)]:
        y = first(x)
        x = second(y) + y
    return x


@program()
def lists_that_grow(self, x):
    found = [x]
    found += self.body(x).chunk(2, 1)
    found.append(self.inner(x))
    return torch.cat(found, 1)


@program()
def lists_that_are_emptied(self, x):
    skips = [x, self.body(x)]
    y = self.inner(skips[-1]) + skips.pop()
    return F.relu(self.conv(y) + skips.pop())


@program()
def lists_that_are_written(self, x):
    levels = [x, x * 2]
    for i, layer in enumerate((self.conv, self.inner)):
        levels[i] = layer(levels[i])
    return levels


@program()
def dense(self, x):
    """As DenseNets concatenate: a norm and an activation that no convolution precedes."""
    features = [x]
    for _ in range(3):
        features.append(self.conv(self.act(self.norm(sum(features)))))
    return torch.cat(features, 1)


@program()
def chunks_as_residuals(self, x):
    a, b = torch.cat([x, x * 2], 1).chunk(2, 1)
    n, c, h, w = a.shape
    return self.act(self.norm(self.conv(a)) + b).view(n * c, h, w)


@program(X, Y)
def optional_arguments(self, x, skip=None, scale: float = 2.0, mask=None):
    y = self.norm(self.conv(x * scale))
    if skip is not None:
        y = y + skip
    return self.act(y) if mask is None else y * mask


@program(X, X)
def one_tensor_as_two_arguments(self, x, skip):
    return self.act(self.norm(self.conv(x)) + skip) + skip


@program()
def constants(self, x):
    ramp = torch.arange(5.0) / 5 + torch.ones(6, 1)
    return F.relu(self.norm(self.conv(x)) + ramp) * torch.tensor(2.0) + math.pi


@program()
def powers(self, x):
    return self.body(x) + (-1) ** x.shape[0] + (-2.0) ** self.body(x).round()


@program()
def clamps_to_infinity(self, x):
    return self.body(x).clamp(-float("inf"), 2.0) + F.hardtanh(self.inner(x), 0.0, float("inf"))


@program()
def sizes(self, x):
    height, width = x.shape[2:]
    return self.body(x) * height + width / (height + 1)


@program()
def new_tensors(self, x):
    y = self.body(x)
    return y.new_full((2, 1, 6, 5), 2) + torch.zeros_like(y) + y.type_as(x)


@program()
def to_another_type_and_back(self, x):
    y = F.relu(self.norm(self.conv(x)).double())
    return self.inner(y.float()).bfloat16(), y


@program()
def dropout_in_training(self, x):
    """Which does nothing with a probability of 0."""
    return self.act(F.dropout(self.norm(self.conv(x)), 0.0, training=True) + x)


@program(drop=partial(nn.Dropout, 0.5))
def dropouts(self, x):
    return F.dropout(self.drop(self.body(x)), 0.5, self.training) + self.drop(x)


@program(gate=lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(4, 4, 1), nn.Sigmoid()))
def squeeze_and_excite(self, x):
    y = self.body(x)
    return self.inner(y * self.gate(y)) + x


@program()
def resized(self, x):
    y = F.interpolate(self.body(x), scale_factor=2, mode="bilinear")
    y = F.relu(self.norm(F.interpolate(self.inner(y), size=x.shape[2:], mode="area")))
    return F.adaptive_avg_pool2d(y + x, 2)


@program()
def shuffled(self, x):
    y = F.pixel_shuffle(self.body(x), 2)
    return F.pixel_unshuffle(F.relu(y), 2) + F.pad(self.inner(x)[..., 1:, 1:], (1, 0, 1, 0))


@program()
def without_images(self, x):
    return self.body(x[:0])


def with_names() -> nn.Module:
    names = ["a b", "a-b", "a{b}", "é", "relu", "x_1"]
    makers = (partial(nn.Conv2d, 4, 4, 1), partial(nn.BatchNorm2d, 4), nn.ReLU)
    layers = [makers[i % 3]() for i in range(len(names))]
    return ready(nn.Sequential(OrderedDict(zip(names, layers, strict=True))))


class Scalars(nn.Module):
    """A matrix product, an embedding and a mean beside convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8)
        self.hidden, self.head = nn.Linear(8, 16), nn.Linear(16, 3)
        self.places = nn.Embedding(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.conv(x)) + self.places(torch.arange(8))[..., None])
        y = F.gelu(self.hidden(y.mean((2, 3))))
        return F.log_softmax(self.head(y) + self.head.bias, 1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.GroupNorm(2, 4), nn.Conv2d(4, 12, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).flatten(2).transpose(1, 2).chunk(3, 2)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).view(x.shape)
        return x + self.out(y)


NETWORKS |= {
    "unusual names": (with_names, (X,)),
    "linear layers beside": (lambda: ready(Scalars()), (X,)),
    "attention": (lambda: ready(Attention()), (X,)),
}

# Layouts.


class Pooled(nn.Module):
    """A branch of one pixel that is made large again, beside another one."""

    def __init__(self, *pooled: nn.Module) -> None:
        super().__init__()
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), *pooled)
        self.branch = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        pooled = F.interpolate(self.pool(x), x.shape[2:], mode="bilinear")
        return torch.cat([self.branch(x), pooled], 1)


class Tokens(nn.Module):
    """Views of a sum, which lies in memory as its first operand does."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(8, 8, 3, padding=1, groups=8), nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        y = x.transpose(1, 2)
        y = y + self.norm(self.conv(y))
        return y.transpose(1, 2).view(-1, 8)


@program()
def columns(self, x):
    y = x.transpose(2, 3)
    y = F.relu(torch.add(y, self.norm(self.conv(y))))
    return y.transpose(2, 3).view(x.shape[0], -1)


@program()
def another_format(self, x):
    y = F.relu(x.contiguous(memory_format=torch.channels_last) + self.conv(x))
    return y.permute(0, 2, 3, 1).reshape(2, -1)


gray = partial(nn.Conv2d, 1, 4, 3, padding=1)

NETWORKS |= {
    "pooled": (lambda: ready(Pooled(one(), of4(), nn.ReLU())), (X,)),
    "pooled to one channel": (
        lambda: ready(Pooled(nn.Conv2d(4, 1, 3, padding=1))),
        (X.to(**LAST),),
    ),
    "tokens": (lambda: ready(Tokens()), (image(2, 9, 8),)),
    "one channel": (layers(gray, of4, nn.ReLU), (image(2, 1, 6, 6).to(**LAST),)),
    "model in channels_last": (lambda: down().to(**LAST), (X,)),
    "image in channels_last": (down, (X.to(**LAST),)),
    "both in channels_last": (lambda: down().to(**LAST), (X.to(**LAST),)),
    "residual in another format": (plus(lambda self, a, b: self.act(a + b)), (X, Y.to(**LAST))),
    "every second pixel": (layers(conv2d, norm2d, nn.ReLU), (image(2, 4, 14, 12)[..., ::2, ::2],)),
}
