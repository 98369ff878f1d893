"""The same table on a GPU: CPU against CUDA, streams, graphs."""

import pytest
import torch
from op_db import CASES, FLOATING, assert_matches, by_name

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("dtype", FLOATING, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_matches_cpu(case, dtype):
    cpu = case.inputs(dtype, requires_grad=True)
    gpu = case.inputs(dtype, device="cuda")
    gpu = [x.detach().requires_grad_() for x in gpu]
    expected, result = case.call(*cpu), case.call(*gpu)
    assert result.dtype == expected.dtype and result.stride() == expected.stride()
    assert_matches(result, expected)
    grad = torch.randn_like(expected)
    ours = torch.autograd.grad(result, gpu, grad.cuda())
    for a, b in zip(ours, torch.autograd.grad(expected, cpu, grad)):
        assert_matches(a, b, 4e-5 if dtype == torch.float32 else None)


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_deterministic(case):
    inputs = [x.detach().requires_grad_() for x in case.inputs(torch.float32, device="cuda")]
    result = case.call(*inputs)
    grad = torch.randn_like(result)
    first = (result, *torch.autograd.grad(result, inputs, grad))
    for _ in range(20):
        again = case.call(*inputs)
        for a, b in zip(first, (again, *torch.autograd.grad(again, inputs, grad))):
            assert torch.equal(a, b)


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_side_stream_and_graph(case):
    """Kernels run on the current stream and can be captured and replayed."""
    inputs = case.inputs(torch.float32, device="cuda")
    expected = case.call(*inputs)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        assert torch.equal(case.call(*inputs), expected)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = case.call(*inputs)
    for x in inputs:
        x.mul_(2)
    expected = case.call(*inputs)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(result, expected)


def test_every_operator_has_a_cuda_kernel():
    operators = [
        name for name in torch._C._dispatch_get_all_op_names() if name.startswith("torch_dnnl::")
    ]
    missing = [
        name
        for name in operators
        if not torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA")
    ]
    assert operators and not missing
