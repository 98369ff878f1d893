"""quantization.lower: what it makes of torchao's graphs, and that the results stay the same."""

import copy

import pytest
import torch
from pt2e import EveryConvolution, quantize, quantize_in_training, x86
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import torch_dnnl
from torch_dnnl.graph.calls import quantized_convolution
from torch_dnnl.quantization import lower


def conv_bn(*args, n=2, **options):
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[n - 1](*args, **options)
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[n - 1](conv.out_channels)
    nn.init.uniform_(norm.running_mean, -0.2, 0.2)
    nn.init.uniform_(norm.running_var, 0.1, 0.3)
    return nn.Sequential(conv, norm)


class Residual(nn.Module):
    """Two branches are added, of which one or both are convolutions."""

    def __init__(self, downsample=False):
        super().__init__()
        self.first = conv_bn(3, 16, 3, padding=1)
        self.second = conv_bn(16, 16, 3, padding=1, bias=False)
        self.other = conv_bn(16, 16, 1) if downsample else nn.Identity()
        self.last = nn.Conv2d(16, 8, 1)

    def forward(self, x):
        x = self.first(x).relu()
        return self.last((self.second(x) + self.other(x)).relu())


class InPlace(Residual):
    """As torchvision writes it."""

    def forward(self, x):
        x = F.relu(self.first(x), inplace=True)
        y = self.second(x)
        y += self.other(x)
        return self.last(F.relu(y, inplace=True))


NETWORKS = {
    "conv_bn_relu": lambda: nn.Sequential(
        conv_bn(3, 16, 3, padding=1), nn.ReLU(), conv_bn(16, 20, 3, stride=2), nn.ReLU()
    ),
    "no_relu": lambda: nn.Sequential(nn.Conv2d(3, 9, 3, bias=False), conv_bn(9, 7, (3, 1))),
    "residual": Residual,
    "downsample": lambda: Residual(downsample=True),
    "in_place": InPlace,
    "depthwise": lambda: nn.Sequential(
        conv_bn(3, 24, 1), nn.Hardswish(), conv_bn(24, 24, 5, padding=2, groups=24), nn.Hardswish()
    ),
    "grouped": lambda: nn.Sequential(
        nn.Conv2d(3, 16, 3, padding="same"), nn.SiLU(), nn.Conv2d(16, 8, 3, groups=4, dilation=2)
    ),
    "pooled": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3, padding=1), nn.Tanh()
    ),
    "1d": lambda: nn.Sequential(
        conv_bn(3, 8, 5, n=1, stride=2), nn.GELU(), conv_bn(8, 8, 3, n=1), nn.Sigmoid()
    ),
    "3d": lambda: nn.Sequential(
        conv_bn(3, 8, 3, n=3, padding=(1, 0, 1)), nn.ReLU(), nn.Conv3d(8, 4, 2, padding="valid")
    ),
}


def image(name, batch=4):
    torch.manual_seed(1)
    return torch.randn(batch, 3, *{"1d": [301], "3d": [9, 10, 11]}.get(name, [21, 20]))


def calls(model, name):
    return [node for node in model.graph.nodes if name in str(node.target)]


def last_scale(model):
    """The step of the result, which a dequantize gives."""
    (last,) = model.graph.output_node().all_input_nodes
    assert "dequantize_per_tensor" in str(last.target)
    return last.args[1]


def assert_same(lowered, reference, *inputs):
    """Up to a step where rounding differs, which is rare."""
    steps = (lowered(*inputs) - reference(*inputs)) / last_scale(reference)
    assert torch.allclose(steps, steps.round(), atol=1e-3)
    assert steps.abs().max() < 1.5
    assert (steps.abs() > 0.5).double().mean() < 1e-3


def assert_all_lowered(lowered, reference):
    assert not calls(lowered, "quantize_") and not calls(lowered, "aten.conv")
    convolutions = calls(lowered, "torch_dnnl.quantized_convolution")
    assert len(convolutions) == len(calls(reference, "aten.conv"))
    for node in convolutions:
        weights = getattr(lowered, node.args[1].target)
        assert weights.dtype == torch.int8 and weights.movedim(1, -1).is_contiguous()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_network(name, dtype):
    x = image(name)
    reference = quantize(NETWORKS[name](), x, EveryConvolution(dtype))
    before = str(reference.graph)
    lowered = lower(reference)
    assert str(reference.graph) == before
    assert_all_lowered(lowered, reference)
    # The image is quantized and the result dequantized; all between them are integers, but for
    # values that are pooled before they are quantized.
    assert len(calls(lowered, "torch_dnnl.reorder")) == (3 if name == "pooled" else 2)
    assert_same(lowered, reference, x)
    x = x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x.transpose(0, 1)
    assert_same(lowered, reference, x if x.dim() == 4 else x.contiguous().transpose(0, 1))


class Shuffled(nn.Module):
    """A view that only contiguous images allow."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 8, 3)

    def forward(self, x):
        x = self.first(x).relu()
        n, c, h, w = x.shape
        return self.last(x.view(n, 2, c // 2, h * w).transpose(1, 2).reshape(n, c, h, w))


@pytest.mark.parametrize("activation", [nn.ReLU6, nn.SiLU])
@pytest.mark.parametrize("device, dtype", [("meta", torch.float32), ("cpu", torch.bfloat16)])
def test_default_device_and_type(device, dtype, activation):
    """`lower` names the type and the device of every tensor that it makes."""
    network = nn.Sequential(nn.Conv2d(3, 8, 3), activation(), nn.Conv2d(8, 8, 1))
    reference = quantize(network, image("2d"), EveryConvolution())
    expected = lower(reference)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            lowered = lower(reference)
    finally:
        torch.set_default_dtype(before)
    assert lowered.code == expected.code
    pairs = zip(lowered.buffers(), expected.buffers(), strict=True)
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs)
    assert torch.equal(lowered(image("2d")), expected(image("2d")))


def test_images_become_channels_last():
    x = image("shuffled")
    reference = quantize(Shuffled(), x, EveryConvolution(torch.uint8))
    assert calls(reference, "aten.view")
    lowered = lower(reference)
    assert_all_lowered(lowered, reference)
    inputs = []
    for node in calls(lowered, "quantized_convolution"):
        inputs.append(node.args[0])
        assert inputs[-1].kwargs["dst_format"] == "nhwc"
    assert len(inputs) == 2
    assert_same(lowered, reference, x)
    network = quantize(NETWORKS["residual"](), x, EveryConvolution(torch.uint8))
    assert lower(network)(x).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "name", ["conv_bn_relu", "residual", "downsample", "in_place", "depthwise", "pooled"]
)
def test_x86_inductor_quantizer(name):
    x = image(name)
    reference = quantize(NETWORKS[name](), x, x86())
    lowered = lower(reference)
    assert_all_lowered(lowered, reference)
    assert len(calls(lowered, "torch_dnnl.reorder")) == (3 if name == "pooled" else 1)
    expected, actual = reference(x), lowered(x)
    # A step within the network moves some results by part of a step of theirs.
    assert (actual - expected).abs().max() < 0.02 * expected.abs().max()
    far = (actual - expected).abs() > 1e-4 * expected.abs().max()
    assert far.double().mean() < 1e-2


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Identity])
def test_means_of_integers_are_quantized_as_torch_does(activation, seed):
    """Means of four integers often lie halfway between two, and have the integers' own scale."""
    torch.manual_seed(seed)
    network = nn.Sequential(conv_bn(3, 16, 3), activation(), nn.AvgPool2d(2), nn.Conv2d(16, 8, 3))
    x = torch.randn(4, 3, 34, 34)
    reference = quantize(network, x, x86())
    lowered = lower(reference)
    assert_all_lowered(lowered, reference)
    # What the last convolution takes, by both.
    (last,) = calls(reference, "aten.conv2d.default")[1:]
    expected = output_of(reference, last.args[0].args[0], x)
    actual = output_of(lowered, calls(lowered, "quantized_convolution")[1].args[0], x)
    steps = (actual.int() - expected.int()).abs()
    assert steps.max() <= 1 and (steps > 0).double().mean() < 1e-3


def output_of(model, node, x):
    """What a node of the graph computes."""
    seen = []

    class Watch(torch.fx.Interpreter):
        def run_node(self, n):
            result = super().run_node(n)
            if n is node:
                seen.append(result)
            return result

    with torch.no_grad():
        Watch(model).run(x)
    return seen[0]


@pytest.mark.parametrize(
    "quantizer",
    [
        EveryConvolution(per_channel=False),
        EveryConvolution(bounds=(0, 127)),
        EveryConvolution(torch.int8, bounds=(-127, 127)),
        EveryConvolution(weights=(0, 254)),
        EveryConvolution(weights=(0, 254), per_channel=False),
    ],
    ids=["per_tensor", "7_bits", "symmetric", "uint8_weights", "uint8_weights_per_tensor"],
)
def test_ranges(quantizer):
    """A range that is less than that of the type needs a clamp; uint8 weights become int8."""
    x = image("residual")
    reference = quantize(Residual(), x, quantizer)
    lowered = lower(reference)
    assert_all_lowered(lowered, reference)
    bounds = quantizer.values.quant_min, quantizer.values.quant_max
    is_whole = bounds in ((0, 255), (-128, 127))
    assert len(calls(lowered, "aten.clamp")) == (0 if is_whole else 4)
    assert_same(lowered, reference, x * 2)  # saturates


def test_weights_that_are_no_int8():
    """Those of 0 to 255 with the zero point 127 are -127 to 128."""
    network = nn.Conv2d(3, 32, 3)
    with torch.no_grad():
        network.weight.abs_()
    reference = quantize(network, image("x"), EveryConvolution(weights=(0, 255)))
    lowered = lower(reference)
    assert len(calls(lowered, "aten.conv")) == 1 and not calls(lowered, "quantize_")
    assert_same(lowered, reference, image("x"))


@pytest.mark.parametrize("clamps", [True, False])
@pytest.mark.parametrize(
    "activation", [nn.ReLU6(), nn.Hardtanh(-0.5, 0.25), nn.ReLU6(inplace=True)], ids=str
)
def test_bounds(activation, clamps):
    """What keeps values between bounds keeps integers between what the bounds round to."""
    x = image("bounds") * 4
    conv = nn.Conv2d(3, 8, 3)
    with torch.no_grad():
        conv.weight.mul_(20 if clamps else 0.001)
    reference = quantize(nn.Sequential(conv, activation), x, EveryConvolution())
    lowered = lower(reference)
    assert_all_lowered(lowered, reference)
    assert not calls(lowered, "relu6") and not calls(lowered, "hardtanh")
    assert_same(lowered, reference, x * 3)


def test_relu6_without_quantize_stays():
    x = image("relu6")
    reference = quantize(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU6()), x, x86())
    lowered = lower(reference)
    (conv,) = calls(lowered, "quantized_convolution")
    assert conv.kwargs["dtype"] == torch.float32 and len(conv.users) == 1
    torch.testing.assert_close(lowered(x), reference(x))


class Branches(nn.Module):
    """Values that several operators use."""

    def __init__(self, where):
        super().__init__()
        self.where = where
        self.first, self.last = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3)

    def forward(self, x):
        y = self.first(x)
        if self.where == "twice":
            y = y + y
        if self.where == "broadcast":
            y = y + x[:1, :, :1]
        if self.where == "scaled":
            y = torch.add(y, x, alpha=2)
        z = y.relu()
        z = self.last(z)
        if self.where == "sum":
            z = z + y.mean()
        if self.where == "relu":
            z = z + y.relu().mean()
        return z


@pytest.mark.parametrize("where", ["sum", "relu", "twice", "broadcast", "scaled"])
def test_values_used_elsewhere(where):
    x = image(where)
    reference = quantize(Branches(where), x, EveryConvolution(additions=False))
    lowered = lower(reference)
    first, last = calls(lowered, "quantized_convolution")
    for node in (first, last):
        assert node.kwargs.get("residual") is None
    assert first.kwargs["dtype"] == torch.float32
    assert_same(lowered, reference, x)


def test_float_residual():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 8, 3)

        def forward(self, x):
            return F.relu(self.a(x) + self.b(x).exp(), inplace=True)

    x = image("sum")
    reference = quantize(Sum(), x, EveryConvolution(additions=False))
    lowered = lower(reference)
    residuals = [node.kwargs.get("residual") for node in calls(lowered, "quantized_convolution")]
    assert sum(node is not None and "exp" in node.name for node in residuals) == 1
    assert_same(lowered, reference, x)


def test_changed_residual_stays():
    """An in-place sum is not fused: a view of the tensor sees the sum."""

    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x):
            y = x.exp()
            view = y[:, :1]
            y += self.conv(x)
            return y + view

    x = image("sum")
    reference = quantize(Sum(), x, EveryConvolution(additions=False))
    lowered = lower(reference)
    assert len(calls(lowered, "add_")) == len(calls(lowered, "quantized_convolution")) == 1
    assert_same(lowered, reference, x)


def test_without_batch():
    """A convolution of an image without a batch stays in float32."""
    network = nn.Conv2d(3, 8, 3)
    reference = quantize(network, image("one")[0], EveryConvolution())
    lowered = lower(reference)
    assert len(calls(lowered, "aten.conv")) == 1 and not calls(lowered, "quantize_")
    assert_same(lowered, reference, image("one")[1])


def test_linear():
    """Weights of what is no convolution are dequantized, for each channel."""
    x = torch.randn(64, 12)
    reference = quantize(nn.Sequential(nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 5)), x, x86())
    lowered = lower(reference)
    assert not calls(lowered, "quantize_") and calls(lowered, "aten.linear")
    torch.testing.assert_close(lowered(x), reference(x))


@pytest.mark.slow
def test_quantization_aware_training():
    """Batch norm is folded, and steps come from training."""
    network, x = NETWORKS["conv_bn_relu"](), image("conv_bn_relu")
    reference = quantize_in_training(network, x)
    lowered = lower(reference)
    assert_all_lowered(lowered, reference)
    expected, actual = reference(x), lowered(x)
    assert (actual - expected).abs().max() < 0.02 * expected.abs().max()


def test_steps_chosen_in_the_call():
    """What finds scales and zero points stays; reorders take them as tensors."""
    x = torch.randn(64, 12)
    quantizer = x86(is_dynamic=True)
    reference = quantize(nn.Sequential(nn.Linear(12, 7), nn.ReLU()), x, quantizer, dynamic=True)
    lowered = lower(reference)
    assert not calls(lowered, "quantize_") and len(calls(lowered, "choose_qparams")) == 1
    for batch in (1, 5):
        torch.testing.assert_close(lowered(x[:batch] * batch), reference(x[:batch] * batch))


@pytest.mark.parametrize("name", ["residual", "1d", "3d"])
def test_any_batch(name):
    reference = quantize(NETWORKS[name](), image(name), EveryConvolution(), dynamic=True)
    lowered = lower(reference)
    assert_all_lowered(lowered, reference)
    assert len(calls(lowered, "torch_dnnl.reorder")) == 2
    for batch in (1, 3, 7):
        assert_same(lowered, reference, image(name, batch))


@pytest.mark.parametrize("name", ["residual", "pooled"])
def test_compile(name):
    reference = quantize(NETWORKS[name](), image("x"), EveryConvolution(), dynamic=True)
    lowered = lower(reference)
    compiled = torch.compile(lowered, fullgraph=True, dynamic=True)
    for batch in (2, 3):
        assert torch.equal(compiled(image("x", batch)), lowered(image("x", batch)))


def test_export(tmp_path):
    reference = quantize(Residual(), image("x"), EveryConvolution(), dynamic=True)
    lowered = lower(reference)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(lowered, (image("x"),), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "model.pt2")
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    for size in (1, 5):
        assert torch.equal(loaded(image("x", size)), lowered(image("x", size)))


def test_copy_and_state():
    lowered = lower(quantize(Residual(), image("x"), EveryConvolution()))
    other = copy.deepcopy(lowered)
    for buffer in other.buffers():
        buffer.zero_()
    other.load_state_dict(lowered.state_dict())
    assert torch.equal(other(image("x")), lowered(image("x")))
    # The float32 weights are gone.
    assert not [
        n for n, p in lowered.state_dict().items() if p.dtype == torch.float32 and p.dim() > 1
    ]


def test_twice_changes_nothing():
    lowered = lower(quantize(Residual(), image("x"), x86()))
    assert str(lower(lowered).graph) == str(lowered.graph)


def affine_graph(per_channel):
    """One convolution by torchao's own operators, whose nodes have no overload."""
    graph, root = torch.fx.Graph(), nn.Module()

    def constant(name, tensor):
        root.register_buffer(name, tensor)
        return graph.get_attr(name)

    mode = FakeTensorMode()  # as torch.export describes tensors
    x = graph.placeholder("x")
    x.meta["val"] = mode.from_tensor(torch.empty(4, 3, 9, 9))
    scale, zero = constant("scale", torch.tensor(0.03)), constant("zero", torch.tensor(100))
    of_values = ((4, 3, 9, 9), scale, zero, torch.uint8, 0, 255)
    codes = graph.call_function(torch.ops.torchao.quantize_affine, (x, *of_values))
    values = graph.call_function(torch.ops.torchao.dequantize_affine, (codes, *of_values))
    weight = constant("weight", torch.randint(-128, 128, (8, 3, 3, 3), dtype=torch.int8))
    scales = constant("scales", torch.rand(8 if per_channel else 1) + 0.01)
    zeros = constant("zeros", torch.zeros_like(root.scales, dtype=torch.int32))
    of_weights = ((1 if per_channel else 8, 3, 3, 3), scales, zeros, torch.int8)
    weights = graph.call_function(torch.ops.torchao.dequantize_affine, (weight, *of_weights))
    conv = graph.call_function(torch.ops.aten.conv2d.default, (values, weights))
    conv.meta["val"] = mode.from_tensor(torch.empty(4, 8, 7, 7))
    graph.output(conv)
    return torch.fx.GraphModule(root, graph)


@pytest.mark.parametrize("per_channel", [True, False])
def test_affine_operators(per_channel):
    reference = affine_graph(per_channel)
    lowered = lower(reference)
    assert_all_lowered(lowered, reference)
    assert len(calls(lowered, "torch_dnnl.reorder")) == 1 and not calls(lowered, "affine")
    x = torch.randn(4, 3, 9, 9)
    torch.testing.assert_close(lowered(x), reference(x), rtol=1e-4, atol=1e-4)


def test_needs_a_graph():
    with pytest.raises(
        TypeError, match=r"lower: expected model to be a torch.fx.GraphModule.*Conv2d"
    ):
        lower(nn.Conv2d(1, 1, 1))
    assert torch_dnnl.quantization.lower is lower


def test_optimize_lowers():
    """torch_dnnl.optimize does what lower does, with one graph of fewer operators."""
    x = image("x")
    reference = quantize(Residual(), x, x86())
    lowered, optimized = lower(reference), torch_dnnl.optimize(reference, (x,))
    quick = optimized.graph.find_nodes(op="call_function", target=quantized_convolution)
    assert len(quick) == len(calls(lowered, "quantized_convolution.default"))
    assert not calls(optimized, "quantize_")
    assert torch.equal(optimized(x), lowered(x))
