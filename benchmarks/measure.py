"""How two functions are compared: in turn, warm, by the median.

The calls alternate, so that a machine whose speed drifts slows both down alike. Each series of
calls follows one of the same function that is not timed: it may take several calls until the last
cache holds what the function reads and writes, and not what another one left there.
"""

import statistics
import time
from collections.abc import Callable

import torch

Function = Callable[[], object]


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(function: Function, calls: int, device: str) -> float:
    synchronize(device)
    start = time.perf_counter()
    for _ in range(calls):
        function()
    synchronize(device)
    return (time.perf_counter() - start) / calls


def interleaved(
    *functions: Function, device: str = "cpu", rounds: int = 15, budget: float = 3.0
) -> list[float]:
    """The median seconds of a call of each function; about `budget` seconds in all."""
    for function in functions:
        seconds(function, 1, device)  # warm
    once = [seconds(function, 1, device) for function in functions]
    calls = [max(1, int(budget / rounds / len(functions) / 2 / t)) for t in once]
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, n, series in zip(functions, calls, times, strict=True):
            seconds(function, n, device)
            series.append(seconds(function, n, device))
    return [statistics.median(series) for series in times]
