"""Modules that resize: `Upsample`, torch's with our kernels, and `Resample`, oneDNN's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_dnnl import functional
from torch_dnnl._literals import Coordinates, DataFormat, Mode, NearestMode, TorchMode
from torch_dnnl.nn._repr import argument_repr, library_name


class Upsample(torch.nn.Upsample):
    """`torch.nn.Upsample` over `torch_dnnl.functional.interpolate`.

    Args:
        size, scale_factor, mode, align_corners, recompute_scale_factor: as in torch.

    Shape:
        [N, C, W], [N, C, H, W] or [N, C, D, H, W] -> the same with the new spatial sizes.

    Example:
        >>> Upsample(scale_factor=2, mode="bilinear")(torch.rand(1, 3, 8, 8)).shape
        torch.Size([1, 3, 16, 16])

    Definition: `torch.nn.Upsample`.
    """

    mode: TorchMode
    _get_name = library_name

    def __init__(
        self,
        size: int | tuple[int, ...] | None = None,
        scale_factor: float | tuple[float, ...] | None = None,
        mode: TorchMode = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__(size, scale_factor, mode, align_corners, recompute_scale_factor)

    def forward(self, input: Tensor) -> Tensor:
        return functional.interpolate(
            input,
            self.size,
            self.scale_factor,
            self.mode,
            self.align_corners,
            self.recompute_scale_factor,
        )


class Resample(torch.nn.Module):
    """`torch_dnnl.functional.resample` with its arguments fixed.

    Args:
        others: the arguments of `torch_dnnl.functional.resample` after `src`, with its defaults.

    Shape:
        As `torch_dnnl.functional.resample`.

    Example:
        >>> half = Resample(scale_factor=0.5, mode="cubic", antialias=True, data_format="NXC")
        >>> half(torch.rand(1, 8, 8, 3)).shape
        torch.Size([1, 4, 4, 3])

    Definition: the oneDNN Resampling primitive and the ONNX Resize operator.
    """

    def __init__(
        self,
        size: int | Sequence[int] | None = None,
        scale_factor: float | Sequence[float] | None = None,
        *,
        mode: Mode = "linear",
        coordinates: Coordinates = "half_pixel",
        nearest_mode: NearestMode = "round_prefer_ceil",
        antialias: bool = False,
        cubic_coeff_a: float = -0.75,
        exclude_outside: bool = False,
        roi: Sequence[float] | None = None,
        extrapolation_value: float = 0.0,
        recompute_scale_factor: bool = True,
        data_format: DataFormat = "NCX",
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.size = size
        self.scale_factor = scale_factor
        self.mode = mode
        self.coordinates = coordinates
        self.nearest_mode = nearest_mode
        self.antialias = antialias
        self.cubic_coeff_a = cubic_coeff_a
        self.exclude_outside = exclude_outside
        self.roi = roi
        self.extrapolation_value = extrapolation_value
        self.recompute_scale_factor = recompute_scale_factor
        self.data_format = data_format
        self.dtype = dtype

    def forward(self, src: Tensor) -> Tensor:
        return functional.resample(
            src,
            self.size,
            self.scale_factor,
            mode=self.mode,
            coordinates=self.coordinates,
            nearest_mode=self.nearest_mode,
            antialias=self.antialias,
            cubic_coeff_a=self.cubic_coeff_a,
            exclude_outside=self.exclude_outside,
            roi=self.roi,
            extrapolation_value=self.extrapolation_value,
            recompute_scale_factor=self.recompute_scale_factor,
            data_format=self.data_format,
            dtype=self.dtype,
        )

    def extra_repr(self) -> str:
        return argument_repr(self, Resample)
