"""Counts the instructions of a thread on its path through a CUDA kernel. Needs no GPU.

    python tools/cuda_path.py OBJECT KERNEL --taken TEXT ... [--print]

The object was compiled with NVCC_APPEND_FLAGS=-lineinfo, from the sources that are there now;
KERNEL is a regular expression that the name of one of its kernels matches. A conditional branch is
taken if its line of the sources has one of the texts; those that are not are listed, so that a
reader sees what was assumed. `TEXT=NNT`: how the branch goes the first times, and from then on;
`TEXT=3`: the loop's body runs three times, whenever it is entered, and `TEXT=T3` if a branch leads
there; `TEXT=8,2`: eight times at first, and later twice; `TEXT=*TN`: in turns, counted over all
branches with that text.

Depthwise convolution in NCX, 3x3, of planes of 112x112 (docs/cuda.md):

    python tools/cuda_path.py build/temp*/csrc/conv/cuda/depthwise/ncx.o \\
        'ncx_kernel<c10::BFloat16, .*RowTaps<3, 1, false' --taken 'if (!transposed)' \\
        't.vector == kWidest' 'residual == nullptr' 'has_more()' 'if (vectors)'
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from cuda_kernel_table import find_tool

LINE = re.compile(r'\s*//## File "([^"]+)", line (\d+)')
LABEL = re.compile(r"\s*(\.L\w+):")
INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)([^;]*);")
MOST = 100_000  # instructions: a loop without end


@dataclass
class Instruction:
    predicate: str | None
    name: str
    operands: str
    place: tuple[str, int]  # file and line of the sources

    def source(self) -> str:
        if not self.place[0]:
            sys.exit("the object has no line numbers: remove it, and compile with -lineinfo")
        return Path(self.place[0]).read_text().splitlines()[self.place[1] - 1].strip()

    def is_conditional(self) -> bool:
        return self.predicate is not None or re.search(r"\bU?P\d,", self.operands) is not None

    def __str__(self) -> str:
        text = f"{self.predicate or ''} {self.name}{self.operands}".strip()
        return f"{text:56} {Path(self.place[0]).name}:{self.place[1]}"


@cache
def disassemble(path: Path, arch: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        extract = [find_tool("cuobjdump"), "--extract-elf", arch, str(path.resolve())]
        subprocess.run(extract, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        cubins = [str(file) for file in Path(folder).iterdir()]
        command = [find_tool("nvdisasm"), "--print-line-info", "--print-code", *cubins]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def read(path: Path, arch: str, kernel: str) -> tuple[list[Instruction], dict[str, int]]:
    """The instructions of a kernel, and which of them follows each label."""
    found = []
    for section in re.split(r"\n(?=\s*\.section\s+\.text\.)", disassemble(path, arch))[1:]:
        name = re.match(r"\s*\.section\s+\.text\.(\w+)", section)
        assert name is not None
        plain = subprocess.run(["c++filt", name[1]], capture_output=True, text=True).stdout
        if re.search(kernel, plain):
            found.append(section)
    if len(found) != 1:
        sys.exit(f"{kernel!r}: {len(found)} kernels have such a name")
    instructions: list[Instruction] = []
    labels = {}
    place, is_inner = ("", 0), True
    for line in found[0].splitlines():
        if at := LINE.match(line):
            if is_inner:  # lines after it: where that one is inlined
                place, is_inner = (at[1], int(at[2])), False
            continue
        is_inner = True
        if label := LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif instruction := INSTRUCTION.match(line):
            instructions.append(Instruction(*instruction.groups(), place))
    return instructions, labels


def walk(
    instructions: list[Instruction],
    labels: dict[str, int],
    taken: dict[str, str],
    verbose: bool = True,
) -> list[Instruction]:
    path: list[Instruction] = []
    met: Counter[int] = Counter()
    entered: Counter[int] = Counter()
    turns: Counter[str] = Counter()
    at = 0
    while len(path) < MOST:
        instruction = instructions[at]
        path.append(instruction)
        if instruction.name == "EXIT" and not instruction.is_conditional():
            return path
        target = re.search(r"`\((\.L\w+)\)", instruction.operands)
        is_taken = instruction.name == "BRA"
        if is_taken and instruction.is_conditional():
            texts = [text for text in taken if text in instruction.source()]
            if verbose and not texts and met[at] == 0:
                print(f"not taken: {instruction}: {instruction.source()}")
            way = taken[texts[0]] if texts else "N"
            if way[0] == "*":
                is_taken = way[1 + turns[texts[0]] % (len(way) - 1)] == "T"
                turns[texts[0]] += 1
            elif way[-1].isdigit():
                counts = way.lstrip("T").split(",")
                if target and labels[target[1]] <= at:
                    is_taken = met[at] + 1 < int(counts[min(entered[at], len(counts) - 1)])
                    entered[at] += not is_taken
                else:
                    is_taken = way[0] == "T"
                met[at] = met[at] if is_taken else -1
            else:
                is_taken = way[min(met[at], len(way) - 1)] == "T"
            met[at] += 1
        at = labels[target[1]] if is_taken and target else at + 1
    sys.exit(f"the path has no end after {MOST} instructions: say which branch leaves a loop")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("object", type=Path)
    parser.add_argument("kernel", help="a regular expression for its name")
    parser.add_argument("--taken", nargs="*", default=[], metavar="TEXT[=NT|3|T3|8,2|*NT]")
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--print", action="store_true", help="the instructions too")
    options = parser.parse_args()
    taken = {}
    for text in options.taken:
        way = re.fullmatch(r"(.*[^=])=(\*?[TN]+|T?\d+(,\d+)*)", text)
        taken[way[1] if way else text] = way[2] if way else "T"
    path = walk(*read(options.object, options.arch, options.kernel), taken)
    if options.print:
        print(*path, sep="\n")
    barriers = [i for i, instruction in enumerate(path) if instruction.name.startswith("BAR")]
    bounds = [0, *barriers, len(path)]
    between = [end - begin for begin, end in pairwise(bounds)]
    print(f"{len(path)} instructions; between barriers {between}")
    for (file, line), count in sorted(Counter(i.place for i in path).items()):
        print(f"{count:6} {Path(file).name}:{line}")


if __name__ == "__main__":
    main()
