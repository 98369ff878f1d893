"""Small networks that change tensors in place: inputs, results, views, buffers.

NETWORKS maps names to networks and their inputs, as in `networks_of_layers`.
"""

import torch
from networks_of_layers import Case, Parts, X, ready, registry
from torch import Tensor
from torch.nn import functional as F

NETWORKS: dict[str, Case] = {}
program = registry(NETWORKS)


@program()
def input_changed_before_the_sum(self, x):
    x = x * 1
    y = self.conv(x)
    z = F.relu_(x)
    return y + z


@program()
def input_changed_after_the_convolution(self, x):
    x = x * 1
    y = self.conv(x)
    x += 1
    return F.relu(y) + x


@program()
def callers_input_changed(self, x):
    skip = self.norm(self.conv(x))
    return F.relu_(x) + skip


@program()
def identity_changed(self, x):
    """The sum is in the place of the input, which is used again."""
    x = x.clone()
    y = x
    x += self.conv(x)
    return x * y


@program()
def residual_changed(self, x):
    skip = x * 2
    y = self.conv(x) + skip
    skip.zero_()
    return F.relu(y) + skip


@program()
def result_changed(self, x):
    y = F.relu6(self.norm(self.conv(x)))
    y *= 2
    return y


@program()
def result_changed_after_use(self, x):
    y = self.norm(self.conv(x))
    z = self.inner(y)
    y.relu_()
    return y + z


@program()
def part_of_the_result_changed(self, x):
    y = self.norm(self.conv(x))
    y[:, 1] = x[:, 0]
    return F.relu(y)


@program()
def view_of_the_input_changed(self, x):
    x = x * 1
    view = x.mT
    view *= 2
    return self.body(x)


@program()
def view_of_the_result_changed(self, x):
    y = self.conv(x)
    y.view(-1).mul_(0.5)
    y[..., 0] += 1
    return F.relu(self.norm(y))


@program()
def halves_changed(self, x):
    y = self.norm(self.conv(x))
    a, b = y[:, :2], y[:, 2:]
    a.relu_()
    b.sigmoid_()
    return y + x


@program()
def booleans_changed(self, x):
    y = x > 0
    z = y
    y &= x > 1
    return F.relu(self.conv(x)) * z


@program()
def written_by_out(self, x):
    kept = torch.zeros_like(x)
    with torch.no_grad():
        torch.sigmoid(self.conv(x), out=kept)
    return kept * 2 + self.conv(x)


@program()
def shape_before_a_change(self, x):
    shape = x.shape
    y = x.unsqueeze(0).squeeze_(0)
    return self.body(y).view(shape)


@program()
def written_through_dropout(self, x):
    y = self.conv(x)
    return F.relu_(F.dropout(y, training=self.training)) + y


@program()
def input_written_through_dropout(self, x):
    F.dropout2d(x, training=self.training).mul_(2)
    return self.conv(x), x


@program()
def input_written_through_type_as(self, x):
    x.type_as(self.conv.weight).mul_(2)
    return self.conv(x), x


@program()
def input_written_through_broadcasts(self, x):
    torch.broadcast_tensors(x, x[:1])[0].mul_(2)
    return self.conv(x), x


@program()
def written_through_unfold(self, x):
    y = self.conv(x)
    y.unfold(2, 2, 2).add_(1)
    return y


class Count(Parts):
    """Counts its calls and keeps the last result, in buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("last", torch.zeros(2, 4, 6, 5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.conv(x))
        self.count += 1
        self.last.copy_(y)
        return F.relu(y + self.last) * self.count


class Momentum(Parts):
    """Changes the statistics of its norm before it uses them."""

    def forward(self, x: Tensor) -> Tensor:
        self.norm.running_mean.mul_(0.5).add_(x.mean((0, 2, 3)), alpha=0.5)
        return F.relu(self.norm(self.conv(x)))


class Spectral(Parts):
    """Changes the weight of its convolution between two calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(4, 4, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(F.conv2d(x, self.weight, padding=1))
        self.weight.mul_(0.5)
        return F.relu(y) + F.conv2d(x, self.weight, padding=1)


NETWORKS |= {
    "buffers that count": (lambda: ready(Count()), (X,)),
    "statistics that change": (lambda: ready(Momentum()), (X,)),
    "a weight that changes": (lambda: ready(Spectral()), (X,)),
}
