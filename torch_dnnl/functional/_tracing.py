"""How traces take images of any size.

A trace of torch.jit records the sizes that Python hands to an operator as numbers. So where a
result's sizes depend on those of the images, the call is a function that TorchScript compiles. It
computes the sizes for each input. A trace of torch.compile has symbols: `holds` asks about them.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.compiler import is_dynamo_compiling

is_tracing: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]


def holds(condition: bool) -> bool:
    """Whether a condition on sizes holds; False where it depends on sizes that come from data."""
    if not is_dynamo_compiling() and not isinstance(condition, torch.SymBool):
        return bool(condition)  # a size may be a tensor of one element
    from torch.fx.experimental.symbolic_shapes import guard_or_false

    return guard_or_false(condition)


def is_dense(tensor: Tensor, order: Sequence[int]) -> bool:
    """Whether a tensor is dense with its dimensions in this order, the innermost first.

    `is_contiguous(memory_format=...)` does not exist under vmap.
    """
    expected: int = 1
    for d in order:
        if not (holds(tensor.shape[d] == 1) or holds(tensor.stride(d) == expected)):
            return False
        expected *= tensor.shape[d]
    return True


def read_numbers(*values: object) -> None:
    """Breaks a graph of torch.compile at a float that comes from data, as torch's functions do.

    The operators take floats that are known when a graph is made.
    """
    if is_dynamo_compiling():
        for value in values:
            if isinstance(value, (int, float)) and abs(value) <= sys.float_info.max:
                continue  # the question breaks the graph


def script_if_tracing(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`torch.jit.script_if_tracing`, with types."""
    scripted: Callable[..., Tensor] = torch.jit.script_if_tracing(function)  # type: ignore[no-untyped-call]
    return scripted


@script_if_tracing
def resample(
    src: Tensor,
    factors: list[float],
    mode: str,
    coordinates: str = "half_pixel",
    nearest_mode: str = "round_prefer_ceil",
    antialias: bool = False,
    cubic_coeff_a: float = -0.75,
    exclude_outside: bool = False,
    roi: list[float] | None = None,
    extrapolation_value: float = 0.0,
    data_format: str = "NCX",
    dtype: int | None = None,
    algorithm: str = "auto",
) -> Tensor:
    """The operator at sizes of `factors`, which a trace of torch.jit computes for each input."""
    sizes: list[int] = []
    no_scales: list[float] = []
    for i, factor in enumerate(factors):
        axis = i + 2 if data_format == "NCX" else i + 1
        sizes.append(math.floor(src.size(axis) * factor))
    return torch.ops.torch_dnnl.resample(  # type: ignore[no-any-return]
        src,
        sizes,
        no_scales,
        mode,
        coordinates,
        nearest_mode,
        antialias,
        cubic_coeff_a,
        exclude_outside,
        no_scales if roi is None else roi,
        extrapolation_value,
        data_format,
        dtype,
        algorithm,
    )


@script_if_tracing
def convolution_transpose(
    src: Tensor,
    weights: Tensor,
    bias: Tensor | None,
    strides: list[int],
    begin: list[int],
    ends: list[int],
    dilations: list[int],
    auto_pad: str,
    groups: int,
    data_format: str,
    weights_format: str,
    algorithm: str,
    residual: Tensor | None,
    activation: str | None,
    alpha: float | None,
    beta: float | None,
    slope: Tensor | None,
    beyond: list[int],
) -> Tensor:
    """The operator at sizes of src * strides + `beyond`, for each input of a trace of torch.jit."""
    dst_size: list[int] = []
    for i, stride in enumerate(strides):
        axis = i + 2 if data_format == "NCX" else i + 1
        dst_size.append(src.size(axis) * stride + beyond[i])
    dst, _ = torch.ops.torch_dnnl.convolution_transpose(
        src,
        weights,
        bias,
        strides,
        begin,
        ends,
        dilations,
        auto_pad,
        groups,
        data_format,
        weights_format,
        algorithm,
        residual,
        activation,
        alpha,
        beta,
        slope,
        False,
        dst_size,
    )
    return dst  # type: ignore[no-any-return]
