"""The operators of convolution: random geometries, which the oracle in float64 defines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from oracles import conv as oracle
from torch import Tensor

import torch_dnnl
from fuzz.problems import FLOATING, Operator, Problem, Tape, TensorSpec, layout, like

OPS = torch.ops.torch_dnnl
KERNELS = torch_dnnl.build_info()["kernels"]["cpu"]["convolution"]
# Of AVX512-BF16 and AMX, which take subnormal numbers for 0, and give 0 for them.
_HAS_HALF_PRODUCTS = torch.cpu._is_avx512_bf16_supported()
KINKS = {
    "relu": (0.0,),
    "leaky_relu": (0.0,),
    "relu6": (0.0, 6.0),
    "hardswish": (-3.0, 3.0),
    "hardsigmoid": (-3.0, 3.0),
}
ACTIVATIONS = list(oracle.ACTIVATIONS)
# The derivatives of the others are functions of the preactivation.
OF_RESULT = ("relu", "relu6", "sigmoid", "tanh")
ATTRIBUTES = ("strides", "pads_begin", "pads_end", "dilations", "auto_pad", "groups")
FORMATS = ("data_format", "weights_format")
MOST_PRODUCTS = 3_000_000  # of the oracle, which takes a hundredth of a second for so many
# Bounds of the error's norm over the result's, as in conv/random_convolutions.py: sums are float32
# but for float64, Winograd's have an error of up to 1e-5, and one rounding to a narrower type comes
# after them.
TOLERANCE = {
    torch.float64: 1e-13,
    torch.float32: 2e-5,
    torch.bfloat16: 2**-8 + 2e-5,
    torch.float16: 2**-11 + 2e-5,
}


@dataclass(frozen=True)
class Geometry:
    """The sizes of a convolution, spatial ones in lists, and its attributes."""

    n: int
    groups: int
    ic: int  # of a group, as oc
    oc: int
    size: list[int]
    kernel: list[int]
    out: list[int]
    attributes: dict[str, Any]

    def image(self, channels: int, spatial: list[int]) -> tuple[int, ...]:
        nxc = self.attributes["data_format"] == "NXC"
        return (self.n, *spatial, channels) if nxc else (self.n, channels, *spatial)

    @property
    def src(self) -> tuple[int, ...]:
        return self.image(self.groups * self.ic, self.size)

    @property
    def dst(self) -> tuple[int, ...]:
        return self.image(self.groups * self.oc, self.out)

    @property
    def weights(self) -> tuple[int, ...]:
        oc = self.groups * self.oc
        if self.attributes["weights_format"] == "XIO":
            return (*self.kernel, self.ic, oc)
        return (oc, self.ic, *self.kernel)


def geometry(tape: Tape, kernels: list[str]) -> Geometry:
    """Takes 60 bytes. `kernels`: what `algorithm` may name beside the device's own choice."""
    tape = tape.part(60)
    rank = tape.pick([1, 2, 2, 2, 3])
    axes = lambda options: [tape.pick(options) for _ in range(3)][:rank]  # noqa: E731
    n = tape.pick([1, 1, 2, 2, 3, 5, 0])
    groups = tape.pick([1, 1, 1, 1, 2, 3, 5, 8, 16])
    counts = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 64, 65, 100]
    ic, oc = tape.pick(counts), tape.pick(counts)
    kernel, strides = axes([1, 3, 2, 4, 5, 7]), axes([1, 1, 1, 2, 3, 4])
    dilations = axes([1, 1, 1, 2, 3])
    begin, end = axes([0, 0, 1, 1, 2, 4]), axes([0, 0, 1, 1, 2, 4])
    longest = {1: 80, 2: 20, 3: 8}[rank]
    size = [tape.integer(1, longest) for _ in range(3)][:rank]
    kind = tape.pick(["any", "any", "winograd", "depthwise", "pointwise", "patches", "few"])
    auto_pad = tape.pick(["none"] * 6 + ["same_upper", "same_lower", "valid"])
    formats = tape.pick(["NCX", "NXC"]), tape.pick(["OIX", "XIO"])
    algorithm = tape.pick(["auto"] * 3 + ["direct", "winograd", *kernels])
    if groups == 1 and tape.chance(0.01):
        ic = 0

    if kind == "winograd":
        kernel = [1] * (rank - 2) + [3] * min(rank, 2)
        strides = dilations = [1] * rank
    elif kind == "depthwise":
        groups, ic, oc = tape.pick([8, 3, 16, 17, 33, 70]), 1, tape.pick([1, 1, 1, 2])
    elif kind == "pointwise":
        kernel, begin, end = [1] * rank, [0] * rank, [0] * rank
    elif kind == "patches":
        strides, dilations = list(kernel), [1] * rank
        begin, end = [0] * rank, [0] * rank
    elif kind == "few":
        ic, oc = min(ic, 4), min(oc, 4)
    if groups > 3:
        ic, oc = min(ic, 8), min(oc, 8)
    while rank == 3 and math.prod(kernel) > 45:
        kernel[kernel.index(max(kernel))] = 2
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations)]
    pads = [0] * rank if auto_pad != "none" else [b + e for b, e in zip(begin, end)]
    if auto_pad not in ("same_upper", "same_lower"):
        size = [max(x, r - p) for x, r, p in zip(size, reach, pads)]
    products = n * groups * ic * oc * math.prod(size) * math.prod(kernel)
    if products > MOST_PRODUCTS:  # channels down to a few, and the batch to one image
        ic, oc, n = min(ic, 16 + ic % 3), min(oc, 16 + oc % 3), 1
    if n * groups * ic * oc * math.prod(size) * math.prod(kernel) > MOST_PRODUCTS:
        ic, oc = min(ic, 5), min(oc, 6)
    if auto_pad in ("same_upper", "same_lower"):
        out = [-(-x // s) for x, s in zip(size, strides)]
    else:
        out = [(x + p - r) // s + 1 for x, p, r, s in zip(size, pads, reach, strides)]
    attributes = {
        "strides": strides,
        "pads_begin": begin,
        "pads_end": end,
        "dilations": dilations,
        "auto_pad": auto_pad,
        "groups": groups,
        "data_format": formats[0],
        "weights_format": formats[1],
        "algorithm": algorithm,
    }
    return Geometry(n, groups, ic, oc, size, kernel, out, attributes)


def _type_and_values(tape: Tape, mode: str) -> tuple[str, str]:
    if mode in ("gradients", "adjoint"):
        return tape.pick(["float64", "float64", "float32"]), tape.pick(["normal", "integers"])
    return tape.pick(FLOATING), tape.pick(["normal", "integers", "finite"])


def attributes_of(call: dict[str, Any]) -> dict[str, Any]:
    """What the oracle takes: with what stands for a list that is None or empty."""
    given = {name: call.get(name) for name in (*ATTRIBUTES, *FORMATS)}
    image = call["src"] if call.get("src") is not None else call["grad"]
    spatial = image.dim() - 2
    given["pads_begin"] = given["pads_begin"] or [0] * spatial
    given["pads_end"] = given["pads_end"] or given["pads_begin"]
    for name in ("strides", "dilations"):
        given[name] = given[name] or [1] * spatial
    return given


def _per_channel(values: Tensor, image: Tensor, nxc: bool) -> Tensor:
    return values if nxc else values.reshape(-1, *[1] * (image.dim() - 2))


def _activated(u: Tensor, call: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Both results of an operator that ends in an activation."""
    if call.get("residual") is not None:
        u = u + call["residual"].double()
    result = oracle.ACTIVATIONS[call.get("activation")](u)
    keeps = call.get("keep_preactivation", False)
    return result, u if keeps else u.new_empty(0)


def _smooth(call: dict[str, Any]) -> Tensor:
    """Sums of integers are often just where an activation has two slopes. Most kernels compute them
    without an error, but Winograd's has one; and so have all of other numbers."""
    expected = expected_transpose if "dst_size" in call else expected_fused
    u = expected(call | {"keep_preactivation": True})[1]
    near = torch.zeros_like(u, dtype=torch.bool)
    tensors = [value for value in call.values() if torch.is_tensor(value)]
    is_exact = call["algorithm"] == "reference" and all((t == t.round()).all() for t in tensors)
    if not is_exact and u.numel() > 0:
        for kink in KINKS.get(call.get("activation"), ()):
            near |= (u - kink).abs() < 1e-4 * u.abs().max()
    return (~near).to(u.dtype)


def expected_forward(call: dict[str, Any]) -> Tensor:
    return oracle.convolution(call["src"], call["weights"], call.get("bias"), **attributes_of(call))


def expected_fused(call: dict[str, Any]) -> tuple[Tensor, Tensor]:
    return _activated(expected_forward(call), call)


def expected_data(call: dict[str, Any]) -> Tensor:
    return oracle.convolution_backward_data(
        call["grad"], call["weights"], call["src_size"], **attributes_of(call)
    )


def expected_weights(call: dict[str, Any]) -> Tensor:
    return oracle.convolution_backward_weights(
        call["grad"], call["src"], call["kernel_size"], **attributes_of(call)
    )


def expected_transpose(call: dict[str, Any]) -> tuple[Tensor, Tensor]:
    result = oracle.convolution_backward_data(
        call["src"], call["weights"], call["dst_size"], **attributes_of(call)
    )
    if call.get("bias") is not None:
        bias = _per_channel(call["bias"].double(), result, call["data_format"] == "NXC")
        result = result + bias
    return _activated(result, call)


def expected_fused_backward(call: dict[str, Any]) -> tuple[Tensor, ...]:
    """`value` is the result or, of some activations, what they are applied to."""
    grad, value, name = call["grad"].double(), call["value"].double(), call["activation"]
    if name not in OF_RESULT:
        with torch.enable_grad():
            u = value.detach().requires_grad_()
            (slope,) = torch.autograd.grad(oracle.ACTIVATIONS[name](u).sum(), u)
        h = slope * grad
    else:
        slope = {
            "relu": lambda y: (y > 0).double(),
            "relu6": lambda y: ((y > 0) & (y < 6)).double(),
            "sigmoid": lambda y: y * (1 - y),
            "tanh": lambda y: 1 - y * y,
        }[name](value)
        h = slope * grad
    none, attributes = h.new_empty(0), attributes_of(call)
    src = weights = bias = none
    if call.get("weights") is not None:
        src = oracle.convolution_backward_data(h, call["weights"], call["src_size"], **attributes)
    if call.get("src") is not None:
        weights = oracle.convolution_backward_weights(
            h, call["src"], call["kernel_size"], **attributes
        )
    if call["bias"]:
        channel = h.dim() - 1 if call["data_format"] == "NXC" else 1
        bias = h.sum([d for d in range(h.dim()) if d != channel])
    return src, weights, bias, h if call["residual"] else none


def close(
    actual: Tensor, expected: Tensor, magnitude: Any, extra: float = 1.0, flushes: bool = False
) -> None:
    """`magnitude()`: the same of absolute values, which is asked for where terms may cancel.
    `flushes`: values below the normal ones may be 0."""
    assert actual.shape == expected.shape, f"sizes {actual.shape}, expected {expected.shape}"
    tolerance, expected = extra * TOLERANCE[actual.dtype], expected.double()
    limits = torch.finfo(actual.dtype)
    # A value below the normal ones is rounded to a multiple of the smallest, and so are products,
    # of which sums have many.
    least = limits.smallest_normal * (1 if flushes else limits.eps)
    floor = 64 * least * max(actual.numel(), 1) ** 0.5
    overflows = expected.abs() > limits.max * (1 - limits.eps)  # to an infinity
    error = torch.where(overflows, 0.0, actual.double() - expected).norm()
    bound = tolerance * torch.where(overflows, 0.0, expected).norm() + floor
    if not error <= bound:
        bound = tolerance * magnitude().double().norm() + floor
    assert error <= bound, f"error {error:.3g} above {bound:.3g}"


def _absolute(call: dict[str, Any]) -> dict[str, Any]:
    tensors = {k: v.double().abs() for k, v in call.items() if torch.is_tensor(v)}
    return call | tensors | ({"activation": None} if "value" not in call else {})


def _flushed(call: dict[str, Any]) -> dict[str, Any] | None:
    """The call as instructions for products of bfloat16 take it, if there may be any."""
    halves = {k: v for k, v in call.items() if torch.is_tensor(v) and v.dtype == torch.bfloat16}
    if not (_HAS_HALF_PRODUCTS and halves):
        return None
    least = torch.finfo(torch.bfloat16).smallest_normal
    return call | {k: torch.where(v.abs() < least, 0, v) for k, v in halves.items()}


def comparing(expected: Any, extra: float) -> Any:
    def compare(call: dict[str, Any], actual: Any, wanted: Any, flushes: bool = False) -> None:
        if torch.is_tensor(actual):
            close(actual, wanted, lambda: expected(_absolute(call)), extra, flushes)
            return
        for i, pair in enumerate(zip(actual, wanted, strict=True)):
            close(*pair, lambda i=i: expected(_absolute(call))[i], extra, flushes)

    def compare_or_flush(call: dict[str, Any], actual: Any, wanted: Any) -> None:
        try:
            compare(call, actual, wanted)
        except AssertionError:
            flushed = _flushed(call)
            if flushed is None:
                raise
            compare(flushed, actual, expected(flushed), flushes=True)

    return compare_or_flush


def _compare_fused_backward(call: dict[str, Any], actual: Any, wanted: Any) -> None:
    """h has an error of its own, also where a factor such as 1 - y y cancels, before the sums."""

    def magnitude(i: int) -> Tensor:
        plain = _absolute(call) | {"activation": "relu"}
        return expected_fused_backward(plain | {"value": torch.ones_like(plain["value"])})[i]

    for i, pair in enumerate(zip(actual, wanted, strict=True)):
        close(*pair, lambda i=i: magnitude(i), 3.0)


def _make(operator: str, tape: Tape, mode: str) -> Problem:
    # A kernel that is named is named in derivatives, too, where most of them do not exist.
    g = geometry(tape, ["reference"] if mode == "gradients" else KERNELS)
    dtype, values = _type_and_values(tape, mode)
    threads = tape.pick([1, 1, 2, 3])
    spec = lambda shape: layout(tape, TensorSpec(tuple(shape), dtype, values=values))  # noqa: E731
    src, weights, dst = spec(g.src), spec(g.weights), spec(g.dst)
    bias_of_dst, bias_of_src = spec([g.groups * g.oc]), spec([g.groups * g.ic])
    value = spec(g.dst)
    residual = spec(g.src if operator == "convolution_transpose" else g.dst)
    attributes = dict(g.attributes)
    has_bias, has_residual, third = tape.chance(0.5), tape.chance(0.5), tape.pick([0, 1, 2])
    is_linear = mode == "adjoint"
    tensors: dict[str, TensorSpec]
    if operator == "convolution_fused_backward":
        tensors = {"grad": dst, "value": value}
        tensors |= {"src": src} if third != 1 or is_linear else {}
        tensors |= {"weights": weights} if third != 2 or is_linear else {}
        attributes |= {"src_size": g.size, "kernel_size": g.kernel, "bias": has_bias}
        attributes |= {"residual": has_residual or is_linear}
        attributes["activation"] = tape.pick(ACTIVATIONS[1:])
        attributes |= {name: None for name in ("src", "weights") if name not in tensors}
    elif operator == "convolution_backward_data":
        tensors, attributes["src_size"] = {"grad": dst, "weights": weights}, g.size
    elif operator == "convolution_backward_weights":
        tensors, attributes["kernel_size"] = {"grad": dst, "src": src}, g.kernel
    else:
        transposed = operator == "convolution_transpose"
        tensors = {"src": dst if transposed else src, "weights": weights}
        if has_bias and not is_linear:
            tensors["bias"] = bias_of_src if transposed else bias_of_dst
        if transposed:
            attributes["dst_size"] = g.size
        if operator != "convolution" and not is_linear:
            tensors |= {"residual": residual} if has_residual else {}
            attributes["activation"] = tape.pick(ACTIVATIONS)
            attributes["keep_preactivation"] = tape.chance(0.3)
    return Problem(operator, tensors, attributes, threads)


def _products(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    terms = [a.double() * b.double() for a, b in pairs]
    return terms[0].sum(), terms[1].sum(), max(t.abs().sum() for t in terms)


def _adjoint(call: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """<conv(x, w), g> = <x, backward_data(g, w)> = <w, backward_weights(g, x)>, two of them."""
    common = attributes_of(call) | {"algorithm": call["algorithm"]}
    rank = len(call["strides"])
    nxc, xio = call["data_format"] == "NXC", call["weights_format"] == "XIO"
    spatial = lambda t: list(t.shape[1:-1] if nxc else t.shape[2:])  # noqa: E731
    taps = lambda t: list(t.shape[:rank] if xio else t.shape[2:])  # noqa: E731
    if "activation" in call:  # fused_backward: both are made of one h
        of_src, of_weights, _, _ = OPS.convolution_fused_backward(**call)
        return _products([(of_src, call["src"]), (of_weights, call["weights"])])
    if "dst_size" in call:
        y = OPS.convolution_transpose(**call)[0]
        g = like(y)
        back = OPS.convolution(g, call["weights"], **common)
        return _products([(y, g), (call["src"], back)])
    if "src_size" in call:
        y = OPS.convolution_backward_data(**call)
        x = like(y)
        kernel = taps(call["weights"])
        back = OPS.convolution_backward_weights(call["grad"], x, kernel, **common)
        return _products([(y, x), (back, call["weights"])])
    if "kernel_size" in call:
        y = OPS.convolution_backward_weights(**call)
        w = like(y)
        back = OPS.convolution(call["src"], w, **common)
        return _products([(y, w), (call["grad"], back)])
    y = OPS.convolution(**call)
    g = like(y)
    back = OPS.convolution_backward_data(g, call["weights"], spatial(call["src"]), **common)
    return _products([(y, g), (call["src"], back)])


def _operator(name: str, expected: Any, differentiable: tuple[str, ...], **more: Any) -> Operator:
    compare = more.pop("compare", comparing(expected, 1.0))
    make = lambda tape, mode: _make(name, tape, mode)  # noqa: E731
    return Operator(name, make, expected, compare, differentiable=differentiable, **more)


_INPUTS = ("src", "weights", "bias", "residual")
OPERATORS = [
    _operator("convolution", expected_forward, _INPUTS, adjoint=_adjoint),
    _operator(
        "convolution_fused",
        expected_fused,
        _INPUTS,
        # Activations have slopes of up to 1.13, and a rounding of their own.
        compare=comparing(expected_fused, 2.0),
        smooth=_smooth,
    ),
    _operator(
        "convolution_transpose",
        expected_transpose,
        _INPUTS,
        compare=comparing(expected_transpose, 2.0),
        adjoint=_adjoint,
        smooth=_smooth,
    ),
    _operator("convolution_backward_data", expected_data, ("grad", "weights"), adjoint=_adjoint),
    _operator("convolution_backward_weights", expected_weights, ("grad", "src"), adjoint=_adjoint),
    _operator(
        "convolution_fused_backward",
        expected_fused_backward,
        ("grad", "src", "weights"),
        compare=_compare_fused_backward,
        adjoint=_adjoint,
    ),
]
