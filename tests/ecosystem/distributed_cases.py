"""Calls with DTensors on a mesh of processes, each compared with the same call in one process.

A case is a call, its tensors, and where they lie on the mesh. Values and gradients are compared
with those of the whole tensors in float64, up to the order of sums; some cases run in float32, with
a kernel named, and must have the same bits wherever no sum is split.
"""

import itertools
import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)

import torch_dnnl.functional as D

R = Replicate()
SUM = Partial()


@dataclass
class Case:
    """`expected`: the placements of the result; None where they do not matter."""

    name: str
    call: Callable[..., torch.Tensor]
    tensors: Sequence[torch.Tensor | Sequence[int]]
    placements: Sequence[Sequence[Placement]]
    expected: Sequence[Placement] | None = None
    has_same_bits: bool = False


def S(dim: int) -> Shard:
    return Shard(dim)


# Source, weights, attributes. Odd sizes, strides beside and above kernels, dilations that reach
# over several shards, pads that are wider than shards; 5 rows make an empty shard among 4.
NCX = {"data_format": "NCX", "weights_format": "OIX"}
NXC = {"data_format": "NXC", "weights_format": "XIO"}
CONVOLUTIONS = {
    "1d stride": ((2, 4, 11), (6, 4, 3), dict(strides=2, pads_begin=2, pads_end=1, **NCX)),
    "1d dilation": ((2, 17, 2), (3, 2, 3), dict(dilations=6, pads_begin=5, pads_end=9, **NXC)),
    "same": ((3, 9, 7, 2), (3, 3, 2, 4), dict(strides=2, auto_pad="same_upper", **NXC)),
    "same lower": ((3, 2, 5, 8), (4, 2, 4, 2), dict(strides=[3, 1], auto_pad="same_lower", **NCX)),
    "gaps": ((2, 2, 13, 5), (3, 2, 2, 1), dict(strides=[5, 3], pads_begin=[1, 0], **NCX)),
    "pads": ((2, 3, 4, 5), (2, 3, 2, 3), dict(pads_begin=[5, 2], pads_end=[6, 0], **NCX)),
    "mixed formats": (
        (2, 5, 6, 4),
        (4, 4, 3, 2),
        {"dilations": [2, 1], "pads_begin": [2, 1], "data_format": "NXC", "weights_format": "OIX"},
    ),
    "3d": (
        (2, 2, 5, 6, 4),
        (2, 2, 3, 1, 2),
        dict(strides=[2, 1, 1], pads_begin=[1, 0, 1], pads_end=[2, 0, 0], **NCX),
    ),
}
GROUPED = {
    "depthwise": ((2, 5, 6, 5), (5, 1, 3, 3), dict(groups=5, pads_begin=1, **NCX)),
    "groups": ((2, 7, 6, 8), (3, 1, 2, 8), dict(groups=4, pads_begin=[1, 0], **NXC)),
}
FUSED = {
    "linear": {},
    "activation": {"activation": "relu"},
    "curved": {"activation": "silu", "residual": True},
}


def dims(attributes: dict, rank: int) -> tuple[int, int, int, int, int]:
    """First spatial and channel of an image; output, input, first spatial of weights."""
    first, channel = (1, rank - 1) if attributes["data_format"] == "NXC" else (2, 1)
    xio = attributes["weights_format"] == "XIO"
    return (first, channel, *((rank - 1, rank - 2, 0) if xio else (0, 1, 2)))


def convolution_call(attributes: dict, extra: dict) -> Callable[..., torch.Tensor]:
    options = {name: value for name, value in extra.items() if name != "residual"}

    def call(src, weights, bias, residual=None):
        return D.convolution(src, weights, bias, residual=residual, **attributes, **options)

    return call


def shape_of_result(attributes: dict, src: Sequence[int], weights: Sequence[int]) -> list[int]:
    on_meta = (torch.empty(shape, device="meta") for shape in (src, weights))
    return list(D.convolution(*on_meta, **attributes).shape)


def convolution_cases(mesh_shape: tuple[int, ...]):
    """Along one dimension of the mesh, and with two dimensions of it cut alike or differently."""
    for (name, (src, weights, attributes)), (end, extra) in itertools.product(
        (CONVOLUTIONS | GROUPED).items(), FUSED.items()
    ):
        rank = len(src)
        first, channel, outer, inner, window = dims(attributes, rank)
        shapes = [src, weights, (weights[outer],)]
        if extra.get("residual"):
            shapes.append(shape_of_result(attributes, src, weights))
        grouped = attributes.get("groups", 1) > 1
        # Of source, weights, bias, and of the result or residual.
        layouts = {
            "whole": (R, R, R, R),
            "batch": (S(0), R, R, S(0)),
            **{f"space {d}": (S(d), R, R, S(d)) for d in range(first, first + rank - 2)},
            "channels": (S(channel), S(outer), S(0), S(channel))
            if grouped
            else (R, S(outer), S(0), S(channel)),
            "input channels": (S(channel), S(inner), R, SUM),
        }
        if grouped or end != "linear":
            del layouts["input channels"]
        chosen_layouts = [(layout,) for layout in layouts]
        if len(mesh_shape) == 2:
            if end == "activation":
                continue
            space, *others = (layout for layout in layouts if layout.startswith("space"))
            chosen_layouts = [("batch", space), (space, "channels"), ("channels", "batch")]
            chosen_layouts += [(other, space) for other in others]
        for chosen in chosen_layouts:
            placements = list(zip(*(layouts[layout] for layout in chosen)))
            yield Case(
                f"convolution {name} {end} {' x '.join(chosen)}",
                convolution_call(attributes, extra),
                shapes,
                [p if SUM not in p else [R] * len(p) for p in placements[: len(shapes)]],
                placements[3],
            )
        if len(mesh_shape) == 1 and end == "curved":
            anything = [S(window), S(window), R, S(rank - 1)]
            yield Case(
                f"convolution {name} anything",
                convolution_call(attributes, extra),
                shapes,
                [[p] for p in anything],
            )
            # Weights sharded in both channels, the source in the input channels: with an activation
            # nothing is left as a sum.
            yield Case(
                f"convolution {name} input channels {end}",
                convolution_call(attributes, extra),
                shapes,
                [[S(channel)], [S(inner)], [S(0)], [R]],
            )


def transposed_cases(mesh_shape: tuple[int, ...]):
    problems = {
        "1d": ((2, 4, 5), (4, 3, 3), {"strides": 2, "pads_begin": 1, "output_padding": 1}),
        "2d": ((2, 3, 5, 4), (3, 2, 2, 3), {"strides": [3, 1], "pads_begin": [0, 1]}),
        "dilation": ((2, 3, 7, 4), (3, 2, 3, 1), {"dilations": [3, 2], "pads_begin": [2, 0]}),
        "gaps": ((2, 3, 4, 3), (3, 2, 1, 2), {"strides": [4, 2], "output_padding": [2, 1]}),
        "groups": ((2, 4, 5, 3), (4, 1, 3, 3), {"strides": 2, "groups": 4}),
    }
    for (name, (src, weights, attributes)), end in itertools.product(
        problems.items(), ("linear", "curved")
    ):
        extra = FUSED[end]

        def call(src, weights, bias, residual=None, *, attributes=attributes, extra=extra):
            options = {name: value for name, value in extra.items() if name != "residual"}
            formats = {"data_format": "NCX", "weights_format": "IOX"}
            return D.convolution_transpose(
                src, weights, bias, residual=residual, **attributes, **options, **formats
            )

        groups = attributes.get("groups", 1)
        shapes = [src, weights, (weights[1] * groups,)]
        if extra.get("residual"):
            shapes.append(list(call(*(torch.empty(s, device="meta") for s in shapes)).shape))
        layouts = {"batch": (S(0), R, R, S(0)), "space": (S(2), R, R, S(2))}
        if groups > 1:
            layouts["channels"] = (S(1), S(0), S(0), S(1))
        else:
            layouts["channels"] = (R, S(1), S(0), S(1))
            if end == "linear":
                layouts["input channels"] = (S(1), S(0), R, SUM)
        for chosen in itertools.combinations(layouts, len(mesh_shape)):
            placements = list(zip(*(layouts[layout] for layout in chosen)))
            if any(SUM in p for p in placements) and len(mesh_shape) > 1:
                continue
            yield Case(
                f"transposed {name} {end} {' x '.join(chosen)}",
                call,
                shapes,
                [p if SUM not in p else [R] for p in placements[: len(shapes)]],
                placements[3],
            )


RESIZES = {
    "half": ((2, 3, 11, 6), {"size": (6, 5)}),
    "double": ((2, 3, 5, 7), {"scale_factor": 2.0, "recompute_scale_factor": False}),
    "antialias": ((1, 2, 19, 8), {"size": (4, 9), "mode": "cubic", "antialias": True}),
    "lanczos": ((2, 2, 7, 9), {"size": (13, 3), "mode": "lanczos3", "exclude_outside": True}),
    "corners": (
        (2, 9, 5, 3),
        {"size": (4, 8), "coordinates": "align_corners", "data_format": "NXC"},
    ),
    "nearest": ((2, 3, 13), {"size": 5, "mode": "nearest"}),
    "area": ((1, 2, 5, 6, 4), {"size": (3, 4, 8), "mode": "area"}),
    "region": (
        (2, 2, 8, 6),
        {
            "size": (9, 5),
            "coordinates": "tf_crop_and_resize",
            "roi": [0.9, -0.2, 0.1, 1.3],
            "extrapolation_value": 2.5,
        },
    ),
    "region beyond": (
        (1, 2, 6, 4),
        {"size": (8, 3), "coordinates": "tf_crop_and_resize", "roi": [0.2, 0.0, 3.0, 1.0]},
    ),
}


def resample_cases(mesh_shape: tuple[int, ...]):
    for name, (shape, options) in RESIZES.items():
        rank = len(shape)
        cuts = [(d,) for d in range(rank)]
        if len(mesh_shape) == 2:
            cuts = [(0, rank - 1), (2, 1), *([(2, 3), (3, 2)] if rank > 3 else [])]
        for cut in cuts:
            placements = [S(d) for d in cut]
            yield Case(
                f"resample {name} {cut}",
                lambda src, options=options: D.resample(src, **options),
                [shape],
                [placements],
                placements,
            )
        yield Case(
            f"resample {name} batch twice",
            lambda src, options=options: D.resample(src, **options),
            [shape],
            [[S(0)] * len(mesh_shape)],
            [S(0)] * len(mesh_shape),
        )
    for name in ("half", "double", "antialias", "lanczos", "region"):
        shape, options = RESIZES[name]
        placements = [S(2), S(3)][: len(mesh_shape)]
        yield Case(
            f"resample bits {name}",
            lambda src, options=options: D.resample(src, **options),
            [torch.rand(shape)],
            [placements],
            placements,
            has_same_bits=True,
        )


def reorder_cases(mesh_shape: tuple[int, ...]):
    if len(mesh_shape) == 2:
        yield Case(
            "reorder two dimensions",
            lambda src, scale: D.reorder(src, "nhwc", scale=scale),
            [(3, 4, 5, 2), (1, 4, 1, 1)],
            [[S(2), S(1)], [R, R]],
            [S(2), S(1)],
        )
        return
    for d in range(4):
        yield Case(
            f"reorder plain {d}",
            lambda src: D.reorder(src, "nhwc", scale=0.5),
            [(3, 4, 5, 2)],
            [[S(d)]],
            [S(d)],
        )
        of_scale = R if d != 1 else S(1)
        yield Case(
            f"reorder by scales {d}",
            lambda src, scale, shift, more: D.reorder(
                src, scale=scale, dst_zero_point=shift, accumulate=more, beta=2.0
            ),
            [(3, 6, 5, 2), (1, 6, 1, 1), (1, 3, 1, 1), (3, 6, 5, 2)],
            [[S(d)], [of_scale], [R], [S(d)]],
        )
        yield Case(
            f"fake quantization {d}",
            lambda src, scale: D.fake_reorder(src, dtype=torch.int8, dst_scale=scale.abs() + 0.01),
            [(3, 6, 5, 2), (1, 6, 1, 1)],
            [[S(d)], [R]],
            [S(d)],
        )
        yield Case(
            f"reorder blocked {d}",
            lambda src: D.reorder(src, "nChw4c"),
            [(3, 6, 5, 2)],
            [[S(d)]],
            None if d == 1 else [S(d)],
        )
        yield Case(
            f"reorder from blocks {d}",
            lambda src: D.reorder(src, "nchw", src_format="nChw4c", size=(3, 6, 5, 2)),
            [(3, 2, 5, 2, 4)],
            [[S(d)]],
            None if d == 1 else [S(d)],
        )
    yield Case(
        "reorder to bytes",
        lambda src: D.reorder(src, dtype=torch.uint8, dst_scale=0.02, dst_zero_point=100),
        [torch.randn(5, 3, 4)],
        [[S(0)]],
        [S(0)],
    )


def quantized_cases(mesh_shape: tuple[int, ...]):
    if len(mesh_shape) == 2:
        return
    src = torch.randint(0, 255, (2, 9, 6, 4), dtype=torch.uint8)
    weights = torch.randint(-127, 127, (3, 3, 4, 6), dtype=torch.int8)
    bias, scale = torch.randn(6), torch.rand(6) / 100

    def call(src, weights, bias, scale):
        options = {"src_scale": 0.1, "src_zero_point": 7, "dst_scale": 0.5, "activation": "relu"}
        return D.quantized_convolution(
            src, weights, bias, weights_scale=scale, strides=2, pads_begin=8, **options
        )

    for name, (p, q, r, s) in {
        "batch": (S(0), R, R, R),
        "space": (S(1), R, R, R),
        "channels": (R, S(3), S(0), S(0)),
        "input channels": (S(3), S(2), R, R),
    }.items():
        yield Case(
            f"quantized {name}",
            call,
            [src, weights, bias, scale],
            [[p], [q], [r], [s]],
            [S(3)] if name == "channels" else [p] if name != "input channels" else None,
            has_same_bits=True,
        )


def bits_cases(mesh_shape: tuple[int, ...]):
    """In float32, with one kernel: what is not a split sum has the bits of one process."""
    for name in ("same", "gaps", "mixed formats", "3d"):
        src, weights, attributes = CONVOLUTIONS[name]
        first = dims(attributes, len(src))[0]
        placements = [S(first), S(first + 1)][: len(mesh_shape)]
        yield Case(
            f"bits {name}",
            lambda x, w, attributes=attributes: D.convolution(
                x, w, algorithm="reference", **attributes
            ),
            [torch.rand(src), torch.rand(weights)],
            [placements, [R] * len(mesh_shape)],
            placements,
            has_same_bits=True,
        )


FAMILIES = (
    convolution_cases,
    transposed_cases,
    resample_cases,
    reorder_cases,
    quantized_cases,
    bits_cases,
)


def cases(mesh_shape: tuple[int, ...]) -> list[Case]:
    """Of two processes, which differ little from four, some."""
    torch.manual_seed(0)  # the same tensors on every rank
    found = [case for family in FAMILIES for case in family(mesh_shape)]
    return found[::4] if mesh_shape == (2,) else found


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def is_sum(tensor: torch.Tensor) -> bool:
    return isinstance(tensor, DTensor) and any(p.is_partial() for p in tensor.placements)


def check(case: Case, mesh) -> None:
    """Raises an AssertionError unless values and gradients are those of one process."""
    torch.manual_seed(1)
    tensors = [
        t if isinstance(t, torch.Tensor) else torch.randn(*t, dtype=torch.float64)
        for t in case.tensors
    ]
    ones = [t.clone().requires_grad_(t.is_floating_point()) for t in tensors]
    parts = [
        distribute_tensor(t, mesh, p).requires_grad_(t.is_floating_point())
        for t, p in zip(tensors, case.placements)
    ]
    expected, result = case.call(*ones), case.call(*parts)
    if case.expected is not None:
        assert list(result.placements) == list(case.expected), result.placements
    compare(case, "value", result, expected)
    if not expected.requires_grad:
        return
    grad = torch.randn(expected.shape, dtype=expected.dtype)
    placements = [R if p.is_partial() else p for p in result.placements]
    result.backward(distribute_tensor(grad, mesh, placements))
    expected.backward(grad)
    for i, (part, one) in enumerate(zip(parts, ones)):
        compare(case, f"gradient {i}", part.grad, one.grad)


def compare(case: Case, what: str, result: DTensor, expected: torch.Tensor) -> None:
    got = whole(result)
    assert got.shape == expected.shape and got.dtype == expected.dtype, (what, got.shape)
    if case.has_same_bits and not is_sum(result):
        assert torch.equal(got, expected), (what, (got - expected).abs().max())
        return
    # Sums of at most some hundred numbers of about 1, in another order.
    tolerance = 1e-4 if expected.dtype == torch.float32 else 1e-11
    torch.testing.assert_close(
        got, expected, rtol=tolerance, atol=tolerance, msg=lambda m: f"{what}: {m}"
    )


def run(rank: int, mesh_shape: tuple[int, ...], folder: str, match: str = "") -> None:
    """One of the processes; the first one writes each case's error or None."""
    torch.set_num_threads(1)
    size = math.prod(mesh_shape)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size
    )
    mesh = init_device_mesh("cpu", mesh_shape)
    errors = {}
    for case in cases(mesh_shape):
        if match not in case.name:
            continue
        try:
            check(case, mesh)
            error = None
        except Exception as raised:  # any is a failure of this case, and the next one runs
            error = f"{type(raised).__name__}: {raised}"
        everyone = [None] * size
        dist.all_gather_object(everyone, error)
        errors[case.name] = next((e for e in everyone if e is not None), None)
    if rank == 0:
        with open(f"{folder}/errors.json", "w") as file:
            json.dump(errors, file)
    dist.destroy_process_group()
    # Without Python's end, as in examples/train_distributed.py, which says why.
    os._exit(0)
