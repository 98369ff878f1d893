"""Random problems of every operator, each a function of a `random.Random`: odd sizes, every rank,
type, format and layout. For tests of all kernels, and for comparing the results of two builds."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from layouts import channels_last, offset_by_one, sliced, transposed
from op_db import FLOATING
from oracles.conv import ACTIVATIONS
from torch import Tensor

import torch_dnnl  # noqa: F401

OPS = torch.ops.torch_dnnl
Random = random.Random
TYPES = [*[torch.float32] * 3, torch.float64, torch.bfloat16, torch.float16]
LAYOUTS = [*[torch.clone] * 4, channels_last, offset_by_one, sliced, transposed]


@dataclass(frozen=True)
class Problem:
    """Calls of operators, the forward first, on the same tensors."""

    calls: dict[str, Callable[..., Tensor]]  # by operator; each takes an algorithm and the tensors
    inputs: tuple[Tensor, ...]
    text: str

    def run(self, operator: str, algorithm: str, dtype: torch.dtype | None = None) -> Tensor:
        """What an operator computes of the tensors, or of these in another type."""
        return self.calls[operator](algorithm, *(x.to(dtype or x.dtype) for x in self.inputs))


def tensor(rnd: Random, shape: list[int], dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(rnd.getrandbits(32))
    value = torch.randn(shape, generator=generator)
    if not dtype.is_floating_point:
        value = (value * 40 + 60).clamp(0, 127)
    return rnd.choice(LAYOUTS)(value.to(dtype))


def convolution(rnd: Random) -> Problem:
    rank, dtype = rnd.choice([1, 2, 2, 2, 3]), rnd.choice(TYPES)
    groups = rnd.choice([1, 1, 1, 2, 3, 8, 20, 33])
    counts = [1, 1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 33, 50, 64, 100]
    channels = [rnd.choice(counts[:6] if groups > 3 else counts) for _ in ("inputs", "outputs")]
    if rnd.random() < 0.15:
        groups, channels = rnd.choice([8, 30, 64]), [1, 1]
    per_axis = lambda choices: [rnd.choice(choices) for _ in range(rank)]  # noqa: E731
    kernel, strides = per_axis([1, 1, 2, 3, 3, 4, 5, 7]), per_axis([1, 1, 1, 2, 3, 5])
    dilations = per_axis([1, 1, 1, 2, 3])
    begin, end = per_axis([0, 0, 1, 2, 4]), per_axis([0, 0, 1, 2, 4])
    kind = rnd.random()
    if kind < 0.3:  # Winograd's
        kernel, strides, dilations = [1] * (rank == 3) + [3] * min(rank, 2), [1] * rank, [1] * rank
    elif kind < 0.5:  # matrix products, and patches side by side
        begin, end = [0] * rank, [0] * rank
        strides = list(kernel) if kind < 0.4 else strides
    most = {1: 90, 2: 24, 3: 9}[rank]
    covered = [(k - 1) * d + 1 - b - e for k, d, b, e in zip(kernel, dilations, begin, end)]
    spatial = [max(least, rnd.randint(1, most)) for least in covered]
    data, weights = rnd.choice(["NCX", "NXC"]), rnd.choice(["OIX", "XIO"])
    n, (ic, oc) = rnd.choice([1, 1, 2, 3]), channels
    of_image = [n, ic * groups, *spatial] if data == "NCX" else [n, *spatial, ic * groups]
    of_weights = [oc * groups, ic, *kernel] if weights == "OIX" else [*kernel, ic, oc * groups]
    attributes = (strides, begin, end, dilations, "none", groups, data, weights)
    size = [(n - c) // s + 1 for n, c, s in zip(spatial, covered, strides)]
    of_grad = [n, oc * groups, *size] if data == "NCX" else [n, *size, oc * groups]
    activation = rnd.choice(list(ACTIVATIONS)[1:])
    shapes = [of_image, of_weights, [oc * groups], of_grad]
    gradients = (spatial, kernel, *attributes)
    return Problem(
        {
            "convolution": lambda a, x, w, b, g: OPS.convolution(x, w, b, *attributes, a),
            "convolution_fused": lambda a, x, w, b, g: OPS.convolution_fused(
                x, w, b, *attributes, a, residual=g, activation=activation
            )[0],
            "convolution_backward_data": lambda a, x, w, b, g: OPS.convolution_backward_data(
                g, w, spatial, *attributes, a
            ),
            "convolution_backward_weights": lambda a, x, w, b, g: OPS.convolution_backward_weights(
                g, x, kernel, *attributes, a
            ),
            "convolution_fused_backward": lambda a, x, w, b, g: flattened(
                OPS.convolution_fused_backward(g, g, activation, x, w, *gradients, a, bias=True)
            ),
        },
        tuple(tensor(rnd, shape, dtype) for shape in shapes),
        f"{shapes} {dtype} {attributes} {activation}",
    )


def flattened(tensors: tuple[Tensor, ...]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


def resample(rnd: Random) -> Problem:
    rank = rnd.choice([1, 2, 2, 3])
    dtype = rnd.choice([*TYPES, torch.uint8, torch.int8, torch.int16, torch.int32])
    most = {1: 300, 2: 60, 3: 16}[rank]
    spatial, size = ([rnd.randint(1, most) for _ in range(rank)] for _ in ("src", "dst"))
    shape = [rnd.choice([1, 2]), rnd.choice([1, 2, 3, 4, 8, 17, 40]), *spatial]
    data = rnd.choice(["NCX", "NXC"])
    if data == "NXC":
        shape = [shape[0], *spatial, shape[1]]
    mode = rnd.choice(["nearest", "linear", "linear", "cubic", "lanczos3", "area"])
    attributes = {
        "mode": mode,
        "antialias": mode in ("linear", "cubic", "lanczos3") and rnd.random() < 0.4,
        "coordinates": rnd.choice(["half_pixel", "align_corners", "asymmetric"]),
        "data_format": data,
    }
    calls = {"resample": lambda a, x, g: OPS.resample(x, size, algorithm=a, **attributes)}
    if dtype.is_floating_point:
        calls["resample_backward"] = lambda a, x, g: OPS.resample_backward(
            g, spatial, algorithm=a, **attributes
        )
    of_grad = [shape[0], *size, shape[-1]] if data == "NXC" else [*shape[:2], *size]
    return Problem(
        calls,
        (tensor(rnd, shape, dtype), tensor(rnd, of_grad, dtype)),
        f"{shape} to {size} {dtype} {attributes}",
    )


def reorder(rnd: Random) -> Problem:
    small = [torch.float8_e4m3fn, torch.float8_e5m2, torch.int32, torch.int8, torch.uint8]
    src, dst = (rnd.choice([*FLOATING, *small]) for _ in ("src", "dst"))
    shape = [rnd.randint(1, 40) for _ in range(4)]
    tags = ["nchw", "nhwc", "nChw16c", "nChw8c", "acbd", "dcba", "cdba", "aBcd4b", "ABcd4b16a4b"]
    tag = rnd.choice([None, *tags])
    attributes = {"dtype": dst}
    for name in ("scale", "dst_scale"):
        if rnd.random() < 0.3:
            attributes[f"{name}_value"] = rnd.uniform(0.1, 2)
        elif rnd.random() < 0.3:
            attributes[name] = tensor(rnd, [1, shape[1], 1, 1], torch.float32).abs() + 0.1
    calls = {}
    if dst in FLOATING and src in FLOATING:
        calls["reorder_backward"] = lambda a, x: OPS.reorder_backward(
            OPS.reorder(x, tag, dtype=dst), shape, tag, algorithm=a, **(attributes | {"dtype": src})
        )
    affine = attributes | {"dst_zero_point_value": 3.0 * (dst in (torch.int8, torch.uint8))}
    return Problem(
        {"reorder": lambda a, x: OPS.reorder(x, tag, algorithm=a, **affine)} | calls,
        (tensor(rnd, shape, src),),
        f"{shape} {src} {tag} {affine}",
    )


FAMILIES = {"convolution": convolution, "resample": resample, "reorder": reorder}


def problem(family: str, seed: int, number: int) -> Problem:
    """The same for the same arguments, whichever problems came before."""
    return FAMILIES[family](random.Random(f"{family} {seed} {number}"))
