"""torch.jit: a trace of a module takes images of any size; what cannot be scripted says so."""

import io
import re

import pytest
import torch
from torch import nn

import torch_dnnl
from torch_dnnl.nn import (
    Conv,
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    QuantizedConv2d,
    Reorder,
    Resample,
    Upsample,
)

ONE, TWO, THREE = (2, 4, 9), (2, 4, 9, 12), (1, 4, 5, 6, 7)
MODULES = [
    (Conv1d(4, 6, 3, padding=((2, 0),)), ONE),
    *((Conv2d(4, 6, 3, 2, padding), TWO) for padding in (1, "valid", "same_upper", "same_lower")),
    *(
        (Conv2d(4, 6, 3, stride, padding, padding_mode=mode), TWO)
        for mode in ("reflect", "replicate", "circular")
        for stride, padding in ((1, 1), (1, "same"), (2, "same_upper"), (2, ((1, 0), (0, 1))))
    ),
    (Conv3d(4, 2, 3, padding="same"), THREE),
    (ConvTranspose1d(4, 2, 3, 2), ONE),
    (ConvTranspose2d(4, 2, 3, 2, 1, 1), TWO),
    (ConvTranspose3d(4, 2, 2), THREE),
    (Conv(2, 4, 3, 3, data_format="NCX", auto_pad="same_upper", activation="gelu"), TWO),
    (Reorder("acdb", scale=2.0), TWO),
    (Upsample(scale_factor=2), TWO),
    (Upsample(scale_factor=1.7), TWO),
    (Upsample(scale_factor=1.7, mode="nearest-exact"), TWO),
    (Upsample(scale_factor=1.7, mode="bilinear"), TWO),
    (Upsample(scale_factor=1.7, mode="bilinear", align_corners=True), TWO),
    (Upsample(scale_factor=1.7, mode="bicubic", recompute_scale_factor=True), TWO),
    (Upsample(scale_factor=0.5, mode="area"), TWO),
    (Upsample(scale_factor=0.5, mode="area"), ONE),
    (Upsample(scale_factor=(0.5, 2, 1), mode="trilinear"), THREE),
    (Upsample(size=(5, 6), mode="bilinear"), TWO),
    (Resample(scale_factor=2), TWO),
    (Resample(scale_factor=(1.5, 0.7), mode="cubic", antialias=True), TWO),
    (Resample(scale_factor=1.3, recompute_scale_factor=False), THREE),
    (Resample(scale_factor=1.3, mode="nearest", data_format="NXC"), (2, 9, 12, 4)),
    (Resample(scale_factor=0.6, mode="lanczos3", dtype=torch.float64), ONE),
]


def other_size(shape, channels_last):
    sizes = [n + 5 + i for i, n in enumerate(shape)]
    channel = len(shape) - 1 if channels_last else 1
    return [*sizes[:channel], shape[channel], *sizes[channel + 1 :]]


@pytest.mark.parametrize(
    "module, shape", [pytest.param(m, s, id=f"{i}-{m}") for i, (m, s) in enumerate(MODULES)]
)
def test_trace_takes_any_size(module, shape):
    traced = torch.jit.trace(module, torch.randn(shape))
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    loaded = torch.jit.load(file)
    other = torch.randn(other_size(shape, getattr(module, "data_format", "") == "NXC"))
    assert torch.equal(loaded(other), module(other))


def test_trace_of_a_converted_model():
    layers = nn.Conv2d(4, 4, 3, padding=1), nn.Upsample(scale_factor=3), nn.ConvTranspose2d(4, 2, 2)
    model = torch_dnnl.convert(nn.Sequential(*layers))
    traced = torch.jit.trace(model, torch.randn(1, 4, 5, 6))
    x = torch.randn(2, 4, 7, 8)
    assert torch.equal(traced(x), model(x))


@pytest.mark.parametrize(
    "module",
    [
        Conv1d(1, 1, 1),
        ConvTranspose2d(1, 1, 1),
        Conv(2, 1, 1, 1),
        Resample(scale_factor=2),
        Reorder("acdb"),
        Upsample(scale_factor=2),
        QuantizedConv2d(1, 1, 1),
    ],
    ids=lambda module: type(module).__name__,
)
def test_script_refuses_in_one_sentence(module):
    name = type(module).__name__
    with pytest.raises(NotImplementedError, match=f"no module of torch_dnnl.nn, got {name}: use"):
        torch.jit.script(nn.Sequential(nn.ReLU(), module))


def test_script_of_a_converted_model():
    model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.ReLU())
    converted = torch_dnnl.convert(model)
    with pytest.raises(NotImplementedError, match=re.escape("torch_dnnl.revert(model)")) as error:
        torch.jit.script(converted)
    assert "\n" not in str(error.value)
    x = torch.randn(1, 1, 3, 3)
    assert torch.equal(torch.jit.script(torch_dnnl.revert(converted))(x), model(x))
