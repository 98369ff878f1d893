"""Convolutions, modules and whole models in ONNX: exported, checked, run by onnxruntime, compared
with what they compute here. And what is refused."""

import random
from typing import get_args

import pytest
import torch
from onnx_models import TOLERANCE, Calls, check, check_dynamic, compared, exported, nodes_of, run
from op_db import CASES, assert_matches
from random_problems import OPS, convolution
from torch import nn

import torch_dnnl
import torch_dnnl.functional as D
from torch_dnnl._literals import Activation

pytestmark = pytest.mark.ecosystem

REFUSED = ("lanczos", "area", "blocked", "weights")
ROWS = [case for case in CASES if not any(word in case.name for word in REFUSED)]
# onnx 1.23's reference of ConvTranspose is wrong with groups: its results are not those of
# onnxruntime and of the definition, or there are none.
GROUPED = (
    "conv_transpose2d-strided-dilated-grouped",
    "conv_transpose2d-depthwise",
    "conv_transpose2d-depthwise-strided",
    "convolution_transpose-nxc-iox-asymmetric",
    "convolution_transpose-fused-grouped",
)
# onnxruntime 1.32 moves the transposes around a cubic Resize behind it, and then refuses it.
UNMOVED = "as exported"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_of_op_db(dtype):
    """In float64 by ONNX's definitions: onnxruntime has Conv and Resize in float32 alone."""
    by = UNMOVED if dtype == torch.float32 else "reference"
    rows = [case for case in ROWS if by == UNMOVED or case.name not in GROUPED]
    pairs, _ = compared([(case.call, case.inputs(dtype)) for case in rows], by)
    for case, (ours, theirs) in zip(rows, pairs):
        # The scales and coefficients of a Resize are float32.
        is_resize = case.function in ("interpolate", "resample")
        assert_matches(theirs, ours.double(), 1e-5 if is_resize else TOLERANCE[dtype])


def half(function, dtype):
    """The function in another type, between casts: NumPy has no bfloat16."""
    return lambda *tensors: function(*(x.to(dtype) for x in tensors)).float()


def test_half_types():
    rows = [case for case in ROWS if case.in_matrix]
    calls = [
        (half(case.call, dtype), case.inputs())
        for case in rows
        for dtype in (torch.float16, torch.bfloat16)
        if not case.scales
    ]
    pairs, _ = compared(calls, UNMOVED)
    for i, (ours, theirs) in enumerate(pairs):
        assert_matches(theirs, ours.double(), 4e-3 if i % 2 == 0 else 2e-2)


def test_random_convolutions():
    rnd = random.Random(1)
    problems = [convolution(rnd) for _ in range(24)]
    calls = [
        (
            lambda *tensors, call=problem.calls[operator]: call("auto", *tensors),
            [x.float() for x in problem.inputs],
        )
        for problem in problems
        for operator in ("convolution", "convolution_fused")
    ]
    check(calls)


AUTO_PADS = [
    {"auto_pad": auto_pad, "strides": strides, "dilations": dilations}
    for auto_pad in ("same_upper", "same_lower", "valid")
    for strides, dilations in ((1, 1), (2, 1), ((3, 1), 2), (2, (1, 3)), (5, 1))
]


def with_weights(function, *shapes, **options):
    """A module that has the other tensors of a call as its buffers."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            for i, shape in enumerate(shapes):
                self.register_buffer(f"tensor{i}", torch.randn(shape))

        def forward(self, src):
            return function(src, *self.buffers(), **options)

    return Layer()


def test_automatic_pads():
    """Of known sizes and of symbolic ones, which a node computes where ONNX's own would not do."""
    names = {"data_format": "NCX", "weights_format": "OIX"}
    layers = [
        with_weights(D.convolution, (4, 3, 3, 2), **options, **names) for options in AUTO_PADS
    ]
    image = torch.randn(2, 3, 9, 12)
    proto = check([(layer, (image,)) for layer in layers])
    assert set(nodes_of(proto)) == {"Conv"}
    sizes = [(2, 9, 12), (1, 13, 7), (3, 8, 8), (1, 10, 11)]
    proto = check_dynamic(layers, 3, sizes)
    used = [
        attribute.s
        for node in proto.graph.node
        for attribute in node.attribute
        if attribute.name == "auto_pad"
    ]
    assert {b"SAME_UPPER", b"SAME_LOWER"} <= set(used)
    assert nodes_of(proto).count("Pad") == 6
    shape = (3, 2, 3, 4)
    layers = [with_weights(of_channels_last, shape, **options) for options in AUTO_PADS]
    check_dynamic(layers, 3, sizes)


def of_channels_last(image, weights, **options):
    return D.convolution(image.movedim(1, -1), weights, **options)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_symbolic_sizes(n):
    """Of every module with weights; transposed convolutions need no Slice."""
    conv, transpose = (getattr(torch_dnnl.nn, f"{kind}{n}d") for kind in ("Conv", "ConvTranspose"))
    layers = [
        conv(4, 6, 3, padding=1),
        conv(4, 6, 3, stride=2, padding=((1, 0),) * n, dilation=2, groups=2, bias=False),
        conv(4, 8, 2, stride=2, padding="same_lower"),
        transpose(4, 6, 2, stride=2),
        transpose(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        transpose(4, 4, 3, dilation=2, bias=False),
        transpose(4, 4, 1, stride=3),
    ]
    sizes = [(2, *(7, 9, 8)[:n]), (1, *(10, 6, 5)[:n])]
    proto = check_dynamic(layers, 4, sizes, n)
    assert sorted(set(nodes_of(proto))) == ["Conv", "ConvTranspose"]


def test_output_size_of_another_tensor():
    """What a transposed convolution gives is cut to the size of what it will be added to."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.up = torch_dnnl.nn.ConvTranspose2d(3, 2, 3, stride=2, padding=1)

        def forward(self, image, skip):
            return self.up(image, output_size=skip.shape[2:]) + skip

    axes = dict.fromkeys([2, 3], torch.export.Dim.DYNAMIC)
    model = Model().eval()
    inputs = [torch.randn(1, 3, 5, 6), torch.randn(1, 2, 10, 11)]
    proto = exported(model, inputs, dynamic_shapes=(axes, axes))
    assert "Slice" in nodes_of(proto)
    for tensors in (inputs, [torch.randn(1, 3, 4, 7), torch.randn(1, 2, 7, 14)]):
        with torch.no_grad():
            expected = model(*tensors)
        assert_matches(run(proto, tensors)[0], expected.double(), 1e-5)


def test_preactivation_and_empty_result():
    """Both results of the fused operators."""

    def fused(keep, activation):
        return lambda x, w, r: OPS.convolution_fused(
            x, w, residual=r, activation=activation, keep_preactivation=keep
        )

    inputs = [torch.randn(1, 5, 6, 2), torch.randn(3, 3, 2, 4), torch.randn(1, 3, 4, 4)]
    functions = [fused(keep, name) for keep in (False, True) for name in ("gelu", None)]
    model = Calls([(function, inputs) for function in functions])
    with torch.no_grad():
        ours = [result for results in model(*inputs * 4) for result in results]
    theirs = run(exported(model, inputs * 4), inputs * 4)
    assert len(theirs) == len(ours) == 8
    for result, expected in zip(theirs, ours):
        assert_matches(result, expected.double(), 1e-5)


class Small(nn.Module):
    """A network with what networks for images have: strides, groups, a residual, batch norms,
    activations, a decoder, resizing."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU6()
        )
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.norm = nn.BatchNorm2d(16)
        self.act = nn.SiLU()
        self.point = nn.Conv2d(16, 16, 1)
        self.up = nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1)
        self.head = nn.Sequential(
            nn.Upsample(scale_factor=2, mode="bilinear"), nn.Conv2d(8, 2, 3, padding="same")
        )

    def forward(self, image):
        x = self.stem(image)
        x = self.point(self.act(self.norm(self.depthwise(x)))) + x
        return self.head(torch.relu(self.up(x)))


def optimized(model):
    auto = torch.export.Dim.AUTO
    image = torch.rand(2, 3, 16, 20)
    return torch_dnnl.optimize(model, (image,), dynamic_shapes=({0: auto, 2: auto, 3: auto},))


@pytest.mark.parametrize("changed", [torch_dnnl.convert, optimized])
def test_network(changed):
    torch.manual_seed(1)
    model = Small().eval()
    for norm in (model.stem[1], model.norm):
        nn.init.uniform_(norm.running_mean, -1, 1), nn.init.uniform_(norm.running_var, 0.5, 2)
    proto = check_dynamic([changed(model)], 3, [(2, 16, 20), (3, 26, 14)])
    kinds = nodes_of(proto)
    assert kinds.count("Conv") == 4 and kinds.count("ConvTranspose") == kinds.count("Resize") == 1


@pytest.mark.parametrize("opset", [18, 23])
def test_opset_versions(opset):
    """The nodes are of the version that is asked for: Gelu is one of 20 and later."""
    names = {"data_format": "NCX", "weights_format": "OIX"}
    parameters = {
        "leaky_relu": {"alpha": 0.3},
        "elu": {"alpha": 1.5},
        "clamp": {"alpha": -0.25, "beta": 0.5},
        "prelu": {"alpha": torch.rand(4)},
    }
    layers = [
        with_weights(
            D.convolution,
            (4, 3, 3, 3),
            activation=activation,
            **parameters.get(activation, {}),
            **names,
        )
        for activation in get_args(Activation)
    ]
    proto = check([(layer, (torch.randn(1, 3, 6, 5),)) for layer in layers], opset_version=opset)
    assert ("Gelu" in nodes_of(proto)) == (opset >= 20)


def test_export_writes_a_file(tmp_path):
    """And takes translations beside ours."""
    import onnx
    from onnxscript import opset18

    import torch_dnnl.onnx

    path = tmp_path / "model.onnx"
    model = nn.Sequential(torch_dnnl.nn.Conv2d(3, 4, 3), nn.Hardtanh()).eval()
    inputs = (torch.randn(1, 3, 5, 5),)
    table = {torch.ops.aten.hardtanh.default: lambda x, low=-1.0, high=1.0: opset18.Tanh(x)}
    torch_dnnl.onnx.export(model, inputs, path, custom_translation_table=table, verbose=False)
    assert nodes_of(onnx.load(path)) == ["Conv", "Tanh"]


def refusals():
    image = torch.randn(1, 2, 7, 6)
    nearest = {"mode": "nearest", "size": (5, 5), "coordinates": "tf_half_pixel_for_nn"}
    return {
        "mode": (lambda x: D.resample(x, 5, mode="lanczos3"), image),
        "multiples": (lambda x: D.resample(x, 5, mode="area"), image),
        "coordinates": (lambda x: D.resample(x, **nearest, nearest_mode="ceil"), image),
        "plain tag": (lambda x: D.reorder(x, "nChw8c"), image),
        "scale_factor": (
            lambda x: D.resample(x, (20, 20), 2.5, recompute_scale_factor=False),
            image,
        ),
    }


@pytest.mark.parametrize("word", refusals())
def test_refusal(word):
    """A NotImplementedError that names the operator, the argument and what came."""
    import torch_dnnl.onnx

    function, image = refusals()[word]
    model = Calls([(function, [image])]).eval()
    with pytest.raises(NotImplementedError, match=rf"^re\w+: expected .*{word}.* for ONNX, got"):
        torch_dnnl.onnx.export(model, (image,), verbose=False)


def test_refusal_of_torch():
    import torch_dnnl.onnx

    model = Calls([(lambda x: D.reorder(x, "nChw8c"), [torch.ones(1, 2, 3, 4)])])
    with pytest.raises(
        torch.onnx.OnnxExporterError, match="reorder: expected dst_format to be a plain tag"
    ):
        torch.onnx.export(
            model.eval(),
            (torch.ones(1, 2, 3, 4),),
            dynamo=True,
            custom_translation_table=torch_dnnl.onnx.translations(),
            verbose=False,
        )


def test_packed_weights():
    """A model of ONNX holds the plain weights; it is refused where these are dropped."""
    packed = D.pack_weights(torch.randn(3, 3, 8, 16))
    call = lambda weights: lambda x: D.convolution(x, weights, activation="relu")  # noqa: E731
    check([(call(packed), (torch.randn(1, 9, 9, 8),))])
    with pytest.raises(Exception, match="as ONNX models hold these"):
        check([(call(packed.without_weights()), (torch.randn(1, 9, 9, 8),))])
