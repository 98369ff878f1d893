"""Problems in plain values: choices from bytes, tensors of any strides, and the calls of them."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

import torch_dnnl  # noqa: F401

T = TypeVar("T")
TAPE_BYTES = 256
_DTYPES = [
    *(torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn),
    *(torch.float8_e5m2, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
]
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in _DTYPES}
FLOATING = ("float32", "float64", "bfloat16", "float16")


class Tape:
    """Choices from bytes, one or two bytes each. Smaller bytes, and no byte at all, choose options
    that come earlier."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def _next(self) -> int:
        self._at += 1
        return self._data[self._at - 1] if self._at <= len(self._data) else 0

    def pick(self, options: Sequence[T]) -> T:
        return options[self._next() * len(options) >> 8]

    def chance(self, probability: float) -> bool:
        return self._next() >= 256 * (1 - probability)

    def integer(self, low: int, high: int) -> int:
        return low + ((self._next() << 8 | self._next()) * (high - low + 1) >> 16)

    def number(self, low: float, high: float) -> float:
        """One of 65536, in few digits."""
        return float(f"{low + (high - low) * self.integer(0, 65535) / 65535:.5g}")

    def part(self, size: int) -> Tape:
        """The next bytes, for what takes fewer or more choices: what follows stays where it is."""
        part = Tape(self._data[self._at : self._at + size])
        self._at += size
        return part


def tape_of(operator: str, seed: int, number: int) -> bytes:
    """The same for the same arguments, whichever problems came before."""
    return random.Random(f"{operator} {seed} {number}").randbytes(TAPE_BYTES)


def _corners(dtype: torch.dtype, *, with_nonfinite: bool) -> list[float]:
    """Values at which roundings, conversions and saturations change, and zeros of both signs."""
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        values = [0, 1, -1, 2, limits.min, limits.min + 1, limits.max, limits.max - 1]
        return [v for v in values if limits.min <= v <= limits.max]
    limits = torch.finfo(dtype)
    finite = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 1.0, limits.smallest_normal]
    finite += [limits.smallest_normal * limits.eps, -limits.smallest_normal / 2]
    if not with_nonfinite:
        return finite
    large = [limits.max, -limits.max, math.inf, -math.inf, math.nan]
    bounds = [127.5, 128.0, -128.5, 255.5, 464.0, -464.5, 61440.0, 2.0**31, -(2.0**31) - 1, 65520.0]
    return [*finite, *large, *bounds]


@functools.lru_cache(maxsize=16)
def _values(kind: str, count: int, dtype: torch.dtype, seed: int) -> Tensor:
    """To be copied: a problem is made several times."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        values = torch.randn(count, generator=generator, dtype=torch.float64)
        if kind == "positive":
            values = values.abs() + 0.05
        elif kind == "integers":
            values = values.mul_(3).round_()
        elif kind == "wide":
            values = values.mul_(100)
    else:
        limits = torch.iinfo(dtype)
        low, high = max(limits.min, -(2**40)), min(limits.max, 2**40)
        if kind in ("small", "positive"):
            low, high = max(low, 0 if kind == "positive" else -100), 100
        values = torch.randint(low, high + 1, (count,), generator=generator)
    if kind in ("corners", "finite"):
        corners = torch.tensor(
            _corners(dtype, with_nonfinite=kind == "corners"), dtype=values.dtype
        )
        which = torch.randint(2 * len(corners), (count,), generator=generator)
        values = torch.where(
            which < len(corners), corners[which.clamp_max(len(corners) - 1)], values
        )
    return values.to(dtype)


def plain_memory(size: int) -> np.ndarray:
    return torch.empty(size, dtype=torch.uint8).numpy()


@dataclass(frozen=True)
class TensorSpec:
    """A tensor. `steps`, by dimension: 1 is dense, 2 and more leave gaps, 0 is expanded, -1 has a
    stride of 1 whatever lies within, so that elements overlap. `order`: the dimensions, outermost
    first. `shift`: by how many bytes the memory is off its alignment."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    steps: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    shift: int = 0
    values: str = "normal"
    seed: int = 0

    def strides(self) -> list[int]:
        strides, span = [1] * len(self.shape), 1
        for d in reversed(self.order or range(len(self.shape))):
            step = self.steps[d] if self.steps else 1
            strides[d] = 1 if step < 0 else step * span
            if self.shape[d] == 1 and step > 1:
                strides[d] = 7919 * step  # means nothing
            span += (max(self.shape[d], 1) - 1) * strides[d]
        return strides

    def make(self, memory: Callable[[int], np.ndarray] = plain_memory) -> Tensor:
        dtype, strides = DTYPES[self.dtype], self.strides()
        if math.prod(self.shape) == 0:
            return torch.empty_strided(self.shape, strides, dtype=dtype)
        count = 1 + sum((n - 1) * stride for n, stride in zip(self.shape, strides))
        buffer = memory(count * dtype.itemsize + self.shift)
        buffer.fill(0xFF)  # NaN in the gaps
        flat = torch.frombuffer(buffer, dtype=dtype, offset=self.shift, count=count)
        view = flat.as_strided(self.shape, strides)
        if any(step <= 0 for step in self.steps):
            flat.copy_(_values(self.values, count, dtype, self.seed))
        else:
            view.copy_(_values(self.values, view.numel(), dtype, self.seed).view(self.shape))
        return view


def layout(tape: Tape, spec: TensorSpec, *, overlaps: bool = True) -> TensorSpec:
    """The tensor in any strides and values; takes 16 bytes."""
    tape = tape.part(16)
    rank = len(spec.shape)
    kind = tape.pick(["dense"] * 4 + ["last", "permuted", "gaps", "expanded"])
    spec = dataclasses.replace(spec, seed=tape.integer(0, 65535))
    if tape.chance(0.15):
        spec = dataclasses.replace(spec, shift=tape.pick([4, 1, 2, 8, 3]))
    if kind == "last" and rank > 2:
        return dataclasses.replace(spec, order=(0, *range(2, rank), 1))
    order = list(range(rank))
    for d in range(rank - 1):  # a transposition each
        if kind != "dense" and tape.chance(0.5):
            other = tape.integer(d, rank - 1)
            order[d], order[other] = order[other], order[d]
    steps = [1] * rank
    if kind == "gaps" or (kind == "expanded" and overlaps):
        options = [1, 2, 3] if kind == "gaps" else [1, 1, 0, 0, 2, -1]
        steps = [tape.pick(options) for _ in range(rank)]
    return dataclasses.replace(
        spec,
        order=() if order == list(range(rank)) else tuple(order),
        steps=() if steps == [1] * rank else tuple(steps),
    )


@dataclass(frozen=True)
class Problem:
    """A call of `torch.ops.torch_dnnl.<operator>`, all arguments by name. `wrong`: an argument and
    what takes its place, as Python in which `t` is the argument as it was. `of_function`: it is an
    argument of the public function that ends in the operator."""

    operator: str
    tensors: Mapping[str, TensorSpec]
    attributes: Mapping[str, Any]
    threads: int = 1
    wrong: tuple[str, str] | None = None
    of_function: bool = False

    @functools.cached_property
    def row(self) -> str:
        """A line of JSON, without what has its default."""

        def plain(spec: TensorSpec) -> dict[str, Any]:
            pairs = {f.name: (getattr(spec, f.name), f.default) for f in dataclasses.fields(spec)}
            return {name: value for name, (value, default) in pairs.items() if value != default}

        row: dict[str, Any] = {"operator": self.operator}
        row["tensors"] = {name: plain(spec) for name, spec in self.tensors.items()}
        row["attributes"] = dict(self.attributes)
        if self.threads != 1:
            row["threads"] = self.threads
        if self.wrong is not None:
            row |= {"wrong": self.wrong, "of_function": self.of_function}
        return json.dumps(row)

    def call(self, memory: Callable[[int], np.ndarray] = plain_memory) -> dict[str, Any]:
        """The arguments; `wrong` is left to the caller."""
        arguments = dict(self.attributes)
        if arguments.get("dtype") is not None:
            arguments["dtype"] = DTYPES[arguments["dtype"]]
        return {name: spec.make(memory) for name, spec in self.tensors.items()} | arguments


def problem_of(row: str) -> Problem:
    """From a line of JSON, as `Problem.row` is one."""
    values = json.loads(row)
    tensors = {
        name: TensorSpec(**{k: tuple(v) if isinstance(v, list) else v for k, v in spec.items()})
        for name, spec in values["tensors"].items()
    }
    wrong = values.get("wrong")
    return Problem(
        values["operator"],
        tensors,
        values["attributes"],
        values.get("threads", 1),
        tuple(wrong) if wrong else None,
        values.get("of_function", False),
    )


@dataclass(frozen=True)
class Operator:
    """What a mode needs to know of an operator; calls are dicts of arguments by name."""

    name: str
    make: Callable[[Tape, str], Problem]  # for a mode
    expected: Callable[[dict[str, Any]], Any]  # a tensor, or a tuple of what the operator returns
    # Raises AssertionError, of a call, what it gave and what it should have.
    compare: Callable[[dict[str, Any], Any, Any], None]
    # (<A x, y>, <x, A' y>, the sum of the absolute products); None if it is not linear.
    adjoint: Callable[[dict[str, Any]], tuple[Tensor, Tensor, Tensor]] | None = None
    differentiable: tuple[str, ...] = field(default=())  # arguments
    # 1 for each value of the result of which rounding cannot change the derivative, else 0.
    smooth: Callable[[dict[str, Any]], Tensor] | None = None

    def run(self, call: dict[str, Any]) -> Any:
        return getattr(torch.ops.torch_dnnl, self.name)(**call)


def tensors_of(result: Any) -> list[Tensor]:
    """What is a tensor of one result or several."""
    return [t for t in (result if isinstance(result, tuple) else (result,)) if torch.is_tensor(t)]


def like(tensor: Tensor, seed: int = 0) -> Tensor:
    """Random values of the sizes and the type of a tensor."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype)
