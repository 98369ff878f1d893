"""The cost of a call, Resample, and photographs."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

import torch_dnnl
import torch_dnnl.functional as D

from .case import LAYOUTS, SHORT, Case, randbytes, randn


def overhead(device: str) -> Iterator[Case]:
    """1x1x4x4: nothing but the call; on a GPU also replayed as a CUDA graph: the kernels alone."""
    for case in small_calls(device):
        yield case
        if device == "cuda":
            yield replace(case, name=f"{case.name}, graph", graph=True)


def small_calls(device: str) -> Iterator[Case]:
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
        "conv_transpose2d padding=1",
        lambda x, w: D.conv_transpose2d(x, w, padding=1),
        lambda x, w: F.conv_transpose2d(x, w, padding=1),
        (x, w),
    )
    yield Case(
        "reorder to bfloat16",
        lambda x: D.reorder(x, dtype=torch.bfloat16),
        lambda x: x.to(torch.bfloat16),
        (x,),
    )
    # What the context adds to our functions, and to others of torch.
    for label, ours, direct in [
        ("conv2d", F.conv2d, D.conv2d),
        ("interpolate", partial(F.interpolate, size=(8, 8)), partial(D.interpolate, size=(8, 8))),
        ("relu", torch.relu, torch.relu),
    ]:
        tensors = (x, w) if label == "conv2d" else (x,)
        yield Case(f"accelerate, 10 {label}", within(ours), repeated(direct), tensors)


def repeated(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(*tensors: Tensor) -> Tensor:
        for _ in range(10):
            result = function(*tensors)
        return result

    return run


def within(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch_dnnl.accelerate()(repeated(function))


def interpolation(
    name: str, x: Tensor, peer: Callable[..., object] | None = None, **kwargs
) -> Case:
    def torchs(x: Tensor) -> Tensor:
        return F.interpolate(x, **kwargs)

    return Case(name, lambda x: D.interpolate(x, **kwargs), peer or torchs, (x,), exact=torchs)


def through_float32(**kwargs) -> Callable[[Tensor], Tensor]:
    """torch has no antialias in bfloat16, nor in bytes on a GPU: the round trip that one writes
    instead."""

    def torchs(x: Tensor) -> Tensor:
        result = F.interpolate(x.float(), **kwargs)
        return result.to(x.dtype) if x.is_floating_point() else result.round_().to(x.dtype)

    return torchs


def resample(device: str) -> Iterator[Case]:
    """Outputs of 8 MB, or 512 MB on a GPU, in every mode."""
    many = 64 if device == "cuda" else 1
    double, odd = {"scale_factor": 2}, {"size": (127, 129)}
    modes = [
        ("nearest x2", 64, {**double, "mode": "nearest"}),
        ("nearest-exact x2", 64, {**double, "mode": "nearest-exact"}),
        ("bilinear x2", 64, {**double, "mode": "bilinear"}),
        ("bilinear align x2", 64, {**double, "mode": "bilinear", "align_corners": True}),
        ("bicubic x2", 64, {**double, "mode": "bicubic"}),
        ("bilinear x0.5", 256, {"scale_factor": 0.5, "mode": "bilinear"}),
        ("bilinear antialias", 200, {**odd, "mode": "bilinear", "antialias": True}),
        ("bicubic antialias", 200, {**odd, "mode": "bicubic", "antialias": True}),
        ("area", 200, {**odd, "mode": "area"}),
    ]
    for dtype, batch in ((torch.float32, 4), (torch.bfloat16, 8)):
        for (layout, memory_format), (label, side, kwargs) in product(LAYOUTS.items(), modes):
            sizes = (many * batch, 32, side, side)
            x = randn(*sizes, device=device, memory_format=memory_format).to(dtype)
            name = f"{label} {layout} {SHORT[dtype]}"
            refused = "antialias" in kwargs and dtype == torch.bfloat16
            yield interpolation(name, x, through_float32(**kwargs) if refused else None, **kwargs)


def pillows(x: Tensor, side: int) -> Callable[[Tensor], object]:
    from PIL import Image

    image = Image.fromarray(x[0].permute(1, 2, 0).numpy())
    return lambda _: image.resize((side, side), Image.Resampling.BILINEAR)


def images(device: str) -> Iterator[Case]:
    """Single photographs, in bytes and in float32."""
    small = {"size": (224, 224), "mode": "bilinear", "antialias": True}
    for layout, memory_format in LAYOUTS.items():
        options = {"device": device, "memory_format": memory_format}
        x = randbytes(1, 3, 256, 256, **options)
        peer = through_float32(**small) if device == "cuda" else None
        yield interpolation(f"256 to 224 antialias {layout} u8", x, peer, **small)
        if find_spec("PIL") and layout == "nhwc" and device == "cpu":
            yield interpolation("256 to 224 antialias, Pillow", x, pillows(x, 224), **small)
        for factor, (kind, make) in product((0.5, 2), (("f32", randn), ("u8", randbytes))):
            x = make(1, 3, 1080, 1920, **options)
            name = f"1080p x{factor:g} {layout} {kind}"
            yield interpolation(name, x, scale_factor=factor, mode="bilinear")
