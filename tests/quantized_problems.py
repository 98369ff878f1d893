"""Random problems of quantized_convolution: every rank, type, format, layout and argument."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from layouts import channels_last, offset_by_one, sliced, transposed
from oracles import quantized as oracle
from oracles.conv import ACTIVATIONS as ORACLES
from torch import Tensor

from torch_dnnl.functional import quantized_convolution

RESULTS = [torch.uint8, torch.int8, torch.int32, torch.float32, torch.bfloat16, torch.float16]
ACTIVATIONS = [None, None, *ORACLES]
# Those that the oracle computes by torch's functions, which are not correctly rounded.
TRANSCENDENTAL = ("silu", "gelu", "gelu_tanh", "sigmoid", "tanh", "mish", "softplus", "elu")
LAYOUTS = [*[torch.clone] * 4, channels_last, offset_by_one, sliced, transposed]


def placed(x: Tensor, device: str) -> Tensor:
    """With the same strides and the same place in its memory."""
    if device == "cpu":
        return x
    memory = torch.empty(0, dtype=x.dtype).set_(x.untyped_storage())
    return memory.to(device).as_strided(x.shape, x.stride(), x.storage_offset())


@dataclass(frozen=True)
class Problem:
    src: Tensor  # NCX
    weights: Tensor  # OIX
    attributes: dict[str, Any]
    zero_point: int
    arguments: dict[str, Any]  # the others
    is_nxc: bool
    is_xio: bool

    def expected(self) -> Tensor:
        acc = oracle.sums(self.src, self.weights, self.zero_point, **self.attributes)
        if self.arguments["dtype"] == torch.int32 and len(self.arguments) == 1:
            return acc.to(torch.int32)
        return oracle.completed(acc, **self.arguments)

    def run(
        self, algorithm: str | None = None, device: str = "cpu", zero_point: Tensor | None = None
    ) -> Tensor:
        """As NCX. `zero_point`: in the place of the number."""
        src, weights, arguments = (
            placed(self.src, device),
            placed(self.weights, device),
            {
                k: placed(v, device) if isinstance(v, Tensor) else v
                for k, v in self.arguments.items()
            },
        )
        if self.is_nxc:
            src = src.movedim(1, -1)
            if "residual" in arguments:
                arguments["residual"] = arguments["residual"].movedim(1, -1)
        if self.is_xio:
            weights = weights.movedim((0, 1), (-1, -2))
        result = quantized_convolution(
            src,
            weights,
            src_zero_point=self.zero_point if zero_point is None else zero_point,
            **arguments,
            **self.attributes,
            data_format="NXC" if self.is_nxc else "NCX",
            weights_format="XIO" if self.is_xio else "OIX",
            algorithm=algorithm,
        )
        return result.movedim(-1, 1) if self.is_nxc else result


def _channels(rnd: random.Random) -> tuple[int, int, int]:
    """Groups, and the inputs and outputs of one."""
    kind = rnd.random()
    if kind < 0.2:  # depthwise, with one output or two
        return rnd.choice([5, 17, 32, 70]), 1, rnd.choice([1, 1, 2])
    if kind < 0.5:
        return rnd.choice([2, 3, 8, 16]), rnd.choice([1, 2, 3, 4]), rnd.choice([1, 2, 4, 5])
    counts = [1, 2, 3, 4, 8, 16, 20, 33, 64, 65]
    return rnd.choice([1, 1, 2]), rnd.choice(counts), rnd.choice(counts)


def _steps(rnd: random.Random, sizes: list[int], dtype: torch.dtype) -> dict[str, Any]:
    """What makes a result of sums, for a result of these sizes."""
    generator = torch.Generator().manual_seed(rnd.getrandbits(32))
    scales = torch.rand(sizes[1], generator=generator) * 0.1 + 1e-3
    steps: dict[str, Any] = {
        "src_scale": rnd.uniform(1e-3, 0.1),
        "weights_scale": rnd.choice([rnd.uniform(-0.1, -1e-3), scales]),
        "activation": rnd.choice(ACTIVATIONS),
    }
    if not dtype.is_floating_point:
        steps["dst_scale"] = rnd.choice([1.0, rnd.uniform(0.01, 20)])
        steps["dst_zero_point"] = rnd.choice([0, rnd.randrange(127)])
    if rnd.random() < 0.5:
        steps["bias"] = torch.randn(sizes[1], generator=generator) * 10
    if rnd.random() < 0.4:
        values = torch.randint(0, 127, sizes, generator=generator)
        steps["residual"] = rnd.choice(LAYOUTS)(values.to(rnd.choice(RESULTS)))
        steps["residual_scale"] = rnd.uniform(0.01, 1)
        steps["residual_zero_point"] = rnd.choice([0, 3])
    return steps


def problem(seed: int) -> Problem:
    rnd = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    rank, (groups, ic, oc) = rnd.choice([1, 2, 2, 2, 3]), _channels(rnd)
    per_axis = lambda choices: [rnd.choice(choices) for _ in range(rank)]  # noqa: E731
    kernel, dilations = per_axis([1, 1, 2, 3, 3, 5]), per_axis([1, 1, 1, 2, 3])
    strides, begin, end = per_axis([1, 1, 2, 3]), per_axis([0, 0, 1, 2, 4]), per_axis([0, 0, 1, 3])
    if rnd.random() < 0.3:
        kernel, begin, end = [1] * rank, [0] * rank, [0] * rank
        strides = [rnd.choice([1, 1, 2])] * rank
    covered = [(k - 1) * d + 1 - b - e for k, d, b, e in zip(kernel, dilations, begin, end)]
    most = [9] * (rank - 1) + [rnd.choice([13, 70])]
    size = [max(least, rnd.randint(1, n)) for least, n in zip(covered, most)]
    dtype, result = rnd.choice([torch.uint8, torch.int8]), rnd.choice(RESULTS)
    limits = torch.iinfo(dtype)
    integers = lambda shape, type, low, high: torch.randint(  # noqa: E731
        low, high + 1, shape, generator=generator
    ).to(type)
    n = rnd.choice([1, 2, 3])
    sizes = [n, groups * oc, *((x - c) // s + 1 for x, c, s in zip(size, covered, strides))]
    has_steps = result != torch.int32 or rnd.random() < 0.5
    return Problem(
        rnd.choice(LAYOUTS)(integers([n, groups * ic, *size], dtype, limits.min, limits.max)),
        rnd.choice(LAYOUTS)(integers([groups * oc, ic, *kernel], torch.int8, -128, 127)),
        {
            "strides": strides,
            "pads_begin": begin,
            "pads_end": end,
            "dilations": dilations,
            "groups": groups,
        },
        rnd.choice([0, rnd.randint(limits.min, limits.max)]),
        {"dtype": result, **(_steps(rnd, sizes, result) if has_steps else {})},
        rnd.random() < 0.5,
        rnd.random() < 0.5,
    )
