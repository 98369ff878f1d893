"""Compiled calls whose sizes and floats come from data.

Sizes are unbacked symbols of one graph. A float breaks the graph, as in torch's functions: a call
without `fullgraph` runs.
"""

import pytest
import torch
import torch.nn.functional as F
from torch._dynamo.testing import CompileCounterWithBackend

import torch_dnnl
import torch_dnnl.functional as D

RESIZES = [
    (rank, mode, options)
    for rank, linear in ((3, "linear"), (4, "bilinear"), (5, "trilinear"))
    for mode, options in (
        *(("nearest", {}), ("nearest-exact", {}), ("area", {}), (linear, {})),
        *((linear, {"align_corners": True}), (linear, {"antialias": True})),
        *([("bicubic", {})] if rank == 4 else []),
    )
]


@pytest.fixture(autouse=True)
def captured_scalars():
    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("rank, mode, options", RESIZES)
def test_interpolate(rank, mode, options, dtype):
    def resize(x, sizes):
        return D.interpolate(x, size=sizes.tolist(), mode=mode, **options)

    compiled = torch.compile(resize, backend="aot_eager", fullgraph=True)
    x = torch.rand(2, 3, *(5, 6, 7)[: rank - 2], dtype=dtype)
    for sizes in ((4, 9, 3), (10, 5, 14), (1, 1, 1)):
        size = torch.tensor(sizes[: rank - 2])
        is_torchs = rank == 4 or not options.get("antialias")
        expected = (
            F.interpolate(x.double(), size.tolist(), mode=mode, **options)
            if is_torchs
            else resize(x.double(), size)
        )
        torch.testing.assert_close(compiled(x, size), expected.to(dtype))


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic", "area", "lanczos3"])
def test_resample(mode):
    def resize(x, sizes):
        return D.resample(x, size=sizes.tolist(), mode=mode)

    compiled = torch.compile(resize, backend="aot_eager", fullgraph=True)
    x = torch.rand(2, 3, 5, 6)
    for size in (torch.tensor([4, 9]), torch.tensor([10, 1])):
        assert torch.equal(compiled(x, size), resize(x, size))


def test_images_of_sizes_from_data():
    """Slices: layers, their gradients and reorders take images of unknown sizes."""
    conv = torch_dnnl.nn.Conv2d(3, 4, 3, padding=1)
    up = torch_dnnl.nn.ConvTranspose2d(4, 4, 2, stride=2)

    def function(x, size):
        height, width = size.tolist()
        torch._check(height <= x.shape[2]), torch._check(height >= 3)
        torch._check(width <= x.shape[3]), torch._check(width >= 3)
        y = up(conv(x[:, :, :height, :width]))
        y = D.fake_reorder(D.reorder(y, scale=0.5), dtype=torch.int8, dst_scale=0.02)
        return D.interpolate(y, scale_factor=2, mode="bilinear").flatten(2) * 2

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    for layout in (torch.contiguous_format, torch.channels_last):
        x = torch.rand(2, 3, 9, 8).contiguous(memory_format=layout)
        for size in (torch.tensor([9, 8]), torch.tensor([5, 3])):
            expected = function(x, size)
            torch.testing.assert_close(compiled(x, size), expected)


CODES = torch.ones(1, 3, 5, 6, dtype=torch.uint8)
WEIGHTS = torch.ones(1, 1, 6, 2, dtype=torch.int8)
OF_FLOATS = {
    "interpolate": lambda x, f: D.interpolate(x, scale_factor=f, mode="bilinear"),
    "nearest": lambda x, f: D.interpolate(x, scale_factor=f),
    "accelerated": torch_dnnl.accelerate()(
        lambda x, f: F.interpolate(x, scale_factor=f, mode="bicubic")
    ),
    "scale_factor": lambda x, f: D.resample(x, scale_factor=f, recompute_scale_factor=False),
    "cubic_coeff_a": lambda x, f: D.resample(x, size=7, mode="cubic", cubic_coeff_a=-f),
    "roi": lambda x, f: D.resample(
        x, size=7, coordinates="tf_crop_and_resize", roi=[0, f, 1, 1], extrapolation_value=f
    ),
    "scale": lambda x, f: D.reorder(x, scale=f),
    "dst_scale": lambda x, f: D.reorder(x, dtype=torch.int8, dst_scale=f),
    "dst_zero_point": lambda x, f: D.reorder(x, dtype=torch.int8, dst_zero_point=4 * f),
    "src_zero_point": lambda x, f: D.reorder(x, src_zero_point=f),
    "beta": lambda x, f: D.reorder(x, accumulate=x, beta=f),
    "fake_reorder": lambda x, f: D.fake_reorder(x, dtype=torch.int8, dst_scale=f),
    "quantized_convolution": lambda x, f: D.quantized_convolution(CODES, WEIGHTS, dst_scale=f),
    "src_scale": lambda x, f: D.quantized_convolution(CODES, WEIGHTS, src_scale=f),
}


@pytest.mark.parametrize("name", OF_FLOATS)
def test_floats(name):
    def function(x, factor):
        return OF_FLOATS[name](x + 1, factor.item()) * 2

    compiled = torch.compile(function, backend="aot_eager")
    x = torch.rand(1, 3, 5, 6)
    for factor in (0.5, 0.75, 1.5):
        number = torch.tensor(factor)
        assert torch.equal(compiled(x, number), function(x, number))


def test_size_of_a_factor_from_data_is_one_graph():
    """oneDNN's rule takes the coordinates from the sizes alone."""
    counter = CompileCounterWithBackend("aot_eager")
    function = lambda x, f: D.resample(x, scale_factor=f.item())  # noqa: E731
    compiled = torch.compile(function, backend=counter, fullgraph=True)
    x = torch.rand(1, 3, 5, 6)
    for factor in (0.5, 1.5, 2.0):
        number = torch.tensor(factor)
        assert torch.equal(compiled(x, number), function(x, number))
    assert counter.frame_count == 1
