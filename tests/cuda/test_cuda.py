"""The same table on a GPU: CPU against CUDA, streams, graphs, several devices."""

import pytest
import torch
from op_db import CASES, FLOATING, TOLERANCE, assert_matches, by_name

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("dtype", FLOATING, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_matches_cpu(case, dtype):
    cpu = case.inputs(dtype, requires_grad=True)
    gpu = case.inputs(dtype, device="cuda")
    gpu = [x.detach().requires_grad_() for x in gpu]
    expected, result = case.call(*cpu), case.call(*gpu)
    assert result.dtype == expected.dtype and result.stride() == expected.stride()
    # cuDNN's sums are rounded before a bias is added, and so is an activation's gradient, also in
    # what the CPU computes.
    roundings = 5 if "fused" in case.name else 2 if case.function.startswith("conv") else 1
    assert_matches(result, expected, TOLERANCE[dtype] * roundings)
    grad = torch.randn_like(expected)
    ours = torch.autograd.grad(result, gpu, grad.cuda())
    for a, b in zip(ours, torch.autograd.grad(expected, cpu, grad)):
        assert_matches(a, b, 4e-5 if dtype == torch.float32 else TOLERANCE[dtype] * roundings)


def on_gpu(case, device="cuda"):
    return [x.detach().requires_grad_() for x in case.inputs(torch.float32, device=device)]


def result_and_gradients(case, inputs):
    result = case.call(*inputs)
    grad = torch.ones_like(result)
    return (result, *torch.autograd.grad(result, inputs, grad))


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_deterministic(case):
    inputs = on_gpu(case)
    first = result_and_gradients(case, inputs)
    for _ in range(20):
        for a, b in zip(first, result_and_gradients(case, inputs)):
            assert torch.equal(a, b)


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_side_stream(case):
    """Kernels run on the current stream: they wait for what was queued there before."""
    inputs = on_gpu(case)
    expected = result_and_gradients(case, inputs)
    poisoned = [torch.full_like(x, torch.nan).requires_grad_() for x in inputs]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)  # clock cycles: some milliseconds
        for late, x in zip(poisoned, inputs):
            late.data.copy_(x)
        results = result_and_gradients(case, poisoned)
    torch.cuda.current_stream().wait_stream(stream)
    for a, b in zip(results, expected):
        assert torch.equal(a, b)


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_graph(case):
    """Results and gradients can be captured, and replayed with other values."""
    inputs = on_gpu(case)
    result_and_gradients(case, inputs)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = result_and_gradients(case, inputs)
    for x in inputs:
        x.data.mul_(2)
    expected = result_and_gradients(case, inputs)
    graph.replay()
    torch.cuda.synchronize()
    for a, b in zip(results, expected):
        assert torch.equal(a, b)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_second_device(case):
    """Kernels run where their tensors are, whatever the current device is, and leave it so."""
    expected = result_and_gradients(case, on_gpu(case, "cuda:0"))
    with torch.cuda.device(0):
        results = result_and_gradients(case, on_gpu(case, "cuda:1"))
        assert torch.cuda.current_device() == 0
    for a, b in zip(results, expected):
        assert a.device.index == 1 and torch.equal(a.cpu(), b.cpu())


def test_every_operator_has_a_cuda_kernel():
    # What takes no tensor, such as a list of kernels, runs on no device.
    operators = {
        schema.name
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("torch_dnnl::") and "Tensor" in str(schema)
    }
    missing = [
        name
        for name in operators
        if not torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CUDA")
    ]
    assert operators and not missing
