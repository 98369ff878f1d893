"""quantized_convolution against exact sums and float32 steps, on every kernel."""

import itertools
from contextlib import suppress

import numpy as np
import pytest
import torch
from oracles import quantized as oracle
from quantized_problems import TRANSCENDENTAL, problem
from threads import same_on_threads
from torch.utils._python_dispatch import TorchDispatchMode

import torch_dnnl
from torch_dnnl.functional import quantized_convolution

KERNELS = torch_dnnl.build_info()["kernels"]["cpu"]["quantized_convolution"]
NCX = {"data_format": "NCX", "weights_format": "OIX"}


def results(p):
    """By kernel, of those that support the problem."""
    found = {}
    for kernel in ("auto", *KERNELS):
        with suppress(NotImplementedError):
            found[kernel] = p.run(kernel)
    return found


def assert_right(result, p):
    expected = p.expected()
    assert result.dtype == expected.dtype and result.shape == expected.shape
    if p.arguments.get("activation") not in TRANSCENDENTAL:
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
    elif result.is_floating_point():
        torch.testing.assert_close(
            result.float(),
            expected.float(),
            rtol=2**-7 if result.itemsize == 2 else 1e-6,
            atol=1e-7,
        )
    else:  # an error in the last place may carry a value over the middle of two integers
        wrong = result != expected
        assert (result.double() - expected.double()).abs().max() <= 1
        assert wrong.sum() <= 1 + 1e-3 * wrong.numel()


@pytest.mark.parametrize("part", range(12))
def test_kernels_match_oracle(part, request):
    """With --problems=900, more than 10,000 of them."""
    seed, count = request.config.getoption("seed"), request.config.getoption("problems")
    first = 10**6 * seed + part * count
    ran = set()
    for number in range(first, first + count):
        p = problem(number)
        found = results(p)
        ran |= found.keys()
        assert_right(found["auto"], p)
        for kernel, result in found.items():
            assert torch.equal(result.nan_to_num(), found["auto"].nan_to_num()), (kernel, number)
    assert {"auto", "reference", KERNELS[-2]} <= ran


def test_same_bits_for_any_number_of_threads():
    """Also where weights are so many that each thread packs its own."""

    def compute():
        yield from (problem(seed).run() for seed in range(1000, 1060))
        torch.manual_seed(0)
        for oc, kernel_size in [(128, 3), (190, 1), (320, 1)]:
            x = torch.randint(256, (3, 300, 5, 7)).to(torch.uint8)
            w = torch.randint(-128, 128, (oc, 300, kernel_size, kernel_size)).to(torch.int8)
            steps = {"src_zero_point": 3, "dst_scale": 1000.0, "dtype": torch.uint8}
            yield quantized_convolution(x, w, **steps, **NCX)
            yield quantized_convolution(
                x.contiguous(memory_format=torch.channels_last), w, **steps, **NCX
            )

    same_on_threads(compute)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("nxc", [False, True])
def test_large_layers(kernel, nxc):
    """Several tasks, panels and chunks of the depth."""
    generator = torch.Generator().manual_seed(1)
    integers = lambda low, high, *shape: torch.randint(low, high, shape, generator=generator)  # noqa: E731
    ran = 0
    for ic, oc, kernel_size, size, strides in [
        (150, 130, 3, (31, 33), [1, 2]),
        (1100, 70, 1, (9, 20), [1, 2]),
        (3, 64, 7, (40, 150), [1, 2]),
        (130, 150, 3, (30, 71), [1, 1]),
        (1827, 40, 3, (7, 5), [1, 1]),
    ]:
        src = integers(-128, 128, 2, ic, *size).to(torch.int8)
        src[1] = 127
        weights = integers(-128, 128, oc, ic, kernel_size, kernel_size).to(torch.int8)
        weights[0] = -128
        attributes = {"strides": strides, "pads_begin": [1, 0], "pads_end": [0, 2]}
        acc = oracle.sums(src, weights, -128, dilations=[1, 1], groups=1, **attributes)
        if nxc:
            src = src.contiguous(memory_format=torch.channels_last)
        with suppress(NotImplementedError):  # of this shape, and on some machines
            result = quantized_convolution(
                src,
                weights,
                src_zero_point=-128,
                dtype=torch.int32,
                algorithm=kernel,
                **attributes,
                **NCX,
            )
            assert torch.equal(result, acc.to(torch.int32))
            ran += 1
    assert ran > 0 or kernel in ("depthwise_quads", "depthwise", "brgemm")


@pytest.mark.parametrize("nxc", [False, True])
@pytest.mark.parametrize(("ic", "oc"), [(1, 1), (4, 4), (3, 8), (2, 16)])
@pytest.mark.parametrize(
    ("groups", "size", "kernel_size", "attributes"),
    [
        (130, (9, 600), (3, 3), {"strides": [1, 2]}),  # rows cut up
        (40, (3, 500), (2, 4), {"dilations": [1, 150], "strides": [1, 2]}),  # taps far apart
        (20, (17, 13), (31, 31), {"pads_begin": [15, 15], "pads_end": [15, 15]}),
        (33, (4, 90), (1, 5), {"dilations": [1, 3], "strides": [1, 3], "pads_begin": [0, 7]}),
        (17, (30, 7), (5, 1), {"strides": [2, 4], "pads_end": [3, 0]}),
        (17, (150, 7), (3, 1), {"dilations": [60, 1], "pads_begin": [9, 0]}),
    ],
)
def test_large_layers_of_small_groups(groups, ic, oc, size, kernel_size, attributes, nxc):
    generator = torch.Generator().manual_seed(1)
    integers = lambda low, high, *shape: torch.randint(low, high, shape, generator=generator)  # noqa: E731
    src = integers(0, 256, 2, groups * ic, *size).to(torch.uint8)
    src[1] = 255
    weights = integers(-128, 128, groups * oc, ic, *kernel_size).to(torch.int8)
    weights[0] = -128
    given = {"strides": [1, 1], "dilations": [1, 1], "pads_begin": [0, 0], "pads_end": [0, 0]}
    given |= {"groups": groups} | attributes
    if nxc:
        src = src.contiguous(memory_format=torch.channels_last)
    result = quantized_convolution(
        src,
        weights,
        src_zero_point=3,
        dtype=torch.int32,
        algorithm="depthwise",
        **given,
        **NCX,
    )
    assert torch.equal(result, oracle.sums(src, weights, 3, **given).to(torch.int32))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel_size", [(3, 3), (2, 3), (5, 5), (3, 2, 7), (4, 7)])
@pytest.mark.parametrize("groups", [16, 32, 70, 96, 200])
def test_depthwise_in_channels_last(dtype, stride, kernel_size, groups):
    """Kernels of all numbers of rows modulo four, and whole and half vectors of channels."""
    rank = len(kernel_size)
    info = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(groups)
    integers = lambda low, high, *shape: torch.randint(low, high, shape, generator=generator)  # noqa: E731
    src = integers(info.min, info.max + 1, 2, *([7, 10, 75][-rank:]), groups).to(dtype)
    src[1] = info.max
    src = src.movedim(-1, 1)
    weights = integers(-128, 128, groups, 1, *kernel_size).to(torch.int8)
    weights[0] = -128
    given = {
        "strides": [stride] * rank,
        "dilations": [2] * (rank - 1) + [1],
        "pads_begin": [2] * (rank - 1) + [4],
        "pads_end": [3] * rank,
        "groups": groups,
    }
    zero_point = info.min + 5
    expected = oracle.sums(src, weights, zero_point, **given).to(torch.int32)
    for algorithm in ("auto", "depthwise_quads"):
        with suppress(NotImplementedError):  # the second on some machines
            result = quantized_convolution(
                src,
                weights,
                src_zero_point=zero_point,
                dtype=torch.int32,
                algorithm=algorithm,
                **given,
                **NCX,
            )
            assert torch.equal(result, expected), algorithm
    steps = {"src_zero_point": zero_point, "dst_scale": 300.0, "dst_zero_point": 9}
    steps |= {"bias": torch.randn(groups), "weights_scale": torch.rand(groups) + 0.5}
    for result_dtype, activation in ((torch.uint8, "relu"), (torch.int8, None)):
        by_kernel = []
        for algorithm in ("reference", "depthwise", "depthwise_quads"):
            with suppress(NotImplementedError):
                result = quantized_convolution(
                    src,
                    weights,
                    dtype=result_dtype,
                    activation=activation,
                    algorithm=algorithm,
                    **steps,
                    **given,
                    **NCX,
                )
                by_kernel.append(result)
        assert len(by_kernel[0].unique()) > 100
        assert all(torch.equal(result, by_kernel[0]) for result in by_kernel)


def test_sums_beyond_int32():
    """Are exact before they are saturated."""
    src = torch.full((1, 70000, 1), 255, dtype=torch.uint8)
    weights = torch.full((2, 70000, 1), -128, dtype=torch.int8)
    weights[1, 35000:] = 127
    options = {"dtype": torch.int32, **NCX}
    result = quantized_convolution(src, weights, **options)
    assert result.flatten().tolist() == [-(2**31), 255 * 35000 * -1]
    scaled = quantized_convolution(src, weights, **{**options, "dtype": torch.float32})
    assert scaled.flatten().tolist() == [float(np.float32(-255 * 128 * 70000)), -255.0 * 35000]


def test_quotients_are_rounded_as_divisions():
    """Bytes of sums over a scale, at and beside the middle of two integers."""
    generator = torch.Generator().manual_seed(0)
    src = torch.randint(0, 256, (1, 1, 50000), generator=generator).to(torch.uint8)
    weights = torch.ones(1, 1, 1, dtype=torch.int8)
    scales = [2.0, 3.0, 0.1, 1 / 3, 1.9999999, 1e-30, 1e30, 1e-42, 7.0, 254 / 255]
    for scale, sign, dtype in itertools.product(scales, (1, -1), (torch.uint8, torch.int8)):
        for multiplier in (1.0, 0.5, scale, scale / 2, scale * 0.49999997):
            steps = {"src_scale": multiplier, "dst_scale": sign * scale, "dtype": dtype}
            if multiplier == 0 or not np.isfinite(np.float32(multiplier)):
                continue
            with np.errstate(over="ignore"):
                acc = src.double()
                expected = oracle.completed(acc, **steps)
            assert torch.equal(quantized_convolution(src, weights, **steps, **NCX), expected)


def test_nan_becomes_zero():
    src = torch.ones(1, 4, 4, 20, dtype=torch.uint8)
    weights = torch.ones(1, 1, 20, 5, dtype=torch.int8)
    residual = torch.full((1, 4, 4, 5), float("nan"))
    for kernel in KERNELS:
        with suppress(NotImplementedError):
            result = quantized_convolution(src, weights, residual=residual, algorithm=kernel)
            assert torch.equal(result, torch.zeros_like(result))


def test_tensors_as_scales_and_zero_points():
    p = problem(3)
    numbers = {"src_scale": 0.25, "dst_scale": 0.5, "src_zero_point": 3, "dst_zero_point": 7}
    tensors = {
        "src_scale": torch.tensor(0.25, dtype=torch.bfloat16),
        "dst_scale": torch.tensor([0.5], dtype=torch.float64),
        "src_zero_point": torch.tensor([[3]]),
        "dst_zero_point": torch.tensor(7, dtype=torch.int8),
    }
    call = lambda options: quantized_convolution(  # noqa: E731
        p.src, p.weights, **p.attributes, **options, **NCX
    )
    assert torch.equal(call(numbers), call(tensors))


def test_memory_format_is_kept():
    src = torch.zeros(2, 8, 5, 6, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    weights = torch.zeros(4, 8, 1, 1, dtype=torch.int8)
    result = quantized_convolution(src, weights, **NCX)
    assert result.is_contiguous(memory_format=torch.channels_last)
    meta = quantized_convolution(src.to("meta"), weights.to("meta"), **NCX)
    assert meta.stride() == result.stride() and meta.dtype == result.dtype == torch.int8


def test_empty_batch():
    src = torch.zeros(0, 5, 6, 8, dtype=torch.int8)
    result = quantized_convolution(src, torch.zeros(3, 3, 8, 4, dtype=torch.int8))
    assert result.shape == (0, 3, 4, 4)


def test_no_channels():
    bias = torch.tensor([1.0, -2.0])
    result = quantized_convolution(
        torch.zeros(1, 5, 0, dtype=torch.uint8), torch.zeros(1, 0, 2, dtype=torch.int8), bias
    )
    assert torch.equal(result, torch.tensor([1, -2], dtype=torch.int8).expand(1, 5, 2))


class Operators(TorchDispatchMode):
    def __init__(self):
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def test_is_one_operator():
    p = problem(5)
    with Operators() as seen:
        quantized_convolution(p.src, p.weights, **p.attributes, **NCX)
    assert seen.names == ["torch_dnnl::quantized_convolution"]


# ---- Transforms ----


@pytest.mark.parametrize("batched", ["src", "weights", "bias", "scale", "src weights bias", "zero"])
def test_vmap(batched):
    generator = torch.Generator().manual_seed(2)
    src = torch.randint(0, 256, (3, 2, 4, 7, 6), generator=generator).to(torch.uint8)
    weights = torch.randint(-128, 128, (3, 6, 2, 3, 3), generator=generator).to(torch.int8)
    bias, scale = torch.randn(3, 6, generator=generator), torch.rand(3, 6, generator=generator)
    zero = torch.tensor([1, 2, 3])
    tensors = {"src": src, "weights": weights, "bias": bias, "scale": scale, "zero": zero}
    in_dims = tuple(0 if name in batched.split() else None for name in tensors)
    args = [t if d == 0 else t[1] for t, d in zip(tensors.values(), in_dims)]

    def call(src, weights, bias, scale, zero):
        return quantized_convolution(
            src,
            weights,
            bias,
            weights_scale=scale,
            src_zero_point=zero,
            groups=2,
            dst_scale=50.0,
            **NCX,
        )

    result = torch.func.vmap(call, in_dims)(*args)
    for i in range(3):
        one = call(*(t[i] if d == 0 else t for t, d in zip(args, in_dims)))
        assert torch.equal(result[i], one)


def test_compile_and_export():
    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            weights = torch.randint(-128, 128, (8, 4, 3, 3)).to(torch.int8)
            self.register_buffer("weights", weights)
            self.register_buffer("scale", torch.rand(8))

        def forward(self, x):
            return quantized_convolution(
                x, self.weights, weights_scale=self.scale, dst_scale=3.0, activation="relu", **NCX
            )

    layer = Layer()
    src = torch.randint(0, 256, (2, 4, 9, 9)).to(torch.uint8)
    assert torch.equal(torch.compile(layer, fullgraph=True, dynamic=True)(src), layer(src))
    shapes = {"x": {0: torch.export.Dim("n", min=1, max=64)}}
    exported = torch.export.export(layer, (src,), dynamic_shapes=shapes).module()
    assert torch.equal(exported(src[:1]), layer(src[:1]))


def test_opcheck():
    args = (torch.ones(1, 5, 5, 4).to(torch.uint8), torch.ones(3, 3, 4, 2).to(torch.int8))
    torch.library.opcheck(torch.ops.torch_dnnl.quantized_convolution.default, args)


# ---- Bad calls ----

SRC = torch.zeros(1, 5, 5, 4, dtype=torch.uint8)
WEIGHTS = torch.zeros(3, 3, 4, 6, dtype=torch.int8)


@pytest.mark.parametrize(
    "change, error, words",
    [
        ({"src": SRC.float()}, TypeError, "src to be uint8 or int8, got Float"),
        ({"src": SRC[0, 0]}, ValueError, "src to be 3-D to 5-D"),
        ({"weights": WEIGHTS.to(torch.uint8)}, TypeError, "weights to be int8"),
        ({"weights": WEIGHTS[:, :, :3]}, ValueError, "weights to have 4 input channels"),
        ({"bias": torch.zeros(5)}, ValueError, "bias to be 1-D with 6 elements"),
        ({"bias": torch.zeros(6).double()}, TypeError, "bias to be float32, got float64"),
        ({"src_scale": 0.0}, ValueError, "src_scale to be different from 0"),
        ({"src_scale": float("nan")}, ValueError, "src_scale to be finite"),
        ({"dst_scale": 1e-60}, ValueError, "dst_scale to be different from 0"),
        ({"weights_scale": torch.ones(5)}, ValueError, "weights_scale to be 1-D with 6 elements"),
        ({"weights_scale": torch.ones(6).half()}, TypeError, "weights_scale to be a number or"),
        ({"dst_scale": torch.ones(2)}, ValueError, "dst_scale to be a number or a tensor of one"),
        ({"dst_scale": torch.ones(1).int()}, TypeError, "dst_scale to be of a floating type"),
        ({"src_zero_point": 256}, ValueError, "src_zero_point to be a value of uint8, got 256"),
        ({"src_zero_point": 1.5}, ValueError, "src_zero_point to be a value of uint8, got 1.5"),
        ({"dst_zero_point": 128}, ValueError, "dst_zero_point to be a value of int8, got 128"),
        ({"dtype": torch.float64}, TypeError, "dtype to be uint8, int8, int32, float32"),
        ({"dtype": "int8"}, TypeError, "dtype to be a torch.dtype or None"),
        (
            {"residual": torch.zeros(1, 3, 3, 5)},
            ValueError,
            "residual to have the sizes of the out",
        ),
        ({"residual": torch.zeros(1, 3, 3, 6).double()}, TypeError, "residual to be uint8, int8"),
        (
            {"residual": torch.zeros(1, 3, 3, 6).char(), "residual_zero_point": 300},
            ValueError,
            "residual_zero_point to be a value of int8",
        ),
        ({"activation": "swish"}, ValueError, "activation to be None"),
        ({"strides": 0}, ValueError, "strides"),
        ({"src_scale": True}, TypeError, "src_scale to be a number or a Tensor"),
        ({"groups": 3}, ValueError, "groups"),
        ({"algorithm": "gemm"}, ValueError, "a kernel of this device"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_bad_calls(change, error, words):
    arguments = {"src": SRC, "weights": WEIGHTS, **change}
    with pytest.raises(error, match=r"^quantized_convolution: expected ") as raised:
        quantized_convolution(arguments.pop("src"), arguments.pop("weights"), **arguments)
    assert words in str(raised.value)
