"""accelerate(): what is saved for the backward pass, where others look at it."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import torch_dnnl

WEIGHT = torch.randn(4, 4, 3, 3)
IMAGE = torch.randn(2, 4, 9, 9)


@pytest.mark.parametrize("function", [F.conv2d, F.conv_transpose2d])
@pytest.mark.parametrize("trained", ["input", "weight", "bias", "input and weight"])
def test_checkpoint_whose_backward_is_outside(function, trained):
    """It computes the forward pass again by torch's functions, and has to find the same tensors."""
    gradients = []
    for context in (torch_dnnl.accelerate(), torch.enable_grad()):
        x, w, b = (value.clone() for value in (IMAGE, WEIGHT, torch.ones(4)))
        inputs = {"input": x, "weight": w, "bias": b}
        leaves = [inputs[name].requires_grad_() for name in trained.split(" and ")]
        with context:
            y = checkpoint(function, x, w, b, use_reentrant=False)
        gradients.append(torch.autograd.grad(y.square().sum(), leaves))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_hooks_of_saved_tensors_raise_once():
    calls = []

    def pack(tensor):
        calls.append(tensor)
        raise RuntimeError(f"call {len(calls)}")

    x, w = IMAGE.clone().requires_grad_(), WEIGHT.clone().requires_grad_()
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, torch_dnnl.accelerate(), pytest.raises(RuntimeError, match="call 1"):
        F.conv2d(x, w)
    assert len(calls) == 1
