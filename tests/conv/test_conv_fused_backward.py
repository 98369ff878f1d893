"""The gradients of a convolution that ends in an activation, in one operator: in parts, from
gradients of any strides, in any combination, and the memory that they take."""

import functools
import itertools

import pytest
import torch
from op_db import assert_matches
from oracles.conv import ACTIVATIONS
from test_conv_epilogue import OF_RESULT, by_dtype
from test_conv_memory import peak_of
from threads import same_on_threads

OPS = torch.ops.torch_dnnl
FUNCTIONS = {name: f for name, f in ACTIVATIONS.items() if name is not None}
# What of src, weights, bias and residual has a gradient.
ALL = (True, True, True, True)


def gradients(grad, value, activation, src, weights, attributes, wanted=ALL):
    of_src, of_weights, of_bias, of_residual = wanted
    rank = src.dim() - 2
    nxc, xio = attributes["data_format"] == "NXC", attributes["weights_format"] == "XIO"
    return OPS.convolution_fused_backward(
        *(grad, value, activation),
        src if of_weights else None,
        weights if of_src else None,
        src.shape[1:-1] if nxc else src.shape[2:],
        weights.shape[:rank] if xio else weights.shape[2:],
        **attributes,
        bias=of_bias,
        residual=of_residual,
    )


def in_steps(grad, value, activation, src, weights, attributes):
    """The same in float64: by torch's derivative, and the definition of convolution."""
    grad, value, src, weights = (t.double() for t in (grad, value, src, weights))
    if activation in OF_RESULT:
        h = OF_RESULT[activation](value) * grad
    else:
        u = value.requires_grad_()
        (h,) = torch.autograd.grad(FUNCTIONS[activation](u), u, grad)
    nxc, xio = attributes["data_format"] == "NXC", attributes["weights_format"] == "XIO"
    rank = src.dim() - 2
    attributes = {**attributes, "algorithm": "direct"}
    return (
        OPS.convolution_backward_data(
            h, weights, src.shape[1:-1] if nxc else src.shape[2:], **attributes
        ),
        OPS.convolution_backward_weights(
            h, src, weights.shape[:rank] if xio else weights.shape[2:], **attributes
        ),
        h.sum([d for d in range(rank + 2) if d != (rank + 1 if nxc else 1)]),
        h,
    )


def problem(n, ic, oc, groups, size, kernel, layout="NCX", dtype=torch.float32, **attributes):
    """src, weights, attributes, and something of the sizes of the result."""
    src = torch.randn(n, ic, *size).to(dtype)
    scale = (ic // groups * torch.Size(kernel).numel()) ** -0.5
    weights = (torch.randn(oc, ic // groups, *kernel) * scale).to(dtype)
    attributes |= {"groups": groups, "weights_format": "OIX"}
    attributes["data_format"] = "NXC" if layout == "NXC" else "NCX"
    if layout != "NCX":
        src = src.movedim(1, -1).contiguous()
    if layout == "channels_last":
        src = src.movedim(-1, 1)
    result = OPS.convolution(src, weights, **attributes)
    return src, weights, attributes, torch.randn_like(result)


# More than a part each: images, groups of them, rows of one, of each kernel and rank.
LARGE = {
    "images": (7, 20, 24, 1, (130, 100), (3, 3), {"pads_begin": [1, 1]}),
    "image-by-image": (2, 24, 80, 1, (126, 130), (3, 3), {"strides": [1, 1]}),
    "rows": (1, 20, 72, 1, (251, 197), (3, 3), {"pads_begin": [1, 1]}),
    "rows-direct": (1, 20, 72, 1, (251, 197), (3, 3), {"algorithm": "direct"}),
    "rows-strided": (1, 19, 40, 1, (599, 301), (5, 3), {"strides": [2, 1], "dilations": [3, 2]}),
    "rows-padded": (1, 18, 17, 1, (300, 257), (1, 3), {"pads_begin": [9, 1], "pads_end": [70, 2]}),
    "rows-pointwise": (2, 12, 40, 1, (199, 251), (1, 1), {}),
    "rows-same": (1, 17, 16, 1, (401, 399), (4, 4), {"auto_pad": "same_lower"}),
    "rows-depthwise": (1, 36, 36, 36, (251, 217), (3, 3), {"pads_end": [2, 2]}),
    "rows-grouped": (1, 36, 36, 9, (251, 217), (3, 3), {}),
    "rows-reference": (1, 3, 5, 1, (601, 503), (2, 2), {"algorithm": "reference"}),
    "signal": (1, 8, 17, 1, (140_003,), (9,), {"dilations": [2], "strides": [1]}),
    "planes": (1, 18, 40, 1, (11, 81, 79), (2, 3, 1), {"pads_begin": [1, 0, 0]}),
    "first-axis-of-one": (1, 18, 40, 1, (1, 271, 279), (1, 3, 3), {}),
}


@pytest.mark.parametrize("layout", ["NCX", "NXC", "channels_last"])
@pytest.mark.parametrize("name", LARGE)
def test_parts(name, layout):
    *sizes, attributes = LARGE[name]
    src, weights, attributes, value = problem(*sizes, layout, **attributes)
    assert value.nbytes > (8 if weights[0].numel() >= 64 else 4) << 20
    grad = torch.randn_like(value)
    expected = in_steps(grad, value, "silu", src, weights, attributes)
    for wanted in (ALL, (True, True, True, False), (True, False, False, False)):
        actual = gradients(grad, value, "silu", src, weights, attributes, wanted)
        for is_wanted, a, b in zip(wanted, actual, expected):
            if is_wanted:
                assert (a - b).norm() <= 5e-6 * b.norm()
                if a.dim() == 4 and a.shape != weights.shape:
                    assert a.is_contiguous(
                        memory_format=torch.channels_last
                        if layout == "channels_last"
                        else torch.contiguous_format
                    )
            else:
                assert a.numel() == 0


# The gradients of weights take more than 4 MB, so that a part of h is as large as they are; or a
# part is a whole image, since the kernel reaches over more rows than a part has.
BY_CHANNELS = {
    "dense": (3, 500, 597, 1, (34, 35), (3, 3), {}),
    "groups": (2, 1088, 2176, 17, (21, 22), (3, 3), {"pads_begin": [1, 0]}),
    "parts-of-groups": (2, 1000, 1200, 2, (38, 40), (1, 3), {"strides": [1, 1]}),
    "far": (1, 160, 160, 160, (40_011,), (3,), {"dilations": [12_000]}),
}


@pytest.mark.parametrize("weights_format", ["OIX", "XIO"])
@pytest.mark.parametrize("layout", ["NCX", "NXC", "channels_last"])
@pytest.mark.parametrize("name", BY_CHANNELS)
def test_parts_of_channels(name, layout, weights_format):
    *sizes, attributes = BY_CHANNELS[name]
    src, weights, attributes, value = problem(*sizes, layout, **attributes)
    assert value.nbytes > 6 << 20 and (weights.nbytes > 4 << 20 or name == "far")
    if weights_format == "XIO":
        weights = weights.movedim((0, 1), (-1, -2)).contiguous()
        attributes["weights_format"] = "XIO"
    grad = torch.randn_like(value)
    expected = in_steps(grad, value, "relu", src, weights, attributes)
    for wanted in (
        (True, True, True, False),
        (False, True, True, False),
        (True, False, True, False),
        (False, True, False, False),
        ALL,
    ):
        actual = gradients(grad, value, "relu", src, weights, attributes, wanted)
        for is_wanted, a, b in zip(wanted, actual, expected):
            if is_wanted:
                assert a.is_contiguous() or layout == "channels_last"
                assert (a - b).norm() <= 5e-6 * b.norm()
            else:
                assert a.numel() == 0


@pytest.mark.parametrize("layout", ["NCX", "NXC", "channels_last"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=by_dtype)
@pytest.mark.parametrize(
    "sizes",
    [
        (5, 9, 130, 1, (117, 115), (3, 3)),
        (1, 8, 40, 1, (461, 463), (3, 3)),
        (1, 72, 72, 72, (251, 241), (3, 3)),
        (5, 300, 1031, 1, (44, 40), (2, 2)),
    ],
    ids=["images", "rows", "depthwise", "channels"],
)
def test_parts_of_16_bits(sizes, layout, dtype):
    """What their sum rounds is the sum, not they: the gradient of weights is rounded once."""
    src, weights, attributes, value = problem(*sizes, layout, dtype)
    assert value.nbytes > (16 if weights[0].numel() >= 64 else 8) << 20
    grad = torch.randn_like(value)
    expected = in_steps(grad, value, "relu", src, weights, attributes)  # h is not rounded
    for wanted in (ALL, (False, True, False, False)):
        actual = gradients(grad, value, "relu", src, weights, attributes, wanted)
        for is_wanted, a, b in zip(wanted, actual, expected):
            if is_wanted:
                assert a.dtype == dtype
                rounding = torch.finfo(dtype).eps / 2 * b.abs()
                assert ((a - b).abs() <= 1.01 * rounding + 1e-5 * b.abs().max()).all()


@pytest.mark.parametrize("wanted", list(itertools.product((True, False), repeat=4)))
def test_every_combination(wanted):
    src, weights, attributes, value = problem(2, 5, 7, 1, (9, 8), (3, 2))
    grad = torch.randn_like(value)
    actual = gradients(grad, value, "gelu", src, weights, attributes, wanted)
    expected = in_steps(grad, value, "gelu", src, weights, attributes)
    for is_wanted, a, b in zip(wanted, actual, expected):
        if is_wanted:
            assert_matches(a, b, 1e-5)
        else:
            assert a.shape == (0,)


@pytest.mark.parametrize("activation", FUNCTIONS)
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=by_dtype
)
def test_strides(dtype, activation):
    """Gradients and values of any strides: sliced, expanded, of the other format."""
    bars = {torch.float64: 1e-13, torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float16: 2**-10}
    for layout in ("NCX", "channels_last"):
        src, weights, attributes, value = problem(3, 4, 21, 1, (9, 37), (2, 2), layout, dtype)
        if activation in OF_RESULT:
            value = FUNCTIONS[activation](value)
        wide = torch.randn([2 * n + 1 for n in value.shape]).to(dtype)
        sliced = wide[tuple(slice(1, None, 2) for _ in value.shape)]
        for grad in (
            sliced,
            sliced.contiguous(),
            sliced.contiguous(memory_format=torch.channels_last),
            sliced.mT.contiguous().mT,
            sliced[:, :1].expand_as(value),
            torch.full((), 3.0, dtype=dtype).expand_as(value),
        ):
            for of in (value, value.mT.contiguous().mT):
                actual = gradients(grad, of, activation, src, weights, attributes)
                expected = in_steps(grad, value, activation, src, weights, attributes)
                for i, (a, b) in enumerate(zip(actual, expected)):
                    # Sums of the bias may cancel: against what is summed, too.
                    norm = max(b.norm(), expected[3].norm() if i == 2 else 0)
                    assert (a.double() - b).norm() <= bars[dtype] * norm, (i, grad.stride())


@pytest.mark.parametrize("activation", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=by_dtype)
def test_derivative_of_every_size_of_number(activation, dtype):
    exponents = torch.linspace(-45, 38, 7000, dtype=torch.float64)
    values = torch.cat([10**exponents, torch.linspace(1, 120, 12000, dtype=torch.float64)])
    values = torch.cat([values, -values, torch.tensor([0.0, -0.0, 3, -3, torch.inf, -torch.inf])])
    values = values.to(dtype).double()
    u = values.clone().requires_grad_()
    f = FUNCTIONS[activation]
    result = f(u)
    (expected,) = torch.autograd.grad(result.sum(), u)
    value = (result.detach() if activation in OF_RESULT else values).to(dtype).view(1, 1, 1, -1)
    if activation in OF_RESULT:  # of the rounded result
        expected = OF_RESULT[activation](value.double()).double().view(-1)
    src, weights = torch.zeros(1, 1, 1, value.numel(), dtype=dtype), torch.zeros(1, 1, 1, 1)
    attributes = {"data_format": "NCX", "weights_format": "OIX"}
    h = gradients(
        torch.ones_like(value), value, activation, src, weights, attributes, (False,) * 3 + (True,)
    )[3]
    error = (h.double().view(-1) - expected).abs()
    # -inf * 0 in silu and gelu, as in torch. Others may have the limit where torch has NaN.
    same = expected.isnan() & (values.isinf() | h.isnan().view(-1))
    # 1 + u (1 - s) of silu at 16: an error of s counts as often. It is torch's formula.
    # Torch's derivatives of gelu_tanh and mish in float64 cancel where these are nearly 0 or 1.
    units = 60 if activation in ("gelu_tanh", "mish") else 20
    bar = {torch.float32: 2**-24, torch.float64: 2**-53}[dtype] * units
    assert (same | (error <= bar)).all(), error.nan_to_num().max()


def test_nan():
    """It stays where the derivative is a formula of both sides; else the derivative is a number, as
    torch's are for most of these."""
    value = torch.full((1, 3, 4, 5), torch.nan)
    src, weights, attributes, _ = problem(1, 3, 3, 1, (4, 5), (1, 1))
    grad = torch.randn_like(value)
    for activation in FUNCTIONS:
        h = gradients(grad, value, activation, src, weights, attributes)[3]
        factor = {"relu": 1, "relu6": 1, "leaky_relu": 1, "elu": 1, "hardsigmoid": 6}
        expected = grad / factor.get(activation, torch.nan)
        torch.testing.assert_close(h, expected, rtol=0, atol=0, equal_nan=True, msg=activation)


@pytest.mark.parametrize("layout", ["NCX", "channels_last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=by_dtype)
def test_threads_change_no_bit(dtype, layout):
    """Sums of the bias and of parts included."""
    for sizes in ((3, 9, 21, 1, (61, 67), (3, 3)), (1, 33, 33, 33, (231, 217), (3, 3))):
        src, weights, attributes, value = problem(*sizes, layout, dtype)
        arguments = (torch.randn_like(value), value, "gelu", src, weights, attributes)
        same_on_threads(functools.partial(gradients, *arguments), counts=(1, 2, 3, 7))


def test_no_images():
    src, weights, attributes, value = problem(0, 3, 5, 1, (6, 7), (3, 3))
    data, of_weights, bias, residual = gradients(value, value, "relu", src, weights, attributes)
    assert data.shape == src.shape and residual.shape == value.shape
    assert torch.equal(of_weights, torch.zeros_like(weights))
    assert torch.equal(bias, torch.zeros(5))


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize(
    ("n", "groups", "size", "scratch", "dtype"),
    # Tiles of Winograd's algorithm take some MB as well, and what is widened.
    [
        (8, 1, 96, 16, torch.float32),
        (8, 64, 96, 6, torch.float32),
        (1, 1, 272, 16, torch.float32),
        (1, 64, 272, 6, torch.float32),
        (24, 1, 112, 20, torch.bfloat16),
        (24, 64, 112, 8, torch.bfloat16),
        (1, 1, 544, 20, torch.bfloat16),
        (1, 64, 544, 8, torch.bfloat16),
    ],
    ids=str,
)
def test_memory(layout, n, groups, size, scratch, dtype):
    """Nothing of the size of the result is between gradients: it would take 19 or 37 MB."""
    src, weights, attributes, value = problem(
        n, 64, 64, groups, (size, size), (3, 3), layout, dtype, pads_begin=[1, 1], pads_end=[1, 1]
    )
    grad = torch.randn_like(value)

    def call():
        return gradients(grad, value, "silu", src, weights, attributes, (True, True, True, False))

    _, peak = peak_of(call)
    outputs = src.nbytes + weights.nbytes
    assert value.nbytes > 18e6 and peak <= outputs + (scratch << 20)


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
def test_memory_of_many_weights(layout):
    """h as a whole would take 39 MB more. Of h, a summand and a kernel's sums there are up to 6 MB
    each; 12 MB more are for small pieces, which lie between what other tests left: between 2 and 8
    MB of them were seen."""
    src, weights, attributes, value = problem(12, 1536, 1024, 1, (28, 28), (1, 1), layout)
    grad = torch.randn_like(value)

    def call():
        return gradients(grad, value, "silu", src, weights, attributes, (True, True, True, False))

    _, peak = peak_of(call)
    outputs = src.nbytes + weights.nbytes
    assert value.nbytes > 32e6 and peak <= outputs + (30 << 20)


def test_no_output_channels():
    """As convolution_backward_weights has it."""
    grad, attributes = torch.zeros(1, 0, 4, 4), {"data_format": "NCX", "weights_format": "OIX"}
    src = torch.randn(1, 3, 4, 4)
    _, of_weights, bias, residual = OPS.convolution_fused_backward(
        *(grad, grad, "relu", src, None, [4, 4], [1, 1]), **attributes, bias=True, residual=True
    )
    assert of_weights.shape == (0, 3, 1, 1) and bias.shape == (0,) and residual.shape == grad.shape


def test_opcheck():
    src, weights, attributes, value = problem(2, 5, 7, 1, (9, 8), (3, 2))
    tensors = [torch.randn_like(value), value, src, weights]
    grad, value, src, weights = (t.requires_grad_() for t in tensors)
    for partners in ((src, weights), (None, weights), (src, None)):
        torch.library.opcheck(
            OPS.convolution_fused_backward.default,
            (grad, value, "silu", *partners, [9, 8], [3, 2]),
            {**attributes, "bias": True, "residual": True},
        )


@pytest.mark.parametrize("differentiated", [False, True])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_bad_calls(device, differentiated):
    """Where a gradient is differentiated, the steps check src and weights."""
    src, weights, attributes, value = problem(2, 4, 6, 2, (9, 8), (3, 2))
    grad, value, src, weights = (
        t.to(device) for t in (torch.ones_like(value), value, src, weights)
    )
    good = {"src": src, "weights": weights, "src_size": [9, 8], "kernel_size": [3, 2]}
    grad.requires_grad_(differentiated)
    operator = "convolution_fused_backward"
    for changes, error, text in [
        ({"grad": grad[0, 0]}, ValueError, "expected grad to be 3-D to 5-D"),
        ({"value": value[:, :1]}, ValueError, r"expected value to have the sizes of the output"),
        ({"value": value[:1]}, ValueError, r"expected value to have the sizes of the output"),
        ({"value": value.double()}, TypeError, r"expected value to have the type of grad"),
        ({"activation": "swish"}, ValueError, "expected activation to be None"),
        ({"src_size": [9]}, ValueError, "src_size"),
        ({"src_size": [2**62, 8]}, ValueError, "expected every entry of src_size"),
        ({"src_size": [9, 9]}, ValueError, "expected grad to have spatial sizes"),
        ({"src": src[..., :7]}, ValueError, "expected grad to have spatial sizes"),
        ({"src": src[:1]}, ValueError, "expected src to have the batch size of grad"),
        ({"kernel_size": [3, 3]}, ValueError, "expected grad to have spatial sizes"),
        ({"kernel_size": [0, 2]}, ValueError, "expected every entry of kernel_size"),
        ({"weights": weights[:4]}, ValueError, "weights"),
        ({"weights": weights.double()}, TypeError, "weights"),
        ({"src": src.double()}, TypeError, "src"),
        ({"groups": 4}, ValueError, "groups"),
    ]:
        arguments = {"grad": grad, "value": value, "activation": "silu", **good, **attributes}
        is_of_partner = differentiated and {"src", "weights"} & changes.keys()
        name = r"convolution_backward_\w+" if is_of_partner else operator
        with pytest.raises(error, match=f"^{name}: .*({text})"):
            OPS.convolution_fused_backward(**(arguments | changes))
