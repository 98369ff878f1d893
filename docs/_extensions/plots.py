"""The pictures of docs/performance.md: a function for each, of the tables in benchmarks/results."""

import csv
import re
from pathlib import Path

import matplotlib.pyplot as plt

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"

Row = dict[str, str]

BLUE, ORANGE, GREEN = "tab:blue", "tab:orange", "tab:green"
CPUS = {"_cpu": ("AVX-512", BLUE), "_cpu_avx2": ("AVX2", ORANGE)}
TICKS = (0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)


def rows(file: str) -> list[Row]:
    with (RESULTS / f"{file}.csv").open() as lines:
        return list(csv.DictReader(lines))


def dots(axis, points: list[tuple[str, float]], names: list[str], **style) -> None:
    """A dot for each (name, ratio), in the line of its name."""
    places = {name: y for y, name in enumerate(names)}
    axis.scatter(
        [ratio for _, ratio in points], [places[name] for name, _ in points], s=18, **style
    )


def ratio_axis(axis, names: list[str], title: str) -> None:
    """An axis of ratios, logarithmic, with a line for each name, the first one on top."""
    axis.set(xscale="log", title=title, ylim=(len(names) - 0.5, -0.5))
    axis.set_yticks(range(len(names)), names, fontsize=8)
    low, high = axis.get_xlim()
    ticks = [tick for tick in TICKS if low <= tick <= high]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize=8)
    axis.minorticks_off()
    axis.axvline(1, color="black", linewidth=0.8)
    axis.grid(alpha=0.3)


def with_legend(figure, axis, ncols: int) -> None:
    """The legend of the axis, above all of them."""
    figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", ncols=ncols)


def of_cases(columns: list[tuple[str, dict[str, tuple[str, str]], str]], height: float) -> None:
    """A panel for each (title, files with their labels and colors, pass), a line for each case."""
    figure, axes = plt.subplots(
        1, len(columns), figsize=(7.2, height), layout="constrained", sharey=True, squeeze=False
    )
    for axis, (title, files, wanted) in zip(axes[0], columns, strict=True):
        names: list[str] = []
        for file, (label, color) in files.items():
            points = [
                (row["case"], float(row["ratio"])) for row in rows(file) if row["pass"] == wanted
            ]
            # A machine's table may be of before a case was added, or after.
            names += [name for name, _ in points if name not in names]
            dots(axis, points, names, color=color, label=label)
        ratio_axis(axis, names, title)
    with_legend(figure, axes[0, 0], ncols=2)
    figure.supxlabel("the other library's time / ours", fontsize=9)


def resample() -> None:
    """Every case of Resample on CPUs."""
    files = {f"resample{end}": style for end, style in CPUS.items()}
    of_cases([(title, files, title) for title in ("forward", "backward")], 7)


def images() -> None:
    """Single photographs."""
    files = {f"images{end}": style for end, style in CPUS.items()}
    of_cases([("single photographs", files, "forward")], 3)


def reorder() -> None:
    """Every case of Reorder on CPUs, beside torch."""
    files = {f"reorder{end}": style for end, style in CPUS.items()}
    of_cases([("conversions and quantization", files, "forward")], 7)


def of_layers(files: list[tuple[str, str, str]], kinds: dict[str, str]) -> None:
    """A panel for each layout: a line for each layer, colors by file, marks by kind of result.

    `files` are (name, label, color), `kinds` the ends of the names of cases and their marks.
    """
    figure, axes = plt.subplots(1, 2, figsize=(7.2, 6.5), layout="constrained", sharey=True)
    for axis, layout in zip(axes, ("ncx", "nxc"), strict=True):
        names: list[str] = []
        for file, label, color in files:
            for kind, marker in kinds.items():
                pattern = re.compile(rf"(\S+) {layout}( \w+)? {kind}")
                points = [
                    (match[1], float(row["ratio"]))
                    for row in rows(file)
                    if (match := pattern.fullmatch(row["case"]))
                ]
                names = names or [name for name, _ in points]
                of_both = {"color": color, "marker": marker, "label": f"{label}, {kind}"}
                dots(axis, points, names, alpha=0.7, **of_both)
        ratio_axis(axis, names, layout.upper())
    with_legend(figure, axes[0], ncols=len(files))
    figure.supxlabel("torch's time / ours", fontsize=9)


KINDS = {"result": "o", "data gradient": "<", "weights gradient": "s"}


def convolution() -> None:
    """Layers of networks in float32 on CPUs."""
    of_layers([(f"conv{end}", *style) for end, style in CPUS.items()], KINDS)


def convolution_bfloat16() -> None:
    """The same layers in bfloat16: on CPUs that have its products."""
    of_layers(
        [
            ("conv_cpu_bfloat16", "AVX512-BF16", BLUE),
            ("amx/conv_bfloat16", "AMX", GREEN),
            ("avx512_fp16/conv_bfloat16", "widened to float32", ORANGE),
        ],
        {"result": "o"},
    )


def cuda_resample() -> None:
    """Every case of Resample on an H200."""
    files = {"cuda/resample": ("H200", GREEN)}
    of_cases([(title, files, title) for title in ("forward", "backward")], 7)


def cuda_convolution() -> None:
    """Layers of networks on an H200, beside cuDNN's fastest algorithm."""
    of_layers(
        [("cuda/conv_float32", "float32", GREEN), ("cuda/conv_bfloat16", "bfloat16", BLUE)], KINDS
    )
