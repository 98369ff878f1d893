"""ONNX's ConvInteger and QLinearConv by quantized_convolution, as docs/quantization.md says: the
node tests of ONNX 1.23 (convinteger.py and qlinearconv.py of onnx/backend/test/case/node), random
problems by the formulas of the specification, and ONNX's own implementation where it is installed.
"""

import random
from importlib.util import find_spec

import numpy as np
import torch
import torch.nn.functional as F
from onnx_integers import conv_integer, differences, int8_parts, qlinear_conv

from torch_dnnl.functional import reorder

# The node tests.

X = torch.arange(2, 11, dtype=torch.uint8).reshape(1, 1, 3, 3)


def test_convinteger_without_padding():
    w = torch.ones(1, 1, 2, 2, dtype=torch.uint8)
    y = conv_integer(X, w, x_zero_point=1)
    assert y.dtype == torch.int32 and y.tolist() == [[[[12, 16], [24, 28]]]]


def test_convinteger_with_padding():
    w = torch.ones(2, 1, 2, 2, dtype=torch.uint8)
    zero_points = torch.tensor([0, 1], dtype=torch.uint8)
    y = conv_integer(X, w, 1, zero_points, pads=(1, 1, 1, 1))
    expected = [[1, 3, 5, 3], [5, 12, 16, 9], [11, 24, 28, 15], [7, 15, 17, 9]]
    assert y.dtype == torch.int32 and y.tolist() == [[expected, [[0] * 4] * 4]]


QLINEARCONV_X = [
    [255, 174, 162, 25, 203, 168, 58],
    [15, 59, 237, 95, 129, 0, 64],
    [56, 242, 153, 221, 168, 12, 166],
    [232, 178, 186, 195, 237, 162, 237],
    [188, 39, 124, 77, 80, 102, 43],
    [127, 230, 21, 83, 41, 40, 134],
    [255, 154, 92, 141, 42, 148, 247],
]
QLINEARCONV_Y = [
    [0, 81, 93, 230, 52, 87, 197],
    [240, 196, 18, 160, 126, 255, 191],
    [199, 13, 102, 34, 87, 243, 89],
    [23, 77, 69, 60, 18, 93, 18],
    [67, 216, 131, 178, 175, 153, 212],
    [128, 25, 234, 172, 214, 215, 121],
    [0, 101, 163, 114, 213, 107, 8],
]


def test_qlinearconv():
    """Its only weight less its zero point is -255: two tensors of int8."""
    y = qlinear_conv(
        torch.tensor(QLINEARCONV_X, dtype=torch.uint8)[None, None],
        torch.tensor(0.00369204697),
        torch.tensor(132, dtype=torch.uint8),
        torch.zeros(1, 1, 1, 1, dtype=torch.uint8),
        torch.tensor([0.00172794575]),
        torch.tensor([255], dtype=torch.uint8),
        torch.tensor(0.00162681262),
        torch.tensor(123, dtype=torch.uint8),
    )
    assert y.dtype == torch.uint8 and y.tolist() == [[QLINEARCONV_Y]]


# Random problems.


def integers(choose, sizes, dtype, low=None, high=None):
    limits = torch.iinfo(dtype)
    generator = torch.Generator().manual_seed(choose.getrandbits(32))
    low, high = limits.min if low is None else low, limits.max if high is None else high
    return torch.randint(low, high + 1, sizes, generator=generator).to(dtype)


def random_problem(choose, ranks=(1, 2, 2, 3)):
    """The inputs of a QLinearConv, and its attributes."""
    rank, group = choose.choice(ranks), choose.choice([1, 1, 2, 3])
    inputs, outputs = group * choose.randint(1, 9), group * choose.randint(1, 9)
    kernel = [choose.randint(1, 3) for _ in range(rank)]
    size = [choose.randint(5, 9) for _ in range(rank)]
    attributes = {
        "pads": [choose.randint(0, 2) for _ in range(2 * rank)],
        "strides": [choose.randint(1, 2) for _ in range(rank)],
        "dilations": [choose.randint(1, 2) for _ in range(rank)],
        "group": group,
    }
    types = [torch.uint8, torch.int8]
    x = integers(choose, [choose.randint(1, 2), inputs, *size], choose.choice(types))
    w = integers(choose, [outputs, inputs // group, *kernel], choose.choice(types))
    y_zero_point = integers(choose, [], x.dtype)
    count = choose.choice([[], [outputs]])
    # The middle of the type's range, where all differences are int8; 0, where those of int8 are;
    # near the middle, and anywhere.
    middle = 128 if w.dtype == torch.uint8 else 0
    w_zero_point = choose.choice(
        [
            torch.full(count, middle, dtype=w.dtype),
            torch.zeros(count, dtype=w.dtype),
            integers(choose, count, w.dtype, middle - 9, middle + 9),
            integers(choose, count, w.dtype),
        ]
    )
    generator = torch.Generator().manual_seed(choose.getrandbits(32))
    w_scale = torch.rand(count, generator=generator) * 0.01 + 1e-4
    x_scale = torch.tensor(choose.uniform(1e-3, 0.1))
    # So that most results are in range.
    deviation = 90 * 90 * (w[0].numel() ** 0.5)
    y_scale = x_scale * w_scale.mean() * deviation / choose.uniform(30, 80)
    b = integers(choose, [outputs], torch.int32, -9999, 9999) if choose.random() < 0.5 else None
    inputs = (x, x_scale, integers(choose, [], x.dtype), w, w_scale, w_zero_point)
    return (*inputs, y_scale, y_zero_point, b), attributes


def exact_sums(x, x_zero_point, w, w_zero_point, pads, strides, dilations, group):
    """By the definition, in float64. Pads are x_zero_point."""
    half = len(pads) // 2
    sides = [p for pair in zip(reversed(pads[:half]), reversed(pads[half:])) for p in pair]
    padded = F.pad(x.double() - x_zero_point.double(), sides)
    conv = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[half]
    weights = differences(w, w_zero_point).double()
    return conv(padded, weights, None, strides, 0, dilations, group)


def test_random_problems_by_formula():
    """Sums exactly; rounded results but for those in the middle between two integers."""
    choose = random.Random(0)
    how_many, inside = {"one call": 0, "sums": 0}, []
    for _ in range(200):
        inputs, attributes = random_problem(choose)
        x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, b = inputs
        sums = exact_sums(x, x_zero_point, w, w_zero_point, **attributes)
        ours = conv_integer(x, w, x_zero_point, w_zero_point, **attributes)
        assert ours.dtype == torch.int32 and torch.equal(ours.double(), sums)

        per_channel = [-1, *[1] * (x.dim() - 2)]
        sums = sums if b is None else sums + b.double().reshape(per_channel)
        scale = x_scale.double() * w_scale.double() / y_scale.double()
        value = sums * scale.reshape(per_channel)
        limits = torch.iinfo(y_zero_point.dtype)
        expected = (value.round() + y_zero_point.double()).clamp(limits.min, limits.max)
        result = qlinear_conv(*inputs, **attributes)
        assert result.dtype == y_zero_point.dtype
        difference = (result.double() - expected).abs()
        from_tie = (value - value.floor() - 0.5).abs()
        assert difference[from_tie > 1e-4].sum() == 0 and difference.max() <= 1
        inside += ((limits.min < expected) & (expected < limits.max)).flatten().tolist()
        is_single = len(list(int8_parts(differences(w, w_zero_point)))) == 1
        how_many["one call" if is_single else "sums"] += 1
    assert min(how_many.values()) > 50 and 0.5 < sum(inside) / len(inside) < 0.99


def test_one_call_is_sums_and_a_reorder():
    """To the bit, without a bias."""
    choose = random.Random(1)
    found = 0
    while found < 20:
        inputs, attributes = random_problem(choose)
        x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, _ = inputs
        if len(list(int8_parts(differences(w, w_zero_point)))) > 1:
            continue
        found += 1
        sums = conv_integer(x, w, x_zero_point, w_zero_point, **attributes)
        rounded = reorder(
            sums,
            dtype=y_zero_point.dtype,
            scale=x_scale * w_scale,
            dst_scale=y_scale,
            dst_zero_point=y_zero_point,
            axis=1,
        )
        assert torch.equal(qlinear_conv(*inputs[:-1], **attributes), rounded)


def run_node(operator, inputs, attributes):
    """By ONNX's own implementation."""
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    arrays = {f"i{i}": t.numpy() for i, t in enumerate(inputs) if t is not None}
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in arrays.items()
    ]
    kind = helper.np_dtype_to_tensor_dtype(
        np.dtype(np.int32) if operator == "ConvInteger" else inputs[7].numpy().dtype
    )
    graph = helper.make_graph(
        [helper.make_node(operator, list(arrays), ["y"], **attributes)],
        operator,
        infos,
        [helper.make_tensor_value_info("y", kind, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
    return torch.from_numpy(ReferenceEvaluator(model).run(None, arrays)[0])


if find_spec("onnx"):

    def test_reference_evaluator():
        choose = random.Random(2)
        for _ in range(30):
            inputs, attributes = random_problem(choose, ranks=[2])  # all that it can
            x, _, x_zero_point, w, _, w_zero_point, *_ = inputs
            theirs = run_node("ConvInteger", (x, w, x_zero_point, w_zero_point), attributes)
            assert torch.equal(conv_integer(x, w, x_zero_point, w_zero_point, **attributes), theirs)
            theirs = run_node("QLinearConv", inputs, attributes)
            ours = qlinear_conv(*inputs, **attributes)
            assert ours.dtype == theirs.dtype
            assert (ours.int() - theirs.int()).abs().max() <= 1
