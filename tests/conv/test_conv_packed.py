"""Packed weights: the bits of plain weights by the same kernel; refusals; the Python API."""

import copy
import io
import itertools
import pickle
import random

import pytest
import torch
from layouts import channels_last
from oracles.conv import ACTIVATIONS as ORACLES
from quantized_problems import LAYOUTS as QUANTIZED_LAYOUTS
from random_problems import LAYOUTS
from threads import threads
from torch import Tensor, nn

import torch_dnnl
from torch_dnnl.functional import (
    PackedWeights,
    conv2d,
    convolution,
    convolution_transpose,
    pack_weights,
    quantized_convolution,
)

OPS = torch.ops.torch_dnnl
FLOATING = [*[torch.float32] * 4, torch.float64, torch.bfloat16, torch.bfloat16, torch.float16]
ACTIVATIONS = [None, None, None, *ORACLES]
KERNELS = torch_dnnl.build_info()["kernels"]["cpu"]["convolution"]
QUANTIZED_KERNELS = torch_dnnl.build_info()["kernels"]["cpu"]["quantized_convolution"]
FAMILIES = ["auto", "auto", "direct", "winograd"]
NOISE = dict.fromkeys((torch.int8, torch.uint8), 0) | {
    **{torch.float64: 1e-14, torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
}
SEEDS = 300
HEADER = 192  # bytes that say what a buffer is for


def kernel_of(packed: Tensor) -> str:
    return bytes(packed[48:80].tolist()).rstrip(b"\0").decode()


def gone(weights: Tensor) -> Tensor:
    number = float("nan") if weights.is_floating_point() else 99
    return weights.new_full((), number).expand(weights.shape)


class Problem:
    """Weights and attributes, and images of several sizes, in random layouts."""

    def __init__(self, choose: random.Random, is_quantized: bool = False) -> None:
        self.choose, n = choose, choose.choice([1, 2, 2, 2, 3])
        self.groups = choose.choice([1, 1, 1, 2, 3, 8, 16, 24])
        counts = [1, 2, 3, 4, 8, 16, 17, 32, 40, 64, 72, 130]
        counts = counts if self.groups == 1 else [1, 1, 2, 3, 4, 16]
        self.inputs, outputs = choose.choice(counts), choose.choice(counts)
        kernel = [choose.choice([1, 1, 2, 3, 3, 3, 5]) for _ in range(n)]
        kernel = kernel[:1] * n if choose.random() < 0.5 else kernel
        strides, dilations = [choose.choice([1, 1, 1, 2, 3])] * n, [choose.choice([1, 1, 1, 2])] * n
        strides = kernel if choose.random() < 0.15 else strides
        self.reach = [(k - 1) * d for k, d in zip(kernel, dilations)]
        self.pads = [choose.choice([0, reach // 2, 1, reach]) for reach in self.reach]
        self.formats = choose.choice(["NXC", "NCX"]), choose.choice(["XIO", "OIX"])
        sizes = [outputs * self.groups, self.inputs, *kernel]
        sizes = sizes if self.formats[1] == "OIX" else [*kernel, self.inputs, sizes[0]]
        self.outputs = outputs * self.groups
        self.dtype = torch.int8 if is_quantized else choose.choice(FLOATING)
        self.weights = self.tensor(sizes)
        self.attributes = {
            **{"strides": strides, "pads_begin": self.pads, "pads_end": self.pads},
            **{"dilations": dilations, "groups": self.groups},
            **{"data_format": self.formats[0], "weights_format": self.formats[1]},
        }

    def tensor(self, sizes, dtype=None):
        dtype = dtype or self.dtype
        if dtype in (torch.int8, torch.uint8):
            values = torch.randint(-128, 128, sizes, dtype=torch.int8).view(dtype)
            return self.choose.choice(QUANTIZED_LAYOUTS)(values)
        return self.choose.choice(LAYOUTS)(torch.randn(sizes).to(dtype))

    def sizes(self, batch):
        n = len(self.reach)
        most = {1: 90, 2: 40, 3: 9}[n]
        spatial = [
            max(self.choose.choice([1, 5, 7, 8, 14, self.choose.randint(1, most)]), r + 1 - 2 * p)
            for r, p in zip(self.reach, self.pads)
        ]
        channels = self.inputs * self.groups
        is_nxc = self.formats[0] == "NXC"
        return [batch, *spatial, channels] if is_nxc else [batch, channels, *spatial]


def of_reference(plain, x, weights, bias, options):
    """The result in float64, or of bytes."""
    if weights.is_floating_point():
        x, weights, bias = x.double(), weights.double(), None if bias is None else bias.double()
    result = plain(x, weights, bias, **options, algorithm="reference")
    return result[0] if isinstance(result, tuple) else result


def assert_near(result, expected):
    error = (result.double() - expected.double()).norm()
    assert error <= NOISE[result.dtype] * expected.double().norm()


def calls(op, p: Problem, options, packed, kernel):
    """The same call with packed and plain weights, in three ways."""
    x = p.tensor(p.sizes(p.choose.choice([1, 2, 3])), options.pop("src", None))
    bias = torch.randn(p.outputs).to(options.pop("bias")) if p.choose.random() < 0.5 else None
    options.pop("bias", None)
    plain, of_packed = getattr(OPS, op), getattr(OPS, f"{op.removesuffix('_fused')}_packed")
    with threads(p.choose.choice([1, 2, 3])):
        try:
            expected = plain(x, p.weights, bias, **p.attributes, **options, algorithm=kernel)
        except NotImplementedError:  # the kernel does not take images of this size
            return False
        result = of_packed(
            x, p.weights, bias, **p.attributes, **options, packed=packed, algorithm=kernel
        )
        pairs = list(zip(result, expected)) if isinstance(result, tuple) else [(result, expected)]
        for got, wanted in pairs:
            assert torch.equal(got, wanted) and got.stride() == wanted.stride()
        exact = of_reference(plain, x, p.weights, bias, p.attributes | options)
        assert_near(pairs[0][1], exact)
        try:
            alone = of_packed(x, gone(p.weights), bias, **p.attributes, **options, packed=packed)
        except ValueError:  # the layout depends on these images
            return False
        alone = alone[0] if isinstance(alone, tuple) else alone
        # Taps that only meet pads are left out of plain weights, and sums are rounded elsewhere.
        assert_near(alone, pairs[0][1])
    return True


@pytest.mark.parametrize("seed", range(SEEDS))
def test_bits(seed):
    torch.manual_seed(seed)
    choose = random.Random(seed)
    p = Problem(choose)
    algorithm = choose.choice([*FAMILIES, *KERNELS])
    try:
        packed = OPS.pack_weights(p.weights, p.sizes(1), **p.attributes, algorithm=algorithm)
    except NotImplementedError:  # the kernel does not have this convolution
        return
    for _ in range(3 if packed.numel() else 0):
        options = {"activation": choose.choice(ACTIVATIONS), "bias": p.dtype, "src": p.dtype}
        calls("convolution_fused", p, options, packed, kernel_of(packed))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_bits_of_quantized(seed):
    torch.manual_seed(seed)
    choose = random.Random(seed)
    p = Problem(choose, is_quantized=True)
    algorithm = choose.choice([*FAMILIES, *QUANTIZED_KERNELS])
    try:
        packed = OPS.pack_quantized_weights(
            p.weights, p.sizes(1), **p.attributes, algorithm=algorithm
        )
    except NotImplementedError:  # the kernel does not have this convolution
        return
    for _ in range(3 if packed.numel() else 0):
        options = {
            **{"src": choose.choice([torch.int8, torch.uint8]), "bias": torch.float32},
            **{"activation": choose.choice(ACTIVATIONS), "src_scale_value": 0.02},
            **{
                "src_zero_point_value": float(choose.choice([0, 0, 3, 100])),
                "dst_scale_value": 0.3,
            },
            "dtype": choose.choice([torch.int8, torch.uint8, torch.float32]),
        }
        calls("quantized_convolution", p, options, packed, kernel_of(packed))


@pytest.mark.parametrize("groups", [1, 4, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_axes_of_one_pixel(dtype, groups):
    """Kernels exchange an axis of one pixel for another axis, in the image and in the weights.

    Sums of these integers are exact but in Winograd's algorithm, and wrong ones are far from right.
    """
    is_quantized = dtype == torch.int8
    sizes = [(6, 7, 8), (6, 7, 1), (6, 1, 8), (1, 7, 8), (1, 1, 8)]
    kernels = [(3, 3, 1), (3, 1, 3), (1, 3, 3), (2, 1, 3), (5, 3, 1)]
    pack = OPS.pack_quantized_weights if is_quantized else OPS.pack_weights
    plain = OPS.quantized_convolution if is_quantized else OPS.convolution_fused
    call = OPS.quantized_convolution_packed if is_quantized else OPS.convolution_packed
    names = QUANTIZED_KERNELS if is_quantized else KERNELS
    for kernel, strides, name in itertools.product(kernels, [1, 2], ["auto", *names]):
        attributes = {
            **{"groups": groups, "data_format": "NCX", "weights_format": "OIX"},
            **{"strides": [strides] * 3, "auto_pad": "same_upper"},
        }
        weights = torch.randint(-9, 9, (32, 32 // groups, *kernel)).to(dtype)
        for packed_for, size in itertools.product(sizes, sizes):
            try:
                packed = pack(weights, (1, 32, *packed_for), **attributes, algorithm=name)
            except NotImplementedError:  # the kernel does not have this convolution
                continue
            src = torch.randint(0, 9, (1, 32, *size)).to(torch.uint8 if is_quantized else dtype)
            expected = plain(src, weights, **attributes, algorithm="reference")
            result = call(src, weights, **attributes, packed=packed)
            pair = [r if is_quantized else r[0] for r in (result, expected)]
            torch.testing.assert_close(*pair, rtol=0, atol=0 if is_quantized else 1e-2)


LAYERS = {
    "winograd": (3, 32, 64, 1),
    "1x1": (1, 64, 128, 1),
    "depthwise": (3, 50, 50, 50),
    "stem": (7, 3, 64, 1),
    "few outputs": (3, 64, 3, 1),
}


def layer(name, dtype=torch.float32):
    kernel, inputs, outputs, groups = LAYERS[name]
    weights = torch.randn(outputs, inputs // groups, kernel, kernel).to(dtype)
    packed = pack_weights(weights, weights_format="OIX", groups=groups, size=28)
    x = torch.randn(2, inputs, 28, 28).to(dtype)
    return lambda w, x=x: conv2d(x, w, padding=kernel // 2, groups=groups), weights, packed, x


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", LAYERS)
def test_functions(name, dtype):
    call, weights, packed, x = layer(name, dtype)
    expected = call(packed)
    torch.testing.assert_close(expected, call(weights))
    alone = packed.without_weights()
    assert alone.nbytes < packed.nbytes and packed.kernel == alone.kernel
    for other in (alone, copy.deepcopy(packed), pickle.loads(pickle.dumps(alone))):
        assert isinstance(other, PackedWeights) and torch.equal(call(other), expected)
        assert repr(other.kernel)[1:-1] in repr(other)
    if packed.kernel.startswith("winograd"):
        with pytest.raises(ValueError, match="transformed"):
            alone.unpack()
    else:
        assert torch.equal(alone.unpack(), weights)
    image = x.clone().requires_grad_()
    call(packed, image).square().sum().backward()
    other = x.clone().requires_grad_()
    call(weights, other).square().sum().backward()
    torch.testing.assert_close(image.grad, other.grad)


@pytest.mark.parametrize("packed_for", [5, 14, 56])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("inputs, groups", [(3, 1), (16, 1), (32, 4), (32, 32)])
def test_any_size(inputs, groups, dtype, packed_for):
    """A layout serves images of all sizes, also without the plain weights."""
    is_quantized = dtype == torch.int8
    call = quantized_convolution if is_quantized else convolution
    weights = torch.randint(-9, 9, (3, 3, inputs // groups, 64)).to(dtype)
    for algorithm in ["auto", *(QUANTIZED_KERNELS if is_quantized else KERNELS)]:
        try:
            packed = pack_weights(weights, size=packed_for, groups=groups, algorithm=algorithm)
        except NotImplementedError:  # the kernel does not have this convolution
            continue
        for size in (2, 3, 7, 13, 28, 34, 65):
            src = torch.randint(0, 9, (1, size, size, inputs))
            src = src.to(torch.uint8 if is_quantized else dtype)
            result = call(src, packed.without_weights(), groups=groups, auto_pad="same_upper")
            exact = [each if is_quantized else each.double() for each in (src, weights)]
            assert_near(result, call(*exact, groups=groups, auto_pad="same_upper"))


def test_quantized_function():
    weights = torch.randint(-128, 128, (3, 3, 32, 64), dtype=torch.int8)
    packed = pack_weights(weights, size=28)
    src = torch.randint(0, 256, (2, 28, 28, 32), dtype=torch.uint8)
    options = {"src_scale": 0.02, "src_zero_point": 7, "auto_pad": "same_upper"}
    expected = quantized_convolution(src, weights, **options)
    for each in (packed, packed.without_weights()):
        assert torch.equal(quantized_convolution(src, each, **options), expected)
    assert torch.equal(packed.without_weights().unpack(), weights)


def test_transposed_weights_stay_plain():
    weights, src = torch.randn(4, 4, 3, 16), torch.randn(1, 8, 8, 16)
    packed = pack_weights(weights, strides=2, transposed=True)
    assert packed.kernel is None
    result = convolution_transpose(src, packed, strides=2)
    assert torch.equal(result, convolution_transpose(src, weights, strides=2))


class Held(nn.Module):
    def __init__(self, packed):
        super().__init__()
        self.weights = packed

    def forward(self, x):
        return convolution(x, self.weights, auto_pad="same_upper", activation="relu")


def test_programs():
    packed, x = pack_weights(torch.randn(3, 3, 32, 64)), torch.randn(1, 28, 28, 32)
    for held in (Held(packed), Held(packed.without_weights())):
        expected = held(x)
        file = io.BytesIO()
        torch.export.save(torch.export.export(held, (x,)), file)
        file.seek(0)
        assert torch.equal(torch.export.load(file).module()(x), expected)
        compiled = torch.compile(held, fullgraph=True, dynamic=True, backend="aot_eager")
        assert torch.equal(compiled(x), expected)
    batched = torch.func.vmap(Held(packed))(torch.stack([x, x]))
    torch.testing.assert_close(batched[1], Held(packed)(x))


def test_calls_that_the_layout_is_not_for():
    weights = torch.randn(3, 3, 32, 64)
    packed, x = pack_weights(weights), torch.randn(1, 9, 9, 32)
    assert torch.equal(convolution(x, packed, strides=2), convolution(x, weights, strides=2))
    alone = packed.without_weights()
    for call in (
        lambda: convolution(x, alone, strides=2),
        lambda: convolution(x.clone().requires_grad_(), alone),
        lambda: torch.func.vmap(lambda y: convolution(y, alone))(torch.stack([x, x])),
    ):
        with pytest.raises(ValueError, match="expected packed weights with the plain weights"):
            call()
    with pytest.raises(TypeError, match="expected weights to have the type of src"):
        convolution(x.double(), packed)
    with pytest.raises(ValueError, match="expected weights to have 5 input channels"):
        convolution(x[..., :5], packed)


@pytest.mark.parametrize("seed", range(100))
def test_damaged(seed):
    """Damaged headers, and buffers that are cut short, are for no call: plain weights are read."""
    choose, weights, x = random.Random(seed), torch.randn(3, 3, 16, 32), torch.randn(1, 9, 9, 16)
    packed = pack_weights(weights, algorithm=choose.choice(["blocked", "winograd_4x4"])).packed
    damaged = packed.clone()
    if seed % 2:
        damaged[choose.randrange(HEADER)] ^= choose.randrange(1, 256)
    else:
        damaged = damaged[: choose.randrange(1, len(damaged))]
    try:
        result = OPS.convolution_packed(x, weights, packed=damaged)[0]
    except ValueError:  # damaged so that it is no result of pack_weights
        return
    torch.testing.assert_close(result, OPS.convolution(x, weights), rtol=1e-4, atol=1e-4)
    if not torch.equal(damaged[:HEADER], packed[:HEADER]) or len(damaged) < len(packed):
        with pytest.raises(ValueError, match="plain weights"):
            OPS.convolution_packed(x, gone(weights), packed=damaged)


def test_other_buffers_are_refused():
    weights, x = torch.randn(3, 3, 16, 32), torch.randn(1, 9, 9, 16)
    for packed in (torch.zeros(4096, dtype=torch.uint8), torch.zeros(4096), torch.zeros(9, 9)):
        with pytest.raises(ValueError, match="packed weights to be a result of pack_weights"):
            OPS.convolution_packed(x, weights, packed=packed)
    for_bytes = pack_weights(torch.ones(3, 3, 16, 32, dtype=torch.int8)).packed
    expected = OPS.convolution(x, weights)
    torch.testing.assert_close(OPS.convolution_packed(x, weights, packed=for_bytes)[0], expected)


def test_weights_that_are_not_finite():
    """pixel_lanes computes with zeros around images, and takes finite weights alone."""
    weights = torch.randn(2, 2, 3, 3)
    weights[0, 0, 1, 1] = torch.inf
    packed = pack_weights(weights, weights_format="OIX", algorithm="pixel_lanes")
    assert packed.kernel is None
    x = torch.randn(1, 2, 40, 40)
    assert torch.equal(conv2d(x, packed, padding=1), conv2d(x, weights, padding=1))


@pytest.mark.parametrize(
    "error, match, call",
    [
        (TypeError, "expected weights to be a Tensor", lambda w: pack_weights("a")),
        (ValueError, "expected weights to be 3-D to 5-D", lambda w: pack_weights(w[0, 0])),
        (TypeError, "expected groups to be an int", lambda w: pack_weights(w, groups=1.5)),
        (ValueError, "divisible by groups", lambda w: pack_weights(w, groups=7)),
        (ValueError, "expected size to have one entry", lambda w: pack_weights(w, size=(1, 2, 3))),
        (ValueError, "expected strides", lambda w: pack_weights(w, strides=(1, 2, 3))),
        (ValueError, "expected algorithm", lambda w: pack_weights(w, algorithm="none")),
        (NotImplementedError, "expected algorithm", lambda w: pack_weights(w, algorithm="gemm")),
        (TypeError, "expected weights to be int8", lambda w: pack_weights(w.int())),
    ],
)
def test_bad_calls(error, match, call):
    with pytest.raises(error, match=match):
        call(torch.randn(3, 3, 16, 32))


@pytest.mark.parametrize("sizes", [(0, 3, 9, 9), (1, 0, 9, 9)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_problems_without_elements(sizes, dtype):
    """Nothing is packed for such images, and packed weights of others are not read."""
    is_quantized = dtype == torch.int8
    pack = OPS.pack_quantized_weights if is_quantized else OPS.pack_weights
    call = OPS.quantized_convolution_packed if is_quantized else OPS.convolution_packed
    options = {"data_format": "NCX", "weights_format": "OIX"}
    weights = torch.ones(4, sizes[1], 3, 3, dtype=dtype)
    for algorithm in ("auto", "brgemm"):
        assert not pack(weights, sizes, **options, algorithm=algorithm).numel()
    other = pack(torch.ones(4, 3, 3, 3, dtype=dtype), (1, 3, 29, 29), **options, algorithm="brgemm")
    result = call(torch.ones(sizes, dtype=dtype), weights, **options, packed=other)
    result = result if is_quantized else result[0]
    assert result.shape == (sizes[0], 4, 7, 7) and not result.any()


def test_packing_is_for_real_tensors():
    weights = torch.randn(3, 3, 16, 32)
    with pytest.raises(NotImplementedError, match="weights with data"):
        pack_weights(weights.to("meta"))
    with pytest.raises(NotImplementedError, match="vmap"):
        torch.func.vmap(lambda w: pack_weights(w).weights)(weights.expand(2, 3, 3, 16, 32))


def test_channels_last_weights_expect_such_images():
    weights = channels_last(torch.randn(64, 64, 3, 3))
    packed = pack_weights(weights, weights_format="OIX", strides=2)
    x = channels_last(torch.randn(1, 64, 28, 28))
    # Another kernel may compute plain weights: sums in another order.
    options = {"rtol": 1e-4, "atol": 1e-4}
    torch.testing.assert_close(conv2d(x, packed, stride=2), conv2d(x, weights, stride=2), **options)
