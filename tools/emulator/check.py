"""Every CPU kernel by its name on random problems, against the reference and the oracle.

    python tools/emulator/check.py quantized --problems 50

It runs in the guest of emulate.py as it does here. `quantized`: convolution of bytes, whose results
agree to the bit. `half`: convolution and its derivatives in bfloat16, float16 and float32, each
against float64. Each problem runs on one to three threads.
"""

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/conv"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from quantized_problems import TRANSCENDENTAL, problem
from random_convolutions import random_narrow_problem, random_problem

import torch_dnnl

KERNELS = torch_dnnl.build_info()["kernels"]["cpu"]
HALF = [torch.bfloat16, torch.bfloat16, torch.float16, torch.float32]


def quantized(number: int) -> Iterator[tuple[str, bool]]:
    """The kernels that support a problem, and whether each is right."""
    case = problem(number)
    oracle, reference = case.expected().nan_to_num(), case.run("reference").nan_to_num()
    is_exact = case.arguments.get("activation") not in TRANSCENDENTAL
    for kernel in (*KERNELS["quantized_convolution"], "auto"):
        try:
            result = case.run(kernel).nan_to_num()
        except NotImplementedError:
            continue
        is_right = result.dtype == oracle.dtype and torch.equal(result, reference)
        yield kernel, is_right and (not is_exact or torch.equal(result, oracle))


def half(number: int) -> Iterator[tuple[str, bool]]:
    dtype = random.Random(number).choice(HALF)
    run = random_narrow_problem if number % 3 == 0 else random_problem
    for kernel in (*KERNELS["convolution"], "auto"):
        torch.manual_seed(number)
        name = f"{kernel} {str(dtype).removeprefix('torch.')}"
        try:
            if run(random.Random(number), dtype, kernel) > 0:  # else it supports none
                yield name, True
        except AssertionError as error:
            print(f"{name}: {error}")
            yield name, False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("quantized", "half"))
    parser.add_argument("--problems", type=int, default=50)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    flags = {f for f in Path("/proc/cpuinfo").read_text().split() if "avx512" in f or "amx" in f}
    print(f"CPU: {' '.join(sorted(flags))}", flush=True)
    ran, wrong = Counter(), []
    for number in range(args.first, args.first + args.problems):
        torch.set_num_threads(random.Random(number).choice([1, 2, 3]))
        for kernel, is_right in {"quantized": quantized, "half": half}[args.kind](number):
            ran[kernel] += 1
            if not is_right:
                wrong.append((number, kernel))
                print(f"wrong: problem {number}, {kernel}", flush=True)
    counts = ", ".join(f"{kernel} {count}" for kernel, count in ran.items())
    print(f"{args.kind}: {args.problems} problems. Ran: {counts}. Wrong: {len(wrong)}")
    return min(len(wrong), 1)


if __name__ == "__main__":
    sys.exit(main())
