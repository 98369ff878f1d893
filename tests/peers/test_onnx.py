"""ONNX's Resize, QuantizeLinear and DequantizeLinear: the worked examples of their specification,
and for Resize all combinations of its attributes by its formulas."""

import itertools
import math
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from op_db import assert_matches
from oracles.resample import axis_matrix

import torch_dnnl.functional as D

PAIR = [[1, 2], [3, 4]]
WIDE = [[1, 2, 3, 4], [5, 6, 7, 8]]
SQUARE = [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12], [13, 14, 15, 16]]
A05 = {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": True}
AA = {"antialias": True}


def nearest(rounding="round_prefer_floor", **options):
    return {"mode": "nearest", "nearest_mode": rounding, **options}


def crop(*roi, **options):
    return {"coordinates": "tf_crop_and_resize", "roi": roi, **options}


# image, size (ints) or scale (floats), attributes, expected: all of it, or its first row
RESIZE = [
    (PAIR, (2.0, 3.0), nearest(), [[1, 1, 1, 2, 2, 2]] * 2 + [[3, 3, 3, 4, 4, 4]] * 2),
    (WIDE, (0.6, 0.6), nearest(), [[1, 3]]),
    (PAIR, (7, 8), nearest(), [[1] * 4 + [2] * 4] * 4 + [[3] * 4 + [4] * 4] * 3),
    (WIDE, (1, 3), nearest(), [[1, 2, 4]]),
    (SQUARE, (8, 8), nearest("floor", coordinates="align_corners"), [[1, 1, 1, 2, 2, 3, 3, 4]]),
    (
        SQUARE,
        (8, 8),
        nearest("round_prefer_ceil", coordinates="asymmetric"),
        [[1, 2, 2, 3, 3, 4, 4, 4]],
    ),
    (SQUARE, (8, 8), nearest("ceil"), [[1, 2, 2, 3, 3, 4, 4, 4]]),
    (
        PAIR,
        (2.0, 2.0),
        {},
        [[1, 1.25, 1.75, 2], [1.5, 1.75, 2.25, 2.5], [2.5, 2.75, 3.25, 3.5], [3, 3.25, 3.75, 4]],
    ),
    (PAIR, (2.0, 2.0), {"coordinates": "align_corners"}, [[1, 4 / 3, 5 / 3, 2]]),
    (WIDE, (0.6, 0.6), {}, [[2.6666665, 4.3333331]]),
    (WIDE, (0.6, 0.6), {"coordinates": "align_corners"}, [[1, 3.142857]]),
    (SQUARE, (3, 1), {"coordinates": "pytorch_half_pixel"}, [[5 / 3], [7], [37 / 3]]),
    (
        PAIR,
        (2.3, 2.94),
        {"coordinates": "half_pixel_symmetric"},
        [[1, 1.15986395, 1.5, 1.84013605, 2]],
    ),
    (
        SQUARE,
        (2.0, 2.0),
        {"mode": "cubic"},
        [
            [
                *(0.47265625, 0.76953125, 1.24609375, 1.875),
                *(2.28125, 2.91015625, 3.38671875, 3.68359375),
            ]
        ],
    ),
    (SQUARE, (0.8, 0.8), {"mode": "cubic"}, [[1.47119141, 2.78125, 4.08251953]]),
    (
        SQUARE,
        (0.8, 0.8),
        {"mode": "cubic", "coordinates": "align_corners"},
        [[1, 2.39519159, 3.79038317]],
    ),
    (
        SQUARE,
        (2.0, 2.0),
        {"mode": "cubic", "coordinates": "asymmetric"},
        [[1, 1.40625, 2, 2.5, 3, 3.59375, 4, 4.09375]],
    ),
    (SQUARE, (0.8, 0.8), A05, [[1.36812675, 2.6695014, 4.0133367]]),
    (SQUARE, (0.6, 0.6), AA, [[2.875, 4.5], [9.375, 11]]),
    (SQUARE, (3, 3), AA, [[2.3636363, 3.590909, 4.818182]]),
    (SQUARE, (0.6, 0.6), AA | {"mode": "cubic"}, [[2.5180721, 4.2858863], [9.589329, 11.357142]]),
    (SQUARE, (3, 3), AA | {"mode": "cubic"}, [[1.7750092, 3.1200073, 4.4650054]]),
    (
        SQUARE,
        (3, 3),
        crop(0.4, 0.6, 0.6, 0.8),
        [[7.6, 7.9, 8.2], [8.8, 9.1, 9.4], [10, 10.3, 10.6]],
    ),
    (
        SQUARE,
        (3, 3),
        crop(0.4, 0.6, 1.2, 1.7, extrapolation_value=10.0),
        [[7.6, 10, 10], [12.4, 10, 10], [10, 10, 10]],
    ),
]


@pytest.mark.parametrize("image,target,attributes,expected", RESIZE)
def test_resize(image, target, attributes, expected):
    x = torch.tensor(image, dtype=torch.float32)[None, None]
    options = {"nearest_mode": "round_prefer_floor", "recompute_scale_factor": False} | attributes
    where = "size" if isinstance(target[0], int) else "scale_factor"
    result = D.resample(x, **{where: target}, **options)[0, 0]
    assert_matches(result[: len(expected)], torch.tensor(expected, dtype=torch.float64), 2e-6)


RULES = [
    *("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"),
    *("tf_half_pixel_for_nn", "tf_crop_and_resize"),
]
SIZES = [(1, 1), (1, 5), (5, 1), (4, 7), (7, 4), (8, 16), (16, 8), (9, 3), (3, 20), (20, 3), (6, 6)]
# Numbers of few bits, so that positions are exact in floating point too.
SCALES = [
    (7, 0.5),
    (10, 0.75),
    (5, 1.5),
    (4, 2.25),
    (13, 0.6181640625),
    (6, 2.71875),
    (9, 0.17578125),
]
REGIONS = [(0.0, 1.0), (0.25, 0.8125), (-0.25, 1.375), (0.875, 0.125)]
FILTERS = [
    *({"mode": "nearest", "nearest_mode": f"round_prefer_{way}"} for way in ("ceil", "floor")),
    *({"mode": "nearest", "nearest_mode": way} for way in ("ceil", "floor")),
    *(
        {"mode": mode, "exclude_outside": exclude, "antialias": antialias, "cubic_coeff_a": a}
        for mode, a in (("linear", -0.75), ("cubic", -0.75), ("cubic", -0.5))
        for exclude, antialias in itertools.product((False, True), repeat=2)
    ),
]


def attributes_of(rule):
    """(input length, output length, scale or None, attributes): everything that one axis can be."""
    for (length, target), filter in itertools.product(SIZES + SCALES, FILTERS):
        if isinstance(target, int):
            out, scale = target, None
        else:
            out, scale = math.floor(length * target), target
        if rule != "tf_crop_and_resize":
            yield length, out, scale, {"coordinates": rule, **filter}
        elif scale is None:  # a scale gives ONNX another size there
            for region in REGIONS:
                yield length, out, None, {"coordinates": rule, "roi": region, **filter}


def resized_identity(length, out, scale, attributes):
    """The matrix of an axis, [out, length]; extrapolated rows are 7."""
    identity = torch.eye(length, dtype=torch.float64)[None]
    attributes = {"recompute_scale_factor": False, "extrapolation_value": 7.0, **attributes}
    return D.resample(identity, None if scale else out, scale, **attributes)[0].T


@pytest.mark.parametrize("rule", RULES)
def test_every_attribute_of_resize(rule):
    for length, out, scale, attributes in attributes_of(rule):
        expected, outside = axis_matrix(length, out, scale, **attributes)
        expected[outside] = 7
        ours = resized_identity(length, out, scale, attributes)
        assert_matches(ours, torch.from_numpy(expected), 1e-13)


def reference_matrix(length, out, scale, attributes):
    """resized_identity by ONNX's own implementation."""
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    inputs = {"x": np.eye(length), "roi": None, "scales": None, "sizes": None}
    if "roi" in attributes:
        begin, end = attributes["roi"]
        inputs["roi"] = np.array([0, begin, 1, end])
    if scale:
        inputs["scales"] = np.array([1, scale], dtype=np.float32)
    else:
        inputs["sizes"] = np.array([length, out])
    node = helper.make_node(
        "Resize",
        ["" if value is None else name for name, value in inputs.items()],
        ["y"],
        coordinate_transformation_mode=attributes["coordinates"],
        extrapolation_value=7.0,
        **{k: int(v) if isinstance(v, bool) else v for k, v in attributes.items()
           if k not in ("coordinates", "roi")},
    )  # fmt: skip
    inputs = {name: value for name, value in inputs.items() if value is not None}
    types = [(name, helper.np_dtype_to_tensor_dtype(v.dtype)) for name, v in inputs.items()]
    graph = helper.make_graph(
        [node],
        "resize",
        [helper.make_tensor_value_info(name, kind, None) for name, kind in types],
        [helper.make_tensor_value_info("y", types[0][1], None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
    return torch.tensor(ReferenceEvaluator(model).run(None, inputs)[0].T)


def strays_from_specification(rule, out, scale):
    if rule == "pytorch_half_pixel":
        return out == 1 or scale == SCALES[-1][1]  # x = -0.5 instead of 0
    # Its x is 0.9999999999999999 instead of 1.
    return rule == "half_pixel_symmetric" and scale in (0.5, 0.75)


if find_spec("onnx"):

    @pytest.mark.parametrize("rule", [rule for rule in RULES if rule != "tf_half_pixel_for_nn"])
    def test_reference_evaluator(rule):
        for length, out, scale, attributes in attributes_of(rule):
            if not strays_from_specification(rule, out, scale):
                theirs = reference_matrix(length, out, scale, attributes)
                ours = resized_identity(length, out, scale, attributes)
                assert_matches(ours, theirs, 1e-4)


def quantize(x, scale, zero_point, axis=None):
    dtype = zero_point.dtype
    return D.reorder(
        x,
        dtype=dtype,
        dst_scale=scale,
        dst_zero_point=zero_point,
        round_before_zero_point=True,
        axis=axis,
    )


def test_quantize_linear():
    x = torch.tensor([0.0, 2, 3, 1000, -254, -1000])
    zero_point = torch.tensor([128], dtype=torch.uint8)
    y = quantize(x, torch.tensor([2.0]), zero_point)
    assert y.tolist() == [128, 129, 130, 255, 1, 0]
    back = D.reorder(y, dtype=torch.float32, scale=torch.tensor([2.0]), src_zero_point=zero_point)
    assert back.tolist() == [0, 2, 4, 254, -254, -256]


def test_quantize_linear_per_axis():
    x = torch.tensor(
        [
            [[-162, 10], [-100, 232], [-20, -50]],
            [[-76, 0], [0, 252], [32, -44]],
            [[245, -485], [-960, -270], [-375, -470]],
        ],
        dtype=torch.float32,
    )[None]
    scale = torch.tensor([2.0, 4, 5])
    zero_point = torch.tensor([84, 24, 196], dtype=torch.uint8)
    y = quantize(x, scale, zero_point, axis=1)
    assert y[0].tolist() == [
        [[3, 89], [34, 200], [74, 59]],
        [[5, 24], [24, 87], [32, 13]],
        [[245, 99], [4, 142], [121, 102]],
    ]


def test_dequantize_linear_blocked():
    x = torch.tensor([[3, 89, 34, 200], [74, 59, 5, 24]], dtype=torch.uint8)
    scale = torch.tensor([[3.0, 2.0], [4.0, 1.0]])
    zero_point = torch.tensor([[1, 0], [0, 1]], dtype=torch.uint8)
    y = D.reorder(x, dtype=torch.float32, scale=scale, src_zero_point=zero_point)
    assert y.tolist() == [[6, 264, 68, 400], [296, 236, 4, 23]]


def float8_values(dtype):
    """The finite values of a float8 type from 0 up, in the order of their bits, as the ONNX page
    "Float stored in 8 bits" defines them; float32."""
    mantissa_bits, bias, codes = {"e4m3fn": (3, 7, 0x7F), "e5m2": (2, 15, 0x7C)}[dtype]
    code = np.arange(codes)
    exponent, mantissa = (
        code >> mantissa_bits,
        (code & (1 << mantissa_bits) - 1) / (1 << mantissa_bits),
    )
    values = np.where(exponent == 0, mantissa * 2.0, 1 + mantissa) * 2.0 ** (exponent - bias)
    return values.astype(np.float32)


def cast_float8(x, dtype):
    """float32 to the float32 of the nearest float8, ties to even, saturated (Cast, saturate=1)."""
    values = float8_values(dtype)
    magnitude = np.minimum(np.abs(x), values[-1])
    upper = np.searchsorted(values, np.nan_to_num(magnitude))
    lower = np.maximum(upper - 1, 0)
    middle = (values[lower].astype(np.float64) + values[upper]) / 2
    even = np.where(upper % 2 == 0, upper, lower)
    code = np.where(magnitude == middle, even, np.where(magnitude > middle, upper, lower))
    return np.where(np.isnan(x), np.nan, np.copysign(values[code], x))


def quantize_linear(x, scale, zero_point, dtype):
    """The formula of QuantizeLinear, in the float32 of x and of a scale of x's shape."""
    if dtype.startswith("e"):
        return cast_float8(x / scale, dtype)
    limits = np.iinfo(dtype)
    return np.clip(np.rint(x / scale) + zero_point, limits.min, limits.max).astype(dtype)


def dequantize_linear(x, scale, zero_point):
    return (x.astype(np.float32) - zero_point.astype(np.float32)) * scale


def shape_of_parameters(granularity, shape, axis):
    """Of scale and zero point."""
    if granularity == "tensor":
        return ()
    if granularity == "axis":
        return (shape[axis],)
    return tuple(n // 4 if d == axis else n for d, n in enumerate(shape))


def spread(parameter, granularity, shape, axis):
    """A scale or zero point over the elements that it belongs to, by the rules of the page."""
    if granularity == "axis":
        parameter = parameter.reshape([-1 if d == axis else 1 for d in range(len(shape))])
    if granularity == "blocked":
        parameter = np.repeat(parameter, 4, axis)
    return np.broadcast_to(parameter, shape)


FLOAT8 = {"e4m3fn": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


@pytest.mark.parametrize("dtype", ["uint8", "int8", *FLOAT8])
@pytest.mark.parametrize("granularity", ["tensor", "axis", "blocked"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_quantize_linear_by_formula(dtype, granularity, axis):
    """Exactly, and so what DequantizeLinear makes of the codes."""
    rng = np.random.default_rng(axis)
    shape = (8, 12, 20)
    own_shape = shape_of_parameters(granularity, shape, axis)
    scale = rng.uniform(0.01, 3, own_shape).astype(np.float32)
    zero_point = np.zeros(own_shape, np.int8)
    if dtype not in FLOAT8:  # which have none
        limits = np.iinfo(dtype)
        zero_point = rng.integers(limits.min, limits.max, own_shape, dtype, endpoint=True)
    full = [spread(np.asarray(p), granularity, shape, axis) for p in (scale, zero_point)]
    x = (rng.normal(0, 150, shape).astype(np.float32) * 2).round() / 2  # in steps; ties are many
    x = (x * full[0]).astype(np.float32)
    x.flat[:2] = np.inf, -np.inf

    operands = [torch.tensor(p) for p in (scale, zero_point)]
    along = {"axis": axis} if granularity == "axis" else {}
    options = {
        "dtype": FLOAT8.get(dtype) or getattr(torch, dtype),
        "dst_scale": operands[0],
    } | along
    if dtype in FLOAT8:
        x.flat[2] = np.nan
        codes = D.reorder(torch.tensor(x), **options)
        expected = quantize_linear(x, *full, dtype)
        np.testing.assert_array_equal(codes.float().numpy(), expected)
        back = D.reorder(codes, dtype=torch.float32, scale=operands[0], **along)
    else:
        codes = D.reorder(
            torch.tensor(x), dst_zero_point=operands[1], round_before_zero_point=True, **options
        )
        expected = quantize_linear(x, *full, dtype)
        np.testing.assert_array_equal(codes.numpy(), expected)
        back = D.reorder(
            codes, dtype=torch.float32, scale=operands[0], src_zero_point=operands[1], **along
        )
    np.testing.assert_array_equal(back.numpy(), dequantize_linear(expected, *full))


def test_dequantize_linear_of_sums():
    """int32, as ConvInteger leaves it, has no zero point."""
    x = np.array([0, 1, -7, 2**24 + 1, 2**31 - 1, -(2**31)], np.int32)
    y = D.reorder(torch.tensor(x), dtype=torch.float32, scale=0.3)
    np.testing.assert_array_equal(y.numpy(), x.astype(np.float32) * np.float32(0.3))


@pytest.mark.parametrize("dtype", FLOAT8)
def test_float8_values(dtype):
    """The largest and the smallest numbers of the page's table; infinities and beyond saturate."""
    largest, smallest = {"e4m3fn": (448.0, 2.0**-9), "e5m2": (57344.0, 2.0**-16)}[dtype]
    values = float8_values(dtype)
    assert values[-1] == largest and values[1] == smallest
    codes = torch.arange(len(values), dtype=torch.uint8).view(FLOAT8[dtype])
    assert np.array_equal(D.reorder(codes, dtype=torch.float32).numpy(), values)
    x = torch.tensor([1e30, -1e30, math.inf, -math.inf, largest * 1.2, smallest / 2, math.nan])
    y = D.reorder(x, dtype=FLOAT8[dtype]).float()
    assert y[:6].tolist() == [largest, -largest, largest, -largest, largest, 0] and y[6].isnan()
