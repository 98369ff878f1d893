"""Other people's test suites, run against this library: what a suite is made of, and how it is
counted. `python tests/suites` runs them all and writes the table of docs/reliability.md.

A suite is a module of this package that has

    TITLE        what the suite is
    source()     what its cases come from, with versions
    cases()      its cases, in the order of the table's rows

and that is imported only where its packages are installed.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

import torch
from torch import Tensor

# The modules, and the distributions that each cannot do without.
SUITES = {
    "opinfo": ("torch", "expecttest"),
    "onnx_nodes": ("onnx",),
    "onednn": ("onednn-cpu-gomp", "onednn-devel-cpu-gomp"),
    "torchvision_resize": ("torchvision", "pillow"),
    "tensorflow_resize": ("tensorflow-cpu",),
    "jax_resize": ("jax",),
}

# Half of the distance between neighbouring numbers, relative: what one rounding to the type is.
ROUNDING = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.bfloat16: 2.0**-8,
    torch.float16: 2.0**-11,
}


class OutsideError(Exception):
    """A case that asks for what this library, or theirs, does not have. It is counted beside the
    others."""


class KnownError(Exception):
    """Results differ, and the case has found that this is why. It counts as a difference."""


@dataclass(frozen=True)
class Case:
    row: str  # of the table
    name: str
    check: Callable[[], None]  # raises where ours differ


@dataclass
class Row:
    """A row of the table."""

    suite: str  # the module
    name: str
    source: str
    passed: int = 0
    total: int = 0
    reasons: Counter[str] = field(default_factory=Counter)  # of differences
    outside: Counter[str] = field(default_factory=Counter)  # not in total
    unexplained: list[str] = field(default_factory=list)


def missing(suite: str) -> list[str]:
    """The distributions of a suite that are not installed."""

    def is_missing(name: str) -> bool:
        try:
            version(name)
        except PackageNotFoundError:
            return True
        return False

    return [name for name in SUITES[suite] if is_missing(name)]


def run(suite: ModuleType, only: str = "") -> list[Row]:
    """The rows of a suite. `only`: a pattern that the names of cases have to contain."""
    # Fresh outputs are filled with NaN, so that an element which is not written is seen.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    rows: dict[str, Row] = {}
    module, source = suite.__name__.rpartition(".")[2], f"{suite.TITLE}: {suite.source()}"
    for case in suite.cases():
        name = f"{case.row}: {case.name}"
        if not re.search(only, name):
            continue
        row = rows.setdefault(case.row, Row(module, case.row, source))
        try:
            case.check()
        except OutsideError as outside:
            row.outside[str(outside)] += 1
            continue
        except KnownError as known:
            row.reasons[str(known)] += 1
        except Exception as error:
            first = " ".join(str(error).split())[:200]
            row.unexplained.append(f"{name}: {type(error).__name__}: {first}")
        else:
            row.passed += 1
        row.total += 1
    torch.use_deterministic_algorithms(False)
    return list(rows.values())


def rows_of(name: str, only: str = "") -> list[Row]:
    """Those of a suite, or the one that says what it lacks."""
    warnings.simplefilter("ignore")
    if absent := missing(name):
        return [Row(name, "", f"not installed: {', '.join(absent)}")]
    return run(import_module(f"suites.{name}"), only)


def assert_close(ours: Tensor, reference: Tensor, sums: float = 4e-6, roundings: int = 1) -> None:
    """Each element is the reference rounded to the type of ours. The reference is exact, or another
    rounded result: then `roundings` is 2.

    Beside the rounding the sums may differ, by `sums` of the largest magnitude: a few roundings of
    float32 numbers of that size. For float64 results this is 1e-12. Integers are rounded to nearest
    and saturate; next to the middle between two of them, `sums` may decide.
    """
    assert ours.shape == reference.shape, f"sizes {list(ours.shape)}, not {list(reference.shape)}"
    if not ours.numel():
        return
    ours, reference, dtype = ours.detach(), reference.detach().double(), ours.dtype
    assert bool((ours.isnan() == reference.isnan()).all()), "NaN in other places"
    reference = reference.nan_to_num(0, torch.inf, -torch.inf)
    if dtype in ROUNDING:
        overflows = reference.to(dtype).isinf()
        reference = torch.where(overflows, reference.sign() * torch.inf, reference)
        magnitude = reference.abs().masked_fill(overflows, 0)
        sums = 1e-12 if dtype == torch.float64 else sums
        limit = roundings * ROUNDING[dtype] * magnitude + sums * magnitude.max()
    else:
        limits = torch.iinfo(dtype)
        reference = reference.clamp(limits.min, limits.max)
        limit = 0.5 + sums * reference.abs().max()
    error = (ours.double().nan_to_num(0, torch.inf, -torch.inf) - reference).abs()
    error = torch.where(ours.double() == reference, 0, error)  # infinities
    worst = (error - limit).argmax()
    assert bool((error <= limit).all()), (
        f"{int((error > limit).sum())} of {ours.numel()} elements differ; the worst is "
        f"{ours.flatten()[worst].item():.9g}, not {reference.flatten()[worst].item():.9g}"
    )


def assert_equal(ours: Tensor, theirs: Tensor) -> None:
    """The same type, sizes and bits; NaN is NaN."""
    assert ours.dtype == theirs.dtype, f"{ours.dtype}, not {theirs.dtype}"
    assert ours.shape == theirs.shape, f"sizes {list(ours.shape)}, not {list(theirs.shape)}"
    a, b = ours.double(), theirs.double()
    differ = (a != b) & ~(a.isnan() & b.isnan())
    assert not bool(differ.any()), (
        f"{int(differ.sum())} of {differ.numel()} elements differ; the first is "
        f"{a[differ][0].item():.9g}, not {b[differ][0].item():.9g}"
    )


def random_image(sizes: list[int] | tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Of the whole range in an integer type, else of the normal distribution."""
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(sizes, generator=generator, dtype=torch.float64).to(dtype)
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max + 1, sizes, generator=generator).to(dtype)
