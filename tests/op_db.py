"""The table that drives the tests: one row per way of calling an operator.

A `Case` names a call of a public function, the tensors it takes, an independent
float64 oracle of the same call and, where torch has the operation, torch's own
spelling. Values, gradients, transforms, layouts, devices and the support table
of the README all come from here; to cover a new mode, add a row.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from oracles import conv as conv_oracle
from oracles import reorder as reorder_oracle
from oracles import resample as resample_oracle
from torch import Tensor

import torch_dnnl.functional as D

FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

# What a result may differ by from the float64 oracle, relative to the largest
# value of the result: a few roundings of the type, more for float32 sums.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 4e-6,
    torch.bfloat16: 2**-8,
    torch.float16: 2**-10,
}


@dataclass(frozen=True)
class Case:
    name: str
    function: str  # of torch_dnnl.functional
    call: Callable[..., Tensor]
    oracle: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    peer: Callable[..., Tensor] | None = None
    scales: tuple[int, ...] = ()  # inputs that stay float32 and positive
    batched: bool = True  # the first dimension of the first input may be empty
    in_matrix: bool = False  # part of the transform matrix that compiles with Inductor

    def inputs(self, dtype=torch.float32, device="cpu", seed=0, requires_grad=False):
        generator = torch.Generator().manual_seed(seed)
        tensors = []
        for i, shape in enumerate(self.shapes):
            values = torch.randn(shape, generator=generator, dtype=torch.float64)
            own = dtype
            if i in self.scales:
                values = values.abs() + 0.5
                own = torch.promote_types(dtype, torch.float32)
            tensors.append(values.to(own).to(device).requires_grad_(requires_grad))
        return tensors


def _interpolate(name, shape, in_matrix=False, peer=True, oracle=None, **kwargs):
    """A row for interpolate; `oracle`: the same call in terms of resample."""
    options = {k: v for k, v in kwargs.items() if k in ("size", "scale_factor")}
    return Case(
        f"interpolate-{name}",
        "interpolate",
        lambda x: D.interpolate(x, **kwargs),
        lambda x: resample_oracle.resample(x, **options, **(oracle or {})),
        (shape,),
        peer=(lambda x: F.interpolate(x, **kwargs)) if peer else None,
        in_matrix=in_matrix,
    )


def _resample(name, shape, in_matrix=False, **kwargs):
    return Case(
        f"resample-{name}",
        "resample",
        lambda x: D.resample(x, **kwargs),
        lambda x: resample_oracle.resample(x, **kwargs),
        (shape,),
        in_matrix=in_matrix,
    )


def _reorder(name, shapes, names=(), scales=(), in_matrix=False, batched=True, **kwargs):
    """A row for reorder; `names`: which arguments the tensors after src are."""

    def bound(function):
        return lambda x, *rest: function(x, **kwargs, **dict(zip(names, rest)))

    return Case(
        f"reorder-{name}",
        "reorder",
        bound(D.reorder),
        bound(reorder_oracle.reorder),
        shapes,
        scales=scales,
        batched=batched,
        in_matrix=in_matrix,
    )


_NCX = {"data_format": "NCX", "weights_format": "OIX"}
_ACTIVATIONS = {
    None: lambda x: x,
    "silu": lambda x: x * torch.sigmoid(x),
    "tanh": lambda x: 1 - 2 / ((2 * x).exp() + 1),
}


def _convolution_oracle(x, w, b=None, residual=None, activation=None, **attributes):
    """The oracle with functional.convolution's spelling: single ints, activation, residual."""
    rank = x.dim() - 2
    attributes = {"strides": 1, "pads_begin": 0, "pads_end": 0, "dilations": 1} | attributes
    for name in ("strides", "pads_begin", "pads_end", "dilations"):
        if isinstance(attributes[name], int):
            attributes[name] = [attributes[name]] * rank
    result = conv_oracle.convolution(x, w, b, **attributes)
    return _ACTIVATIONS[activation](result if residual is None else result + residual)


def _conv(name, shapes, pads=None, in_matrix=False, peer=True, batched=True, **kwargs):
    """A row for conv1d/2d/3d; `pads`: (pads_begin, pads_end) for the oracle."""
    rank = len(shapes[1]) - 2
    ours, torchs = getattr(D, f"conv{rank}d"), getattr(F, f"conv{rank}d")
    begin, end = pads or ([0] * rank, [0] * rank)

    def oracle(x, w, b=None):
        many = x if batched else x[None]
        result = _convolution_oracle(
            many,
            w,
            b,
            strides=kwargs.get("stride", 1),
            dilations=kwargs.get("dilation", 1),
            groups=kwargs.get("groups", 1),
            pads_begin=begin,
            pads_end=end,
            **_NCX,
        )
        return result if batched else result[0]

    return Case(
        f"conv{rank}d-{name}",
        f"conv{rank}d",
        lambda x, w, b=None: ours(x, w, b, **kwargs),
        oracle,
        shapes,
        peer=(lambda x, w, b=None: torchs(x, w, b, **kwargs)) if peer else None,
        batched=batched,
        in_matrix=in_matrix,
    )


def _convolution(name, shapes, in_matrix=False, **kwargs):
    def oracle(x, w, b=None, residual=None):
        return _convolution_oracle(x, w, b, residual, **kwargs)

    return Case(
        f"convolution-{name}",
        "convolution",
        lambda x, w, b=None, residual=None: D.convolution(x, w, b, residual=residual, **kwargs),
        oracle,
        shapes,
        in_matrix=in_matrix,
    )


_AA = {"antialias": True, "exclude_outside": True}
_NEAREST = {"mode": "nearest", "coordinates": "asymmetric", "nearest_mode": "floor"}

CASES = [
    # interpolate: the contract of torch.nn.functional.interpolate
    _interpolate("nearest", (2, 3, 5, 4), size=(7, 9), mode="nearest", oracle=_NEAREST),
    _interpolate(
        "nearest-exact",
        (2, 3, 7),
        size=11,
        mode="nearest-exact",
        oracle={"mode": "nearest"},
        in_matrix=True,
    ),
    _interpolate("linear", (2, 3, 7), size=4, mode="linear"),
    _interpolate("bilinear", (2, 3, 5, 4), size=(9, 7), mode="bilinear", in_matrix=True),
    _interpolate(
        "bilinear-align",
        (2, 3, 5, 4),
        size=(9, 3),
        mode="bilinear",
        align_corners=True,
        oracle={"coordinates": "align_corners"},
    ),
    _interpolate(
        "bilinear-factor",
        (2, 3, 5, 6),
        scale_factor=(1.7, 0.7),
        mode="bilinear",
        oracle={"recompute_scale_factor": False},
    ),
    _interpolate("trilinear", (1, 2, 3, 4, 3), size=(4, 3, 5), mode="trilinear", in_matrix=True),
    _interpolate("bicubic", (2, 3, 5, 4), size=(4, 9), mode="bicubic", oracle={"mode": "cubic"}),
    _interpolate(
        "bicubic-antialias",
        (2, 3, 9, 8),
        size=(4, 5),
        mode="bicubic",
        antialias=True,
        oracle={"mode": "cubic", "cubic_coeff_a": -0.5, **_AA},
        in_matrix=True,
    ),
    _interpolate(
        "bilinear-antialias",
        (2, 3, 9, 8),
        size=(4, 11),
        mode="bilinear",
        antialias=True,
        oracle=_AA,
    ),
    _interpolate(
        "trilinear-antialias",
        (1, 2, 5, 4, 6),
        size=(2, 3, 4),
        mode="trilinear",
        antialias=True,
        oracle=_AA,
        peer=False,
    ),
    _interpolate(
        "lanczos",
        (2, 3, 9, 8),
        size=(4, 5),
        mode="lanczos",
        antialias=True,
        oracle={"mode": "lanczos3", **_AA},
        peer=False,
    ),
    _interpolate(
        "area", (2, 3, 7, 5), size=(3, 4), mode="area", oracle={"mode": "area"}, in_matrix=True
    ),
    # resample: every framework's resize
    _resample("default", (2, 3, 5, 4), size=(7, 3)),
    _resample("lanczos3", (2, 3, 8, 7), size=(5, 9), mode="lanczos3", in_matrix=True),
    _resample("lanczos5-antialias", (2, 2, 13), size=6, mode="lanczos5", antialias=True),
    _resample(
        "cubic-nxc", (2, 5, 4, 3), size=(8, 3), mode="cubic", data_format="NXC", in_matrix=True
    ),
    _resample("factor", (2, 2, 5, 6), scale_factor=(1.5, 0.6), mode="cubic", exclude_outside=True),
    _resample(
        "size-and-factor",
        (2, 2, 5),
        size=7,
        scale_factor=1.45,
        recompute_scale_factor=False,
        coordinates="half_pixel_symmetric",
    ),
    _resample(
        "crop",
        (2, 2, 5, 6),
        size=(4, 7),
        coordinates="tf_crop_and_resize",
        roi=[0.2, 1.1, 0.9, -0.2],
        extrapolation_value=0.5,
    ),
    _resample("nearest-smaller", (2, 3, 7, 6), size=(3, 4), mode="nearest"),
    _resample("wide-antialias", (1, 2, 5, 128), size=(3, 64), **_AA),
    _resample("nearest-ceil", (2, 2, 3, 4, 2), size=(4, 3, 3), mode="nearest", nearest_mode="ceil"),
    _resample("area-nxc", (2, 7, 3), size=3, mode="area", data_format="NXC"),
    # reorder: float to float, with every operand
    _reorder("plain", ((2, 3, 4, 5),), dst_format="acdb", in_matrix=True),
    _reorder(
        "keep", ((2, 3, 4),), src_zero_point=0.5, scale=2.0, dst_scale=3.0, dst_zero_point=1.0
    ),
    _reorder("blocked", ((2, 5, 3, 2),), dst_format="nChw4c", in_matrix=True),
    _reorder(
        "unblocked", ((2, 2, 3, 2, 4),), src_format="nChw4c", dst_format="nhwc", size=(2, 7, 3, 2)
    ),
    _reorder("weights", ((5, 6, 3, 2),), dst_format="OIhw4i8o2i", batched=False),
    _reorder(
        "scale",
        ((2, 4, 3, 5), (1, 4, 1, 1), (2, 1, 3, 1)),
        ("scale", "dst_scale"),
        scales=(1, 2),
        dst_format="nhwc",
        in_matrix=True,
        batched=False,
    ),
    _reorder(
        "groups",
        ((4, 6), (2, 3), (4, 1), (1, 6), (1, 1)),
        ("scale", "dst_scale", "src_zero_point", "dst_zero_point"),
        scales=(1, 2, 3, 4),
        dst_format="ba",
        batched=False,
    ),
    _reorder(
        "axis",
        ((2, 3, 4), (3,), (1,), (3,), (1, 3, 1)),
        ("scale", "dst_scale", "src_zero_point", "dst_zero_point"),
        scales=(1, 2),
        axis=-2,
        dst_format="acb",
        in_matrix=True,
    ),
    _reorder(
        "axis-unblocked",
        ((2, 2, 3, 4), (7,)),
        ("scale",),
        scales=(1,),
        axis=1,
        src_format="nCw4c",
        dst_format="nwc",
        size=(2, 7, 3),
        batched=False,
    ),
    _reorder(
        "accumulate",
        ((2, 3, 4), (2, 3, 4), (1, 3, 1)),
        ("accumulate", "dst_scale"),
        scales=(2,),
        beta=0.5,
        in_matrix=True,
        batched=False,
    ),
    _reorder(
        "accumulate-blocked",
        ((2, 5, 3), (2, 2, 3, 4), (1, 5, 1)),
        ("accumulate", "scale"),
        scales=(2,),
        dst_format="nCw4c",
        beta=-1.5,
        batched=False,
    ),
    # conv1d/2d/3d: the contract of torch.nn.functional.conv*
    _conv("plain", ((2, 3, 9), (4, 3, 3), (4,)), padding=1, pads=([1], [1]), in_matrix=True),
    _conv("causal", ((2, 3, 9), (4, 3, 3)), padding=[(2, 0)], pads=([2], [0]), peer=False),
    _conv("plain", ((2, 3, 6, 5), (4, 3, 3, 2), (4,)), in_matrix=True),
    _conv(
        "strided-dilated-grouped",
        ((2, 4, 9, 8), (6, 2, 3, 2), (6,)),
        stride=(2, 1),
        padding=(1, 2),
        dilation=(1, 2),
        groups=2,
        pads=([1, 2], [1, 2]),
    ),
    _conv(
        "depthwise",
        ((2, 4, 5, 6), (8, 1, 3, 3), (8,)),
        padding="same",
        groups=4,
        pads=([1, 1], [1, 1]),
    ),
    _conv(
        "same-lower",
        ((2, 3, 6, 7), (4, 3, 3, 2)),
        stride=2,
        padding="same_lower",
        pads=([1, 1], [0, 0]),
        peer=False,
    ),
    _conv(
        "unbatched",
        ((3, 5, 6), (4, 3, 3, 3), (4,)),
        padding=1,
        pads=([1, 1], [1, 1]),
        batched=False,
    ),
    _conv("pointwise", ((2, 5, 3, 7), (6, 5, 1, 1), (6,))),
    _conv("patches", ((1, 3, 7, 9), (5, 3, 3, 2), (5,)), stride=(3, 2)),
    _conv("wide", ((1, 20, 4, 7), (24, 20, 2, 3), (24,)), padding=1, pads=([1, 1], [1, 1])),
    _conv(
        "plain",
        ((1, 2, 4, 5, 4), (3, 2, 2, 3, 2), (3,)),
        padding=1,
        pads=([1] * 3, [1] * 3),
        in_matrix=True,
    ),
    # convolution: the oneDNN Graph operation
    _convolution(
        "nxc-xio",
        ((2, 6, 5, 3), (3, 2, 3, 4), (4,)),
        strides=2,
        auto_pad="same_lower",
        in_matrix=True,
    ),
    _convolution(
        "nxc-oix-asymmetric",
        ((2, 7, 4), (6, 2, 3)),
        pads_begin=2,
        pads_end=1,
        dilations=2,
        groups=2,
        weights_format="OIX",
    ),
    _convolution(
        "ncx-xio",
        ((1, 3, 4, 4, 3), (2, 2, 2, 3, 4), (4,)),
        auto_pad="same_upper",
        data_format="NCX",
    ),
    _convolution(
        "fused",
        ((2, 6, 5, 3), (3, 3, 3, 4), (4,), (2, 6, 5, 4)),
        pads_begin=1,
        pads_end=1,
        activation="silu",
    ),
    _convolution(
        "fused-grouped",
        ((2, 4, 7), (6, 2, 3), (6,)),
        strides=2,
        groups=2,
        activation="tanh",
        data_format="NCX",
        weights_format="OIX",
        in_matrix=True,
    ),
]

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True)
class Support:
    """What a function takes; the README's support table."""

    dtypes: tuple[torch.dtype, ...]
    layouts: str
    ranks: str = "1, 2, 3"
    devices: str = "CPU, CUDA"


_ANY = "contiguous, channels_last, any strides"
_CONV = Support(FLOATING, _ANY)
SUPPORT = {
    "interpolate": Support((*FLOATING, *INTEGERS), _ANY),
    "resample": Support((*FLOATING, *INTEGERS), f"{_ANY}; NCX and NXC"),
    "reorder": Support(
        (*FLOATING, *FLOAT8, torch.int32, torch.int8, torch.uint8),
        "any strides; every oneDNN tag, plain or blocked",
        ranks="any (1 to 12 dimensions)",
    ),
    "fake_reorder": Support(FLOATING, "as reorder", ranks="any (1 to 12 dimensions)"),
    "conv1d": Support(FLOATING, _ANY, ranks="1"),
    "conv2d": Support(FLOATING, _ANY, ranks="2"),
    "conv3d": Support(FLOATING, _ANY, ranks="3"),
    "convolution": Support(FLOATING, f"{_ANY}; NCX and NXC, OIX and XIO"),
    "quantized_convolution": Support(
        (torch.uint8, torch.int8), f"{_ANY}; NCX and NXC, OIX and XIO"
    ),
}

MATRIX = [case for case in CASES if case.in_matrix]


def by_name(case):
    """Readable test ids."""
    return case.name


def assert_matches(actual: Tensor, expected: Tensor, tolerance: float | None = None) -> None:
    """Closeness relative to the largest expected value; shapes must agree."""
    assert actual.shape == expected.shape, f"{tuple(actual.shape)} != {tuple(expected.shape)}"
    if expected.numel() == 0:
        return
    tolerance = TOLERANCE[actual.dtype] if tolerance is None else tolerance
    error = (actual.detach().cpu().double() - expected.detach().double()).abs().max().item()
    limit = tolerance * max(1.0, expected.abs().max().item())
    assert error <= limit, f"error {error:.3g} above {limit:.3g}"
