"""Resample: Resize, or AveragePool for areas of whole pixels.

Resize takes either the sizes of the result or the scales. It computes its coordinates of the scale
or, of sizes, of their ratio, so that sizes stand for calls whose scale is that ratio.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from onnxscript import ir

from torch_dnnl.onnx._graph import (
    BFLOAT16,
    DOUBLE,
    FLOAT,
    FLOAT16,
    INT16,
    INT32,
    Size,
    Value,
    cast,
    channels_first,
    channels_last,
    constant,
    convert,
    is_known,
    opset,
    refuse,
    shape,
    traced_size,
    translates,
    vector,
)

# Of the nearest mode: rules that ONNX has not, or no longer, and what is the same function. With
# the x of half_pixel, floor((o + 0.5) / s) is floor(x + 0.5), ceil((o + 0.5) / s - 0.5) is ceil(x).
NEAREST = {
    ("torch_nearest", None): ("asymmetric", "floor"),
    ("torch_nearest_exact", None): ("half_pixel", "round_prefer_ceil"),
    ("tf_half_pixel_for_nn", "floor"): ("half_pixel", "round_prefer_ceil"),
    ("tf_half_pixel_for_nn", "round_prefer_floor"): ("half_pixel", "ceil"),
}
OWN = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
)


@translates("resample")
def resample(call: SimpleNamespace) -> Value:
    source, target = call.src.dtype, call.dtype or call.src.dtype
    is_nxc, rank = call.data_format == "NXC", len(call.src.shape)
    if call.mode in ("lanczos3", "lanczos5"):
        refuse("resample", "mode to be nearest, linear, cubic or area", f'"{call.mode}"')
    # Nearest pixels are copied as they are, but for the number that they may have outside.
    is_copy = call.mode == "nearest" and call.coordinates != "tf_crop_and_resize"
    computed = type_of(source, target, is_copy)
    sizes = shape(call.src)
    image = channels_first(cast(call.src, source, computed), is_nxc, rank)
    problem = Problem(call, sizes[1:-1] if is_nxc else sizes[2:])
    value = problem.averaged(image) if call.mode == "area" else problem.resized(image)
    return channels_last(convert("resample", value, computed, target), is_nxc, rank)


def type_of(source: Any, target: Any, is_copy: bool) -> Any:
    """What is computed in: as ours, or in the type itself where ONNX has the operator for it."""
    if is_copy:
        return {BFLOAT16: FLOAT, INT16: INT32}.get(source, source)
    if source in (DOUBLE, INT32):
        return DOUBLE
    return FLOAT16 if source == target == FLOAT16 else FLOAT


def scaled_size(size: Size, factor: float, as_float: bool = False) -> Size:
    """floor(size * factor), the factor an int if it is whole, or a float all the same."""
    to_int: Any = torch.sym_int
    return to_int(size * factor) if as_float or not factor.is_integer() else size * int(factor)


class Problem:
    """The sizes and the scales of a call, in numbers or in the symbols of torch.export."""

    def __init__(self, call: SimpleNamespace, sizes: tuple[Size, ...]) -> None:
        self.call = call
        self.sizes = sizes
        self.factors: list[float] = list(call.scales or [])
        self.out: list[Size] = [traced_size(size) for size in call.size or []]
        if self.factors:
            scaled = [scaled_size(i, f) for i, f in zip(sizes, self.factors, strict=True)]
            self.out = self.out or scaled
            # The coordinates are those of the sizes there, the stretch of a filter is the factor's.
            if call.coordinates == "tf_crop_and_resize" and not call.antialias:
                self.factors = []
            # A size may have been made of an int or a float.
            elif not all(
                is_known(out == size) or is_known(out == scaled_size(i, f, as_float=True))
                for out, size, i, f in zip(self.out, scaled, sizes, self.factors, strict=True)
            ):
                refuse(
                    "resample",
                    f"size to be floor(input size * scale_factor), {scaled}, where the coordinates "
                    "come from scale_factor",
                    self.out,
                )

    def averaged(self, image: Value) -> Value:
        op = opset()
        if all(is_known(out == 1) for out in self.out):
            return op.GlobalAveragePool(image)
        for size, out in zip(self.sizes, self.out, strict=True):
            if not (isinstance(size, int) and isinstance(out, int) and size % out == 0):
                refuse(
                    "resample",
                    'known sizes that are multiples of the output\'s with mode="area"',
                    f"{list(self.sizes)} to {self.out}",
                )
        windows = [size // out for size, out in zip(self.sizes, self.out, strict=True)]
        return op.AveragePool(image, kernel_shape=windows, strides=windows)

    def rule(self) -> tuple[str, str]:
        """coordinate_transformation_mode and nearest_mode; and makes the factors those of it."""
        call = self.call
        rule, rounding = call.coordinates, call.nearest_mode
        if call.mode == "nearest":
            rule = rule.removesuffix("_direct")
            known = NEAREST.get((rule, None)) or NEAREST.get((rule, rounding))
            if known is not None:
                return known
        if rule == "half_pixel_symmetric" and self.scales() is None:
            rule = "half_pixel"
        if rule == "half_pixel_symmetric" and opset().version < 19:
            refuse(
                "resample",
                'opset_version to be 19 or more with coordinates="half_pixel_symmetric" and '
                "recompute_scale_factor=False",
                opset().version,
            )
        if rule == "torch_linear":
            self.keep_sizes()
            rule = "half_pixel"
        if rule == "torch_antialias_corners" and self.keeps_all():
            rule, self.factors = "half_pixel", []
        if rule == "align_corners":
            self.check_corners()
        if rule not in OWN:
            rounded = f' and nearest_mode="{rounding}"' if call.mode == "nearest" else ""
            refuse(
                "resample",
                f"coordinates to be one of {', '.join(OWN)}, or the same function as one of these",
                f'"{rule}" with mode="{call.mode}"{rounded}',
            )
        return rule, rounding

    def keeps_all(self) -> bool:
        return all(is_known(i == o) for i, o in zip(self.sizes, self.out, strict=True))

    def keep_sizes(self) -> None:
        """An axis that keeps its size is copied: as if by a factor of 1."""
        for d, (size, factor) in enumerate(zip(self.sizes, self.factors, strict=False)):
            if is_known(self.out[d] == size):
                self.factors[d] = 1.0
            # A factor above 1 keeps sizes below 1 / (factor - 1), and one pixel is always copied.
            elif 1 < factor < 1.5 and not isinstance(size, int):
                least = math.ceil(1 / (factor - 1))
                if not is_known(size >= least):
                    refuse(
                        "resample",
                        f"sizes of at least {least} (the min of a Dim) with a scale_factor of "
                        f"{factor}, as smaller ones would keep their size and be copied",
                        size,
                    )

    def check_corners(self) -> None:
        """The length of the result is a whole number in ONNX, but the factor's multiple in ours."""
        for size, factor in zip(self.sizes, self.factors, strict=False):
            is_whole = factor.is_integer() or (
                isinstance(size, int) and (size * factor).is_integer()
            )
            if not is_whole:
                refuse(
                    "resample",
                    'scale_factor * input size to be a whole number with "align_corners" and '
                    "recompute_scale_factor=False",
                    f"{factor} * {size}",
                )

    def resized(self, image: Value) -> Value:
        call, op = self.call, opset()
        rule, rounding = self.rule()
        attributes: dict[str, Any] = {"mode": call.mode, "coordinate_transformation_mode": rule}
        if call.mode == "nearest":
            attributes["nearest_mode"] = rounding
        if call.mode == "cubic":
            attributes["cubic_coeff_a"] = call.cubic_coeff_a
        if call.antialias:
            attributes["antialias"] = 1
        # Of two neighbours, clamping the one outside is the same as leaving it out.
        if call.exclude_outside and (call.antialias or call.mode == "cubic"):
            attributes["exclude_outside"] = 1
        roi = None
        if rule == "tf_crop_and_resize":
            attributes["extrapolation_value"] = call.extrapolation_value
            n = len(self.sizes)
            roi = constant([0.0, 0.0, *call.roi[:n], 1.0, 1.0, *call.roi[n:]], FLOAT)
        scales = self.scales()
        if scales is not None:
            if rule == "tf_crop_and_resize":  # whose result would be that of the region alone
                refuse("resample", f'size alone with antialias and coordinates="{rule}"', scales)
            return op.Resize(image, roi, constant([1.0, 1.0, *scales], FLOAT), **attributes)
        sizes = call.size or self.out
        if not all(isinstance(size, (int, ir.Value)) for size in sizes):
            refuse("resample", f'size to be given with coordinates="{rule}"', "scale_factor alone")
        size = vector(sizes)
        outer = op.Shape(image, start=0, end=2)
        return op.Resize(image, roi, None, op.Concat(outer, size, axis=0), **attributes)

    def scales(self) -> list[float] | None:
        """What Resize gets as scales, in float32; None: sizes."""
        if not self.factors:
            return None
        sizes = list(zip(self.sizes, self.out, self.factors, strict=True))
        is_static = all(isinstance(i, int) and isinstance(o, int) for i, o, _ in sizes)
        if is_static and all(factor == o / i for i, o, factor in sizes):
            return None
        return [self.scale(size, out, factor) for size, out, factor in sizes]

    def scale(self, size: Size, out: Size, factor: float) -> float:
        """The float32 next to a factor by which a size becomes that of the result."""
        nearest = np.float32(factor)
        if not isinstance(size, int):
            return float(nearest)
        for scale in (nearest, np.nextafter(nearest, np.float32(np.inf))):
            if math.floor(np.float32(size) * scale) == out:
                return float(scale)
        refuse("resample", f"a float32 scale_factor that makes {out} of {size}", factor)
