"""Values: against the oracle, against torch, in every type and memory layout."""

import pytest
import torch
from layouts import LAYOUTS, channels_last
from op_db import CASES, FLOATING, assert_matches, by_name

import torch_dnnl.functional as D

PEERS = [case for case in CASES if case.peer is not None]


def widened(tensors):
    return [tensor.detach().cpu().double() for tensor in tensors]


@pytest.mark.parametrize("dtype", FLOATING, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_matches_oracle(case, dtype):
    inputs = case.inputs(dtype)
    result = case.call(*inputs)
    assert result.dtype == dtype
    assert_matches(result, case.oracle(*widened(inputs)))


@pytest.mark.parametrize("case", PEERS, ids=by_name)
def test_matches_torch(case):
    inputs = case.inputs(torch.float64, requires_grad=True)
    ours, theirs = case.call(*inputs), case.peer(*inputs)
    # torch computes some of its coordinates in float32 whatever the type.
    assert_matches(ours, theirs, 1e-6)
    assert ours.stride() == theirs.stride()
    grad = torch.randn_like(theirs)
    for a, b in zip(
        torch.autograd.grad(ours, inputs, grad), torch.autograd.grad(theirs, inputs, grad)
    ):
        assert_matches(a, b, 1e-6)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_any_layout(case, layout):
    inputs = [layout(x.detach()).requires_grad_() for x in case.inputs(torch.float64)]
    plain = [
        x.detach().clone(memory_format=torch.contiguous_format).requires_grad_() for x in inputs
    ]
    result, expected = case.call(*inputs), case.call(*plain)
    assert_matches(result, case.oracle(*widened(plain)))
    grad = torch.randn_like(expected)
    layouts = torch.autograd.grad(result, inputs, layout(grad))
    grad = layout(grad).contiguous()
    for a, b in zip(layouts, torch.autograd.grad(expected, plain, grad)):
        assert_matches(a, b, 1e-12)


@pytest.mark.parametrize("case", [c for c in CASES if c.function not in ("reorder",)], ids=by_name)
def test_memory_format_follows_input(case):
    if (
        len(case.shapes[0]) not in (4, 5)
        or not case.batched
        or "nxc" in case.name
        or "fused" in case.name
    ):
        return
    x, *rest = case.inputs(torch.float32)
    result = case.call(channels_last(x), *rest)
    assert result.stride() == channels_last(result).stride()
    assert case.call(x, *rest).is_contiguous()


@pytest.mark.parametrize("stride", [0, 1, 10**6])
def test_stride_of_a_batch_of_one_says_nothing(stride):
    """Compiled graphs have a 0 there; the channels are where they are all the same."""
    x = channels_last(torch.randn(1, 6, 5, 4))
    other = x.as_strided(x.shape, (stride, *x.stride()[1:])) if stride < 2 else x
    if stride > 1:
        memory = torch.full([stride + x.numel()], torch.nan)
        other = memory.as_strided(x.shape, (stride, *x.stride()[1:])).copy_(x)
    w = torch.randn(8, 6, 3, 3)
    for function in (
        lambda x: D.conv2d(x, w.to(x.device)),
        lambda x: D.interpolate(x, (7, 9), mode="bilinear"),
    ):
        expected, result = function(x), function(other)
        assert torch.equal(result, expected)
        assert result.stride() == expected.stride() == channels_last(expected).stride()
        assert function(other.to("meta")).stride() == result.stride()


@pytest.mark.parametrize("case", [c for c in CASES if c.batched], ids=by_name)
def test_empty_batch(case):
    x, *rest = case.inputs(torch.float32)
    if case.function in ("convolution", "convolution_transpose"):
        rest[2:3] = [residual[:0] for residual in rest[2:3] if len(residual) > 1]
    x = x[:0].requires_grad_()
    if case.name == "reorder-unblocked":
        return  # its `size` names the batch
    result = case.call(x, *rest)
    assert result.shape[0] == 0
    (grad,) = torch.autograd.grad(result.sum(), x)
    assert grad.shape == x.shape


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_deterministic(case):
    inputs = case.inputs(torch.float32, requires_grad=True)
    result = case.call(*inputs)
    grad = torch.randn_like(result)
    first = (result, *torch.autograd.grad(result, inputs, grad))
    for _ in range(3):
        again = case.call(*inputs)
        for a, b in zip(first, (again, *torch.autograd.grad(again, inputs, grad))):
            assert torch.equal(a, b)
