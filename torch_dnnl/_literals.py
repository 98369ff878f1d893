"""The names that arguments may have as a str. A type checker reports any other one.

The tables in functional/ are made of these types, by `typing.get_args`. The operators have lists of
their own; tests/project/test_public.py compares them. Format tags and names of kernels are open,
and have no list.
"""

from typing import Literal

# resample
Mode = Literal["nearest", "linear", "cubic", "lanczos3", "lanczos5", "area"]
Coordinates = Literal[
    "half_pixel",
    "align_corners",
    "asymmetric",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
]
NearestMode = Literal["round_prefer_ceil", "round_prefer_floor", "floor", "ceil"]

# interpolate
TorchMode = Literal[
    "nearest",
    "nearest-exact",
    "area",
    "linear",
    "bilinear",
    "trilinear",
    "bicubic",
    "lanczos",
]

# convolution and its kin
DataFormat = Literal["NCX", "NXC"]
WeightsFormat = Literal["OIX", "XIO"]
TransposedWeightsFormat = Literal["IOX", "XOI"]
AutoPad = Literal["none", "same_upper", "same_lower", "valid"]
TorchPadding = Literal["valid", "same", "same_upper", "same_lower"]
Activation = Literal[
    "relu",
    "relu6",
    "silu",
    "gelu",
    "gelu_tanh",
    "sigmoid",
    "tanh",
    "hardswish",
    "hardsigmoid",
    "mish",
    "softplus",
    "leaky_relu",
    "elu",
    "clamp",
    "prelu",
]
PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]

# reorder
Compensation = Literal["s8s8"]
