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
