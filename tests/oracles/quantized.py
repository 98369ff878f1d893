"""Quantized convolution by its formula: exact sums, and each step after them in float32.

Sums are float64 convolutions of integers, which are exact below 2^53. Steps are numpy's float32
operations, one by one. Activations that numpy lacks are computed in float64 and rounded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from oracles.conv import ACTIVATIONS

f32 = np.float32


def sums(
    src: Tensor,
    weights: Tensor,
    zero_point: float,
    strides: Sequence[int],
    pads_begin: Sequence[int],
    pads_end: Sequence[int],
    dilations: Sequence[int],
    groups: int,
) -> Tensor:
    """[N, O, *OX] of NCX images and OIX weights. Integers: no zero has a sign, as 0 * -3 has."""
    pads = [pad for pair in zip(pads_begin, pads_end, strict=True) for pad in reversed(pair)]
    x = F.pad(src.double() - zero_point, pads[::-1])
    convolve = (F.conv1d, F.conv2d, F.conv3d)[src.dim() - 3]
    return convolve(x, weights.double(), None, strides, 0, dilations, groups) + 0.0


def completed(
    acc: Tensor,
    dtype: torch.dtype,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    src_scale: float = 1.0,
    weights_scale: float | Tensor = 1.0,
    dst_scale: float = 1.0,
    dst_zero_point: float = 0,
    residual_scale: float = 1.0,
    residual_zero_point: float = 0,
) -> Tensor:
    """The result, of sums and the arguments of quantized_convolution."""
    per_channel = (1, -1) + (1,) * (acc.dim() - 2)
    scale = f32(src_scale) * np.asarray(weights_scale, f32).reshape(-1)
    v = acc.numpy().astype(f32) * (scale.reshape(per_channel) if scale.size > 1 else scale)
    if bias is not None:
        v = v + bias.numpy().reshape(per_channel)
    if residual is not None:
        v = v + f32(residual_scale) * (residual.float().numpy() - f32(residual_zero_point))
    if activation == "relu":
        v = np.where(v < 0, f32(0), v)  # -0 stays, as in torch
    elif activation == "relu6":
        v = np.minimum(np.where(v < 0, f32(0), v), f32(6))
    elif activation == "hardswish":
        v = v * (np.minimum(np.maximum(v + f32(3), f32(0)), f32(6)) / f32(6))
    elif activation == "hardsigmoid":
        v = np.minimum(np.maximum(v + f32(3), f32(0)), f32(6)) / f32(6)
    elif activation == "leaky_relu":
        v = np.where(v <= 0, f32(0.01) * v, v)
    else:
        v = ACTIVATIONS[activation](torch.from_numpy(v).double()).float().numpy()
    if dtype.is_floating_point:
        return torch.from_numpy(v).to(dtype)
    limits = torch.iinfo(dtype)
    quotient = np.rint(v / f32(dst_scale) + f32(dst_zero_point)).astype(np.float64)
    return torch.from_numpy(np.clip(quotient, limits.min, limits.max)).to(dtype)
