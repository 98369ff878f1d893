"""Other libraries' convolutions, spelled as docs/convolution.md says: each row of its tables, with
those of the libraries that are installed here; and by torch's convolution of a padded image what
TensorFlow and ONNX document."""

import itertools
import random
import re
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from paths import ROOT

from torch_dnnl.functional import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose2d,
    convolution,
    convolution_transpose,
)

PAGE = (ROOT / "docs" / "convolution.md").read_text()
OPS = torch.ops.torch_dnnl


def rows():
    for library, table in re.findall(r"<!-- peers: (\w+) -->\n((?:\|.*\n)+)", PAGE):
        for line in table.splitlines()[2:] if find_spec(library) else ():
            theirs, ours = (cell.strip().strip("`") for cell in line.strip("|").split("|"))
            if library != "torch":
                ours = f"convolution({ours})"
            yield pytest.param(library, theirs, ours, id=theirs)


def tensors():
    """The variables that the tables use."""
    names = {
        "x": torch.randn(2, 12, 9, 10),
        "w": torch.randn(8, 12, 3, 3),
        "b": torch.randn(8),
        "even": torch.randn(8, 12, 4, 4),
        "grouped": torch.randn(8, 3, 3, 3),
        "each": torch.randn(24, 1, 3, 3),
        "hwcm": torch.randn(3, 3, 12, 2),
        "line": torch.randn(2, 12, 10),
        "w1": torch.randn(8, 12, 3),
        "volume": torch.randn(2, 12, 5, 6, 7),
        "w3": torch.randn(8, 12, 3, 3, 3),
        "y": torch.randn(2, 8, 5, 5),
        "r": torch.randn(2, 8, 9, 10),
    }
    for image, weights, nxc, xio in (
        ("line", "w1", "nwc", "wio"),
        ("x", "w", "nhwc", "hwio"),
        ("volume", "w3", "ndhwc", "dhwio"),
    ):
        names[nxc] = names[image].movedim(1, -1).contiguous()
        names[xio] = names[weights].movedim((0, 1), (-1, -2)).contiguous()
    return names


# What the calls in the tables mention besides tensors.
FUNCTIONS = {
    **{"torch": torch, "F": F, "ops": OPS, "convolution": convolution},
    **{"conv1d": conv1d, "conv2d": conv2d, "conv3d": conv3d},
    **{"conv_transpose2d": conv_transpose2d, "convolution_transpose": convolution_transpose},
}
MODULES = {"tf": "tensorflow", "keras": "keras", "lax": "jax.lax"}


def assert_rounding(ours, theirs):
    """Equal sizes; a difference of float32 rounding."""
    if not isinstance(theirs, torch.Tensor):
        theirs = torch.tensor(np.asarray(theirs))
    theirs = theirs.double()
    assert ours.shape == theirs.shape
    assert (ours.double() - theirs).norm() <= 1e-6 * theirs.norm()


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("library,call,arguments", list(rows()))
def test_row_of_the_page(library, call, arguments):
    names = tensors()
    ours = eval(arguments, FUNCTIONS | names)
    if library != "torch":
        names = {name: tensor.numpy() for name, tensor in names.items()}
        modules = [name for name in MODULES if re.search(rf"\b{name}\.", call)]
        names |= {name: import_module(MODULES[name]) for name in modules}
    assert_rounding(ours, eval(call, FUNCTIONS | names))


def test_rows_are_found():
    assert len(list(rows())) >= 13


def random_call(choose):
    """Tensors in NXC and XIO, and the attributes of a convolution in one to three dimensions."""
    rank, groups = choose.randint(1, 3), choose.choice([1, 2, 6])
    attributes = {
        name: [choose.randint(1, most) for _ in range(rank)]
        for name, most in (("strides", 4), ("dilations", 3))
    }
    src = torch.randn(2, *(choose.randint(1, 12) for _ in range(rank)), 6, dtype=torch.float64)
    kernel = [choose.randint(1, 4) for _ in range(rank)]
    weights = torch.randn(*kernel, 6 // groups, 6, dtype=torch.float64)
    return src, weights, attributes | {"groups": groups}


def padded_then_convolved(src, weights, pads, strides, dilations, groups):
    """torch's convolution of a padded copy, in NXC and XIO."""
    pads = [n for pair in reversed(pads) for n in pair]
    conv = getattr(F, f"conv{src.dim() - 2}d")
    image, kernel = src.movedim(-1, 1), weights.movedim((-1, -2), (0, 1))
    result = conv(F.pad(image, pads), kernel, None, strides, 0, dilations, groups)
    return result.movedim(1, -1)


def tensorflow_same(size, kernel, stride, dilation):
    """Pads of "SAME", from the documentation of tf.nn ("Notes on padding"): the sizes decide."""
    covered = (kernel - 1) * dilation + 1
    total = max(covered - (stride if size % stride == 0 else size % stride), 0)
    return total // 2, total - total // 2


def onnx_same(size, kernel, stride, dilation):
    """Pads of "SAME_UPPER", from the documentation of ONNX's pooling: the output's size decides."""
    outputs = -(-size // stride)
    total = max((outputs - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
    return total // 2, total - total // 2


@pytest.mark.parametrize("auto_pad", ["same_upper", "same_lower"])
@pytest.mark.parametrize("formula", [tensorflow_same, onnx_same])
def test_same_by_formula(formula, auto_pad):
    choose = random.Random(auto_pad)
    for _ in range(60):
        src, weights, attributes = random_call(choose)
        sizes = zip(src.shape[1:-1], weights.shape, attributes["strides"], attributes["dilations"])
        pads = [formula(*axis) for axis in sizes]
        if auto_pad == "same_lower":
            pads = [pair[::-1] for pair in pads]
        expected = padded_then_convolved(src, weights, pads, **attributes)
        ours = convolution(src, weights, auto_pad=auto_pad, **attributes)
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


def test_asymmetric_pads_by_padding():
    choose = random.Random(0)
    for _ in range(60):
        src, weights, attributes = random_call(choose)
        pads = []
        for size, kernel, dilation in zip(src.shape[1:-1], weights.shape, attributes["dilations"]):
            lacking = max(0, (kernel - 1) * dilation + 1 - size)
            pads.append((choose.randint(0, 4), lacking + choose.randint(0, 4)))
        expected = padded_then_convolved(src, weights, pads, **attributes)
        begin, end = zip(*pads)
        ours = convolution(src, weights, pads_begin=begin, pads_end=end, **attributes)
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


def test_strided_same_is_not_a_pad_of_one():
    """At even sizes TensorFlow's networks read one pixel further to the right than torch's."""
    pixel = torch.eye(8).unsqueeze(1)
    taps = torch.tensor([[[1.0, 10.0, 100.0]]])
    upper = conv1d(pixel, taps, stride=2, padding="same_upper")[:, 0].T
    torchs = F.conv1d(pixel, taps, stride=2, padding=1)[:, 0].T
    assert torch.equal(upper[:, 1:], torchs[:, :-1])
    assert torch.equal(torchs, conv1d(pixel, taps, stride=2, padding="same_lower")[:, 0].T)


@pytest.mark.parametrize("auto_pad", ["same_upper", "same_lower"])
def test_transposed_same_by_the_convolution_that_is_transposed(auto_pad):
    """TensorFlow defines its transposed convolution so; the sizes are multiples of the strides."""
    choose = random.Random(3)
    for _ in range(30):
        src, weights, attributes = random_call(choose)
        options = {name: attributes[name] for name in ("strides", "dilations", "groups")}
        rank, groups = src.dim() - 2, attributes["groups"]
        sizes = [x * s for x, s in zip(src.shape[1:-1], options["strides"])]
        expected = OPS.convolution_backward_data(
            src, weights, sizes, options["strides"], [0] * rank, [0] * rank, options["dilations"],
            auto_pad, groups,
        )  # fmt: skip
        ours = convolution_transpose(src, weights, auto_pad=auto_pad, **options)
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


def onnx_node(kind, x, w, b, **attributes):
    """By ONNX's own implementation."""
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    *inputs, output = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "XWBY"
    )
    node = helper.make_node(kind, ["X", "W", "B"], ["Y"], **attributes)
    graph = helper.make_graph([node], "node", inputs, [output])
    tensors = {"X": x.numpy(), "W": w.numpy(), "B": b.numpy()}
    return ReferenceEvaluator(helper.make_model(graph)).run(None, tensors)[0]


if find_spec("onnx"):

    @pytest.mark.parametrize("rank", [1, 2, 3])
    def test_onnx_conv(rank):
        choose = random.Random(rank)
        for auto_pad, groups, _ in itertools.product(
            ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"), (1, 3), range(4)
        ):
            x = torch.randn(2, 6, *(choose.randint(6, 9) for _ in range(rank)))
            w = torch.randn(9, 6 // groups, *(choose.randint(1, 3) for _ in range(rank)))
            b = torch.randn(9)
            pads = [choose.randint(0, 2) for _ in range(2 * rank)]
            strides = [choose.randint(1, 4) for _ in range(rank)]
            attributes = {"group": groups, "strides": strides}
            dilations = [1] * rank
            if auto_pad == "NOTSET":
                dilations = [choose.randint(1, 2) for _ in range(rank)]
                attributes |= {"pads": pads, "dilations": dilations}
            theirs = onnx_node("Conv", x, w, b, auto_pad=auto_pad, **attributes)
            ours = convolution(
                *(x, w, b),
                strides=strides,
                pads_begin=pads[:rank],
                pads_end=pads[rank:],
                dilations=dilations,
                auto_pad={"NOTSET": "none"}.get(auto_pad, auto_pad.lower()),
                groups=groups,
                data_format="NCX",
                weights_format="OIX",
            )
            assert_rounding(ours, theirs)


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("function", [conv2d, conv_transpose2d])
def test_memory_formats_are_torchs(function, is_compiled):
    """channels_last if a batch of images or the weight is; of one image without a batch, its
    strides say nothing."""
    peer = getattr(F, function.__name__)
    ours = torch.compile(peer, backend="torch_dnnl") if is_compiled else function
    last = {"memory_format": torch.channels_last}
    images = torch.randn(2, 16, 6, 5)
    weight = torch.randn(16, 16, 3, 3)
    for x in (images, images.to(**last), images[0], images.to(**last)[0], images[:, :, :1, :1]):
        for w in (weight, weight.to(**last)):
            pads = 1 if function is conv2d else 0
            torch._dynamo.reset()  # each of these is compiled anew
            expected, result = peer(x, w, padding=pads), ours(x, w, padding=pads)
            assert result.stride() == expected.stride(), (x.stride(), w.stride())
            torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
