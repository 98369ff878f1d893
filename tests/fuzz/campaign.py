"""Many problems of every operator in every mode, in processes that may crash; and the table."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paths import ROOT, TESTS

from fuzz import guard
from fuzz.worker import SECONDS_TO_SHRINK, Cell, Progress, as_task

SECONDS_WITHOUT_PROGRESS = 60.0
SECONDS_TO_START = 600.0  # on a machine that has other things to do
MOST_CRASHES = 5  # of a process's cells, after which the rest is left


@dataclass(frozen=True)
class Failure:
    operator: str
    mode: str
    message: str
    row: str


def start(arguments: list[str], library: str | None, **streams: Any) -> subprocess.Popen[str]:
    """This command again, as a process that can be guarded."""
    environment = os.environ | guard.environment()
    if library is not None:
        environment["ATEN_CPU_CAPABILITY"] = library
    environment["OMP_WAIT_POLICY"] = "passive"
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(TESTS), str(ROOT), os.environ.get("PYTHONPATH", "")]
    )
    command = [sys.executable, "-X", "faulthandler", *arguments]
    return subprocess.Popen(command, env=environment, text=True, **streams)


def _wait(process: subprocess.Popen[str], progress: Progress) -> int | None:
    """Its exit status; None if it had to be ended, as nothing happened any more."""
    calls, since, patience = progress.now(), time.monotonic(), SECONDS_TO_START
    while True:
        try:
            return process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            if progress.now() != calls:
                calls, since, patience = progress.now(), time.monotonic(), SECONDS_WITHOUT_PROGRESS
            elif time.monotonic() - since > patience:
                process.kill()
                process.wait()
                return None


def _crash(cell: Cell, seed: int, library: str | None, message: str) -> Failure:
    """The failure of the problem that the cell was at, made simpler in other processes."""
    arguments = ["-m", "fuzz", "--shrink", cell.operator, cell.mode, str(seed), str(cell.index)]
    arguments += ["--message", message, "--seconds", str(SECONDS_TO_SHRINK)]
    pipe = subprocess.PIPE
    process = start(arguments, library, stdout=pipe, stderr=subprocess.DEVNULL, cwd=ROOT)
    try:
        output, _ = process.communicate(timeout=SECONDS_TO_SHRINK + 60)
        return Failure(**json.loads(output.splitlines()[-1]))
    except (subprocess.TimeoutExpired, IndexError, ValueError):
        process.kill()
        where = f"--shrink {cell.operator} {cell.mode} {seed} {cell.index}"
        return Failure(cell.operator, cell.mode, message, where)


def _run(cells: list[Cell], seed: int, library: str | None, **limits: Any) -> list[Failure]:
    """Cells in one process, or in several if it crashes. Their numbers are filled in."""
    failures: list[Failure] = []
    done = [False] * len(cells)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "progress"
        progress = Progress(file, len(cells), create=True)
        for position, cell in enumerate(cells):
            progress.write(position, cell)
        for _ in range(MOST_CRASHES):
            task = as_task(cells, seed=seed, progress=str(file), done=done, **limits)
            out, err = Path(folder) / "out", Path(folder) / "err"
            with out.open("w") as stdout, err.open("w") as stderr:
                process = start(
                    ["-m", "fuzz.worker", task], library, stdout=stdout, stderr=stderr, cwd=ROOT
                )
                status = _wait(process, progress)
            progress.read(cells)
            for line in map(json.loads, out.read_text().splitlines()):
                if "done" in line:
                    done[line["done"]] = True
                else:
                    failures.append(Failure(**line))
            if status == 0:
                break
            text = err.read_text(errors="replace")
            if status is not None and status > 0:
                raise RuntimeError(f"a process of the campaign failed:\n{text[-3000:]}")
            name = "hangs" if status is None else signal.Signals(-status).name
            said = [line for line in text.splitlines() if line.startswith("guard:")]
            cell = cells[progress.now()[0]]
            failures.append(_crash(cell, seed, library, ": ".join([name, *said[:1]])))
            cell.failures += 1
            cell.index += 1
    return failures


def run(
    cells: Sequence[Cell], seed: int, library: str | None, jobs: int, **limits: Any
) -> list[Failure]:
    """All cells, in `jobs` processes at once."""
    groups = [list(cells[i::jobs]) for i in range(min(jobs, len(cells)))]
    with ThreadPoolExecutor(len(groups)) as pool:
        results = pool.map(lambda group: _run(group, seed, library, **limits), groups)
        return [failure for failures in results for failure in failures]


def table(cells: Sequence[Cell]) -> str:
    """What ran, how quickly, and what failed."""
    lines = [f"{'operator':29} {'mode':9} {'problems':>9} {'a second':>9} {'failures':>9}"]
    for cell in sorted(cells, key=lambda c: (c.operator, c.mode)):
        rate = cell.problems / max(cell.seconds, 1e-9)
        lines.append(
            f"{cell.operator:29} {cell.mode:9} {cell.problems:9} {rate:9.0f} {cell.failures:9}"
        )
    total, seconds = sum(c.problems for c in cells), sum(c.seconds for c in cells)
    failed = sum(c.failures for c in cells)
    rate = total / max(seconds, 1e-9)
    lines.append(f"{'all':29} {'':9} {total:9} {rate:9.0f} {failed:9}")
    return "\n".join(lines)
