"""Random problems, on every kernel that supports them: results and gradients against the reference
kernel, in float64 where the operator computes in floating point.

`make test ARGS="tests/contract/test_random_problems.py --problems=9999 --seed=7"` runs more.
"""

import pytest
import torch
from random_problems import FAMILIES, problem

import torch_dnnl

KERNELS = torch_dnnl.build_info()["kernels"]["cpu"]
# Of a whole tensor: the norm of the error over that of the result. float16 has subnormal sums.
TOLERANCE = {
    torch.float64: 1e-13,
    torch.float32: 2e-5,
    torch.bfloat16: 1e-2,
    torch.float16: 2e-3,
}


def unless_refused(case, operator, kernel):
    """The result; None from a kernel that does not support the call."""
    try:
        return case.run(operator, kernel)
    except NotImplementedError as error:
        if "expected algorithm to be a kernel that supports this call" not in str(error):
            raise
        return None


def assert_same(actual, expected, text):
    assert actual.shape == expected.shape and actual.isfinite().all(), text
    if actual.dtype in TOLERANCE:
        error = (actual.double() - expected).norm() / expected.norm().clamp_min(1e-3)
        assert error < TOLERANCE[actual.dtype], (text, error.item())
    else:  # a float32 sum that is close to a half may be rounded up or down
        assert (actual.double() - expected.double()).abs().max() <= 1, text


def assert_same_bits(actual, expected, text):
    dense = torch.contiguous_format
    ours, exact = (x.clone(memory_format=dense).view(torch.uint8) for x in (actual, expected))
    assert ours.equal(exact), text


@pytest.mark.parametrize(("family", "kernel"), [(f, k) for f in FAMILIES for k in KERNELS[f][:-1]])
def test_on_kernel(family, kernel, request):
    """Reorder computes the same bits in every kernel."""
    seed, count = request.config.getoption("seed"), request.config.getoption("problems")
    compare = assert_same_bits if family == "reorder" else assert_same
    ran = 0
    for number in range(count):
        case = problem(family, seed, number)
        dtype = case.inputs[0].dtype
        is_wide = dtype.is_floating_point and family != "reorder"
        for operator in case.calls:
            actual = unless_refused(case, operator, kernel)
            if actual is None:
                continue
            ran += 1
            exact = case.run(operator, "reference", torch.float64 if is_wide else None)
            compare(actual, exact, f"{operator} {number}: {case.text}")
    assert ran > 0, "no problem that the kernel supports"
