"""Resample and interpolate in ONNX: every rule by onnxruntime and by ONNX's definitions."""

import itertools
from functools import partial

import pytest
import torch
from onnx_models import check, check_dynamic, compared, exported, nodes_of
from torch import nn

import torch_dnnl.functional as D
from torch_dnnl.nn import Resample

pytestmark = pytest.mark.ecosystem

RULES = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "tf_crop_and_resize")
FILTERS = [
    *({"mode": "nearest", "nearest_mode": f"round_prefer_{way}"} for way in ("ceil", "floor")),
    *({"mode": "nearest", "nearest_mode": way} for way in ("ceil", "floor")),
    *(
        {"mode": mode, "exclude_outside": exclude, "antialias": antialias, "cubic_coeff_a": a}
        for mode, a in (("linear", -0.75), ("cubic", -0.75), ("cubic", -0.5))
        for exclude, antialias in itertools.product((False, True), repeat=2)
    ),
]
# Of an image of 6x8: sizes, and factors that are exact in float32, as ONNX has them.
TARGETS = [
    {"size": (12, 16)},
    {"size": (3, 4)},
    {"size": (5, 11)},
    {"size": (1, 3)},
    {"scale_factor": (1.75, 0.6875), "recompute_scale_factor": False},
    {"scale_factor": 2, "recompute_scale_factor": False},
]
CROPS = [(0.125, 0.25, 0.75, 1.0), (-0.25, 0.5, 1.25, 1.5), (0.875, 0.25, 0.125, 1.0)]


def grid(rule):
    """Every filter with every target, and one of the regions."""
    regions = itertools.cycle({"roi": roi, "extrapolation_value": 7.0} for roi in CROPS)
    for filter, target in itertools.product(FILTERS, TARGETS):
        is_crop = rule == "tf_crop_and_resize"
        if target.get("scale_factor") == (1.75, 0.6875) and (
            rule == "align_corners" or (is_crop and filter.get("antialias"))
        ):
            continue  # not a whole number of pixels, and another one than the filter's: refused
        yield {"coordinates": rule, **filter, **target, **(next(regions) if is_crop else {})}


def compare(options, by, dtype, image=(1, 2, 6, 8), **export):
    """The options and the largest difference of each call."""
    image = torch.randn(image, dtype=dtype)
    calls = [(partial(D.resample, **o), (image,)) for o in options]
    pairs, _ = compared(calls, by, **export)
    return [
        (o, (theirs.double() - ours.double()).abs().max().item())
        for o, (ours, theirs) in zip(options, pairs, strict=True)
    ]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("by", ["onnxruntime", "reference"])
def test_rules(rule, by):
    dtype = torch.float32 if by == "onnxruntime" else torch.float64
    options = list(grid(rule))
    if by == "reference" and rule == "pytorch_half_pixel":
        # onnx 1.23 has -0.5 in the place of the 0 of ONNX's definition, where there is one pixel.
        options = [o for o in options if o["mode"] == "nearest" or o.get("size") != (1, 3)]
    bad = [(o, e) for o, e in compare(options, by, dtype) if not e < 1e-5]
    assert not bad


def interpolations(rank):
    """Of images of 6 pixels to each side: everything that interpolate takes and ONNX has."""
    linear = {3: "linear", 4: "bilinear", 5: "trilinear"}[rank]
    targets = [{"size": 9}, {"size": 4}, {"size": (6, 12, 3)[: rank - 2]}]
    targets += [{"scale_factor": factor} for factor in (2, 0.5, 1.3, 0.7)]
    targets += [{"scale_factor": 1.3, "recompute_scale_factor": True}]
    for target in targets:
        for mode in ("nearest", "nearest-exact"):
            yield {"mode": mode, **target}
        for mode in (linear, "bicubic") if rank == 4 else (linear,):
            for align_corners in (None, False, True):
                yield {"mode": mode, "align_corners": align_corners, **target}
        for mode in (linear, "bicubic"):
            yield {"mode": mode, "antialias": True, **target}
    yield {"mode": linear, "antialias": True, "align_corners": True, "size": 6}
    for size in (3, 2, 1, 6):
        yield {"mode": "area", "size": size}


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_interpolate(rank):
    """By onnxruntime, but for filters that it has for images alone."""
    for by in ("onnxruntime", "reference"):
        image = torch.randn((1, 2) + (6,) * (rank - 2))
        calls = [
            (partial(D.interpolate, **options), (image,))
            for options in interpolations(rank)
            if (options["mode"] == "bicubic" and rank != 4) == (by == "reference")
        ]
        if calls:
            check(calls, by)


def test_symbolic_sizes():
    """Sizes and factors of images that are not known."""
    layers = [
        nn.Upsample(scale_factor=2),
        partial(D.interpolate, scale_factor=2, mode="bilinear"),
        partial(D.interpolate, scale_factor=(0.5, 1.75), mode="bilinear"),
        partial(D.interpolate, scale_factor=0.5, mode="bicubic", antialias=True),
        partial(D.interpolate, size=(7, 5), mode="bicubic"),
        partial(D.interpolate, scale_factor=2, mode="bilinear", align_corners=True),
        partial(D.interpolate, scale_factor=0.75, mode="nearest-exact"),
        partial(D.interpolate, size=1, mode="area"),
        Resample(scale_factor=2, mode="cubic"),
        Resample(scale_factor=0.75),
        Resample(scale_factor=0.75, recompute_scale_factor=False),
        Resample(scale_factor=3, coordinates="align_corners", recompute_scale_factor=False),
        Resample(scale_factor=2, coordinates="tf_crop_and_resize", roi=(0.0, 0.25, 0.5, 1.0)),
        lambda x: D.resample(x.movedim(1, -1), scale_factor=1.5, data_format="NXC"),
        lambda x: D.interpolate(x, size=(x.shape[3], x.shape[2] + 1), mode="bilinear"),
    ]
    sizes = [(2, 8, 12), (1, 5, 7), (3, 9, 4)]
    check_dynamic(layers, 2, sizes)


def test_factor_that_may_keep_a_size():
    """Torch copies such an axis: the least size is a part of the model."""
    layer = nn.Upsample(scale_factor=1.25, mode="bilinear")
    model = nn.Sequential(layer)
    image = torch.randn(1, 2, 8, 9)
    torch_layer = partial(D.interpolate, scale_factor=1.25, mode="bilinear")
    model.forward = torch_layer
    with pytest.raises(NotImplementedError, match="expected sizes of at least 4 "):
        exported(model, [image], dynamic_shapes=({2: torch.export.Dim.DYNAMIC},))
    least = torch.export.Dim("height", min=4)
    proto = exported(model, [image], dynamic_shapes=({2: least},))
    assert nodes_of(proto) == ["Resize"]


TYPES = (torch.uint8, torch.int8, torch.int16, torch.int32)


@pytest.mark.parametrize("by", ["onnxruntime", "reference"])
def test_integers(by):
    """Rounded to nearest even and saturated, as here; sums may be next to a tie. Those of int32 are
    of float64, which onnxruntime does not have."""
    calls, what = [], []
    for dtype, mode in itertools.product(TYPES, ["nearest", "linear", "cubic", "area"]):
        if (dtype == torch.int32 and mode != "nearest") == (by == "onnxruntime"):
            continue
        limits = torch.iinfo(dtype)
        low, high = max(limits.min, -(2**20)), min(limits.max, 2**20)
        image = torch.randint(low, high, (2, 3, 6, 8)).to(dtype)
        for target in (None, torch.float32, *TYPES):
            calls.append((partial(D.resample, size=(3, 4), mode=mode, dtype=target), (image,)))
            what.append((mode, high))
    for (mode, high), (ours, theirs) in zip(what, compared(calls, by)[0], strict=True):
        difference = (ours.double() - theirs.double()).abs().max()
        if mode == "nearest":
            assert difference == 0
        else:
            assert difference <= (1e-6 * high if ours.dtype == torch.float32 else 1)


def test_rules_without_a_name():
    """Rules that are the same function as one of ONNX's."""
    nearest = {"mode": "nearest", "coordinates": "tf_half_pixel_for_nn"}
    factor = {"scale_factor": (0.6181640625, 2.25), "recompute_scale_factor": False}
    symmetric = {"coordinates": "half_pixel_symmetric"}
    image = torch.randn(1, 2, 13, 4)
    calls = [
        {**nearest, "nearest_mode": "floor", "size": (5, 9)},
        {**nearest, "nearest_mode": "round_prefer_floor", "size": (5, 9)},
        {**symmetric, **factor},
        {**symmetric, "mode": "cubic", **factor},
        {**symmetric, "size": (5, 9)},
    ]
    check([(partial(D.resample, **options), (image,)) for options in calls])
    with pytest.raises(NotImplementedError, match="expected opset_version to be 19 or more"):
        check([(partial(D.resample, **symmetric, **factor), (image,))], opset_version=18)
