"""The choice among the kernels of Convolution and of Reorder."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

ALGORITHMS = ("auto", "direct", "winograd", "reference")
REORDER_ALGORITHMS = ("auto", "boxes", "reference")


class _Choice(threading.local):
    """Of each thread."""

    def __init__(self) -> None:
        # An attribute of the class, a compiled function would not see being replaced.
        self.algorithm = "auto"


_choice = _Choice()
reorder_choice = _Choice()


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

            CUDA has the reference and kernels for the case, which it takes for every other name.

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


@contextmanager
def reorder_algorithm(algorithm: str) -> Iterator[None]:
    """Chooses how reorders and fake quantizations are computed within the context, in this thread.

    It applies to every reorder called there, and to its derivatives wherever they are computed. The
    results are the same to the bit.

    Args:
        algorithm: one of

            - "auto", the default: the first of the others that supports a call.
            - "boxes": boxes of memory, as wide as vectors or packs. It supports every call whose
              blocks and groups of scales nest; on CUDA, fake quantization also needs aligned memory
              in the order of the result.
            - "reference": one element at a time, to compare with. Slow.

    Raises:
        TypeError, ValueError: not one of these.
        NotImplementedError: from a call that the kernel does not support.

    Example:
        >>> with torch_dnnl.reorder_algorithm("reference"):
        ...     y = torch_dnnl.functional.reorder(x, "nhwc")
    """
    if not isinstance(algorithm, str):
        raise TypeError(
            f"reorder_algorithm: expected algorithm to be a str, got {type(algorithm).__name__}"
        )
    if algorithm not in REORDER_ALGORITHMS:
        raise ValueError(
            f"reorder_algorithm: expected algorithm to be one of {REORDER_ALGORITHMS}, got "
            f"{algorithm!r}"
        )
    before = reorder_choice.algorithm
    reorder_choice.algorithm = algorithm
    try:
        yield
    finally:
        reorder_choice.algorithm = before
