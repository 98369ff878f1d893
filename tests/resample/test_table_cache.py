"""The tables of weights that are kept between calls: bounded, shared by threads, left alone by
tracing."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_dnnl.functional as D


def resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_memory_is_bounded():
    """A table of a megabyte or more for each of many sizes, forward and backward."""
    x = torch.rand(1, 1, 64, requires_grad=True)

    def resize(size):
        D.resample(x, size, mode="cubic").sum().backward()

    for size in range(100_000, 100_008):  # until the cache is full
        resize(size)
    before = resident_bytes()
    for size in range(110_000, 110_060):
        resize(size)
    assert resident_bytes() - before < 60e6


def calls(x, sizes):
    """Forward and backward over several sizes and modes."""
    results = []
    for size in sizes:
        for options in ({}, {"mode": "cubic", "antialias": True}, {"mode": "nearest"}):
            leaf = x.detach().requires_grad_()
            y = D.resample(leaf, size, **options)
            results += [y.detach(), *torch.autograd.grad(y.square().sum(), leaf)]
    return results


def test_threads_share_it():
    """More sizes than are kept, each thread in its own order, all starting at once."""
    x = torch.rand(2, 3, 19, 23)
    sizes = [(h, w) for h in range(5, 30, 2) for w in (7, 16, 40)]
    expected = dict(zip(sizes, (calls(x, [size]) for size in sizes)))
    start = threading.Barrier(8)

    def work(shift):
        start.wait()
        order = sizes[shift:] + sizes[:shift]
        return [(size, calls(x, [size])) for size in order]

    with ThreadPoolExecutor(8) as pool:
        for results in pool.map(work, range(0, 40, 5)):
            for size, tensors in results:
                assert all(map(torch.equal, tensors, expected[size]))


def test_tracing_does_not_fill_it():
    """Sizes whose tables no machine could hold."""
    with FakeTensorMode():
        x = torch.rand(1, 1, 9, requires_grad=True)
        y = D.resample(x, 2**40, mode="lanczos5")
        y.sum().backward()
        assert y.shape == (1, 1, 2**40) and x.grad.shape == x.shape


def test_compiled_calls_look_up_their_own_sizes():
    """One graph, many sizes, from several threads."""
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, dynamic=True, backend="aot_eager")
    def halve(x):
        return D.resample(x, scale_factor=0.5, mode="cubic", antialias=True)

    images = [torch.rand(1, 2, n, n + 3) for n in range(8, 40, 2)]
    expected = [D.resample(x, None, 0.5, mode="cubic", antialias=True) for x in images]
    halve(images[0])  # compiles
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            assert all(map(torch.equal, pool.map(halve, images), expected))
