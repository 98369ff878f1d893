"""Transposed convolution: layers of decoders, generators and vocoders."""

from collections.abc import Iterator
from itertools import product
from math import prod

import torch
import torch.nn.functional as F

import torch_dnnl.functional as D

from .case import Case

# The name, N, C, O, the sizes, kernel, stride, padding, output padding and groups.
LAYERS = [
    ("dcgan.8", 16, 512, 256, (8, 8), 4, 2, 1, 0, 1),
    ("dcgan.rgb", 16, 64, 3, (32, 32), 4, 2, 1, 0, 1),
    ("unet.1024", 1, 1024, 512, (28, 28), 2, 2, 0, 0, 1),
    ("unet.128", 1, 128, 64, (112, 112), 2, 2, 0, 0, 1),
    ("cyclegan.256", 1, 256, 128, (64, 64), 3, 2, 1, 1, 1),
    ("sam.256", 1, 256, 64, (64, 64), 2, 2, 0, 0, 1),
    ("simplebaseline", 4, 256, 256, (32, 24), 4, 2, 1, 0, 1),
    ("fcn.bilinear", 1, 21, 21, (64, 64), 16, 8, 4, 0, 21),
    ("dense.3x3", 2, 64, 64, (56, 56), 3, 1, 1, 0, 1),
    ("hifigan.512", 1, 512, 256, (64,), 16, 8, 4, 0, 1),
    ("hifigan.128", 1, 128, 64, (4096,), 4, 2, 1, 0, 1),
    ("unet3d.128", 1, 128, 64, (16, 16, 16), 2, 2, 0, 0, 1),
]


def conv_transpose(device: str) -> Iterator[Case]:
    for layout, layer in product(("ncx", "nxc"), LAYERS):
        name, n, ic, oc, sizes, k, *numbers = layer
        stride, padding, output_padding, groups = numbers
        n *= 8 if device == "cuda" else 1
        x = torch.randn(n, ic, *sizes, device=device)
        if layout == "nxc":
            x = x.movedim(1, -1).contiguous().movedim(-1, 1)
        w = torch.randn(ic, oc // groups, *[k] * len(sizes), device=device) / ic**0.5
        b = torch.randn(oc, device=device)
        ours, torchs = (getattr(at, f"conv_transpose{len(sizes)}d") for at in (D, F))
        options = (stride, padding, output_padding, groups)
        yield Case(
            f"{name} {layout}",
            lambda x, w, b, ours=ours, options=options: ours(x, w, b, *options),
            lambda x, w, b, torchs=torchs, options=options: torchs(x, w, b, *options),
            (x, w, b),
            n * prod(sizes) * w[0].numel() * ic,
        )
