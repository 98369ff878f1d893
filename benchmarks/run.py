"""Times the operators beside torch's.

    python benchmarks/run.py                                        # everything, forward
    python benchmarks/run.py --op resample --pass forward --pass backward --plot resample.png
    python benchmarks/run.py --op conv --pass both --csv conv.csv
    python benchmarks/run.py --device cuda
    python benchmarks/run.py --op conv --dtype int8
    python benchmarks/run.py --op conv --kernel all    # our kernels beside each other

Each row: milliseconds of both, peer / ours, GB/s (inputs read once, outputs written once, in either
direction), their share of what a copy into a fresh tensor reaches in the same run, GFLOP/s where
arithmetic is the limit, their share of a matrix product's in the same run and type (in float32 if
the CPU has no instructions for the type), and both errors against float64. Last, the geometric
mean of peer / ours and the worst case. The copy moves as many bytes in all: it reads one half of
them and writes the other.

On a GPU torch's convolutions are those that cudnn.benchmark finds fastest. A row that fails there
is reported and left out, and the exit status tells it.
"""

import argparse
import csv
import ctypes
import math
import subprocess
import sys
from contextlib import suppress

import numpy as np
import torch
from cases import OPERATORS, Case
from kernels import compare_kernels
from measure import GRAPH_CALLS, captured, interleaved, matrix_rate, rotating, timed
from torch import Tensor

COLUMNS = (
    ("case", 32, ""),
    ("pass", 8, ""),
    ("ours ms", 9, ".3f"),
    ("peer ms", 9, ".3f"),
    ("ratio", 7, ".2f"),
    ("GB/s", 7, ".2f"),
    ("of copy", 8, ".2f"),
    ("GFLOP/s", 8, ".1f"),
    ("of matmul", 10, ".3f"),
    ("error", 9, ".1e"),
    ("peer error", 11, ".1e"),
)

# A result this far from float64's, and further than the peer's, is wrong: its time means nothing.
WRONG = 1e-2


def flat(result: object) -> Tensor:
    """All numbers of a result: a tensor, several, or an image."""
    if isinstance(result, tuple):
        return torch.cat([flat(part) for part in result])
    if not isinstance(result, Tensor):
        result = torch.from_numpy(np.array(result)).permute(2, 0, 1)
    if result.is_quantized:
        result = result.int_repr()
    return result.double().flatten()


def error(result: object, exact: object) -> float:
    if isinstance(result, Tensor) and result.is_mkldnn:
        return math.nan  # opaque: it does not tell its layout
    return ((flat(result) - flat(exact)).norm() / flat(exact).norm()).item()


def has_fast_matrix_product(dtype: torch.dtype, device: str) -> bool:
    """Elsewhere torch's product is a loop, which takes minutes and is no limit."""
    if not dtype.is_floating_point or device == "cuda":
        return dtype.is_floating_point
    supported = {
        torch.bfloat16: torch.ops.mkldnn._is_mkldnn_bf16_supported,
        torch.float16: torch.ops.mkldnn._is_mkldnn_fp16_supported,
    }
    return dtype not in supported or supported[dtype]()


def row(
    case: Case,
    what: str,
    device: str,
    seconds: float,
    matrix_rates: dict[torch.dtype, float],
    *,
    queued: bool,
) -> dict[str, object]:
    dtype = case.tensors[0].dtype
    rate_dtype = dtype if has_fast_matrix_product(dtype, device) else torch.float32
    ours, peer = (timed(f, case.tensors, what) for f in (case.ours, case.peer))
    with torch.backends.cudnn.flags(enabled=True, benchmark=False):
        exact = timed(case.exact or case.peer, tuple(t.double() for t in case.tensors), what)()
    errors = [error(ours(), exact), error(peer(), exact) if case.is_comparable else math.nan]
    if errors[0] > max(WRONG, 4 * (errors[1] if case.is_comparable else 0)) or math.isnan(
        errors[0]
    ):
        raise RuntimeError(f"{case.name}: error {errors[0]:.1e}, the peer's {errors[1]:.1e}")
    del exact  # of twice the memory or more
    tensors = (*case.tensors, case.ours(*case.tensors))
    size = sum(t.numel() * t.element_size() for t in tensors) * (2 if what == "both" else 1)
    operations = case.operations * {"forward": 1, "backward": 2, "both": 3}[what]
    # Written, for memory that never was is read from a single page.
    half = torch.ones(size // 2, dtype=torch.uint8, device=device)
    if case.graph:
        calls = [captured(function) for function in (ours, peer, half.clone)]
    else:
        calls = [
            rotating(lambda tensors, f=f: timed(f, tensors, what), case.tensors, size)
            for f in (case.ours, case.peer)
        ]
        calls.append(rotating(lambda tensors: tensors[0].clone, (half,), size))
    each = GRAPH_CALLS if case.graph else 1
    times = interleaved(*calls, device=device, budget=seconds, queued=queued)
    a, b, copy = (t / each for t in times)
    rate = 2 * operations / a
    if operations > 0 and rate_dtype not in matrix_rates:
        matrix_rates[rate_dtype] = matrix_rate(rate_dtype, device)
    return {
        "case": case.name,
        "pass": what,
        "ours ms": a * 1e3,
        "peer ms": b * 1e3,
        "ratio": b / a,
        "GB/s": size / a / 1e9,
        "of copy": copy / a,
        "GFLOP/s": rate / 1e9,
        "of matmul": rate / matrix_rates.get(rate_dtype, math.inf),
        "error": errors[0],
        "peer error": errors[1],
    }


def keep_freed_memory() -> None:
    """Keeps glibc from giving freed memory back to the system, where it has that choice.

    To fetch a tensor's memory from the system again, page by page, takes longer than most kernels
    do, and whether it happens depends on what else was allocated, not on what is timed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        trim_threshold, mmap_max = -1, -4  # in malloc.h
        mallopt(trim_threshold, -1)
        mallopt(mmap_max, 0)


def commit_here() -> str:
    with suppress(OSError):
        return subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout.strip()
    return ""


def plot(path: str, rows: list[dict]) -> None:
    """A bar for each row: how much faster than the peer, from 1."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(9, 1 + 0.2 * len(rows)), layout="constrained")
    labels = [f"{r['op']}: {r['case']}, {r['pass']}" for r in rows]
    colors = ["tab:green" if r["ratio"] >= 1 else "tab:red" for r in rows]
    axis.barh(labels, [r["ratio"] - 1 for r in rows], left=1, color=colors)
    axis.invert_yaxis()
    axis.margins(y=0.01)
    axis.set(xscale="log", xlabel="peer's time / ours")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.axvline(1, color="black", linewidth=0.8)
    figure.savefig(path, dpi=100)


class Table:
    """A file of rows, each written when it comes: a run that is stopped has those before."""

    def __init__(self, path: str | None) -> None:
        self.path = path
        self.mode = "w"

    def add(self, row: dict[str, object]) -> None:
        if self.path is None:
            return
        with open(self.path, self.mode, newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(row))
            if self.mode == "w":
                writer.writeheader()
            writer.writerow(row)
        self.mode = "a"


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the operators beside torch's.")
    parser.add_argument("--op", choices=OPERATORS, action="append", help="default: all")
    parser.add_argument(
        "--pass", dest="passes", choices=("forward", "backward", "both"), action="append",
        help='"backward" alone, or "both" together; default: forward',
    )  # fmt: skip
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--deterministic", action="store_true", help="torch's deterministic algorithms"
    )
    parser.add_argument("--match", default="", help="only cases with this in their name")
    parser.add_argument(
        "--no-tf32", action="store_true", help="torch's float32 convolutions in float32"
    )
    parser.add_argument("--commit", help="for the table, where git does not know it")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16", "int8"),
        help="with --op conv: its layers in this type; int8: quantized_convolution",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=3.0, help="for each row")
    parser.add_argument("--csv", help="also write the rows to this file")
    parser.add_argument("--plot", help="also draw the ratios into this file")
    parser.add_argument(
        "--kernel", action="append", metavar="NAME",
        help='time this kernel beside the chosen one; "all": every kernel that supports a case',
    )  # fmt: skip
    parser.add_argument("--reference", action="store_true", help='with "--kernel all", it too')
    parser.add_argument("--few", action="store_true", help="with --kernel, a fixed set of cases")
    args = parser.parse_args()
    if args.dtype and args.op != ["conv"]:
        parser.error("--dtype is for --op conv alone")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error(f"--device cuda: torch {torch.__version__} sees no GPU")
    keep_freed_memory()
    if args.deterministic:
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False

    torch.backends.cudnn.benchmark = args.device == "cuda"
    torch.backends.cudnn.allow_tf32 = not args.no_tf32
    torch.backends.cuda.matmul.allow_tf32 = not args.no_tf32  # the rate that shares refer to

    name = (
        torch.cuda.get_device_name()
        if args.device == "cuda"
        else f"{torch.get_num_threads()} threads"
    )
    commit = args.commit or commit_here()
    run = {"device": name, "commit": commit}
    print(f"torch {torch.__version__}, {args.device}, {name}, commit {commit}")
    dtype = {"dtype": getattr(torch, args.dtype)} if args.dtype else {}
    if args.kernel:
        compare_kernels(
            args.op or ["resample", "images", "reorder", "conv"],
            args.device,
            args.passes or ["forward"],
            args.seconds,
            wanted=args.kernel,
            reference=args.reference,
            few=args.few,
            match=args.match,
            table=args.csv,
            **dtype,
        )
        return
    rows, failures = [], []
    table = Table(args.csv)
    matrix_rates: dict[torch.dtype, float] = {}
    for op in args.op or OPERATORS:
        print(f"\n{op}")
        print(" ".join(f"{column:>{width}}" for column, width, _ in COLUMNS))
        ratios: dict[bool, list[float]] = {True: [], False: []}
        for case in OPERATORS[op](args.device, **dtype):
            if args.match not in case.name:
                continue
            for what in args.passes or ["forward"]:
                try:
                    if what != "forward" and (case.graph or not case.differentiable):
                        continue
                    # Of small calls the host's time is asked for.
                    values = row(
                        *(case, what, args.device, args.seconds, matrix_rates),
                        queued=op != "overhead",
                    )
                except RuntimeError as failure:
                    if args.device == "cpu":
                        raise
                    failures.append(f"{case.name}, {what}: {str(failure).splitlines()[0]}")
                    print(f"failed: {failures[-1]}", flush=True)
                    continue
                print(" ".join(f"{values[c]:>{width}{f}}" for c, width, f in COLUMNS), flush=True)
                ratios[case.is_comparable].append(values["ratio"])
                rows.append({"op": op, **values, "torch": torch.__version__, **run})
                table.add(rows[-1])
        for is_comparable, of_kind in ratios.items():
            if of_kind:
                mean = math.exp(sum(map(math.log, of_kind)) / len(of_kind))
                peer = "peer" if is_comparable else "peer of another type"
                print(f"{peer} / ours: geometric mean {mean:.2f}, worst {min(of_kind):.2f}")
    if args.plot:
        plot(args.plot, rows)
    if failures:
        sys.exit(f"{len(failures)} rows failed")


if __name__ == "__main__":
    main()
