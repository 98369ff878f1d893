"""The functions of the package: each spells its arguments and calls one operator."""

from torch_dnnl.functional._conv import conv1d, conv2d, conv3d, convolution
from torch_dnnl.functional._conv_transpose import (
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
    convolution_transpose,
)
from torch_dnnl.functional._packed import PackedWeights, pack_weights
from torch_dnnl.functional._quantized import quantized_convolution
from torch_dnnl.functional._reorder import fake_reorder, reorder
from torch_dnnl.functional._resample import interpolate, resample

__all__ = [
    "PackedWeights",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "convolution",
    "convolution_transpose",
    "fake_reorder",
    "interpolate",
    "pack_weights",
    "quantized_convolution",
    "reorder",
    "resample",
]
