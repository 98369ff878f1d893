"""Resampling by dense matrices in exact and float64 arithmetic.

Written from the ONNX Resize specification, the oneDNN Resampling page and the
PyTorch documentation, not from the library's tables: every axis becomes a full
[output, input] matrix whose entries are sums over all integer positions.
"""

import math
from fractions import Fraction

import numpy as np
import torch


def coordinate(rule, o, out_size, in_size, factor, roi):
    """Position in the input of output index `o`, exact where sizes set the scale."""
    s = Fraction(out_size, in_size) if factor is None else Fraction(factor)
    o, length = Fraction(o), Fraction(in_size)
    if rule == "align_corners":
        return Fraction(0) if out_size == 1 else o * (length - 1) / (s * length - 1)
    if rule == "asymmetric":
        return o / s
    if rule == "tf_half_pixel_for_nn":
        return (o + Fraction(1, 2)) / s
    if rule == "pytorch_half_pixel" and out_size == 1:
        return Fraction(0)
    if rule == "half_pixel_symmetric":
        adjustment = Fraction(out_size) / (s * length)
        offset = length / 2 * (1 - adjustment)
        return offset + (o + Fraction(1, 2)) / s - Fraction(1, 2)
    if rule == "tf_crop_and_resize":
        start, end = (Fraction(bound) for bound in roi)
        if out_size == 1:
            return (start + end) * (length - 1) / 2
        return start * (length - 1) + o * (end - start) * (length - 1) / (out_size - 1)
    return (o + Fraction(1, 2)) / s - Fraction(1, 2)


def rounded(rule, x):
    if rule == "round_prefer_ceil":
        return math.floor(x + Fraction(1, 2))
    if rule == "round_prefer_floor":
        return math.ceil(x - Fraction(1, 2))
    return math.floor(x) if rule == "floor" else math.ceil(x)


def kernel(mode, a, t):
    t = abs(t)
    if mode == "linear":
        return max(0.0, 1.0 - t)
    if mode == "cubic":
        if t <= 1:
            return (a + 2) * t**3 - (a + 3) * t**2 + 1
        return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0.0
    n = int(mode.removeprefix("lanczos"))
    return float(np.sinc(t) * np.sinc(t / n)) if t < n else 0.0


SUPPORT = {"linear": 1, "cubic": 2, "lanczos3": 3, "lanczos5": 5}


def axis_matrix(
    in_size,
    out_size,
    factor=None,
    mode="linear",
    coordinates="half_pixel",
    nearest_mode="round_prefer_ceil",
    antialias=False,
    cubic_coeff_a=-0.75,
    exclude_outside=False,
    roi=(0.0, 1.0),
):
    """The [out, in] matrix of one axis, and which outputs are extrapolated."""
    matrix = np.zeros((out_size, in_size))
    outside = np.zeros(out_size, dtype=bool)
    for o in range(out_size):
        if mode == "area":
            begin = o * in_size // out_size
            end = -((o + 1) * in_size // -out_size)
            matrix[o, begin:end] = 1 / (end - begin)
            continue
        x = coordinate(coordinates, o, out_size, in_size, factor, roi)
        if coordinates == "tf_crop_and_resize" and not 0 <= x <= in_size - 1:
            outside[o] = True
            continue
        if mode == "nearest":
            matrix[o, min(max(rounded(nearest_mode, x), 0), in_size - 1)] = 1
            continue
        scale = out_size / in_size if factor is None else factor
        stretch = max(1.0, 1 / scale) if antialias else 1.0
        reach = SUPPORT[mode] * stretch
        taps = range(math.floor(x - Fraction(reach)), math.ceil(x + Fraction(reach)) + 1)
        weights = {j: kernel(mode, cubic_coeff_a, float(j - x) / stretch) for j in taps}
        if exclude_outside:
            inside = {j: w for j, w in weights.items() if 0 <= j < in_size}
            nothing_left = abs(sum(inside.values())) < 1e-12
            weights = weights if nothing_left else inside
        total = sum(weights.values())
        for j, w in weights.items():
            matrix[o, min(max(j, 0), in_size - 1)] += w / total
    return matrix, outside


def resample(
    src,
    size=None,
    scale_factor=None,
    *,
    roi=None,
    extrapolation_value=0.0,
    recompute_scale_factor=True,
    data_format="NCX",
    dtype=None,
    **options,
):
    """functional.resample for a float64 tensor; differentiable by torch itself."""
    spatial = src.dim() - 2
    first = 1 if data_format == "NXC" else 2
    lengths = src.shape[first : first + spatial]

    def listed(value):
        return list(value) if isinstance(value, (list, tuple)) else [value] * spatial

    factors = [None] * spatial
    if scale_factor is not None and not recompute_scale_factor:
        factors = listed(scale_factor)
    if size is None:
        size = [math.floor(n * f) for n, f in zip(lengths, listed(scale_factor))]
    size = listed(size)
    result = src
    covered = torch.zeros((), dtype=torch.bool)
    for d in range(spatial):
        bounds = (0.0, 1.0) if roi is None else (roi[d], roi[spatial + d])
        matrix, outside = axis_matrix(lengths[d], size[d], factors[d], roi=bounds, **options)
        axis = first + d
        matrix = torch.as_tensor(matrix, dtype=src.dtype)
        result = torch.movedim(torch.tensordot(result, matrix, ([axis], [1])), -1, axis)
        shape = [1] * src.dim()
        shape[axis] = size[d]
        covered = covered | torch.as_tensor(outside).reshape(shape)
    if covered.any():
        result = torch.where(covered, torch.tensor(extrapolation_value, dtype=src.dtype), result)
    return result
