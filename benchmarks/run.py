"""Times the operators beside torch's.

    python benchmarks/run.py                      # everything
    python benchmarks/run.py --op conv --gradient # forward and backward
    python benchmarks/run.py --op reorder --csv results.csv

Each row: milliseconds of both, torch / ours, GB/s (inputs read once, outputs written once), their
share of what a copy into a fresh tensor of the same bytes reaches in the same run, GFLOP/s where
arithmetic is the limit, and both errors against float64. Last, the geometric mean of torch / ours
and the worst case.
"""

import argparse
import csv
import math
import subprocess

import torch
from cases import OPERATORS, Case
from measure import interleaved
from torch import Tensor

COLUMNS = (
    ("case", "{:>32}"),
    ("ours ms", "{:9.3f}"),
    ("torch ms", "{:9.3f}"),
    ("ratio", "{:7.2f}"),
    ("GB/s", "{:7.2f}"),
    ("of copy", "{:8.2f}"),
    ("GFLOP/s", "{:8.1f}"),
    ("error", "{:9.1e}"),
    ("torch error", "{:12.1e}"),
)


def error(result: Tensor, exact: Tensor) -> float:
    if result.is_quantized:
        result = result.int_repr()
    return ((result.double() - exact).norm() / exact.norm()).item()


def with_gradient(function, tensors):
    leaves = [t.detach().requires_grad_() for t in tensors]
    grad = torch.ones_like(function(*leaves))
    return lambda: torch.autograd.grad(function(*leaves), leaves, grad)


def row(case: Case, device: str, gradient: bool) -> dict[str, object]:
    ours, theirs = case.ours(*case.tensors), case.torchs(*case.tensors)
    exact = (case.exact or case.torchs)(*(t.double() for t in case.tensors)).double()
    size = sum(t.numel() * t.element_size() for t in (*case.tensors, ours))
    half = torch.empty(size // 2, dtype=torch.uint8, device=device)
    functions = [lambda: case.ours(*case.tensors), lambda: case.torchs(*case.tensors)]
    if gradient:
        functions = [with_gradient(f, case.tensors) for f in (case.ours, case.torchs)]
    a, b, copy = interleaved(*functions, half.clone, device=device)
    return {
        "case": case.name,
        "ours ms": a * 1e3,
        "torch ms": b * 1e3,
        "ratio": b / a,
        "GB/s": size / a / 1e9,
        "of copy": copy / a,
        "GFLOP/s": 2 * case.operations / a / 1e9,
        "error": error(ours, exact),
        "torch error": error(theirs, exact),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the operators beside torch's.")
    parser.add_argument("--op", choices=OPERATORS, action="append", help="default: all")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--gradient", action="store_true", help="forward and backward together")
    parser.add_argument("--csv", help="also write the rows to this file")
    args = parser.parse_args()

    name = (
        torch.cuda.get_device_name()
        if args.device == "cuda"
        else f"{torch.get_num_threads()} threads"
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    print(f"torch {torch.__version__}, {args.device}, {name}, commit {commit}")
    rows = []
    for op in args.op or OPERATORS:
        print(f"\n{op}" + (", forward and backward" if args.gradient else ""))
        print(" ".join(f"{n:>{len(f.format(0)) if n != 'case' else 32}}" for n, f in COLUMNS))
        ratios = []
        for case in OPERATORS[op](args.device):
            values = row(case, args.device, args.gradient)
            print(" ".join(f.format(values[n]) for n, f in COLUMNS), flush=True)
            ratios.append(values["ratio"])
            rows.append(
                {"op": op, **values, "torch": torch.__version__, "device": name, "commit": commit}
            )
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"torch / ours: geometric mean {mean:.2f}, worst {min(ratios):.2f}")
    if args.csv:
        with open(args.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=rows[0])
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
