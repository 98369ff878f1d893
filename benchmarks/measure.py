"""How functions are compared: in turn, warm, by the median.

The calls alternate, so that a machine whose speed drifts slows all of them down alike. Each series
of calls follows one of the same function that is not timed: it may take several calls until the
last cache holds what the function reads and writes, and not what another one left there. A GPU
times itself, by events. Kernels that take less time than their calls are queued behind a pause, so
that no launch is waited for.
"""

import itertools
import math
import statistics
import time
from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

Function = Callable[[], object]

GRAPH_CALLS = 32  # in one CUDA graph
CACHES = 4  # how many times the GPU's last cache the buffers in rotation are
MAX_COPIES = 32
GPU_CLOCK = 2e9  # Hz, or less
SHORT, FEW_CALLS = 5e-3, 4  # seconds


def timed(function: Callable, tensors: tuple[Tensor, ...], what: str) -> Callable[[], object]:
    """A call that makes one pass: "forward", "backward" alone, or "both"."""
    if what == "forward":
        return lambda: function(*tensors)
    leaves = [t.detach().requires_grad_() for t in tensors]
    result = function(*leaves)
    # Small integers, which are the same in every type.
    values = torch.arange(result.numel(), device=result.device) % 7 - 3
    grad = torch.empty_like(result).copy_(values.view(result.shape))
    if what == "backward":
        return lambda: torch.autograd.grad(result, leaves, grad, retain_graph=True)
    return lambda: torch.autograd.grad(function(*leaves), leaves, grad)


def seconds(function: Function, calls: int, device: str, *, queued: bool = False) -> float:
    """The mean seconds of a call, after as many calls that are not timed; `queued`: of a GPU's
    alone, which finds all of them in its queue."""
    begin = time.perf_counter()
    for _ in range(calls):
        function()
    if device == "cuda":
        if queued:
            pause = min(0.05, 1.5 * (time.perf_counter() - begin))
            torch.cuda._sleep(int(pause * GPU_CLOCK))
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            function()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / calls
    begin = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - begin) / calls


def interleaved(
    *functions: Function,
    device: str = "cpu",
    rounds: int = 15,
    budget: float = 3.0,
    queued: bool = False,
    pause: float = 0.0,
) -> list[float]:
    """The median seconds of a call of each function; about `budget` seconds in all.

    With a `pause`, each turn begins with so many seconds of sleep and with a call that is not
    timed: threads of another library go on to spin after its turn.
    """
    once = [seconds(function, 1, device) for function in functions]
    # Of short ones a few at least: one call does not bring back what others drove out of a cache.
    least = [1 if t > SHORT else FEW_CALLS for t in once]
    calls = [
        max(few, int(budget / rounds / len(functions) / 2 / t))
        for few, t in zip(least, once, strict=True)
    ]
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, n, series in zip(functions, calls, times, strict=True):
            if pause:
                time.sleep(pause)
                function()
            series.append(seconds(function, n, device, queued=queued))
    return [statistics.median(series) for series in times]


def most_memory(function: Function, device: str = "cpu") -> int:
    """The most bytes of torch's allocator that a call holds at once."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        function()
    events = profile.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    return max(itertools.accumulate((size for _, size in changes), initial=0))


def kernel_time(function: Function) -> float:
    """The seconds that a GPU computes in a call, without those in which it waits for the host."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        function()
        torch.cuda.synchronize()
    of_gpu = torch.autograd.DeviceType.CUDA
    events = [event for event in profile.key_averages() if event.device_type == of_gpu]
    return sum(event.self_device_time_total for event in events) / 1e6


def rotating(
    make: Callable[[tuple[Tensor, ...]], Function], tensors: tuple[Tensor, ...], size: int
) -> Function:
    """`make(tensors)`; on a GPU, whose last cache holds many a layer, each call takes the next copy
    of the tensors and writes to other memory than those before. `size`: bytes of a call."""
    if not tensors[0].is_cuda:
        return make(tensors)
    cache = torch.cuda.get_device_properties(tensors[0].device).L2_cache_size
    copies = min(MAX_COPIES, math.ceil(CACHES * cache / size))
    calls = itertools.cycle([make(tuple(t.clone() for t in tensors)) for _ in range(copies)])
    results: deque[object] = deque(maxlen=copies)
    return lambda: results.append(next(calls)())


def captured(function: Function) -> Function:
    """Replays a CUDA graph of GRAPH_CALLS calls."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # what a first call allocates for good is not captured
        function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_CALLS):
            function()
    return graph.replay


def matrix_rate(dtype: torch.dtype, device: str, budget: float = 0.3) -> float:
    """Multiplications and additions per second of a product of large random matrices."""
    n = 8192 if device == "cuda" else 2048
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    (time_of_one,) = interleaved(lambda: a @ b, device=device, budget=budget)
    return 2 * n**3 / time_of_one
