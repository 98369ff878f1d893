"""Reorder, fake quantization and quantized convolution in ONNX, run by onnxruntime."""

import itertools
from functools import partial

import pytest
import torch
from onnx_models import compared, exported, nodes_of, run
from quantized_problems import problem
from torch import nn

import torch_dnnl
import torch_dnnl.functional as D

pytestmark = pytest.mark.ecosystem

# onnxruntime makes integer kernels of quantized convolutions. On CPUs without VNNI theirs add pairs
# of products in int16, which saturates: its documentation advises weights of 7 bits there.
EXACT = "as exported"

SOURCES = (torch.float32, torch.float16, torch.float64, torch.int32, torch.int8, torch.uint8)
TARGETS = (*SOURCES, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
INTEGERS = (torch.int8, torch.uint8, torch.int32)
SHAPE = (4, 6, 5)


def image(dtype, shape=SHAPE):
    """Of all bytes, or with ties and what saturates."""
    if dtype.is_floating_point:
        return (torch.randn(shape) * 200).mul(2).round().div(2).to(dtype)
    limits = torch.iinfo(dtype)
    return torch.randint(max(limits.min, -(2**20)), min(limits.max, 2**20), shape).to(dtype)


def arguments(source, target):
    """Scales and zero points of every kind: numbers, along an axis, of blocks, of both sides."""
    of_src = 0.5 if source.is_floating_point else 3
    points = (0, 4, 3) if target.is_floating_point or target in INTEGERS else (0,)
    yield {}
    yield {"scale": 0.37, "src_zero_point": of_src}
    for point, first in itertools.product(points, (False, True)):
        yield {"dst_scale": 0.37, "dst_zero_point": point, "round_before_zero_point": first}
    steps, integers = torch.rand(6) + 0.5, torch.randint(0, 9, (6,), dtype=torch.int32)
    yield {"dst_scale": steps, "axis": 1}
    yield {"scale": steps, "src_zero_point": integers, "dst_scale": 0.25, "axis": 1}
    yield {"dst_scale": 2.0, "dst_zero_point": integers, "axis": 1, "round_before_zero_point": True}
    yield {"dst_scale": torch.rand(2, 6, 1) + 0.5, "dst_zero_point": torch.ones(1, 3, 5)}
    yield {"accumulate": image(torch.float32), "beta": 0.75, "scale": 0.5}


def same(pairs, what):
    wrong = [
        name
        for (ours, theirs), name in zip(pairs, what, strict=True)
        if not torch.equal(ours.nan_to_num(nan=12345), theirs.nan_to_num(nan=12345))
    ]
    assert not wrong


def visible(function, target):
    """Its result in a type that NumPy has."""
    if target in SOURCES:
        return partial(function, dtype=target)
    return lambda x, **options: function(x, dtype=target, **options).float()


@pytest.mark.parametrize("sources", [SOURCES[:3], SOURCES[3:]], ids=["floating", "integers"])
def test_reorder(sources):
    """To the bit, from every type to every other."""
    calls, what = [], []
    for i, (source, target) in enumerate(itertools.product(sources, TARGETS)):
        # A third of them, another one for each next type.
        for options in list(arguments(source, target))[(i + i // len(TARGETS)) % 3 :: 3]:
            calls.append((partial(visible(D.reorder, target), **options), (image(source),)))
            what.append((source, target, options))
    pairs, proto = compared(calls)
    same(pairs, what)
    assert "QuantizeLinear" in nodes_of(proto)
    assert ("DequantizeLinear" in nodes_of(proto)) == (torch.int8 in sources)


def test_what_rounds():
    """One node where QuantizeLinear rounds as the call does, else arithmetic."""
    ties = torch.arange(-40, 40) * 0.75
    alike = [{"dst_zero_point": 4}, {"dst_zero_point": 3, "round_before_zero_point": True}]
    others = [{"dst_zero_point": 3}, {"dst_zero_point": torch.tensor([3])}, {"dst_zero_point": 5}]
    for options, kind, other in ((alike, "QuantizeLinear", "Round"), (others, "Round", "Quant")):
        calls = [
            (partial(D.reorder, dtype=torch.int8, dst_scale=1.5, **each), (ties,))
            for each in options
        ]
        pairs, proto = compared(calls)
        same(pairs, options)
        assert nodes_of(proto).count(kind) == len(options)
        assert not any(other in node for node in nodes_of(proto))


def test_not_a_number():
    """NaN becomes 0 in integers, where no QuantizeLinear is; infinities saturate everywhere."""
    values = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 2.5])
    calls = [
        (partial(visible(D.reorder, target), **options), (values,))
        for target in TARGETS
        for options in ({}, {"scale": 2.0})
    ]
    calls.append((partial(D.reorder, dtype=torch.uint8, dst_zero_point=3), (values,)))
    same(compared(calls)[0], range(len(calls)))


@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.float64], ids=str)
def test_fake_reorder(source):
    calls, what = [], []
    for i, target in enumerate((*INTEGERS, torch.float8_e4m3fn, torch.float8_e5m2)):
        for options in list(arguments(source, target))[i % 2 :: 2]:
            calls.append((partial(D.fake_reorder, dtype=target, **options), (image(source),)))
            what.append((target, options))
    pairs, proto = compared(calls)
    same(pairs, what)
    kinds = nodes_of(proto)
    assert ("DequantizeLinear" in kinds) == ("QuantizeLinear" in kinds) == (source != torch.float64)


def test_quantized_convolutions():
    """Random calls. Integers differ by one at most, and hardly ever: Conv sums in float32."""
    problems = [problem(seed) for seed in range(40)]
    calls, many, off = [], 0, 0
    for p in problems:
        arguments = dict(p.arguments)
        arguments["dtype"] = {torch.bfloat16: torch.float32}.get(
            arguments["dtype"], arguments["dtype"]
        )
        tensors = {k: v for k, v in arguments.items() if isinstance(v, torch.Tensor)}
        if tensors.get("residual") is not None and tensors["residual"].dtype == torch.bfloat16:
            tensors["residual"] = tensors["residual"].float()
        numbers = {k: v for k, v in arguments.items() if k not in tensors}
        call = partial(quantized, p, tuple(tensors), numbers)
        calls.append((call, (p.src, p.weights, *tensors.values())))
    pairs, proto = compared(calls, EXACT)
    for p, (ours, theirs) in zip(problems, pairs):
        difference = (ours.double() - theirs.double()).abs()
        if ours.dtype.is_floating_point:
            limit = {torch.float32: 1e-5, torch.float16: 2e-3}[ours.dtype]
            assert difference.max() <= limit * ours.double().abs().max().clamp(1), p
        elif ours.dtype == torch.int32 and len(p.arguments) > 1:
            assert difference.max() <= 1 + 1e-5 * ours.double().abs().max(), p
        else:
            assert difference.max() <= (len(p.arguments) > 1), p
            many, off = many + ours.numel(), off + int(difference.sum())
    assert off < many / 500
    assert {"ConvInteger", "QuantizeLinear"} < set(nodes_of(proto))


def quantized(p, names, numbers, src, weights, *tensors):
    """A problem's call in its formats."""
    tensors = dict(zip(names, tensors))
    if p.is_nxc:
        src = src.movedim(1, -1)
        if "residual" in tensors:
            tensors["residual"] = tensors["residual"].movedim(1, -1)
    if p.is_xio:
        weights = weights.movedim((0, 1), (-1, -2))
    return D.quantized_convolution(
        src,
        weights,
        src_zero_point=p.zero_point,
        **tensors,
        **numbers,
        **p.attributes,
        data_format="NXC" if p.is_nxc else "NCX",
        weights_format="XIO" if p.is_xio else "OIX",
    )


class Quantized(nn.Module):
    """Images of bytes from one layer to the next, as after training in integers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        scales = {"src_scale": 0.02, "dst_scale": 0.05}
        self.quantize = torch_dnnl.nn.Reorder(dtype=torch.uint8, dst_scale=0.02, dst_zero_point=128)
        self.first = torch_dnnl.nn.QuantizedConv2d.from_float(
            nn.Conv2d(3, 8, 3, stride=2, padding=1),
            **scales,
            src_zero_point=128,
            dst_zero_point=7,
            dtype=torch.uint8,
            activation="relu",
        )
        self.second = torch_dnnl.nn.QuantizedConv2d.from_float(
            torch_dnnl.nn.Conv2d(8, 8, 3, padding="same_upper", groups=2),
            src_scale=0.05,
            src_zero_point=7,
            dst_scale=0.1,
            dst_zero_point=-5,
            residual_scale=0.05,
            residual_zero_point=7,
        )
        self.dequantize = torch_dnnl.nn.Reorder(dtype=torch.float32, scale=0.1, src_zero_point=-5)

    def forward(self, image):
        x = self.first(self.quantize(image))
        return self.dequantize(self.second(x, x))


def test_quantized_network():
    model = Quantized().eval()
    axes = dict.fromkeys([0, 2, 3], torch.export.Dim.DYNAMIC)
    images = [torch.randn(2, 3, 12, 16), torch.randn(1, 3, 17, 9)]
    proto = exported(model, images[:1], dynamic_shapes=(axes,))
    assert nodes_of(proto).count("Conv") == 2
    assert nodes_of(proto).count("QuantizeLinear") == 3
    for image in images:
        difference = (run(proto, [image], EXACT)[0] - model(image)).abs()
        assert difference.max() < 0.11 and (difference > 1e-6).float().mean() < 0.01


def test_lowered_network():
    """What torchao quantized and `lower` made of it."""
    from quantization.pt2e import quantize, x86

    torch.manual_seed(1)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.AvgPool2d(2)
    ).eval()
    images = torch.randn(2, 3, 8, 8)
    model = torch_dnnl.quantization.lower(quantize(network, images, x86()))
    proto = exported(nn.Sequential(model), [images])
    assert nodes_of(proto).count("Conv") == 2 and "QuantizeLinear" in nodes_of(proto)
    theirs = run(proto, [images], EXACT)[0]
    torch.testing.assert_close(theirs, model(images), rtol=0, atol=0.008)  # a step of its results
