"""optimize: resizes and average pools."""

import pytest
import torch
import torch.nn.functional as F
from checks import AUTO, calls, check, check_values, randomized
from torch import nn

from torch_dnnl.graph.optimize import optimize


class Resize(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, x):
        return F.interpolate(x, **self.options)


LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}
CASES = [(n, {"mode": mode}) for n in LINEAR for mode in ("nearest", "nearest-exact", LINEAR[n])]
CASES += [(n, {"mode": LINEAR[n], "align_corners": True}) for n in LINEAR]
CASES += [
    (2, {"mode": mode, "align_corners": corners, "antialias": antialias})
    for mode in ("bilinear", "bicubic")
    for corners in (True, False)
    for antialias in (True, False)
]


@pytest.mark.parametrize("options", [{"scale_factor": 1.7}, {"size": 5}])
@pytest.mark.parametrize("n, mode", CASES)
def test_interpolate(n, mode, options):
    optimized = check(Resize(**mode, **options), torch.rand(2, 3, *(9, 11, 8)[:n]))
    assert calls(optimized) == {"resample": 1}


def test_symbolic_sizes():
    module = randomized(Resize(scale_factor=2.0, mode="bilinear"))
    optimized = optimize(module, (torch.rand(2, 3, 8, 9),), dynamic_shapes=({2: AUTO, 3: AUTO},))
    check_values(optimized, module, torch.rand(2, 3, 5, 7))


@pytest.mark.parametrize("size, operator", [(5, "resample"), (4, "adaptive_avg_pool2d")])
def test_pools(size, operator):
    """Pools of whole areas are as fast in torch."""
    optimized = check(nn.AdaptiveAvgPool2d(size), torch.rand(2, 3, 8, 12))
    assert calls(optimized)[operator] == 1


def test_bytes():
    module = Resize(size=(5, 4), mode="bilinear").eval()
    x = torch.randint(0, 256, (2, 3, 8, 9), dtype=torch.uint8)
    assert torch.equal(optimize(module, (x,))(x), module(x))


@pytest.mark.parametrize("dynamic", [None, ({0: AUTO, 2: AUTO, 3: AUTO},)])
def test_pool_without_pixels(dynamic):
    x = torch.rand(2, 3, 11, 13)
    optimized = optimize(nn.AdaptiveAvgPool2d((0, 3)).eval(), (x,), dynamic_shapes=dynamic)
    assert optimized(x).shape == (2, 3, 0, 3)
