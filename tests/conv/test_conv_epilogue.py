"""The end of a convolution, activation(convolution + bias + residual), in every kernel: against
float64 compositions, in derivatives of every order and mode, and what it saves."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from op_db import FLOATING, assert_matches
from oracles.conv import ACTIVATIONS
from threads import same_on_threads
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode

import torch_dnnl
import torch_dnnl.functional as D

# Where derivatives jump: sums in another order may fall on the other side.
JUMPS = {
    "relu": (0,),
    "relu6": (0, 6),
    "leaky_relu": (0,),
    "hardswish": (-3, 3),
    "hardsigmoid": (-3, 3),
}
# Derivatives that are functions of the result; those of the others are of what they are applied to.
OF_RESULT = {
    "relu": lambda y: y > 0,
    "relu6": lambda y: (y > 0) & (y < 6),
    "sigmoid": lambda y: y * (1 - y),
    "tanh": lambda y: 1 - y * y,
}
# Channels of the source and of the result, groups, sizes of the kernel and of the source, the
# algorithm: each kernel of the CPU, with ends of blocks, in one to three dimensions.
PROBLEMS = {
    "reference": (5, 7, 1, (3, 2), (6, 5), "reference"),
    "tiny": (2, 2, 1, (2,), (9,), "auto"),
    "depthwise": (19, 19, 19, (3, 3), (11, 13), "auto"),
    "depthwise-vectors": (32, 32, 32, (1, 5), (3, 70), "auto"),
    "multiplier": (6, 18, 6, (3, 2, 2), (4, 5, 6), "auto"),
    "narrow": (18, 3, 1, (3, 4), (6, 21), "auto"),
    "winograd": (20, 35, 1, (3, 3), (22, 19), "winograd"),
    "winograd-planes": (34, 38, 2, (1, 3, 3), (2, 9, 10), "winograd"),
    "direct": (20, 37, 1, (3, 3), (7, 67), "direct"),
    "direct-pointwise": (24, 70, 2, (1,), (41,), "direct"),
    "direct-merged": (3, 17, 1, (5, 5), (9, 12), "direct"),
    "patches": (18, 37, 1, (2, 3), (19, 92), "auto"),
    "patches-pointwise": (36, 302, 2, (1,), (67,), "auto"),
    "patches-few-pixels": (150, 210, 1, (1, 1), (5, 7), "auto"),
}
# The norm of the error of values and of gradients, relative to the norm.
BARS = {
    torch.float64: (1e-12, 1e-12),
    torch.float32: (1e-5, 3e-5),
    torch.bfloat16: (2**-8, 2**-6),
    torch.float16: (2**-11, 2**-9),
}


def by_dtype(value):
    return str(value).removeprefix("torch.") if isinstance(value, torch.dtype) else None


def problem(name, dtype):
    """src, weights, bias and residual, in NCX and OIX; the attributes."""
    ic, oc, groups, kernel, size, algorithm = PROBLEMS[name]
    if name.startswith("patches"):  # side by side
        pads, strides = 0, kernel
    else:
        pads, strides = 1, (1,) * len(kernel)
    out = [(n + pads - k) // s + 1 for n, k, s in zip(size, kernel, strides)]
    scale = (2 / (ic // groups * torch.Size(kernel).numel())) ** 0.5
    tensors = (
        torch.randn(2, ic, *size),
        torch.randn(oc, ic // groups, *kernel) * scale,
        torch.randn(oc),
        torch.randn(2, oc, *out),
    )
    attributes = {
        "pads_begin": pads,
        "pads_end": 0,
        "strides": strides,
        "groups": groups,
        "algorithm": algorithm,
    }
    return [t.to(dtype) for t in tensors], attributes


def convolution(src, weights, bias, residual, activation, attributes):
    return D.convolution(
        *(src, weights, bias), residual=residual, activation=activation,
        **attributes, data_format="NCX", weights_format="OIX",
    )  # fmt: skip


def preactivation(src, weights, bias, residual, attributes):
    rank = src.dim() - 2
    padded = F.pad(src, [attributes["pads_begin"], 0] * rank)
    strides, groups = attributes["strides"], attributes["groups"]
    u = getattr(F, f"conv{rank}d")(padded, weights, bias, strides, groups=groups)
    return u if residual is None else u + residual


def assert_close(actual, expected, bar, *context, norm=None):
    norm = expected.norm() if norm is None else norm
    error = (actual.detach().double() - expected.detach()).norm() / norm
    assert error <= bar, (error.item(), *context)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", FLOATING, ids=by_dtype)
@pytest.mark.parametrize("name", PROBLEMS)
def test_matches_oracle(name, dtype, activation):
    """Values and gradients, in all pairs of formats and in channels_last."""
    f = ACTIVATIONS[activation]
    of_values, of_gradients = BARS[dtype]
    layouts = itertools.product(("NCX", "NXC", "channels_last"), ("OIX", "XIO"))
    for i, (data, kernels) in enumerate(layouts):
        has_residual = (i + list(ACTIVATIONS).index(activation)) % 2 == 0
        tensors, attributes = problem(name, dtype)
        rank = tensors[0].dim() - 2
        if not has_residual:
            tensors.pop()
        # The float64 oracle. The derivative is taken where the result's type puts it: at an edge
        # of hardswish, a rounding is as good as a step.
        exact = [t.double().requires_grad_() for t in tensors]
        u = preactivation(*exact[:3], exact[3] if has_residual else None, attributes)
        at = u.detach().to(dtype).double().requires_grad_()
        upstream = torch.randn_like(u).to(dtype)
        for jump in JUMPS.get(activation, ()):
            upstream[(u - jump).abs() < 1e-5] = 0
        (slope,) = torch.autograd.grad(f(at), at, upstream.double())
        expected = torch.autograd.grad(u, exact, slope)

        last = [0, *range(2, rank + 2), 1]
        ours = list(tensors)
        for i in (0, 3) if has_residual else (0,):
            if data != "NCX":
                ours[i] = ours[i].permute(last).contiguous()
            if data == "channels_last":
                ours[i] = ours[i].movedim(-1, 1)
        if kernels == "XIO":
            ours[1] = ours[1].permute(*range(2, rank + 2), 1, 0).contiguous()
        ours = [t.detach().requires_grad_() for t in ours]
        options = {
            **attributes,
            "data_format": "NXC" if data == "NXC" else "NCX",
            "weights_format": kernels,
            "activation": activation,
            "residual": ours[3] if has_residual else None,
        }
        result = D.convolution(*ours[:3], **options)
        context = (data, kernels, has_residual)
        assert result.dtype == dtype
        to_ncx = (lambda t: t.movedim(-1, 1)) if data == "NXC" else (lambda t: t)
        assert_close(to_ncx(result), f(u), of_values, "value", *context)
        grads = torch.autograd.grad(
            result, ours, upstream.movedim(1, -1) if data == "NXC" else upstream
        )
        for i, (actual, grad) in enumerate(zip(grads, expected)):
            if i in (0, 3):
                actual = to_ncx(actual)
            if i == 1 and kernels == "XIO":
                actual = actual.movedim((-1, -2), (0, 1))
            # The gradient of the bias is a sum with much cancellation.
            norm = slope.norm() if i == 2 else None
            assert_close(actual, grad, of_gradients, i, *context, norm=norm)
        with torch.no_grad():  # nothing is kept: another path through the kernel
            assert torch.equal(D.convolution(*ours[:3], **options), result)


@pytest.mark.parametrize("name", PROBLEMS)
def test_value_decides_alone(name):
    """The same bits at every position and from any number of threads; NaN stays where it is."""
    for activation, dtype in itertools.product(ACTIVATIONS, (torch.float32, torch.bfloat16)):
        (src, weights, bias, residual), attributes = problem(name, dtype)
        src.zero_()
        residual.fill_(-0.7371)
        bias.zero_()
        for layout in (lambda t: t, lambda t: t.movedim(1, -1).contiguous().movedim(-1, 1)):
            args = (layout(src), weights, bias, layout(residual), activation, attributes)
            assert convolution(*args).unique().numel() == 1, (activation, dtype)
        residual = torch.randn_like(residual)
        residual.view(-1)[3::7] = torch.nan
        residual.view(-1)[5::7] = torch.inf

        def results(args=(src, weights, bias, residual, activation, attributes)):
            result = convolution(*args)
            return result.nan_to_num(), result.isnan(), result.isinf()

        _, is_nan, is_inf = same_on_threads(results)
        expected = ACTIVATIONS[activation](residual.double())
        assert torch.equal(is_nan, expected.isnan())
        assert torch.equal(is_inf, expected.isinf())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=by_dtype)
@pytest.mark.parametrize("activation", list(ACTIVATIONS)[1:])
def test_activation_of_every_size_of_number(activation, dtype):
    """From the smallest to the largest, and infinities, in the kernels that use vectors."""
    exponents = torch.linspace(-45, 38, 7000, dtype=torch.float64)
    values = torch.cat([10**exponents, torch.linspace(1, 120, 12000, dtype=torch.float64)])
    values = torch.cat([values, -values, torch.tensor([0.0, -0.0, torch.inf, -torch.inf])])
    residual = values.to(dtype).reshape(1, 1, 2, -1)
    src, weights = torch.zeros(1, 16, *residual.shape[2:]).to(dtype), torch.zeros(1, 16, 1, 1)
    attributes = {"algorithm": "direct" if dtype == torch.float32 else "auto"}
    src = src if dtype == torch.float32 else src[:, :1]
    weights = weights[:, : src.shape[1]].to(dtype)
    result = convolution(src, weights, None, residual, activation, attributes).double()
    expected = ACTIVATIONS[activation](residual.double())
    error = (result - expected).abs() / expected.abs().clamp(min=1)
    # -inf * 0 in silu and gelu, as in torch.
    same = (result == expected) | (result.isnan() & expected.isnan())
    bar = 3e-7 if dtype == torch.float32 else 1e-15
    assert (same | (error <= bar)).all(), error.nan_to_num().max()


@pytest.mark.parametrize("dtype", FLOATING, ids=by_dtype)
@pytest.mark.parametrize("activation", ["relu", "relu6"])
def test_bounds_of_depthwise_sums(activation, dtype):
    """Channels-last sums are kept within bounds before they are stored; NaN is in none."""
    for channels, stride in itertools.product((16, 19, 72), (1, 2, 3)):
        src = torch.randn(2, channels, 9, 35).mul(4).to(dtype)
        src[0, 3], src[1, 5], src[1, 7] = torch.nan, torch.inf, 0
        src = src.contiguous(memory_format=torch.channels_last)
        weights, bias = torch.randn(channels, 1, 3, 3).to(dtype), torch.randn(channels).to(dtype)
        bias[7] = -0.0
        attributes = {"groups": channels, "strides": stride, "pads_begin": 1, "pads_end": 1}
        sums = convolution(src, weights, bias, None, None, attributes)
        result = convolution(src, weights, bias, None, activation, attributes)
        expected = ACTIVATIONS[activation](sums)
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


def test_residual_of_any_strides():
    for name in ("depthwise", "narrow", "winograd", "direct", "reference"):
        (src, weights, bias, residual), attributes = problem(name, torch.float32)
        expected = convolution(src, weights, bias, residual, "tanh", attributes)
        wide = torch.full([2 * n + 1 for n in residual.shape], torch.nan)
        sliced = wide[tuple(slice(1, None, 2) for _ in residual.shape)].copy_(residual)
        for other in (sliced, residual.mT.contiguous().mT, residual.flip(0).contiguous().flip(0)):
            assert torch.equal(
                convolution(src, weights, bias, other, "tanh", attributes), expected
            ), (name, other.stride())
        row = residual[:1, :1, :1, :1].expand(residual.shape)
        assert torch.equal(
            convolution(src, weights, bias, row, "tanh", attributes),
            convolution(src, weights, bias, row.contiguous(), "tanh", attributes),
        )


def test_relu_at_zero_is_torchs():
    src, weights = torch.zeros(1, 2, 3, 3), torch.ones(2, 2, 1, 1)
    residual = torch.tensor([-1.0, 0.0, 1.0]).expand(1, 2, 3, 3).clone().requires_grad_()
    attributes = {"algorithm": "auto"}
    convolution(src, weights, None, residual, "relu", attributes).sum().backward()
    ours, residual.grad = residual.grad, None
    torch.relu(residual).sum().backward()
    assert torch.equal(ours, residual.grad) and ours.unique().tolist() == [0, 1]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_derivatives(activation):
    """First and second, in both modes, through every combination of differentiable inputs."""
    for shape, groups in (((2, 3, 4, 3), 1), ((1, 2, 5), 2)):
        src = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        weights = torch.randn(4, shape[1] // groups, *([2] * (len(shape) - 2))).double()
        weights.requires_grad_()
        bias = torch.randn(4, dtype=torch.float64, requires_grad=True)
        attributes = {"groups": groups}
        u = convolution(src, weights, bias, None, None, attributes)
        residual = torch.randn_like(u).requires_grad_()

        def call(*tensors, attributes=attributes):
            return convolution(*tensors, activation, attributes)

        inputs = (src, weights, bias, residual)
        assert gradcheck(call, inputs, check_forward_ad=True, check_batched_grad=True)
        assert gradgradcheck(call, inputs, check_fwd_over_rev=True, check_rev_over_rev=True)
        for i in range(4):
            alone = [t.detach().requires_grad_(j == i) for j, t in enumerate(inputs)]
            assert gradcheck(call, alone)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_transforms(activation):
    """torch.func against the composition, to the third derivative."""
    f = ACTIVATIONS[activation]
    (src, weights, bias, residual), attributes = problem("tiny", torch.float64)
    primals = (src, weights, bias, residual)
    tangents = tuple(torch.randn_like(t) for t in primals)

    def ours(*tensors):
        return convolution(*tensors, activation, attributes)

    def composed(*tensors):
        return f(preactivation(*tensors, attributes))

    def cubed(function):
        return lambda *tensors: function(*tensors).pow(3).sum()

    for derivative in (
        lambda g: torch.func.jvp(g, primals, tangents)[1],
        lambda g: torch.func.vjp(g, *primals)[1](g(*primals))[1],
        lambda g: torch.func.hessian(cubed(g))(*primals),
        lambda g: torch.func.jacrev(torch.func.hessian(cubed(g), 2), 2)(*primals),
        lambda g: torch.func.jacfwd(torch.func.grad(cubed(g), 1), 3)(*primals),
    ):
        assert_matches(derivative(ours), derivative(composed), 1e-11)


@pytest.mark.parametrize("activation", ["relu", "gelu", None])
def test_vmap(activation):
    """A batch in any of the tensors, at either end."""
    (src, weights, bias, residual), attributes = problem("tiny", torch.float64)
    tensors = (src, weights, bias, residual)

    def gradient(*args):
        return torch.func.grad(lambda *a: call(*a).square().sum(), argnums=1)(*args)

    def call(*args):
        return convolution(*args, activation, attributes)

    for dims in itertools.product((None, 0, -1), repeat=4):
        if all(dim is None for dim in dims):
            continue
        stacks = [
            t if dim is None else torch.stack([t, t * 0.5, t + 1], dim)
            for t, dim in zip(tensors, dims)
        ]
        for function in (call, gradient):
            batched = torch.func.vmap(function, dims)(*stacks)
            for i in range(3):
                one = [s if dim is None else s.select(dim, i) for s, dim in zip(stacks, dims)]
                assert_matches(batched[i], function(*one), 1e-12)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic):
    @torch.compile(fullgraph=True, backend="aot_eager", dynamic=dynamic)
    def compiled(x, weights, r):
        options = {"data_format": "NCX", "weights_format": "OIX", "pads_begin": 1, "pads_end": 1}
        y = D.convolution(x, weights, activation="silu", residual=r, **options)
        return D.convolution(y, weights, activation="relu", **options)

    inner = compiled._torchdynamo_orig_callable
    for size in (9, 12):
        x, w = torch.randn(2, 6, size, size), torch.randn(6, 6, 3, 3) / 5
        inputs = [t.requires_grad_() for t in (x, w, torch.randn_like(x))]
        expected, result = inner(*inputs), compiled(*inputs)
        assert_matches(result, expected, 1e-6)
        upstream = torch.randn_like(result)
        for a, b in zip(*(torch.autograd.grad(y, inputs, upstream) for y in (result, expected))):
            assert_matches(a, b, 1e-5)


def test_compiled_autograd():
    x, w = torch.randn(2, 6, 9, 9), torch.randn(6, 6, 3, 3)
    for activation in ("relu", "silu"):
        w.requires_grad_().grad = None
        convolution(x, w, None, None, activation, {}).sum().backward()
        expected, w.grad = w.grad, None
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            convolution(x, w, None, None, activation, {}).sum().backward()
        assert torch.equal(w.grad, expected)


def test_export():
    layer = torch_dnnl.nn.Conv(2, 3, 8, 3, auto_pad="same_upper", activation="gelu")
    args = (torch.randn(2, 9, 9, 3), torch.randn(2, 9, 9, 8))
    program = torch.export.export(layer, args)
    assert torch.equal(program.module()(*args), layer(*args))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_opcheck(activation):
    (src, weights, bias, residual), _ = problem("winograd", torch.float32)
    for tensor in (src, weights, bias, residual):
        tensor.requires_grad_()
    torch.library.opcheck(
        torch.ops.torch_dnnl.convolution_fused.default,
        (src, weights, bias, [], [1, 1], [0, 0]),
        {
            "data_format": "NCX",
            "weights_format": "OIX",
            "residual": residual,
            "activation": activation,
        },
    )


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_autocast(activation):
    (src, weights, bias, residual), attributes = problem("direct", torch.float32)
    leaves = [t.requires_grad_() for t in (src, weights, bias, residual)]
    with torch.autocast("cpu", torch.bfloat16):
        result = convolution(*leaves, activation, attributes)
    narrow = [t.detach().bfloat16().requires_grad_() for t in leaves]
    expected = convolution(*narrow, activation, attributes)
    assert result.dtype == torch.bfloat16 and torch.equal(result, expected)
    upstream = torch.randn_like(result)
    grads = torch.autograd.grad(result, leaves, upstream)
    for a, b in zip(grads, torch.autograd.grad(expected, narrow, upstream)):
        assert a.dtype == torch.float32 and torch.equal(a, b.float())


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_bad_calls(device):
    src, weights = torch.randn(2, 5, 5, 3, device=device), torch.randn(3, 3, 3, 4, device=device)
    good = torch.randn(2, 3, 3, 4, device=device)
    for residual, error, text in [
        (good[..., :1], ValueError, r"to have the sizes of the output, \[2, 3, 3, 4\], .* 3, 1\]"),
        (good[0], ValueError, r"to have the sizes of the output, \[2, 3, 3, 4\], .* got \[3, 3, 4"),
        (good.double(), TypeError, r"to have the type of src \(Float\), got Double"),
        (good.to_sparse() if device == "cpu" else 3, TypeError, "to be a"),
        ("r", TypeError, "to be a Tensor or None, got 'r'"),
    ]:
        with pytest.raises(error, match=f"^convolution: expected residual {text}"):
            D.convolution(src, weights, residual=residual)
    with pytest.raises(ValueError, match=r"^convolution: expected activation .* got .swish"):
        D.convolution(src, weights, activation="swish")
    with pytest.raises(TypeError, match=r"^convolution: expected activation to be a str or None"):
        D.convolution(src, weights, activation=3)
    result = D.convolution(src, weights, activation="relu", residual=good)
    assert result.shape == (2, 3, 3, 4) and result.device.type == device


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("has_residual", [False, True])
def test_saves_no_more_than_it_needs(activation, has_residual):
    """src, weights, and one tensor of the result's size if there is an activation."""
    (src, weights, bias, residual), attributes = problem("direct", torch.float32)
    leaves = [t.requires_grad_() for t in (src, weights, bias, residual)]
    saved = {}

    def pack(tensor):
        saved[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        args = (*leaves[:3], residual if has_residual else None)
        result = convolution(*args, activation, attributes)
    expected = src.nbytes + weights.nbytes + (0 if activation is None else result.nbytes)
    assert sum(saved.values()) == expected and src.data_ptr() in saved
    assert (result.data_ptr() in saved) == (activation in OF_RESULT)


class Names(TorchDispatchMode):
    """The names of the operators that run."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.name())
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_one_operator_in_each_direction(activation):
    """And nothing beside it; but without an activation, the gradient is not changed by anything."""
    tensors, attributes = problem("direct", torch.float32)
    leaves = [t.requires_grad_() for t in tensors]
    with Names() as forward:
        result = convolution(*leaves, activation, attributes)
    assert [n for n in forward.names if "detach" not in n] == ["torch_dnnl::convolution_fused"]
    upstream = torch.randn_like(result)
    with Names() as backward:
        torch.autograd.grad(result, leaves, upstream)
    names = [n for n in backward.names if "detach" not in n]
    apart = [
        "aten::sum.dim_IntList",
        "torch_dnnl::convolution_backward_data",
        "torch_dnnl::convolution_backward_weights",
    ]
    together = ["torch_dnnl::convolution_fused_backward"]
    assert sorted(names) == (apart if activation is None else together)
