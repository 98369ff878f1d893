"""Processes and threads around the operators: fork, spawn, workers of a DataLoader, many threads,
numbers of threads that change, an interrupt."""

import multiprocessing
import os
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from calls import problems, rows
from failing import bits
from threads import threads
from torch.utils.data import DataLoader, Dataset

import torch_dnnl
import torch_dnnl.functional as D

PATIENCE = 300  # seconds, for a new process on a machine that is busy
IMAGE = torch.linspace(-2, 2, 2 * 64 * 40 * 37).view(2, 64, 40, 37)
WEIGHT = torch.linspace(-1, 1, 64 * 64 * 9).view(64, 64, 3, 3).roll(7, 0)


def everything():
    """An operator of each kind, large enough for several threads."""
    y = D.conv2d(IMAGE, WEIGHT, padding=1)
    small = D.interpolate(y, scale_factor=0.7, mode="bicubic", antialias=True)
    blocked = D.reorder(small, "nChw16c", dtype=torch.bfloat16)
    quantized = D.reorder(y, dtype=torch.uint8, dst_scale=0.5, dst_zero_point=128)
    weights = D.reorder(WEIGHT, dtype=torch.int8, dst_scale=0.01)
    sums = D.quantized_convolution(
        *(quantized, weights), dst_scale=90.0, data_format="NCX", weights_format="OIX"
    )
    return y, small, blocked, quantized, sums


def same(tensors, expected):
    return all(map(torch.equal, bits(tensors), bits(expected)))


def work(count, connection):
    torch.set_num_threads(count)
    connection.send(everything())  # by shared memory, which this process owns
    connection.recv()


@pytest.mark.parametrize(("method", "count"), [("fork", 1), ("spawn", 2)])
def test_processes(method, count):
    """A fork after the operators have run on several threads: those are not in the child, and
    OpenMP, which does not know, would wait for them. So it computes on one, as a worker of a
    DataLoader does."""
    with threads(2):
        expected = everything()
        context = multiprocessing.get_context(method)
        here, there = context.Pipe()
        child = context.Process(target=work, args=(count, there), daemon=True)
        child.start()
        assert here.poll(PATIENCE), "no answer"
        assert same(here.recv(), expected)
        here.send(None)
        child.join(PATIENCE)
        assert child.exitcode == 0
        assert same(everything(), expected)


def test_fork_of_a_fork():
    with threads(2):
        expected = everything()
        child = os.fork()
        if child == 0:
            torch.set_num_threads(1)
            grandchild = os.fork()
            if grandchild == 0:
                os._exit(0 if same(everything(), expected) else 1)
            _, status = os.waitpid(grandchild, 0)
            os._exit(0 if same(everything(), expected) and status == 0 else 1)
        _, status = os.waitpid(child, 0)
        assert status == 0
        assert same(everything(), expected)


class Photographs(Dataset):
    """Decoded, scaled and resized by the operators."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        pixels = (torch.arange(40 * 50 * 3) * (index + 7) % 256).to(torch.uint8).view(1, 40, 50, 3)
        image = D.reorder(pixels.permute(0, 3, 1, 2), "nchw", dtype=torch.float32, scale=1 / 255)
        image = D.interpolate(image, size=(24, 20), mode="bilinear", antialias=True)
        return D.conv2d(image, torch.ones(4, 3, 3, 3) / 27)[0]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_a_data_loader(method):
    with threads(2):
        everything()  # before the fork
        expected = list(DataLoader(Photographs(), batch_size=4))
        loader = DataLoader(
            Photographs(),
            batch_size=4,
            num_workers=2 if method == "fork" else 1,
            multiprocessing_context=method,
            timeout=PATIENCE,
        )
        assert same(list(loader), expected)


def test_64_threads():
    """Each makes all calls in an order of its own, beginning at the same time."""
    calls = [call for _, call in [*rows(), *problems(1)]]
    expected = [bits(call()) for call in calls]
    start = threading.Barrier(64)

    def work(seed):
        order = list(range(len(calls)))
        random.Random(seed).shuffle(order)
        start.wait()
        return [i for i in order if not all(map(torch.equal, bits(calls[i]()), expected[i]))]

    with threads(2), ThreadPoolExecutor(64) as pool:
        assert list(pool.map(work, range(64))) == [[]] * 64


def test_threads_change_between_calls():
    expected = bits(everything())
    for count in (1, 5, 2, 16, 1, 3):
        with threads(count):
            assert same(everything(), expected)
            torch.set_num_threads(7 - count % 5)
            assert same(everything(), expected)


def test_threads_change_during_calls():
    expected = bits(everything())
    done = threading.Event()

    def change():
        counts = random.Random(0)
        while not done.is_set():
            torch.set_num_threads(counts.choice([1, 2, 3, 4]))

    with threads(2):
        changing = threading.Thread(target=change)
        changing.start()
        try:
            assert all(same(everything(), expected) for _ in range(20))
        finally:
            done.set()
            changing.join()


def call_until(end, call):
    while time.perf_counter() < end:
        call()


@pytest.mark.parametrize("operator", ["conv", "resample", "reorder"])
def test_interrupt(operator):
    """It is delivered after the call, as by any call that holds no lock of Python's; then the
    process is as before."""
    image = torch.randn(1, 64, 48, 48)
    calls = {
        "conv": lambda: D.conv2d(image, WEIGHT, padding=1),
        "resample": lambda: D.interpolate(image, scale_factor=2.0, mode="bicubic"),
        "reorder": lambda: D.reorder(image, "nhwc"),
    }
    chosen = (
        torch_dnnl.conv_algorithm("reference"),
        torch_dnnl.resample_algorithm("reference"),
        torch_dnnl.reorder_algorithm("reference"),
    )
    with threads(1), chosen[0], chosen[1], chosen[2]:
        expected = calls[operator]()
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            timer = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                call_until(time.perf_counter() + 60, calls[operator])
        finally:
            timer.join()
            signal.signal(signal.SIGINT, before)
        assert torch.equal(calls[operator](), expected)
