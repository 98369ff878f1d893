"""Times two builds of this project beside each other, such as before and after a change.

    git worktree add ../before HEAD~1 && make -C ../before
    python benchmarks/compare.py ../before --op resample --pass forward --pass backward
    python benchmarks/compare.py ../before --op conv --dtype int8 --match rn50

Each checkout runs in a process of its own, with its own cases; those of the same name are timed.
The processes take turns of a few milliseconds, many times, so that what slows the machine down
slows both. Where a process's memory lies can change a kernel's time by a tenth, for as long as the
process lives: --restarts starts new ones. A row has the median milliseconds of each checkout, and
the median of the other one's time divided by this one's: above 1, this one is faster.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from measure import seconds, timed

HERE = Path(__file__).resolve()


def serve(checkout: Path, op: str, options: dict, match: str) -> None:
    """Answers, a line each: "next" with the next case's name, "PASS N" with N calls' mean time."""
    sys.path[:0] = [str(checkout / "benchmarks"), str(checkout)]
    import torch
    from cases import OPERATORS
    from run import keep_freed_memory

    keep_freed_memory()
    if "dtype" in options:
        options["dtype"] = getattr(torch, options["dtype"])
    cases = (case for case in OPERATORS[op]("cpu", **options) if match in case.name)
    functions: dict = {}
    for line in sys.stdin:
        what, _, calls = line.strip().partition(" ")
        if what == "next":
            torch.manual_seed(0)
            case, functions = next(cases, None), {}
            answer = case and case.name
        elif what != "forward" and not case.differentiable:
            answer = None
        else:
            if what not in functions:
                functions[what] = timed(case.ours, case.tensors, what)
            answer = seconds(functions[what], int(calls), "cpu")
        print(json.dumps(answer), flush=True)


class Checkout:
    """A process that times the cases of a checkout."""

    def __init__(self, path: Path, args: argparse.Namespace) -> None:
        options = {"dtype": args.dtype} if args.dtype else {}
        command = [sys.executable, HERE, path, "--op", args.op, "--match", args.match]
        # Threads that have no work are to leave the cores to the other process soon.
        environment = {"GOMP_SPINCOUNT": "10000", **os.environ, "PYTHONPATH": str(path)}
        self.process = subprocess.Popen(
            [*map(str, command), "--serve", json.dumps(options)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=path, env=environment,
        )  # fmt: skip

    def ask(self, question: str) -> object:
        assert self.process.stdin and self.process.stdout
        print(question, file=self.process.stdin, flush=True)
        while line := self.process.stdout.readline():
            try:
                return json.loads(line)
            except json.JSONDecodeError:
                print(line, end="", file=sys.stderr)  # a library's message
        sys.exit(f"the process ended: {self.process.args}")

    def seconds(self, what: str, calls: int) -> float:
        return float(str(self.ask(f"{what} {calls}")))

    def close(self) -> None:
        self.process.communicate()  # which ends its input

    def cases(self) -> Iterator[str]:
        while name := self.ask("next"):
            yield str(name)


def compare(pair: list[Checkout], what: str, budget: float) -> list[float] | None:
    """The median seconds of each; None for a pass that a case does not have."""
    turn = 0.005
    once = []
    for checkout in pair:
        if checkout.ask(f"{what} 1") is None:
            return None
        once.append(checkout.seconds(what, 1))
    calls = [max(1, int(turn / t)) for t in once]
    # A call that is timed follows one that is not.
    rounds = max(3, int(budget / 2 / sum(n * t for n, t in zip(calls, once, strict=True))))
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for checkout, n, series in zip(pair, calls, times, strict=True):
            series.append(checkout.seconds(what, n))
    return [statistics.median(series) for series in times]


def measurements(
    pair: list[Checkout], passes: list[str], budget: float
) -> Iterator[tuple[tuple[str, str], list[float]]]:
    """The case and pass, and the seconds of this checkout and the other one."""
    for names in zip(*(checkout.cases() for checkout in pair), strict=True):
        if names[0] != names[1]:
            sys.exit(f"the cases differ: {names}")
        for what in passes:
            times = compare(pair, what, budget)
            if times is not None:
                yield (names[0], what), times


def ratio_of(runs: list[list[float]]) -> float:
    return statistics.median(before / this for this, before in runs)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time two builds beside each other.")
    parser.add_argument("other", type=Path, help="a checkout that is built in place")
    parser.add_argument("--op", default="conv", choices=["resample", "images", "reorder", "conv"])
    parser.add_argument(
        "--pass", dest="passes", choices=("forward", "backward", "both"), action="append"
    )
    parser.add_argument("--dtype", help="with --op conv, as for run.py")
    parser.add_argument("--match", default="", help="only cases with this in their name")
    parser.add_argument("--seconds", type=float, default=3.0, help="for each row")
    parser.add_argument("--restarts", type=int, default=1, help="how often processes are started")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    other = args.other.resolve()
    if args.serve is not None:
        return serve(other, args.op, json.loads(args.serve), args.match)
    print(f"{'case':>36} {'pass':>8} {'this ms':>9} {'other ms':>9} {'ratio':>6}")
    runs: dict[tuple[str, str], list[list[float]]] = {}
    for _ in range(args.restarts):
        pair = [Checkout(HERE.parents[1], args), Checkout(other, args)]
        for row, times in measurements(pair, args.passes or ["forward"], args.seconds):
            runs.setdefault(row, []).append(times)
            if len(runs[row]) == args.restarts:
                this, before = (statistics.median(t) * 1e3 for t in zip(*runs[row], strict=True))
                ratio = ratio_of(runs[row])
                print(
                    f"{row[0]:>36} {row[1]:>8} {this:9.3f} {before:9.3f} {ratio:6.2f}", flush=True
                )
        for checkout in pair:
            checkout.close()
    if runs:
        ratios = [ratio_of(times) for times in runs.values()]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{len(ratios)} rows: geometric mean {mean:.3f}, worst {min(ratios):.2f}")


if __name__ == "__main__":
    main()
