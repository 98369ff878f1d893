"""Tables and pictures of speed-ups, made of the tables in benchmarks/results: of operators in
README.md, of whole models in docs/compile.md, and beside inference engines in docs/performance.md.

python benchmarks/summary.py            # prints the tables
python benchmarks/summary.py --write    # puts them into the documents and draws the pictures
"""

import argparse
import csv
import math
from collections.abc import Callable, Sequence
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parents[1]
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


def rows(file: str, machine: str, wanted: Callable[[Row], bool]) -> list[Row]:
    with (RESULTS / f"{file}{machine}.csv").open() as lines:
        return [row for row in csv.DictReader(lines) if wanted(row)]


def ratios(file: str, wanted: Callable[[Row], bool]) -> list[list[float]]:
    """The peer's time / ours, for each machine, of the rows that are wanted and that all have."""
    tables = [rows(file, machine, wanted) for machine in MACHINES]
    common = set.intersection(*({row["case"] for row in table} for table in tables))
    return [[float(row["ratio"]) for row in table if row["case"] in common] for table in tables]


def mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def table() -> str:
    lines = [
        f"| | cases | {' | '.join(f'{name}: mean | worst' for name in MACHINES.values())} |",
        "|---" * (2 + 2 * len(MACHINES)) + "|",
    ]
    for label, file, wanted in GROUPS:
        columns = ratios(file, wanted)
        cells = [f"{mean(column):.1f} | {min(column):.2f}" for column in columns]
        lines.append(f"| {label} | {len(columns[0])} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


# What models.py calls the ways, as the table of whole models has them.
WAYS = {
    "accelerate": "accelerate()",
    "convert": "convert()",
    "optimize": "optimize()",
    "compiled": "compiled, beside Inductor",
}


def models(mode: str) -> dict[str, dict[str, float]]:
    """The peer's time / ours in each way, of each model in each layout."""
    found: dict[str, dict[str, float]] = {}
    with (RESULTS / "models_cpu.csv").open() as lines:
        for row in csv.DictReader(lines):
            if row["mode"] == mode and row["way"] in WAYS:
                of_model = found.setdefault(f"{row['model']}, {row['layout'].upper()}", {})
                of_model[row["way"]] = float(row["ratio"])
    return found


def measured_ways() -> dict[str, str]:
    """The ways of which there are results, and their labels."""
    found = {
        way for mode in ("inference", "training") for row in models(mode).values() for way in row
    }
    return {way: label for way, label in WAYS.items() if way in found}


def models_table() -> str:
    """Inference and, behind it, a training step."""
    ways = measured_ways()
    lines = [f"| | {' | '.join(ways.values())} |", "|---" * (1 + len(ways)) + "|"]
    inference, training = models("inference"), models("training")
    for name in inference:
        of_both = [(inference[name].get(way), training.get(name, {}).get(way)) for way in ways]
        cells = [", ".join(f"{r:.2f}" for r in pair if r is not None) for pair in of_both]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    for label, worst in (("geometric mean", False), ("worst", True)):
        cells = []
        for way in ways:
            columns = [
                [of_model[way] for of_model in of_mode.values() if way in of_model]
                for of_mode in (inference, training)
            ]
            kinds = [min(column) if worst else mean(column) for column in columns if column]
            cells.append(", ".join(f"**{value:.2f}**" for value in kinds))
        lines.append(f"| {label} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


# The engines of engines.py, as the table has them. The last three are torch_dnnl's.
ENGINES = {
    **{"eager": "eager", "inductor": "Inductor", "onnxruntime": "ONNX Runtime"},
    **{"openvino": "OpenVINO", "convert": "`convert`", "optimize": "`optimize`"},
    "compiled": "`backend`",
}
OTHERS, OWN = tuple(ENGINES)[:4], tuple(ENGINES)[4:]
ENGINE_FILES = {
    "engines_cpu": "float32, one image",
    "engines_cpu_batch4": "float32, four images",
}


def engines(file: str) -> dict[str, dict[str, Row]]:
    """For each network the rows of its engines."""
    found: dict[str, dict[str, Row]] = {}
    with (RESULTS / f"{file}.csv").open() as lines:
        for row in csv.DictReader(lines):
            found.setdefault(row["network"], {})[row["engine"]] = row
    return found


def ahead(of_network: dict[str, Row], own: Sequence[str] = OWN) -> float:
    """The time of the fastest other engine / that of the fastest of these."""
    fastest = [
        min(float(of_network[name]["ms"]) for name in names if name in of_network)
        for names in (OTHERS, own)
    ]
    return fastest[0] / fastest[1]


def engines_table() -> str:
    """Milliseconds of each network in float32; and beneath, means and worst cases of all tables."""
    first = engines("engines_cpu")
    lines = [f"| | {' | '.join(ENGINES.values())} | ahead |", "|---" * (2 + len(ENGINES)) + "|"]
    for network, rows in first.items():
        cells = [f"{float(rows[name]['ms']):.1f}" if name in rows else "" for name in ENGINES]
        lines.append(f"| {network} | {' | '.join(cells)} | {ahead(rows):.2f} |")
    lines += ["", "| | networks | ahead: mean | worst | `optimize` alone: mean | worst |"]
    lines.append("|---" * 6 + "|")
    for file, label in ENGINE_FILES.items():
        tables = engines(file).values()
        of_both = ([ahead(rows) for rows in tables], [ahead(rows, ["optimize"]) for rows in tables])
        cells = [f"{mean(values):.2f} | {min(values):.2f}" for values in of_both]
        lines.append(f"| {label} | {len(tables)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw_engines(path: Path) -> None:
    """A bar for each network: the fastest other engine's time / torch_dnnl's."""
    import matplotlib.pyplot as plt

    found = {name: ahead(rows) for name, rows in engines("engines_cpu").items()}
    names = sorted(found, key=found.__getitem__)
    figure, axis = plt.subplots(figsize=(8, 3.2), layout="constrained")
    colors = ["tab:blue" if found[name] >= 1 else "tab:orange" for name in names]
    axis.bar(names, [found[name] - 1 for name in names], bottom=1, color=colors)
    axis.axhline(1, color="black", linewidth=0.8)
    axis.set(title="fastest of eager, Inductor, ONNX Runtime, OpenVINO / torch_dnnl", yscale="log")
    ticks = [0.5, 0.7, 1, 1.4, 2]
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.grid(axis="y", alpha=0.3)
    axis.set_xticks(range(len(names)), names, rotation=40, ha="right", fontsize=8)
    figure.savefig(path, dpi=110)


def with_table(text: str, table: str) -> str:
    """The text with the table between its markers."""
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    return text[:begin] + table + text[end:]


def draw_models(path: Path) -> None:
    """A bar for each model and way, of what is saved or lost."""
    import matplotlib.pyplot as plt

    modes = [mode for mode in ("inference", "training") if models(mode)]
    size = (8, 1.6 + 2 * len(modes))
    figure, axes = plt.subplots(
        len(modes), figsize=size, layout="constrained", sharex=True, squeeze=False
    )
    names, ways = list(models("inference")), measured_ways()
    width = 0.75 / len(ways)
    for mode, axis in zip(modes, axes[:, 0], strict=True):
        found = models(mode)
        for i, (way, label) in enumerate(ways.items()):
            places = [x for x, name in enumerate(names) if way in found.get(name, {})]
            heights = [found[names[x]][way] - 1 for x in places]
            shifted = [x + width * (i - (len(ways) - 1) / 2) for x in places]
            axis.bar(shifted, heights, width=width, bottom=1, label=label if places else None)
        axis.axhline(1, color="black", linewidth=0.8)
        axis.set(title=f"{mode}: torch's time / ours", yscale="log")
        ticks = [0.8, 1, 1.25, 1.5, 2, 3]
        axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
        axis.grid(axis="y", alpha=0.3)
    axes[0, 0].legend(fontsize=8, ncols=2)
    axis.set_xticks(range(len(names)), names, rotation=40, ha="right", fontsize=8)
    figure.savefig(path, dpi=110)


def draw(path: Path) -> None:
    """A dot for each case and a line at each geometric mean."""
    import matplotlib.pyplot as plt

    colors = dict(zip(MACHINES, ("tab:blue", "tab:orange"), strict=True))
    figure, axis = plt.subplots(figsize=(8, 3.6), layout="constrained")
    for y, (_, file, wanted) in enumerate(GROUPS):
        columns = map(sorted, ratios(file, wanted))
        for machine, values, shift in zip(MACHINES, columns, (-0.2, 0.2), strict=True):
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
    tables = {
        ROOT / "README.md": table(),
        ROOT / "docs" / "compile.md": models_table(),
        ROOT / "docs" / "performance.md": engines_table(),
    }
    if not parser.parse_args().write:
        print("\n".join(tables.values()), end="")
        return
    for path, made in tables.items():
        path.write_text(with_table(path.read_text(), made))
    import matplotlib

    matplotlib.use("Agg")
    draw(RESULTS / "speedups.png")
    draw_models(RESULTS / "models.png")
    draw_engines(RESULTS / "engines.png")


if __name__ == "__main__":
    main()
