"""The package follows neither torch's default type nor its default device.

Results are those of a call without such defaults. Only a layer that is made gets the device, and a
layer of floating weights the type, as torch's layers do.
"""

from contextlib import contextmanager

import pytest
import torch
from op_db import CASES, by_name
from torch import nn

import torch_dnnl
import torch_dnnl.functional as D

CODES = torch.randint(256, (2, 4, 9, 8), dtype=torch.uint8)


@contextmanager
def defaults(dtype=None, device=None):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype or before)
    try:
        with torch.device(device or "cpu"):
            yield
    finally:
        torch.set_default_dtype(before)


DEFAULTS = [{"dtype": torch.bfloat16}, {"dtype": torch.float64}, {"device": "meta"}]
each_default = pytest.mark.parametrize(
    "default", DEFAULTS, ids=["bfloat16", "float64", "meta device"]
)


def same(actual, expected):
    pairs = zip(actual, expected, strict=True)
    return all(a.dtype == e.dtype and a.device == e.device and torch.equal(a, e) for a, e in pairs)


def with_gradients(case):
    inputs = case.inputs(torch.float32, requires_grad=True)
    result = case.call(*inputs)
    grad = torch.linspace(-1, 1, result.numel(), dtype=result.dtype, device=result.device)
    return inputs, result, grad.reshape(result.shape)


@each_default
@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_functions(case, default):
    inputs, expected, grad = with_gradients(case)
    of_expected = torch.autograd.grad(expected, inputs, grad, retain_graph=True)
    with defaults(**default):
        result = case.call(*inputs)
        of_result = torch.autograd.grad(result, inputs, grad)
    assert same([result, *of_result], [expected, *of_expected])


@each_default
def test_quantized_convolution(default):
    weights = torch.randint(-128, 128, (6, 4, 3, 3), dtype=torch.int8)

    def call():
        scales = {"src_scale": 0.1, "weights_scale": 0.02, "dst_scale": 0.5, "dst_zero_point": 3}
        formats = {"data_format": "NCX", "weights_format": "OIX"}
        return D.quantized_convolution(CODES, weights, **scales, **formats, activation="relu6")

    expected = call()
    with defaults(**default):
        assert same([call()], [expected])


@each_default
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("bias", [False, True])
def test_quantized_layers(n, bias, default):
    conv = getattr(nn, f"Conv{n}d")(4, 6, 3, bias=bias)
    codes = torch.randint(256, (2, 4, *(5, 6, 7)[:n]), dtype=torch.uint8)
    cls = getattr(torch_dnnl.nn, f"QuantizedConv{n}d")

    def layer():
        return cls.from_float(conv, src_scale=0.02, src_zero_point=7, dst_scale=0.1)

    expected = layer()
    with defaults(**default):
        made = layer()
        empty = cls(4, 6, 3, bias=bias)
        result = made(codes)
    assert same(made.state_dict().values(), expected.state_dict().values())
    assert same([result], [expected(codes)])
    types = {name: tensor.dtype for name, tensor in expected.state_dict().items()}
    assert {name: tensor.dtype for name, tensor in empty.state_dict().items()} == types
    assert {tensor.device.type for tensor in empty.buffers()} == {default.get("device", "cpu")}


@each_default
def test_layers_are_made_as_torchs(default):
    with defaults(**default):
        for n in (1, 2, 3):
            for name in (f"Conv{n}d", f"ConvTranspose{n}d"):
                made, torchs = (getattr(of, name)(4, 6, 3) for of in (torch_dnnl.nn, nn))
                kinds = [[(p.dtype, p.device) for p in m.parameters()] for m in (made, torchs)]
                assert kinds[0] == kinds[1]
            made = torch_dnnl.nn.Conv(n, 4, 6, 3)
            assert [(p.dtype, p.device) for p in made.parameters()] == kinds[0]


@each_default
def test_whole_models(default):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Upsample(9)).eval()
    x = torch.randn(1, 3, 8, 7)
    expected = model(x)
    with defaults(**default), torch.no_grad():
        converted = torch_dnnl.convert(model)
        results = [converted(x), torch_dnnl.revert(converted)(x)]
        with torch_dnnl.accelerate():
            results.append(model(x))
    for result in results:
        torch.testing.assert_close(result, expected)
