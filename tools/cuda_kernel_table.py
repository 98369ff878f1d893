"""Prints what the compiler made of each CUDA kernel, as the table of docs/cuda.md. Needs no GPU.

    python tools/cuda_kernel_table.py FILE ...           # of libraries or objects
    python tools/cuda_kernel_table.py --write FILE ...   # into docs/cuda.md: `make cuda-table`

The instances of a kernel template that agree in their first argument, mostly the element type, are
one row. cuobjdump comes with the CUDA toolkit, and with the Triton that torch installs.
"""

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "cuda.md"


def find_tool(name: str) -> str:
    places = [os.environ.get("PATH", ""), "/usr/local/cuda/bin"]
    places.append(os.path.join(os.environ.get("CUDA_HOME", ""), "bin"))
    triton = importlib.util.find_spec("triton")
    for folder in (triton.submodule_search_locations or []) if triton else []:
        places.append(str(Path(folder, "backends", "nvidia", "bin")))
    found = shutil.which(name, path=os.pathsep.join(places))
    return found or sys.exit(f"{name} is not found: put that of the CUDA toolkit on PATH")


MATRIX = {"HMMA", "IMMA", "DMMA", "HGMMA"}
INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?\w+\s+)?([A-Z][\w.]*)([^;]*)")
PRODUCTS = {"FFMA", "DFMA", "IDP"}


@dataclass
class Kernel:
    registers: int = 0
    stack: int = 0
    shared: int = 0
    instructions: int = 0
    local: int = 0  # loads and stores of memory that is the thread's own: arrays and spills
    load: int = 0  # bits of the widest one
    store: int = 0
    matrix: set[str] = field(default_factory=set)
    asynchronous: bool = False  # copies from global to shared memory
    names: list[tuple[int, str]] = field(default_factory=list)  # with their addresses
    loops: list[tuple[int, int]] = field(default_factory=list)  # first and last address

    def add(self, address: int, instruction: str, operands: str) -> None:
        name, *suffixes = instruction.split(".")
        self.names.append((address, sys.intern(name)))
        to = re.search(r"0x([0-9a-f]+)\s*$", operands) if name == "BRA" else None
        if to and int(to[1], 16) < address:
            self.loops.append((int(to[1], 16), address))
        width = next((int(s) for s in suffixes if s in ("64", "128")), 32)
        width = next((int(s[1:]) for s in suffixes if s in ("U8", "S8", "U16", "S16")), width)
        self.instructions += name != "NOP"
        self.local += name in ("LDL", "STL")
        if name in ("LDG", "LD", "LDGSTS"):
            self.load = max(self.load, width)
        if name in ("STG", "ST"):
            self.store = max(self.store, width)
        self.asynchronous |= name == "LDGSTS"
        if name in MATRIX:
            self.matrix.add(instruction)

    def warps(self) -> int:
        """That a multiprocessor has registers for, of 64: each of its four parts has 16,384."""
        of_warp = 32 * -(-max(self.registers, 1) // 8) * 8
        return min(64, 4 * (16384 // of_warp))

    def of_a_product(self) -> float | None:
        """Instructions for each product, in the innermost loop that has most of them. None of more
        than 32, where products are not what the loop is for."""
        products = MATRIX if self.matrix else PRODUCTS
        bodies: dict[tuple[int, int], tuple[int, int]] = {}  # products, and less the instructions
        for first, last in self.loops:
            body = [name for address, name in self.names if first <= address <= last]
            bodies[first, last] = sum(name in products for name in body), -len(body)

        def is_inside(a: tuple[int, int], b: tuple[int, int]) -> bool:
            return a != b and b[0] <= a[0] and a[1] <= b[1] and bodies[a][0] > 0

        innermost = [bodies[b] for b in bodies if not any(is_inside(a, b) for a in bodies)]
        count, length = max(innermost, default=(0, 0))
        return -length / count if 0 < -length <= 32 * count else None


def read(path: str) -> dict[tuple[str, str], Kernel]:
    """The kernels of a library or an object, by architecture and mangled name."""
    kernels: dict[tuple[str, str], Kernel] = defaultdict(Kernel)
    arch = name = ""
    command = [find_tool("cuobjdump"), "--dump-resource-usage", "--dump-sass", path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.match(r"arch = (\w+)", line):
                arch = found[1]
            elif found := re.match(r"\s*Function\s*:?\s*(\w+):?", line):
                name = found[1]
                # A kernel of an inline function is in several objects, and listed as often.
                listed = kernels[arch, name]
                listed.instructions = listed.local = 0
                listed.names, listed.loops = [], []
            elif found := re.match(r"\s*REG:(\d+) STACK:(\d+) SHARED:(\d+)", line):
                kernel = kernels[arch, name]
                kernel.registers, kernel.stack, kernel.shared = map(int, found.groups())
            elif found := INSTRUCTION.match(line):
                kernels[arch, name].add(int(found[1], 16), found[2], found[3])
    return kernels


def rows_of(names: list[str]) -> list[str]:
    """The row that each mangled name belongs to: the kernel, and its first template argument."""
    plain = subprocess.run(
        ["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    rows = []
    for name in plain:
        short = re.sub(r"\(anonymous namespace\)::|torch_dnnl::|(reorder_)?cuda::|c10::", "", name)
        found = re.match(r"(?:void )?(\w*:*\w+)<(.*)", short)
        if found is None:
            rows.append(short.split("(")[0])
            continue
        first = re.match(r"[\w ]+(?:<[\w ]+)?", found[2])
        rows.append(f"{found[1]}<{first[0] if first else ''}")
    return rows


def span(numbers: Iterable[float]) -> str:
    texts = [f"{n:.1f}" if isinstance(n, float) else str(n) for n in sorted(numbers)]
    return " to ".join(dict.fromkeys([*texts[:1], *texts[-1:]]))


def cells_of(group: list[Kernel]) -> list[str]:
    numbers = ("instructions", "registers", "stack", "local", "shared")
    of_products = [ratio for kernel in group if (ratio := kernel.of_a_product()) is not None]
    return [
        str(len(group)),
        *(span([getattr(kernel, name) for kernel in group]) for name in numbers),
        span([kernel.warps() for kernel in group]),
        span(of_products),
        f"{max(k.load for k in group)}, {max(k.store for k in group)}"
        + (" (LDGSTS)" if any(k.asynchronous for k in group) else ""),
        ", ".join(sorted(set().union(*(k.matrix for k in group)))),
    ]


def table_of(paths: list[str]) -> str:
    kernels = [item for path in paths for item in read(path).items()]
    rows = rows_of([name for (_, name), _ in kernels])
    groups: dict[tuple[str, str], list[Kernel]] = defaultdict(list)
    for ((arch, _), kernel), row in zip(kernels, rows, strict=True):
        groups[row, arch].append(kernel)
    archs = sorted({arch for _, arch in groups})
    columns = ("Kernel", "Instances", "Instructions", "Registers", "Stack", "Local accesses")
    columns += ("Static shared", "Warps", "For each product", "Widest load, store")
    columns += ("Matrix instruction",)
    lines = [f"Where they differ, {' / '.join(archs)}.", ""]
    lines += ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in sorted({row for row, _ in groups}):
        of_archs = [cells_of(groups[row, arch]) for arch in archs if (row, arch) in groups]
        cells = [" / ".join(dict.fromkeys(cells)) for cells in zip(*of_archs, strict=True)]
        lines.append("| " + " | ".join([f"`{row}{'>' * row.count('<')}`", *cells]) + " |")
    return "\n".join(lines) + "\n"


def publish(table: str, name: str, write: bool) -> None:
    """Prints a table, and writes it to its place in the page."""
    print(table, end="")
    if write:
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->"
        before, _, rest = PAGE.read_text().partition(begin)
        PAGE.write_text(f"{before}{begin}{table}{end}{rest.partition(end)[2]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", help="libraries or objects")
    parser.add_argument("--write", action="store_true", help=f"the table into {PAGE.name}")
    options = parser.parse_args()
    publish(table_of(options.files), "kernels", options.write)


if __name__ == "__main__":
    main()
