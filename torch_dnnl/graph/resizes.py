"""Resizes of aten decomposed into torch_dnnl's, for graphs of torch.export."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from torch_dnnl.functional import interpolate
from torch_dnnl.functional._algorithm import has_kernels
from torch_dnnl.graph.nodes import aten, is_floating

POOLS = (
    *(aten.adaptive_avg_pool1d.default, aten.adaptive_avg_pool2d.default),
    aten.adaptive_avg_pool3d.default,
)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """The replacements of operators, for `ExportedProgram.run_decompositions`."""
    table: dict[Any, Callable[..., Any]] = {
        aten.upsample_bicubic2d.vec: _resize("bicubic"),
        aten._upsample_bilinear2d_aa.vec: _resize("bilinear", True),
        aten._upsample_bicubic2d_aa.vec: _resize("bicubic", True),
    }
    for n, linear in enumerate(("linear", "bilinear", "trilinear"), 1):
        table[getattr(aten, f"upsample_nearest{n}d").vec] = _resize("nearest")
        table[getattr(aten, f"_upsample_nearest_exact{n}d").vec] = _resize("nearest-exact")
        table[getattr(aten, f"upsample_{linear}{n}d").vec] = _resize(linear)
        table[POOLS[n - 1]] = _pool(n)
    return table


def _resize(mode: str, antialias: bool = False) -> Callable[..., Any]:
    def resize(input: Tensor, size: Any, *args: Any) -> Tensor:
        if not is_floating(input) or not has_kernels(input):
            return NotImplemented  # type: ignore[no-any-return]
        *corners, factors = args
        align_corners = corners[0] if corners else None
        return interpolate(input, size, factors, mode, align_corners, None, antialias)  # type: ignore[arg-type]

    return resize


def _pool(n: int) -> Callable[..., Any]:
    """Pools whose areas overlap. Other areas are as fast in torch."""

    def pool(input: Tensor, output_size: Any) -> Tensor:
        pairs = list(zip(input.shape[2:], output_size, strict=False))
        is_whole = all(type(i) is type(o) is int and o > 0 and i % o == 0 for i, o in pairs)
        is_one = all(type(size) is int and size == 1 for size in output_size)
        is_empty = any(type(size) is int and size == 0 for size in output_size)
        is_image = input.dim() == n + 2 and is_floating(input) and has_kernels(input)
        if is_one or is_empty or is_whole or not is_image:
            return NotImplemented  # type: ignore[no-any-return]
        return interpolate(input, list(output_size), mode="area")

    return pool
