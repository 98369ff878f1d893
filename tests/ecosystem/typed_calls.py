"""Calls as a user's program has them, for type checkers, which test_types.py runs over this file.

They report each line that ends with `# wrong`, and no other.
"""

import torch
from torch import Tensor
from typing_extensions import assert_type

import torch_dnnl
import torch_dnnl.functional as D
from torch_dnnl import formats, nn, quantization


def resizing(x: Tensor, any_name: str) -> None:
    assert_type(D.resample(x, 4), Tensor)
    D.resample(x, (4, 5), mode="lanczos3", coordinates="tf_crop_and_resize", roi=[0, 0, 1, 1])
    D.resample(x, scale_factor=(2, 0.5), nearest_mode="floor", mode="nearest", data_format="NXC")
    assert_type(D.interpolate(x, [4, 5], mode="nearest-exact"), Tensor)
    D.resample(x, 4, mode="bilinear")  # wrong
    D.resample(x, 4, mode=any_name)  # wrong
    D.resample(x, 4, coordinates="half-pixel")  # wrong
    D.resample(x, 4, nearest_mode="round")  # wrong
    D.resample(x, 4, data_format="NHWC")  # wrong
    D.resample(x, "4")  # wrong
    D.resample(x, 4, None, "linear")  # wrong
    D.resample(x, 4, dtype="float32")  # wrong
    D.interpolate(x, 4, mode="lanczos3")  # wrong
    D.interpolate(x.numpy(), 4)  # wrong


def reordering(x: Tensor, tag: str, steps: Tensor) -> None:
    assert_type(D.reorder(x, tag), Tensor)
    assert_type(D.reorder(x, "nChw16c", dtype=torch.int8, dst_scale=steps, axis=0), Tensor)
    weights, sums = D.reorder(x, dtype=torch.int8, dst_scale=0.1, compensation="s8s8")
    assert_type(weights, Tensor)
    assert_type(sums, Tensor)
    assert_type(D.reorder(x, compensation=None), Tensor)
    assert_type(D.fake_reorder(x, dtype=torch.uint8, dst_scale=0.1), Tensor)
    D.reorder(x, compensation="s8s8").clone()  # wrong
    D.reorder(x, compensation="u8s8")  # wrong
    D.reorder(x, torch.float16)  # wrong
    D.reorder(x, dst_scale="1")  # wrong
    D.reorder(x, axis=(1,))  # wrong
    D.fake_reorder(x, dtype=torch.int8, compensation="s8s8")  # wrong
    a, b = D.reorder(x).shape, D.reorder(x, tag)[1].shape
    assert_type(a, torch.Size)
    assert_type(b, torch.Size)


def convolving(x: Tensor, w: Tensor, b: Tensor) -> None:
    assert_type(D.conv2d(x, w, b, 2, "same_upper"), Tensor)
    D.conv2d(x, w, None, (1, 2), ((0, 1), (1, 1)), groups=2)
    D.conv1d(x, w, padding=((2, 0),))
    D.conv3d(x, w, padding=[1, 1, 1])
    D.conv_transpose2d(x, w, b, 2, 1, 1)
    assert_type(D.convolution(x, w, b, auto_pad="same_lower", activation="silu"), Tensor)
    D.convolution(x, w, data_format="NCX", weights_format="OIX", algorithm="winograd_4x4")
    D.convolution_transpose(x, w, weights_format="IOX", strides=[2, 2])
    D.quantized_convolution(x, w, src_scale=0.1, weights_scale=b, activation="relu6")
    D.conv2d(x, w, b, 1, "SAME")  # wrong
    D.conv2d(x, w, b, 1.5)  # wrong
    D.conv1d(x, w, padding=((1, 2, 3),))  # wrong
    D.conv_transpose2d(x, w, padding="same")  # wrong
    D.convolution(x, w, activation="softmax")  # wrong
    D.convolution(x, w, auto_pad="same")  # wrong
    D.convolution(x, w, b, 2)  # wrong
    D.convolution(x, w, weights_format="HWIO")  # wrong
    D.convolution(x, w, weights_format="XOI")  # wrong
    D.convolution_transpose(x, w, weights_format="XIO")  # wrong
    D.convolution(x, w, activation="prelu", alpha=b)
    D.quantized_convolution(x, w, activation="clamp", alpha=-1, beta="1")  # wrong
    D.quantized_convolution(x, w, data_format="NCHW")  # wrong
    D.convolution(x, w, algorithm=1)  # wrong


def layers(x: Tensor) -> None:
    layer = nn.Conv2d(3, 8, 3, 2, "same_lower", padding_mode="reflect")
    assert_type(layer.weight, Tensor)
    torch_layer: torch.nn.Conv2d = layer
    torch_layer.reset_parameters()
    nn.Conv1d(3, 8, 3, padding=((2, 0),), dtype=torch.bfloat16)
    nn.ConvTranspose3d(3, 8, (3, 3, 3), 2)
    nn.Conv(2, 3, 8, 3, auto_pad="same_upper", data_format="NCX", activation="gelu")
    nn.Upsample(scale_factor=2, mode="bilinear")
    nn.Resample(scale_factor=2, mode="area")
    nn.Reorder("nchw", dtype=torch.uint8, dst_scale=torch.nn.Parameter(x), fake=True)
    quantized = nn.QuantizedConv2d.from_float(torch.nn.Conv2d(3, 8, 3), src_scale=0.1)
    assert_type(quantized, nn.QuantizedConv2d)
    nn.Conv2d(3, 8, 3, padding="SAME")  # wrong
    nn.Conv2d(3, 8, 3, padding_mode="constant")  # wrong
    nn.Conv2d(3, 8, "3")  # wrong
    nn.Conv(2, 3, 8, 3, auto_pad="SAME_UPPER")  # wrong
    nn.Conv(2, 3, 8, 3, activation="swish")  # wrong
    nn.Upsample(scale_factor=2, mode="cubic")  # wrong
    nn.Resample(scale_factor=2, mode="bicubic")  # wrong
    nn.Resample(2, 2, "linear")  # wrong
    nn.Reorder(dtype=torch.int8, compensation="s8s8")  # wrong
    nn.QuantizedConv2d(3, 8, 3, activation="selu")  # wrong
    nn.QuantizedConv2d(3, 8, 3, padding="full")  # wrong


def whole_models(model: torch.nn.Sequential, x: Tensor) -> None:
    assert_type(torch_dnnl.convert(model, verbose=True), torch.nn.Sequential)
    assert_type(torch_dnnl.revert(model), torch.nn.Sequential)
    assert_type(quantization.lower(model), torch.fx.GraphModule)
    assert_type(formats.physical_shape("nChw16c", (1, 3, 5, 5)), tuple[int, ...])
    with torch_dnnl.accelerate(), torch_dnnl.conv_algorithm("direct"):
        model(x)

    @torch_dnnl.accelerate()
    def double(y: Tensor) -> Tensor:
        return torch.nn.functional.interpolate(y, scale_factor=2)

    @torch_dnnl.accelerate
    def half(y: Tensor) -> Tensor:
        return torch.nn.functional.interpolate(y, scale_factor=0.5)

    assert_type(double(x), Tensor)
    assert_type(half(x), Tensor)
    torch_dnnl.convert(D.conv2d)  # wrong
    torch_dnnl.convert(model, fuse=True)  # wrong
    torch_dnnl.conv_algorithm(None)  # wrong
    formats.parse(3)  # wrong
    double(3)  # wrong
    half(3)  # wrong
    torch_dnnl.accelerate(None)  # wrong
