"""README's table and picture of speed-ups, made of the tables in benchmarks/results.

python benchmarks/summary.py            # prints the table
python benchmarks/summary.py --write    # puts it into README.md and draws the picture
"""

import argparse
import csv
import math
from collections.abc import Callable
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
README = Path(__file__).parents[1] / "README.md"
PICTURE = RESULTS / "speedups.png"
BEGIN, END = "<!-- speed table: begin -->\n", "<!-- speed table: end -->"

# The files of a machine end so. results/README.md says which machine it is.
MACHINES = {"": "AVX-512", "_avx2": "AVX2"}

Row = dict[str, str]

# What a line of the table says, the files that it is made of, and which of their rows.
GROUPS: list[tuple[str, str, Callable[[Row], bool]]] = [
    ("Resample, forward", "resample_cpu", lambda row: row["pass"] == "forward"),
    ("Resample, backward", "resample_cpu", lambda row: row["pass"] == "backward"),
    ("Resample, single photographs", "images_cpu", lambda row: True),
    ("Reorder", "reorder_cpu", lambda row: True),
    ("Convolution, results", "conv_cpu", lambda row: row["case"].endswith(" result")),
    ("Convolution, gradients", "conv_cpu", lambda row: row["case"].endswith(" gradient")),
    ("Convolution, unequal pads", "conv_cpu", lambda row: row["case"].endswith("F.pad")),
]


def ratios(file: str, machine: str, wanted: Callable[[Row], bool]) -> list[float]:
    """The peer's time / ours, of the rows that are wanted."""
    with (RESULTS / f"{file}{machine}.csv").open() as lines:
        return [float(row["ratio"]) for row in csv.DictReader(lines) if wanted(row)]


def mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def table() -> str:
    lines = [
        f"| | cases | {' | '.join(f'{name}: mean | worst' for name in MACHINES.values())} |",
        "|---" * (2 + 2 * len(MACHINES)) + "|",
    ]
    for label, file, wanted in GROUPS:
        columns = [ratios(file, machine, wanted) for machine in MACHINES]
        cells = [f"{mean(column):.1f} | {min(column):.2f}" for column in columns]
        lines.append(f"| {label} | {len(columns[0])} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def with_table(text: str) -> str:
    """The text with the table between its markers."""
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    return text[:begin] + table() + text[end:]


def draw(path: Path) -> None:
    """A dot for each case and a line at each geometric mean."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colors = dict(zip(MACHINES, ("tab:blue", "tab:orange"), strict=True))
    figure, axis = plt.subplots(figsize=(8, 3.6), layout="constrained")
    for y, (_, file, wanted) in enumerate(GROUPS):
        for machine, shift in zip(MACHINES, (-0.2, 0.2), strict=True):
            values = sorted(ratios(file, machine, wanted))
            heights = [y + shift + 0.12 * math.sin(2.4 * i) for i in range(len(values))]
            axis.scatter(values, heights, s=7, alpha=0.5, linewidths=0, color=colors[machine])
            middle = mean(values)
            axis.plot([middle] * 2, [y + shift - 0.18, y + shift + 0.18], color=colors[machine])
            axis.annotate(
                f"{middle:.1f}", (middle, y + shift), (3, 0), textcoords="offset points",
                va="center", fontsize=8, fontweight="bold",
                bbox={"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.5},
            )  # fmt: skip
    for machine, name in MACHINES.items():
        axis.scatter([], [], s=20, color=colors[machine], label=name)
    axis.set_yticks(range(len(GROUPS)), [label for label, _, _ in GROUPS])
    axis.invert_yaxis()
    axis.set(xscale="log", xlabel="torch's time / ours: a dot for each case, geometric means")
    ticks = [0.5, 1, 2, 5, 10, 20, 50]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.axvline(1, color="black", linewidth=0.8)
    axis.grid(axis="x", alpha=0.3)
    axis.legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description="README's table and picture of speed-ups.")
    parser.add_argument("--write", action="store_true", help="into README.md and the picture")
    if not parser.parse_args().write:
        print(table(), end="")
        return
    README.write_text(with_table(README.read_text()))
    draw(PICTURE)


if __name__ == "__main__":
    main()
