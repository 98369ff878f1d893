"""The sizes of a transposed convolution's result, and the pads that give them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any


def plan(
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    begin: Sequence[int],
    end: Sequence[int],
    output_padding: Sequence[int],
    is_same: bool,
) -> tuple[list[int], list[int], list[int]]:
    """The sizes of the result, the pads that give them, and the pixels that are added to src."""
    dst_size, ends, more = [], [], []
    for size, k, s, d, b, e, added in zip(
        sizes, kernel, strides, dilations, begin, end, output_padding, strict=True
    ):
        covered = (k - 1) * d + 1
        out = size * s + added if is_same else (size - 1) * s + covered - b - e + added
        # The convolution of the result must give the sizes of src. It ignores less than a stride of
        # pixels at the end. Output padding beyond a stride reduces the pad, then adds pixels of 0.
        beyond = added + (max(0, s - covered) if is_same else 0)
        missing = 0
        if beyond >= s:
            missing = max(0, -((s - 1 + e - beyond) // s))
            e = max(e + missing * s - beyond, 0)
        dst_size.append(out)
        ends.append(e)
        more.append(missing)
    return dst_size, ends, more


@lru_cache(maxsize=256)
def plan_of_numbers(
    n: int, src: Sequence[int], weights: Sequence[int], *attributes: Any
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The pads at the end and the sizes of the result, where torch takes the call as it is.

    Keys do not tell 1.0 and True from 1; the caller does.
    """
    spread = [value if isinstance(value, tuple) else (value,) * n for value in attributes]
    if any(len(value) != n or not all(type(i) is int for i in value) for value in spread):
        return None
    strides, pads, added, dilations = spread
    if min(*strides, *dilations) < 1 or min(*pads, *added) < 0:
        return None
    if any(a >= s and a >= d for a, s, d in zip(added, strides, dilations, strict=True)):
        return None
    dst_size, ends, more = plan(
        src[2:], weights[2:], strides, dilations, pads, pads, added, is_same=False
    )
    return None if any(more) or 0 in dst_size else (tuple(ends), tuple(dst_size))
