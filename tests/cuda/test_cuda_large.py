"""Problems of the sizes that networks have, on a GPU: several waves of blocks, large tiles and
tables that do not fit a launch's arguments; then what else a program does meanwhile."""

import threading

import pytest
import torch
from op_db import TOLERANCE, assert_matches

import torch_dnnl.functional as D

pytestmark = pytest.mark.cuda


def images(*shape, layout="ncx", dtype=torch.float32, seed=0):
    generator = torch.Generator(device="cuda").manual_seed(seed)
    x = torch.randn(shape, device="cuda", generator=generator).to(dtype)
    if layout == "nxc":
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    return x.requires_grad_()


# What is called, and the shapes of its tensors.
CALLS = {
    "3x3": (lambda x, w: D.conv2d(x, w, padding=1), (4, 64, 111, 113), (128, 64, 3, 3)),
    "1x1": (lambda x, w: D.conv2d(x, w), (8, 256, 57, 55), (72, 256, 1, 1)),
    "3x3 stride 2": (lambda x, w: D.conv2d(x, w, None, 2, 1), (8, 96, 63, 65), (130, 96, 3, 3)),
    "7x7": (lambda x, w: D.conv2d(x, w, None, 2, 3), (4, 3, 223, 225), (64, 3, 7, 7)),
    "unequal pads": ( # not cuDNN's, and packed in NCX
        lambda x, w: D.convolution(
            *(x, w), strides=2, pads_begin=0, pads_end=1, data_format="NCX", weights_format="OIX"
        ),
        (8, 67, 113, 111),
        (136, 67, 3, 3),
    ),
    "one image": (lambda x, w: D.conv2d(x, w, padding=1), (1, 512, 7, 7), (512, 512, 3, 3)),
    "groups": (
        lambda x, w: D.conv2d(x, w, padding=1, groups=4),
        (4, 128, 55, 57),
        (128, 32, 3, 3),
    ),
    "3-D": (lambda x, w: D.conv3d(x, w, padding=1), (2, 32, 15, 29, 31), (48, 32, 3, 3, 3)),
    "1-D": (lambda x, w: D.conv1d(x, w, padding=4), (4, 80, 5003), (96, 80, 9)),
    "depthwise": (
        lambda x, w: D.conv2d(x, w, padding=1, groups=147),
        (8, 147, 111, 113),
        (147, 1, 3, 3),
    ),
    "depthwise 7x7": (
        lambda x, w: D.conv2d(x, w, padding=3, groups=96),
        (4, 96, 57, 55),
        (96, 1, 7, 7),
    ),
    "transposed": (
        lambda x, w: D.conv_transpose2d(x, w, None, 2, 1),
        (4, 128, 29, 31),
        (128, 64, 4, 4),
    ),
    "fused": (
        lambda x, w: D.convolution(
            *(x, w), pads_begin=1, pads_end=1, data_format="NCX", weights_format="OIX",
            activation="silu",
        ),
        (4, 64, 57, 55),
        (64, 64, 3, 3),
    ),
    "bilinear": (
        lambda x: D.interpolate(x, size=(331, 457), mode="bilinear"),
        (2, 33, 171, 213),
    ),
    "long tables": (
        lambda x: D.interpolate(x, size=(3, 9001), mode="bicubic", antialias=True),
        (1, 3, 5, 20_011),
    ),
    "antialias": (
        lambda x: D.interpolate(x, size=(223, 225), mode="bilinear", antialias=True),
        (4, 3, 801, 1203),
    ),
    "area": (lambda x: D.interpolate(x, size=(57, 61), mode="area"), (4, 32, 311, 313)),
    "blocked": (lambda x: D.reorder(x, "nChw16c"), (8, 67, 113, 111)),
    "transpose": (lambda x: D.reorder(x, "nhwc"), (8, 67, 113, 111)),
}  # fmt: skip

HALF = {torch.bfloat16, torch.float16}


def both(name, layout, dtype):
    """The result of a call and its gradients, as functions of nothing, with the inputs."""
    call, *shapes = CALLS[name]
    inputs = [images(*shapes[0], layout=layout, dtype=dtype)]
    for shape in shapes[1:]:
        with torch.no_grad():
            weights = images(*shape, seed=1) / torch.Size(shape[1:]).numel() ** 0.5
        inputs.append(weights.to(dtype).requires_grad_())

    def run():
        result = call(*inputs)
        grad = torch.linspace(-1, 1, result.numel(), device="cuda").to(result.dtype)
        return result, *torch.autograd.grad(result, inputs, grad.view(result.shape))

    return run, inputs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("layout", ["ncx", "nxc"])
@pytest.mark.parametrize("name", CALLS)
def test_large_matches_float64(name, layout, dtype):
    """Against the same on the CPU in float64, twice with the same bits, and again from a graph."""
    run, inputs = both(name, layout, dtype)
    # A graph of autograd that is kept would have the stream of its first use captured.
    results = [x.detach() for x in run()]
    for a, b in zip(results, run()):
        assert torch.equal(a, b)

    call, *_ = CALLS[name]
    exact = [x.detach().cpu().double().requires_grad_() for x in inputs]
    expected = call(*exact)
    grad = torch.linspace(-1, 1, expected.numel(), device="cuda").to(dtype).cpu().double()
    gradients = torch.autograd.grad(expected, exact, grad.view(expected.shape))
    # A float32 sum of up to 50,000 products, or cuDNN's sums, rounded before the activation, whose
    # gradient is rounded, too.
    tolerance = 5e-5 if dtype == torch.float32 else TOLERANCE[dtype] * (4 if name == "fused" else 1)
    for a, b in zip(results, (expected, *gradients)):
        assert_matches(a, b, tolerance)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    # What others allocate in between is not what the graph uses.
    noise = [torch.full((1 << 20,), torch.nan, device="cuda") for _ in range(16)]
    for x in inputs:
        x.data.neg_()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.isnan(x).all() for x in noise)
    for a, b in zip(captured, run()):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("name", "layout"),
    [
        *((name, "nxc") for name in ("3x3", "depthwise", "one image", "long tables", "blocked")),
        ("unequal pads", "ncx"),
    ],
)
def test_threads_with_streams_of_their_own(name, layout):
    """Scratch memory and tables of one stream are not those of another."""
    run, _ = both(name, layout, torch.float32)
    expected = run()
    torch.cuda.synchronize()
    wrong = []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                results = run()
                torch.cuda.current_stream().synchronize()
                wrong.extend(a for a, b in zip(results, expected) if not torch.equal(a, b))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_out_of_memory_and_then_success():
    x, w = images(1, 64, 32, 32), images(64, 64, 3, 3)
    expected = D.conv2d(x, w, padding=1)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        D.interpolate(x, size=(1 << 17, 1 << 17))  # 4 TB
    assert torch.equal(D.conv2d(x, w, padding=1), expected)


@pytest.mark.parametrize("function", [D.conv2d, D.conv_transpose2d], ids=["conv", "transpose"])
def test_tensors_of_two_devices(function):
    x, w = images(1, 4, 8, 8), images(4, 4, 3, 3)
    for a, b in [(x, w.cpu()), (x.cpu(), w)]:
        with pytest.raises((ValueError, RuntimeError), match=r"device|cuda"):
            function(a, b)
