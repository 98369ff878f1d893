"""The modules of the package: parameters around the functions."""

from torch_dnnl.nn import _script
from torch_dnnl.nn.conv import Conv, Conv1d, Conv2d, Conv3d
from torch_dnnl.nn.conv_transpose import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from torch_dnnl.nn.quantized import QuantizedConv1d, QuantizedConv2d, QuantizedConv3d
from torch_dnnl.nn.reorder import Reorder
from torch_dnnl.nn.resample import Resample, Upsample

__all__ = [
    "Conv",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "QuantizedConv1d",
    "QuantizedConv2d",
    "QuantizedConv3d",
    "Reorder",
    "Resample",
    "Upsample",
]

_script.refuse_scripting(
    *(Conv, Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d),
    *(QuantizedConv1d, QuantizedConv2d, QuantizedConv3d, Reorder, Resample, Upsample),
)
