"""Threads that call operators, train, and replace weights, in a process that forks meanwhile.

    python tests/sanitizers/busy_threads.py [rounds]

Each result has the bits that one thread alone computes. ThreadSanitizer looks at the libraries, if
this runs under it.
"""

import copy
import os
import random
import sys
import threading
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import torch_dnnl
from torch_dnnl import functional

THREADS, FORKS, SECONDS_OF_CHILD = 6, 8, 120

torch.manual_seed(0)
IMAGE, WEIGHT, DEPTHWISE = (
    torch.randn(shape) for shape in [(2, 16, 20, 19), (24, 16, 3, 3), (16, 1, 3, 3)]
)
MODEL = nn.Sequential(
    torch_dnnl.nn.Conv2d(16, 8, 3, padding=1),
    nn.ReLU(),
    torch_dnnl.nn.Resample(scale_factor=2, mode="linear"),
    torch_dnnl.nn.Conv2d(8, 8, 5, groups=8),
)
SHARED = torch_dnnl.nn.Conv2d(16, 24, 3, bias=False)
PARAMETERS = [nn.Parameter(WEIGHT), nn.Parameter(2 * WEIGHT)]


def call(number: int) -> list[Tensor]:
    """Every family. There are more sizes than a cache of tables keeps."""
    choose = random.Random(number)
    size = [choose.randint(1, 60), choose.randint(1, 60)]
    mode = choose.choice(["nearest", "linear", "cubic"])
    x = IMAGE if number % 2 else IMAGE.contiguous(memory_format=torch.channels_last)
    return [
        functional.resample(x, size, mode=mode, antialias=mode != "nearest"),
        functional.reorder(x, "nChw16c", dtype=torch.int8, dst_scale=0.05),
        functional.conv2d(x, WEIGHT, padding=1),
        functional.conv2d(x, DEPTHWISE, groups=16, stride=2),
        functional.conv2d(x.bfloat16(), WEIGHT.bfloat16(), dilation=2),
    ]


def train(number: int) -> list[Tensor]:
    model = copy.deepcopy(MODEL)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3 * (1 + number % 3))
    for _ in range(2):
        optimizer.zero_grad()
        model(IMAGE).square().mean().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def replace(number: int) -> list[Tensor]:
    """The weights that others call with at the same time; theirs are the old or the new ones."""
    SHARED.weight = PARAMETERS[number % 2]
    result = SHARED(IMAGE).detach()
    assert any(torch.equal(result, one) for one in OF_PARAMETERS)
    return []


def same(compute: Callable[[int], list[Tensor]], number: int, expected: list[Tensor]) -> None:
    for result, alone in zip(compute(number), expected, strict=True):
        assert torch.equal(result, alone), (compute.__name__, number)


def run_forked(number: int) -> None:
    """A call in a child, which has one thread, as the workers of a DataLoader do."""
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)
        same(call, number, EXPECTED[call][number])
        os._exit(0)
    until = time.monotonic() + SECONDS_OF_CHILD
    while (ended := os.waitpid(child, os.WNOHANG))[0] == 0:
        assert time.monotonic() < until, "a forked process waits for ever"
        time.sleep(0.01)
    assert ended[1] == 0, ended


def main(rounds: int) -> None:
    failures: list[BaseException] = []

    def run(thread: int) -> None:
        compute = (call, call, train, replace)[thread % 4]
        try:
            for number in range(thread, thread + rounds):
                same(compute, number, EXPECTED[compute][number])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for number in range(FORKS):
        run_forked(number)
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    print(f"{THREADS} threads, {rounds} rounds, {FORKS} forks: same bits")


if __name__ == "__main__":
    torch.set_num_threads(2)
    ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    OF_PARAMETERS = [functional.conv2d(IMAGE, weight.detach()) for weight in PARAMETERS]
    EXPECTED = {
        compute: [compute(number) for number in range(ROUNDS + THREADS)]
        for compute in (call, train, replace)
    }
    main(ROUNDS)
