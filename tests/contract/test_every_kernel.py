"""Every row of op_db that convolves, on every kernel that supports it: results and gradients.

A kernel refuses what it cannot compute with NotImplementedError. It may support a row's result and
none of its gradients, or some of them: each is asked for by itself.
"""

import re
from contextlib import contextmanager

import pytest
import torch
from op_db import CASES, FLOATING, TOLERANCE, assert_matches, by_name

import torch_dnnl

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS = [case for case in CASES if case.function.startswith("conv")]
KERNELS = torch_dnnl.build_info()["kernels"][DEVICE]["convolution"]


@contextmanager
def unless_refused(kernel):
    """Ends the block where the kernel does not support the call, and for no other reason."""
    try:
        yield
    except NotImplementedError as error:
        refusal = rf'expected algorithm to be a kernel that supports this call.*, got "{kernel}"'
        if not re.search(refusal, str(error)):
            raise


def run(case, kernel, dtype):
    """Compares what the kernel computes of a row; returns how many results and gradients it did."""
    inputs = [x.detach().requires_grad_() for x in case.inputs(dtype, device=DEVICE)]
    exact = [x.detach().cpu().double().requires_grad_() for x in inputs]
    expected = case.oracle(*exact)
    grad = torch.randn_like(expected).to(dtype)
    result, computed = None, 0
    # cuDNN's sums are rounded before a bias is added.
    roundings = 2 if kernel == "cudnn" else 1
    with unless_refused(kernel), torch_dnnl.conv_algorithm(kernel):
        result = case.call(*inputs)
        assert_matches(result, expected, TOLERANCE[dtype] * roundings)
        computed += 1
    if result is None:
        return computed
    # An activation's gradient, of which the others are made, is rounded too.
    tolerance = TOLERANCE[dtype] * roundings * (4 if "fused" in case.name else 1)
    for x, y in zip(inputs, exact):
        (right,) = torch.autograd.grad(expected, y, grad.double(), retain_graph=True)
        with unless_refused(kernel):
            (ours,) = torch.autograd.grad(result, x, grad.to(DEVICE), retain_graph=True)
            assert_matches(ours, right, tolerance)
            computed += 1
    return computed


@pytest.mark.parametrize("dtype", FLOATING, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", ROWS, ids=by_name)
def test_row_on_kernel(case, kernel, dtype):
    run(case, kernel, dtype)


@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_some_row_runs_on_kernel(kernel):
    assert any(run(case, kernel, torch.float32) for case in ROWS)
