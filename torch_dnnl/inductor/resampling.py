"""`F.interpolate` in the graph that Dynamo gives, before torch makes gathers of it."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph

from torch_dnnl.functional import interpolate
from torch_dnnl.inductor.preferences import prefers_interpolation

_signature = inspect.signature(torch.nn.functional.interpolate)


def replace_interpolations(graph: Graph) -> None:
    """Puts ours where the table of preferences has it; autograd then makes the backward ours."""
    for node in graph.find_nodes(op="call_function", target=torch.nn.functional.interpolate):
        call = _signature.bind(*node.args, **node.kwargs)
        call.apply_defaults()
        input, output = call.arguments["input"].meta["example_value"], node.meta["example_value"]
        mode, factors = call.arguments["mode"], call.arguments["scale_factor"]
        if _has_one_rule(output, mode, factors) and prefers_interpolation(input, output, mode):
            node.target = _interpolate


def _has_one_rule(output: Tensor, mode: str, factors: Any) -> bool:
    """Whether the result is defined alike for all sizes that a graph is compiled for.

    The nearest pixels are other ones in small images, where ATen has another kernel for these.
    """
    if all(type(size) is int for size in output.shape):
        return True
    is_whole = factors is None or _whole(factors, output.dim() - 2) is not None
    return mode != "nearest-exact" and (
        mode != "nearest" or (is_whole and output.dtype != torch.float64)
    )


def _whole(factors: Any, n: int) -> list[int] | None:
    """Factors as one int for each of n dimensions, if they are whole numbers."""
    listed = list(factors) if isinstance(factors, (list, tuple)) else [factors] * n
    if not all(isinstance(factor, (int, float)) and factor == int(factor) for factor in listed):
        return None
    return [int(factor) for factor in listed]


def _interpolate(
    input: Tensor, size: Any = None, scale_factor: Any = None, *args: Any, **kwargs: Any
) -> Tensor:
    """Ours, without floor() of a product for a size: of symbolic sizes that makes guards."""
    factors = None if scale_factor is None else _whole(scale_factor, input.dim() - 2)
    if factors is not None:
        size = [n * factor for n, factor in zip(input.shape[2:], factors, strict=True)]
        scale_factor = None
        if len(args) > 2:
            args = (*args[:2], None, *args[3:])
        kwargs.pop("recompute_scale_factor", None)  # the same coordinates either way
    return interpolate(input, size, scale_factor, *args, **kwargs)
