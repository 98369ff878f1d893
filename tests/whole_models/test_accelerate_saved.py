"""accelerate(): the calls of the backward pass, and what is saved for it."""

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


def sums(x, w):
    return torch.relu(F.conv2d(x, w)).square()


UNUSED = torch.ones(1, requires_grad=True)
# Calls of the backward pass, with their results and errors.
BACKWARD = {
    "grad": lambda x, w: torch.autograd.grad(sums(x, w).sum(), (x, w)),
    "grad of a dict": lambda x, w: torch.autograd.grad(sums(x, w).sum(), {"x": x})["x"],
    "grad_outputs": lambda x, w: torch.autograd.grad(sums(x, w), x, torch.ones(2, 4, 7, 7)),
    "allow_unused": lambda x, w: torch.autograd.grad(
        sums(x, w).sum(), (x, UNUSED), allow_unused=True
    ),
    "unused": lambda x, w: torch.autograd.grad(sums(x, w).sum(), (x, UNUSED)),
    "materialize_grads": lambda x, w: torch.autograd.grad(
        sums(x, w).sum(), (x, UNUSED), materialize_grads=True
    ),
    "is_grads_batched": lambda x, w: torch.autograd.grad(
        sums(x, w), x, torch.ones(3, 2, 4, 7, 7), is_grads_batched=True
    ),
    "create_graph": lambda x, w: torch.autograd.grad(
        torch.autograd.grad(sums(x, w).sum(), x, create_graph=True)[0].sum(), w
    ),
    "an edge": lambda x, w: torch.autograd.grad(
        torch.autograd.graph.get_gradient_edge(sums(x, w).sum()), x
    ),
    "no number": lambda x, w: torch.autograd.grad(sums(x, w), x),
    "backward": lambda x, w: sums(x, w).sum().backward(),
    "gradient": lambda x, w: sums(x, w).backward(torch.ones(2, 4, 7, 7)),
    "gradient of another shape": lambda x, w: sums(x, w).backward(torch.ones(3)),
    "inputs": lambda x, w: sums(x, w).sum().backward(inputs=[w]),
    "no inputs": lambda x, w: sums(x, w).sum().backward(inputs=[]),
    "several": lambda x, w: torch.autograd.backward(
        [sums(x, w).sum(), sums(x, w)], [None, torch.ones(2, 4, 7, 7)], inputs=x
    ),
    "without gradients": lambda x, w: torch.ones(1).backward(),
    "retain_graph": lambda x, w: (lambda y: (y.backward(retain_graph=True), y.backward()))(
        sums(x, w).sum()
    ),
    "twice": lambda x, w: (lambda y: (y.backward(), y.backward()))(sums(x, w).sum()),
    "hessian": lambda x, w: torch.autograd.functional.hessian(
        lambda v: sums(v, w[:, :, :2, :2]).sum(), x[:1, :, :3, :3].detach()
    ),
}


@pytest.mark.parametrize("name", BACKWARD)
def test_calls_of_the_backward_pass(name):
    results = []
    for context in (torch_dnnl.accelerate(), torch.enable_grad()):
        x, w = IMAGE.clone().requires_grad_(), WEIGHT.clone().requires_grad_()
        with context:
            try:
                result = BACKWARD[name](x, w)
            except RuntimeError as error:
                results.append(str(error))
            else:
                results.append((result, x.grad, w.grad))
    if isinstance(results[1], str):
        assert results[0] == results[1]
    else:
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-3)
