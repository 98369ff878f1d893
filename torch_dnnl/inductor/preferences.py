"""Where ours is the faster: the one place that says so, from measurements.

They are those of `benchmarks/results` in channels-last images, which Inductor makes of all images
on CPUs. In a graph that is frozen for inference, torch's convolutions have their weights packed
beforehand and end with an activation too. Nothing is measured on GPUs, where torch's stay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# The kinds of convolutions, of which the first that fits counts; and whether ours is preferred for
# the result, for the gradient of data and for that of weights.
_TABLE = {
    "no products of this type in oneDNN": (True, True, True),
    "groups of few channels": (True, True, True),
    "Winograd's": (True, True, True),
    "one dimension": (True, True, True),
    "transposed": (True, False, True),
    "1x1": (False, False, False),
    "1x1 with a stride": (False, True, True),
    "few inputs": (False, True, True),
    "two dimensions": (False, False, True),
    "three dimensions": (False, False, False),
}

# Where an epilogue saves a pass over the result, ours may have a product less quick. That many
# products for each output make up for it.
_PRODUCTS_OF_A_PASS = 512


@dataclass(frozen=True)
class Convolution:
    """What the choice depends on; not on spatial sizes, which may change from call to call."""

    weights: (
        Tensor  # [O, C / groups, *K], of the convolution that a transposed one is a gradient of
    )
    strides: tuple[Any, ...]
    dilations: tuple[Any, ...]
    groups: Any
    transposed: bool

    @property
    def _kind(self) -> str | None:
        """A line of the table, or None for what it does not speak of."""
        sizes = (*self.weights.shape, *self.strides, *self.dilations, self.groups)
        if self.weights.device.type != "cpu" or not all(isinstance(n, int) for n in sizes):
            return None
        outputs, inputs, *kernel = self.weights.shape
        if not _has_products(self.weights.dtype):
            return "no products of this type in oneDNN"
        if self.groups > 1 and inputs * outputs // self.groups <= 256:
            return "groups of few channels"
        if len(kernel) == 1:
            return "one dimension"
        dense = all(n == 1 for n in (*self.strides, *self.dilations))
        if kernel == [3, 3] and dense and min(inputs, outputs // self.groups) >= 16:
            return "Winograd's"
        if self.transposed:
            return "transposed"
        if all(n == 1 for n in kernel):
            return "1x1" if all(n == 1 for n in self.strides) else "1x1 with a stride"
        if inputs <= 4:
            return "few inputs"
        return "two dimensions" if len(kernel) == 2 else "three dimensions"

    def prefers_result(self, has_epilogue: bool, is_frozen: bool) -> bool:
        """`has_epilogue`: ours ends with a residual or an activation."""
        kind = self._kind
        if kind is None:
            return False
        if is_frozen and kind == "groups of few channels":
            return has_epilogue  # torch's ends with any
        if is_frozen and kind == "transposed":
            return False  # Inductor has batch norm in the weights of torch's
        products = math.prod(self.weights.shape[1:])
        saves_a_pass = has_epilogue and not is_frozen and products <= _PRODUCTS_OF_A_PASS
        return _TABLE[kind][0] or saves_a_pass

    def prefers_data(self) -> bool:
        return self._kind is not None and _TABLE[self._kind][1]

    def prefers_weights(self) -> bool:
        return self._kind is not None and _TABLE[self._kind][2]


def _has_products(dtype: torch.dtype) -> bool:
    """Whether oneDNN, which torch calls, multiplies numbers of this type on this CPU."""
    if dtype == torch.float64 or not torch._C._has_mkldnn:
        return False
    supported = {
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    return dtype not in supported or bool(supported[dtype]())


def prefers_interpolation(input: Tensor, output: Tensor, mode: str) -> bool:
    """Whether ours is the faster `F.interpolate`; Inductor has it as gathers, and scatters back.

    Inductor's are the faster only where it reads each pixel where it lies, in vectors: the nearest
    pixels of channels-last images, and areas of whole pixels.
    """
    if input.device.type != "cpu":
        return False
    if input.requires_grad and torch.is_grad_enabled():
        return True
    if mode.startswith("nearest"):
        return bool(input.dim() < 4 or input.stride(1) != 1)
    if mode == "area":
        pairs = zip(input.shape[2:], output.shape[2:], strict=True)
        return not all(type(i) is type(o) is int and i % o == 0 for i, o in pairs)
    return True
