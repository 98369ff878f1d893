"""optimize over small networks: values beside float64, in two layouts."""

import copy

import networks_of_changes
import networks_of_layers
import networks_of_programs
import pytest
import torch
from checks import FACTOR, NOISE, calls, error, randomized
from layouts import channels_last

from torch_dnnl.graph.optimize import optimize

NETWORKS = {
    **networks_of_layers.NETWORKS,
    **networks_of_programs.NETWORKS,
    **networks_of_changes.NETWORKS,
}


def cast(inputs, dtype):
    return [
        x.to(dtype) if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in inputs
    ]


def called(module, inputs):
    """The results of a copy for copies: a model may write to its inputs and buffers."""
    return copy.deepcopy(module)(*copy.deepcopy(inputs))


@pytest.mark.parametrize("name", NETWORKS)
def test_values(name):
    make, inputs = NETWORKS[name]
    torch.manual_seed(0)
    module = randomized(make())
    optimized = optimize(module, tuple(inputs))
    double = copy.deepcopy(module).double()
    with torch.no_grad():
        images = [channels_last(x) if isinstance(x, torch.Tensor) else x for x in inputs]
        for x in (list(inputs), images):
            try:
                eager = called(module, x)
            except RuntimeError:  # its own views do not take this layout
                continue
            try:
                exact = called(double, cast(x, torch.float64))
            except RuntimeError:  # it casts to float32 itself
                exact = eager
            limit = max(NOISE[torch.float32], FACTOR * error(eager, exact))
            assert error(called(optimized, x), exact) <= limit


class Program(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function
        self.register_buffer("numbers", torch.arange(9.0))

    def forward(self, x):
        return self.function(x, self.numbers)


COPIES = [
    lambda x, b: x.sum() + b[1:].clone().as_strided((4,), (1,), 0),
    lambda x, b: (x.flatten()[1:] * 1)[:6].as_strided((3,), (1,), 0) + 1,
    lambda x, b: torch.view_as_real(torch.complex(x, x).conj().resolve_conj()) + 1,
    lambda x, b: torch.view_as_real(torch.complex(x, x).mH * 1) + 1,
    lambda x, b: torch.complex(x, x).conj().resolve_conj().view(x.dtype) + 1,
    lambda x, b: (b[1:] - 0).view(torch.int64) + x.sum().int(),
    lambda x, b: torch.view_as_complex((x.flatten()[1:9] / 1).reshape(4, 2)) * 2,
    lambda x, b: 1 / (x * -0.0 + 0),
]


@pytest.mark.parametrize("index", range(len(COPIES)))
@torch.no_grad()
def test_copies_that_change_something(index):
    """Where a tensor begins in its memory, a conjugate bit, the sign of a zero."""
    module, x = Program(COPIES[index]), torch.rand(4, 5) + 1
    assert torch.equal(optimize(module, (x,))(x), module(x))


@pytest.mark.parametrize("name", ["type_as", "broadcasts"])
def test_decompositions_are_taken(name):
    """If one of these fails, nothing is replaced."""
    make, inputs = NETWORKS[f"input_written_through_{name}"]
    assert calls(optimize(make().eval(), tuple(inputs)))["convolution"]
