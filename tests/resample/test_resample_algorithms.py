"""Every kernel of Resample on every case that it supports, and the choice of a kernel."""

import pytest
import torch
from op_db import CASES, assert_matches

import torch_dnnl
import torch_dnnl.functional as D

ROWS = [case for case in CASES if case.function in ("resample", "interpolate")]
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
KERNELS = [
    (device, kernel)
    for device in DEVICES
    for kernel in torch_dnnl.build_info()["kernels"][device]["resample"]
]


def unless_refused(function, *args):
    """The result, or None from a kernel that does not support the call."""
    try:
        return function(*args)
    except NotImplementedError as error:
        if "expected algorithm to be a kernel that supports this call" not in str(error):
            raise
        return None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("device", "kernel"), KERNELS)
def test_every_kernel_matches_oracle(device, kernel, dtype):
    """Forward and backward: the derivative of a call is computed by the kernel of the call."""
    forwards, backwards = [], []
    for case in ROWS:
        (x,) = case.inputs(dtype, device, requires_grad=True)
        exact = x.detach().cpu().double().requires_grad_()
        expected = case.oracle(exact)
        with torch_dnnl.resample_algorithm(kernel):
            result = unless_refused(case.call, x)
        if result is None:
            continue
        assert_matches(result, expected)
        forwards.append(case.name)
        grad = torch.randn_like(result)
        gradient = unless_refused(torch.autograd.grad, result, x, grad)
        if gradient is not None:
            (theirs,) = torch.autograd.grad(expected, exact, grad.cpu().double())
            assert_matches(gradient[0], theirs)
            backwards.append(case.name)
    # What makes rows shorter takes no gradient of it, which makes them longer.
    assert forwards and (backwards or kernel == "sum_windows")
    if kernel == "reference":
        assert len(forwards) == len(backwards) == len(ROWS)


def kernels_that_ran(function):
    with torch.profiler.profile() as profile:
        function()
    prefix = "torch_dnnl::kernel::"
    return [e.key.removeprefix(prefix) for e in profile.key_averages() if prefix in e.key]


def test_profiler_shows_the_kernel():
    x = torch.rand(1, 2, 6, 8, requires_grad=True)

    def step():
        D.interpolate(x, scale_factor=2, mode="bilinear").sum().backward()

    with torch_dnnl.resample_algorithm("reference"):
        assert kernels_that_ran(step) == ["reference"]
        with torch_dnnl.resample_algorithm("auto"):
            assert "reference" not in kernels_that_ran(step)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: D.interpolate(x, scale_factor=0.5, mode="area"),
        lambda x: D.interpolate(x, scale_factor=0.5, mode="bilinear"),
        lambda x: D.interpolate(x.byte(), scale_factor=0.5, mode="bicubic", antialias=True),
        lambda x: D.interpolate(x[:, :, 0], scale_factor=0.5, mode="area"),
        lambda x: D.resample(x, (3, 4)),
        lambda x: torch.func.vmap(lambda y: D.resample(y[None], (3, 4)))(x),
    ],
)
def test_every_call_obeys(call):
    x = torch.rand(2, 2, 6, 8) * 255
    with torch_dnnl.resample_algorithm("reference"):
        assert set(kernels_that_ran(lambda: call(x))) == {"reference"}


def test_derivatives_keep_the_kernel():
    """Computed outside the context, to the second order, and as a tangent."""
    x = torch.rand(1, 2, 6, 8, requires_grad=True)
    with torch_dnnl.resample_algorithm("reference"):
        y = D.resample(x, (3, 4), mode="cubic")

    def derive():
        (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y, requires_grad=True))
        return gradient

    assert set(kernels_that_ran(derive)) == {"reference"}

    def tangent():
        def call(z):
            with torch_dnnl.resample_algorithm("reference"):
                return D.resample(z, (3, 4))

        return torch.func.jvp(call, (x.detach(),), (x.detach(),))

    assert set(kernels_that_ran(tangent)) == {"reference"}


def test_choice_is_traced():
    x = torch.rand(1, 2, 6, 8)
    graphs = []

    def backend(graph, _):
        graphs.append(str(graph.graph))
        return graph.forward

    @torch.compile(fullgraph=True, backend=backend)
    def compiled(x):
        return D.interpolate(x, scale_factor=2)

    compiled(x)
    with torch_dnnl.resample_algorithm("reference"):
        compiled(x)
    assert ["reference" in graph for graph in graphs] == [False, True]


def test_bad_choices():
    for manager in ("conv_algorithm", "resample_algorithm", "reorder_algorithm"):
        choose = getattr(torch_dnnl, manager)
        with pytest.raises(ValueError, match=rf"^{manager}: expected algorithm .* got 'fft'"):
            choose("fft").__enter__()
        with pytest.raises(TypeError, match=rf"^{manager}: expected algorithm .* got int"):
            choose(3).__enter__()
    x = torch.rand(1, 2, 6, 8)
    for device in ("cpu", "meta"):
        with pytest.raises(ValueError, match=r"^resample: expected algorithm to be one of .*fft"):
            torch.ops.torch_dnnl.resample(x.to(device), (3, 4), algorithm="fft")
