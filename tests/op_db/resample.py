"""The rows of interpolate and resample."""

import torch.nn.functional as F
from oracles import resample as resample_oracle

import torch_dnnl.functional as D
from op_db.case import Case


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
]
