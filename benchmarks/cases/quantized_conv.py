"""Convolution of bytes."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

import torch_dnnl.functional as D
from torch_dnnl.functional._algorithm import convolution as choice

from .case import Case
from .layers import Layer


def quantized_layer(layer: Layer, layout: str, device: str) -> Iterator[Case]:
    """uint8 images by int8 weights to uint8, with zero points, a scale for each channel and a bias.

    The peers are our convolution of float32, and torch's quantized one of weights packed before.
    On machines without VNNI torch's sums of two products saturate, which shows in its errors.
    """
    images = (layer.n, layer.ic, *layer.spatial)
    x = torch.randint(256, images, dtype=torch.uint8, device=device)
    w = torch.randint(-127, 128, layer.weights_shape, device=device).to(torch.int8)
    if layout == "nxc":
        x, w = (t.movedim(1, -1).contiguous().movedim(-1, 1) for t in (x, w))
    bias = torch.randn(layer.oc, device=device)
    scales = (torch.rand(layer.oc, device=device) + 0.1) * 0.02 / layer.terms**0.5
    steps = {"src_scale": 0.02, "src_zero_point": 128, "dst_scale": 0.05, "dst_zero_point": 110}
    given = layer.options | steps

    def ours(x: Tensor, w: Tensor) -> Tensor:
        return D.quantized_convolution(
            x, w, bias, weights_scale=scales, dtype=torch.uint8, **given, **choice.options
        )

    def exact(x: Tensor, w: Tensor) -> Tensor:
        convolve = layer.of((F.conv1d, F.conv2d, F.conv3d))
        sums = convolve(x - 128, w, None, *layer.attributes, layer.groups).movedim(1, -1)
        v = (sums * 0.02 * scales + bias) / 0.05 + 110
        return v.round().clamp(0, 255).movedim(-1, 1)

    name = f"{layer.name} {layout} u8"
    operations = ours(x, w).numel() * layer.terms
    floats = [t.float() for t in (x, w)]
    float_layer = layer.of((D.conv1d, D.conv2d, D.conv3d))
    yield Case(
        f"{name}, float32",
        ours,
        lambda x, w: float_layer(*floats, bias, *layer.attributes, layer.groups),
        (x, w),
        operations,
        exact=exact,
        is_comparable=False,
    )
    if device == "cpu":
        yield Case(name, ours, torchs_quantized(layer, x, w, bias, scales, steps),
                   (x, w), operations, exact=exact)  # fmt: skip


def torchs_quantized(
    layer: Layer, x: Tensor, w: Tensor, bias: Tensor, scales: Tensor, steps: dict[str, float]
) -> Callable[..., Tensor]:
    """torch.ops.quantized.conv1d to conv3d, by the engine for this machine."""
    torch.backends.quantized.engine = "x86"
    qx = torch._make_per_tensor_quantized_tensor(
        x, steps["src_scale"], int(steps["src_zero_point"])
    )
    zeros = torch.zeros(len(scales), dtype=torch.long)
    qw = torch._make_per_channel_quantized_tensor(w, scales.double(), zeros, 0)
    ops = torch.ops.quantized
    pack = layer.of((ops.conv1d_prepack, ops.conv2d_prepack, ops.conv3d_prepack))
    convolve = layer.of((ops.conv1d, ops.conv2d, ops.conv3d))
    packed = pack(qw, bias, *layer.attributes, layer.groups)
    return lambda *_: convolve(qx, packed, steps["dst_scale"], int(steps["dst_zero_point"]))
