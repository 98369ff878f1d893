"""Allocations that fail, one after the other: the compiled allocators, and the loop over a call."""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from paths import ROOT
from torch import Tensor
from torch.utils import cpp_extension

HERE = Path(__file__).resolve().parent
BUILD = ROOT / "build" / "faults"


class Allocator:
    """What failing.h exports of a library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        library.fail_at.argtypes = [ctypes.c_int64]
        library.fail_at.restype = None
        for name in ("stop_failing", "blocks_in_use", "bytes_in_use"):
            getattr(library, name).restype = ctypes.c_int64

    def in_use(self) -> tuple[int, int]:
        """Blocks and bytes."""
        return self.library.blocks_in_use(), self.library.bytes_in_use()

    def attempt(
        self, call: Callable[[], Sequence[Tensor]], number: int
    ) -> tuple[Sequence[Tensor] | None, int]:
        """Makes a call whose allocation of this number fails. Its results, or None if it raised
        that there is no memory; and how many allocations it made."""
        self.library.fail_at(number)
        results = None
        try:
            results = call()
        except (MemoryError, RuntimeError) as error:
            if not any(word in str(error) for word in ("allocat", "bad_alloc", "memory")):
                raise
        finally:
            made = self.library.stop_failing()
        return results, made


def tensors_allocator() -> Allocator:
    """That of failing_tensors.cpp; `library.install()` puts it in the place of torch's."""
    BUILD.mkdir(parents=True, exist_ok=True)
    path = cpp_extension.load(
        "failing_tensors",
        [str(HERE / "failing_tensors.cpp")],
        extra_cflags=["-O1", "-fvisibility=hidden"],
        build_directory=str(BUILD),
        is_python_module=False,
    )
    return Allocator(ctypes.CDLL(path or str(BUILD / "failing_tensors.so")))


def new_library() -> Path:
    """That of failing_new.cpp, for LD_PRELOAD."""
    BUILD.mkdir(parents=True, exist_ok=True)
    library, mine = BUILD / "failing_new.so", BUILD / f"failing_new.{os.getpid()}"
    compiler = os.environ.get("CXX", "g++")
    flags = ["-std=c++20", "-O1", "-fPIC", "-shared"]
    subprocess.run([compiler, *flags, HERE / "failing_new.cpp", "-o", mine, "-ldl"], check=True)
    return mine.replace(library)


def bits(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Comparable whatever they are, NaN included."""
    dense = [t.detach().clone(memory_format=torch.contiguous_format) for t in tensors]
    return [t.view(-1).view(torch.uint8) for t in dense]


def exhaust(call: Callable[[], Sequence[Tensor]], allocator: Allocator) -> int:
    """Has each allocation of a call fail in turn: each time there is an exception, nothing stays in
    use, and the next call has the same bits. Returns how many of them raised.

    What std::stable_sort takes, it can do without: no exception then, but the same bits."""
    expected = bits(call())
    # What is kept between calls is kept from here on.
    assert all(map(torch.equal, bits(call()), expected))
    raised = 0
    for number in itertools.count(1):
        before = allocator.in_use()
        results, made = allocator.attempt(call, number)
        if results is None:
            raised += 1
            assert allocator.in_use() == before, f"after allocation {number} of {made} failed"
            results = call()
        assert all(map(torch.equal, bits(results), expected)), f"allocation {number} of {made}"
        del results
        assert allocator.in_use() == before, f"after allocation {number} of {made}"
        if made < number:
            return raised
    raise AssertionError("unreachable")
