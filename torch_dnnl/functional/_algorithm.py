"""The choice among Convolution's kernels."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_LISTS = [
    getattr(torch.ops.torch_dnnl, f"convolution_kernels_{device}", list)
    for device in ("cpu", "cuda")
]
# Families of kernels, and the names of all devices' kernels.
ALGORITHMS = ("auto", "direct", "winograd", *dict.fromkeys(name for f in _LISTS for name in f()))


class _Choice(threading.local):
    """Of each thread."""

    def __init__(self) -> None:
        # An attribute of the class, a compiled function would not see being replaced.
        self.algorithm = "auto"


_choice = _Choice()


@contextmanager
def conv_algorithm(algorithm: str) -> Iterator[None]:
    """Chooses how convolutions are computed within the context, in this thread.

    It applies to every convolution called there, and to its derivatives wherever they are computed.

    Args:
        algorithm: one of

            - "auto", the default: a rule that depends on types, sizes and attributes alone, never
              on timings. On the CPU, unless in float64, Winograd's F(4x4, 3x3) or, where there
              are few tiles or images of one or two rows or columns, F(2x2, 3x3), for 3x3 kernels
              with stride and dilation 1, at least 16 input and output channels in each group, 2^22
              products in all, and outputs enough to make up for the transforms
              (`docs/convolution.md` has the numbers); else as "direct".
            - "direct": sums of products as the definition has them, in kernels for the case.
            - "winograd": Winograd's wherever it is possible, but for groups of few channels, few
              output channels and rows that fill vectors; else as "direct".
            - "reference": one loop for everything, to compare with. Slow.
            - a kernel of the tensors' device, by its name in `torch_dnnl.build_info()["kernels"]`;
              NotImplementedError if it cannot compute the call.

            On CUDA, "auto", "direct" and "winograd" are the same.

    Raises:
        TypeError, ValueError: not one of these.

    Example:
        >>> with torch_dnnl.conv_algorithm("direct"):
        ...     y = torch_dnnl.functional.conv2d(x, weight)

    Winograd's transforms round differently: relative errors in float32 are of the order of 1e-6,
    about ten times those of sums in blocks, by F(4x4, 3x3), and one to two times those by
    F(2x2, 3x3).
    """
    if not isinstance(algorithm, str):
        raise TypeError(
            f"conv_algorithm: expected algorithm to be a str, got {type(algorithm).__name__}"
        )
    if algorithm not in ALGORITHMS:
        raise ValueError(
            f"conv_algorithm: expected algorithm to be one of {ALGORITHMS}, got {algorithm!r}"
        )
    before = _choice.algorithm
    _choice.algorithm = algorithm
    try:
        yield
    finally:
        _choice.algorithm = before


def chosen(algorithm: str | None = None) -> dict[str, str]:
    """What to pass to an operator; `algorithm`: the choice of this call."""
    name = _choice.algorithm if algorithm is None else algorithm
    return {} if name == "auto" else {"algorithm": name}
