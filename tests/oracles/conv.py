"""Convolution by its definition: one shifted product for each kernel tap, summed in float64.

Independent of the library and of torch's convolutions: slices of a zero-padded image and einsum.
The functions take the arguments of the operators of the same names.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# What `activation` names.
ACTIVATIONS = {
    None: lambda u: u,
    "relu": torch.relu,
    "relu6": F.relu6,
    "silu": F.silu,
    "gelu": F.gelu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": F.hardswish,
    "gelu_tanh": lambda u: F.gelu(u, approximate="tanh"),
    "hardsigmoid": lambda u: F.relu6(u + 3) / 6,  # torch has 1 / 6 in float32
    "mish": F.mish,
    "softplus": F.softplus,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
}

Ints = Sequence[int]


def padding(
    size: Ints, kernel: Ints, strides: Ints, begin: Ints, end: Ints, dilations: Ints, auto_pad: str
) -> tuple[list[int], list[int]]:
    """The padding at the beginning and at the end of each spatial dimension."""
    if auto_pad == "none":
        return list(begin), list(end)
    if auto_pad == "valid":
        return [0] * len(size), [0] * len(size)
    begins, ends = [], []
    for n, k, s, d in zip(size, kernel, strides, dilations, strict=True):
        covered = (k - 1) * d + 1
        total = max(0, covered - (s if n % s == 0 else n % s))
        larger, smaller = total - total // 2, total // 2
        begins.append(smaller if auto_pad == "same_upper" else larger)
        ends.append(larger if auto_pad == "same_upper" else smaller)
    return begins, ends


def _canonical_image(image: Tensor, data_format: str) -> Tensor:
    return image.movedim(-1, 1) if data_format == "NXC" else image


def _image_in(image: Tensor, data_format: str) -> Tensor:
    return image.movedim(1, -1) if data_format == "NXC" else image


def _canonical_weights(weights: Tensor, weights_format: str) -> Tensor:
    return weights.movedim((-1, -2), (0, 1)) if weights_format == "XIO" else weights


def _weights_in(weights: Tensor, weights_format: str) -> Tensor:
    return weights.movedim((0, 1), (-1, -2)) if weights_format == "XIO" else weights


class _Geometry:
    """Which elements of the padded image meet each kernel tap."""

    def __init__(
        self,
        size: Ints,
        kernel: Ints,
        strides: Ints,
        pads_begin: Ints,
        pads_end: Ints,
        dilations: Ints,
        auto_pad: str,
    ) -> None:
        self.size, self.kernel, self.strides, self.dilations = size, kernel, strides, dilations
        self.begin, self.end = padding(
            size, kernel, strides, pads_begin, pads_end, dilations, auto_pad
        )
        self.padded = [n + b + e for n, b, e in zip(size, self.begin, self.end, strict=True)]
        self.out = [
            (n - (k - 1) * d - 1) // s + 1
            for n, k, s, d in zip(self.padded, kernel, strides, dilations, strict=True)
        ]

    def pad(self, image: Tensor) -> Tensor:
        result = image.new_zeros(*image.shape[:2], *self.padded)
        result[self._inside()] = image
        return result

    def crop(self, padded: Tensor) -> Tensor:
        return padded[self._inside()]

    def _inside(self) -> tuple[Any, ...]:
        inside = [slice(b, b + n) for b, n in zip(self.begin, self.size, strict=True)]
        return (slice(None), slice(None), *inside)

    def taps(self) -> list[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """(kernel index, the slices of the padded image that it meets) for every tap."""
        return [
            (
                tap,
                tuple(
                    slice(k * d, k * d + (o - 1) * s + 1, s)
                    for k, d, s, o in zip(tap, self.dilations, self.strides, self.out, strict=True)
                ),
            )
            for tap in itertools.product(*map(range, self.kernel))
        ]


def _groups(image: Tensor, groups: int) -> Tensor:
    return image.unflatten(1, (groups, -1)) if image.shape[1] else image[:, None]


def convolution(
    src: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    strides: Ints,
    pads_begin: Ints,
    pads_end: Ints,
    dilations: Ints,
    auto_pad: str = "none",
    groups: int = 1,
    data_format: str = "NXC",
    weights_format: str = "XIO",
) -> Tensor:
    x = _canonical_image(src, data_format).double()
    w = _canonical_weights(weights, weights_format).double()
    geometry = _Geometry(
        x.shape[2:], w.shape[2:], strides, pads_begin, pads_end, dilations, auto_pad
    )
    padded = geometry.pad(x)
    result = x.new_zeros(x.shape[0], w.shape[0], *geometry.out)
    for tap, where in geometry.taps():
        seen = _groups(padded[(..., *where)], groups)
        result += torch.einsum(
            "ngi...,goi->ngo...", seen, w[(..., *tap)].unflatten(0, (groups, -1))
        ).flatten(1, 2)
    if bias is not None:
        result += bias.double().reshape(-1, *[1] * (x.dim() - 2))
    return _image_in(result, data_format)


def convolution_backward_data(
    grad: Tensor,
    weights: Tensor,
    src_size: Ints,
    strides: Ints,
    pads_begin: Ints,
    pads_end: Ints,
    dilations: Ints,
    auto_pad: str = "none",
    groups: int = 1,
    data_format: str = "NXC",
    weights_format: str = "XIO",
) -> Tensor:
    g = _groups(_canonical_image(grad, data_format).double(), groups)
    w = _canonical_weights(weights, weights_format).double()
    geometry = _Geometry(src_size, w.shape[2:], strides, pads_begin, pads_end, dilations, auto_pad)
    padded = g.new_zeros(g.shape[0], groups * w.shape[1], *geometry.padded)
    for tap, where in geometry.taps():
        padded[(..., *where)] += torch.einsum(
            "ngo...,goi->ngi...", g, w[(..., *tap)].unflatten(0, (groups, -1))
        ).flatten(1, 2)
    return _image_in(geometry.crop(padded), data_format)


def convolution_backward_weights(
    grad: Tensor,
    src: Tensor,
    kernel_size: Ints,
    strides: Ints,
    pads_begin: Ints,
    pads_end: Ints,
    dilations: Ints,
    auto_pad: str = "none",
    groups: int = 1,
    data_format: str = "NXC",
    weights_format: str = "XIO",
) -> Tensor:
    g = _groups(_canonical_image(grad, data_format).double(), groups)
    x = _canonical_image(src, data_format).double()
    geometry = _Geometry(
        x.shape[2:], kernel_size, strides, pads_begin, pads_end, dilations, auto_pad
    )
    padded = geometry.pad(x)
    result = x.new_zeros(g.shape[1] * g.shape[2], x.shape[1] // groups, *kernel_size)
    for tap, where in geometry.taps():
        seen = _groups(padded[(..., *where)], groups)
        result[(..., *tap)] = torch.einsum("ngo...,ngi...->goi", g, seen).flatten(0, 1)
    return _weights_in(result, weights_format)
