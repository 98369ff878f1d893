"""optimize: linear layers, which are convolutions of one tap where that is the faster."""

import pytest
import torch
import torch.nn.functional as F
from checks import AUTO, calls, check, check_values, convolutions, randomized
from torch import nn

from torch_dnnl.graph.optimize import optimize


class Block(nn.Module):
    def __init__(self, function, bias=True):
        super().__init__()
        self.linear, self.function = nn.Linear(6, 6, bias=bias), function

    def forward(self, x):
        return self.function(self.linear(x), x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "sizes", [(40, 6), (2, 20, 6), (2, 5, 8, 6), (2, 3, 4, 5, 6), (2, 1, 1, 5, 8, 6)]
)
@pytest.mark.parametrize("bias", [True, False])
def test_epilogues(sizes, bias, dtype):
    block = Block(lambda y, x: F.gelu(y + x), bias)
    found = convolutions(check(block.to(dtype), torch.randn(sizes).to(dtype)))
    assert len(found) == (len(sizes) < 6)
    assert all(call["activation"] == "gelu" and call["residual"] is not None for call in found)


@pytest.mark.parametrize(
    ("features", "rows", "is_linear"),
    [(6, 99, True), (6, 1, True), (512, 99, True), (512, 3, False)],
)
def test_without_an_epilogue(features, rows, is_linear):
    module = nn.Sequential(nn.Linear(features, features), nn.Softmax(1))
    assert calls(check(module, torch.randn(rows, features)))["linear"] == is_linear


class Computed(nn.Module):
    """Weights that depend on the image are packed in every call."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x):
        return F.gelu(F.linear(x, self.weight * x.mean()))


@pytest.mark.parametrize("rows", [1, 99])
def test_weights_that_are_no_constants(rows):
    found = calls(check(Computed(), torch.randn(rows, 6)))
    assert found["linear"] == (rows == 1)
    assert check(Block(lambda y, x: F.gelu(y)), torch.randn(rows, 6))


class Scaled(nn.Module):
    """ConvNeXt's: channels last between two permutes, scaled and added."""

    def __init__(self, is_before):
        super().__init__()
        self.linear, self.is_before = nn.Linear(6, 6), is_before
        self.scale = nn.Parameter(torch.rand(6) if is_before else torch.rand(6, 1, 1))

    def forward(self, x):
        y = self.linear(x.permute(0, 2, 3, 1))
        y = (
            (y * self.scale).permute(0, 3, 1, 2)
            if self.is_before
            else y.permute(0, 3, 1, 2) * self.scale
        )
        return x + y


@pytest.mark.parametrize("is_before", [True, False])
def test_scale_and_residual_through_a_permute(is_before):
    optimized = check(Scaled(is_before), torch.randn(2, 6, 5, 8))
    assert not calls(optimized)["mul"] and not calls(optimized)["add"]


class Odd(nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), bias if bias is None else nn.Parameter(bias)

    def forward(self, x):
        return F.linear(x, self.weight, self.bias) * 2 + 1


@pytest.mark.parametrize("bias", [None, (1,), (), (40, 6), (1, 6), (40, 1)])
def test_biases_that_broadcast(bias):
    check(Odd(torch.randn(6, 6), None if bias is None else torch.randn(bias)), torch.randn(40, 6))


def test_vectors_and_empty_weights():
    check(Odd(torch.randn(6), None), torch.randn(5, 6))
    check(Odd(torch.randn(6), None), torch.randn(2, 5, 6))
    optimize(Odd(torch.randn(0, 6), None), (torch.randn(40, 6),))


def test_rows_that_may_be_none():
    module = randomized(Block(lambda y, x: F.gelu(y)))
    rows = torch.export.Dim("rows", min=0, max=100)
    optimized = optimize(module, (torch.randn(50, 6),), dynamic_shapes=({0: rows},))
    for n in (0, 1, 100):
        check_values(optimized, module, torch.randn(n, 6))


def test_rows_that_may_be_none_in_two_results():
    """Before and after the activation; gradients have no rows either."""
    module = randomized(Block(lambda y, x: (y, F.gelu(y))))
    optimized = optimize(module, (torch.randn(50, 6),), dynamic_shapes=({0: AUTO},))
    for n in (0, 1, 100):
        check_values(optimized, module, torch.randn(n, 6))
    rows = torch.randn(0, 6, requires_grad=True)
    optimized(rows)[1].sum().backward()
    assert rows.grad.shape == (0, 6)
