"""Sums after a convolution: how a forward writes them, and what each does."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_dnnl.fusion import recording

# What a graph calls, and the sum's name with the convolution on the left and on the right. Nobody
# else has the convolution's result, so nobody sees whether it is changed; another left side may be
# changed, and its methods may be those of a set.
NAMES: dict[Any, tuple[str, str | None]] = {
    operator.add: ("dst + other", "other + dst"),
    recording.in_place_add: ("dst += other", None),
    torch.add: ("add(dst, other)", "add(other, dst)"),
    "add": ("dst.add(other)", None),
    "add_": ("dst.add_(other)", None),
}
_SUMS: dict[str, Callable[[Any, Any], Any]] = {
    "dst + other": operator.add,
    "other + dst": lambda dst, other: other + dst,
    "dst += other": operator.iadd,
    "add(dst, other)": torch.add,
    "add(other, dst)": lambda dst, other: torch.add(other, dst),
    "dst.add(other)": lambda dst, other: dst.add(other),
    "dst.add_(other)": lambda dst, other: dst.add_(other),
}


def name(target: Any, is_left: bool) -> str | None:
    """None where the convolution cannot take the sum."""
    left, right = NAMES[target]
    return left if is_left else right


def begins_with_other(name: str) -> bool:
    """Whether the other side decides the memory format."""
    return name in ("other + dst", "add(other, dst)")


def add(name: str, dst: Tensor, other: Any) -> Tensor:
    return _SUMS[name](dst, other)  # type: ignore[no-any-return]
