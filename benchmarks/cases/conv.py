"""Convolution: layers of real networks, epilogues and unequal padding."""

from collections.abc import Iterator
from itertools import product
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

import torch_dnnl.functional as D
from torch_dnnl.functional._algorithm import convolution as choice

from .case import LAYOUTS, SHORT, Case, randn
from .layers import Layer, read_layers
from .quantized_conv import quantized_layer


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
    dtypes = (torch.float32, torch.bfloat16) if device == "cuda" else (torch.float32,)
    for own, layout, layer in product((dtype,) if dtype else dtypes, ("ncx", "nxc"), read_layers()):
        if own == torch.int8:
            yield from quantized_layer(layer, layout, device)
        else:
            yield from layer_passes(layer, layout, own, device)
    if dtype is not None:
        return
    yield from epilogues(device)
    yield from same_padding(device)


def layer_passes(layer: Layer, layout: str, dtype: torch.dtype, device: str) -> Iterator[Case]:
    name = f"{layer.name} {layout}"
    if device == "cuda" or dtype != torch.float32:
        name = f"{name} {SHORT[dtype]}"
    n = 8 * layer.n if device == "cuda" else layer.n
    x = torch.randn(n, layer.ic, *layer.spatial, device=device, dtype=dtype)
    if layout == "nxc":  # a 1-D tensor has no memory format of its own
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    w = torch.randn(layer.weights_shape, device=device) / layer.terms
    w = w.to(dtype)
    convolve = layer.of((F.conv1d, F.conv2d, F.conv3d))
    ours = layer.of((D.conv1d, D.conv2d, D.conv3d))
    options = {key: getattr(layer, key) for key in ("stride", "padding", "dilation", "groups")}
    sizes = convolve(x.to("meta"), w.to("meta"), **options).shape
    operations = prod(sizes) * layer.terms
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
    data = torch.ops.torch_dnnl.convolution_backward_data
    weights = torch.ops.torch_dnnl.convolution_backward_weights

    def torchs(grad: Tensor, x: Tensor, w: Tensor, of: int) -> Tensor:
        mask = [of == 0, of == 1, False]
        return torch.ops.aten.convolution_backward(
            *(grad, x.to(grad), w.to(grad), None, *layer.attributes, False, [0], layer.groups, mask)
        )[of]

    yield Case(
        f"{name} data gradient",
        lambda grad, w: data(grad, w, layer.spatial, **layer.options, **choice.options),
        lambda grad, w: torchs(grad, x, w, 0),
        (grad, w),
        operations,
    )
    yield Case(
        f"{name} weights gradient",
        lambda grad, x: weights(grad, x, layer.kernel, **layer.options, **choice.options),
        lambda grad, x: torchs(grad, x, w, 1),
        (grad, x),
        operations,
    )
