"""Memory between pages that cannot be touched: compiles and switches `guard.cpp`.

The process must have been started with `environment()`, so that the functions of `guard.cpp` are
those that torch calls.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from paths import ROOT

SOURCE = Path(__file__).with_name("guard.cpp")
OFF, AT_END, AT_BEGIN = 0, 1, 2


@functools.cache
def library() -> Path:
    """Of guard.cpp, compiled once for each of its texts."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    product = ROOT / "build" / "fuzz" / f"guard-{digest}.so"
    if not product.exists():
        product.parent.mkdir(parents=True, exist_ok=True)
        mine = Path(tempfile.mkstemp(dir=product.parent)[1])  # several may compile at once
        compiler = os.environ.get("CXX", "g++")
        command = [compiler, "-std=c++20", "-O2", "-shared", "-fPIC", str(SOURCE), "-o", str(mine)]
        subprocess.run(command, check=True)
        mine.replace(product)
    return product


def environment() -> dict[str, str]:
    """What a process that can be guarded is started with, beside its own environment. Memory that
    the C library has freed is overwritten, too."""
    before = os.environ.get("LD_PRELOAD", "")
    return {
        "LD_PRELOAD": f"{library()} {before}".strip(),
        "GLIBC_TUNABLES": "glibc.malloc.perturb=85",
    }


@functools.cache
def _functions() -> ctypes.CDLL:
    functions = ctypes.CDLL(None)
    functions.guard_allocate.restype = ctypes.c_void_p
    functions.guard_allocate.argtypes = [ctypes.c_size_t, ctypes.c_int]
    functions.guard_count.restype = ctypes.c_ulong
    functions.free.argtypes = [ctypes.c_void_p]
    if functions.guard_open() != 0:
        raise MemoryError("guard: no addresses for the region")
    return functions


class Memory:
    """Allocations for the tensors of one call, which end or begin exactly at a guard page."""

    def __init__(self, where: int) -> None:
        self._where = where
        self._addresses: list[int] = []

    def __call__(self, size: int) -> np.ndarray:
        address = _functions().guard_allocate(size, self._where)
        self._addresses.append(address)
        buffer = (ctypes.c_uint8 * size).from_address(address)
        return np.frombuffer(buffer, np.uint8)

    def free(self) -> None:
        """When no tensor uses it any more."""
        for address in self._addresses:
            _functions().free(address)
        self._addresses.clear()


@contextmanager
def guarding(where: int) -> Iterator[None]:
    """Every allocation of the process lies between guard pages meanwhile."""
    _functions().guard_place(where)
    try:
        yield
    finally:
        _functions().guard_place(OFF)


def count() -> int:
    """How many allocations were guarded so far."""
    return int(_functions().guard_count())
