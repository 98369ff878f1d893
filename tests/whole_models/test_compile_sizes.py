"""Compiled models whose images change in size and layout: inference, training, packages.

Images come as tensors are made, as decoders give them, and as tokens that were reshaped.
"""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.export import Dim

import torch_dnnl
import torch_dnnl.functional as D
import torch_dnnl.inductor


def planar(n, h, w):
    return torch.rand(n, 3, h, w)


def decoded(n, h, w):
    """[H, W, C], as NumPy, Pillow and OpenCV have it; a batch of one by an index of None."""
    images = [torch.rand(h, w, 3).permute(2, 0, 1)[None] for _ in range(n)]
    return images[0] if n == 1 else torch.cat(images)


def first_of_a_batch(n, h, w):
    return torch.rand(n + 1, h, w, 3).permute(0, 3, 1, 2)[:n]


IMAGES = {f.__name__: f for f in (planar, decoded, first_of_a_batch)}
SIZES = [(1, 8, 9), (1, 11, 10), (2, 9, 12)]


class EveryOperator(nn.Module):
    """A result with other strides than a fake tensor has is another one once it is flattened."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.each = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.up = nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1)
        self.nearest = nn.Upsample(scale_factor=(1.5, 2))
        codes = torch.randint(-99, 99, (4, 3, 3, 3)).to(torch.int8)
        self.register_buffer("codes", codes)

    def forward(self, x):
        conv = self.conv(x)
        x = x * 2
        each = F.silu(self.each(conv) + conv)
        results = [conv, each, self.up(each), self.nearest(each), F.max_pool2d(each, 2)]
        results.append(F.interpolate(each, scale_factor=2, mode="bilinear"))
        results.append(F.interpolate(x, (7, 5), mode="bicubic", antialias=True))
        results.append(F.adaptive_avg_pool2d(each, 3))
        # Functions of torch_dnnl alone.
        codes = D.reorder(x, dtype=torch.uint8, dst_scale=0.02)
        options = {"data_format": "NCX", "weights_format": "OIX", "dtype": torch.float32}
        results.append(D.quantized_convolution(codes, self.codes, pads_begin=1, **options))
        results.append(D.fake_reorder(x, dtype=torch.int8, dst_scale=0.25))
        return [result.flatten(2) * 2 for result in results]


def assert_close(actual, expected):
    assert len(actual) == len(expected)
    for result, wanted in zip(actual, expected, strict=True):
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-4)


def exported(model, x):
    sizes = ({2: Dim.AUTO, 3: Dim.AUTO},)
    return torch.export.export(model, (x,), dynamic_shapes=sizes).module()


def compiled(model, backend):
    return torch.compile(model, backend=backend, dynamic=True)


WAYS = {
    "accelerate": lambda model, x: torch_dnnl.accelerate()(model.forward),
    "convert": lambda model, x: torch_dnnl.convert(model),
    "export": lambda model, x: exported(torch_dnnl.convert(model), x),
    "accelerate, aot_eager": lambda model, x: compiled(
        torch_dnnl.accelerate()(model.forward), "aot_eager"
    ),
    "convert, aot_eager": lambda model, x: compiled(torch_dnnl.convert(model), "aot_eager"),
    "convert, inductor": lambda model, x: compiled(torch_dnnl.convert(model), "inductor"),
    "torch_dnnl": lambda model, x: compiled(model, "torch_dnnl"),
}
# Code for a CPU takes long to compile.
COMBINATIONS = [
    (way, layout)
    for way in WAYS
    for layout in IMAGES
    if way not in ("convert, inductor", "torch_dnnl") or layout == "decoded"
]


@pytest.mark.parametrize("way, layout", COMBINATIONS)
def test_every_operator(way, layout):
    torch._dynamo.reset()
    model = EveryOperator().eval()
    with torch.no_grad():
        sizes = SIZES[:2] if way == "export" else SIZES  # a program for a batch of one
        images = [IMAGES[layout](*size) for size in sizes]
        run = WAYS[way](model, images[0])
        for x in images:
            assert_close(run(x), model(x))


def test_tokens():
    """The view has any stride where the batch has one image."""

    def function(x, h, w):
        image = x.permute(0, 2, 1).reshape(1, -1, h, w)
        return F.interpolate(image, scale_factor=2, mode="bilinear").flatten(2) * 2

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="torch_dnnl", dynamic=True)
    for h, w in ((16, 16), (9, 20)):
        x = torch.rand(1, h * w, 16)
        torch.testing.assert_close(compiled(x, h, w), function(x, h, w))


# Each kind of the table of preferences, where torch's convolutions and torch_dnnl's are mixed.
NETWORKS = {
    "pools": lambda: [
        *(nn.Conv2d(3, 16, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, padding=1)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 3)),
    ],
    "stem and depthwise": lambda: [
        *(nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.GELU()),
    ],
    "5x5": lambda: [nn.Conv2d(3, 16, 5, padding=2), nn.BatchNorm2d(16), nn.SiLU()],
    "groups": lambda: [
        *(nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, padding=1, groups=4), nn.ReLU()),
        nn.Conv2d(16, 16, 1),
    ],
    "transposed": lambda: [
        *(nn.Conv2d(3, 8, 7, 2, 3), nn.Hardswish(), nn.ConvTranspose2d(8, 16, 2, stride=2)),
        *(nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(16, 4, 3, dilation=2)),
    ],
}


@pytest.mark.parametrize("layout", ["planar", "decoded"])
@pytest.mark.parametrize("name", NETWORKS)
def test_training(name, layout):
    """Saved tensors have symbols as strides in the graph of the backward pass."""
    torch._dynamo.reset()
    model = nn.Sequential(*NETWORKS[name]())
    other = copy.deepcopy(model)
    train = torch.compile(other, backend="torch_dnnl")
    of_input = layout == "planar"
    for h, w in ((32, 40), (48, 64), (24, 24)):
        x = IMAGES[layout](2, h, w)
        gradients = []
        for each in (train, model):
            image = x.detach().clone().requires_grad_(of_input)
            torch._dynamo.mark_dynamic(image, [2, 3])
            y = each(image)
            inputs = [*(other if each is train else model).parameters(), *[image] * of_input]
            gradients.append([y, *torch.autograd.grad(y.square().mean(), inputs)])
        assert_close(*gradients)


def test_sums_with_sizes():
    """A size that is a symbol is no residual."""
    torch._dynamo.reset()
    conv = nn.Conv2d(3, 16, 3, padding=1)

    def function(x):
        return (conv(x) + x.shape[2]).relu() * x.shape[3] + conv(x)

    run = torch.compile(function, backend="torch_dnnl", dynamic=True)
    with torch.no_grad():
        for size in ((2, 8, 9), (2, 11, 10)):
            x = planar(*size)
            torch.testing.assert_close(run(x), function(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layout", IMAGES)
def test_strides_of_results(layout):
    """A view that the model's own result allows is possible."""
    torch._dynamo.reset()
    model = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 16, 3)).eval()

    def function(x):
        resized = F.interpolate(x, scale_factor=2, mode="bilinear")
        return [model(x), model[0](resized), resized, F.adaptive_avg_pool2d(x, 5)]

    run = torch.compile(function, backend="torch_dnnl")
    with torch.no_grad():
        for size in SIZES[:2]:
            x = IMAGES[layout](*size)
            expected = function(x)
            results = run(x)
            assert_close(results, expected)
            assert [y.stride() for y in results] == [y.stride() for y in expected]
