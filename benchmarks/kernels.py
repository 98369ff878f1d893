"""The kernels of a case beside each other: the chosen one, and every other one that supports it.

Each kernel is forced by its name and timed in turn with the chosen kernel. A case in which another
kernel is more than 15 % faster is timed a second time, and the smaller gain counts.
"""

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from cases import FEW, OPERATORS, Case
from measure import interleaved, seconds, timed

import torch_dnnl

# The family of kernels that computes the cases, and the context manager that chooses among them.
FAMILIES = {
    "resample": ("resample", "resample_algorithm"),
    "images": ("resample", "resample_algorithm"),
    "reorder": ("reorder", "reorder_algorithm"),
    "conv": ("convolution", "conv_algorithm"),
    "conv_transpose": ("convolution", "conv_algorithm"),
}

NOTABLE = 1.15  # times the speed of the chosen kernel
HOPELESS = 4.0  # times the chosen kernel's time: such a kernel is timed by one call only


@dataclass
class Comparison:
    op: str
    case: str
    passes: str
    chosen: str  # the kernels that ran; a backward pass may need several
    chosen_seconds: float
    others: dict[str, float]  # seconds of each

    @property
    def gain(self) -> float:
        """The speed of the fastest kernel, 1 if that is the chosen one."""
        return max(1.0, self.chosen_seconds / min(self.others.values(), default=math.inf))

    def __str__(self) -> str:
        ranking = sorted(self.others, key=lambda name: self.others[name])
        speeds = [f"{name} {self.chosen_seconds / self.others[name]:.2f}" for name in ranking]
        return (
            f"{self.case:32} {self.passes:8} {self.chosen_seconds * 1e3:9.3f} {self.chosen:14} "
            f"{', '.join(speeds)}"
        )


def kernels_run(function: Callable[[], object]) -> str:
    """The names of the kernels that a call runs, as a profile shows them."""
    with torch.autograd.profiler.profile(use_kineto=False) as profile:
        function()
    prefix = "torch_dnnl::kernel::"
    names = [event.name for event in profile.function_events if event.name.startswith(prefix)]
    return " + ".join(dict.fromkeys(name.removeprefix(prefix) for name in names))


def compare(
    op: str, case: Case, passes: str, device: str, budget: float, names: Sequence[str]
) -> Comparison:
    choose = getattr(torch_dnnl, FAMILIES[op][1])

    def forced(name: str) -> Callable[[], object]:
        def ours(*tensors: torch.Tensor) -> torch.Tensor:
            with choose(name):
                return case.ours(*tensors)

        return timed(ours, case.tensors, passes)

    chosen = forced("auto")
    chosen_name = kernels_run(chosen)
    others, slow = {}, {}
    limit = HOPELESS * min(seconds(chosen, 1, device) for _ in range(2))
    for name in names:
        if name == chosen_name:
            continue
        try:
            function = forced(name)
            function()
        except (NotImplementedError, ValueError):  # not supported, or not of this operator
            continue
        once = seconds(function, 1, device)
        if once > limit:
            slow[name] = once
        else:
            others[name] = function
    share = budget * (1 + len(others)) / 2  # as much for each function as a row beside torch has
    chosen_seconds, *times = interleaved(
        chosen, *others.values(), device=device, budget=share, queued=True
    )
    measured = dict(zip(others, times, strict=True))
    return Comparison(op, case.name, passes, chosen_name, chosen_seconds, {**measured, **slow})


def confirmed(make: Callable[[], Comparison]) -> Comparison:
    """A comparison; one with a notable gain is repeated."""
    first = make()
    return first if first.gain <= NOTABLE else min(first, make(), key=lambda one: one.gain)


def compare_kernels(
    ops: Sequence[str],
    device: str,
    passes: Sequence[str],
    budget: float,
    *,
    wanted: Sequence[str] = ("all",),
    reference: bool = False,
    few: bool = False,
    match: str = "",
    table: str | None = None,
    **options: torch.dtype,
) -> list[Comparison]:
    """Prints a line for each case and the cases that another kernel computes notably faster.

    Args:
        wanted: names of kernels, or "all".
        reference: whether "all" has the reference, too, which is slow.
        few: whether to time the small fixed set of cases only.
        match: only cases with this in their name.
        table: a CSV file for the times.
        options: of the cases.
    """
    listed = torch_dnnl.build_info()["kernels"].get(device, {})
    found: list[Comparison] = []
    for op in ops:
        if op not in FAMILIES or FAMILIES[op][0] not in listed:
            print(f"\n{op}: there is no list of its kernels")
            continue
        names = listed[FAMILIES[op][0]]
        if "all" in wanted:
            names = [name for name in names if reference or name != "reference"]
        else:
            names = [name for name in names if name in wanted]
        print(f"\n{op}\n{'case':32} {'pass':8} {'ms':>9} {'chosen kernel':14} speed of the others")
        for case in OPERATORS[op](device, **options):
            if match not in case.name or (few and not case.name.startswith(FEW[op])):
                continue
            for what in passes:
                if what != "forward" and (case.graph or not case.differentiable):
                    continue

                def make(case: Case = case, what: str = what) -> Comparison:
                    return compare(op, case, what, device, budget, names)  # noqa: B023

                found.append(confirmed(make))
                print(found[-1], flush=True)
    report(found)
    if table:
        write(table, found)
    return found


def report(found: Sequence[Comparison]) -> None:
    if not found:
        return
    notable = [one for one in found if one.gain > NOTABLE]
    print(f"\nAnother kernel is more than 15 % faster than the chosen one in {len(notable)} cases:")
    for one in sorted(notable, key=lambda one: -one.gain):
        best = min(one.others, key=lambda name: one.others[name])
        print(f"  {one.gain:.2f}  {one.op}: {one.case}, {one.passes}: {best}, not {one.chosen}")
    lost = math.exp(sum(math.log(one.gain) for one in found) / len(found))
    print(f"The choices lose {lost - 1:.1%} (geometric mean of {len(found)} cases).")


def write(path: str, found: Sequence[Comparison]) -> None:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["op", "case", "pass", "chosen", "kernel", "ms", "chosen / this"])
        for one in found:
            times = {one.chosen: one.chosen_seconds, **one.others}
            writer.writerows(
                [one.op, one.case, one.passes, one.chosen, name, t * 1e3, one.chosen_seconds / t]
                for name, t in times.items()
            )
