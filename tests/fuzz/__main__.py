"""The command: `python tests/fuzz --seconds 600 --seed 0`. Exits with 1 if a problem failed.

python tests/fuzz --operator reorder --mode guarded --problems 10000 --library avx2
python tests/fuzz --mode guarded --row '{"operator": ...}'     # one problem again
python tests/fuzz --rows tests/fuzz/regressions.jsonl          # those of a file, in all modes
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

if __package__ in (None, ""):  # run as a folder
    sys.path[0] = str(Path(__file__).resolve().parents[1])
    sys.path.insert(1, str(Path(__file__).resolve().parents[2]))

import torch_dnnl
from fuzz import campaign, modes, shrink, worker
from fuzz.operators import OPERATORS
from fuzz.problems import problem_of, tape_of

LIBRARIES = ("default", "avx2", "avx512")


def replay(rows: list[str], names: list[str]) -> int:
    """Each problem in each mode; the number of failures."""
    worker.prepare()
    failures = ran = 0
    for row in rows:
        problem = problem_of(row)
        for mode in names:
            if not modes.suits(problem, mode):
                continue
            print(f"{mode}: {row[:200]}", file=sys.stderr, flush=True)
            ran += 1
            try:
                modes.check(mode, problem)
            except Exception as error:
                failures += 1
                print(f"{mode}: {type(error).__name__}: {error}\n  {row}", flush=True)
    print(f"{ran} problems again, {failures} failed")
    return failures


def _shrink_a_crash(args: argparse.Namespace) -> None:
    operator, mode, seed, index = args.shrink
    data = tape_of(f"{operator} {mode}", int(seed), int(index))
    found = shrink.shrink(
        data,
        args.message,
        lambda tape: shrink.message_of_process(operator, mode, tape),
        args.seconds,
    )
    worker.report(worker.Cell(operator, mode), int(seed), *found)


def _again(args: argparse.Namespace, rows: list[str]) -> int:
    """In a process that can be guarded."""
    arguments = ["-m", "fuzz", "--replay", json.dumps(rows), "--mode", *args.mode]
    return campaign.start(arguments, args.library).wait()


def _run(args: argparse.Namespace) -> int:
    cells = [
        worker.Cell(operator, mode)
        for operator in args.operator
        for mode in args.mode
        if modes.applies(OPERATORS[operator], mode)
    ]
    seconds = None
    if args.problems is None:
        seconds = args.seconds * min(args.jobs, len(cells)) / len(cells)
    start = time.monotonic()
    failures = campaign.run(
        cells, args.seed, args.library, args.jobs, problems=args.problems, seconds=seconds
    )
    library = args.library or torch_dnnl.build_info()["cpu_capability"].lower()
    print(f"library {library}, seed {args.seed}, {time.monotonic() - start:.0f} s")
    print(campaign.table(cells))
    for failure in failures:
        print(f"\n{failure.operator}, {failure.mode}: {failure.message}")
        print(f"  python tests/fuzz --mode {failure.mode} --row '{failure.row}'")
    return 1 if failures or any(cell.failures for cell in cells) else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests/fuzz", description="Random and hostile calls of every operator."
    )
    parser.add_argument("--operator", nargs="+", choices=OPERATORS, default=list(OPERATORS))
    parser.add_argument("--mode", nargs="+", choices=modes.MODES, default=list(modes.MODES))
    parser.add_argument("--seconds", type=float, default=600, help="in all (%(default)s)")
    parser.add_argument("--problems", type=int, help="of each operator and mode, not for a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--library", choices=LIBRARIES, help="the best that this machine has")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once")
    parser.add_argument("--row", help="one problem again, a line of JSON")
    parser.add_argument("--rows", type=Path, help="the problems of a file again")
    for name in ("--replay", "--message"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--shrink", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.shrink:
        _shrink_a_crash(args)
        return 0
    if args.replay:
        return 1 if replay(json.loads(args.replay), args.mode) else 0
    if args.row:
        return _again(args, [args.row])
    if args.rows:
        return _again(args, args.rows.read_text().splitlines())
    return _run(args)


if __name__ == "__main__":
    sys.exit(main())
