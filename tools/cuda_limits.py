"""Predicts which share of the memory's speed CUDA kernels can have, from counts of instructions.

    python tools/cuda_limits.py FOLDER           # of objects, in folders as their sources
    python tools/cuda_limits.py --write FOLDER   # into docs/cuda.md: `make cuda-table`

The objects were compiled with -lineinfo. All cases are bfloat16; a thread's path through its kernel
is counted by cuda_path.py, with the loops that the case has.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

from cuda_kernel_table import PAGE, publish
from cuda_path import read, walk

# Of an H200: in the time of a byte from memory, 4.8 TB/s, it issues so many instructions of threads
# (132 multiprocessors, 128 lanes, 1.7 GHz).
INSTRUCTIONS_OF_A_BYTE = 6


@dataclass
class Case:
    label: str
    source: str
    kernel: str
    taken: dict[str, str]
    outputs: int  # of a thread on that path
    bytes: float  # that memory moves for an output
    before: float | None = None  # instructions an output, where they have become fewer

    def instructions(self, folder: Path) -> float:
        (compiled,) = folder.glob(f"**/{self.source}.o")
        code = read(compiled, "sm_90a", self.kernel)
        return len(walk(*code, self.taken, verbose=False)) / self.outputs

    def share(self, instructions: float) -> float:
        return min(1.0, self.bytes * INSTRUCTIONS_OF_A_BYTE / instructions)


STRIP = {"y < at.end": "16", "has_empty_rows": "T"}  # rows of dst
SUMS = {"planes.is_copy": "T", "first += kAtOnce": "4", "r < rows; r++": "4", "has_empty_rows": "T"}
DEPTHWISE = {"if (!transposed)": "T", "t.vector == kWidest": "T", "residual == nullptr": "T"}
END_OF_ROW = {"has_more()": "T", "if (vectors)": "T"}
RUNS = {"if (!staged)": "NT", "spacing == 1": "T", "out_channels == 1": "T"}
CASES = [
    Case(
        "Resample, bilinear x2, NCHW",
        "resample/cuda/sliding_window",
        r"BFloat16, .*RegularColumns<float, 2, 1, 2, 8>, .*3072",
        {"held_[slot] != row": "*TNTT", **STRIP},
        16 * 8,
        2.5,
    ),
    Case(
        "Resample, bilinear x0.5, NCHW",
        "resample/cuda/sum_windows",
        r"BFloat16, .*RegularColumns<float, 1, 2, 2, 8>, .*3072",
        {"next_++": "2", **STRIP},
        16 * 8,
        10,
    ),
    Case(
        "Resample, gradient of bilinear x2, NCHW",
        "resample/cuda/sum_rows",
        r"BFloat16, 2, .*FewTaps<float, 4>, 3072",
        {"next_++": "2", **SUMS},
        16 * 4,
        10,
        before=91,
    ),
    Case(
        "Resample, bicubic to a third with `antialias`, NCHW",
        "resample/cuda/sum_rows",
        r"BFloat16, 4, .*ManyTaps<float>, 3072",
        {"next_++": "3", "element += blockDim.x": "2", "left -= kGroup": "4", **SUMS},
        16 * 2,
        20,
        before=408,
    ),
    Case(
        "Resample, bilinear x0.5 with `antialias`, NHWC",
        "resample/cuda/sum_pixels",
        r"BFloat16, .*Columns<float, 4, 8, true>, .*RunningSums<float, 2, 8>, 3072",
        {"next_++": "2", **STRIP},
        16 * 8,
        10,
    ),
    Case(
        "Resample, bicubic x0.5 with `antialias`, NHWC",
        "resample/cuda/sum_pixels",
        r"BFloat16, .*Columns<float, 8, 8, true>, .*RunningSums<float, 4, 8>, 3072",
        {"next_++": "2", **STRIP},
        16 * 8,
        10,
    ),
    Case(
        "Depthwise convolution, 3x3 of 112x112, NCHW",
        "conv/cuda/depthwise/ncx",
        r"BFloat16, .*RowTaps<3, 1, false",
        {**DEPTHWISE, **END_OF_ROW},
        16,
        4,
        before=84,
    ),
    Case(
        "Depthwise convolution, 3x3, NHWC, 5 runs of 8 pixels",
        "conv/cuda/depthwise/nxc",
        r"BFloat16, 4, false, .*RowTaps<3, 1, false",
        {"uint32_t first": "5", "step < end; step++": "3", **RUNS, **DEPTHWISE, **END_OF_ROW},
        5 * 8 * 4,
        4,
    ),
    Case(
        "Images packed for dense convolution, an element",
        "conv/cuda/dense/dense",
        r"for_each_element_kernel<.*PackPixels<c10::BFloat16",
        {"a < axes - 1": "T"},
        8,
        4,
        before=22,
    ),
]


def table_of(folder: Path) -> str:
    columns = ("Case, bfloat16", "Bytes", "Instructions an output", "Share of the memory's speed")
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for case in CASES:
        counts = [*filter(None, [case.before]), case.instructions(folder)]
        cells = [case.label, f"{case.bytes:g}", " to ".join(f"{count:.0f}" for count in counts)]
        cells.append(" to ".join(f"{case.share(count):.2f}" for count in counts))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true", help=f"the table into {PAGE.name}")
    options = parser.parse_args()
    publish(table_of(options.folder), "limits", options.write)


if __name__ == "__main__":
    main()
