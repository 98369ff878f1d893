"""accelerate(): what is saved for the backward pass, where others look at it."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

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


def network(x, w, b):
    x = F.interpolate(torch.relu(F.conv2d(x, w, b)), scale_factor=2, mode="bilinear")
    return F.conv_transpose2d(torch.sigmoid(x), w)


@pytest.mark.parametrize("saved", ["convolution", "upsample", "sigmoid", "", "all"])
@pytest.mark.parametrize("is_within", [False, True], ids=["outside", "within"])
@pytest.mark.parametrize("trained", [(0,), (1,), (0, 1, 2)])
def test_selective_checkpoint(trained, is_within, saved):
    """A policy names torch's operators. What it saves is not computed again, and found."""
    computed = []

    def policy(context, operator, *args, **kwargs):
        computed.append(operator.name())
        is_saved = saved == "all" or (saved and saved in operator.name())
        return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE

    def contexts():
        return create_selective_checkpoint_contexts(policy)

    gradients = []
    for context in (torch_dnnl.accelerate(), torch.enable_grad()):
        inputs = [value.clone() for value in (IMAGE, WEIGHT, torch.ones(4))]
        leaves = [inputs[i].requires_grad_() for i in trained]
        with context:
            y = checkpoint(network, *inputs, use_reentrant=False, context_fn=contexts)
            if is_within:
                gradients.append(torch.autograd.grad(y.square().sum(), leaves))
        if not is_within:
            gradients.append(torch.autograd.grad(y.square().sum(), leaves))
    half = len(computed) // 2
    assert computed[:half] == computed[half:] != []
    for accelerated, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(accelerated, theirs, rtol=1e-4, atol=1e-4)


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
