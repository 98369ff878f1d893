"""convert(fuse=True): modules that are found, compared or read in ways of their own."""

import torch
from test_fuse_surroundings import Block, both, pair
from torch import nn
from torch.nn import functional as F

X = torch.randn(2, 4, 6, 6)


def test_sums_by_name():
    """Submodules that are called as torch's methods are."""

    class Weighted(nn.Module):
        def forward(self, a, b):
            return 0.25 * a + 0.75 * b

    class Named(Block):
        def __init__(self):
            super().__init__()
            self.add, self.add_, self.relu = Weighted(), Weighted(), nn.Tanh()

        def forward(self, x):
            y = self.add(self.norm(self.conv(x)), x)
            return self.relu(self.add_(self.conv(y), x))

    both(Named(), X)


def test_default_that_is_a_list():
    class Counting(nn.Module):
        def forward(self, x, found):
            found.append(1)
            return x * len(found)

    class Counted(Block):
        def helper(self, x, found=[]):  # noqa: B006
            return self.others[0](x, found)

        def forward(self, x):
            return self.helper(self.act(self.norm(self.conv(x))))

    model, fused = pair(Counted(Counting()))
    results = []
    for network in (model, fused):
        Counted.helper.__defaults__[0].clear()
        results.append([network(X), network(X)])
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)


class Equal(nn.Module):
    def __eq__(self, other):
        return type(self) is type(other)

    def __hash__(self):
        return hash(type(self))

    def forward(self, x):
        return F.relu(x)


def test_layers_that_are_equal():
    class Acts(Block):
        def forward(self, x):
            return self.others[1](self.conv(self.others[0](self.conv(x))))

    model, fused = pair(Acts(Equal(), Equal()))
    for network in (model, fused):
        network.others[1].register_forward_hook(lambda module, args, result: result * 3)
    torch.testing.assert_close(fused(X), model(X), rtol=1e-4, atol=1e-4)


def test_a_module_by_a_name_that_is_not_registered():
    class Aliased(Block):
        def forward(self, x):
            return self.act(self.alias(x))

    model = Aliased()
    vars(model)["alias"] = model.conv
    model, fused = pair(model)
    for network in (model, fused):
        vars(network)["alias"] = nn.Identity()
    torch.testing.assert_close(fused(X), model(X))


def test_items_of_their_own():
    class Cyclic(nn.ModuleList):
        start = 0

        def __getitem__(self, index):
            return super().__getitem__((index + self.start) % len(self))

    class Taken(Block):
        def forward(self, x):
            return self.act(self.layers[0](x))

    model = Taken()
    model.layers = Cyclic([nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)])
    model, fused = pair(model)
    for network in (model, fused):
        network.layers.start = 1
    torch.testing.assert_close(fused(X), model(X), rtol=1e-4, atol=1e-4)


def test_weights_that_are_made_in_each_call():
    class Equalized(nn.Conv2d):
        gain = 0.5

        def __getattr__(self, name):
            value = super().__getattr__(name)
            return value * self.gain if name == "weight" else value

    layer = Equalized(4, 4, 1)
    nn.init.normal_(layer._parameters["weight"])
    model, fused = pair(nn.Sequential(layer, nn.BatchNorm2d(4)))
    for network in (model, fused):
        network[0].gain = 2.0
    torch.testing.assert_close(fused(X), model(X), rtol=1e-4, atol=1e-4)
