"""The memory of intermediate results, kept from call to call."""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of malloc.h
_KEPT = 256 << 20  # bytes
_LARGEST_MAPPING_THRESHOLD = 32 << 20  # that glibc takes
_CHOICES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


@cache
def keep_freed_memory() -> None:
    """Has glibc's malloc keep up to 256 MB of freed memory, for the whole process.

    By default, malloc returns the intermediate results of a call to the system. The next call then
    takes a page fault for every 4 KB: GhostNet takes 9 ms with the faults, and 5 ms without. Users
    who chose their own thresholds in the environment keep these.
    """
    if sys.platform != "linux" or any(name in os.environ for name in _CHOICES):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_MAPPING_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
