"""What is timed: for each operator, our call and the best spelling of it that a user of torch (or,
where a name says so, of Pillow) has.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

import torch_dnnl.functional as D


@dataclass
class Case:
    name: str
    ours: Callable[..., Tensor]
    peer: Callable[..., object]
    tensors: tuple[Tensor, ...]
    operations: int = 0  # multiply-adds, where they are the limit
    exact: Callable[..., Tensor] | None = None  # of float64 tensors; default: peer

    @property
    def differentiable(self) -> bool:
        return all(t.is_floating_point() for t in self.tensors)


def randn(*shape: int, device: str, memory_format: torch.memory_format) -> Tensor:
    return torch.randn(shape, device=device).contiguous(memory_format=memory_format)


def randbytes(*shape: int, device: str, memory_format: torch.memory_format) -> Tensor:
    image = torch.randint(256, shape, dtype=torch.uint8, device=device)
    return image.contiguous(memory_format=memory_format)


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


def interpolation(
    name: str, x: Tensor, peer: Callable[..., object] | None = None, **kwargs
) -> Case:
    def torchs(x: Tensor) -> Tensor:
        return F.interpolate(x, **kwargs)

    return Case(name, lambda x: D.interpolate(x, **kwargs), peer or torchs, (x,), exact=torchs)


def through_float32(**kwargs) -> Callable[[Tensor], Tensor]:
    """torch has no antialias in bfloat16: the round trip that one writes instead."""
    return lambda x: F.interpolate(x.float(), **kwargs).to(x.dtype)


def resample(device: str) -> Iterator[Case]:
    """Outputs of 8 MB, in every mode."""
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
            x = randn(batch, 32, side, side, device=device, memory_format=memory_format).to(dtype)
            name = f"{label} {layout} {'f32' if dtype == torch.float32 else 'bf16'}"
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
        yield interpolation(f"256 to 224 antialias {layout} u8", x, **small)
        if find_spec("PIL") and layout == "nhwc" and device == "cpu":
            yield interpolation("256 to 224 antialias, Pillow", x, pillows(x, 224), **small)
        for factor, (kind, make) in product((0.5, 2), (("f32", randn), ("u8", randbytes))):
            x = make(1, 3, 1080, 1920, **options)
            name = f"1080p x{factor:g} {layout} {kind}"
            yield interpolation(name, x, scale_factor=factor, mode="bilinear")


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


OPERATORS = {
    "overhead": overhead,
    "resample": resample,
    "images": images,
    "reorder": reorder,
    "conv": conv,
}
