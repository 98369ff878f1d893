"""Where torch_dnnl is faster than torch: the one place that says so, from measurements.

They are those of `benchmarks/results`, and of a Zen 4 with one thread, in channels-last images,
which Inductor makes of all images on CPUs. Nothing is measured on GPUs, where torch's stay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Result(Enum):
    """When the result of a convolution is dnnl."""

    NEVER = 0
    FUSED = 1  # with an epilogue, which saves a pass over memory, and products not too many
    ALWAYS = 2


class Choice(NamedTuple):
    """Whether torch_dnnl is preferred for the result and the two gradients.

    `frozen`: for the result in a graph that is frozen for inference. Both libraries pack the
    weights of such a graph once, and oneDNN's kernels end with any arithmetic.
    """

    result: Result
    data: bool
    weights: bool
    frozen: bool


_OURS = Choice(Result.ALWAYS, True, True, True)
_TORCHS = Choice(Result.NEVER, False, False, False)

# The kinds of convolutions: the first that fits counts. In frozen float32 graphs almost
# all are torch_dnnl's: a graph whose kernels alternate between two libraries is slower.
_FLOAT32 = {
    "depthwise": _OURS,
    "groups of few channels": _OURS,
    "one dimension": _OURS,
    "3x3": _OURS,  # Winograd's products
    "3x3 of few pixels": _OURS,
    "transposed": Choice(Result.ALWAYS, False, True, True),
    "1x1": Choice(Result.FUSED, False, False, True),
    "1x1 with a stride": Choice(Result.FUSED, True, True, True),
    "few inputs": Choice(Result.FUSED, True, True, True),
    "two dimensions": Choice(Result.FUSED, False, True, True),
    "three dimensions": _TORCHS,
}
_HALF = {
    "depthwise": _OURS,
    "groups of few channels": _TORCHS,
    "one dimension": _OURS,
    "3x3": _OURS,
    "3x3 of few pixels": Choice(Result.NEVER, False, True, False),
    "transposed": _TORCHS,
    "1x1": Choice(Result.FUSED, False, False, True),
    "1x1 with a stride": Choice(Result.FUSED, True, True, True),
    "few inputs": _TORCHS,
    "two dimensions": _TORCHS,
    "three dimensions": _TORCHS,
}

_FEW_PIXELS = 128  # fewer than that do not make up for the transform of the weights
_MANY_PRODUCTS = 512  # of an output; a pass over memory is little beside more than that


@dataclass(frozen=True)
class Convolution:
    """What the choice depends on."""

    weights: (
        Tensor  # [O, C / groups, *K], of the convolution that a transposed one is a gradient of
    )
    strides: tuple[Any, ...]
    dilations: tuple[Any, ...]
    groups: Any
    transposed: bool
    pixels: int  # of all images, in the call for which a graph is compiled

    @property
    def choice(self) -> Choice:
        sizes = (*self.weights.shape, *self.strides, *self.dilations, self.groups)
        if self.weights.device.type != "cpu" or not all(isinstance(n, int) for n in sizes):
            return _TORCHS
        if not _has_products(self.weights.dtype):
            return _OURS
        return (_FLOAT32 if self.weights.dtype == torch.float32 else _HALF)[self._kind]

    @property
    def _kind(self) -> str:
        outputs, inputs, *kernel = self.weights.shape
        outputs //= self.groups
        if self.groups > 1 and inputs == 1:
            return "depthwise"
        if self.groups > 1 and inputs * outputs <= 256:
            return "groups of few channels"
        if len(kernel) == 1:
            return "one dimension"
        has_stride = any(n != 1 for n in self.strides)
        is_dense = not has_stride and all(n == 1 for n in self.dilations)
        if kernel == [3, 3] and is_dense and min(inputs, outputs) >= 16:
            return "3x3" if self.pixels >= _FEW_PIXELS else "3x3 of few pixels"
        if self.transposed:
            return "transposed"
        if all(n == 1 for n in kernel):
            return "1x1 with a stride" if has_stride else "1x1"
        if inputs <= 4:
            return "few inputs"
        return "two dimensions" if len(kernel) == 2 else "three dimensions"

    def prefers_result(self, has_epilogue: bool) -> bool:
        """`has_epilogue`: torch_dnnl's call ends with a residual or an activation."""
        if self.choice.result is Result.FUSED:
            return has_epilogue and math.prod(self.weights.shape[1:]) <= _MANY_PRODUCTS
        return self.choice.result is Result.ALWAYS


def _has_products(dtype: torch.dtype) -> bool:
    """Whether oneDNN, which torch calls, multiplies numbers of this type on this CPU."""
    if dtype == torch.float64 or not torch._C._has_mkldnn:
        return False
    supported = {
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    return dtype not in supported or bool(supported[dtype]())


def prefers_interpolation(
    input: Tensor, output: Tensor, mode: str, is_joined: bool, is_wrong: bool = False
) -> bool:
    """Whether torch_dnnl's `F.interpolate` is faster than Inductor's gathers and scatters.

    Inductor's are the faster only where it reads each pixel where it lies, in vectors: the nearest
    pixels of channels-last images, and areas of whole pixels; and linear interpolation of such
    images whose result is but a part of another tensor (`is_joined`), where it writes it at once.
    `is_wrong`: Inductor takes other pixels than ATen does.
    """
    if input.device.type != "cpu" or output.dtype != input.dtype:  # which autocast chose
        return False
    if is_wrong:
        return True
    if input.requires_grad and torch.is_grad_enabled():
        return True
    is_channels_last = input.dim() >= 4 and input.stride(1) == 1
    if mode.startswith("nearest"):
        return not is_channels_last
    if mode == "area":
        pairs = zip(input.shape[2:], output.shape[2:], strict=True)
        return not all(type(i) is type(o) is int and i % o == 0 for i, o in pairs)
    return not (mode.endswith("linear") and is_channels_last and is_joined)
