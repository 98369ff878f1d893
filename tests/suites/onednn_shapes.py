"""Shapes that oneDNN tests itself with: a selection of tests/benchdnn/inputs of
github.com/uxlfoundation/oneDNN at 3f27bec21fdc (Apache-2.0), in this project's words, and those
that take seconds left out. The file of each list is named above it.

A size that is one number holds for every spatial dimension. Dilation 1 is dense, a batch is 2. Pads
at the end follow from the output's size where one is given, else they are those at the beginning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

Size = int | tuple[int, ...]


@dataclass(frozen=True)
class Convolution:
    name: str
    rank: int
    inputs: int
    outputs: int
    size: Size
    kernel: Size
    stride: Size = 1
    pad: Size = 0
    dilation: Size = 1
    groups: int = 1
    out: Size | None = None

    def per_axis(self, value: Size) -> tuple[int, ...]:
        return (value,) * self.rank if isinstance(value, int) else value

    def axes(self) -> list[tuple[int, ...]]:
        """(size, kernel, stride, begin, end, dilation, output's size) of each dimension."""
        result = []
        values = (self.size, self.kernel, self.stride, self.pad, self.dilation)
        columns = zip(*map(self.per_axis, values))
        outs = self.per_axis(self.out) if self.out is not None else (None,) * self.rank
        for (size, kernel, stride, begin, dilation), out in zip(columns, outs):
            covered = (kernel - 1) * dilation + 1
            n = (size + 2 * begin - covered) // stride + 1 if out is None else out
            end = max(0, (n - 1) * stride + covered - size - begin)
            result.append((size, kernel, stride, begin, end, dilation, n))
        return result

    def products(self) -> int:
        """Of a batch of 2."""
        pixels = math.prod(axis[1] * axis[-1] for axis in self.axes())
        return 2 * self.outputs * (self.inputs // self.groups) * pixels


# conv/shapes_basic: name, inputs, outputs, size, kernel, pad, stride, groups, output's size
_BASIC = (
    ("first", 3, 16, 5, 3, 1, 1, 1, 5),
    ("first, tail", 3, 17, 5, 3, 1, 1, 1, 5),
    ("first, stride", 3, 17, 8, 3, 1, 2, 1, 4),
    ("1x1", 16, 16, 5, 1, 0, 1, 1, 5),
    ("1x1, tail", 17, 17, 5, 1, 0, 1, 1, 5),
    ("1x1, stride", 17, 17, 8, 1, 0, 2, 1, 4),
    ("3x3", 16, 16, 5, 3, 1, 1, 1, 5),
    ("3x3, tail", 17, 17, 5, 3, 1, 1, 1, 5),
    ("3x3, stride", 17, 17, 8, 3, 1, 2, 1, 4),
    ("wide pads", 16, 16, 5, 3, 3, 1, 1, 8),
    ("wide pads, tail", 17, 17, 5, 3, 3, 1, 1, 8),
    ("wide pads, stride", 17, 17, 8, 3, 3, 2, 1, 5),
    ("grouped", 16, 16, 5, 3, 1, 1, 4, 5),
    ("grouped, tail", 20, 20, 5, 3, 1, 1, 4, 5),
    ("grouped, stride", 20, 20, 8, 3, 1, 2, 4, 4),
    ("depthwise", 16, 16, 5, 3, 1, 1, 16, 5),
    ("depthwise, tail", 17, 17, 5, 3, 1, 1, 17, 5),
    ("depthwise, stride", 17, 17, 8, 3, 1, 2, 17, 4),
)
BASIC = [
    Convolution(f"basic {rank}-D, {name}", rank, i, o, size, k, s, p, groups=g, out=out)
    for rank in (1, 2, 3)
    for name, i, o, size, k, p, s, g, out in _BASIC
]

# conv/shapes_tails: inputs, outputs; 13 x 13 pixels, windows of 3 x 3 with a pad and without one,
# and of 1 x 1
_TAILS = (
    *((32, 13), (64, 33), (19, 32), (20, 32), (21, 64), (23, 64), (24, 32), (25, 32), (27, 64)),
    *((28, 64), (29, 32), (19, 33), (20, 31), (21, 25), (23, 35), (24, 34), (25, 24), (27, 30)),
    *((28, 20), (29, 65)),
)
TAILS = [
    *(
        Convolution(f"tails {i} to {o}", 2, i, o, 13, 3, 1, n % 2)
        for n, (i, o) in enumerate(_TAILS)
    ),
    *(Convolution(f"tails 1x1, {i} to {o}", 2, i, o, 13, 1) for i, o in _TAILS[:15]),
]

OTHERS = [
    # conv/shapes_1d
    Convolution("1-D, depthwise", 1, 128, 128, 16, 3, 1, 1, groups=128),
    Convolution("1-D, 2 groups of 16", 1, 32, 32, 27, 2, groups=2),
    Convolution("1-D, 8 groups of 8", 1, 64, 64, 9, 2, groups=8),
    Convolution("1-D, 6 groups of 4", 1, 24, 24, 11, 3, groups=6),
    Convolution("1-D, 100 groups", 1, 400, 400, 15, 1, groups=100),
    Convolution("1-D, 100 groups, stride", 1, 400, 400, 18, 2, 2, groups=100),
    Convolution("1-D, 7 taps", 1, 3, 64, 224, 7, 1),
    Convolution("1-D, 7 taps, stride", 1, 3, 64, 224, 7, 2, 3, out=112),
    *(
        Convolution(f"1-D, {k} taps, stride {s}, pad {p}", 1, 32, 32, n, k, s, p)
        for n, k, s, p in (
            *((32, 2, 1, 0), (100, 3, 1, 0), (121, 3, 1, 0), (32, 5, 1, 0), (100, 2, 1, 0)),
            *((121, 6, 1, 0), (32, 5, 2, 0), (100, 2, 3, 0), (121, 6, 4, 0), (32, 5, 1, 1)),
            *((100, 2, 1, 2), (121, 6, 1, 3)),
        )
    ),
    Convolution("1-D, dilated by 3, pads", 1, 8, 8, 5, 3, 1, 3, 3, out=2),
    Convolution("1-D, dilated by 3", 1, 32, 8, 8, 3, 1, 0, 3, out=2),
    # conv/shapes_dilated
    *(
        Convolution(f"dilated {i} to {o} of {n}, {k} by {d}, stride {s}", 2, i, o, n, k, s, p, d,
                    out=out)
        for i, o, n, out, k, s, p, d in (
            *((4, 6, 8, 3, 3, 2, 1, 2), (4, 6, 8, 5, 3, 1, 1, 2), (4, 6, 8, 2, 3, 3, 1, 3)),
            *((4, 6, 8, 1, 3, 2, 1, 4), (4, 6, 10, 3, 3, 3, 2, 3), (4, 6, 10, 3, 3, 2, 2, 4)),
            *((4, 6, 8, 1, 5, 1, 1, 2), (4, 6, 12, 1, 5, 3, 1, 3), (4, 6, 12, 1, 7, 1, 1, 2)),
            *((4, 6, 18, 1, 7, 3, 1, 3), (64, 128, 11, 7, 3, 1, 1, 3)),
            (96, 128, 11, 7, 3, 1, 2, 4),
        )
    ),
    Convolution("dilated rows", 2, 4, 6, 8, 3, 2, 1, (2, 1), out=(4, 8)),
    Convolution("dilated columns", 2, 4, 6, 8, 3, (1, 3), 1, (1, 3), out=(8, 2)),
    Convolution("dilated rows, stride 1", 2, 8, 8, (5, 8), 3, 1, (2, 1), (2, 1), out=(5, 8)),
    Convolution("dilated, 2 groups", 2, 192, 128, 11, 3, 1, 1, 3, 2, out=7),
    *(
        Convolution(f"a row of {n}, {k} by {d}", 2, 16, 16, (1, n), (1, k), 1, (0, p), (1, d),
                    out=(1, out))
        for n, k, p, d, out in ((5, 3, 4, 4, 4), (7, 5, 9, 5, 4), (9, 3, 12, 6, 20))
    ),
    # conv/shapes_3d
    Convolution("3-D, padded", 3, 16, 16, (10, 13, 50), 3, 1, 1),
    Convolution("3-D", 3, 16, 16, (10, 13, 50), 3),
    Convolution("3-D, 1x1x1", 3, 16, 16, (10, 13, 50), 1),
    Convolution("3-D, 2 groups of 16", 3, 32, 32, 17, 2, groups=2),
    Convolution("3-D, 6 groups of 4", 3, 24, 24, 21, 3, groups=6),
    Convolution("3-D, 2 groups, 1x1x1", 3, 10, 20, 16, 1, groups=2),
    # conv/shapes_regression_padding
    *(Convolution(f"5x5, pad {p}", 2, 16, 16, 10, 5, 1, p) for p in range(1, 8)),
    *(Convolution(f"3x3, pad {p}", 2, 16, 16, 10, 3, 1, p) for p in range(1, 6)),
    *(Convolution(f"1x1, pad {p}", 2, 16, 16, 10, 1, 1, p) for p in range(1, 4)),
    Convolution("unequal pads, rows", 2, 16, 16, 16, 3, 1, (1, 0), out=15),
    Convolution("unequal pads, columns", 2, 16, 16, 16, 3, 1, (1, 1), out=(16, 15)),
    # conv/shapes_regression_small_spatial
    *(
        Convolution(f"{n}x{n} to {out}x{out}, {k}x{k}, pad {p}", 2, 16, 16, n, k, 1, p, out=out)
        for n, out, k, pads in (
            *((1, 1, 1, [0]), (1, 1, 3, range(3)), (1, 1, 5, range(5)), (3, 1, 5, range(3))),
            *((3, 3, 5, range(5)), (1, 1, 7, range(7)), (3, 1, 7, range(5)), (3, 3, 7, range(7))),
            *((5, 1, 7, range(3)), (5, 3, 7, [0])),
        )
        for p in pads
        if n + p <= (out - 1) + k  # no negative pads at the end
    ),
    # conv/shapes_regression_dw
    *(
        Convolution(f"depthwise of {c}", 2, c, c, n, k, 1, k // 2, groups=c)
        for c, n, k in (
            *((7, 32, 5), (13, 10, 3), (20, 10, 3), (42, 10, 3), (55, 10, 3), (72, 10, 3)),
            *((111, 10, 3), (129, 10, 3), (257, 10, 3)),
        )
    ),
    Convolution("depthwise, stride 2, pad 2", 2, 16, 16, 16, 3, 2, 2, groups=16, out=9),
    Convolution("depthwise, 6x3", 2, 16, 16, (15, 10), (6, 3), (2, 1), (3, 1), groups=16,
                out=(7, 10)),
    Convolution("depthwise, 5x3", 2, 16, 16, (15, 10), (5, 3), (3, 1), (2, 1), groups=16,
                out=(5, 10)),
    # conv/shapes_large_padding
    Convolution("pads of 100", 1, 16, 16, 1, 3, 1, 100, out=100),
    Convolution("a pad of 29", 2, 1, 64, 55, 30, 3, 29, 3, out=18),
    Convolution("14x14, dilated, pad 10", 2, 2, 64, 30, 14, 1, 10, 3, out=37),
    # conv/shapes_gemm
    *(
        Convolution(f"{rank}-D, {g} groups, {i} to {o}", rank, i, o, n, k, s, p, d, g, out)
        for rank in (1, 2, 3)
        for g, i, o, n, out, k, s, p, d in (
            *((3, 3, 48, 5, 3, 3, 1, 0, 1), (2, 32, 6, 5, 3, 3, 1, 0, 1)),
            *((3, 9, 96, 4, 4, 1, 1, 0, 1), (2, 64, 4, 7, 7, 1, 1, 0, 1)),
            *((1, 16, 16, 5, 3, 3, 1, 4, 5), (8, 8, 32, 5, 3, 3, 1, 4, 5)),
            (5, 10, 20, 15, 7, 2, 3, 5, 1),
        )
    ),
]  # fmt: skip

# resampling/shapes_ci, shapes_1d, shapes_2d and shapes_3d: batch, channels, input's, output's size
RESAMPLING = [
    *((16, 64, (32,), (64,)), (16, 64, (64,), (32,)), (4, 17, (17,), (21,)), (4, 17, (21,), (17,))),
    *((3, 16, (3, 11), (5, 11)), (3, 16, (5, 11), (3, 11))),
    *((4, 17, (7, 14), (6, 12)), (4, 17, (6, 12), (7, 14))),
    *((2, 8, (2, 4, 6), (4, 8, 12)), (2, 8, (2, 4, 12), (4, 8, 6))),
    *((2, 8, (2, 8, 6), (4, 4, 12)), (2, 8, (4, 4, 6), (2, 8, 12))),
    *((2, 9, (2, 8, 12), (3, 5, 7)), (2, 9, (3, 5, 7), (2, 8, 12))),
    *((2, 9, (3, 8, 7), (2, 5, 12)), (2, 9, (3, 8, 6), (2, 5, 12))),
    *((16, 2, (2,), (6,)), (1, 32, (151,), (300,)), (4, 17, (17,), (20,)), (1, 8, (14,), (7,))),
    *((1, 3, (20,), (17,)), (1, 1, (21,), (13,)), (1, 32, (32,), (6,)), (2, 5, (42,), (14,))),
    *((1, 23, (525,), (5,)), (1, 8, (6, 24), (6, 24)), (1, 8, (3, 7), (6, 21))),
    *((2, 16, (5, 10), (3, 11)), (12, 8, (5, 7), (3, 11)), (1, 8, (14, 7), (14, 7))),
    *((1, 8, (14, 7), (6, 3)), (2, 16, (15, 10), (73, 11)), (12, 8, (15, 5), (3, 11))),
    *((16, 18, (14, 7), (6, 12)), (16, 8, (4, 9), (63, 13)), (4, 17, (6, 12), (7, 14))),
    *((4, 23, (60, 30), (60, 75)), (2, 8, (2, 4, 6), (4, 8, 12)), (2, 9, (3, 6, 4), (4, 8, 9))),
    *((2, 16, (6, 6, 6), (3, 3, 3)), (2, 19, (6, 6, 6), (4, 4, 4)), (4, 16, (6, 6, 6), (12, 6, 3))),
]

# reorder/test_reorder_all and harness_reorder_scales: sizes, formats of the source, of the result
REORDERS = [
    *(
        ((2, 64, 3, 3), src, dst)
        for src in ("abcd", "acdb", "aBcd4b", "aBcd8b", "aBcd16b")
        for dst in ("abcd", "acdb", "aBcd8b", "aBcd16b")
    ),
    *(((2, 40, 3, 3), *pair) for pair in (("aBcd4b", "aBcd16b"), ("aBcd16b", "aBcd8b"))),
    *(((2, 71, 16, 16), *pair) for pair in (("aBcd4b", "aBcd16b"), ("aBcd16b", "aBcd8b"))),
    *(((1, 17, 5, 3), "abcd", dst) for dst in ("abcd", "acdb", "dcba", "aBcd8b", "aBcd16b")),
    *(((2, 64, 1, 1), src, dst) for src in ("abcd", "aBcd16b") for dst in ("acdb", "aBcd16b")),
    ((2, 8, 8), "abc", "acb"),
    ((2, 8, 8), "acb", "abc"),
    ((1, 512, 101), "abc", "acb"),
    ((2, 64, 19, 19, 7), "abcde", "acdeb"),
    ((2, 64, 15, 10, 20), "acdeb", "abcde"),
    ((1, 4, 84, 84), "abcd", "acdb"),
    ((7, 65), "ab", "ba"),
    ((16, 63), "ab", "AB16b16a2b"),
    *(((89, 73), "ab", f"BA16a{n}b") for n in (16, 32, 48, 64)),
    *(((57, 89, 73), "abc", f"aCB16b{n}c") for n in (16, 64)),
    ((47, 16, 12, 4), "abcd", "Abcd16a"),
    ((47, 47, 4), "abc", "ABc4b4a"),
    ((2, 47, 47, 4), "abcd", "aBCd8c8b"),
    ((2, 47, 47, 4), "abcd", "aBCd4c16b4c"),
    ((3, 32, 32, 2, 2), "abcde", "aBCde16b16c"),
    ((2, 24, 19, 19, 19), "aBcde4b", "abcde"),
]
