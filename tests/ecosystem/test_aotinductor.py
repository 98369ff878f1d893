"""Packages of AOTInductor: every operator compiles into one, which runs at sizes of its own."""

import pytest
import torch
from torch import nn
from torch.export import Dim, export

import torch_dnnl
import torch_dnnl.functional as D

pytestmark = pytest.mark.ecosystem

IMAGES = torch.randn(2, 3, 12, 10, generator=torch.Generator().manual_seed(1))


class EveryOperator(nn.Module):
    """Calls each operator with its defaults, and with lists."""

    def __init__(self):
        super().__init__()
        self.first = torch_dnnl.nn.Conv2d(3, 8, 3)
        self.same = torch_dnnl.nn.Conv2d(8, 8, 3, 2, "same_upper", groups=2)
        self.up = torch_dnnl.nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.fused = torch_dnnl.nn.Conv(
            2, 4, 6, 3, data_format="NCX", pads_begin=1, activation="silu"
        )
        self.register_buffer("codes", torch.randint(-99, 99, (5, 6, 1, 1)).to(torch.int8))

    def forward(self, x):
        x = self.fused(self.up(self.same(self.first(x))))
        y = [
            D.interpolate(x, scale_factor=2.0),
            D.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True),
            D.interpolate(x, scale_factor=1.5, mode="bilinear", align_corners=True),
            D.interpolate(x, (7, 5), mode="bicubic"),
            D.resample(x, scale_factor=1.5, mode="cubic", recompute_scale_factor=False),
            D.resample(x, (5, 6), mode="area"),
            D.reorder(x, "acdb", scale=0.5),
            D.fake_reorder(x, dtype=torch.int8, dst_scale=0.02),
        ]
        codes = D.reorder(x, dtype=torch.int8, dst_scale=0.02)
        sums = D.quantized_convolution(
            codes, self.codes, data_format="NCX", weights_format="OIX", dst_scale=9.0
        )
        # As in programs that were exported when lists were not optional.
        old = torch.ops.torch_dnnl.convolution(
            x[:, :4], self.fused.weight, None, [], [], [], [], data_format="NCX"
        )
        return [*y, codes, sums, D.reorder(x.sum(), scale=3.0), old]


def gradients(weight, x):
    """The backward operators, as a program of their own."""
    ops = torch.ops.torch_dnnl
    grad = ops.convolution(x, weight, data_format="NCX", weights_format="OIX")
    layout = {"data_format": "NCX", "weights_format": "OIX"}
    h, w = x.shape[2:]
    gelu = ops.convolution_fused(x, weight, **layout, activation="gelu", keep_preactivation=True)
    return [
        ops.convolution_backward_data(grad, weight, [h, w], **layout),
        ops.convolution_backward_weights(grad, x, [3, 3], **layout),
        *ops.convolution_fused_backward(
            *(grad, gelu[1], "gelu", x, weight, [h, w], [3, 3]), **layout, bias=True, residual=True
        ),
        ops.resample_backward(x, [6, 5], mode="linear"),
        ops.reorder_backward(x, list(x.shape), scale_value=2.0),
        ops.reorder_backward(x.sum(), [], scale_value=2.0),
        ops.fake_reorder_backward(x, ops.fake_reorder(x, torch.int8, dst_scale_value=0.01)[1]),
    ]


class Gradients(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3, 3, 3))

    def forward(self, x):
        return gradients(self.weight, x)


def package(module, path, dynamic):
    sizes = {0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO} if dynamic else None
    program = export(module, (IMAGES,), dynamic_shapes=(sizes,))
    return torch._inductor.aoti_compile_and_package(program, package_path=str(path))


@pytest.mark.parametrize(
    "cls, dynamic",
    [(EveryOperator, False), (EveryOperator, True), (Gradients, True)],
    ids=["static", "dynamic", "gradients"],
)
def test_package(cls, dynamic, tmp_path):
    torch.manual_seed(0)
    module = cls().eval()
    with torch.no_grad():
        path = package(module, tmp_path / "model.pt2", dynamic)
        inputs = [IMAGES, torch.randn(3, 3, 17, 14)] if dynamic else [IMAGES]
        loaded = torch._inductor.aoti_load_package(path)
        for x in inputs:
            expected = module(x)
            results = loaded(x)
            assert len(results) == len(expected)
            for result, wanted in zip(results, expected, strict=True):
                torch.testing.assert_close(result, wanted)


def test_optimized_model(tmp_path):
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.SiLU())]
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), *layers).eval()
    sizes = ({0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO},)
    with torch.no_grad():
        optimized = torch_dnnl.optimize(model, (IMAGES,), dynamic_shapes=sizes)
        loaded = torch._inductor.aoti_load_package(package(optimized, tmp_path / "m.pt2", True))
        for x in (IMAGES, torch.randn(3, 3, 17, 14)):
            torch.testing.assert_close(loaded(x), model(x))


class EveryLayout(nn.Module):
    """Flattened results: another stride than that of a fake tensor gives other values."""

    def __init__(self):
        super().__init__()
        self.conv = torch_dnnl.nn.Conv2d(3, 8, 3, padding=1)
        self.gray = torch_dnnl.nn.Conv2d(1, 8, 3)
        self.up = torch_dnnl.nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.register_buffer("codes", torch.randint(-99, 99, (4, 3, 3, 3)).to(torch.int8))

    def forward(self, x):
        layout = {"data_format": "NCX", "weights_format": "OIX"}
        conv = self.conv(x)
        pixel = x.mean((2, 3), keepdim=True)
        codes = D.reorder(x, dtype=torch.uint8, dst_scale=0.05)
        fused = D.convolution(
            x,
            self.conv.weight,
            pads_begin=1,
            pads_end=1,
            activation="silu",
            residual=conv,
            **layout,
        )
        results = [
            *(conv, fused, self.up(conv), self.gray(x[:, :1]), self.gray(x.mean(1, keepdim=True))),
            *(D.interpolate(x, scale_factor=2), D.interpolate(pixel, (4, 5), mode="bilinear")),
            *(D.resample(x, (7, 5), mode="cubic"), D.interpolate(conv[:1], (3, 4), mode="area")),
            D.quantized_convolution(codes, self.codes, pads_begin=1, dtype=torch.float32, **layout),
            *(D.reorder(conv, dtype=torch.bfloat16), D.fake_reorder(x, dtype=torch.int8)),
        ]
        return [result.flatten(2) * 2 for result in results]


LAYOUTS = {
    "planes": lambda n, h, w: torch.randn(n, 3, h, w),
    "channels_last": lambda n, h, w: torch.randn(n, h, w, 3).permute(0, 3, 1, 2),
    "decoded": lambda n, h, w: torch.randn(h, w, 3).permute(2, 0, 1)[None],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout, tmp_path):
    """Without the checks of strides, which would hide a wrong one."""
    torch.manual_seed(0)
    module, x = EveryLayout().eval(), LAYOUTS[layout](1, 12, 10)
    sizes = ({2: Dim.AUTO, 3: Dim.AUTO},)
    with torch.no_grad(), torch._inductor.config.patch(size_asserts=False):
        program = export(module, (x,), dynamic_shapes=sizes)
        path = torch._inductor.aoti_compile_and_package(
            program, package_path=str(tmp_path / "model.pt2")
        )
        loaded = torch._inductor.aoti_load_package(path)
        for size in ((12, 10), (9, 17)):
            image = LAYOUTS[layout](1, *size)
            for result, wanted in zip(loaded(image), module(image), strict=True):
                torch.testing.assert_close(result, wanted)
