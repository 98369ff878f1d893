"""The memory that a convolution takes beyond its tensors: some MB, whatever the sizes of images and
weights."""

import ctypes
import functools
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from threads import threads

import torch_dnnl  # noqa: F401  registers the operators


def peak_of(call):
    """The result, and how many bytes of memory the process took for a moment beyond what it had, at
    least: the first calls also grow the threads' stacks and heaps."""
    status, clear = Path("/proc/self/status"), Path("/proc/self/clear_refs")

    def kilobytes(field):
        return int(status.read_text().split(f"{field}:")[1].split()[0])

    peaks = []
    for _ in range(4):
        result = None
        ctypes.CDLL(None).malloc_trim(0)  # what was freed would be taken again unseen
        clear.write_text("5")  # the peak begins here
        before = kilobytes("VmRSS")
        result = call()
        peaks.append((kilobytes("VmHWM") - before) * 1024)
    return result, min(peaks)


SCRATCH = 6 << 20


@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("weights_format", ["OIX", "XIO"])
@pytest.mark.parametrize(
    ("channels", "groups", "algorithm"),
    [(64, 1, "winograd"), (64, 1, "direct"), (64, 64, "auto")],
    ids=["winograd", "direct", "depthwise"],
)
def test_memory_is_inputs_output_and_scratch(
    data_format, weights_format, channels, groups, algorithm
):
    """No copy in another layout, in any pass, and none of the result before its activation."""
    x = torch.randn(4, channels, 96, 96) if data_format == "NCX" else torch.randn(4, 96, 96, 64)
    w = torch.randn(channels, channels // groups, 3, 3)
    w = w if weights_format == "OIX" else w.permute(2, 3, 1, 0).contiguous()
    attributes = ([1, 1], [1, 1], [1, 1], [1, 1], "none", groups, data_format, weights_format)
    ops = torch.ops.torch_dnnl
    y = ops.convolution(x, w, None, *attributes, algorithm)
    for call in (
        lambda: ops.convolution(x, w, None, *attributes, algorithm),
        lambda: ops.convolution_fused(
            x, w, None, *attributes, algorithm, residual=x, activation="silu"
        ),
        lambda: ops.convolution_backward_data(y, w, [96, 96], *attributes, algorithm),
        lambda: ops.convolution_backward_weights(y, x, [3, 3], *attributes, algorithm),
    ):
        result, peak = peak_of(call)
        outputs = result if isinstance(result, tuple) else (result,)
        assert peak <= sum(t.nbytes for t in outputs) + SCRATCH


@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize(
    "n, ic, oc, groups",
    [
        (8, 512, 512, 1),  # kernels would take 38 MB, inputs 29 MB
        (16, 64, 1216, 1),  # kernels 11 MB, products of a thread 15 MB
        (1, 2048, 2048, 32),  # kernels 19 MB
    ],
)
def test_memory_of_wide_layers_is_bounded(data_format, n, ic, oc, groups):
    """Winograd's scratch, in both directions."""
    x, g = (
        torch.randn((n, c, 28, 28) if data_format == "NCX" else (n, 28, 28, c)) for c in (ic, oc)
    )
    w = torch.randn(oc, ic // groups, 3, 3)
    attributes = ([1, 1], [1, 1], [1, 1], [1, 1], "none", groups, data_format, "OIX")
    ops = torch.ops.torch_dnnl
    for op, arguments in (
        (ops.convolution, (x, w, None, *attributes)),
        (ops.convolution_backward_data, (g, w, [28, 28], *attributes)),
    ):
        with threads(2):  # each has scratch of its own
            expected = op(*arguments, "direct")
            result, peak = peak_of(functools.partial(op, *arguments, "winograd"))
        # 8 MB of inputs; for each thread 2 MB of products, 0.6 of kernels and its own heap.
        assert peak <= result.nbytes + (16 << 20)
        assert (result - expected).norm() < 5e-6 * expected.norm()


@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize(
    "ic, oc, groups, kernel, stride, size, scratch",
    [
        (2048, 4200, 1, 1, 1, 14, 17),  # weights of 33 MB: 10 of them, and 4 of images
        (1200, 1000, 1, 3, 2, 27, 10),  # 41 MB: 2.5 of them, and 5 of sums
        (2048, 2048, 4, 3, 2, 27, 10),  # 36 MB
        (256, 256, 1, 15, 1, 9, 10),  # 56 MB: of some taps
    ],
    ids=["pointwise", "direct", "grouped", "large"],
)
def test_memory_of_wide_weights(data_format, ic, oc, groups, kernel, stride, size, scratch):
    """They are packed a part at a time; in both directions, as in float64."""
    n, pad = 6, kernel // 2
    out = (size + 2 * pad - kernel) // stride + 1
    x, g = torch.randn(n, ic, size, size), torch.randn(n, oc, out, out)
    w = torch.randn(oc, ic // groups, kernel, kernel)
    leaf = x.double().requires_grad_()
    y = F.conv2d(leaf, w.double(), None, stride, pad, 1, groups)
    (grad,) = torch.autograd.grad(y, leaf, g.double())
    to_data = [0, 2, 3, 1] if data_format == "NXC" else [0, 1, 2, 3]
    x, g = (t.permute(to_data).contiguous() for t in (x, g))
    attributes = ([stride] * 2, [pad] * 2, [pad] * 2, [1, 1], "none", groups, data_format, "OIX")
    ops = torch.ops.torch_dnnl
    for op, arguments, reference in (
        (ops.convolution, (x, w, None, *attributes), y.detach()),
        (ops.convolution_backward_data, (g, w, [size] * 2, *attributes), grad),
    ):
        call = functools.partial(op, *arguments, "direct")
        result, peak = peak_of(call)
        assert peak <= result.nbytes + (scratch << 20)
        assert (result - reference.permute(to_data)).norm() < 2e-6 * reference.norm()


@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("channels, kernel, size", [(64, 31, 64), (64, 41, 40)])
def test_memory_of_large_depthwise_kernels(data_format, channels, kernel, size):
    """There are gradients of their weights to sum up for few parts of an image only."""
    x, g = torch.randn(2, 2, channels, size, size).unbind()
    w = torch.zeros(channels, 1, kernel, kernel, dtype=torch.float64, requires_grad=True)
    y = F.conv2d(x.double(), w, None, padding=kernel // 2, groups=channels)
    (expected,) = torch.autograd.grad(y, w, g.double())
    if data_format == "NXC":
        x, g = (t.permute(0, 2, 3, 1).contiguous() for t in (x, g))
    pads = [kernel // 2] * 2
    call = functools.partial(
        torch.ops.torch_dnnl.convolution_backward_weights,
        *(g, x, [kernel] * 2, [1, 1], pads, pads, [1, 1], "none", channels, data_format, "OIX"),
    )
    result, peak = peak_of(call)
    assert peak <= result.nbytes + SCRATCH + (5 << 20)
    assert (result - expected).norm() < 2e-6 * expected.norm()


@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
def test_memory_of_matrix_products(data_format):
    """Of an image that many tasks read, of 16 MB here, panels are made of a part at a time."""
    few, many = (
        torch.randn(4, c, 64, 64) if data_format == "NCX" else torch.randn(4, 64, 64, c)
        for c in (256, 768)
    )
    to_many, to_few = torch.randn(768, 256, 1, 1), torch.randn(256, 768, 1, 1)
    attributes = ([1, 1], [0, 0], [0, 0], [1, 1], "none", 1, data_format, "OIX", "auto")
    ops = torch.ops.torch_dnnl
    for call, scratch in (
        (lambda: ops.convolution(few, to_many, None, *attributes), SCRATCH),
        (lambda: ops.convolution_backward_data(few, to_few, [64, 64], *attributes), SCRATCH),
        # And the sums of pixels in up to 32 chunks.
        (
            lambda: ops.convolution_backward_weights(many, few, [1, 1], *attributes),
            SCRATCH + (8 << 20),
        ),
    ):
        result, peak = peak_of(call)
        assert peak <= result.nbytes + scratch
