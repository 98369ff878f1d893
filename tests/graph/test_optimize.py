"""optimize over small networks: values beside float64, in two layouts."""

import copy

import networks_of_changes
import networks_of_layers
import networks_of_programs
import pytest
import torch
from checks import FACTOR, NOISE, error, randomized
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
