"""nn.QuantizedConv1d to 3d: what they compute, what they keep, what they refuse."""

import copy
import io

import pytest
import torch
from torch import nn

import torch_dnnl
import torch_dnnl.functional as D

LAYERS = [
    torch_dnnl.nn.QuantizedConv1d,
    torch_dnnl.nn.QuantizedConv2d,
    torch_dnnl.nn.QuantizedConv3d,
]
FLOATS = [nn.Conv1d, nn.Conv2d, nn.Conv3d]
OPTIONS = [
    {},
    {"stride": 2, "padding": 1, "bias": False},
    {"padding": "same", "dilation": 2, "groups": 2},
    {"padding": "valid"},
]


def codes(n, dtype=torch.uint8, batch=2):
    limits = torch.iinfo(dtype)
    return torch.randint(limits.min, limits.max + 1, (batch, 4, *[9, 8, 7][:n]), dtype=dtype)


@pytest.mark.parametrize("activation", [None, "relu", "hardswish"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_from_float(n, options, activation):
    """Up to a step, what the rounded weights give in float32; and near what the weights give."""
    conv = FLOATS[n - 1](4, 6, 3, **options)
    scales = {"src_scale": 0.02, "src_zero_point": 100, "dst_scale": 0.03, "dst_zero_point": 50}
    layer = LAYERS[n - 1].from_float(conv, **scales, dtype=torch.uint8, activation=activation)
    assert layer.weight.movedim(1, -1).is_contiguous()
    assert layer.weight.abs().flatten(1).amax(1).eq(127).all()
    x = codes(n)
    values = (x - 100.0) * 0.02
    function = getattr(nn.functional, activation) if activation else nn.Identity()
    near = function(conv(values))
    with torch.no_grad():
        conv.weight.copy_(layer.weight * layer.weight_scale.view(-1, *[1] * (n + 1)))
    expected = (function(conv(values)) / 0.03 + 50).round().clamp(0, 255)
    actual = layer(x)
    assert actual.dtype == torch.uint8
    difference = (actual - expected).abs()
    assert difference.max() <= 1 and difference.mean() < 1e-3
    inside = (actual > 0) & (actual < 255)
    assert ((actual - 50.0) * 0.03 - near)[inside].abs().max() < 0.06


@pytest.mark.parametrize("padding", [((2, 0), (1, 1)), "same_lower", 1], ids=str)
def test_padding(padding):
    conv = torch_dnnl.nn.Conv2d(4, 6, 3, stride=2, padding=padding)
    layer = torch_dnnl.nn.QuantizedConv2d.from_float(conv, src_scale=0.1, dtype=torch.float32)
    x = codes(2, torch.int8)
    torch.testing.assert_close(layer(x), conv(x * 0.1), rtol=0.02, atol=0.1)


def test_given_weight_scale():
    conv = nn.Conv1d(4, 6, 3)
    scale = torch.rand(6) * 0.01 + 0.001
    layer = torch_dnnl.nn.QuantizedConv1d.from_float(conv, src_scale=1.0, weight_scale=scale)
    expected = (conv.weight / scale.view(-1, 1, 1)).round().clamp(-128, 127)
    assert torch.equal(layer.weight.float(), expected) and torch.equal(layer.weight_scale, scale)
    zeros = nn.Conv1d(4, 6, 3)
    nn.init.zeros_(zeros.weight)
    layer = torch_dnnl.nn.QuantizedConv1d.from_float(zeros, src_scale=1.0, dtype=torch.float32)
    assert torch.equal(layer(codes(1)), zeros(codes(1).float()))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_unbatched(n):
    cls = getattr(torch_dnnl.nn, f"QuantizedConv{n}d")
    conv = getattr(nn, f"Conv{n}d")(4, 4, 3, padding=1)
    layer = cls.from_float(conv, src_scale=0.1, dst_scale=0.2)
    x, residual = codes(n, torch.int8), codes(n, torch.uint8)
    assert torch.equal(layer(x[1]), layer(x)[1])
    assert torch.equal(layer(x[1], residual[1]), layer(x, residual)[1])
    with pytest.raises(ValueError, match=rf"^{cls.__name__}: expected x to be {n + 2}-D or, unb"):
        layer(x[None])


def test_residual():
    layer = torch_dnnl.nn.QuantizedConv2d.from_float(
        nn.Conv2d(4, 4, 3, padding=1),
        src_scale=0.1,
        dtype=torch.float32,
        residual_scale=0.5,
        residual_zero_point=3,
        activation="relu",
    )
    x = codes(2, torch.int8)
    expected = D.quantized_convolution(
        x,
        layer.weight,
        layer.bias,
        src_scale=0.1,
        weights_scale=layer.weight_scale,
        residual=x,
        residual_scale=0.5,
        residual_zero_point=3,
        dtype=torch.float32,
        activation="relu",
        pads_begin=1,
        pads_end=1,
        data_format="NCX",
        weights_format="OIX",
    )
    assert torch.equal(layer(x, x), expected)
    assert not torch.equal(layer(x), expected)


def test_state():
    """A new layer takes everything from a state: weights, scales and zero points."""
    layer = torch_dnnl.nn.QuantizedConv2d.from_float(
        nn.Conv2d(4, 6, 3), src_scale=0.1, src_zero_point=7, dst_scale=0.3, dst_zero_point=-4
    )
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    x = codes(2)
    for assign in (False, True):
        other = torch_dnnl.nn.QuantizedConv2d(4, 6, 3)
        file.seek(0)
        other.load_state_dict(torch.load(file), assign=assign)
        assert torch.equal(other(x), layer(x))
        assert other.weight.movedim(1, -1).is_contiguous()
        assert repr(other) == repr(layer)
    assert not list(layer.parameters())
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))


def test_repr():
    layer = torch_dnnl.nn.QuantizedConv2d(
        4, 6, 3, padding="same", groups=2, bias=False, src_zero_point=9, activation="relu"
    )
    assert repr(layer) == (
        "QuantizedConv2d(4, 6, kernel_size=(3, 3), stride=(1, 1), padding='same', groups=2, "
        "bias=False, src_zero_point=9, dtype=torch.int8, activation='relu')"
    )


def test_compile_and_export():
    layer = torch_dnnl.nn.QuantizedConv2d.from_float(
        nn.Conv2d(4, 6, 3), src_scale=0.1, dst_scale=0.2
    )
    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for batch in (2, 3):
        x = codes(2, batch=batch)
        assert torch.equal(compiled(x), layer(x))
    batch = torch.export.Dim("batch", min=1, max=8)
    program = torch.export.export(layer, (codes(2),), dynamic_shapes=({0: batch},))
    assert torch.equal(program.module()(x), layer(x))


BAD = [
    ({"src_scale": 0.0}, ValueError, "src_scale"),
    ({"dst_scale": float("inf")}, ValueError, "dst_scale"),
    ({"src_zero_point": 256}, ValueError, "src_zero_point"),
    ({"dst_zero_point": 200}, ValueError, "dst_zero_point"),
    ({"src_scale": torch.ones(2)}, ValueError, "src_scale"),
    ({"src_scale": "1"}, TypeError, "src_scale"),
    ({"dtype": torch.int16}, TypeError, "dtype"),
    ({"activation": "swish"}, ValueError, "activation"),
    ({"groups": 3}, ValueError, "groups"),
    ({"stride": 0}, ValueError, "stride"),
    ({"stride": 2, "padding": "same"}, ValueError, "stride"),
    ({"padding": "full"}, ValueError, "padding"),
    ({"padding": -1}, ValueError, "padding"),
    ({"padding": (1, 2, 3)}, ValueError, "padding"),
    ({"padding": 1.5}, ValueError, "padding"),
    ({"kernel_size": (3, 3, 3)}, ValueError, "kernel_size"),
    ({"kernel_size": 2.0}, TypeError, "kernel_size"),
    ({"out_channels": 0}, ValueError, "out_channels"),
    ({"bias": 1}, TypeError, "bias"),
]


@pytest.mark.parametrize("options,error,argument", BAD, ids=lambda value: str(value)[:30])
def test_bad_arguments(options, error, argument):
    arguments = {"in_channels": 4, "out_channels": 6, "kernel_size": 3, **options}
    with pytest.raises(error, match=rf"^QuantizedConv2d: expected .*{argument}.*, got "):
        torch_dnnl.nn.QuantizedConv2d(**arguments)


def test_bad_calls():
    cls = torch_dnnl.nn.QuantizedConv2d
    name = r"QuantizedConv2d\.from_float: expected "
    with pytest.raises(TypeError, match=name + "conv to be a torch.nn.Conv2d, got Conv1d"):
        cls.from_float(nn.Conv1d(1, 1, 1), src_scale=1.0)
    with pytest.raises(NotImplementedError, match=name + "conv to have padding_mode='zeros', got"):
        cls.from_float(nn.Conv2d(1, 1, 1, padding_mode="circular"), src_scale=1.0)
    with pytest.raises(ValueError, match=name + r"weight_scale to have the sizes \[2\], got \[1\]"):
        cls.from_float(nn.Conv2d(1, 2, 1), src_scale=1.0, weight_scale=torch.ones(1))
    with pytest.raises(TypeError, match=name + "weight_scale to be a Tensor"):
        cls.from_float(nn.Conv2d(1, 2, 1), src_scale=1.0, weight_scale=2.0)
    with pytest.raises(TypeError, match="quantized_convolution: expected src to be uint8 or int8"):
        cls(4, 6, 3)(torch.rand(1, 4, 9, 9))
