"""What the kernel "brgemm" takes beside its products: to pack images and weights, and to round.

    python benchmarks/overheads.py --dtype bfloat16 --match "3x3"

The products are left out, so this runs on any CPU, also one without instructions for them. A row
has the milliseconds of that on one thread, those of our convolution of float32 with its products,
and how much of them the first are. Where products of a type run at r times the rate of float32, a
layer becomes 1 / (overhead + 1 / r) times as fast.
"""

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch
from cases import Case
from cases.conv import conv
from measure import interleaved
from run import keep_freed_memory
from torch.utils.cpp_extension import include_paths

import torch_dnnl

HERE = Path(__file__).resolve()
DTYPES = ("bfloat16", "float16", "int8")


def without_products() -> None:
    """Starts this program again, with products that take no time."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "no_products.so")
        compiler = shlex.split(os.environ.get("CXX", "c++"))
        includes = [f"-I{path}" for path in include_paths()]
        source = HERE.with_name("no_products.cpp")
        subprocess.run(
            [*compiler, "-std=c++20", "-O2", "-shared", "-fPIC", *includes, source, "-o", library],
            check=True,
        )
        environment = os.environ | {"LD_PRELOAD": str(library)}
        sys.exit(subprocess.run([sys.executable, *sys.argv], env=environment).returncode)


def pairs(dtype: torch.dtype, match: str) -> Iterator[tuple[Case, Case]]:
    """The cases of a type, and those of float32: of int8, the results alone have a kernel."""
    floats = (c for c in conv("cpu", torch.float32) if dtype != torch.int8 or "result" in c.name)
    others = (c for c in conv("cpu", dtype) if dtype != torch.int8 or "float32" in c.name)
    for case, of_float in zip(others, floats, strict=True):
        if match in of_float.name:
            yield case, of_float


def main() -> None:
    parser = argparse.ArgumentParser(description="Time what convolution takes beside products.")
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES)
    parser.add_argument("--match", default="", help="only layers with this in their name")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each row")
    args = parser.parse_args()
    if "LD_PRELOAD" not in os.environ:
        without_products()
    torch.set_num_threads(1)
    keep_freed_memory()
    print(f"{'case':>36} {'overhead ms':>12} {'float32 ms':>11} {'ratio':>6}")
    for case, of_float in pairs(getattr(torch, args.dtype), args.match):

        def ours(case: Case = case) -> object:
            with torch_dnnl.conv_algorithm("brgemm"):
                return case.ours(*case.tensors)

        with suppress(NotImplementedError):
            overhead, floats = interleaved(
                ours, lambda c=of_float: c.ours(*c.tensors), budget=args.seconds
            )
            print(
                f"{case.name:>36} {overhead * 1e3:12.3f} {floats * 1e3:11.3f} "
                f"{overhead / floats:6.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
