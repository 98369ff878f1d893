"""Errors of Winograd's F(4x4, 3x3) for interpolation points 0, +-a, +-b and infinity.

    python tools/winograd_points.py [a b]

Without arguments, it prints the errors of a few pairs. The last pair is that of the kernels. numpy
computes transforms and products in float32.
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

_PAIRS = ((1, 2), (1, 0.5), (3 / 4, 3 / 2), (2**-0.5, 2**0.5), (5 / 8, 3 / 2), (2 / 3, 3 / 2))

Matrix = NDArray[np.float64]


def matrices(a: float, b: float) -> tuple[Matrix, Matrix, Matrix]:
    """B^T, G and A^T for points 0, +-a, +-b and infinity."""
    points = np.array([0, a, -a, b, -b])
    inputs, taps, outputs = np.zeros((6, 6)), np.zeros((6, 3)), np.zeros((4, 6))
    for i, point in enumerate(points):
        others = np.delete(points, i)
        inputs[i, :5] = np.poly(others)[::-1]  # the polynomial that is 0 at the others
        taps[i] = point ** np.arange(3) / np.prod(point - others)
        outputs[:, i] = point ** np.arange(4)
    inputs[5] = np.poly(points)[::-1]
    taps[5, 2] = outputs[3, 5] = 1
    return inputs, taps, outputs


def errors(a: float, b: float, channels: int) -> tuple[float, float]:
    """The error in float32 relative to the norm, and the largest error relative to the largest
    result."""
    inputs, taps, outputs = (matrix.astype(np.float32) for matrix in matrices(a, b))
    random = np.random.default_rng(0)
    d = random.standard_normal((6, 6, channels, 256), dtype=np.float32)
    g = random.standard_normal((3, 3, 32, channels), dtype=np.float32)
    exact = np.zeros((4, 4, 32, 256))
    for y, x in np.ndindex(3, 3):
        exact += g[y, x].astype(np.float64) @ d[y : y + 4, x : x + 4].astype(np.float64)

    def both(matrix: NDArray[np.float32], tile: NDArray[np.float32]) -> NDArray[np.float32]:
        rows = sum(matrix[:, i, None, None, None] * tile[i] for i in range(matrix.shape[1]))
        columns = np.swapaxes(rows, 0, 1)
        found = sum(matrix[:, i, None, None, None] * columns[i] for i in range(matrix.shape[1]))
        return np.swapaxes(found, 0, 1)

    difference = both(outputs, both(taps, g) @ both(inputs, d)) - exact
    largest = np.abs(difference).max() / np.abs(exact).max()
    return float(np.linalg.norm(difference) / np.linalg.norm(exact)), float(largest)


def main() -> None:
    pairs = [(float(sys.argv[1]), float(sys.argv[2]))] if len(sys.argv) > 2 else _PAIRS
    print("     a      b   error of the norm, largest error: 64 channels; 512 channels")
    for a, b in pairs:
        found = (f"{norm:.1e} {most:.1e}" for norm, most in (errors(a, b, n) for n in (64, 512)))
        print(f"{a:6.3f} {b:6.3f}   {';  '.join(found)}")


if __name__ == "__main__":
    main()
