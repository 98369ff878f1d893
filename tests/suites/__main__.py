"""Runs other people's test suites against this library and prints a table of what passed.

    PYTHONPATH=tests python -m suites                     all, each in a process of its own
    PYTHONPATH=tests python -m suites onnx_nodes opinfo   some of them
    PYTHONPATH=tests python -m suites --write             also into docs/reliability.md

A suite whose packages are not installed says so in its row (`pip install '.[suites]'` installs
them). The exit status is 1 if a difference has no reason that the suite knows.
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from paths import ROOT

import torch_dnnl
from suites import SUITES, Row, rows_of

PAGE = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- suites: begin -->\n", "<!-- suites: end -->\n"


def differences(row: Row) -> str:
    words = [f"{count}: {reason}" for reason, count in row.reasons.items()]
    if row.unexplained:
        words.append(f"{len(row.unexplained)}: without a known reason")
    if row.outside:
        parts = ", ".join(f"{reason} ({count})" for reason, count in row.outside.items())
        words.append(f"beside these: {parts}")
    return "; ".join(words)


HEAD = """\
| Suite | Of | Cases | Passed / all | What differs, and what is left out |
|---|---|---|---|---|
"""


def table(rows: list[Row]) -> str:
    """Without its head."""
    lines = []
    for row in rows:
        passed = f"{row.passed} / {row.total}" if row.name else ""
        cells = (f"`{row.suite}`", row.source, row.name, passed, differences(row))
        lines.append("| " + " | ".join(cells) + " |\n")
    return "".join(lines)


def write(rows: list[Row]) -> None:
    """Into the page, in the place of what it has of the same suites."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    old, _, after = rest.partition(END)
    parts = {}
    for suite in SUITES:
        kept = re.findall(rf"^\| `{suite}` .*\n", old, re.MULTILINE)
        new = [row for row in rows if row.suite == suite]
        parts[suite] = table(new) if new else "".join(kept)
    PAGE.write_text(f"{before}{BEGIN}{HEAD}{''.join(parts.values())}\n{machine()}\n{END}{after}")


def machine() -> str:
    """What the numbers were made on."""
    info = Path("/proc/cpuinfo")
    models = [
        line.partition(":")[2].strip()
        for line in (info.read_text().splitlines() if info.exists() else ())
        if line.startswith("model name")
    ]
    cpu = models[0] if models else platform.processor()
    capability = torch_dnnl.build_info()["cpu_capability"]
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True).stdout.strip() or "unknown"
    return (
        f"Last run on: {cpu} ({capability}), Python {platform.python_version()}, "
        f"torch {torch.__version__}, commit {commit}."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", metavar="suite", help=f"of {', '.join(SUITES)}")
    parser.add_argument("--only", default="", help="a pattern that names of cases contain")
    parser.add_argument("--write", action="store_true", help=f"the table into {PAGE.name}")
    options = parser.parse_args()
    if unknown := set(options.suites) - set(SUITES):
        parser.error(f"expected suite to be one of {', '.join(SUITES)}, got {', '.join(unknown)}")
    if options.write and options.only:
        parser.error("expected --write without --only: the page has the numbers of all cases")
    rows: list[Row] = []
    # A process for each: these libraries have not been made to share one, and a crash is one row's.
    for name in options.suites or SUITES:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            try:
                found = pool.submit(rows_of, name, options.only).result()
            except Exception as error:
                found = [Row(name, "", "stopped", unexplained=[f"{name}: {error!r}"])]
        rows += found
        print(table(found), end="", flush=True)
        for row in found:
            print("".join(f"    {line}\n" for line in row.unexplained[:20]), end="", flush=True)
        if options.write:
            write(found)
    return int(any(row.unexplained for row in rows))


if __name__ == "__main__":
    sys.exit(main())
