"""What is timed: for each operator, our call, torch's best spelling of it, and the float64 answer.

A case with gradients times forward and backward together.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

import torch_dnnl.functional as D


@dataclass
class Case:
    name: str
    ours: Callable[..., Tensor]
    torchs: Callable[..., Tensor]
    tensors: tuple[Tensor, ...]
    operations: int = 0  # multiply-adds, where they are the limit


def randn(*shape: int, device: str, memory_format: torch.memory_format) -> Tensor:
    return torch.randn(shape, device=device).contiguous(memory_format=memory_format)


LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}


def overhead(device: str) -> Iterator[Case]:
    """1x1x4x4: nothing but the call."""
    x, w = torch.randn(1, 1, 4, 4, device=device), torch.randn(1, 1, 3, 3, device=device)
    for label, kwargs in [
        ("nearest factor", {"scale_factor": 2}),
        ("nearest size", {"size": (8, 8)}),
        ("bilinear factor", {"scale_factor": 2, "mode": "bilinear"}),
        ("bilinear size", {"size": (8, 8), "mode": "bilinear"}),
        ("bicubic factor", {"scale_factor": 2, "mode": "bicubic"}),
    ]:
        yield Case(
            f"interpolate {label}",
            lambda x, kwargs=kwargs: D.interpolate(x, **kwargs),
            lambda x, kwargs=kwargs: F.interpolate(x, **kwargs),
            (x,),
        )
    for label, kwargs in [("", {}), (" padding=1", {"padding": 1}), (" stride=2", {"stride": 2})]:
        yield Case(
            f"conv2d{label}",
            lambda x, w, kwargs=kwargs: D.conv2d(x, w, **kwargs),
            lambda x, w, kwargs=kwargs: F.conv2d(x, w, **kwargs),
            (x, w),
        )
    yield Case(
        "reorder to bfloat16",
        lambda x: D.reorder(x, dtype=torch.bfloat16),
        lambda x: x.to(torch.bfloat16),
        (x,),
    )


def resample(device: str) -> Iterator[Case]:
    for layout, memory_format in LAYOUTS.items():
        x = randn(4, 16, 64, 64, device=device, memory_format=memory_format)
        for label, kwargs in [
            ("nearest x2", {"scale_factor": 2, "mode": "nearest"}),
            ("bilinear x2", {"scale_factor": 2, "mode": "bilinear"}),
            ("bicubic x2", {"scale_factor": 2, "mode": "bicubic"}),
            ("bilinear antialias", {"size": (37, 45), "mode": "bilinear", "antialias": True}),
            ("area", {"size": (37, 45), "mode": "area"}),
        ]:
            yield Case(
                f"{label} {layout}",
                lambda x, kwargs=kwargs: D.interpolate(x, **kwargs),
                lambda x, kwargs=kwargs: F.interpolate(x, **kwargs),
                (x,),
            )


def reorder(device: str) -> Iterator[Case]:
    x = torch.randn(4, 64, 56, 56, device=device)
    yield Case(
        "nchw to nhwc",
        lambda x: D.reorder(x, "nhwc"),
        lambda x: x.contiguous(memory_format=torch.channels_last),
        (x,),
    )
    yield Case(
        "float32 to bfloat16",
        lambda x: D.reorder(x, dtype=torch.bfloat16),
        lambda x: x.to(torch.bfloat16),
        (x,),
    )
    yield Case(
        "nchw to nChw16c",
        lambda x: D.reorder(x, "nChw16c"),
        lambda x: x.unflatten(1, (-1, 16)).permute(0, 1, 3, 4, 2).contiguous(),
        (x,),
    )


def conv(device: str) -> Iterator[Case]:
    layers = [
        ("3x3 64 to 64, 56x56", (4, 64, 56, 56), (64, 64, 3, 3), {"padding": 1}),
        ("1x1 64 to 256, 56x56", (4, 64, 56, 56), (256, 64, 1, 1), {}),
        ("3x3 256 to 256, 14x14", (4, 256, 14, 14), (256, 256, 3, 3), {"padding": 1}),
        ("7x7 stride 2, 3 to 64", (2, 3, 224, 224), (64, 3, 7, 7), {"padding": 3, "stride": 2}),
    ]
    for layout, memory_format in LAYOUTS.items():
        for name, shape, kernel, kwargs in layers:
            x = randn(*shape, device=device, memory_format=memory_format)
            w = torch.randn(kernel, device=device) / (w_size := kernel[1] * kernel[2] * kernel[3])
            outputs = F.conv2d(x[:1].to("meta"), w.to("meta"), **kwargs).numel() * shape[0]
            yield Case(
                f"{name} {layout}",
                lambda x, w, kwargs=kwargs: D.conv2d(x, w, **kwargs),
                lambda x, w, kwargs=kwargs: F.conv2d(x, w, **kwargs),
                (x, w),
                operations=outputs * w_size,
            )


OPERATORS = {"overhead": overhead, "resample": resample, "reorder": reorder, "conv": conv}
