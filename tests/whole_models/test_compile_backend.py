"""torch.compile(backend="torch_dnnl"): values, gradients, and what it puts in Inductor's graphs."""

import copy
import os
import re
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager

import pytest
import torch
import torch.nn.functional as F
from paths import ROOT
from torch import nn
from torch._dynamo.utils import counters
from torch._inductor import config

import torch_dnnl
import torch_dnnl.inductor
from torch_dnnl.graph.nodes import arguments_of
from torch_dnnl.inductor import preferences

TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}


PACKED = torch.ops.torch_dnnl.convolution_packed.default


def is_fused(call):
    return call["activation"] is not None or call["residual"] is not None


class Graphs(list):
    """The graphs that Inductor generates code for, after its passes and ours."""

    @property
    def operators(self):
        """How often each operator is called. A call with packed weights counts as the operator that
        takes plain weights."""
        nodes = [node for graph in self for node in graph.nodes if node.op == "call_function"]
        names = (getattr(node.target, "_schema", None) for node in nodes if node.target != PACKED)
        found = Counter(schema.name for schema in names if schema is not None)
        of_packed = (is_fused(arguments_of(node)) for node in nodes if node.target == PACKED)
        found.update("torch_dnnl::convolution" + "_fused" * fused for fused in of_packed)
        return found

    @property
    def fused(self):
        """The arguments of each call of convolution_fused."""
        targets = (torch.ops.torch_dnnl.convolution_fused.default, PACKED)
        nodes = [node for graph in self for node in graph.nodes if node.target in targets]
        return [call for call in map(arguments_of, nodes) if is_fused(call)]

    @property
    def packed(self):
        """How many convolutions have packed weights."""
        return sum(node.target == PACKED for graph in self for node in graph.nodes)

    @property
    def activations(self):
        return sorted(call["activation"] or "none" for call in self.fused)


@contextmanager
def recorded(freezing=False):
    graphs = Graphs()
    torch._dynamo.reset()
    passes = {"post_grad_custom_post_pass": lambda graph: graphs.append(copy.deepcopy(graph))}
    with config.patch(**passes, freezing=freezing, fx_graph_cache=False):
        yield graphs


def compiled(model, **options):
    return torch.compile(model, backend="torch_dnnl", fullgraph=True, **options)


def assert_close(actual, expected, dtype):
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def results(model, x):
    """The result, and the gradients of the input and the parameters."""
    x = x.clone().requires_grad_()
    y = model(x)
    inputs = [x, *(parameter for parameter in model.parameters() if parameter.requires_grad)]
    return [y.detach(), *torch.autograd.grad(y.square().sum(), inputs)]


def check_training(model, x, **options):
    expected = results(copy.deepcopy(model), x)
    with recorded() as graphs:
        actual = results(compiled(copy.deepcopy(model), **options), x)
    assert_close(actual, expected, x.dtype)
    return graphs


def check_inference(model, x, freezing=False, **options):
    model = copy.deepcopy(model).eval()
    with recorded(freezing) as graphs, torch.no_grad():
        actual, expected = compiled(model, **options)(x), model(x)
    assert_close(actual, expected, x.dtype)
    assert actual.stride() == expected.stride()
    return graphs


class Network(nn.Module):
    """Every epilogue, images made larger and smaller, and a convolution without an epilogue."""

    def __init__(self, channels=16):
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.each = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.convs = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(5))
        self.last = nn.Conv2d(channels, 5, 3, 2, dilation=2)
        with torch.no_grad():
            self.norm.running_mean.normal_()
            self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        a, b, c, d, e = self.convs
        x = F.relu(self.norm(self.first(x)))
        x = F.silu(self.each(x) + x)
        y = F.gelu(a(F.interpolate(x, scale_factor=2, mode="bilinear")))
        y = F.hardswish(b(F.interpolate(y, size=x.shape[2:], mode="bicubic", antialias=True)))
        x = torch.tanh(c(x) + d(y))
        return self.last(torch.sigmoid(e(x)))


def images(*sizes, dtype=torch.float64, layout=torch.contiguous_format):
    return torch.randn(sizes, dtype=dtype).to(memory_format=layout)


def test_training():
    graphs = check_training(Network().double(), images(2, 3, 9, 7))
    found, fused = graphs.operators, graphs.fused
    # The norm of a batch stands between the first convolution and its activation.
    assert graphs.activations == ["gelu", "hardswish", "sigmoid", "silu", "tanh"]
    assert sum(call["residual"] is not None for call in fused) == 2
    kept = {call["activation"] for call in fused if call["keep_preactivation"]}
    assert kept == {"gelu", "hardswish", "silu"}
    assert found["torch_dnnl::convolution"] == 3
    assert found["torch_dnnl::convolution_backward_data"] == 8
    assert found["torch_dnnl::convolution_backward_weights"] == 8
    assert found["torch_dnnl::resample"] == found["torch_dnnl::resample_backward"] == 2
    assert not any(name.startswith("aten::convolution") for name in found)


@pytest.mark.parametrize("freezing", [False, True])
def test_inference(freezing):
    x = images(2, 3, 9, 7, layout=torch.channels_last)
    graphs = check_inference(Network().double(), x, freezing)
    found = graphs.operators
    assert graphs.activations == ["gelu", "hardswish", "relu", "sigmoid", "silu", "tanh"]
    assert found["torch_dnnl::convolution"] == found["torch_dnnl::resample"] == 2
    # Batch norm is in the weights: as constants, or made anew for each call.
    assert (found["aten::mul"] == 0) == freezing
    assert (graphs.packed > 4) == freezing
    assert found["aten::clone"] == found["aten::convolution"] == 0
    if freezing:
        expected = {"convolution", "convolution_fused", "resample"}
        assert set(found) == {f"torch_dnnl::{name}" for name in expected}


def test_converted_model():
    model = torch_dnnl.convert(nn.Sequential(nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6), nn.ReLU()))
    graphs = check_inference(model.double(), images(1, 4, 5, 6), freezing=True)
    assert graphs.activations == ["relu"]
    assert sum(graphs.operators.values()) == 1


def test_channels_last_formats():
    """The layer with oneDNN's formats, of which the channels are last in each."""
    conv = torch_dnnl.nn.Conv(2, 4, 6, 1)
    with torch.no_grad():
        conv.weight.normal_()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = conv
            self.scale = nn.Parameter(torch.rand(6))

        def forward(self, x):
            return F.silu(self.conv(x) * self.scale - self.scale / 2)

    (call,) = check_inference(Model().double(), images(1, 5, 6, 4), freezing=True).fused
    assert (call["activation"], call["data_format"]) == ("silu", "NXC")


def test_kernel_that_was_named():
    """It may not have epilogues."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4, 4, 1))

        def forward(self, x):
            options = {"data_format": "NCX", "weights_format": "OIX", "algorithm": "reference"}
            return torch_dnnl.functional.convolution(x, self.weight, **options).relu()

    graphs = check_inference(Model().double(), images(1, 4, 5))
    assert graphs.operators["torch_dnnl::convolution"] == 1


def test_average_pools():
    class Model(nn.Module):
        def forward(self, x):
            row = F.adaptive_avg_pool1d(x[:, :, 0], 3)
            return F.adaptive_avg_pool2d(x, (None, 4)).mean(2) + row.mean(-1, keepdim=True)

    graphs = check_training(Model(), images(2, 3, 5, 7))
    assert graphs.operators["torch_dnnl::resample"] == 2
    assert graphs.operators["torch_dnnl::resample_backward"] == 2


def test_choice():
    """In float32 torch has products of its own; ours is for what the table of preferences says."""
    layers = {
        "winograd": nn.Conv2d(16, 16, 3, padding=1),
        "depthwise": nn.Conv2d(16, 16, 3, padding=1, groups=16),
        "wide": nn.Conv2d(16, 600, 1),
        "deep": nn.Sequential(nn.Conv2d(600, 16, 1), nn.ReLU()),
    }
    model = nn.Sequential(*layers.values(), nn.Conv2d(16, 4, 1), nn.Tanh())
    found = check_training(model, images(2, 16, 12, 12, dtype=torch.float32))
    assert found.activations == ["tanh"]
    assert found.operators["torch_dnnl::convolution"] == 2
    assert found.operators["aten::convolution"] == 2
    assert found.operators["torch_dnnl::convolution_backward_weights"] == 2
    assert found.operators["aten::convolution_backward"] == 3


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_resizes_that_are_joined(mode, layout):
    """Inductor writes them where they are joined; ours would be copied there."""

    class Model(nn.Module):
        def forward(self, x):
            parts = [F.interpolate(x, scale_factor=n, mode=mode) for n in (2, 2)]
            return torch.cat(parts, 1)

    found = check_inference(Model(), images(2, 8, 7, 9, dtype=torch.float32, layout=layout))
    is_torchs = mode == "bilinear" and layout == torch.channels_last
    assert found.operators["torch_dnnl::resample"] == (0 if is_torchs else 2)


def test_batch_of_one_is_not_copied():
    """Inductor gives the only image of a batch any stride; its channels lie where they lay."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(16, 32, bias=False)  # with one, addmm copies it
            self.conv = nn.Conv2d(32, 32, 3, groups=32)

        def forward(self, tokens):
            image = self.layer(tokens).transpose(1, 2).reshape(-1, 32, 8, 8)
            return self.conv(image).relu().flatten(2).transpose(1, 2)

    model, tokens = Model().eval(), torch.randn(1, 64, 16)
    function = compiled(model)
    with torch.no_grad():
        function(tokens)
        with torch.profiler.profile() as profile:
            result = function(tokens)
    assert_close(result, model(tokens), torch.float32)
    assert "aten::copy_" not in {event.key for event in profile.key_averages()}


def test_what_is_left_alone():
    """Scales that depend on the image, what has another type or size, and what is no activation."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList(nn.Conv2d(4, 4, 1) for _ in range(5))

        def forward(self, x):
            a, b, c, d, e = self.convs
            x = a(x) * x.mean((2, 3), keepdim=True)
            x = F.celu(b(x), 0.5)
            x = c(x) + x.mean(1, keepdim=True)
            y = d(x)
            return torch.add(e(y), y, alpha=2) + (y - 1).relu()

    graphs = check_inference(Model().double(), images(1, 4, 5, 6), freezing=True)
    assert graphs.fused == []
    assert graphs.operators["torch_dnnl::convolution"] == 5


def test_symbolic_sizes():
    """Fused as with numbers; of the residual, the sizes are known to be the same."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    model, x = model.double().eval(), images(2, 3, 9, 8)
    block = nn.Conv2d(4, 4, 3, padding=1).double()

    def function(x):
        x = model(x)
        return torch.sigmoid(block(x) + x)

    with recorded() as graphs, torch.no_grad():
        actual = compiled(function, dynamic=True)(x)
    assert_close(actual, function(x), x.dtype)
    assert graphs.activations == ["relu", "sigmoid"]
    assert [call["residual"] is not None for call in graphs.fused] == [False, True]


def test_dimensions_and_groups():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.volumes = nn.Conv3d(4, 6, (1, 2, 3), (1, 2, 1), (0, 1, 2), (1, 1, 2), groups=2)
            self.rows = nn.Conv1d(6, 4, 3, padding="same")
            self.volumes.weight.requires_grad_(False)

        def forward(self, x):
            x = F.interpolate(self.volumes(x), scale_factor=1.5, mode="trilinear")
            return F.interpolate(self.rows(x.flatten(2)), size=11, mode="nearest-exact")

    graphs = check_training(Model().double(), images(2, 4, 3, 5, 4))
    assert graphs.operators["torch_dnnl::convolution_backward_data"] == 2
    assert graphs.operators["torch_dnnl::convolution_backward_weights"] == 1
    assert graphs.operators["torch_dnnl::resample_backward"] == 2


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
def test_nearest_pixels_of_factors(mode, dynamic, layout):
    """Inductor takes others than ATen where an axis keeps its size or doubles it."""
    factors = ((1.3, 1.5), (0.7, 1.1), (2.4, 1.2), (0.5, 2.0))

    def function(x):
        return [F.interpolate(x, scale_factor=factor, mode=mode) for factor in factors]

    torch._dynamo.reset()
    resize = compiled(function, dynamic=dynamic)
    for size in ((5, 4), (3, 7), (2, 2), (60, 70)):
        x = images(2, 4, *size, layout=layout)
        assert all(map(torch.equal, resize(x), function(x))), size


@pytest.mark.parametrize("dynamic", [False, True])
def test_transposed(dynamic):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = nn.ConvTranspose1d(4, 6, 3, 2, 1, output_padding=1, groups=2)
            self.block = nn.ConvTranspose1d(6, 6, 3, 1, 2, dilation=2, bias=False)

        def forward(self, x):
            x = F.silu(self.rows(x))
            return torch.tanh(self.block(x) + x)

    graphs = check_training(Model().double(), images(2, 4, 7), dynamic=dynamic)
    found = graphs.operators
    assert found["torch_dnnl::convolution_transpose"] == 2
    # The gradients of data, one of them with that of the residual.
    assert found["torch_dnnl::convolution"] == found["torch_dnnl::convolution_fused"] == 1
    assert found["torch_dnnl::convolution_backward_weights"] == 2
    target = torch.ops.torch_dnnl.convolution_transpose.default
    rows, block = (node for graph in graphs for node in graph.nodes if node.target is target)
    rows, block = map(arguments_of, (rows, block))
    assert (rows["activation"], rows["keep_preactivation"], rows["residual"]) == (
        "silu",
        True,
        None,
    )
    assert (block["activation"], block["keep_preactivation"]) == ("tanh", False)
    assert block["residual"] is not None


def test_transposed_with_more_pixels_than_a_stride_stays():
    model = nn.ConvTranspose1d(2, 2, 3, 1, 1, output_padding=1, dilation=2)
    found = check_inference(model.double(), images(1, 2, 5)).operators
    assert found["aten::convolution"] == 1


def test_autocast():
    model = nn.Sequential(nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.SiLU()).eval()
    x = images(1, 16, 14, 14, dtype=torch.float32)
    with recorded(freezing=True) as graphs, torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        actual, expected = compiled(model)(x), model(x)
    assert actual.dtype == expected.dtype == torch.bfloat16
    assert_close(actual, expected, torch.bfloat16)
    assert graphs.activations == ["silu"]


def test_autocast_averages_volumes_in_float32():
    model, x = nn.AdaptiveAvgPool3d((3, 2, 3)), torch.randn(2, 3, 8, 8, 8, dtype=torch.bfloat16)
    with recorded(), torch.autocast("cpu", torch.bfloat16):
        actual, expected = compiled(model)(x), model(x)
    assert actual.dtype == expected.dtype == torch.float32
    assert_close(actual, expected, torch.bfloat16)


def test_recompilations():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, 2, 1), nn.ReLU(), nn.Upsample(scale_factor=2.0))
    model.append(nn.Upsample(scale_factor=2.0, mode="bilinear"))
    graphs = {}
    for backend in ("inductor", "torch_dnnl"):
        torch._dynamo.reset()
        counters.clear()
        function = torch.compile(model.double(), backend=backend)
        for sizes in [(2, 3, 32, 40), (3, 3, 48, 56), (4, 3, 130, 35)]:
            x = images(*sizes)
            with torch.no_grad():
                assert_close(function(x), model(x), torch.float64)
        graphs[backend] = counters["stats"]["unique_graphs"]
    assert 2 <= graphs["torch_dnnl"] <= graphs["inductor"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_preferences(dtype):
    """Sizes of images count only where they are small; torch's oneDNN has no float64."""

    def choice(*sizes, strides=1, groups=1, pixels=1000, transposed=False):
        n = len(sizes) - 2
        weights = torch.empty(sizes, dtype=dtype)
        steps = ((strides,) * n, (1,) * n)
        return preferences.Convolution(weights, *steps, groups, transposed, pixels)

    large, small = choice(64, 64, 3, 3), choice(64, 64, 3, 3, pixels=49)
    wide = choice(64, 64, 1, 1)
    assert large.prefers_result(False) and large.choice.frozen
    if not preferences._has_products(dtype):
        assert {c.choice for c in (large, small, wide)} == {
            (preferences.Result.ALWAYS, *[True] * 3)
        }
        return
    assert small.choice.frozen == (dtype == torch.float32)
    assert wide.choice.frozen
    assert wide.prefers_result(True) and not wide.prefers_result(False)
    assert not choice(64, 1024, 1, 1).prefers_result(True)
    assert choice(64, 1, 5, 5, groups=64).choice.frozen
    volume = choice(64, 64, 3, 3, 3)
    assert not volume.prefers_result(True) and not volume.choice.frozen
    on_gpu = preferences.Convolution(torch.empty(4, 4, 1, device="meta"), (1,), (1,), 1, False, 9)
    assert not on_gpu.prefers_result(True)


def test_modes_and_options():
    graphs, seen = [], []
    options = {"joint_custom_pre_pass": seen.append, "post_grad_custom_pre_pass": graphs.append}
    model, x = nn.Conv2d(3, 4, 3).double(), images(1, 3, 5, 5)
    with config.patch(fx_graph_cache=False):
        assert_close(compiled(model, options=options)(x), model(x), x.dtype)
    assert len(seen) == 1  # a pass of the user's runs beside ours
    torch._dynamo.reset()
    assert_close(compiled(model, mode="max-autotune-no-cudagraphs")(x), model(x), x.dtype)
    with pytest.raises(Exception, match="expected options to be Inductor's, got 'no_option'"):
        torch.compile(F.relu, backend="torch_dnnl", options={"no_option": 1})(x)
    with pytest.raises(Exception, match="expected option 'max_autotune' to be bool, got 'abc'"):
        torch.compile(F.relu, backend="torch_dnnl", options={"max_autotune": "abc"})(x)


PROGRAM = """
import sys
import torch
from torch import nn
model, x = nn.Conv1d(2, 3, 3).double(), torch.randn(1, 2, 7, dtype=torch.float64)
assert "torch_dnnl" not in sys.modules
compiled = torch.compile(model, backend="torch_dnnl")
with torch.no_grad(), torch.profiler.profile() as profile:
    y = compiled(x)
torch.testing.assert_close(y, model(x))
assert any(event.key == "torch_dnnl::convolution" for event in profile.key_averages())
"""


def test_needs_no_import(tmp_path):
    """torch finds the entry point that pyproject.toml declares in what is installed."""
    text = (ROOT / "pyproject.toml").read_text()
    points = re.search(r"^\[project\.entry-points\.(\w+)\]\n(.*?)\n\n", text, re.M | re.S)
    lines = [f"[{points[1]}]", points[2].replace('"', "")]
    installed = tmp_path / "torch_dnnl-0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_dnnl\nVersion: 0\n")
    (installed / "entry_points.txt").write_text("\n".join(lines))
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    environment = os.environ | {"PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", PROGRAM], check=True, env=environment, cwd=tmp_path)
