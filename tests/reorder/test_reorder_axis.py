"""`axis=`: scales and zero points of shape [1] or [C] beside the same of full rank, beside torch's
quantization for each channel, and in transforms."""

import itertools
import random

import pytest
import torch
import torch._dynamo.testing
from test_reorder import assert_same_bits

import torch_dnnl.functional as D

SIZE = (4, 6, 5, 3)
FUNCTIONS = (D.reorder, D.fake_reorder)
NAMES = ("scale", "dst_scale", "src_zero_point", "dst_zero_point")


def in_full_rank(operand, axis, rank=4):
    if not isinstance(operand, torch.Tensor) or operand.dim() != 1:
        return operand
    sizes = [1] * rank
    sizes[axis] = len(operand)
    return operand.reshape(sizes)


def random_operands(choose, axis):
    """Of every kind that may stand beside each other."""
    full = [n if choose.random() < 0.5 else 1 for n in SIZE]
    operands = {}
    for name in choose.sample(NAMES, choose.randint(1, 4)):
        sizes = choose.choice([[1], [SIZE[axis]], [SIZE[axis]], [SIZE[axis]], full, None])
        if "scale" in name:
            operands[name] = 1.5 if sizes is None else torch.rand(sizes) + 0.5
        else:
            operands[name] = 7 if sizes is None else torch.randint(-9, 9, sizes)
    return operands


LAYOUTS = [
    {},
    {"dst_format": "acdb"},
    {"dst_format": "aBcd4b"},
    {"src_format": "ABcd4b2a", "size": SIZE},
    {"src_format": "aBcd4b", "size": SIZE, "dst_format": "bacd"},
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: "-".join(map(str, layout.values())))
def test_same_as_in_full_rank(function, layout):
    choose = random.Random(0)
    plain = torch.randn(SIZE) * 90
    src = D.reorder(plain, layout["src_format"]) if "src_format" in layout else plain
    for axis in range(-4, 4):
        for _ in range(10):
            dtype = choose.choice([torch.int8, torch.uint8, torch.float8_e4m3fn])
            operands = random_operands(choose, axis)
            spread = {name: in_full_rank(value, axis) for name, value in operands.items()}
            result = function(src, dtype=dtype, axis=axis, **layout, **operands)
            assert_same_bits(result, function(src, dtype=dtype, **layout, **spread), operands)


def test_without_a_size_the_padding_counts():
    blocked = D.reorder(torch.randn(SIZE), "aBcd4b")
    scale = torch.rand(8) + 0.5
    result = D.reorder(blocked, "abcd", src_format="aBcd4b", scale=scale, axis=1)
    assert torch.equal(
        result, D.reorder(blocked, "abcd", src_format="aBcd4b") * scale[None, :, None, None]
    )
    with pytest.raises(ValueError, match=r"reorder: expected scale .* axis 1 \(8\), got 1-D"):
        D.reorder(blocked, "abcd", src_format="aBcd4b", scale=torch.ones(6), axis=1)


def test_in_one_dimension_a_tensor_has_the_full_rank():
    """Groups among them, as without `axis`."""
    src = torch.arange(6.0)
    for length in (1, 2, 3, 6):
        scale = torch.rand(length)
        assert torch.equal(D.reorder(src, scale=scale, axis=-1), D.reorder(src, scale=scale))
    assert D.reorder(src, scale=torch.tensor([1.0, 2.0]), axis=0).tolist() == [0, 1, 2, 6, 8, 10]


def test_axis_may_be_of_no_use():
    """Where all operands are numbers, and where there are none."""
    src = torch.randn(SIZE)
    assert torch.equal(D.reorder(src, axis=2), src)
    assert torch.equal(D.reorder(src, scale=0.5, axis=2), src * 0.5)
    assert torch.equal(D.reorder(src, scale=torch.tensor(0.5), axis=-4), src * 0.5)
    quantized = D.fake_reorder(src, dtype=torch.int8, dst_scale=0.1, axis=0)
    assert torch.equal(quantized, D.fake_reorder(src, dtype=torch.int8, dst_scale=0.1))


def test_compensation_of_weights_with_a_scale_for_each_channel():
    weights, scale = torch.randn(4, 6, 3, 3), torch.rand(4) / 50
    codes, sums = D.reorder(
        weights, "OIhw4i8o", dtype=torch.int8, dst_scale=scale, axis=0, compensation="s8s8"
    )
    expected = D.reorder(weights, dtype=torch.int8, dst_scale=scale[:, None, None, None])
    assert torch.equal(D.reorder(codes, "oihw", src_format="OIhw4i8o", size=(4, 6, 3, 3)), expected)
    assert torch.equal(sums, expected.int().sum((1, 2, 3)).int() * -128)


# torch's operators for each channel. Scales are powers of two and nothing is a tie, so that all of
# them give the same bits (test_quantization.py has the others).


def channels(axis):
    """A tensor of three dimensions, and scales and zero points of its channels."""
    shape = [13, 9, 11]
    scale = 2.0 ** torch.randint(-6, 3, (shape[axis],))
    zero_point = torch.randint(0, 100, (shape[axis],), dtype=torch.int32)
    # Some are beyond the range; none is the middle between two integers.
    in_units = torch.randint(-300, 300, shape) + torch.rand(shape) * 0.9 - 0.45
    return in_units * in_full_rank(scale, axis, 3), scale, zero_point


TYPES = {torch.quint8: torch.uint8, torch.qint8: torch.int8, torch.qint32: torch.int32}


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's quantized tensors are deprecated
@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize("axis", range(3))
def test_quantize_per_channel(kind, axis):
    x, scale, zero_point = channels(axis)
    theirs = torch.quantize_per_channel(x, scale, zero_point, axis, kind)
    ours = D.reorder(x, dtype=TYPES[kind], dst_scale=scale, dst_zero_point=zero_point, axis=axis)
    assert torch.equal(ours, theirs.int_repr())
    back = D.reorder(
        ours,
        dtype=torch.float32,
        scale=theirs.q_per_channel_scales().float(),  # which torch keeps as float64
        src_zero_point=theirs.q_per_channel_zero_points(),
        axis=theirs.q_per_channel_axis(),
    )
    assert torch.equal(back, theirs.dequantize())


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
@pytest.mark.parametrize("axis", range(3))
def test_fake_quantize_per_channel(dtype, axis):
    limits = torch.iinfo(dtype)
    x, scale, zero_point = channels(axis)
    a, b = (x.clone().requires_grad_() for _ in range(2))
    ours = D.fake_reorder(a, dtype=dtype, dst_scale=scale, dst_zero_point=zero_point, axis=axis - 3)
    theirs = torch.fake_quantize_per_channel_affine(
        b, scale, zero_point, axis, limits.min, limits.max
    )
    grad = torch.randn_like(x)
    ours.backward(grad)
    theirs.backward(grad)
    assert torch.equal(ours, theirs) and torch.equal(a.grad, b.grad)
    assert 0.02 < (a.grad == 0).double().mean() < 0.9  # some saturated


@pytest.mark.parametrize("axis", range(3))
def test_learned_scales(axis):
    """torch's learned scales and zero points have the shape [C], and so have the gradients."""
    x, scale, zero_point = channels(axis)
    leaves = [
        [t.clone().float().requires_grad_() for t in (x, scale, zero_point)] for _ in range(2)
    ]
    ours = D.fake_reorder(
        leaves[0][0], dtype=torch.int8, dst_scale=leaves[0][1], dst_zero_point=leaves[0][2],
        axis=axis,
    )  # fmt: skip
    theirs = torch._fake_quantize_learnable_per_channel_affine(*leaves[1], axis, -128, 127, 1.0)
    assert torch.equal(ours, theirs)
    grad = torch.randn_like(x)
    for result in (ours, theirs):
        result.backward(grad)
    for a, b in zip(*leaves):
        assert a.grad.shape == b.grad.shape == a.shape
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-5, atol=1e-5 * b.grad.abs().max())


# Gradients.


@pytest.mark.parametrize("length", [1, 6])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_gradients_have_the_shape_of_the_operand(function, length):
    float64 = {"dtype": torch.float64}
    src = torch.randn(SIZE, **float64) * 80
    operands = {name: torch.rand(length, **float64) + 0.5 for name in NAMES}
    dtype = torch.float64 if function is D.reorder else torch.int8
    found = []
    for spread in (False, True):
        leaves = {name: t.clone().requires_grad_() for name, t in operands.items()}
        used = {n: in_full_rank(t, 1) for n, t in leaves.items()} if spread else leaves
        result = function(src, dtype=dtype, **used, **({} if spread else {"axis": 1}))
        loss = (result * torch.linspace(-1, 1, result.numel(), **float64).view(SIZE)).sum()
        found.append(torch.autograd.grad(loss, leaves.values()))
    for name, a, b in zip(NAMES, *found):
        assert a.shape == (length,) and torch.equal(a, b), name
        assert function is D.fake_reorder or a.abs().min() > 0


def test_second_derivatives():
    float64 = {"dtype": torch.float64, "requires_grad": True}
    src, scale = torch.randn(2, 3, 4, **float64), torch.rand(3, dtype=torch.float64) + 0.5
    inputs = (src, scale.requires_grad_(), torch.rand(3, **float64), torch.rand(1, **float64))

    def function(src, scale, src_zero_point, dst_zero_point):
        return D.reorder(
            src, "acb", dst_scale=scale, src_zero_point=src_zero_point,
            dst_zero_point=dst_zero_point, axis=1,
        )  # fmt: skip

    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


# Transforms: op_db.py has rows for reorder.


@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0), (-1, 1)])
def test_vmap_of_gradients(dims):
    """`axis` is a dimension of an example, whichever dimension the batch is."""
    src, scale = torch.randn(5, *SIZE) * 30, torch.rand(5, 6) + 0.1
    batched = [t[0] if dim is None else t.movedim(0, dim) for t, dim in zip((src, scale), dims)]

    def loss(src, scale):
        return D.fake_reorder(src, dtype=torch.int8, dst_scale=scale, axis=-3).square().sum()

    gradients = torch.func.grad(loss, argnums=(0, 1))
    mapped = torch.func.vmap(gradients, in_dims=dims)(*batched)
    for i in range(5):
        example = [t if dim is None else t.select(dim, i) for t, dim in zip(batched, dims)]
        for all_of_them, one in zip(mapped, gradients(*example)):
            torch.testing.assert_close(all_of_them[i], one)


def quantize(src, scale, zero_point):
    return D.fake_reorder(src, dtype=torch.int8, dst_scale=scale, dst_zero_point=zero_point, axis=1)


def arguments(*shape):
    leaves = (torch.randn(shape) * 30, torch.rand(shape[1]) + 0.1, torch.zeros(1))
    return [leaf.requires_grad_() for leaf in leaves]


def test_one_compilation_is_for_any_size():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(quantize, fullgraph=True, dynamic=True, backend=counter)
    compilations = []
    for shape in [(2, 5, 8, 9), (3, 6, 7, 10), (4, 11, 9, 5)]:
        leaves = arguments(*shape)
        assert torch.equal(compiled(*leaves), quantize(*leaves))
        ours, eager = (
            torch.autograd.grad(function(*leaves).square().sum(), leaves)
            for function in (compiled, quantize)
        )
        for a, b in zip(ours, eager):
            torch.testing.assert_close(a, b)
        compilations.append(counter.frame_count)  # the first may take dynamo several attempts
    assert compilations[0] == compilations[-1]


def test_axis_that_is_an_argument_of_a_compiled_function():
    """torch.compile takes it for a number that varies."""
    torch._dynamo.reset()
    function = lambda src, scale, axis: D.reorder(src, scale=scale, axis=axis)  # noqa: E731
    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for axis in (1, -2, 0):
        src, scale = torch.randn(SIZE), torch.rand(SIZE[axis])
        assert torch.equal(compiled(src, scale, axis), function(src, scale, axis))


class Quantize(torch.nn.Module):
    def forward(self, src, scale, zero_point):
        return quantize(src, scale, zero_point)


@pytest.mark.parametrize("strict", [False, True])
def test_export_is_for_any_number_of_channels(strict):
    channels = torch.export.Dim("channels", min=2, max=64)
    sizes = ({0: torch.export.Dim.AUTO, 1: channels}, {0: channels}, {})
    program = torch.export.export(
        Quantize(), tuple(arguments(2, 5, 8, 9)), dynamic_shapes=sizes, strict=strict
    )
    leaves = arguments(3, 7, 8, 9)
    assert torch.equal(program.module()(*leaves), quantize(*leaves))


class Select(torch.nn.Module):
    """How many channels there are depends on values."""

    def forward(self, src, scale, kept):
        return D.reorder(src[:, kept].contiguous(), scale=scale[kept], axis=1)


def test_export_of_sizes_that_depend_on_values():
    src, scale = torch.randn(2, 5, 8, 9), torch.rand(5)
    masks = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 1, 0, 1]]).bool()
    program = torch.export.export(Select(), (src, scale, masks[0]))
    for kept in masks:
        result = program.module()(src, scale, kept)
        assert torch.equal(result, src[:, kept] * scale[kept][:, None, None])


class Scale(torch.nn.Module):
    def forward(self, src, scale, kept):
        return D.reorder(src[:, kept].contiguous(), scale=scale, axis=1)


def test_exported_program_checks_sizes_that_depend_on_values():
    """Where half as many scales would be those of pairs of channels."""
    src, scale = torch.randn(2, 4, 3), torch.rand(2)
    program = torch.export.export(Scale(), (src, scale, torch.tensor([True, False, True, False])))
    with pytest.raises(RuntimeError, match=r"Runtime assertion failed|axis 1"):
        program.module()(src, scale, torch.ones(4).bool())


def test_meta():
    for function, length in itertools.product(FUNCTIONS, (1, 6)):
        src, scale = torch.empty(SIZE, device="meta"), torch.empty(length, device="meta")
        result = function(src, "acdb", dtype=torch.int8, dst_scale=scale, axis=1)
        expected = function(torch.randn(SIZE), "acdb", dtype=torch.int8, dst_scale=0.1)
        assert (result.shape, result.stride(), result.dtype) == (
            expected.shape,
            expected.stride(),
            expected.dtype,
        )
