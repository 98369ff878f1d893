"""The public functions that end in an operator: their names, and their spelling of its calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_OPERANDS = ("scale", "dst_scale", "src_zero_point", "dst_zero_point")
_QUANTIZED = (
    *("src_scale", "src_zero_point", "weights_scale", "dst_scale", "dst_zero_point"),
    *("residual_scale", "residual_zero_point"),
)
Call = dict[str, Any]


def _merged(call: Call, names: tuple[str, ...], dropped: tuple[str, ...]) -> Call:
    """A scale or zero point is one argument, be it a tensor or a number."""
    result = {k: v for k, v in call.items() if not k.endswith("_value") and k not in dropped}
    for name in names:
        if f"{name}_value" in call:
            result[name] = call[f"{name}_value"]
    return result


def _convolution(call: Call) -> Call:
    return {k: v for k, v in call.items() if k != "keep_preactivation"}


def _resample(call: Call) -> Call:
    result = {k: v for k, v in call.items() if k not in ("scales", "window", "algorithm")}
    if call["scales"]:
        result |= {"scale_factor": call["scales"], "recompute_scale_factor": False}
    return result | {"roi": call["roi"] or None}


def _reorder(call: Call) -> Call:
    return _merged(call, _OPERANDS, ("algorithm",))


def _fake_reorder(call: Call) -> Call:
    return _merged(call, _OPERANDS, ("algorithm", "batch_dims", "step_gradient"))


def _quantized(call: Call) -> Call:
    return _merged(call, _QUANTIZED, ())


FUNCTIONS: dict[str, tuple[str, Callable[[Call], Call]]] = {
    "convolution": ("convolution", _convolution),
    "convolution_fused": ("convolution", _convolution),
    "resample": ("resample", _resample),
    "reorder": ("reorder", _reorder),
    "fake_reorder": ("fake_reorder", _fake_reorder),
    "quantized_convolution": ("quantized_convolution", _quantized),
}
