"""Trains small networks of all layers for many steps of random sizes: memory must stay as it is.

    python tests/faults/soak.py --steps 100000 [--compiled]

Prints the resident set, in MB, after each tenth of the steps. It ends with 1 if there is more of it
in the end than after the first tenth, by --most MB.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import torch_dnnl
import torch_dnnl.functional as D

PAGE = 4096


def resident() -> float:
    """MB of memory that the process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 1e6


class Images(nn.Module):
    """Dense, pointwise, depthwise, strided and transposed layers, resizing, fake quantization."""

    def __init__(self) -> None:
        super().__init__()
        layers = torch_dnnl.nn
        self.stem = layers.Conv2d(3, 16, 3, padding="same_upper")
        self.depthwise = layers.Conv2d(16, 16, 3, padding=1, groups=16)
        self.pointwise = layers.Conv2d(16, 24, 1)
        self.strided = layers.Conv2d(24, 16, 3, stride=2, padding=1)
        self.grow = layers.ConvTranspose2d(16, 8, 4, stride=2, padding=1)
        self.up = layers.Upsample(scale_factor=2, mode="bilinear")
        self.shrink = layers.Resample(scale_factor=0.4, mode="cubic", antialias=True)
        step = nn.Parameter(torch.full((1, 8, 1, 1), 0.05))
        self.quantize = layers.Reorder(dtype=torch.int8, dst_scale=step, fake=True)
        self.head = layers.Conv(
            2, 8, 4, 3, auto_pad="same_lower", activation="silu", data_format="NCX"
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.pointwise(self.depthwise(self.stem(x).relu()))
        y = self.up(self.grow(self.strided(y)))
        return self.head(self.quantize(self.shrink(y)))


class Signals(nn.Module):
    """One dimension, and a blocked format between."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch_dnnl.nn.Conv1d(3, 20, 5, padding=((4, 0),))
        self.grow = torch_dnnl.nn.ConvTranspose1d(20, 4, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        blocked = D.reorder(y, "nCw8c")
        y = D.reorder(blocked, "nwc", src_format="nCw8c", size=y.shape)
        return D.resample(self.grow(y), scale_factor=0.7, mode="linear")


class Volumes(nn.Module):
    """Three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch_dnnl.nn.Conv3d(3, 6, 3, padding=1)
        self.grow = torch_dnnl.nn.ConvTranspose3d(6, 4, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return D.interpolate(self.grow(self.conv(x)), scale_factor=0.5, mode="trilinear")


# What a model takes: its number of spatial dimensions and their least and largest size.
MODELS = {Images: (2, 8, 40), Signals: (1, 16, 400), Volumes: (3, 4, 9)}


def quantized(x: Tensor) -> None:
    """Inference with integers."""
    pixels = D.reorder(x, dtype=torch.uint8, dst_scale=0.02, dst_zero_point=128)
    weights = torch.ones(4, x.shape[1], *[3] * (x.dim() - 2), dtype=torch.int8)
    D.quantized_convolution(
        *(pixels, weights), src_zero_point=128, data_format="NCX", weights_format="OIX"
    )


def refused(x: Tensor) -> None:
    """A bad call."""
    try:
        D.interpolate(x, scale_factor=-1.0)
    except RuntimeError:
        return
    raise AssertionError("no error")


class Soak:
    def __init__(self, backend: str | None = None) -> None:
        """`backend`: of torch.compile; None: eager."""
        torch.manual_seed(0)
        self.random = random.Random(0)
        self.models = {}
        torch._dynamo.config.fail_on_recompile_limit_hit = True  # eager code would take over
        for cls, sizes in MODELS.items():
            model = cls()
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
            call = torch.compile(model, backend=backend, dynamic=True) if backend else model
            self.models[cls] = (call, optimizer, sizes)

    def step(self) -> None:
        call, optimizer, (rank, least, most) = self.random.choice(list(self.models.values()))
        sizes = [self.random.randint(least, most) for _ in range(rank)]
        x = torch.randn(self.random.randint(2, 3), 3, *sizes)
        if rank > 1 and self.random.random() < 0.5:
            x = x.to(memory_format=torch.channels_last if rank == 2 else torch.channels_last_3d)
        optimizer.zero_grad()
        call(x).square().mean().backward()
        optimizer.step()
        if self.random.random() < 0.1:
            quantized(x)
            refused(x)

    def run(self, steps: int) -> list[float]:
        """The resident set after each tenth of the steps."""
        sets = []
        start = time.perf_counter()
        for i in range(steps):
            self.step()
            if (i + 1) * 10 // steps > len(sets):
                sets.append(resident())
                seconds = time.perf_counter() - start
                print(f"{i + 1} steps, {seconds:.0f} s: {sets[-1]:.1f} MB", flush=True)
        return sets


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--compiled", action="store_true", help="by the backend of torch.compile")
    parser.add_argument("--most", type=float, default=10, help="MB that may come on the way")
    arguments = parser.parse_args()
    sets = Soak("torch_dnnl" if arguments.compiled else None).run(arguments.steps)
    print(f"first {sets[0]:.1f} MB, last {sets[-1]:.1f} MB")
    return int(sets[-1] - sets[0] > arguments.most)


if __name__ == "__main__":
    sys.exit(main())
