"""Kernels can be listed, seen and named: build_info, the profiler, `algorithm=`, the context
managers."""

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import torch_dnnl
import torch_dnnl.functional as D

ops = torch.ops.torch_dnnl
KERNELS = torch_dnnl.build_info()["kernels"]["cpu"]
CONTEXTS = {
    "convolution": torch_dnnl.conv_algorithm,
    "resample": torch_dnnl.resample_algorithm,
    "reorder": torch_dnnl.reorder_algorithm,
}
CALLS = {
    "convolution": lambda: D.conv2d(torch.randn(2, 20, 9, 9), torch.randn(24, 20, 3, 3), padding=1),
    "resample": lambda: D.resample(torch.randn(2, 3, 9, 9), size=(14, 5)),
    "reorder": lambda: D.reorder(torch.randn(2, 20, 9, 9), "nhwc", dtype=torch.int8, scale=20.0),
}
FAMILIES = pytest.mark.parametrize("family", CALLS)


def names_in_profile(call):
    """The kernels that ran, by the operator that they ran for."""
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        call()
    prefix = "torch_dnnl::kernel::"
    return [
        (event.cpu_parent.name, event.name.removeprefix(prefix))
        for event in profiled.events()
        if event.name.startswith(prefix)
    ]


@FAMILIES
def test_every_list_ends_with_the_reference(family):
    names = KERNELS[family]
    assert names[-1] == "reference" and len(set(names)) == len(names) >= 2


@FAMILIES
def test_profiler_shows_the_kernel_below_its_operator(family):
    ((operator, kernel),) = names_in_profile(CALLS[family])
    assert operator == f"torch_dnnl::{family}" and kernel in KERNELS[family]


@FAMILIES
def test_context_forces_a_kernel(family):
    torch.manual_seed(1)
    expected = CALLS[family]()
    ran, refused = 0, []
    for name in KERNELS[family]:
        torch.manual_seed(1)
        with CONTEXTS[family](name):
            try:
                result = CALLS[family]()
            except NotImplementedError as error:
                refused.append(str(error))
                continue
            ((_, kernel),) = names_in_profile(CALLS[family])
            assert kernel == name
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
        ran += 1
    assert ran >= 2
    for message in refused:
        assert message.startswith(f"{family}: expected algorithm to be a kernel that supports")
        assert '"reference"' in message


@FAMILIES
def test_context_refuses_other_names(family):
    with pytest.raises(ValueError, match=r"expected algorithm to be one of .* got 'fft'"):
        CONTEXTS[family]("fft").__enter__()
    with pytest.raises(TypeError, match=r"expected algorithm to be a str, got int"):
        CONTEXTS[family](3).__enter__()


@FAMILIES
def test_context_ends(family):
    name = KERNELS[family][-1]
    before = names_in_profile(CALLS[family])

    def within():
        with CONTEXTS[family](name):
            assert names_in_profile(CALLS[family])[0][1] == name
            raise KeyError

    with pytest.raises(KeyError):
        within()
    assert names_in_profile(CALLS[family]) == before


def test_a_forced_kernel_computes_the_gradients_too():
    x = torch.randn(1, 4, 8, 8, requires_grad=True)
    weight = torch.randn(4, 4, 3, 3, requires_grad=True)
    with torch_dnnl.conv_algorithm("blocked"):
        result = D.conv2d(x, weight, padding=1)
    ran = names_in_profile(lambda: torch.autograd.grad(result.sum(), [x, weight]))
    assert {kernel for _, kernel in ran} == {"blocked"}
    assert {operator for operator, _ in ran} == {
        "torch_dnnl::convolution_backward_data",
        "torch_dnnl::convolution_backward_weights",
    }


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_unknown_names_are_refused_by_every_operator(device):
    x, w = torch.randn(1, 2, 5, device=device), torch.randn(3, 2, 3, device=device)
    layout = ([], [], [], [], "none", 1, "NCX", "OIX", "fft")
    calls = {
        "convolution": lambda: ops.convolution(x, w, None, *layout),
        "convolution_backward_data": lambda: ops.convolution_backward_data(
            torch.empty(1, 3, 3, device=device), w, [5], *layout
        ),
        "resample": lambda: ops.resample(x, [4], algorithm="fft"),
        "reorder": lambda: ops.reorder(x, algorithm="fft"),
    }
    for operator, call in calls.items():
        with pytest.raises(ValueError, match=rf"^{operator}: expected algorithm .* got .fft"):
            call()


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    ("ic", "oc", "kernel", "stride", "dilation", "is_taken"),
    [
        (32, 40, 3, 2, 1, True),
        (32, 40, 3, 1, 2, True),
        (64, 72, 1, 2, 1, True),
        (31, 40, 3, 2, 1, False),
        (32, 40, 3, 1, 5, False),
        (1024, 520, 3, 2, 1, False),  # more than 2^22 weights
    ],
)
def test_products_of_float32(memory_format, ic, oc, kernel, stride, dilation, is_taken):
    """The edges of what torch's are chosen for with AVX2; other libraries make them themselves."""
    x, w = torch.randn(1, ic, 29, 28), torch.randn(oc, ic, kernel, kernel)
    x = x.contiguous(memory_format=memory_format)
    ((_, name),) = names_in_profile(
        lambda: D.conv2d(x, w, None, stride, kernel // 2 * dilation, dilation)
    )
    has_avx2 = torch_dnnl.build_info()["cpu_capability"] == "avx2"
    assert (name == "brgemm") == (has_avx2 and is_taken)
