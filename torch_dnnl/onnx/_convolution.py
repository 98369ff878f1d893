"""Convolutions and transposed convolutions: Conv and ConvTranspose, and what fused operators add to
them.

Everything between the first and the last node is NCX and OIX, as ONNX has it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch_dnnl.onnx._graph import (
    BFLOAT16,
    FLOAT,
    INT64,
    Size,
    Value,
    cast,
    channels_first,
    channels_last,
    constant,
    is_known,
    known,
    opset,
    refuse,
    shape,
    traced_size,
    translates,
    vector,
)


@dataclass(frozen=True)
class Attributes:
    """Those of a convolution, in numbers."""

    n: int  # spatial dimensions
    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    begin: list[int]
    end: list[int]
    auto_pad: str  # "none", "same_upper" or "same_lower"
    groups: int
    is_nxc: bool

    @classmethod
    def of(cls, operator: str, call: SimpleNamespace) -> Attributes:
        n = len(call.src.shape) - 2
        sizes = shape(call.weights)
        begin = known(operator, "pads_begin", call.pads_begin, 0, n)
        end = known(operator, "pads_end", call.pads_end, None, n)
        if call.auto_pad == "valid":
            begin, end = [0] * n, [0] * n
        return cls(
            n=n,
            kernel=list(sizes[:-2] if call.weights_format == "XIO" else sizes[2:]),
            strides=known(operator, "strides", call.strides, 1, n),
            dilations=known(operator, "dilations", call.dilations, 1, n),
            begin=begin,
            end=begin if None in end else end,
            auto_pad="none" if call.auto_pad == "valid" else call.auto_pad,
            groups=known(operator, "groups", [call.groups], 1, 1)[0],
            is_nxc=call.data_format == "NXC",
        )

    @property
    def reach(self) -> list[int]:
        """How many pixels a kernel covers."""
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]

    def pads(self, sizes: tuple[Size, ...]) -> tuple[list[int], list[int]] | None:
        """Before and behind the spatial dimensions of an image; None where sizes must be known."""
        if self.auto_pad == "none":
            return self.begin, self.end
        totals = []
        for size, stride, reach in zip(sizes, self.strides, self.reach, strict=True):
            if stride == 1:
                totals.append(reach - 1)
            elif isinstance(size, int):
                totals.append(max((math.ceil(size / stride) - 1) * stride + reach - size, 0))
            else:
                return None
        smaller = [total // 2 for total in totals]
        larger = [total - half for total, half in zip(totals, smaller, strict=True)]
        return (smaller, larger) if self.auto_pad == "same_upper" else (larger, smaller)

    def shared(self) -> dict[str, Any]:
        """As ONNX's attributes, but for the pads."""
        return {
            "group": self.groups,
            "kernel_shape": self.kernel,
            "strides": self.strides,
            "dilations": self.dilations,
        }

    def padded(self, image: Value, sizes: tuple[Size, ...], zero: Value | None = None) -> Any:
        """An image, and the attributes that pad it: of these sizes, or of those that it will have.

        `zero`: what pads consist of, where ONNX's own would be another number.
        """
        pads = self.pads(sizes)
        if pads is not None:
            return image, {"pads": [*pads[0], *pads[1]]}
        is_dense = all(dilation == 1 for dilation in self.dilations)
        # A stride that skips pixels would have negative pads by the specification, and runtimes
        # refuse dilations.
        if is_dense and all(k >= s for k, s in zip(self.kernel, self.strides, strict=True)):
            return image, {"auto_pad": self.auto_pad.upper()}
        op = opset()
        sizes_now = op.Shape(image, start=2)
        strides, reach = constant(self.strides, INT64), constant(self.reach, INT64)
        one, two = constant([1], INT64), constant([2], INT64)
        last = op.Div(op.Sub(sizes_now, one), strides)
        missing = op.Sub(op.Add(op.Mul(last, strides), reach), sizes_now)
        totals = op.Max(missing, constant([0], INT64))
        smaller = op.Div(totals, two)
        larger = op.Sub(totals, smaller)
        ends = (smaller, larger) if self.auto_pad == "same_upper" else (larger, smaller)
        outer = constant([0, 0], INT64)
        return op.Pad(image, op.Concat(outer, ends[0], outer, ends[1], axis=0), zero), {}


def oix(weights: Value, call: SimpleNamespace) -> Value:
    """Weights as ONNX has them: OIX of XIO, if they are that."""
    if call.weights_format == "OIX":
        return weights
    rank = len(call.src.shape)
    return opset().Transpose(weights, perm=[rank - 1, rank - 2, *range(rank - 2)])


def ncx(image: Value, call: SimpleNamespace) -> Value:
    """An image as ONNX has it: NCX of NXC, if it is that."""
    return channels_first(image, call.data_format == "NXC", len(call.src.shape))


def as_called(image: Value, call: SimpleNamespace) -> Value:
    """The inverse of ncx()."""
    return channels_last(image, call.data_format == "NXC", len(call.src.shape))


NODES = {
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "hardswish": "HardSwish",
    "mish": "Mish",
    "softplus": "Softplus",
}


def activated(value: Value, call: SimpleNamespace, dtype: Any) -> Value:
    """The activation of a call, of an image in NCX."""
    op, name = opset(), call.activation
    if name is None:
        return value
    if name in ("relu6", "clamp"):
        low, high = (0.0, 6.0) if name == "relu6" else (call.alpha, call.beta)
        bounds = [None if bound is None else constant(bound, dtype) for bound in (low, high)]
        return op.Clip(value, *bounds)
    if name == "silu":
        return op.Mul(value, op.Sigmoid(value))
    if name == "hardsigmoid":
        return op.HardSigmoid(value, alpha=1 / 6, beta=0.5)
    if name == "leaky_relu":
        return op.LeakyRelu(value, alpha=0.01 if call.alpha is None else call.alpha)
    if name == "elu":  # ONNX Runtime has Elu for float32 alone
        scale = constant(1.0 if call.alpha is None else call.alpha, dtype)
        power = op.Sub(op.Exp(op.Min(value, constant(0.0, dtype))), constant(1.0, dtype))
        return op.Where(op.Greater(value, constant(0.0, dtype)), value, op.Mul(scale, power))
    if name == "prelu":
        axes = constant(list(range(1, len(call.src.shape) - 1)), INT64)
        slopes = op.Reshape(call.slope, constant([-1], INT64))
        return op.PRelu(value, op.Unsqueeze(cast(slopes, call.slope.dtype, dtype), axes))
    if name not in ("gelu", "gelu_tanh"):
        return getattr(op, NODES[name])(value)
    if op.version >= 20:
        return op.Gelu(value, approximate="tanh" if name == "gelu_tanh" else "none")
    if name == "gelu_tanh":
        cube = op.Mul(value, op.Mul(value, value))
        inner = op.Add(value, op.Mul(cube, constant(0.044715, dtype)))
        function = op.Tanh(op.Mul(inner, constant(math.sqrt(2 / math.pi), dtype)))
    else:
        function = op.Erf(op.Mul(value, constant(math.sqrt(0.5), dtype)))
    half = op.Mul(value, constant(0.5, dtype))
    return op.Mul(half, op.Add(function, constant(1.0, dtype)))


def computed(dtype: Any) -> Any:
    """What is computed in: Conv takes no bfloat16 before version 22; ours sums in float32 too."""
    return FLOAT if dtype == BFLOAT16 else dtype


def operands(call: SimpleNamespace) -> tuple[Value, Value, Value | None, Any]:
    """src, weights and bias as ONNX's operators take them, and their type."""
    dtype = computed(call.src.dtype)
    src = ncx(cast(call.src, call.src.dtype, dtype), call)
    weights = oix(cast(call.weights, call.weights.dtype, dtype), call)
    bias = None if call.bias is None else cast(call.bias, call.bias.dtype, dtype)
    return src, weights, bias, dtype


def spatial_sizes(call: SimpleNamespace) -> tuple[Size, ...]:
    sizes = shape(call.src)
    return sizes[1:-1] if call.data_format == "NXC" else sizes[2:]


def finished(call: SimpleNamespace, value: Value, dtype: Any) -> tuple[Value, Value]:
    """Both results of a fused operator, from what ONNX's operator gives."""
    op = opset()
    if call.residual is not None:
        value = op.Add(value, ncx(cast(call.residual, call.residual.dtype, dtype), call))

    def result(value: Value) -> Value:
        return as_called(cast(value, dtype, call.src.dtype), call)

    kept = constant([], call.src.dtype)
    if call.keep_preactivation:
        kept = result(value)
    dst = result(activated(value, call, dtype))
    return (op.Identity(dst) if dst is kept else dst), kept


def convolved(operator: str, call: SimpleNamespace) -> tuple[Value, Any]:
    src, weights, bias, dtype = operands(call)
    attributes = Attributes.of(operator, call)
    src, pads = attributes.padded(src, spatial_sizes(call))
    return opset().Conv(src, weights, bias, **attributes.shared(), **pads), dtype


@translates("convolution")
def convolution(call: SimpleNamespace) -> Value:
    value, dtype = convolved("convolution", call)
    return as_called(cast(value, dtype, call.src.dtype), call)


@translates("convolution_fused", "convolution_packed")  # of the plain weights
def convolution_fused(call: SimpleNamespace) -> tuple[Value, Value]:
    return finished(call, *convolved("convolution_fused", call))


@translates("convolution_transpose")
def convolution_transpose(call: SimpleNamespace) -> tuple[Value, Value]:
    op = opset()
    src, weights, bias, dtype = operands(call)
    attributes = Attributes.of("convolution_transpose", call)
    dst_size = tuple(map(traced_size, call.dst_size))
    pads = attributes.pads(dst_size)
    if pads is None:
        refuse("convolution_transpose", "dst_size to be numbers with auto_pad", "unknown sizes")
    # A stride leaves it open how many rows behind the last sums there are: from 0 to stride - 1.
    added: list[int] = []
    for out, size, stride, reach, begin, end in zip(
        dst_size,
        spatial_sizes(call),
        attributes.strides,
        attributes.reach,
        *pads,
        strict=True,
    ):
        least = (size - 1) * stride + reach - begin - end
        added += [more for more in range(stride) if is_known(out == least + more)][:1]
    is_open = len(added) < attributes.n  # it depends on the input: all of them, and the rest is cut
    value = op.ConvTranspose(
        src,
        weights,
        bias,
        **attributes.shared(),
        pads=[*pads[0], *pads[1]],
        output_padding=[stride - 1 for stride in attributes.strides] if is_open else added,
    )
    if is_open:
        axes = constant(list(range(2, attributes.n + 2)), INT64)
        value = op.Slice(value, constant([0] * attributes.n, INT64), vector(call.dst_size), axes)
    return finished(call, value, dtype)
