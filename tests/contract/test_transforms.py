"""Every PyTorch transform over the same table: torch.func, vmap, torch.compile,
export, compiled autograd, autocast, opcheck."""

import io
import itertools

import pytest
import torch
from op_db import CASES, MATRIX, assert_matches, by_name
from recorder import Recorder
from torch._dynamo.testing import CompileCounterWithBackend

import torch_dnnl
import torch_dnnl.functional as D


def cubed(case):
    """A scalar function of a case with a third-order derivative."""
    return lambda *inputs: case.call(*inputs).pow(3).sum()


def gradients(function, inputs):
    return torch.autograd.grad(function(*inputs), inputs)


def assert_all_match(actual, expected, tolerance=None):
    assert len(actual) == len(expected)
    for a, b in zip(actual, expected):
        assert_matches(a, b, tolerance)


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_func_grad_and_jvp(case):
    inputs = case.inputs(torch.float64)
    expected = gradients(cubed(case), case.inputs(torch.float64, requires_grad=True))
    every = tuple(range(len(inputs)))
    assert_all_match(torch.func.grad(cubed(case), argnums=every)(*inputs), expected)
    tangents = tuple(torch.randn_like(x) for x in inputs)
    _, slope = torch.func.jvp(cubed(case), tuple(inputs), tangents)
    assert_matches(slope, sum((g * t).sum() for g, t in zip(expected, tangents)), 1e-10)


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_jacobians(case):
    inputs = tuple(case.inputs(torch.float64))
    every = tuple(range(len(inputs)))
    reverse = torch.func.jacrev(case.call, argnums=every)(*inputs)
    forward = torch.func.jacfwd(case.call, argnums=every)(*inputs)
    assert_all_match(reverse, forward)


@pytest.mark.parametrize("case", MATRIX, ids=by_name)
def test_hessian(case):
    x, *rest = case.inputs(torch.float64)
    hessian = torch.func.hessian(lambda x: cubed(case)(x, *rest))(x)
    flat = hessian.reshape(x.numel(), x.numel())
    assert_matches(flat, flat.T)
    # Along one direction, against finite differences of the gradient.
    direction, step = torch.randn_like(x), 1e-6
    slope = torch.func.grad(lambda x: cubed(case)(x, *rest))
    finite = (slope(x + step * direction) - slope(x - step * direction)) / (2 * step)
    assert_matches((hessian.flatten(x.dim()) @ direction.flatten()), finite, 1e-5)


@pytest.fixture
def no_vmap_fallback():
    torch._C._functorch._set_vmap_fallback_enabled(False)
    yield
    torch._C._functorch._set_vmap_fallback_enabled(True)


def stacked(x, dim):
    """Three different versions of x along a new dimension."""
    return torch.stack([x, x * 0.5, x + 1], dim)


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_vmap(case, no_vmap_fallback):
    inputs = case.inputs(torch.float64)
    choices = itertools.product((None, 0, -1), repeat=len(inputs))
    for dims in [d for d in choices if any(i is not None for i in d)][:20]:
        batched = [x if d is None else stacked(x, d) for x, d in zip(inputs, dims)]
        for function in (case.call, torch.func.grad(cubed(case))):
            result = torch.func.vmap(function, in_dims=dims)(*batched)
            loop = [
                function(*(x if d is None else x.select(d, i) for x, d in zip(batched, dims)))
                for i in range(3)
            ]
            assert_matches(result, torch.stack(loop), 1e-11)


@pytest.mark.parametrize("case", MATRIX, ids=by_name)
def test_nested_vmap(case, no_vmap_fallback):
    inputs = case.inputs(torch.float64)
    twice = [torch.stack([stacked(x, 0), stacked(-x, 0)]) for x in inputs[:1]]
    call = lambda x: case.call(x, *inputs[1:])  # noqa: E731
    result = torch.func.vmap(torch.func.vmap(call))(twice[0])
    loop = torch.stack([torch.stack([call(x) for x in row]) for row in twice[0]])
    assert_matches(result, loop)


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_opcheck(case):
    """The forward operator and those of the backward pass, as recorded."""
    inputs = case.inputs(torch.float32, requires_grad=True)
    with Recorder() as recorder:
        case.call(*inputs).sum().backward()
    assert len(recorder.calls) >= 2
    for operator, args, kwargs in recorder.calls:
        args = [
            a.detach().clone().requires_grad_() if isinstance(a, torch.Tensor) else a for a in args
        ]
        torch.library.opcheck(operator, args, kwargs)


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_meta_strides(case):
    """Meta calls give the sizes, strides and type that eager calls give."""
    for layout in (torch.contiguous_format, torch.channels_last, torch.channels_last_3d):
        inputs = [
            x.contiguous(memory_format=layout)
            if x.dim() == {torch.channels_last: 4, torch.channels_last_3d: 5}.get(layout, x.dim())
            else x
            for x in case.inputs(torch.float32)
        ]
        eager, meta = case.call(*inputs), case.call(*(x.to("meta") for x in inputs))
        assert (eager.shape, eager.stride(), eager.dtype) == (meta.shape, meta.stride(), meta.dtype)


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_compile_aot_eager(case):
    torch._dynamo.reset()
    inputs = case.inputs(torch.float64, requires_grad=True)
    compiled = torch.compile(cubed(case), fullgraph=True, backend="aot_eager")
    assert_all_match(gradients(compiled, inputs), gradients(cubed(case), inputs))


@pytest.mark.parametrize("case", MATRIX, ids=by_name)
def test_compile_inductor_dynamic(case):
    """One graph for several batch sizes, forward and backward."""
    torch._dynamo.reset()
    compiled = torch.compile(cubed(case), fullgraph=True, dynamic=True)
    for repeats in (1, 2, 3):
        inputs = case.inputs(torch.float64)
        if case.batched:
            inputs[0] = torch.cat([inputs[0]] * repeats)
        if "unblocked" in case.name:
            return
        inputs = [x.requires_grad_() for x in inputs]
        assert_all_match(gradients(compiled, inputs), gradients(cubed(case), inputs), 1e-10)


def strided_and_resized(factor):
    """Sizes that are terms with a division, of which factors make sizes again."""
    weight = torch.randn(4, 3, 3, 3)
    return lambda x: D.interpolate(D.conv2d(x, weight, stride=2), scale_factor=factor)


@pytest.mark.parametrize("factor", [None, "same", 2, 1.5, 0.7, 1 / 3])
def test_compile_does_not_recompile_on_sizes(factor):
    """With dynamic=True one compilation serves every spatial size."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    weight = torch.randn(4, 3, 3, 3)
    functions = {
        None: lambda x: D.interpolate(x, scale_factor=2, mode="bilinear"),
        "same": lambda x: D.conv2d(x, weight, padding="same"),
    }
    function = functions.get(factor) or strided_and_resized(factor)
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend=counter)
    counts = []
    for size in (19, 18, 24, 27):
        x = torch.randn(2, 3, size, size + 2)
        assert_matches(compiled(x), function(x).double(), 1e-6)
        counts.append(counter.frame_count)
    # torch begins again at once where a factor is a number of the closure.
    assert counts[0] <= 2 and counts == counts[:1] * 4


def test_inductor_computes_with_sizes_of_factors():
    torch._dynamo.reset()
    resized = strided_and_resized(0.7)
    compiled = torch.compile(lambda x: resized(x).exp() + 1, fullgraph=True, dynamic=True)
    for size in (9, 8, 15):
        x = torch.randn(2, 3, size, size + 2)
        assert_matches(compiled(x), (resized(x).exp() + 1).double(), 1e-6)


@pytest.mark.parametrize("factor", [3, 0.5, 0.75, 1.1, 0.7, 1 / 3, 2.9999999999])
def test_symbolic_sizes_of_factors_are_those_of_numbers(factor):
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: torch.ops.torch_dnnl.resample(x, None, [factor]).shape[2],
        fullgraph=True,
        dynamic=True,
        backend="aot_eager",
    )
    for size in (10, 7, 20, 30, 64, 1000, 1001, 12345):
        assert compiled(torch.zeros(1, 1, size)) == int(size * factor), size


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_compiled_autograd(case):
    torch._dynamo.reset()
    expected = gradients(cubed(case), case.inputs(torch.float64, requires_grad=True))
    inputs = case.inputs(torch.float64, requires_grad=True)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager", fullgraph=True)):
        cubed(case)(*inputs).backward()
    assert_all_match([x.grad for x in inputs], expected)


class Model(torch.nn.Module):
    def __init__(self, case):
        super().__init__()
        self.case = case

    def forward(self, *inputs):
        return self.case.call(*inputs)


@pytest.mark.parametrize("case", MATRIX, ids=by_name)
def test_export(case):
    inputs = tuple(case.inputs(torch.float32))
    program = torch.export.export(Model(case), inputs)
    again = program.run_decompositions()
    assert torch.equal(program.module()(*inputs), case.call(*inputs))
    assert torch.equal(again.module()(*inputs), case.call(*inputs))


@pytest.mark.parametrize(
    "layer",
    [
        torch_dnnl.nn.Conv2d(3, 4, 3, padding=1),
        torch_dnnl.nn.Conv2d(3, 4, 3, stride=2, padding="same_upper"),
        torch_dnnl.nn.ConvTranspose2d(3, 4, 3, stride=2),
        torch_dnnl.nn.Resample(scale_factor=2, mode="linear"),
        torch_dnnl.nn.Reorder("nChw16c"),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_export_for_any_batch(layer):
    """One that is named, without bounds: the checks put no condition on it."""
    sizes = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(layer, (torch.rand(2, 3, 8, 9),), dynamic_shapes=sizes)
    (bounds,) = program.range_constraints.values()
    assert bounds.lower <= 2 and bounds.upper > 2**62
    x = torch.rand(5, 3, 8, 9)
    assert torch.equal(program.module()(x), layer(x))


@pytest.mark.parametrize("rule", ["half_pixel", "align_corners"])
@pytest.mark.parametrize("recompute", [False, True])
def test_export_of_a_factor_is_saved_for_any_size(rule, recompute):
    class Half(torch.nn.Module):
        def forward(self, x):
            options = {"coordinates": rule, "recompute_scale_factor": recompute}
            return D.resample(x, None, 0.5, antialias=True, **options)

    sizes = {0: torch.export.Dim.AUTO, 2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO}
    program = torch.export.export(Half(), (torch.rand(2, 3, 8, 9),), dynamic_shapes={"x": sizes})
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    x = torch.rand(3, 3, 11, 20)
    assert torch.equal(torch.export.load(file).module()(x), Half()(x))


def test_export_of_nearest_is_for_any_size():
    """Also beyond the 128 rows and columns where ATen changes kernels."""

    class Grow(torch.nn.Module):
        def forward(self, x):
            return D.interpolate(x, scale_factor=1.5, mode="nearest-exact")

    sizes = {"x": {2: torch.export.Dim.AUTO, 3: torch.export.Dim.AUTO}}
    program = torch.export.export(Grow(), (torch.rand(2, 3, 8, 9),), dynamic_shapes=sizes)
    x = torch.rand(2, 3, 80, 90)
    assert torch.equal(program.module()(x), Grow()(x))


@pytest.mark.parametrize("case", MATRIX, ids=by_name)
def test_autocast(case):
    """Convolution computes in the autocast type; resample and reorder keep theirs."""
    inputs = case.inputs(torch.float32, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        result = case.call(*inputs)
        result.float().sum().backward()
    expected = torch.bfloat16 if case.function.startswith("conv") else torch.float32
    assert result.dtype == expected
    assert all(x.grad.dtype == x.dtype for x in inputs)
    assert_matches(result, case.oracle(*(x.detach().double() for x in inputs)), 2**-6)
    doubles = case.inputs(torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        assert case.call(*doubles).dtype == torch.float64
