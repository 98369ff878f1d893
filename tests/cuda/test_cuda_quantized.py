"""Quantized convolution on CUDA: problems that reach every kernel, in each layout, against exact
sums and float32 steps. They run on a GPU, over the CUDA kernels on the CPU (see cuda_on_host), and
over the CPU's own kernels."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from oracles import quantized as oracle
from quantized_problems import RESULTS, TRANSCENDENTAL, Problem, placed, problem

import torch_dnnl
from torch_dnnl.functional import quantized_convolution

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
KERNELS = torch_dnnl.build_info()["kernels"]
# Batch, groups, channels of the source and of the result in a group; then sizes, kernel, strides,
# pads at both ends, dilations.
PROBLEMS = {
    "1x1": (2, 1, 32, 64, (5, 8), (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1)),
    "3x3": (2, 1, 16, 24, (7, 8), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "two-tiles": (1, 1, 16, 68, (9, 9), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "odd-channels": (2, 1, 19, 33, (5, 7), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "many-stages": (1, 1, 96, 16, (5, 6), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "strided": (2, 1, 20, 12, (9, 10), (3, 3), (2, 2), ((1, 0), (0, 1)), (1, 1)),
    "dilated": (1, 1, 16, 16, (9, 13), (3, 2), (1, 2), ((2, 3), (2, 3)), (2, 3)),
    "pads-beyond-the-kernel": (1, 1, 16, 8, (3, 4), (3, 3), (1, 1), ((5, 4), (3, 6)), (1, 1)),
    "first-layer": (1, 1, 3, 20, (11, 13), (7, 7), (2, 2), ((3, 3), (2, 3)), (1, 1)),
    "groups": (2, 3, 16, 20, (5, 8), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "odd-groups": (1, 2, 17, 18, (5, 8), (3, 1), (1, 1), ((1, 0), (1, 0)), (1, 1)),
    "rows": (2, 1, 24, 16, (37,), (4,), (3,), ((3,), (0,)), (2,)),
    "volumes": (1, 1, 16, 12, (3, 4, 5), (2, 3, 3), (1, 1, 2), ((1, 1, 1), (0, 1, 1)), (1, 1, 1)),
    "one-output": (2, 1, 32, 1, (6, 6), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "one-pixel": (3, 1, 32, 40, (3, 3), (3, 3), (1, 1), ((0, 0), (0, 0)), (1, 1)),
    "depthwise": (2, 16, 1, 1, (7, 12), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "depthwise-odd": (2, 19, 1, 1, (7, 9), (3, 3), (2, 2), ((1, 0), (0, 1)), (1, 1)),
    "depthwise-wide": (1, 12, 1, 1, (6, 30), (5, 5), (1, 2), ((2, 4), (2, 4)), (1, 2)),
    "multiplier": (2, 6, 1, 3, (5, 8), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "few-in-groups": (2, 8, 4, 4, (5, 9), (3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1)),
    "pairs-in-groups": (1, 6, 2, 2, (5, 8), (3, 3), (2, 1), ((1, 1), (1, 1)), (1, 1)),
    "odd-in-groups": (1, 5, 3, 5, (4, 7), (2, 3), (1, 1), ((0, 1), (1, 1)), (1, 1)),
    "depthwise-volumes": (1, 8, 1, 1, (3, 4, 9), (3, 3, 3), (1, 1, 1), ((1, 1, 1),) * 2, (1, 1, 1)),
}
# More tiles of 64 x 64 than 132 multiprocessors take at once: the larger tiles.
LARGE = {
    "128x128": (1, 1, 16, 128, (65, 138), (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1)),
    "256x64": (1, 1, 16, 60, (65, 276), (1, 1), (1, 1), ((0, 0), (0, 0)), (1, 1)),
}
# Channels innermost, rows innermost, and rows that begin at any element.
LAYOUTS = ("nxc", "ncx", "cut")


def laid_out(values, layout):
    if layout == "nxc":
        return values.movedim(1, -1).contiguous().movedim(-1, 1)
    if layout == "cut":
        wide = values.new_zeros([size + 1 for size in values.shape])
        return wide[tuple(slice(1, None) for _ in values.shape)].copy_(values)
    return values


def make(name, layout, dtype, *, has_steps):
    """The result's type and that of the residual differ from problem to problem."""
    problems = {**PROBLEMS, **LARGE}
    n, groups, ic, oc, size, kernel, strides, pads, dilations = problems[name]
    index = [*problems].index(name) + LAYOUTS.index(layout)
    generator = torch.Generator().manual_seed(index)

    def integers(low, high, *shape):
        return torch.randint(low, high, shape, generator=generator)

    limits = torch.iinfo(dtype)
    src = integers(limits.min, limits.max + 1, n, groups * ic, *size).to(dtype)
    weights = integers(-128, 128, groups * oc, ic, *kernel).to(torch.int8)
    attributes = {
        **{"strides": strides, "pads_begin": pads[0], "pads_end": pads[1]},
        **{"dilations": dilations, "groups": groups},
    }
    arguments = {"dtype": torch.int32}
    if has_steps:
        outputs = [
            (x + b + e - d * (k - 1) - 1) // s + 1
            for x, b, e, d, k, s in zip(size, *pads, dilations, kernel, strides)
        ]
        residual = integers(0, 127, n, groups * oc, *outputs).to(RESULTS[(index + 1) % 6])
        arguments = {
            "dtype": RESULTS[index % 6],
            "bias": torch.randn(groups * oc, generator=generator) * 10,
            "residual": laid_out(residual, layout if index % 4 else "cut"),
            "residual_scale": 0.3,
            "residual_zero_point": 3,
            "activation": (None, "relu", "hardswish")[index % 3],
            "src_scale": 0.01,
            "weights_scale": torch.rand(groups * oc, generator=generator) * 0.1 + 1e-3,
        }
        if not arguments["dtype"].is_floating_point:
            arguments |= {"dst_scale": 0.7, "dst_zero_point": 5}
    zero_point = 77 if dtype == torch.uint8 else -77
    is_nxc = layout == "nxc"
    return Problem(
        laid_out(src, layout), weights, attributes, zero_point, arguments, is_nxc, index % 2 == 0
    )


def assert_equal_on_every_kernel(expected, device, call):
    """What call(kernel) returns, unless the kernel does not support it; two kernels support all."""
    kernels, ran = KERNELS[device]["quantized_convolution"], set()
    for kernel in kernels:
        with suppress(NotImplementedError):
            result = call(kernel).cpu()
            assert result.dtype == expected.dtype and torch.equal(result, expected), kernel
            ran.add(kernel)
    assert set(kernels[-2:]) <= ran


def assert_right_on_every_kernel(p, device, **arguments):
    assert_equal_on_every_kernel(
        p.expected(), device, lambda kernel: p.run(kernel, device, **arguments)
    )


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("device", DEVICES)
def test_quantized_problem_matches_oracle(device, name, layout, dtype):
    for has_steps in (False, True):
        assert_right_on_every_kernel(make(name, layout, dtype, has_steps=has_steps), device)


@pytest.mark.parametrize("layout", ["nxc", "ncx"])
@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("device", DEVICES)
def test_quantized_large_matches_oracle(device, name, layout):
    assert_right_on_every_kernel(make(name, layout, torch.uint8, has_steps=True), device)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("device", DEVICES)
def test_quantized_random_matches_oracle(device, seed):
    for number in range(5000 + 20 * seed, 5020 + 20 * seed):
        p = problem(number)
        if p.arguments.get("activation") not in TRANSCENDENTAL:
            assert_right_on_every_kernel(p, device)


@pytest.mark.parametrize("name", ["3x3", "odd-channels", "depthwise"])
@pytest.mark.parametrize("device", DEVICES)
def test_quantized_zero_point_of_the_device_matches_oracle(device, name):
    """The host need not know it, to lay pads around the image and to take them away again."""
    for dtype in (torch.int64, torch.uint8, torch.float32):
        p = make(name, "nxc", torch.uint8, has_steps=True)
        zero_point = torch.tensor([p.zero_point], dtype=dtype, device=device)
        assert_right_on_every_kernel(p, device, zero_point=zero_point)


@pytest.mark.parametrize("groups", [1, 16])
@pytest.mark.parametrize("layout", ["nxc", "ncx"])
@pytest.mark.parametrize("device", DEVICES)
def test_quantized_images_far_apart_matches_oracle(device, layout, groups):
    """Images that are further apart than 2^31 elements; between them is memory never touched."""
    channels, size, apart = 16, (5, 6), 2**31 + 16
    if device == "cuda":
        memory = torch.empty(apart + 1024, dtype=torch.uint8, device=device)
    else:
        memory = torch.from_numpy(np.zeros(apart + 1024, dtype=np.uint8))
    dense = laid_out(torch.zeros(1, channels, *size), layout)
    far = memory.as_strided((2, channels, *size), (apart, *dense.stride()[1:]))
    values = torch.randint(0, 256, far.shape).to(torch.uint8)
    far.copy_(values)
    weights = torch.randint(-128, 128, (channels, channels // groups, 3, 3)).to(torch.int8)
    attributes = {"pads_begin": [1, 1], "pads_end": [1, 1], "groups": groups}
    acc = oracle.sums(values, weights, 9, strides=[1, 1], dilations=[1, 1], **attributes)
    expected = oracle.completed(acc, torch.float32, residual=values)

    def call(kernel):
        return quantized_convolution(
            far,
            weights.to(device),
            src_zero_point=9,
            residual=far,
            dtype=torch.float32,
            data_format="NCX",
            weights_format="OIX",
            algorithm=kernel,
            **attributes,
        )

    assert_equal_on_every_kernel(expected, device, call)


@pytest.mark.parametrize("device", DEVICES)
def test_sums_beyond_int32_are_refused(device):
    """By kernels that add up in int32: 65,794 products of 255 and -128 are too many."""
    src = torch.full((1, 65794, 1), 255, dtype=torch.uint8, device=device)
    weights = torch.full((1, 65794, 1), -128, dtype=torch.int8, device=device)
    options = {"dtype": torch.int32, "data_format": "NCX", "weights_format": "OIX"}
    *kernels, reference = KERNELS[device]["quantized_convolution"]
    for kernel in kernels:
        with pytest.raises(NotImplementedError, match="a kernel that supports this call"):
            quantized_convolution(src, weights, **options, algorithm=kernel)
    result = quantized_convolution(src, weights, **options, algorithm=reference)
    assert result.item() == -(2**31)
    almost = quantized_convolution(src[:, 1:], weights[:, 1:], **options, algorithm=kernels[-1])
    assert almost.item() == -255 * 128 * 65793


@pytest.mark.cuda
def test_quantized_has_the_bits_of_the_cpu():
    """With every activation."""
    for seed in range(400):
        p = problem(seed)
        expected = p.run().nan_to_num()
        for kernel in ("auto", *KERNELS["cuda"]["quantized_convolution"]):
            assert torch.equal(p.run(kernel, "cuda").cpu().nan_to_num(), expected), (kernel, seed)


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["3x3", "odd-channels", "depthwise"])
def test_quantized_graph(name):
    """A call can be captured, and replayed with another zero point and other inputs."""
    p = make(name, "ncx", torch.uint8, has_steps=False)
    src, weights = placed(p.src, "cuda"), p.weights.to("cuda")
    zero_point = torch.zeros(1, dtype=torch.int32, device="cuda")

    def call():
        return quantized_convolution(
            src,
            weights,
            src_zero_point=zero_point,
            dtype=torch.int32,
            data_format="NCX",
            weights_format="OIX",
            **p.attributes,
        )

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    zero_point.fill_(p.zero_point)
    graph.replay()
    assert torch.equal(result.cpu(), p.expected())
    src.add_(1)
    expected = call()
    graph.replay()
    assert torch.equal(result, expected)
