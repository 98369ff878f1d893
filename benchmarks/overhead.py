"""What a call costs before any arithmetic: each function beside torch's at 1x1x4x4 float32.

    python benchmarks/overhead.py

Calls of ours and of torch's alternate in batches; the figures are medians of the batches, in
microseconds, with one thread.
"""

import statistics
import timeit

import torch
import torch.nn.functional as F

import torch_dnnl.functional as D

BATCHES, CALLS = 30, 500


def cases(x, w):
    nhwc, xio = x.movedim(1, -1), w.movedim((0, 1), (-1, -2))
    for label, kwargs in [
        ("nearest, factor", {"scale_factor": 2}),
        ("nearest, size", {"size": (8, 8)}),
        ("bilinear, factor", {"scale_factor": 2, "mode": "bilinear"}),
        ("bilinear, size", {"size": (8, 8), "mode": "bilinear"}),
        ("bicubic, factor", {"scale_factor": 2, "mode": "bicubic"}),
    ]:
        yield (
            f"interpolate {label}",
            lambda kwargs=kwargs: D.interpolate(x, **kwargs),
            lambda kwargs=kwargs: F.interpolate(x, **kwargs),
        )
    yield (
        "resample (F.interpolate bilinear)",
        lambda: D.resample(x, (8, 8)),
        lambda: F.interpolate(x, (8, 8), mode="bilinear"),
    )
    yield "conv2d", lambda: D.conv2d(x, w), lambda: F.conv2d(x, w)
    yield (
        "conv2d, padding=1",
        lambda: D.conv2d(x, w, padding=1),
        lambda: F.conv2d(x, w, padding=1),
    )
    yield "convolution (F.conv2d)", lambda: D.convolution(nhwc, xio), lambda: F.conv2d(x, w)
    yield (
        "reorder to bfloat16 (Tensor.to)",
        lambda: D.reorder(x, dtype=torch.bfloat16),
        lambda: x.to(torch.bfloat16),
    )
    yield (
        "reorder to nhwc (contiguous)",
        lambda: D.reorder(x, "nhwc"),
        lambda: x.contiguous(memory_format=torch.channels_last),
    )


def interleaved(ours, theirs):
    times = ([], [])
    for _ in range(BATCHES):
        for function, series in zip((ours, theirs), times, strict=True):
            series.append(timeit.timeit(function, number=CALLS) / CALLS * 1e6)
    return [statistics.median(series) for series in times]


def main():
    torch.set_num_threads(1)
    print(f"{'call':36}{'gradient':>9}{'ours':>8}{'torch':>8}{'ratio':>7}")
    for requires_grad in (False, True):
        x = torch.randn(1, 1, 4, 4, requires_grad=requires_grad)
        w = torch.randn(1, 1, 3, 3, requires_grad=requires_grad)
        for label, ours, theirs in cases(x, w):
            a, b = interleaved(ours, theirs)
            print(f"{label:36}{requires_grad!s:>9}{a:8.2f}{b:8.2f}{a / b:7.2f}", flush=True)


if __name__ == "__main__":
    main()
