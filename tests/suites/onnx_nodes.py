"""ONNX's node tests: what its package stores beside the definition of its operators, and the
convolutions of torch that it keeps as models, by the calls of docs/resample.md,
docs/convolution.md, docs/reorder.md and docs/quantization.md.

Integers are equal, floating results are the stored float32 results within the roundings of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx_integers import conv_integer, qlinear_conv
from torch import Tensor

import torch_dnnl.functional as D
from suites import Case, OutsideError, assert_close, assert_equal

TITLE = "ONNX's node tests"

Inputs = list[Tensor | None]


def source() -> str:
    return f"onnx {version('onnx')}"


def as_tensor(value: Any) -> Tensor:
    """Of an array or a TensorProto; the types of 8 bits that NumPy lacks as torch has them."""
    array = numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value
    name = str(array.dtype)
    if name in ("float8_e4m3fn", "float8_e5m2", "bfloat16"):
        dtype = getattr(torch, name)
        raw = np.array(array).view(np.uint8 if name != "bfloat16" else np.int16)
        return torch.from_numpy(raw).view(dtype)
    if name not in ("uint8", "int8", "int32", "int64", "float16", "float32", "float64"):
        raise OutsideError(f"type {name}")
    return torch.tensor(array)


def spatial_of(x: Tensor, values: list[Any], neutral: list[Any], what: str) -> list[Any]:
    """Of the values of all dimensions those of the spatial ones; the others must be neutral."""
    if x.dim() < 3 or values[:2] != neutral[:2]:
        raise OutsideError(f"{what} of the batch or the channels")
    return values[2:]


def resize(inputs: Inputs, attributes: dict[str, Any], outputs: list[Tensor]) -> Tensor:
    x, roi, scales, sizes = [*inputs, None, None, None][:4]
    assert x is not None
    axes = [a % x.dim() for a in attributes.pop("axes", range(x.dim()))]
    policy = attributes.pop("keep_aspect_ratio_policy", "stretch")
    options: dict[str, Any] = {
        "mode": attributes.pop("mode", "nearest"),
        "coordinates": attributes.pop("coordinate_transformation_mode", "half_pixel"),
        "nearest_mode": attributes.pop("nearest_mode", "round_prefer_floor"),
        "recompute_scale_factor": False,
    }
    flags = {n: bool(attributes.pop(n, 0)) for n in ("antialias", "exclude_outside")}
    options |= {**flags, **attributes}  # cubic_coeff_a, extrapolation_value
    begin, end = [0.0] * x.dim(), [1.0] * x.dim()
    if options["coordinates"] == "tf_crop_and_resize" and roi is not None:
        for i, axis in enumerate(axes):
            begin[axis], end[axis] = roi[i].item(), roi[len(axes) + i].item()
        begins = spatial_of(x, begin, [0.0, 0.0], "a region")
        ends = spatial_of(x, end, [1.0, 1.0], "a region")
        options["roi"] = [*begins, *ends]
    size, factors = list(x.shape), [1.0] * x.dim()
    if sizes is not None and sizes.numel():
        ratios = [n / x.shape[axis] for n, axis in zip(sizes.tolist(), axes)]
        kept = {"stretch": None, "not_larger": min(ratios), "not_smaller": max(ratios)}[policy]
        for n, axis in zip(sizes.tolist(), axes):
            size[axis] = n if kept is None else math.floor(kept * x.shape[axis] + 0.5)
            factors[axis] = n / x.shape[axis] if kept is None else kept
        if kept is None:
            del options["recompute_scale_factor"]
            return D.resample(x, spatial_of(x, size, [*x.shape[:2]], "a size"), **options)
    else:
        assert scales is not None
        for factor, axis in zip(scales.tolist(), axes):
            factors[axis] = factor
            size[axis] = math.floor(x.shape[axis] * (end[axis] - begin[axis]) * factor)
    factors = spatial_of(x, factors, [1.0, 1.0], "a scale")
    return D.resample(x, size[2:], factors, **options)


def upsample(inputs: Inputs, attributes: dict[str, Any], outputs: list[Tensor]) -> Tensor:
    """Which Resize took the place of; its positions are o / s."""
    x, scales = inputs
    rounding = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return resize([x, None, scales], attributes | rounding, outputs)


def pads_of(attributes: dict[str, Any], rank: int) -> dict[str, Any]:
    """pads and auto_pad by our names."""
    pads = attributes.get("pads", [0] * (2 * rank))
    automatic = attributes.get("auto_pad", "NOTSET")
    return {
        "pads_begin": pads[:rank],
        "pads_end": pads[rank:],
        "auto_pad": {"NOTSET": "none"}.get(automatic, automatic.lower()),
        "strides": attributes.get("strides", 1),
        "dilations": attributes.get("dilations", 1),
        "groups": attributes.get("group", 1),
        "data_format": "NCX",
    }


def conv(inputs: Inputs, attributes: dict[str, Any], outputs: list[Tensor]) -> Tensor:
    x, w, bias = [*inputs, None][:3]
    assert x is not None
    return D.convolution(x, w, bias, weights_format="OIX", **pads_of(attributes, x.dim() - 2))


def conv_transpose(inputs: Inputs, attributes: dict[str, Any], outputs: list[Tensor]) -> Tensor:
    x, w, bias = [*inputs, None][:3]
    assert x is not None and w is not None
    rank = x.dim() - 2
    options = pads_of(attributes, rank)
    output_padding = list(attributes.get("output_padding", [0] * rank))
    if shape := attributes.get("output_shape"):
        # The size says what is cut off, an odd pixel at the beginning, or at the end for
        # SAME_UPPER.
        upper = options.pop("auto_pad") == "same_upper"
        begin, end = [0] * rank, [0] * rank
        for d in range(rank):
            stride = attributes.get("strides", [1] * rank)[d]
            covered = (w.shape[2 + d] - 1) * attributes.get("dilations", [1] * rank)[d] + 1
            excess = (x.shape[2 + d] - 1) * stride + output_padding[d] + covered - shape[d]
            if excess < 0:
                output_padding[d] -= excess
                excess = 0
            begin[d] = excess // 2 if upper else excess - excess // 2
            end[d] = excess - begin[d]
        options |= {"pads_begin": begin, "pads_end": end}
    return D.convolution_transpose(
        x, w, bias, weights_format="IOX", output_padding=output_padding, **options
    )


def granularity(x: Tensor, scale: Tensor, attributes: dict[str, Any]) -> dict[str, Any]:
    """Our `axis`, for scales per axis; scales of blocks have x's rank in both."""
    if scale.dim() != 1 or scale.numel() == 1:
        return {}
    return {"axis": attributes.get("axis", 1)}


def quantize_linear(inputs: Inputs, attributes: dict[str, Any], outputs: list[Tensor]) -> Tensor:
    x, scale, zero_point = [*inputs, None][:3]
    assert x is not None and scale is not None
    options = granularity(x, scale, attributes)
    dtype = outputs[0].dtype
    if zero_point is not None and not dtype.is_floating_point:
        options["dst_zero_point"] = zero_point.reshape(scale.shape)
    return D.reorder(x, dtype=dtype, dst_scale=scale, round_before_zero_point=True, **options)


def dequantize_linear(inputs: Inputs, attributes: dict[str, Any], outputs: list[Tensor]) -> Tensor:
    x, scale, zero_point = [*inputs, None][:3]
    assert x is not None and scale is not None
    options = granularity(x, scale, attributes)
    if zero_point is not None and not x.dtype.is_floating_point:
        options["src_zero_point"] = zero_point.reshape(scale.shape)
    return D.reorder(x, dtype=outputs[0].dtype, scale=scale, **options)


def integers(inputs: Inputs, attributes: dict[str, Any], outputs: list[Tensor]) -> Tensor:
    x, w, x_zero_point, w_zero_point = [*inputs, None, None][:4]
    x_zero = 0 if x_zero_point is None else x_zero_point
    w_zero = 0 if w_zero_point is None else w_zero_point
    known = ("pads", "strides", "dilations", "group")
    options = {name: attributes[name] for name in known if name in attributes}
    return conv_integer(x, w, x_zero, w_zero, **options)


def qlinear(inputs: Inputs, attributes: dict[str, Any], outputs: list[Tensor]) -> Tensor:
    return qlinear_conv(*inputs, **attributes)


OPERATORS: dict[str, Callable[[Inputs, dict[str, Any], list[Tensor]], Tensor]] = {
    "Resize": resize,
    "Upsample": upsample,
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "QuantizeLinear": quantize_linear,
    "DequantizeLinear": dequantize_linear,
    "QLinearConv": qlinear,
    "ConvInteger": integers,
}


def plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def check(model: onnx.ModelProto, given: Any, expected: Any) -> None:
    """A model of one node. Inputs that it names and the data leaves out are its initializers."""
    (node,) = model.graph.node
    values = {tensor.name: as_tensor(tensor) for tensor in model.graph.initializer}
    names = [i.name for i in model.graph.input if i.name not in values]
    values |= {name: as_tensor(value) for name, value in zip(names, given)}
    outputs = [as_tensor(value) for value in expected]
    attributes = {a.name: plain(onnx.helper.get_attribute_value(a)) for a in node.attribute}
    inputs = [values[name] if name else None for name in node.input]
    ours = OPERATORS[node.op_type](inputs, attributes, outputs)
    if outputs[0].dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert ours.dtype == outputs[0].dtype
        assert_close(ours, outputs[0], roundings=2)
    else:
        assert_equal(ours, outputs[0])


def stored(folder: Any) -> Iterator[tuple[Any, Any]]:
    """Inputs and outputs of the data sets of a stored model."""
    for data in sorted(folder.glob("test_data_set_*")):
        read = [
            [onnx.load_tensor(str(path)) for path in sorted(data.glob(f"{kind}_*.pb"))]
            for kind in ("input", "output")
        ]
        yield read[0], read[1]


def cases() -> Iterator[Case]:
    # collect_testcases() makes the tests of all operators, or of the one that is asked for first.
    for operator in OPERATORS:
        import_module(f"onnx.backend.test.case.node.{operator.lower()}")
    for operator in OPERATORS:
        for test in import_module("onnx.backend.test.case.node")._NodeTestCases:
            if [node.op_type for node in test.model.graph.node] == [operator]:
                for inputs, outputs in test.data_sets:
                    run = partial(check, test.model, inputs, outputs)
                    yield Case(operator, test.name, run)
    for kind in ("pytorch-converted", "pytorch-operator"):
        for test in load_model_tests(kind=kind):
            folder = Path(test.model_dir)
            model = onnx.load(folder / "model.onnx")
            if [node.op_type in ("Conv", "ConvTranspose") for node in model.graph.node] == [True]:
                for inputs, outputs in stored(folder):
                    yield Case(
                        "torch's convolutions", test.name, partial(check, model, inputs, outputs)
                    )
