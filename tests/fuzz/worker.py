"""One process of a campaign: problems one after another, each announced before it is run.

What it has done so far, and what it is doing, is in a file of fixed size that outlives a crash;
failures are lines of JSON on standard output.
"""

from __future__ import annotations

import json
import mmap
import re
import struct
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from fuzz import modes
from fuzz.operators import OPERATORS
from fuzz.problems import tape_of
from fuzz.shrink import message_of, shrink

MOST_FAILURES = 3  # of a cell that are told apart
SECONDS_TO_SHRINK = 30.0


@dataclass
class Cell:
    """Problems of one operator in one mode."""

    operator: str
    mode: str
    problems: int = 0  # that ran
    refused: int = 0  # whose kernel does not take them
    failures: int = 0
    seconds: float = 0.0
    index: int = 0  # of the next problem
    kinds: list[str] = field(default_factory=list)  # of the failures that were reported

    def data(self, seed: int, index: int) -> bytes:
        return tape_of(f"{self.operator} {self.mode}", seed, index)


class Progress:
    """The file: for each cell the numbers above, then the cell that runs and a count of calls."""

    _CELL = struct.Struct("=qqqdq")
    _NOW = struct.Struct("=qq")

    def __init__(self, path: Path, count: int, create: bool = False) -> None:
        size = count * self._CELL.size + self._NOW.size
        if create:
            path.write_bytes(bytes(size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), size)
        self._count, self._calls = count, 0

    def write(self, position: int, cell: Cell) -> None:
        numbers = (cell.problems, cell.refused, cell.failures, cell.seconds, cell.index)
        self._CELL.pack_into(self._memory, position * self._CELL.size, *numbers)
        self.tick(position)

    def tick(self, position: int) -> None:
        self._calls += 1
        self._NOW.pack_into(self._memory, self._count * self._CELL.size, position, self._calls)

    def read(self, cells: list[Cell]) -> None:
        for position, cell in enumerate(cells):
            numbers = self._CELL.unpack_from(self._memory, position * self._CELL.size)
            cell.problems, cell.refused, cell.failures, cell.seconds, cell.index = numbers

    def now(self) -> tuple[int, int]:
        """The cell that runs, and a number that changes with every call."""
        found: tuple[int, int] = self._NOW.unpack_from(self._memory, self._count * self._CELL.size)
        return found


def _kind(message: str) -> str:
    """Without its numbers."""
    return re.sub(r"\d[\d.e+-]*|\[.*?\]|\".*?\"", "#", message)[:100]


def report(cell: Cell, seed: int, data: bytes, message: str) -> None:
    row = modes.make(OPERATORS[cell.operator], cell.mode, data).row
    line = {"operator": cell.operator, "mode": cell.mode, "message": message, "row": row}
    print(json.dumps(line), flush=True)


def _run_cell(cell: Cell, task: dict[str, Any], progress: Progress, position: int) -> None:
    seed = task["seed"]
    before = time.monotonic()
    while (task["problems"] is None or cell.problems < task["problems"]) and (
        task["seconds"] is None or cell.seconds < task["seconds"]
    ):
        data = cell.data(seed, cell.index)
        progress.write(position, cell)
        problem = modes.make(OPERATORS[cell.operator], cell.mode, data)
        try:
            ran = modes.check(cell.mode, problem)
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            ran = True
            cell.failures += 1
            if _kind(message) not in cell.kinds and len(cell.kinds) < MOST_FAILURES:
                cell.kinds.append(_kind(message))
                start = time.monotonic()

                def check(candidate: bytes) -> str | None:
                    progress.tick(position)
                    return message_of(cell.operator, cell.mode, candidate)

                report(cell, seed, *shrink(data, message, check, SECONDS_TO_SHRINK))
                before += time.monotonic() - start
        cell.index += 1
        cell.problems += ran
        cell.refused += not ran
        cell.seconds += time.monotonic() - before
        before = time.monotonic()
    progress.write(position, cell)


def prepare() -> None:
    """An element that no kernel writes shows up as NaN, or as the largest integer."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True


def main(task: dict[str, Any]) -> None:
    prepare()
    cells = [Cell(**cell) for cell in task["cells"]]
    progress = Progress(Path(task["progress"]), len(cells))
    for position, cell in enumerate(cells):
        if not task["done"][position]:
            _run_cell(cell, task, progress, position)
            task["done"][position] = True
            print(json.dumps({"done": position, "kinds": cell.kinds}), flush=True)


def as_task(cells: list[Cell], **more: Any) -> str:
    return json.dumps({"cells": [asdict(cell) for cell in cells], **more})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
