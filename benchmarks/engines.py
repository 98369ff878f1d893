"""Times networks as torch and torch_dnnl run them, and as inference engines do.

    pip install '.[engines]' torchvision timm transformers diffusers
    python benchmarks/engines.py
    python benchmarks/engines.py --batch 4 --match mobilenet --csv engines.csv
    python benchmarks/engines.py --dtype bfloat16 --engines optimize,compiled,openvino
    python benchmarks/engines.py --dtype int8 --match resnet50    # needs torchao, too

The engines: `eager` is the model itself. `convert`, `optimize` and `compiled` (frozen) are
torch_dnnl's ways, `inductor` (frozen) is torch's. `onnxruntime` and `openvino` read the file that
torch.onnx.export writes; they have as many threads as torch. OpenVINO computes in the type of
`--dtype`; ONNX Runtime computes bfloat16 on no CPU, and is left out there. `--dtype int8`: all
engines get the model that torchao's X86InductorQuantizer and convert_pt2e make, the ONNX file too;
errors are against that model, as eager computes it in float32.

Each network is timed in a process of its own, all engines in turn, warm, by the median. Between
turns is a pause, because threads of ONNX Runtime and of torch spin for a while. Another
process for each engine measures the memory: the most that the process holds after ten calls, and
the seconds until the first result. A row has the milliseconds of a call; the time of the fastest
engine that is not torch_dnnl's, divided by this one; the error against the model in float64, which
is the norm of the difference relative to the norm; the seconds to the first result; and the memory
in MB. Beneath are the geometric mean and the worst ratio of torch_dnnl's fastest way, and of each.
`--neighbour` keeps one core busy by another process.
"""

import argparse
import contextlib
import importlib.util
import io
import logging
import math
import multiprocessing
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from measure import interleaved
from models import printed, relative
from networks import ENGINE_NETWORKS, Model
from torch import Tensor, nn

import torch_dnnl

Call = Callable[[], object]
PAUSE = 0.1  # seconds, until the threads of the engine before are asleep


class Single(nn.Module):
    """A network with one input and one result."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model, self.module = model, model.make()

    def forward(self, x: Tensor) -> Tensor:
        return self.model.run(self.module, x)


class Network:
    def __init__(self, name: str, batch: int | None, dtype: torch.dtype) -> None:
        model = ENGINE_NETWORKS[name]
        torch.manual_seed(0)
        self.module = Single(model).eval()
        self.x = torch.randn(batch or model.shape[0], *model.shape[1:])
        self.dtype = dtype

    def exact(self) -> Tensor:
        if self.dtype == torch.int8:
            return self.quantized()(self.x)
        return self.module.double()(self.x.double())

    def in_type(self) -> tuple[nn.Module, Tensor]:
        if self.dtype == torch.int8:
            return self.quantized(), self.x
        return self.module.to(self.dtype), self.x.to(self.dtype)

    def in_float(self) -> nn.Module:
        """For the ONNX file: engines choose the type of the arithmetic themselves."""
        return self.quantized() if self.dtype == torch.int8 else self.module.float()

    def quantized(self) -> nn.Module:
        """The module with quantize and dequantize operators, calibrated by its input."""
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
        from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

        # strict: the quantizer takes each call of a ReLU for a module of its own.
        exported = torch.export.export(self.module, (self.x,), strict=True).module()
        config = x86.get_default_x86_inductor_quantization_config()
        prepared = prepare_pt2e(exported, x86.X86InductorQuantizer().set_global(config))
        prepared(self.x)
        return convert_pt2e(prepared)


def of_torch(prepare: Callable[[nn.Module, Tensor], Callable[[Tensor], Tensor]]) -> Callable:
    def engine(network: Network, _: Path) -> Call:
        module, x = network.in_type()
        prepared = prepare(module, x)
        return lambda: prepared(x)

    return engine


def onnx_file(network: Network, folder: Path) -> Path:
    path = folder / "network.onnx"
    if not path.exists():
        silent = contextlib.redirect_stdout(io.StringIO())
        with silent, warnings.catch_warnings(action="ignore"):
            logging.disable(logging.WARNING)
            torch.onnx.export(network.in_float(), (network.x,), path, dynamo=True)
            logging.disable(logging.NOTSET)
    return path


def of_onnxruntime(network: Network, folder: Path) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3
    path = onnx_file(network, folder)
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = {session.get_inputs()[0].name: network.x.numpy()}
    return lambda: session.run(None, inputs)[0]


def of_openvino(network: Network, folder: Path) -> Call:
    import openvino

    core = openvino.Core()
    options = {
        "INFERENCE_PRECISION_HINT": "bf16" if network.dtype == torch.bfloat16 else "f32",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
    }
    model = core.read_model(onnx_file(network, folder))
    model.reshape(tuple(network.x.shape))
    request = core.compile_model(model, "CPU", options).create_infer_request()
    x = network.x.numpy()
    return lambda: request.infer([x], share_inputs=True, share_outputs=True)[0]


WAYS = {
    "convert": of_torch(lambda module, x: torch_dnnl.convert(module)),
    "optimize": of_torch(lambda module, x: torch_dnnl.optimize(module, (x,))),
    "compiled": of_torch(lambda module, x: torch.compile(module, backend="torch_dnnl")),
}
OTHERS = {
    "eager": of_torch(lambda module, x: module),
    "inductor": of_torch(lambda module, x: torch.compile(module)),
    "onnxruntime": of_onnxruntime,
    "openvino": of_openvino,
}
ENGINES = OTHERS | WAYS


@contextlib.contextmanager
def neighbour(is_busy: bool) -> Iterator[None]:
    """Another process that keeps a core busy."""
    if not is_busy:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        try:
            yield
        finally:
            process.kill()


def is_available(engine: str, dtype: torch.dtype) -> bool:
    if engine == "onnxruntime" and dtype == torch.bfloat16:
        return False
    return engine not in ("onnxruntime", "openvino") or bool(importlib.util.find_spec(engine))


@torch.no_grad()
def times_of(name: str, engines: list[str], args: argparse.Namespace) -> list[dict]:
    torch._inductor.config.freezing = True
    network, *of_engines = (
        Network(name, args.batch, getattr(torch, args.dtype)) for _ in range(1 + len(engines))
    )
    exact = network.exact()
    with tempfile.TemporaryDirectory() as folder:
        calls = {
            engine: ENGINES[engine](own, Path(folder))
            for engine, own in zip(engines, of_engines, strict=True)
        }
        errors = {
            engine: relative(torch.as_tensor(call()), exact) for engine, call in calls.items()
        }
        budget = args.seconds * len(calls)
        with neighbour(args.neighbour):
            times = interleaved(*calls.values(), rounds=9, budget=budget, pause=PAUSE)
    return [
        {
            **{"network": name, "batch": len(network.x), "dtype": args.dtype, "engine": engine},
            **{"ms": seconds * 1e3, "error": errors[engine]},
        }
        for engine, seconds in zip(calls, times, strict=True)
    ]


@torch.no_grad()
def memory_of(name: str, engine: str, args: argparse.Namespace) -> dict:
    torch._inductor.config.freezing = True
    network = Network(name, args.batch, getattr(torch, args.dtype))
    with tempfile.TemporaryDirectory() as folder:
        if engine in ("onnxruntime", "openvino"):
            onnx_file(network, Path(folder))
        begin = time.perf_counter()
        call = ENGINES[engine](network, Path(folder))
        call()
        first = time.perf_counter() - begin
        for _ in range(9):
            call()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return {"first_s": first, "MB": most}


def alone(function: Callable, *args: object) -> object:
    """The result of a function in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pool.submit(function, *args).result()


def rows(names: list[str], engines: list[str], args: argparse.Namespace) -> Iterator[dict]:
    for name in names:
        found = alone(times_of, name, engines, args)
        others = [row["ms"] for row in found if row["engine"] in OTHERS]
        for row in found:
            row["ratio"] = min(others, default=math.nan) / row["ms"]
            nothing = {"first_s": math.nan, "MB": math.nan}
            row |= nothing if args.no_memory else alone(memory_of, name, row["engine"], args)
            yield row


def print_means(done: list[dict]) -> None:
    names = {row["network"] for row in done}
    for engine in ("the fastest of torch_dnnl", *ENGINES):
        of_engine = (engine,) if engine in ENGINES else tuple(WAYS)
        ratios = {
            name: max(
                (r["ratio"] for r in done if r["network"] == name and r["engine"] in of_engine),
                default=math.nan,
            )
            for name in names
        }
        if ratios and not any(map(math.isnan, ratios.values())):
            mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
            worst = min(ratios, key=ratios.__getitem__)
            print(f"{engine}: geometric mean {mean:.2f}, worst {ratios[worst]:.2f} ({worst})")


def main() -> None:
    parser = argparse.ArgumentParser(description="Time networks by torch_dnnl and by engines.")
    parser.add_argument("--batch", type=int, help="default: 1 for most networks")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "int8"])
    parser.add_argument("--engines", default=",".join(ENGINES), help="default: all")
    parser.add_argument("--match", default="", help="only networks with this in their name")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each engine of a network")
    parser.add_argument("--neighbour", action="store_true", help="another process is busy")
    parser.add_argument("--no-memory", action="store_true", help="times alone")
    parser.add_argument("--csv", type=Path, help="where the rows are written")
    args = parser.parse_args()
    wanted = args.engines.split(",")
    if unknown := sorted(set(wanted) - ENGINES.keys()):
        parser.error(f"--engines: expected names of {', '.join(ENGINES)}, got {', '.join(unknown)}")
    engines = [e for e in wanted if is_available(e, getattr(torch, args.dtype))]
    if missing := sorted(set(wanted) - set(engines)):
        print(f"not available, and left out: {', '.join(missing)}")
    named = [name for name in ENGINE_NETWORKS if args.match in name]
    if not named:
        expected = ", ".join(ENGINE_NETWORKS)
        parser.error(f"--match: expected a part of {expected}, got {args.match}")
    names = [name for name in named if importlib.util.find_spec(ENGINE_NETWORKS[name].library)]
    if left_out := sorted(set(named) - set(names)):
        print(f"their libraries are not installed, and left out: {', '.join(left_out)}")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"{'network':>22} {'engine':12} {'ms':>8} {'ratio':>6} {'error':>8}", end="")
    print(f" {'first s':>8} {'MB':>7}")
    line = "{network:>22} {engine:12} {ms:8.2f} {ratio:6.2f} {error:8.1e} {first_s:8.2f} {MB:7.0f}"
    print_means(printed(rows(names, engines, args), line, args.csv))


if __name__ == "__main__":
    main()
