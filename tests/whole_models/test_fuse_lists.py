"""convert(fuse=True): lists and dicts that a forward makes and hands on, whom others may change."""

import pytest
import torch
from test_fuse_surroundings import Block as Parts
from test_fuse_surroundings import both, pair
from torch import nn
from torch.nn import functional as F

X = torch.randn(2, 4, 6, 6)


class Block(Parts):
    def body(self, x):
        return self.act(self.norm(self.conv(x)))


class Collect(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x, found):
        x = self.conv(x)
        found.append(x)
        return x


class Note(Collect):
    def forward(self, x, notes):
        notes["mean"] = x.mean()
        return self.conv(x)


class Pop(Collect):
    def forward(self, x, skips):
        return self.conv(x) + skips.pop()


class Collected(Block):
    def forward(self, x):
        found = []
        x = self.body(x)
        x = self.others[0](x, found)
        return self.others[1](x, found), found


class InMethod(Block):
    def start(self, x):
        return [self.body(x)]

    def both(self, x, found):
        return self.others[1](self.others[0](x, found), found)

    def forward(self, x):
        found = self.start(x)
        return self.both(x, found)


class Noted(Block):
    def forward(self, x):
        notes = {}
        x = self.body(x)
        return self.others[0](x, notes), notes


class Popped(Block):
    def forward(self, x):
        y = self.body(x)
        skips = [x, y]
        y = self.others[0](y, skips)
        return self.others[1](y, skips)


class InLoop(Block):
    def forward(self, x):
        found = []
        for layer in self.others:
            x = layer(x, found)
        return self.body(x)


class Nested(Block):
    def forward(self, x):
        found = (self.body(x), [x])
        y = self.others[0](found[0], found[1])
        return y, found[1]


class Given(nn.Module):
    def forward(self, found):
        return found


class GivenBack(Block):
    def forward(self, x):
        found = [self.body(x)]
        again = self.others[0](found)
        again += [x]
        return found, again


class Splitting(nn.Module):
    def forward(self, x):
        return x, x * 2


class Grown(Block):
    """By what is no list."""

    def forward(self, x):
        found = [x]
        found += self.body(x).chunk(2, 1)
        found += self.others[0](x)
        return torch.cat(found, 1)


class GrownAndKept(Block):
    def forward(self, x):
        found = [x]
        kept = found
        found += self.others[0](self.body(x))
        return kept


class Detect(nn.Module):
    """Writes into its list."""

    def __init__(self):
        super().__init__()
        self.m = nn.ModuleList([nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)])

    def forward(self, x):
        for i in range(2):
            x[i] = self.m[i](x[i])
        return x


class Sliced(Block):
    def forward(self, x):
        found = [x, self.body(x), x]
        used = found[1:]
        return self.others[0](used), used


class Passed(Block):
    def forward(self, x):
        found = self.others[0]([x, self.body(x)])
        return self.others[1](found), found


class TwoNames(Block):
    def forward(self, x):
        first = second = []
        return self.others[0](self.body(x), first), second


class Items(Block):
    """Whose convolutions are fused: nobody gets the list."""

    def forward(self, x):
        found = [self.body(x), x]
        return F.relu(self.conv(found[1]) + found[0]) + found[1]


@pytest.mark.parametrize(
    ("cls", "others"),
    [
        (Collected, (Collect(), Collect())),
        (InMethod, (Collect(), Pop())),
        (Noted, (Note(),)),
        (Popped, (Pop(), Pop())),
        (InLoop, (Collect(), Collect(), Pop())),
        (Nested, (Collect(),)),
        (GivenBack, (Given(),)),
        (Grown, (Splitting(),)),
        (GrownAndKept, (Splitting(),)),
        (Sliced, (Detect(),)),
        (Passed, (nn.Identity(), Detect())),
        (TwoNames, (Collect(),)),
    ],
)
def test_lists_that_others_change(cls, others):
    both(cls(*others), X)


def test_one_list_twice():
    class Twice(Block):
        def forward(self, x):
            found = [self.body(x)]
            return found, found

    model, fused = pair(Twice())
    for network in (model, fused):
        first, second = network(X)
        assert first is second


def test_items_of_a_list_are_fused():
    both(Items(), X)
    fused = pair(Items())[1]
    with torch.no_grad(), torch.profiler.profile() as profile:
        fused(X)
    assert "aten::batch_norm" not in {event.key for event in profile.key_averages()}


def test_empty_list_of_a_part_grows():
    class Stem(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList()

    class Stemmed(Block):
        def forward(self, x):
            for layer in self.others[0].layers:
                x = layer(x)
            return self.body(x)

    model, fused = pair(Stemmed(Stem()))
    for network in (model, fused):
        network.others[0].layers.append(nn.Tanh())
    torch.testing.assert_close(fused(X), model(X), rtol=1e-4, atol=1e-4)
