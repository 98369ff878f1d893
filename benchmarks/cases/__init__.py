"""What is timed: for each operator, our call and the best spelling of it that a user of torch (or,
where a name says so, of Pillow or oneDNN) has. A GPU gets larger batches: outputs of 512 MB for
Resample, tensors of 1 GB for Reorder, 8 times as many images for convolution.
"""

from .case import Case
from .conv import conv
from .conv_transpose import conv_transpose
from .reorder import reorder
from .resample import images, overhead, resample

__all__ = ["FEW", "OPERATORS", "Case"]

OPERATORS = {
    "overhead": overhead,
    "resample": resample,
    "images": images,
    "reorder": reorder,
    "conv": conv,
    "conv_transpose": conv_transpose,
}

# Beginnings of the names of a few cases, of every kind, with which choices of kernels are checked.
FEW = {
    "resample": (
        *("nearest x2 nchw f32", "nearest x2 nhwc f32", "bilinear x2 n", "bicubic x2 nchw bf16"),
        *("bilinear x0.5 n", "bicubic antialias nhwc", "area nchw f32"),
    ),
    "images": ("256 to 224 antialias n", "1080p x0.5 nhwc", "1080p x2 nchw"),
    "reorder": (
        *("nchw to n", "nhwc to nchw u8", "f32 to bf16", "f32 nchw to bf16 nhwc", "nChw16c to"),
        *("oihw to O", "quantize per channel", "dequantize", "sum nchw to", "fake quantize"),
    ),
    "conv": tuple(
        f"{layer} {layout} "
        for layout in ("ncx", "nxc")
        for layer in (
            *("rn50.conv1", "rn50.3x3.56", "rn50.3x3.7", "rn50.1x1.56", "rn50.3x3s2.56"),
            *("resnext.g32", "mbv2.dw14", "effnet.dw5s2", "convnext.dw7.7", "x3d.dw", "aspp.d12"),
            *("wavenet.d512", "vit.patch"),
        )
    ),
}
