"""What is timed: for each operator, our call and the best spelling of it that a user of torch (or,
where a name says so, of Pillow or oneDNN) has. A GPU gets larger batches: outputs of 512 MB for
Resample, tensors of 1 GB for Reorder, 8 times as many images for convolution.
"""

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import product
from math import prod
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

import torch_dnnl.functional as D
from torch_dnnl.functional._algorithm import convolution as choice


@dataclass
class Case:
    name: str
    ours: Callable[..., Tensor]
    peer: Callable[..., object]
    tensors: tuple[Tensor, ...]
    operations: int = 0  # multiply-adds, where they are the limit
    exact: Callable[..., Tensor] | None = None  # of float64 tensors; default: peer
    graph: bool = False  # replayed as a CUDA graph
    is_comparable: bool = True  # whether the peer computes the same

    @property
    def differentiable(self) -> bool:
        """Whether both have gradients; those of an opaque tensor would have no layout to time."""
        if not all(t.is_floating_point() for t in self.tensors):
            return False
        leaves = [t.detach().requires_grad_() for t in self.tensors]
        results = [function(*leaves) for function in (self.ours, self.peer)]
        return all(isinstance(r, Tensor) and r.requires_grad and not r.is_mkldnn for r in results)


def randn(*shape: int, device: str, memory_format: torch.memory_format) -> Tensor:
    return torch.randn(shape, device=device).contiguous(memory_format=memory_format)


def randbytes(*shape: int, device: str, memory_format: torch.memory_format) -> Tensor:
    image = torch.randint(256, shape, dtype=torch.uint8, device=device)
    return image.contiguous(memory_format=memory_format)


LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
SHORT = {
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.float8_e4m3fn: "f8",
    torch.uint8: "u8",
}


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


def blocked(x: Tensor, block: int) -> Tensor:
    return x.unflatten(1, (-1, block)).permute(0, 1, 3, 4, 2).contiguous()


def unblocked(x: Tensor) -> Tensor:
    return x.permute(0, 1, 4, 2, 3).reshape(x.size(0), -1, x.size(2), x.size(3))


def blocked_weights(w: Tensor) -> Tensor:
    """OIhw to OIhw16i16o."""
    o, i, h, w_ = w.shape
    return w.view(o // 16, 16, i // 16, 16, h, w_).permute(0, 2, 4, 5, 3, 1).contiguous()


def blocked_int8_weights(w: Tensor) -> Tensor:
    """OIhw to OIhw4i16o4i."""
    o, i, h, w_ = w.shape
    return w.view(o // 16, 16, i // 16, 4, 4, h, w_).permute(0, 2, 5, 6, 3, 1, 4).contiguous()


def onednn(w: Tensor) -> Iterator[Case]:
    """oneDNN's own reorders, as far as torch reaches them: weights to the blocks that oneDNN likes
    best for a convolution on this machine, in an opaque tensor, and back. With AVX2 these blocks
    are Ohwi32o. (`to_mkldnn` alone copies, and torch has no call that blocks activations.)
    """
    opaque = torch._C._nn.mkldnn_reorder_conv2d_weight(w.to_mkldnn(), 1, 1, 1, 1)
    plain = w.to_mkldnn()

    def blocked_outputs(w: Tensor) -> Tensor:
        return w.unflatten(0, (-1, 32)).permute(0, 3, 4, 2, 1).contiguous()

    yield Case(
        "oihw to Ohwi32o, oneDNN",
        lambda w: D.reorder(w, "Ohwi32o"),
        lambda w: torch._C._nn.mkldnn_reorder_conv2d_weight(plain, 1, 1, 1, 1),
        (w,),
        exact=blocked_outputs,
    )
    yield Case(
        "Ohwi32o to oihw, oneDNN",
        lambda w: D.reorder(w, "oihw", src_format="Ohwi32o"),
        lambda w: opaque.to_dense(),
        (blocked_outputs(w),),
        exact=lambda w: w.permute(0, 4, 3, 1, 2).flatten(0, 1),
    )
    yield Case(
        "copy of oihw, oneDNN", lambda w: D.reorder(w, "oihw"), lambda w: w.to_mkldnn(), (w,),
        exact=lambda w: w,
    )  # fmt: skip


def quantized(x: Tensor, scale: Tensor | float, zero_point: Tensor | float, low: int) -> Tensor:
    return (x / scale).round_().add_(zero_point).clamp_(low, low + 255)


def layouts(x: Tensor) -> Iterator[Case]:
    """NCHW and NHWC; float32, bfloat16, uint8."""
    for dtype in (torch.float32, torch.bfloat16, torch.uint8):
        nchw = (x * 40 + 128).to(dtype)
        nhwc = nchw.contiguous(memory_format=torch.channels_last)
        name = SHORT[dtype]
        yield Case(
            f"nchw to nhwc {name}",
            lambda x: D.reorder(x, "nhwc"),
            lambda x: x.contiguous(memory_format=torch.channels_last),
            (nchw,),
        )
        yield Case(
            f"nhwc to nchw {name}",
            lambda x: D.reorder(x, "nchw"),
            lambda x: x.contiguous(),
            (nhwc,),
        )


def conversions(x: Tensor) -> Iterator[Case]:
    """Between float32 and the narrower types, with and without a change of layout."""
    cl = torch.channels_last
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn):
        narrow = x.to(dtype)
        name = SHORT[dtype]
        yield Case(
            f"f32 to {name}",
            lambda x, dtype=dtype: D.reorder(x, dtype=dtype),
            lambda x, dtype=dtype: x.to(dtype),
            (x,),
        )
        yield Case(
            f"{name} to f32",
            lambda x: D.reorder(x, dtype=torch.float32),
            lambda x: x.to(torch.float32),
            (narrow,),
        )
        yield Case(
            f"f32 nchw to {name} nhwc",
            lambda x, dtype=dtype: D.reorder(x, "nhwc", dtype=dtype),
            lambda x, dtype=dtype: x.to(dtype).contiguous(memory_format=cl),
            (x,),
        )
        yield Case(
            f"{name} nchw to f32 nhwc",
            lambda x: D.reorder(x, "nhwc", dtype=torch.float32),
            lambda x: x.to(torch.float32, memory_format=cl),
            (narrow,),
        )


def blocks(x: Tensor) -> Iterator[Case]:
    """Into and out of blocked layouts."""
    for block in (8, 16):
        tag = f"nChw{block}c"
        yield Case(
            f"nchw to {tag}",
            lambda x, tag=tag: D.reorder(x, tag),
            lambda x, block=block: blocked(x, block),
            (x,),
        )
        yield Case(
            f"{tag} to nchw",
            lambda x, tag=tag: D.reorder(x, "nchw", src_format=tag),
            unblocked,
            (blocked(x, block),),
        )
    channels = 5120 if x.is_cuda else 512
    w = torch.randn(channels, channels, 3, 3, device=x.device)
    scale = torch.rand(channels, 1, 1, 1, device=x.device) * 0.02 + 0.01
    yield Case("oihw to OIhw16i16o", lambda w: D.reorder(w, "OIhw16i16o"), blocked_weights, (w,))
    yield Case(
        "OIhw16i16o to oihw",
        lambda w: D.reorder(w, "oihw", src_format="OIhw16i16o"),
        lambda w: w.permute(0, 5, 1, 4, 2, 3).reshape(channels, channels, 3, 3),
        (blocked_weights(w),),
    )
    yield Case(
        "oihw to OIhw4i16o4i int8",
        lambda w: D.reorder(w, "OIhw4i16o4i", dtype=torch.int8, dst_scale=scale),
        lambda w: blocked_int8_weights(quantized(w, scale, 0, -128).to(torch.int8)),
        (w,),
    )
    if x.device.type == "cpu" and torch.backends.mkldnn.is_available():
        yield from onednn(w)


def fake_quantization(x: Tensor) -> Iterator[Case]:
    """Quantized and dequantized, with a fixed scale: gradients go to x alone."""
    scale = torch.rand(64, device=x.device) * 0.05 + 0.01
    zero = torch.randint(-20, 20, (64,), device=x.device, dtype=torch.int32)
    int8 = {"dtype": torch.int8, "round_before_zero_point": True}
    channels = {"dst_scale": scale.view(1, -1, 1, 1), "dst_zero_point": zero.view(1, -1, 1, 1)}
    yield Case(
        "fake quantize per tensor",
        lambda x: D.fake_reorder(x, dst_scale=0.03, dst_zero_point=5, **int8),
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.03, 5, -128, 127),
        (x,),
    )
    yield Case(
        "fake quantize per channel",
        lambda x: D.fake_reorder(x, **channels, **int8),
        lambda x: torch.fake_quantize_per_channel_affine(x, scale, zero, 1, -128, 127),
        (x,),
    )
    nhwc = x.contiguous(memory_format=torch.channels_last)
    yield Case(
        "fake quantize per channel, nhwc",
        lambda x: D.fake_reorder(x, **channels, **int8),
        lambda x: torch.fake_quantize_per_channel_affine(x, scale, zero, 1, -128, 127),
        (nhwc,),
    )


def quantization(x: Tensor) -> Iterator[Case]:
    """To uint8 and back, in torch's rounding; sums."""
    cl = torch.channels_last
    scale = torch.rand(1, 64, 1, 1, device=x.device) * 0.05 + 0.01
    zero = torch.randint(100, 150, (1, 64, 1, 1), device=x.device, dtype=torch.int32)
    uint8 = {"dtype": torch.uint8, "round_before_zero_point": True}
    per_tensor = {"dst_scale": 0.03, "dst_zero_point": 128, **uint8}
    per_channel = {"dst_scale": scale, "dst_zero_point": zero, **uint8}
    codes = torch.quantize_per_tensor(x, 0.03, 128, torch.quint8)
    by_tensor = lambda x: quantized(x.double(), 0.03, 128, 0)  # noqa: E731
    by_channel = lambda x: quantized(x.double(), scale, zero, 0)  # noqa: E731
    yield Case(
        "quantize per tensor",
        lambda x: D.reorder(x, **per_tensor),
        lambda x: torch.quantize_per_tensor(x, 0.03, 128, torch.quint8),
        (x,),
        exact=by_tensor,
    )
    yield Case(
        "quantize per tensor, to nhwc",
        lambda x: D.reorder(x, "nhwc", **per_tensor),
        lambda x: torch.quantize_per_tensor(x, 0.03, 128, torch.quint8).contiguous(
            memory_format=cl
        ),
        (x,),
        exact=by_tensor,
    )
    # (torch.quantize_per_channel takes several times as long as this.)
    yield Case(
        "quantize per channel",
        lambda x: D.reorder(x, **per_channel),
        lambda x: quantized(x, scale, zero, 0).to(torch.uint8),
        (x,),
        exact=by_channel,
    )
    yield Case(
        "quantize per channel, to nhwc",
        lambda x: D.reorder(x, "nhwc", **per_channel),
        lambda x: quantized(x, scale, zero, 0).to(torch.uint8).contiguous(memory_format=cl),
        (x,),
        exact=by_channel,
    )
    yield Case(
        "dequantize",
        lambda x: D.reorder(x, dtype=torch.float32, scale=0.03, src_zero_point=128),
        lambda x: codes.dequantize(),
        (codes.int_repr(),),
    )
    yield Case(
        "dequantize nhwc to nchw",
        lambda x: D.reorder(x, "nchw", dtype=torch.float32, scale=0.03, src_zero_point=128),
        lambda x: x.contiguous().to(torch.float32).sub_(128).mul_(0.03),
        (codes.int_repr().contiguous(memory_format=cl),),
    )
    y = torch.randn_like(x)
    yield Case(
        "sum",
        lambda x, y: D.reorder(x, accumulate=y, beta=0.5),
        lambda x, y: torch.add(x, y, alpha=0.5),
        (x, y),
    )
    yield Case(
        "sum nchw to nhwc",
        lambda x, y: D.reorder(x, "nhwc", accumulate=y, beta=0.5),
        lambda x, y: x.contiguous(memory_format=cl).add_(y, alpha=0.5),
        (x, y.contiguous(memory_format=cl)),
    )


def reorder(device: str) -> Iterator[Case]:
    x = torch.randn(320 if device == "cuda" else 4, 64, 112, 112, device=device)
    for group in (layouts, conversions, blocks, quantization, fake_quantization):
        yield from group(x)


def epilogues(device: str) -> Iterator[Case]:
    """Activations and residuals in the kernels, beside our convolution and torch's passes after it.

    Through autograd: the backward pass is that of a network, with all gradients.
    """
    many = 8 if device == "cuda" else 1
    layers = [
        ("rn50.3x3.56", 8, 64, 64, 3, 1, 56),
        ("rn50.1x1.56", 8, 64, 256, 1, 1, 56),
        ("mbv2.dw56", 8, 144, 144, 3, 144, 56),
        ("sd.vae", 1, 128, 128, 3, 1, 256),
    ]
    kinds = [("relu", torch.relu, False), ("silu", F.silu, False), ("gelu", F.gelu, True)]
    for (layout, memory_format), layer, kind in product(LAYOUTS.items(), layers, kinds):
        (name, n, ic, oc, k, groups, side), (activation, function, has_residual) = layer, kind
        n *= many
        x = randn(n, ic, side, side, device=device, memory_format=memory_format)
        w = torch.randn(oc, ic // groups, k, k, device=device) / (ic // groups * k * k) ** 0.5
        y = randn(n, oc, side, side, device=device, memory_format=memory_format)
        options = {"pads_begin": k // 2, "pads_end": k // 2, "groups": groups}
        options |= {"data_format": "NCX", "weights_format": "OIX"}

        def ours(x, w, r=None, activation=activation, options=options):
            return D.convolution(x, w, activation=activation, residual=r, **options)

        def apart(x, w, r=None, function=function, options=options):
            y = D.convolution(x, w, **options)
            return function(y if r is None else y + r)

        def exact(x, w, r=None, function=function, k=k, groups=groups):
            y = F.conv2d(x, w, padding=k // 2, groups=groups)
            return function(y if r is None else y + r)

        yield Case(
            f"{name} {layout} {activation}{' + residual' if has_residual else ''}, apart",
            ours,
            apart,
            (x, w, y) if has_residual else (x, w),
            y.numel() * w[0].numel(),
            exact,
        )


def same_padding(device: str) -> Iterator[Case]:
    """SAME and other paddings with unequal sides, which torch spells with F.pad."""
    cases = [
        ("same rn50.conv1", 4, 3, 64, 7, 2, 1, 224, (2, 3, 2, 3), "same_upper"),
        ("same 3x3s2.56", 8, 128, 128, 3, 2, 1, 56, (0, 1, 0, 1), "same_upper"),
        ("same dw5s2.28", 8, 240, 240, 5, 2, 240, 28, (1, 2, 1, 2), "same_upper"),
        ("pads (2, 0) 3x3.56", 8, 64, 64, 3, 1, 1, 56, (2, 0, 2, 0), ((2, 0), (2, 0))),
    ]
    many = 8 if device == "cuda" else 1
    for (layout, memory_format), case in product(LAYOUTS.items(), cases):
        name, n, ic, oc, k, stride, groups, side, pads, padding = case
        x = randn(many * n, ic, side, side, device=device, memory_format=memory_format)
        w = torch.randn(oc, ic // groups, k, k, device=device) / (ic // groups * k * k) ** 0.5

        def ours(x, w, stride=stride, padding=padding, groups=groups):
            return D.conv2d(x, w, None, stride, padding, groups=groups)

        def torchs(x, w, stride=stride, pads=pads, groups=groups):
            return F.conv2d(F.pad(x, pads), w, None, stride, groups=groups)

        operations = ours(x, w).numel() * w[0].numel()
        yield Case(f"{name} {layout}, F.pad", ours, torchs, (x, w), operations)


def conv(device: str, dtype: torch.dtype | None = None) -> Iterator[Case]:
    """The layers of real networks in conv_layers.csv: results, and the gradients of both inputs.
    Then what follows and what precedes a convolution. With a type, the layers alone.
    """
    with (Path(__file__).parent / "conv_layers.csv").open() as file:
        layers = list(csv.DictReader(file))
    dtypes = (torch.float32, torch.bfloat16) if device == "cuda" else (torch.float32,)
    for own, layout, layer in product((dtype,) if dtype else dtypes, ("ncx", "nxc"), layers):
        if own == torch.int8:
            yield from quantized_layer(layer, layout, device)
        else:
            yield from layer_passes(layer, layout, own, device)
    if dtype is not None:
        return
    yield from epilogues(device)
    yield from same_padding(device)


def ints(text: str) -> list[int]:
    return [int(number) for number in text.split("x")]


ATTRIBUTES = ("n", "ic", "oc", "stride", "padding", "dilation", "groups")


def quantized_layer(layer: dict[str, str], layout: str, device: str) -> Iterator[Case]:
    """uint8 images by int8 weights to uint8, with zero points, a scale for each channel and a bias.

    The peers are our convolution of float32, and torch's quantized one of weights packed before.
    On machines without VNNI torch's sums of two products saturate, which shows in its errors.
    """
    n, ic, oc, stride, padding, dilation, groups = (int(layer[key]) for key in ATTRIBUTES)
    spatial, kernel = ints(layer["spatial"]), ints(layer["kernel"])
    dims = len(spatial)
    x = torch.randint(256, (n, ic, *spatial), dtype=torch.uint8, device=device)
    w = torch.randint(-127, 128, (oc, ic // groups, *kernel), device=device).to(torch.int8)
    if layout == "nxc":
        x, w = (t.movedim(1, -1).contiguous().movedim(-1, 1) for t in (x, w))
    bias = torch.randn(oc, device=device)
    scales = (torch.rand(oc, device=device) + 0.1) * 0.02 / (ic // groups * prod(kernel)) ** 0.5
    attributes = [[stride] * dims, [padding] * dims, [dilation] * dims]
    names = ("strides", "pads_begin", "dilations")
    steps = {"src_scale": 0.02, "src_zero_point": 128, "dst_scale": 0.05, "dst_zero_point": 110}
    given = dict(zip(names, attributes, strict=True)) | steps | {"groups": groups}
    given |= {"pads_end": attributes[1], "data_format": "NCX", "weights_format": "OIX"}

    def ours(x: Tensor, w: Tensor) -> Tensor:
        return D.quantized_convolution(
            x, w, bias, weights_scale=scales, dtype=torch.uint8, **given, **choice.options
        )

    def exact(x: Tensor, w: Tensor) -> Tensor:
        convolve = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
        sums = convolve(x - 128, w, None, *attributes, groups).movedim(1, -1)
        v = (sums * 0.02 * scales + bias) / 0.05 + 110
        return v.round().clamp(0, 255).movedim(-1, 1)

    name = f"{layer['name']} {layout} u8"
    operations = prod(ours(x.to("cpu"), w.to("cpu")).shape) * w[0].numel()
    floats = [t.float() for t in (x, w)]
    float_layer = (D.conv1d, D.conv2d, D.conv3d)[dims - 1]
    yield Case(
        f"{name}, float32",
        ours,
        lambda x, w: float_layer(*floats, bias, *attributes, groups),
        (x, w),
        operations,
        exact=exact,
        is_comparable=False,
    )
    if device == "cpu":
        yield Case(name, ours, torchs_quantized(x, w, bias, scales, steps, attributes, groups),
                   (x, w), operations, exact=exact)  # fmt: skip


def torchs_quantized(
    x: Tensor,
    w: Tensor,
    bias: Tensor,
    scales: Tensor,
    steps: dict[str, float],
    attributes: list[list[int]],
    groups: int,
) -> Callable[..., Tensor]:
    """torch.ops.quantized.conv1d to conv3d, by the engine for this machine."""
    torch.backends.quantized.engine = "x86"
    dims = w.dim() - 2
    qx = torch._make_per_tensor_quantized_tensor(
        x, steps["src_scale"], int(steps["src_zero_point"])
    )
    zeros = torch.zeros(len(scales), dtype=torch.long)
    qw = torch._make_per_channel_quantized_tensor(w, scales.double(), zeros, 0)
    ops = torch.ops.quantized
    pack, convolve = (
        (ops.conv1d_prepack, ops.conv1d),
        (ops.conv2d_prepack, ops.conv2d),
        (ops.conv3d_prepack, ops.conv3d),
    )[dims - 1]
    packed = pack(qw, bias, *attributes, groups)
    return lambda *_: convolve(qx, packed, steps["dst_scale"], int(steps["dst_zero_point"]))


def layer_passes(
    layer: dict[str, str], layout: str, dtype: torch.dtype, device: str
) -> Iterator[Case]:
    n, ic, oc, stride, padding, dilation, groups = (int(layer[key]) for key in ATTRIBUTES)
    name = f"{layer['name']} {layout}"
    if device == "cuda" or dtype != torch.float32:
        name = f"{name} {SHORT[dtype]}"
    if device == "cuda":
        n *= 8
    spatial, kernel = ints(layer["spatial"]), ints(layer["kernel"])
    dims = len(spatial)
    x = torch.randn(n, ic, *spatial, device=device, dtype=dtype)
    if layout == "nxc":  # a 1-D tensor has no memory format of its own
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    w = torch.randn(oc, ic // groups, *kernel, device=device) / (ic // groups * prod(kernel))
    w = w.to(dtype)
    attributes = [[stride] * dims, [padding] * dims, [dilation] * dims]
    convolve = (F.conv1d, F.conv2d, F.conv3d)[dims - 1]
    ours = (D.conv1d, D.conv2d, D.conv3d)[dims - 1]
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    sizes = convolve(x.to("meta"), w.to("meta"), **options).shape
    operations = prod(sizes) * w[0].numel()
    yield Case(
        f"{name} result",
        lambda x, w: ours(x, w, **options),
        lambda x, w: convolve(x, w, **options),
        (x, w),
        operations,
    )
    grad = torch.randn(sizes, device=device, dtype=dtype)
    if layout == "nxc":
        grad = grad.movedim(1, -1).contiguous().movedim(-1, 1)
    given = {"strides": attributes[0], "pads_begin": attributes[1], "dilations": attributes[2]}
    given |= {"groups": groups, "data_format": "NCX", "weights_format": "OIX"}
    data = torch.ops.torch_dnnl.convolution_backward_data
    weights = torch.ops.torch_dnnl.convolution_backward_weights

    def torchs(grad: Tensor, x: Tensor, w: Tensor, of: int) -> Tensor:
        mask = [of == 0, of == 1, False]
        return torch.ops.aten.convolution_backward(
            *(grad, x.to(grad), w.to(grad), None, *attributes, False, [0], groups, mask)
        )[of]

    yield Case(
        f"{name} data gradient",
        lambda grad, w: data(grad, w, spatial, **given, **choice.options),
        lambda grad, w: torchs(grad, x, w, 0),
        (grad, w),
        operations,
    )
    yield Case(
        f"{name} weights gradient",
        lambda grad, x: weights(grad, x, kernel, **given, **choice.options),
        lambda grad, x: torchs(grad, x, w, 1),
        (grad, x),
        operations,
    )


OPERATORS = {
    "overhead": overhead,
    "resample": resample,
    "images": images,
    "reorder": reorder,
    "conv": conv,
}

# Beginnings of the names of a few cases, of every kind, with which choices of kernels are checked.
FEW = {
    "resample": (
        *("nearest x2 nchw f32", "nearest x2 nhwc f32", "bilinear x2 n", "bicubic x2 nchw bf16"),
        *("bilinear x0.5 n", "bicubic antialias nhwc", "area nchw f32"),
    ),
    "images": ("256 to 224 antialias n", "1080p x0.5 nhwc", "1080p x2 nchw"),
    "reorder": (
        *("nchw to n", "nhwc to nchw u8", "f32 to bf16", "f32 nchw to bf16 nhwc", "nChw16c to"),
        *("oihw to O", "quantize per channel", "dequantize", "sum nchw to", "fake quantize"),
    ),
    "conv": tuple(
        f"{layer} {layout} "
        for layout in ("ncx", "nxc")
        for layer in (
            *("rn50.conv1", "rn50.3x3.56", "rn50.3x3.7", "rn50.1x1.56", "rn50.3x3s2.56"),
            *("resnext.g32", "mbv2.dw14", "effnet.dw5s2", "convnext.dw7.7", "x3d.dw", "aspp.d12"),
            *("wavenet.d512", "vit.patch"),
        )
    ),
}
