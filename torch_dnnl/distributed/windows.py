"""Which rows of one image make which rows of another: the arithmetic of spatially sharded images.

Rows are the indices of one spatial dimension, as half-open ranges of the whole image. Output o of
a convolution reads the rows o * stride - pad + k * dilation, for each tap k of the kernel, of those
that exist; `reach` is how many rows a kernel covers, (taps - 1) * dilation + 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Rows(NamedTuple):
    """The rows from `begin` to before `end`."""

    begin: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.begin

    def overlap(self, other: Rows) -> Rows:
        """The rows of both; where there are none, an empty range within this one."""
        begin = min(max(self.begin, other.begin), self.end)
        return Rows(begin, max(begin, min(self.end, other.end)))


class Window(NamedTuple):
    """The rows that a part of a call needs, and the pads with which it is a call of its own."""

    rows: Rows
    pads: tuple[int, int]


def shards(size: int, parts: int) -> list[Rows]:
    """How DTensor's Shard cuts a dimension: ceil(size / parts) rows each, the last ones fewer.

    Example:
        >>> [tuple(rows) for rows in shards(5, 4)]
        [(0, 2), (2, 4), (4, 5), (5, 5)]
    """
    length = -(-size // parts)
    return [Rows(min(part * length, size), min((part + 1) * length, size)) for part in range(parts)]


def nested_shards(size: int, parts: Sequence[int]) -> list[Rows]:
    """The shards of a dimension that is cut into parts, and these into parts, and so on.

    Example:
        >>> [tuple(rows) for rows in nested_shards(10, [2, 2])]
        [(0, 3), (3, 5), (5, 8), (8, 10)]
    """
    ranges = [Rows(0, size)]
    for count in parts:
        ranges = [
            Rows(outer.begin + inner.begin, outer.begin + inner.end)
            for outer in ranges
            for inner in shards(outer.length, count)
        ]
    return ranges


def are_in_step(size: int, other: int, parts: Sequence[int]) -> bool:
    """Whether shards of two dimensions are the same shares of them, on every rank.

    `other` divides `size`: an element of that dimension goes with size / other of the larger one.
    """
    step = size // max(other, 1)
    return all(
        (rows.begin, rows.end) == (others.begin * step, others.end * step)
        for rows, others in zip(
            nested_shards(size, parts), nested_shards(other, parts), strict=True
        )
    )


def source_window(dst: Rows, size: int, stride: int, pad: int, reach: int) -> Window:
    """The rows of an image of `size` rows that a convolution reads for its results `dst`.

    A convolution of these rows with the pads of the window has exactly the rows `dst`. Where all
    that is read is padding, there are no rows, and the pads are those around one row of zeros.
    """
    if dst.length == 0:
        return Window(Rows(0, 0), (0, 0))
    first = dst.begin * stride - pad
    last = (dst.end - 1) * stride - pad + reach  # before which reading ends
    begin, end = max(first, 0), min(last, size)
    if begin >= end:
        return Window(Rows(0, 0), (last - first - 1, 0))
    return Window(Rows(begin, end), (begin - first, last - end))


def gradient_window(src: Rows, size: int, stride: int, pad: int, reach: int) -> Window:
    """The rows of a convolution's result, of `size` rows, that read the rows `src` of its source.

    The gradient of data of these rows, with the pads of the window and `src.length` as its size, is
    that of the rows `src`. Where a stride above `reach` leaves out rows at the beginning, the
    window has a row more than these, since pads are not negative. Where nothing reads `src`, there
    are no rows, and the pads are those of the fewest rows of zeros whose gradient has the size.
    """
    if src.length == 0:
        return Window(Rows(0, 0), (0, 0))
    begin = max(0, -(-(src.begin + pad - reach + 1) // stride))
    end = min(size, (src.end - 1 + pad) // stride + 1)
    if begin >= end:
        return Window(Rows(0, 0), (0, max(0, reach - src.length)))
    before = src.begin + pad - begin * stride
    if before < 0:
        begin, before = begin - 1, before + stride
    covered = (end - begin - 1) * stride + reach
    return Window(Rows(begin, end), (before, max(0, covered - src.length - before)))
