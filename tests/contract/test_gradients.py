"""Derivatives of every order and in every mode, against finite differences."""

import pytest
import torch
from op_db import CASES, assert_matches, by_name
from torch.autograd import gradcheck, gradgradcheck


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_first_order(case):
    inputs = case.inputs(torch.float64, requires_grad=True)
    assert gradcheck(
        case.call,
        inputs,
        check_forward_ad=True,
        check_batched_grad=True,
        check_undefined_grad=True,
        # A random projection of the Jacobian, where the whole would have millions of entries.
        fast_mode=sum(x.numel() for x in inputs) > 500,
    )


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_second_order(case):
    inputs = case.inputs(torch.float64, requires_grad=True)
    assert gradgradcheck(
        case.call, inputs, check_fwd_over_rev=True, check_rev_over_rev=True, fast_mode=True
    )


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_gradients_match_oracle(case):
    """Float32 gradients against autograd through the float64 oracle."""
    inputs = case.inputs(torch.float32, requires_grad=True)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    result, expected = case.call(*inputs), case.oracle(*exact)
    grad = torch.randn_like(expected)
    ours = torch.autograd.grad(result, inputs, grad.float())
    for a, b in zip(ours, torch.autograd.grad(expected, exact, grad.float().double())):
        assert_matches(a, b)


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_only_what_requires_grad(case):
    """Each input alone: the others neither need nor get a gradient."""
    for i in range(len(case.shapes)):
        inputs = case.inputs(torch.float32)
        inputs[i].requires_grad_()
        case.call(*inputs).sum().backward()
        assert [x.grad is not None for x in inputs] == [j == i for j in range(len(inputs))]
