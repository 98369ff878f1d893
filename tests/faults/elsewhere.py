"""Tensors over memory that is not torch's: NumPy's, files, DLPack, shared; read-only, at odd
addresses."""

from __future__ import annotations

import mmap
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

Maker = Callable[[Tensor], Tensor]


def _from_numpy(array: np.ndarray) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given (NumPy array|buffer) is not writable")
        return torch.from_numpy(array)


def read_only_array(x: Tensor) -> Tensor:
    array = x.numpy().copy()
    array.flags.writeable = False
    return _from_numpy(array)


def read_only_file(x: Tensor) -> Tensor:
    """The system ends a process that writes to it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "values"
        path.write_bytes(x.numpy().tobytes())
        # NumPy keeps the mapping, with the file gone.
        return _from_numpy(np.memmap(path, x.numpy().dtype, mode="r", shape=tuple(x.shape)))


def end_of_a_page(x: Tensor) -> Tensor:
    """Up to the last byte that can be read: the system ends a process that reads one more."""
    size = x.numel() * x.element_size()
    whole = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    # The system gives new mappings one below the other: without the next page, there is a hole.
    pages = mmap.mmap(-1, whole + mmap.PAGESIZE)
    pages.resize(whole)
    at = whole - size
    pages[at:] = x.numpy().tobytes()
    return torch.frombuffer(pages, dtype=x.dtype, offset=at, count=x.numel()).view(x.shape)


def file_of_torch(x: Tensor) -> Tensor:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "values"
        path.write_bytes(x.numpy().tobytes())
        return torch.from_file(
            str(path), shared=True, size=x.numel(), dtype=x.dtype
        ).view(x.shape)  # fmt: skip


def odd_address(x: Tensor) -> Tensor:
    """One byte after that of an element."""
    memory = bytearray(1) + x.numpy().tobytes()
    return torch.frombuffer(memory, dtype=x.dtype, offset=1, count=x.numel()).view(x.shape)


def dlpack(x: Tensor) -> Tensor:
    """Of NumPy, with strides."""
    array = np.stack([x.numpy(), np.full_like(x.numpy(), 1)], axis=-1)[..., 0]
    return torch.from_dlpack(array)


def capsule(x: Tensor) -> Tensor:
    """As older libraries pass it."""
    return torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x.clone()))


def shared(x: Tensor) -> Tensor:
    return x.clone().share_memory_()


MAKERS: list[Maker] = [
    *(read_only_array, read_only_file, end_of_a_page, file_of_torch, odd_address),
    *(dlpack, capsule, shared),
]
