"""What follows the sums: activations with parameters, residuals that are broadcast."""

import random

import pytest
import torch
import torch.nn.functional as F
from op_db import FLOATING
from test_conv_epilogue import BARS, PROBLEMS, assert_close, by_dtype, preactivation, problem
from torch.autograd import gradcheck, gradgradcheck

import torch_dnnl
import torch_dnnl.functional as D

OIX = {"data_format": "NCX", "weights_format": "OIX"}
# Name, arguments, definition.
PARAMETERS = [
    ("leaky_relu", {"alpha": 0.3}, lambda u: F.leaky_relu(u, 0.3)),
    ("leaky_relu", {"alpha": -2}, lambda u: F.leaky_relu(u, -2)),
    ("elu", {"alpha": 0.7}, lambda u: F.elu(u, 0.7)),
    ("elu", {"alpha": -1.2}, lambda u: F.elu(u, -1.2)),
    ("clamp", {}, lambda u: u),
    ("clamp", {"alpha": -0.2}, lambda u: u.clamp(min=-0.2)),
    ("clamp", {"beta": 0.4}, lambda u: u.clamp(max=0.4)),
    ("clamp", {"alpha": -0.5, "beta": 0.4}, lambda u: u.clamp(-0.5, 0.4)),
    ("clamp", {"alpha": 0.5, "beta": 0.25}, lambda u: u.clamp(0.5, 0.25)),
]
# Those without parameters.
PLAIN = [
    ("relu", {}, F.relu),
    ("silu", {}, F.silu),
    ("gelu", {}, F.gelu),
    ("hardswish", {}, F.hardswish),
]


def formats(tensors, i):
    """The image, the weights, a function that brings images to NCX, and the formats."""
    src, weights, rank = *tensors[:2], tensors[0].dim() - 2
    last = [0, *range(2, rank + 2), 1]
    first = [0, rank + 1, *range(1, rank + 1)]
    if i % 2:
        return src, weights, lambda x: x, OIX
    options = {"data_format": "NXC", "weights_format": "OIX"}
    return src.permute(last), weights, lambda x: x.permute(first), options


@pytest.mark.parametrize("dtype", FLOATING, ids=by_dtype)
@pytest.mark.parametrize("name", PROBLEMS)
def test_parameters(name, dtype):
    of_values, _ = BARS[dtype]
    for i, (activation, parameters, f) in enumerate(PARAMETERS):
        tensors, attributes = problem(name, dtype)
        x, w, to_ncx, options = formats(tensors, i)
        result = D.convolution(
            *(x, w, tensors[2]), **attributes, **options, activation=activation, **parameters
        )
        u = preactivation(*(t.double() for t in tensors[:3]), None, attributes)
        assert_close(to_ncx(result), f(u), of_values, activation, parameters, norm=u.norm())


@pytest.mark.parametrize("dtype", FLOATING, ids=by_dtype)
@pytest.mark.parametrize("name", PROBLEMS)
def test_prelu(name, dtype):
    """In the kernel without gradients, and behind it with gradients."""
    of_values, of_gradients = BARS[dtype]
    for i in range(4):
        tensors, attributes = problem(name, dtype)
        slopes = torch.randn(1 if i < 2 else len(tensors[1])).to(dtype)
        residual = None if i == 2 else tensors[3]
        x, w, to_ncx, options = formats(tensors, i)
        leaves = [t.detach().requires_grad_() for t in (x, w, slopes)]

        def call(x, w, slopes, residual=residual, attributes=attributes, options=options):
            if residual is not None and options["data_format"] == "NXC":
                residual = residual.movedim(1, -1)
            options = attributes | options | {"residual": residual}
            return D.convolution(x, w, tensors[2], activation="prelu", alpha=slopes, **options)  # noqa: B023

        exact = [t.detach().double().requires_grad_() for t in (tensors[0], tensors[1], slopes)]
        more = None if residual is None else residual.double()
        u = preactivation(*exact[:2], tensors[2].double(), more, attributes)
        expected = F.prelu(u, exact[2])
        with torch.no_grad():
            fused = to_ncx(call(*leaves))
        assert_close(fused, expected, of_values, "fused", norm=u.norm())
        result = to_ncx(call(*leaves))
        assert_close(result, expected, 2 * of_values, "in steps", norm=u.norm())
        upstream = torch.randn_like(u)
        upstream[u.abs() < 1e-2 * u.abs().max()] = 0  # roundings change the sign
        gradients = torch.autograd.grad(result, leaves, upstream.to(dtype))
        wanted = torch.autograd.grad(expected, exact, upstream.to(dtype).double())
        wanted = [formats(wanted, i)[0], *wanted[1:]]
        norms = [of.norm() for of in wanted[:2]] + [(upstream * u.clamp(max=0)).norm()]
        for actual, of, norm in zip(gradients, wanted, norms, strict=True):
            assert_close(actual, of, 2 * of_gradients, "gradient", norm=norm)


@pytest.mark.parametrize("dtype", FLOATING, ids=by_dtype)
@pytest.mark.parametrize("name", PROBLEMS)
def test_broadcast_residual(name, dtype):
    """Over the batch and over each set of spatial dimensions."""
    of_values, of_gradients = BARS[dtype]
    for i in range(4):
        tensors, attributes = problem(name, dtype)
        residual = tensors[3]
        for d in (0, *range(2, residual.dim())):
            if (i >> (d > 0) & 1) == 0:
                residual = residual.narrow(d, 0, 1)
        x, w, to_ncx, options = formats(tensors, i)
        leaf = residual.detach().requires_grad_()
        added = leaf if options["data_format"] == "NCX" else leaf.movedim(1, -1)
        result = D.convolution(
            *(x, w, tensors[2]), **attributes, **options, residual=added, activation="silu"
        )
        exact = residual.detach().double().requires_grad_()
        double = [t.double() for t in tensors[:3]]
        expected = F.silu(preactivation(*double, exact, attributes))
        assert_close(to_ncx(result), expected, of_values, i)
        upstream = torch.randn(expected.shape).to(dtype)
        (actual,) = torch.autograd.grad(to_ncx(result), leaf, upstream)
        (wanted,) = torch.autograd.grad(expected, exact, upstream.double())
        assert_close(actual, wanted, of_gradients, i)


@pytest.mark.parametrize("activation", ["leaky_relu", "elu", "clamp", "prelu"])
def test_derivatives(activation):
    """Of every order, in both modes; and vmap over every set of tensors."""
    x, w = torch.randn(2, 5, 4, 3), torch.randn(2, 2, 3, 4)
    residual, slopes = torch.randn(2, 1, 3, 4), torch.rand(4)
    parameters = {"leaky_relu": {"alpha": 0.2}, "elu": {"alpha": 1.7}}
    parameters["clamp"] = {"alpha": -1.5, "beta": 1.25}

    def call(x, w, residual, slopes):
        given = parameters.get(activation, {"alpha": slopes})
        return D.convolution(x, w, residual=residual, activation=activation, **given)

    leaves = [t.double().requires_grad_() for t in (x, w, residual, slopes)]
    gradcheck(call, leaves, check_forward_ad=True, check_batched_grad=True)
    gradgradcheck(call, leaves)
    tensors = [torch.stack([t, -2 * t]).double() for t in (x, w, residual, slopes)]
    for mask in range(1, 16):
        dims = [0 if mask >> i & 1 else None for i in range(4)]
        args = [t if dim == 0 else t[0] for t, dim in zip(tensors, dims, strict=True)]
        each = [
            call(*(t if dim is None else t[i] for t, dim in zip(args, dims, strict=True)))
            for i in range(2)
        ]
        torch.testing.assert_close(torch.vmap(call, tuple(dims))(*args), torch.stack(each))


@pytest.mark.parametrize("dtype", FLOATING, ids=by_dtype)
def test_transposed(dtype):
    x, w, slopes = torch.randn(2, 6, 5, 4), torch.randn(6, 3, 3, 3), torch.randn(6)
    residual, of_values = torch.randn(1, 6, 1, 1), BARS[dtype][0]
    for activation, parameters, f in [*PARAMETERS, ("prelu", {"alpha": slopes}, None)]:
        args = [t.to(dtype) for t in (x, w, residual, slopes)]
        given = {"alpha": args[3]} if activation == "prelu" else parameters
        result = D.convolution_transpose(
            args[0], args[1], strides=2, groups=2, data_format="NCX", weights_format="IOX",
            residual=args[2], activation=activation, **given,
        )  # fmt: skip
        exact = [t.double() for t in args]
        u = F.conv_transpose2d(*exact[:2], stride=2, groups=2) + exact[2]
        expected = F.prelu(u, exact[3]) if activation == "prelu" else f(u)
        assert_close(result, expected, of_values, activation, norm=u.norm())


def random_epilogue(choose, dtype):
    """Groups of few channels, which kernels complete in registers and in blocks of a row."""
    rank, groups = choose.choice([1, 2, 2, 2, 3]), choose.choice([1, 3, 8, 16, 17, 32, 48])
    inputs, outputs = choose.choice([1, 1, 1, 3]), choose.choice([1, 1, 1, 2])
    kernel = [choose.choice([1, 2, 3, 3, 5, 7]) for _ in range(rank)]
    strides = [choose.choice([1, 1, 2, 3]) for _ in range(rank)]
    pads = [choose.randrange(k) for k in kernel]
    sizes = [choose.choice([1, 1, 5, 14, 19, 33]) // (rank - 1 or 1) for _ in kernel]
    sizes = [max(size, 1, k - 2 * pad) for size, k, pad in zip(sizes, kernel, pads)]
    is_transposed = choose.random() < 0.4
    pads = [0 if is_transposed else pad for pad in pads]
    x = torch.randn(choose.choice([1, 1, 2, 5]), groups * inputs, *sizes)
    w = torch.randn(
        *((groups * inputs, outputs) if is_transposed else (groups * outputs, inputs)), *kernel
    )
    bias = torch.randn(groups * outputs)
    name = f"conv_transpose{rank}d" if is_transposed else f"conv{rank}d"
    x, w, bias = (t.to(dtype) for t in (x, w, bias))
    options = {"stride": strides, "padding": pads, "groups": groups}
    with torch.backends.mkldnn.flags(enabled=False):
        u = getattr(F, name)(*(t.double() for t in (x, w, bias)), **options)
    activation, parameters, f = choose.choice(PARAMETERS + PLAIN)
    residual = torch.randn_like(u).to(dtype)
    u = u + residual.double()
    if rank > 1 and choose.random() < 0.6:
        memory_format = torch.channels_last if rank == 2 else torch.channels_last_3d
        x, residual = (t.contiguous(memory_format=memory_format) for t in (x, residual))
    function = D.convolution_transpose if is_transposed else D.convolution
    formats = {"data_format": "NCX", "weights_format": "IOX" if is_transposed else "OIX"}
    result = function(
        x, w, bias, strides=strides, pads_begin=pads, pads_end=pads, groups=groups, **formats,
        residual=residual, activation=activation, **parameters,
    )  # fmt: skip
    norm = max(u.norm(), f(u).norm())
    assert_close(result, f(u), BARS[dtype][0], x.shape, w.shape, options, activation, norm=norm)


@pytest.mark.parametrize("dtype", FLOATING, ids=by_dtype)
def test_random_epilogues(dtype):
    torch.manual_seed(0)
    choose = random.Random(0)
    for _ in range(150):
        random_epilogue(choose, dtype)


def test_one_pixel():
    """A row of one pixel has no stride."""
    x, w = torch.randn(1, 64, 1), torch.randn(256, 1, 7)
    result = D.convolution(
        x, w, strides=3, pads_begin=4, pads_end=4, groups=64, activation="tanh", **OIX
    )
    expected = F.conv1d(x.double(), w.double(), stride=3, padding=4, groups=64).tanh()
    assert_close(result, expected, BARS[torch.float32][0])


def test_quantized():
    """The bits of float32 steps; elu within one unit of the result."""
    x = torch.randint(256, (2, 9, 8, 16), dtype=torch.uint8)
    w = torch.randint(-128, 128, (3, 3, 16, 20), dtype=torch.int8)
    slopes, residual = torch.rand(20) - 0.5, torch.randint(-99, 99, (1, 1, 1, 20)).to(torch.int8)
    options = {"src_scale": 0.01, "src_zero_point": 99, "weights_scale": 0.005}
    options |= {"residual": residual, "residual_scale": 0.3}
    u = D.quantized_convolution(x, w, dtype=torch.float32, **options)
    cases = [*PARAMETERS, ("prelu", {"alpha": slopes}, lambda u: torch.where(u > 0, u, slopes * u))]
    for activation, parameters, f in cases:
        given = options | parameters | {"activation": activation}
        for algorithm in ("auto", "reference"):
            floats = D.quantized_convolution(
                x, w, dtype=torch.float32, algorithm=algorithm, **given
            )
            if activation == "elu":
                torch.testing.assert_close(floats, f(u.double()).float(), rtol=2e-7, atol=1e-7)
            else:
                assert torch.equal(floats, f(u)), activation
            dst = D.quantized_convolution(x, w, dst_scale=0.2, algorithm=algorithm, **given)
            rounded = torch.round(floats / torch.tensor(0.2)).clamp(-128, 127).to(torch.int8)
            assert torch.equal(dst, rounded), activation


def test_layer():
    """A parameter for alpha is trained, a tensor is a buffer."""
    options = {"auto_pad": "same_upper", "activation": "prelu"}
    layer = torch_dnnl.nn.Conv(
        2, 3, 8, 3, alpha=torch.nn.Parameter(torch.full((8,), 0.25)), **options
    )
    assert set(layer.state_dict()) == {"weight", "bias", "alpha"}
    assert len(list(layer.parameters())) == 3
    x = torch.randn(1, 5, 5, 3)
    layer(x).sum().backward()
    assert layer.alpha.grad.abs().min() > 0
    fixed = torch_dnnl.nn.Conv(2, 3, 8, 3, alpha=torch.full((8,), 0.25), **options)
    fixed.load_state_dict(layer.state_dict())
    assert len(list(fixed.parameters())) == 2
    assert torch.equal(fixed(x), layer(x))
    assert "activation='prelu', alpha=Parameter[8]" in repr(layer)
    bounded = torch_dnnl.nn.Conv(2, 3, 8, 3, activation="clamp", alpha=-1, beta=0.5)
    assert bounded(x).max() <= 0.5 and "alpha=-1, beta=0.5" in repr(bounded)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"activation": "relu", "alpha": 0.1}, ValueError, "alpha to be None with this activation"),
        ({"alpha": 0.1}, ValueError, "alpha to be None with this activation"),
        ({"activation": "elu", "beta": 1}, ValueError, "beta to be None with this activation"),
        ({"activation": "elu", "alpha": float("inf")}, ValueError, "alpha to be finite, got inf"),
        ({"activation": "clamp", "beta": float("nan")}, ValueError, "beta to be a number, got nan"),
        ({"activation": "clamp", "alpha": True}, TypeError, "alpha to be a number or a Tensor"),
        ({"activation": "clamp", "beta": "1"}, TypeError, "beta to be a number or None"),
        ({"activation": "prelu"}, ValueError, "alpha to be a tensor with activation"),
        (
            {"activation": "prelu", "alpha": 0.1},
            ValueError,
            "alpha to be None with this activation",
        ),
        ({"activation": "prelu", "alpha": torch.ones(3)}, ValueError, r"sizes \[4\], got \[3\]"),
        ({"activation": "prelu", "alpha": torch.ones(1, 4)}, ValueError, r"got \[1, 4\]"),
        ({"activation": "prelu", "alpha": torch.ones(4).double()}, TypeError, "alpha to be Float"),
        ({"activation": "silu", "alpha": torch.ones(4)}, ValueError, "alpha to be no tensor"),
        ({"residual": torch.ones(1, 1, 1, 1)}, ValueError, "residual to have the sizes"),
        ({"residual": torch.ones(4)}, ValueError, "residual to have the sizes"),
    ],
)
@pytest.mark.parametrize("needs_grad", [False, True])
def test_bad_calls(options, error, message, needs_grad):
    for device in ("cpu", "meta"):
        x, w = torch.ones(2, 5, 5, 3, device=device), torch.ones(2, 2, 3, 4, device=device)
        given = {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
        with pytest.raises(
            error, match=f"^convolution: expected {message}|^convolution.*{message}"
        ):
            D.convolution(x, w.requires_grad_(needs_grad), **given)
