"""Hashes of the results of random problems, to see whether a change keeps every bit.

    python tools/result_bits.py before.json      # with the old build, for instance in a worktree
    python tools/result_bits.py after.json       # with the new one
    python tools/result_bits.py before.json --compare after.json

ATEN_CPU_CAPABILITY chooses the library, as everywhere.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from random_problems import FAMILIES, problem


def bits(result: torch.Tensor) -> str:
    """Of the values and of the strides, which are part of what a caller gets."""
    data = result.clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(data + str(result.stride()).encode()).hexdigest()[:16]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--compare", type=Path, metavar="OTHER", help="instead of computing")
    parser.add_argument("--problems", type=int, default=600, help="of each family (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--families", nargs="*", choices=FAMILIES, default=list(FAMILIES))
    args = parser.parse_args()
    if args.compare:
        ours, theirs = (json.loads(file.read_text()) for file in (args.file, args.compare))
        common = ours.keys() & theirs.keys()
        differing = sorted(name for name in common if ours[name] != theirs[name])
        print(f"{len(common)} compared, {len(differing)} differ", *differing[:20], sep="\n")
        return min(len(differing) + (not common), 1)
    hashes = {}
    for family in args.families:
        for number in range(args.problems):
            case = problem(family, args.seed, number)
            for operator in case.calls:
                hashes[f"{operator} {number}: {case.text}"] = bits(case.run(operator, "auto"))
    args.file.write_text(json.dumps(hashes, indent=0))
    print(f"{len(hashes)} results of {torch.__version__} on {torch.get_num_threads()} threads")
    return 0


if __name__ == "__main__":
    sys.exit(main())
