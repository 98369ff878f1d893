"""Predicts which share of a limit CUDA kernels can reach, from counts of instructions.

    python tools/cuda_limits.py FOLDER           # of objects, in folders as their sources
    python tools/cuda_limits.py --write FOLDER   # into docs/cuda.md: `make cuda-table`

The objects were compiled with -lineinfo. A thread's path through its kernel is counted by
cuda_path.py, with the decisions of the case; what was before, at commit a76ea89, in the same way.
"""

import argparse
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from cuda_cases import CASES, Case
from cuda_kernel_table import PAGE, Kernel, find_tool, publish
from cuda_path import read, walk

ARCH = "sm_90a"
SHARED_BYTES = 227 * 1024  # of a multiprocessor, of which each block has 1,024 to itself


@cache
def registers(compiled: Path) -> dict[str, int]:
    """Of the kernels of an object, by their names."""
    command = [find_tool("cuobjdump"), "--dump-resource-usage", str(compiled)]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    own = text.partition(f"arch = {ARCH}")[2].partition("arch = ")[0]
    plain = subprocess.run(["c++filt"], input=own, stdout=subprocess.PIPE, text=True).stdout
    return {
        found[1]: int(found[2]) for found in re.finditer(r"Function (.*):\n\s*REG:(\d+)", plain)
    }


def warps(case: Case, compiled: Path) -> int:
    """That a multiprocessor has at once: what registers and shared memory are enough for."""
    (count,) = (n for name, n in registers(compiled).items() if re.search(case.kernel, name))
    of_block = case.threads // 32
    blocks = Kernel(registers=count).warps() // of_block
    if case.shared:
        blocks = min(blocks, SHARED_BYTES // (case.shared + 1024))
    return of_block * blocks


def instructions(case: Case, compiled: Path) -> float:
    code = read(compiled, ARCH, case.kernel)

    def count(taken: dict[str, str]) -> int:
        return len(walk(*code, taken, verbose=False))

    if case.repeated:
        few, more = (
            count(case.taken | {case.repeated: f"{case.enter}{turns}"})
            for turns in (4, 4 + case.turns)
        )
        return (more - few) / case.outputs
    return count(case.taken) / case.outputs


def table_of(folder: Path) -> str:
    columns = ("Case", "For an output", "Instructions", "Warps, of 64", "Share of the limit")
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for case in CASES:
        compiled = next(folder.glob(f"**/{case.source}.o"), None)
        if compiled is None:
            sys.exit(f"{folder}: {case.source}.o is not there")
        counts, resident = [instructions(case, compiled)], [warps(case, compiled)]
        if case.before and round(case.before[0]) != round(counts[0]):
            counts.insert(0, case.before[0])
            resident.insert(0, case.before[1])
        shares = [case.limit.share(count) for count in counts]
        cells = [case.label, str(case.limit)]
        for values, form in ((counts, ".0f"), (resident, ""), (shares, ".2f")):
            cells.append(" to ".join(dict.fromkeys(format(value, form) for value in values)))
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
