"""The floating-point operations of convolutions, for `torch.utils.flop_counter.FlopCounterMode`.

Counted as torch counts those of its own: two for each product of the definition, whatever algorithm
computes it and however many of them are with padding.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry, register_flop_formula


def _of_pass(image: Tensor, weights: Tensor, weights_format: str) -> int:
    """`image`: the result or its gradient, each element of which meets a kernel's inputs."""
    out_channels = weights.shape[0 if weights_format == "OIX" else -1]
    return 2 * image.numel() * math.prod(weights.shape) // max(out_channels, 1)


def _flops(name: str, call: dict[str, Any], out: Any) -> int:
    if name == "convolution_fused_backward":
        pairs = [(call["weights"], call["weights"]), (call["src"], out[1])]
        passes = [(call["grad"], weights) for partner, weights in pairs if partner is not None]
    elif name == "convolution_backward_weights":
        passes = [(call["grad"], out)]
    elif name == "convolution_backward_data":
        passes = [(call["grad"], call["weights"])]
    elif name == "convolution_transpose":
        passes = [(call["src"], call["weights"])]
    else:
        passes = [(out[0] if isinstance(out, tuple) else out, call["weights"])]
    return sum(_of_pass(image, weights, call["weights_format"]) for image, weights in passes)


def _register(name: str) -> None:
    op = getattr(torch.ops.torch_dnnl, name)
    arguments = op.default._schema.arguments
    defaults = {argument.name: argument.default_value for argument in arguments}

    def formula(*args: Any, out_val: Any = None, **kwargs: Any) -> int:
        return _flops(
            name, {**defaults, **dict(zip(defaults, args, strict=False)), **kwargs}, out_val
        )

    if op not in flop_registry:
        register_flop_formula(op, get_raw=True)(formula)


for _name in (
    "convolution",
    "convolution_fused",
    "convolution_packed",
    "convolution_transpose",
    "convolution_backward_data",
    "convolution_backward_weights",
    "convolution_fused_backward",
):
    _register(_name)
