"""Reorder: layouts, types, and both at once."""

from collections.abc import Iterator

import torch
from torch import Tensor

import torch_dnnl.functional as D

from .case import SHORT, Case


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
    yield Case("copy f32", lambda x: D.reorder(x, "nchw"), lambda x: x.clone(), (x,))


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
