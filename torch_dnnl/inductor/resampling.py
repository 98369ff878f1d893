"""`F.interpolate` in the graph that Dynamo gives, before torch makes gathers of it."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.fx import Graph, Node
from torch.nn import functional

from torch_dnnl.functional import interpolate
from torch_dnnl.functional._tracing import holds
from torch_dnnl.inductor.preferences import prefers_interpolation

_signature = inspect.signature(functional.interpolate)

# Adaptive average pools are the mode "area"; with the number of spatial dimensions.
_POOLS = {
    functional.adaptive_avg_pool1d: 1,
    functional.adaptive_avg_pool2d: 2,
    functional.adaptive_avg_pool3d: 3,
}


def replace_interpolations(graph: Graph) -> None:
    """Calls torch_dnnl's resize where the table of preferences has it. Autograd then calls
    torch_dnnl's backward."""
    for node in graph.find_nodes(op="call_function", target=functional.interpolate):
        call = _signature.bind(*node.args, **node.kwargs)
        call.apply_defaults()
        input, output = _example(call.arguments["input"]), _example(node)
        mode, antialias = call.arguments["mode"], call.arguments["antialias"]
        if input is None or output is None:
            continue
        is_joined = _is_joined(node) and not antialias
        is_wrong = mode == "nearest" and _ignores_factors(call.arguments, output.dim() - 2)
        if not is_wrong and not _has_one_rule(output, mode):
            continue
        if prefers_interpolation(input, output, mode, is_joined, is_wrong):
            node.target = _interpolate
    for target, n in _POOLS.items():
        for node in graph.find_nodes(op="call_function", target=target):
            input = _example(node.args[0] if node.args else node.kwargs["input"])
            output = _example(node)
            if input is None or output is None or input.dim() != n + 2:
                continue
            if prefers_interpolation(input, output, "area", _is_joined(node)):
                node.target = _average_pool


def _example(node: Any) -> Tensor | None:
    """The fake tensor that Dynamo has computed for a node."""
    return node.meta.get("example_value") if isinstance(node, Node) else None


_JOINS = (torch.cat, torch.concat, torch.concatenate)


def _is_joined(node: Node) -> bool:
    """Whether a result is used for nothing but to be concatenated with others."""
    return all(user.target in _JOINS for user in node.users)


def _has_one_rule(output: Tensor, mode: str) -> bool:
    """Whether the result is defined alike for all sizes that a graph is compiled for.

    ATen has another kernel for small images, whose nearest pixels differ by rounding.
    """
    is_fixed = all(type(size) is int for size in output.shape)
    is_rounded = mode == "nearest-exact" or (mode == "nearest" and output.dtype == torch.float64)
    return is_fixed or not is_rounded


def _ignores_factors(arguments: dict[str, Any], n: int) -> bool:
    """Whether ATen may ignore a factor that Inductor takes the nearest pixels from.

    Whatever the factor is, ATen copies an axis that keeps its size, and repeats the pixels of an
    axis that doubles (https://github.com/pytorch/pytorch/issues/198201).
    """
    factors = arguments["scale_factor"]
    return (
        factors is not None
        and not arguments["recompute_scale_factor"]
        and _whole(factors, n) is None
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
    """torch_dnnl's `interpolate`.

    Without floor() of a product for a size: of symbolic sizes that makes guards.
    """
    input = _in_torchs_format(input)
    factors = None if scale_factor is None else _whole(scale_factor, input.dim() - 2)
    if factors is not None:
        size = [n * factor for n, factor in zip(input.shape[2:], factors, strict=True)]
        scale_factor = None
        if len(args) > 2:
            args = (*args[:2], None, *args[3:])
        kwargs.pop("recompute_scale_factor", None)  # the same coordinates either way
    return interpolate(input, size, scale_factor, *args, **kwargs)


def _in_torchs_format(input: Tensor) -> Tensor:
    """The image; where torch asks the stride of a batch of one for the format, a contiguous one.

    torch_dnnl does not ask, and would give a result that lies in another way.
    """
    is_asked = input.dim() >= 4 and holds(input.shape[0] == 1) and holds(input.stride(1) == 1)
    is_planar = is_asked and suggest_memory_format(input) == torch.contiguous_format
    return input.contiguous() if is_planar else input


def _average_pool(input: Tensor, output_size: Any) -> Tensor:
    input = _in_torchs_format(input)
    listed = isinstance(output_size, (list, tuple))
    sizes = output_size if listed else [output_size] * (input.dim() - 2)
    pairs = zip(input.shape[2:], sizes, strict=True)
    return interpolate(input, [n if size is None else size for n, size in pairs], mode="area")
