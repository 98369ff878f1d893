"""Bad calls: an exception of the promised type that names the function and the
argument. Never a crash, a hang or a result."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import torch_dnnl.functional as D

IMAGE = torch.randn(2, 3, 5, 4)
WEIGHT = torch.randn(4, 3, 3, 3)
NXC = torch.randn(2, 5, 4, 3)
XIO = torch.randn(3, 3, 3, 4)
OUT_OF_3 = torch.randn(3, 4, 3, 3)  # weights of transposed convolutions
XOI = torch.randn(3, 3, 4, 3)
HUGE = 2**62
LINEAR = ("linear", "half_pixel")


def bad(function, *args, error=ValueError, names="", **kwargs):
    """One bad call; `names`: what the message must mention."""
    shown = [f"{k}={'tensor' if isinstance(v, torch.Tensor) else v}" for k, v in kwargs.items()]
    return pytest.param(
        function, args, kwargs, error, names, id="-".join([function, names, *shown])
    )


NAN, INF = math.nan, math.inf

CALLS = [
    # resample
    bad("resample", torch.randn(3, 4), 3, names="src"),
    bad("resample", torch.randn(1, 1, 2, 2, 2, 2), 3, names="src"),
    bad("resample", torch.randn(2, 3, 0, 4), (2, 2), names="src"),
    bad("resample", IMAGE, names="size"),
    bad("resample", IMAGE, (3,), names="size"),
    bad("resample", IMAGE, (), names="size", scale_factor=2.0, recompute_scale_factor=False),
    bad("resample", IMAGE, (0, 4), names="size"),
    bad("resample", IMAGE, (-1, 4), names="size"),
    bad("resample", IMAGE, names="scale_factor", scale_factor=NAN),
    bad("resample", IMAGE, names="scale_factor", scale_factor=INF),
    bad("resample", IMAGE, names="scale_factor", scale_factor=-2.0),
    bad("resample", IMAGE, names="", scale_factor=0.0),
    bad("resample", IMAGE, names="scale_factor", scale_factor=(2.0,)),
    bad("resample", IMAGE, names="scale_factor", error=TypeError, scale_factor="2"),
    bad("resample", IMAGE, 4, names="scale_factor", scale_factor=NAN),
    bad("resample", IMAGE, 4, names="scale_factor", scale_factor=NAN, recompute_scale_factor=True),
    bad(
        "resample",
        IMAGE,
        4,
        names="scale_factor",
        error=TypeError,
        scale_factor="2",
        recompute_scale_factor=True,
    ),
    bad(
        "interpolate",
        IMAGE,
        names="scale_factor",
        error=TypeError,
        scale_factor="2",
        mode="bilinear",
        align_corners=True,
    ),
    bad(
        "interpolate",
        IMAGE,
        names="align_corners",
        error=TypeError,
        scale_factor=2,
        mode="bilinear",
        align_corners=1,
    ),
    bad("resample", IMAGE, names="", scale_factor=1e-3),
    bad(
        "resample",
        IMAGE,
        (4, 4),
        names="scale_factor",
        scale_factor=1e-12,
        recompute_scale_factor=False,
        antialias=True,
    ),
    bad("resample", IMAGE, (4, 4), names="mode", mode="quadratic"),
    bad("resample", IMAGE, (4, 4), names="coordinates", coordinates="corner"),
    bad("resample", IMAGE, (4, 4), names="coordinates", coordinates="torch_nearest"),
    bad("resample", IMAGE, (4, 4), names="nearest_mode", nearest_mode="round"),
    bad("resample", IMAGE, (4, 4), names="data_format", data_format="NHWC"),
    bad("resample", IMAGE, (4, 4), names="cubic_coeff_a", mode="cubic", cubic_coeff_a=NAN),
    bad("resample", IMAGE, (4, 4), names="roi", coordinates="tf_crop_and_resize"),
    bad(
        "resample", IMAGE, (4, 4), names="roi", coordinates="tf_crop_and_resize", roi=[0, 0, INF, 1]
    ),
    bad("resample", IMAGE, (4, 4), names="roi", roi=[NAN, 0, 1, 1]),
    bad("resample", IMAGE, (4, 4), names="roi", roi=[0, 1]),
    bad("resample", IMAGE, (4, 4), names="roi", error=TypeError, roi=""),
    bad("resample", IMAGE, (4, 4), names="roi", error=TypeError, roi=[True] * 4),
    bad("resample", IMAGE, (4, 4), names="antialias", error=TypeError, antialias=1.5),
    bad("resample", IMAGE, (4, 4), names="exclude_outside", error=TypeError, exclude_outside=None),
    bad("resample", IMAGE, 4, names="cubic_coeff_a", error=TypeError, cubic_coeff_a=True),
    bad("resample", IMAGE, names="scale_factor", error=TypeError, scale_factor=True),
    bad(
        "resample",
        IMAGE,
        names="recompute_scale_factor",
        error=TypeError,
        scale_factor=2.0,
        recompute_scale_factor="no",
    ),
    bad("resample", IMAGE, (4, 4), names="extrapolation_value", extrapolation_value=NAN),
    bad(
        "resample",
        IMAGE,
        (4, 4),
        names="antialias",
        error=NotImplementedError,
        mode="nearest",
        antialias=True,
    ),
    bad("resample", IMAGE, (4, 4), names="dtype", error=TypeError, dtype=torch.complex64),
    bad("resample", IMAGE.bool(), (4, 4), names="src", error=TypeError),
    bad("resample", IMAGE.to_sparse(), (4, 4), names="src", error=(TypeError, NotImplementedError)),
    bad("resample", [[1.0]], (4, 4), names="src", error=TypeError),
    bad("resample", IMAGE, "4", names="size", error=TypeError),
    bad("resample", IMAGE, (HUGE, HUGE), error=RuntimeError),
    bad("resample", IMAGE, (4, HUGE), error=RuntimeError),
    bad("resample", IMAGE, (Fraction(9, 2), 4), names="size", error=TypeError),
    bad("resample", IMAGE, True, names="size", error=TypeError),
    bad("resample", IMAGE, 4, names="cubic_coeff_a", mode="cubic", cubic_coeff_a=1e39),
    # reorder
    bad("reorder", IMAGE, "abce", names="dst_format"),
    bad("reorder", IMAGE, "abc", names="dst_format"),
    bad("reorder", IMAGE, "aBcd", names="dst_format"),
    bad("reorder", IMAGE, "abcd8b", names="dst_format"),
    bad("reorder", IMAGE, "aBcd0b", names="dst_format"),
    bad("reorder", IMAGE, "", names="dst_format"),
    bad("reorder", IMAGE, "n!hw", names="dst_format"),
    bad("reorder", IMAGE, "aBcd99999999999999999999b", names="dst_format"),
    bad("reorder", IMAGE, names="src", src_format="nChw8c"),
    bad(
        "reorder", torch.randn(2, 1, 5, 4, 8), names="size", src_format="nChw8c", size=(2, 9, 5, 4)
    ),
    bad("reorder", torch.randn(2, 1, 5, 4, 8), names="size", src_format="nChw8c", size=(2, 3, 5)),
    bad("reorder", IMAGE, names="scale", scale=NAN),
    bad("reorder", IMAGE, names="scale", scale=0.0),
    bad("reorder", IMAGE, names="dst_scale", dst_scale=INF),
    bad("reorder", IMAGE, names="dst_scale", dst_scale=0),
    bad("reorder", IMAGE, names="src_zero_point", src_zero_point=NAN),
    bad("reorder", IMAGE, names="dst_zero_point", dtype=torch.uint8, dst_zero_point=256),
    bad("reorder", IMAGE, names="dst_zero_point", dtype=torch.int8, dst_zero_point=-129),
    bad("reorder", IMAGE, names="scale", scale=torch.ones(3)),
    bad("reorder", IMAGE, names="axis=", scale=torch.ones(3)),
    bad("fake_reorder", IMAGE, names="axis=", dtype=torch.int8, dst_scale=torch.ones(3)),
    bad("fake_reorder", IMAGE, names="axis=", dtype=torch.int8, src_zero_point=torch.ones(1)),
    bad("reorder", IMAGE, names="axis to be from -4 to 3", axis=4),
    bad("reorder", IMAGE, names="axis to be from -4 to 3", axis=-5),
    bad("fake_reorder", IMAGE, names="axis to be from -4 to 3", dtype=torch.int8, axis=4),
    bad("reorder", IMAGE, names="axis", error=TypeError, axis=True),
    bad("reorder", IMAGE, names="axis", error=TypeError, axis=1.0),
    bad("fake_reorder", IMAGE, names="axis", error=TypeError, dtype=torch.int8, axis="1"),
    bad("reorder", IMAGE, names="axis", axis=HUGE * HUGE),
    bad("reorder", IMAGE, names="dst_scale", axis=1, dst_scale=torch.ones(5)),
    bad("reorder", IMAGE, names="src_zero_point", axis=3, src_zero_point=torch.ones(2)),
    bad("reorder", IMAGE, names="scale", axis=2, scale=torch.ones(0)),
    bad("reorder", IMAGE, names="scale", axis=1, scale=torch.ones(3, 1)),
    bad("fake_reorder", IMAGE, names="scale", dtype=torch.int8, axis=1, dst_scale=torch.ones(2)),
    bad("reorder", IMAGE, names="scale", error=TypeError, axis=1, scale=True),
    bad("reorder", IMAGE, names="src", axis=1, scale=torch.ones(3), src_format="nChw8c"),
    bad("reorder", IMAGE, names="src_format", axis=1, scale=torch.ones(3), src_format="nC!8c"),
    bad("reorder", IMAGE, names="size", axis=1, scale=torch.ones(3), size=(2, 3, 5)),
    bad("reorder", [[1.0]], names="src", error=TypeError, axis=1),
    bad("reorder", IMAGE, names="scale", scale=torch.ones(1, 2, 1, 1)),
    bad("reorder", IMAGE, names="scale", scale=torch.ones(1, 0, 1, 1)),
    bad(
        "reorder",
        IMAGE,
        names="scale",
        error=TypeError,
        scale=torch.ones(1, 3, 1, 1, dtype=torch.int32),
    ),
    bad("reorder", IMAGE, names="accumulate", accumulate=torch.ones(2, 3, 5)),
    bad("reorder", IMAGE, names="accumulate", accumulate=torch.ones(2, 3, 5, 1)),
    bad("reorder", IMAGE, names="beta", accumulate=IMAGE, beta=INF),
    bad("reorder", IMAGE, names="beta", error=TypeError, beta=torch.ones(2)),
    bad("fake_reorder", IMAGE, names="beta", dtype=torch.int8, beta=NAN),
    bad("reorder", IMAGE, names="dtype", error=TypeError, dtype=torch.int64),
    bad("reorder", IMAGE.cfloat(), names="src", error=TypeError),
    bad("reorder", IMAGE, names="dst_scale", error=TypeError, dst_scale=True),
    bad("reorder", IMAGE, names="src_zero_point", error=TypeError, src_zero_point=False),
    bad("reorder", IMAGE, names="beta", error=TypeError, accumulate=IMAGE, beta=True),
    bad(
        "reorder",
        IMAGE,
        names="round_before_zero_point",
        error=TypeError,
        round_before_zero_point=1,
    ),
    bad("reorder", IMAGE, 5, names="dst_format", error=TypeError),
    # conv2d: the types that torch raises
    bad("conv2d", IMAGE, WEIGHT, names="stride", error=RuntimeError, stride=0),
    bad("conv2d", IMAGE, WEIGHT, names="stride", error=RuntimeError, stride=-1),
    bad("conv2d", IMAGE, WEIGHT, names="dilation", error=RuntimeError, dilation=0),
    bad("conv2d", IMAGE, WEIGHT, names="groups", error=RuntimeError, groups=0),
    bad("conv2d", IMAGE, WEIGHT, names="groups", error=RuntimeError, groups=2),
    bad("conv2d", IMAGE, WEIGHT, names="padding", error=RuntimeError, padding=-1),
    bad("conv2d", IMAGE, WEIGHT, names="padding", error=RuntimeError, padding="same", stride=2),
    bad("conv2d", IMAGE, WEIGHT, error=RuntimeError, names="padding", padding="reflect"),
    bad("conv2d", IMAGE, WEIGHT, error=RuntimeError, stride=(1, 1, 1), names="stride"),
    bad("conv2d", IMAGE, WEIGHT[:, :, :, :0], names="weight", error=RuntimeError),
    bad("conv2d", IMAGE, torch.randn(4, 3, 9, 3), error=RuntimeError),
    bad("conv2d", IMAGE, WEIGHT[0], names="weight", error=RuntimeError),
    bad("conv2d", IMAGE, WEIGHT.double(), error=RuntimeError),
    bad("conv2d", IMAGE, WEIGHT, torch.randn(5), names="bias", error=RuntimeError),
    bad("conv2d", IMAGE[0, 0], WEIGHT, names="input", error=RuntimeError),
    bad("conv2d", IMAGE[..., None], WEIGHT[..., None], names="input", error=RuntimeError),
    bad("conv3d", IMAGE[0], WEIGHT[:, :, 0], names="input", error=RuntimeError),
    bad("conv2d", IMAGE, WEIGHT, error=RuntimeError, padding=HUGE),
    bad("conv2d", IMAGE, WEIGHT, error=RuntimeError, dilation=HUGE),
    bad("conv2d", IMAGE, WEIGHT, error=RuntimeError, padding=2**40),
    bad("conv2d", IMAGE, WEIGHT, names="padding", error=RuntimeError, padding=2**31 - 1),
    bad("conv2d", IMAGE[:0], WEIGHT, names="padding", error=RuntimeError, padding=2**31 - 1),
    bad("conv2d", IMAGE, WEIGHT[:1, :1, :1, :1].expand(6, 3, 2**28, 2**28), error=RuntimeError),
    bad("conv2d", [1], WEIGHT, error=TypeError),
    bad("conv2d", IMAGE, WEIGHT, names="stride", error=TypeError, stride=True),
    bad("conv2d", IMAGE, WEIGHT, names="dilation", error=TypeError, dilation=[True, 1]),
    bad("conv2d", IMAGE, WEIGHT, names="groups", error=TypeError, groups=True),
    bad("conv2d", IMAGE, WEIGHT, names="padding", error=TypeError, padding=(1, False)),
    bad("conv2d", IMAGE, WEIGHT, names="padding", error=TypeError, padding=((1, 2), (3,))),
    bad("conv2d", IMAGE, WEIGHT, names="stride", error=TypeError, stride=1.0),
    bad("conv2d", IMAGE, WEIGHT, names="stride", error=TypeError, stride=np.float32(1.5)),
    bad("conv2d", IMAGE, WEIGHT, names="padding", error=TypeError, padding=(np.True_, 1)),
    bad("conv2d", IMAGE, WEIGHT, names="padding", error=TypeError, padding=((1, True), (1, 1))),
    bad("conv2d", IMAGE, WEIGHT, names="dilation", error=TypeError, dilation=[1, np.float32(2)]),
    bad("conv2d", IMAGE, WEIGHT, names="groups", error=TypeError, groups=torch.tensor(1.5)),
    bad("conv2d", IMAGE, WEIGHT, names="groups", error=TypeError, groups=torch.tensor(True)),
    bad("conv2d", IMAGE.bool(), WEIGHT.bool(), names="input", error=NotImplementedError),
    # convolution
    bad("convolution", NXC, XIO, names="strides", strides=0),
    bad("convolution", NXC, XIO, names="dilations", dilations=-1),
    bad("convolution", NXC, XIO, names="pads_begin", pads_begin=-1),
    bad("convolution", NXC, XIO, names="pads_end", pads_end=(1, 2, 3)),
    bad("convolution", NXC, XIO, names="pads", pads_begin=2**30),
    bad("convolution", NXC, XIO, names="activation", pads_begin=2**30, activation="no"),
    bad("convolution", NXC, XIO, names="pads", pads_begin=2**30, activation="relu"),
    bad("convolution", NXC, XIO, names="groups", groups=0),
    bad("convolution", NXC, XIO, names="groups", groups=2),
    bad("convolution", NXC, XIO, names="auto_pad", auto_pad="same"),
    bad("convolution", NXC, XIO, names="data_format", data_format="NHWC"),
    bad("convolution", NXC, XIO, names="weights_format", weights_format="HWIO"),
    bad("convolution", NXC, XIO[:, :, :2], names="weights"),
    bad("convolution", NXC, XIO[:0], names="weights"),
    bad("convolution", NXC[:, :0], XIO, names=""),
    bad("convolution", NXC, XIO.double(), names="weights", error=TypeError),
    bad("convolution", NXC.int(), XIO.int(), names="src", error=TypeError),
    bad("convolution", NXC, XIO, names="strides", error=TypeError, strides=True),
    bad("convolution", NXC, XIO, names="dilations", error=TypeError, dilations=1.0),
    bad("convolution", NXC, XIO, names="pads_begin", error=TypeError, pads_begin=False),
    bad("convolution", NXC, XIO, names="pads_end", error=TypeError, pads_end=(True, 1)),
    bad("convolution", NXC, XIO, names="groups", error=TypeError, groups=True),
    bad("convolution", NXC, XIO, names="strides", error=TypeError, strides=np.float32(1.5)),
    bad("convolution", NXC, XIO, names="algorithm", error=TypeError, algorithm=b"auto"),
    bad("convolution", NXC, XIO, names="auto_pad", error=TypeError, auto_pad=b"valid"),
    bad("convolution", NXC, XIO, names="data_format", error=TypeError, data_format=b"NXC"),
    bad("convolution", NXC, XIO, names="activation", activation="softmax"),
    bad("convolution", NXC, XIO, names="residual", residual=torch.randn(1)),
    # conv_transpose2d
    bad("conv_transpose2d", IMAGE, OUT_OF_3, names="stride", error=RuntimeError, stride=0),
    bad("conv_transpose2d", IMAGE, OUT_OF_3, names="dilation", error=RuntimeError, dilation=-1),
    bad("conv_transpose2d", IMAGE, OUT_OF_3, names="padding", error=RuntimeError, padding=-1),
    bad("conv_transpose2d", IMAGE, OUT_OF_3, names="", error=RuntimeError, padding=9),
    bad("conv_transpose2d", IMAGE, OUT_OF_3, names="", error=RuntimeError, padding=HUGE),
    bad("conv_transpose2d", IMAGE, OUT_OF_3, names="", error=RuntimeError, stride=2**40),
    bad("conv_transpose2d", IMAGE, OUT_OF_3, names="", error=RuntimeError, stride=HUGE),
    bad(
        "conv_transpose2d",
        IMAGE,
        OUT_OF_3,
        names="output_padding",
        error=RuntimeError,
        output_padding=1,
    ),
    bad(
        "conv_transpose2d",
        IMAGE,
        OUT_OF_3,
        names="output_padding",
        error=RuntimeError,
        stride=2,
        output_padding=-1,
    ),
    bad("conv_transpose2d", IMAGE, OUT_OF_3, names="stride", error=RuntimeError, stride=(1, 1, 1)),
    bad("conv_transpose2d", IMAGE, OUT_OF_3, names="groups", error=RuntimeError, groups=2),
    bad("conv_transpose2d", IMAGE, OUT_OF_3, names="groups", error=RuntimeError, groups=0),
    bad("conv_transpose2d", IMAGE, OUT_OF_3[0], names="weight", error=RuntimeError),
    bad("conv_transpose2d", IMAGE, OUT_OF_3[:2], names="input", error=RuntimeError),
    bad("conv_transpose2d", IMAGE, OUT_OF_3.double(), error=RuntimeError),
    bad("conv_transpose2d", IMAGE, OUT_OF_3, torch.randn(3), names="bias", error=RuntimeError),
    bad("conv_transpose2d", IMAGE[0, 0], OUT_OF_3, names="input", error=RuntimeError),
    bad("conv_transpose2d", IMAGE[:, :, :0], OUT_OF_3, names="", error=RuntimeError),
    bad("conv_transpose2d", [1], OUT_OF_3, names="input", error=TypeError),
    bad("conv_transpose2d", IMAGE, OUT_OF_3, names="stride", error=TypeError, stride=True),
    bad("conv_transpose2d", IMAGE, OUT_OF_3, names="padding", error=TypeError, padding="same"),
    bad("conv_transpose2d", IMAGE, OUT_OF_3, names="groups", error=TypeError, groups=1.0),
    bad("conv_transpose2d", IMAGE.bool(), OUT_OF_3.bool(), error=NotImplementedError),
    # convolution_transpose
    bad("convolution_transpose", NXC, XOI, names="strides", strides=0),
    bad("convolution_transpose", NXC, XOI, names="pads", pads_begin=(0, -1)),
    bad("convolution_transpose", NXC, XOI, names="pads_end", pads_end=(1, 2, 3)),
    bad("convolution_transpose", NXC, XOI, names="output_padding", output_padding=-1),
    bad("convolution_transpose", NXC, XOI, names="output_padding", output_padding=()),
    bad("convolution_transpose", NXC, XOI, names="", output_padding=2**40),
    bad("convolution_transpose", NXC, XOI, names="", dilations=2**40),
    bad("convolution_transpose", NXC, XOI, names="pads", pads_begin=20),
    bad("convolution_transpose", NXC, XOI, names="auto_pad", auto_pad="same"),
    bad("convolution_transpose", NXC, XOI, names="data_format", data_format="NHWC"),
    bad("convolution_transpose", NXC, XOI, names="weights_format", weights_format="XIO"),
    bad("convolution_transpose", NXC, XOI, names="groups", groups=2),
    bad("convolution_transpose", NXC, XOI[0], names="weights"),
    bad("convolution_transpose", NXC[0], XOI, names=""),
    bad("convolution_transpose", NXC, XOI[..., :2], names="src"),
    bad("convolution_transpose", NXC, XOI, torch.randn(3), names="bias"),
    bad("convolution_transpose", NXC, XOI, names="residual", residual=torch.randn(1)),
    bad("convolution_transpose", NXC, XOI, names="activation", activation="softmax"),
    bad("convolution_transpose", NXC, XOI, names="algorithm", algorithm="best"),
    bad("convolution_transpose", NXC, XOI.double(), names="weights", error=TypeError),
    bad("convolution_transpose", NXC.int(), XOI.int(), names="src", error=TypeError),
    bad("convolution_transpose", NXC, XOI, names="strides", error=TypeError, strides=True),
    bad("convolution_transpose", NXC, XOI, names="auto_pad", error=TypeError, auto_pad=b"none"),
    bad("convolution_transpose", NXC, XOI, names="auto_pad", error=TypeError, auto_pad=None),
    bad(
        "convolution_transpose",
        NXC,
        XOI,
        names="weights_format",
        error=TypeError,
        weights_format=b"XOI",
    ),
    bad("convolution_transpose", NXC, XOI, names="activation", error=TypeError, activation=b"relu"),
]


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("function,args,kwargs,error,names", CALLS)
def test_bad_call(function, args, kwargs, error, names, device):
    if device == "meta":
        if any(isinstance(a, torch.Tensor) and a.layout != torch.strided for a in args):
            return
        if any(isinstance(a, tuple) and HUGE in a for a in args):
            return  # without memory to allocate, a huge output is no error

        def move(value):
            return value.to("meta") if isinstance(value, torch.Tensor) else value

        args, kwargs = [move(a) for a in args], {k: move(v) for k, v in kwargs.items()}
    with pytest.raises(error) as raised:
        getattr(D, function)(*args, **kwargs)
    message = str(raised.value)
    assert names in message
    if not isinstance(raised.value, (MemoryError,)) and names:
        assert message.startswith(f"{function}:"), message


@pytest.mark.parametrize(
    "args,kwargs",
    [
        ((IMAGE,), {}),
        ((IMAGE, 4), {"scale_factor": 2}),
        ((IMAGE, (4,)), {}),
        ((IMAGE, (0, 4)), {}),
        ((IMAGE, (-1, 4)), {}),
        ((IMAGE, 4), {"mode": "linear"}),
        ((IMAGE, 4), {"mode": "cubic"}),
        ((IMAGE[0], 4), {"mode": "bilinear"}),
        ((IMAGE[0, 0], 4), {}),
        ((IMAGE, 4), {"align_corners": True}),
        ((IMAGE, 4), {"mode": "area", "align_corners": False}),
        ((IMAGE, 4), {"mode": "nearest", "antialias": True}),
        ((IMAGE, 4), {"recompute_scale_factor": True}),
        ((IMAGE,), {"scale_factor": (1.0, 2.0, 3.0)}),
        ((IMAGE,), {"scale_factor": 0.01, "mode": "bilinear"}),
        ((IMAGE,), {"scale_factor": NAN, "mode": "area"}),
        ((IMAGE,), {"scale_factor": (1.0, INF), "mode": "area"}),
        ((IMAGE,), {"scale_factor": INF, "recompute_scale_factor": True}),
        ((IMAGE,), {"scale_factor": INF}),
        ((IMAGE, (4.5, 4)), {}),
        ((IMAGE, (Fraction(9, 2), 4)), {}),
        ((IMAGE, Fraction(4)), {}),
        ((IMAGE, (True, 4)), {}),
        ((IMAGE, True), {"mode": "area"}),
        ((IMAGE, 4.0), {"mode": "bicubic"}),
        ((IMAGE, -1), {"mode": "area"}),
        ((IMAGE[:, :, :0], 4), {"mode": "area"}),
        ((IMAGE.bool(), 4), {"mode": "bilinear"}),
        ((IMAGE, 4), {"mode": "lanczos"}),
        ((torch.randn(1, 2, 0, 4), 4), {"mode": "bilinear"}),
        *(((IMAGE[:, :0], 4), {"mode": mode}) for mode in ("nearest", "bilinear", "bicubic")),
        ((IMAGE,), {"scale_factor": torch.tensor(2.0)}),
        ((IMAGE,), {"scale_factor": [torch.tensor(2.0), 2.0], "mode": "bilinear"}),
    ],
)
def test_interpolate_raises_what_torch_raises(args, kwargs):
    with pytest.raises((RuntimeError, ValueError, TypeError, ArithmeticError)) as theirs:
        F.interpolate(*args, **kwargs)
    with pytest.raises(theirs.type, match="interpolate"):
        D.interpolate(*args, **kwargs)


@pytest.mark.parametrize(
    "args,kwargs",
    [
        ((IMAGE, OUT_OF_3), {"stride": 0}),
        ((IMAGE, OUT_OF_3), {"stride": (1, 1, 1)}),
        ((IMAGE, OUT_OF_3), {"padding": -1}),
        ((IMAGE, OUT_OF_3), {"padding": 9}),
        ((IMAGE, OUT_OF_3), {"padding": "same"}),
        ((IMAGE, OUT_OF_3), {"dilation": 0}),
        ((IMAGE, OUT_OF_3), {"output_padding": 1}),
        ((IMAGE, OUT_OF_3), {"output_padding": -1}),
        ((IMAGE, OUT_OF_3), {"groups": 0}),
        ((IMAGE, OUT_OF_3), {"groups": 2}),
        ((IMAGE, OUT_OF_3[0]), {}),
        ((IMAGE, OUT_OF_3[:2]), {}),
        ((IMAGE[0, 0], OUT_OF_3), {}),
        ((IMAGE, OUT_OF_3, torch.randn(3)), {}),
        ((IMAGE, OUT_OF_3.double()), {}),
        ((IMAGE.bool(), OUT_OF_3.bool()), {}),
        ((None, OUT_OF_3), {}),
        ((IMAGE, OUT_OF_3), {"stride": 1.5}),
    ],
)
def test_conv_transpose_raises_what_torch_raises(args, kwargs):
    with pytest.raises((RuntimeError, ValueError, TypeError)) as theirs:
        F.conv_transpose2d(*args, **kwargs)
    with pytest.raises(theirs.type, match="conv_transpose2d: expected"):
        D.conv_transpose2d(*args, **kwargs)


@pytest.mark.parametrize(
    "operator,args",
    [
        ("resample_backward", (IMAGE, [0, 3])),
        ("resample_backward", (IMAGE, [3])),
        ("resample_backward", (IMAGE[0, 0], [3])),
        ("resample_backward", (IMAGE.int(), [3, 3])),
        ("resample_backward", (IMAGE, [3, 3], [0.1, 0.1], "linear", "align_corners")),
        ("resample_backward", (IMAGE, [3, 3], [1e-9, 1], *LINEAR, "floor", True)),
        ("reorder_backward", (IMAGE, [2, 3, 5])),
        ("reorder_backward", (IMAGE, [2, 3, 4, 5])),
        ("reorder_backward", (IMAGE, [2, 3, 5, 4], "nChw8c")),
        *[
            (f"convolution_backward_{what}", (NXC, other, size, [1, 1], [0, 0], [0, 0], [1, 1]))
            for what, other, size in [
                ("data", XIO, [5, 4]),
                ("data", torch.randn(3, 3, 2, 3), [9, 9]),
                ("data", XIO, [5]),
                ("weights", NXC, [0, 3]),
                ("weights", NXC, [3, 3]),
                ("weights", torch.randn(3, 7, 6, 3), [3, 3]),
            ]
        ],
    ],
)
def test_backward_operators_check_their_arguments(operator, args):
    """A gradient whose sizes do not belong to the forward call is refused, not read past."""
    with pytest.raises((ValueError, TypeError), match=f"{operator}: expected"):
        getattr(torch.ops.torch_dnnl, operator)(*args)
