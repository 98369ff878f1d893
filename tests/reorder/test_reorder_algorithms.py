"""Reorder's kernels by name: each computes the same bits, and refuses what it does not support."""

import threading
from functools import partial

import pytest
import torch
from op_db import CASES, FLOATING, assert_matches, by_name
from test_reorder_bits import operand, values

import torch_dnnl
import torch_dnnl.functional as D

OPS = torch.ops.torch_dnnl
KERNELS = OPS.reorder_kernels_cpu()
FAKE_KERNELS = OPS.fake_reorder_kernels_cpu()
REORDERS = [case for case in CASES if case.function == "reorder"]
# Groups of 3 and of 2 elements: no digits have both as steps.
CROSSED = {"scale": operand(0, 1, 12, 1, 1), "dst_scale": operand(1, 1, 18, 1, 1)}


def bits(tensor):
    return tensor.detach().contiguous().view(torch.uint8)


def by_kernel(kernel, function, *inputs):
    """The result and, of float64, the gradients; None where the kernel refuses."""
    inputs = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
    try:
        with torch_dnnl.reorder_algorithm(kernel):
            result = function(*inputs)
            if not result.requires_grad:
                return [result]
            return [result, *torch.autograd.grad(result, inputs, torch.ones_like(result))]
    except NotImplementedError:
        return None


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_case(kernel):
    ran = set()
    for case in REORDERS:
        for dtype in FLOATING:
            inputs = case.inputs(dtype, requires_grad=dtype == torch.float64)
            results = by_kernel(kernel, case.call, *inputs)
            if results is None:
                continue
            ran.add(case.name)
            wide = [x.detach().double() for x in inputs]
            assert_matches(results[0], case.oracle(*wide))
            for actual, expected in zip(results, by_kernel("auto", case.call, *inputs)):
                assert torch.equal(bits(actual), bits(expected)), (case.name, dtype)
    assert ran, "no case that the kernel supports"


@pytest.mark.parametrize("case", REORDERS, ids=by_name)
def test_some_kernel_is_not_the_reference(case):
    assert by_kernel("boxes", case.call, *case.inputs()) is not None


@pytest.mark.parametrize("kernel", FAKE_KERNELS)
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_fake_reorder(kernel, dtype):
    src = values(torch.float32, 0, (2, 36, 4, 8)).nan_to_num().clamp(-300, 300).to(dtype)
    calls = [
        partial(D.fake_reorder, dst_format=dst_format, dtype=q, **options)
        for dst_format in (None, "nhwc")
        for q in (torch.int8, torch.uint8, torch.int32, torch.float8_e4m3fn, torch.float8_e5m2)
        for options in ({"dst_scale": 0.3}, {"dst_scale": operand(0, 1, 36, 1, 1)}, CROSSED)
    ]
    ran = 0
    for call in calls:
        inputs = [src.clone().requires_grad_()]
        results = by_kernel(kernel, call, *inputs)
        if results is not None:
            ran += 1
            for actual, expected in zip(results, by_kernel("auto", call, *inputs)):
                assert torch.equal(bits(actual), bits(expected))
    assert ran


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_profile_has_its_name(kernel):
    src = torch.randn(2, 3, 8, 8, requires_grad=True)
    with torch.profiler.profile() as profile, torch_dnnl.reorder_algorithm(kernel):
        D.reorder(src, "nhwc").sum().backward()
        D.fake_reorder(src, dtype=torch.int8, dst_scale=0.1).sum().backward()
    names = [event.name for event in profile.events()]
    of_kernels = [name for name in names if name.startswith("torch_dnnl::kernel::")]
    assert of_kernels == [f"torch_dnnl::kernel::{kernel}"] * 4


def test_refusals():
    src = torch.randn(1, 36, 2, 2)
    refused = pytest.raises(NotImplementedError, match='one of "reference", got "boxes"')
    with torch_dnnl.reorder_algorithm("boxes"), refused:
        D.reorder(src, **CROSSED)
    with pytest.raises(ValueError, match="reorder: expected algorithm to be one of"):
        OPS.reorder(src, algorithm="fastest")
    with pytest.raises(ValueError, match="fake_reorder: expected algorithm to be one of"):
        OPS.fake_reorder(src, torch.int8, algorithm="fastest")
    with pytest.raises(ValueError, match="reorder_algorithm: expected algorithm to be one of"):
        torch_dnnl.reorder_algorithm("fastest").__enter__()
    with pytest.raises(TypeError, match="algorithm to be a str"):
        torch_dnnl.reorder_algorithm(None).__enter__()


def test_the_choice_is_of_a_thread_and_of_the_context():
    seen = []

    def reorder():
        with torch.profiler.profile() as profile:
            D.reorder(torch.randn(2, 3), "ba")
        seen.extend(event.name for event in profile.events() if "kernel::" in event.name)

    with torch_dnnl.reorder_algorithm("reference"):
        with torch_dnnl.reorder_algorithm("auto"):
            reorder()
        reorder()
        thread = threading.Thread(target=reorder)
        thread.start()
        thread.join()
    names = [name.removeprefix("torch_dnnl::kernel::") for name in seen]
    assert names == ["boxes", "reference", "boxes"]


def test_batches_and_compiled_calls():
    src = torch.randn(3, 2, 5)

    def both(x):
        with torch_dnnl.reorder_algorithm("reference"):
            return D.reorder(x, "ba"), D.fake_reorder(x, dtype=torch.int8, dst_scale=0.1)

    expected = both(src[0])
    for function in (lambda x: torch.vmap(both)(x[None]), torch.compile(both, backend="eager")):
        for actual, wanted in zip(function(src[0]), expected):
            assert torch.equal(actual.squeeze(0) if actual.dim() == 3 else actual, wanted)
    assert torch_dnnl.build_info()["kernels"]["cpu"]["reorder"] == KERNELS
