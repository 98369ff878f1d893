"""Times whole models of other libraries, as they are and with torch_dnnl.

    pip install torchvision timm transformers diffusers
    python benchmarks/models.py --ways convert --dtype bfloat16
    python benchmarks/models.py --match resnet --layouts nchw --modes training --csv models.csv
    python benchmarks/models.py --modes inference --ways optimize --peer convert --all --batch 1
    python benchmarks/models.py --device cuda --batch 32 --ways accelerate,convert

The ways: `eager` is the model itself, `accelerate` calls it within `torch_dnnl.accelerate()`,
`convert` is converted by `torch_dnnl.convert`. `optimize` is what `torch_dnnl.optimize` returns,
for inference alone. `inductor` is compiled by torch, for inference with its weights frozen, and
`compiled` is the same with `backend="torch_dnnl"`. Its peer is `inductor`, that of the other ways
is `eager`; `--peer` sets one for all. Peers are always timed.

Each model is timed in a process of its own. The models have random weights; one whose library is
not installed is left out, and named. A row has the median milliseconds of a call, all ways in turn
and warm; the peer's time divided by this one;
on a GPU the milliseconds of its kernels alone, without what waits for the host;
the most memory of torch's allocator that a call holds, in MB; and the error against the model in
float64, of the result and after a training step of all gradients: the norm of the difference,
relative to the norm. A training step is the forward pass, the mean square of the result as its
loss, the backward pass and a step of SGD; layers that drop elements at random do not.
"""

import argparse
import contextlib
import copy
import csv
import importlib.util
import math
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

import torch
from measure import interleaved, kernel_time, most_memory
from networks import MODELS, MORE_MODELS, Model
from torch import Tensor, nn

import torch_dnnl


@dataclass
class Way:
    prepare: Callable[["Run"], Callable[..., object]]
    peer: str = "eager"
    modes: tuple[str, ...] = ("inference", "training")
    within: Callable[[], contextlib.AbstractContextManager[object]] = contextlib.nullcontext


WAYS = {
    "eager": Way(lambda run: run.module),
    "accelerate": Way(lambda run: run.module, within=torch_dnnl.accelerate),
    "convert": Way(lambda run: torch_dnnl.convert(run.module, inplace=True)),
    "optimize": Way(
        lambda run: torch_dnnl.optimize(
            run.module, (run.x,), example_kwargs=dict(run.model.arguments)
        ),
        modes=("inference",),
    ),
    "inductor": Way(lambda run: torch.compile(run.module), "inductor"),
    "compiled": Way(lambda run: torch.compile(run.module, backend="torch_dnnl"), "inductor"),
}


def in_layout(value: nn.Module | Tensor, layout: str) -> nn.Module | Tensor:
    is_image = isinstance(value, nn.Module) or value.dim() == 4
    return value.to(memory_format=torch.channels_last) if layout == "nhwc" and is_image else value


def set_mode(module: nn.Module, mode: str) -> nn.Module:
    module.train(mode == "training")
    for layer in module.modules():
        if "Drop" in type(layer).__name__ or "StochasticDepth" in type(layer).__name__:
            layer.eval()
    return module


class Run:
    """A copy of a model, one way."""

    def __init__(self, model: Model, exact: nn.Module, x: Tensor, mode: str, way: Way) -> None:
        self.model, self.x, self.mode, self.way = model, x, mode, way
        self.module = set_mode(copy.deepcopy(exact).to(x), mode)
        self.module = in_layout(self.module, self.layout)
        self.prepared = way.prepare(self)
        self.parameters = list(self.module.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr=1e-6)

    @property
    def layout(self) -> str:
        is_nhwc = self.x.dim() == 4 and self.x.is_contiguous(memory_format=torch.channels_last)
        return "nhwc" if is_nhwc else "nchw"

    def result(self) -> Tensor:
        with self.way.within():
            return self.model.run(self.prepared, self.x)

    def loss(self) -> Tensor:
        result = self.result()
        return result.to(torch.promote_types(result.dtype, torch.float32)).square().mean()

    def gradients(self) -> Tensor:
        """Of all parameters, one after the other."""
        self.optimizer.zero_grad(set_to_none=True)
        self.loss().backward()
        return torch.cat([p.grad.flatten().double() for p in self.parameters if p.grad is not None])

    def infer(self) -> None:
        with torch.no_grad():
            self.result()

    def train(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.loss().backward()
        self.optimizer.step()

    def call(self) -> None:
        self.infer() if self.mode == "inference" else self.train()


def relative(value: Tensor, exact: Tensor) -> float:
    return ((value.double() - exact).norm() / exact.norm()).item()


def rows_of(name: str, ways: list[str], args: argparse.Namespace) -> list[dict]:
    torch._inductor.config.freezing = True  # of models that need no gradients
    rows = []
    model = (MODELS | MORE_MODELS)[name]
    torch.manual_seed(0)
    exact = model.make().double()  # on the CPU, which results of a GPU are compared with too
    sizes = (args.batch or model.shape[0], *model.shape[1:])
    x = torch.randn(sizes, dtype=torch.float64)
    for mode in args.modes.split(","):
        reference = Run(model, exact, x, mode, WAYS["eager"])
        with torch.no_grad():
            expected = reference.result().to(args.device)
        gradients = reference.gradients().to(args.device) if mode == "training" else None
        for layout in args.layouts.split(","):
            image = in_layout(x.to(args.device, getattr(torch, args.dtype)), layout)
            runs = {
                way: Run(model, exact, image, mode, WAYS[way])
                for way in ways
                if mode in WAYS[way].modes
            }
            errors = {}
            for way, run in runs.items():
                with torch.no_grad():
                    errors[way] = [relative(run.result(), expected), math.nan]
                if gradients is not None:
                    errors[way][1] = relative(run.gradients(), gradients)
            calls = [run.call for run in runs.values()]
            budget = args.seconds * len(calls)
            times = interleaved(*calls, device=args.device, rounds=9, budget=budget)
            times = dict(zip(runs, times, strict=True))
            for way, run in runs.items():
                rows.append(
                    {
                        "model": name,
                        "batch": sizes[0],
                        "layout": layout,
                        "mode": mode,
                        "dtype": args.dtype,
                        "way": way,
                        "ms": times[way] * 1e3,
                        "ratio": times[args.peer or WAYS[way].peer] / times[way],
                        "kernels": kernel_time(run.call) * 1e3 if image.is_cuda else math.nan,
                        "MB": most_memory(run.call, args.device) / 1e6,
                        "error": errors[way][0],
                        "gradient_error": errors[way][1],
                    }
                )
            del runs
            torch._dynamo.reset()
    return rows


def rows(names: list[str], ways: list[str], args: argparse.Namespace) -> Iterator[dict]:
    """Each model has a process of its own: an allocator that had to serve a large model keeps the
    memory that a small one has to ask the system for."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        for found in pool.map(rows_of, names, repeat(ways), repeat(args)):
            yield from found


def with_peers(ways: list[str], peer: str | None) -> list[str]:
    wanted = {*ways, *(peer or WAYS[way].peer for way in ways)}
    return [way for way in WAYS if way in wanted]


def print_means(done: list[dict], peer: str | None) -> None:
    for mode in ("inference", "training"):
        for way in WAYS:
            ratios = [row["ratio"] for row in done if row["way"] == way and row["mode"] == mode]
            other = peer or WAYS[way].peer
            if ratios and other != way:
                mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
                print(f"{mode}, {way}: geometric mean {mean:.2f}, worst {min(ratios):.2f}", end="")
                print(f" of {len(ratios)} beside {other}")


def write(path: Path, done: list[dict]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, done[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(done)


def printed(rows: Iterator[dict], line: str, path: Path | None) -> list[dict]:
    """All rows. Each is printed and written at once: a run that is stopped leaves those before."""
    done = []
    for row in rows:
        done.append(row)
        if path:
            write(path, done)
        print(line.format(**row), flush=True)
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description="Time whole models of other libraries.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--batch", type=int, help="default: each model's own, for a CPU")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--ways", default=",".join(WAYS), help="default: all")
    parser.add_argument("--peer", choices=WAYS, help="default: that of each way")
    parser.add_argument("--layouts", default="nchw,nhwc")
    parser.add_argument("--modes", default="inference,training")
    parser.add_argument("--match", default="", help="only models with this in their name")
    parser.add_argument("--all", action="store_true", help="twelve models more, for inference")
    parser.add_argument("--seconds", type=float, default=8.0, help="for each row")
    parser.add_argument("--csv", type=Path, help="where the rows are written")
    args = parser.parse_args()
    ways = args.ways.split(",")
    if unknown := sorted(set(ways) - WAYS.keys()):
        parser.error(f"--ways: expected names of {', '.join(WAYS)}, got {', '.join(unknown)}")
    ways = with_peers(ways, args.peer)
    models = MODELS | MORE_MODELS if args.all else MODELS
    named = [name for name in models if args.match in name]
    if not named:
        parser.error(f"--match: expected a part of {', '.join(models)}, got {args.match}")
    names = [name for name in named if importlib.util.find_spec(models[name].library)]
    if missing := sorted({models[name].library for name in named if name not in names}):
        print(f"not installed, and left out: {', '.join(missing)}")
    where = f"{torch.get_num_threads()} threads"
    if args.device == "cuda":
        where = torch.cuda.get_device_name()
    print(f"torch {torch.__version__}, {where}")
    print(f"{'model':>18} {'':4} {'':9} {'way':10} {'ms':>9} {'ratio':>6}", end="")
    print(f" {'kernels':>8} {'MB':>7}", end="")
    print(f" {'error':>8} {'gradient':>8}")
    line = (
        "{model:>18} {layout} {mode:9} {way:10} {ms:9.2f} {ratio:6.2f} {kernels:8.2f} {MB:7.1f}"
        " {error:8.1e} {gradient_error:8.1e}"
    )
    print_means(printed(rows(names, ways, args), line, args.csv), args.peer)


if __name__ == "__main__":
    main()
