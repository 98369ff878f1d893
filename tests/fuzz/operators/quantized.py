"""Quantized convolution: exact sums and float32 steps, to the bit."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from oracles import quantized as oracle
from oracles.conv import padding
from quantized_problems import TRANSCENDENTAL
from torch import Tensor

import torch_dnnl
from fuzz.operators.conv import ACTIVATIONS, attributes_of, geometry
from fuzz.operators.reorder import same_bits
from fuzz.problems import Operator, Problem, Tape, TensorSpec, layout

KERNELS = torch_dnnl.build_info()["kernels"]["cpu"]["quantized_convolution"]
RESULTS = ("int8", "uint8", "int32", "float32", "bfloat16", "float16")
SCALES = ("src_scale", "weights_scale", "dst_scale", "residual_scale")
ZERO_POINTS = ("src_zero_point", "dst_zero_point", "residual_zero_point")


def _number(tape: Tape, name: str, of: dict[str, str | None]) -> float:
    """A scale, or a zero point that is a value of the type that it belongs to."""
    if name in SCALES:
        sign = -1.0 if tape.chance(0.1) else 1.0
        options = [0.5, 0.01, 1e-3, 0.1, 1.0, 1 / 255, 7.3, 1e3]
        return sign * tape.pick(options) * tape.pick([1.0, 1.25, 0.7])
    dtype = of[name]
    limits = {"int8": (-128, 127), "uint8": (0, 255)}.get(dtype or "", (-100, 100))
    return float(tape.integer(*limits))


def _make(tape: Tape, mode: str) -> Problem:
    g = geometry(tape, KERNELS)
    if g.ic == 0:  # the oracle's convolution has no result of no channels
        g = dataclasses.replace(g, ic=1)
    src, result, residual = tape.pick(["int8", "uint8"]), tape.pick(RESULTS), tape.pick(RESULTS)
    kinds = [tape.pick(["normal", "small", "corners"]) for _ in range(2)]
    threads = tape.pick([1, 1, 2, 3])
    tensors = {
        "src": layout(tape, TensorSpec(g.src, src, values=kinds[0])),
        "weights": layout(tape, TensorSpec(g.weights, "int8", values=kinds[1])),
    }
    oc = g.groups * g.oc
    bias = layout(tape, TensorSpec((oc,), values="wide"))
    values = "wide" if residual in ("float32", "bfloat16", "float16") else "normal"
    added = layout(tape, TensorSpec(g.dst, residual, values=values))
    scales = layout(tape, TensorSpec((oc,), values="positive"))
    attributes = dict(g.attributes)
    if attributes["algorithm"] in ("direct", "winograd"):
        attributes["algorithm"] = "auto"
    attributes["dtype"] = None if tape.chance(0.1) else result
    if tape.chance(0.8):
        if tape.chance(0.5):
            tensors["bias"] = bias
        if tape.chance(0.4):
            tensors["residual"] = added
        attributes["activation"] = tape.pick(ACTIVATIONS)
        of = {"src_zero_point": src, "dst_zero_point": attributes["dtype"] or "int8"}
        of["residual_zero_point"] = residual
        for name in (*SCALES, *ZERO_POINTS):
            number, kind = _number(tape, name, of), tape.pick(["number", "none", "tensor"])
            if name.startswith("residual") and "residual" not in tensors:
                continue
            if kind == "number":
                attributes[f"{name}_value"] = number
            elif kind == "tensor" and name == "weights_scale":
                tensors[name] = scales
            elif kind == "tensor":
                is_scale = name in SCALES
                dtype = "float32" if is_scale else "int32"
                values = "positive" if is_scale or of[name] == "uint8" else "small"
                tensors[name] = TensorSpec((1,), dtype, values=values, seed=len(name))
    return Problem("quantized_convolution", tensors, attributes, threads)


def _operand(call: dict[str, Any], name: str) -> Any:
    """A number, or the tensor of weights_scale."""
    tensor = call.get(name)
    if tensor is None:
        return call.get(f"{name}_value", 1.0 if name in SCALES else 0.0)
    return tensor.contiguous() if name == "weights_scale" else tensor.item()


def _as_channels_second(image: Tensor, call: dict[str, Any]) -> Tensor:
    return image.movedim(-1, 1) if call["data_format"] == "NXC" else image


def expected(call: dict[str, Any]) -> Tensor:
    src = _as_channels_second(call["src"], call)
    weights = call["weights"]
    if call["weights_format"] == "XIO":
        weights = weights.movedim((-1, -2), (0, 1))
    a = attributes_of(call)
    begin, end = padding(
        *(src.shape[2:], weights.shape[2:], a["strides"], a["pads_begin"], a["pads_end"]),
        *(a["dilations"], a["auto_pad"]),
    )
    zero_point = _operand(call, "src_zero_point")
    sums = oracle.sums(
        *(src, weights, zero_point, a["strides"], begin, end, a["dilations"], a["groups"])
    )
    dtype = call.get("dtype") or torch.int8
    steps = {name: _operand(call, name) for name in (*SCALES, *ZERO_POINTS)}
    steps.pop("src_zero_point")
    given = {*(f"{name}_value" for name in steps), *steps, "bias", "residual"}
    is_sum = all(
        not torch.is_tensor(call.get(name))
        and call.get(name, 1.0) == (1.0 if "scale" in name else 0)
        for name in given & call.keys()
    )
    if dtype == torch.int32 and call.get("activation") is None and is_sum:
        limits = torch.iinfo(torch.int32)
        result = sums.clamp(limits.min, limits.max).to(torch.int32)
    else:
        residual = call.get("residual")
        if residual is not None:
            residual = _as_channels_second(residual, call)
        bias = None if call.get("bias") is None else call["bias"].contiguous()
        result = oracle.completed(sums, dtype, bias, residual, call.get("activation"), **steps)
    return result.movedim(1, -1) if call["data_format"] == "NXC" else result


def compare(call: dict[str, Any], actual: Tensor, wanted: Tensor) -> None:
    if call.get("activation") not in TRANSCENDENTAL:
        same_bits(actual, wanted)
        return
    # The oracle's functions are not rounded correctly: an error in the last place may carry a value
    # over the middle of two results.
    assert actual.dtype == wanted.dtype and actual.shape == wanted.shape
    if actual.is_floating_point():
        tolerance = 2**-7 if actual.itemsize == 2 else 1e-6
        torch.testing.assert_close(
            actual.float(), wanted.float(), rtol=tolerance, atol=1e-7, equal_nan=True
        )
        return
    wrong = actual != wanted
    step = max(1.0, 2e-7 * wanted.double().abs().max().item()) if wanted.numel() else 1.0
    assert (actual.double() - wanted.double())[wrong].abs().le(step).all(), "more than one apart"
    if actual.dtype != torch.int32:
        assert wrong.sum() <= 1 + 1e-3 * wrong.numel(), "too many that are one apart"


OPERATORS = [Operator("quantized_convolution", _make, expected, compare)]
