"""Fake results have the strides of real ones: a compiled graph computes addresses from them.

Every operator takes images of every rank, with a size of 1 in every dimension, in every layout. The
sizes of the fake images are numbers, backed symbols or unbacked symbols.
"""

import itertools

import pytest
import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

import torch_dnnl  # noqa: F401

ops = torch.ops.torch_dnnl
FORMATS = {"data_format": "NCX", "weights_format": "OIX"}
OUTPUTS = 6


def dense(sizes, order, more=()):
    """Strides of a dense tensor, the last dimension of `order` innermost.

    `more`: a dimension, and by how much it is larger in memory.
    """
    strides, step = [0] * len(sizes), 1
    for d in reversed(order):
        strides[d] = step
        step = step * (sizes[d] + (more[1] if more and more[0] == d else 0))
    return strides


def contiguous(sizes):
    return dense(sizes, range(len(sizes)))


def channels_last(sizes):
    return dense(sizes, [0, *range(2, len(sizes)), 1])


def decoded(sizes):
    """A decoder's [X, C], permuted and made a batch of one by `unsqueeze`."""
    strides = channels_last(sizes)
    if type(sizes[0]) is int and sizes[0] == 1:
        strides[0] = strides[1] * sizes[1]
    return strides


def rows_and_columns_swapped(sizes):
    return dense(sizes, [0, *reversed(range(2, len(sizes))), 1])


def part_of_columns(sizes):
    return dense(sizes, [0, *range(2, len(sizes)), 1], more=(len(sizes) - 1, 3))


def part_of_channels(sizes):
    return dense(sizes, [0, *range(2, len(sizes)), 1], more=(1, 2))


def expanded_batch(sizes):
    return [0, *channels_last(sizes)[1:]]


def expanded_channels(sizes):
    return [0 if d == 1 else stride for d, stride in enumerate(contiguous(sizes))]


def any_for_sizes_of_one(stride, layout):
    def strides(sizes):
        pairs = zip(sizes, layout(sizes))
        return [stride if type(size) is int and size == 1 else own for size, own in pairs]

    strides.__name__ = f"{stride}_for_sizes_of_one_{layout.__name__}"
    return strides


LAYOUTS = [
    *(contiguous, channels_last, decoded, rows_and_columns_swapped, part_of_columns),
    *(part_of_channels, expanded_batch, expanded_channels),
    *(any_for_sizes_of_one(0, layout) for layout in (contiguous, channels_last)),
    *(any_for_sizes_of_one(1, layout) for layout in (contiguous, channels_last)),
]


def shapes():
    """Each dimension is 1 or not; of a volume's, the one in the middle is as the first one."""
    for n in (1, 2, 3):
        for ones in itertools.product((False, True), repeat=min(4, 2 + n)):
            middle = ones[2:3] * (n == 3)
            sizes = zip((*ones[:3], *middle, *ones[3:]), (2, 4, 5, 3, 6))
            yield tuple(1 if is_one else size for is_one, size in sizes)


def of_each(layouts):
    """Layouts of an image and of weights."""
    formats = (contiguous, channels_last)
    return [(f, channels_last if f is contiguous else contiguous) for f in layouts] + [
        (f, f) for f in formats
    ]


def real_inputs(shape, strides, of_weights):
    """An image, an image of bytes, and weights that fit."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))
    memory = torch.zeros(extent)
    weights_shape = (OUTPUTS, shape[1], *(2 for _ in shape[2:]))
    weights = torch.zeros(weights_shape).as_strided(weights_shape, of_weights(weights_shape))
    image = memory.as_strided(shape, strides)
    return [image, memory.byte().as_strided(shape, strides), weights]


def results(image, codes, weights):
    """What each operator makes of an image, taken for the source or for a gradient."""
    n = image.dim() - 2
    sizes, kernel = list(image.shape[2:]), [2] * n
    twice, pads = [2 * size for size in sizes], [1] * n
    transposed = weights.transpose(0, 1)
    other = image.new_zeros(image.shape[0], 3, *twice)
    yield "resample", ops.resample(image, twice)
    yield "resample_backward", ops.resample_backward(image, twice)
    yield "convolution", ops.convolution(image, weights, pads_begin=pads, **FORMATS)
    fused = {"activation": "silu", "keep_preactivation": True, **FORMATS}
    of_fused = ops.convolution_fused(image, weights, pads_begin=pads, **fused)
    yield from zip(("convolution_fused", "its preactivation"), of_fused)
    twofold = {"strides": kernel, **FORMATS}
    yield (
        "convolution_transpose",
        ops.convolution_transpose(image, transposed, dst_size=twice, **twofold)[0],
    )
    yield (
        "convolution_backward_data",
        ops.convolution_backward_data(image, transposed, twice, **twofold),
    )
    yield (
        "convolution_backward_weights",
        ops.convolution_backward_weights(image, other, kernel, **twofold),
    )
    of_relu = (image, image, "relu", other, image.new_zeros(image.shape[1], 3, *kernel))
    gradients = ops.convolution_fused_backward(
        *of_relu, twice, kernel, bias=True, residual=True, **twofold
    )
    yield from ((f"convolution_fused_backward {i}", each) for i, each in enumerate(gradients))
    yield (
        "quantized_convolution",
        ops.quantized_convolution(codes, weights.to(torch.int8), pads_begin=pads, **FORMATS),
    )
    last = "a" + "cde"[:n] + "b"
    yield "reorder", ops.reorder(image, dtype=torch.bfloat16)
    yield "reorder of bytes", ops.reorder(codes, dtype=torch.bfloat16)
    yield "reorder with a tag", ops.reorder(image, last)
    yield "reorder_backward", ops.reorder_backward(image, image.shape)
    quantized, mask = ops.fake_reorder(image, torch.int8, last)
    yield from (("fake_reorder", quantized), ("its mask", mask))
    yield "fake_reorder_backward", ops.fake_reorder_backward(image, mask, last)


def check(real, fake, values):
    """`values`: of the symbols in the fake sizes and strides."""

    def number(size):
        return size if isinstance(size, int) else int(size.node.expr.xreplace(values))

    expected = list(results(*real))
    with fake[0].fake_mode:
        promised = list(results(*fake))
    for (name, result), (_, other) in zip(expected, promised, strict=True):
        sizes, strides = (tuple(map(number, of)) for of in (other.shape, other.stride()))
        assert sizes == result.shape, name
        for size, stride, own in zip(sizes, strides, result.stride()):
            assert size <= 1 or stride == own, (name, real[0].shape, real[0].stride(), strides)


@pytest.mark.parametrize("layout, of_weights", of_each(LAYOUTS), ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    "kind", [DimDynamic.STATIC, DimDynamic.DYNAMIC], ids=["numbers", "symbols"]
)
def test_strides(kind, layout, of_weights):
    for shape in shapes():
        real = real_inputs(shape, layout(shape), of_weights)
        mode = FakeTensorMode(shape_env=ShapeEnv())
        fake = [
            mode.from_tensor(x, symbolic_context=StatelessSymbolicContext([of_x] * x.dim()))
            for x, of_x in zip(real, (kind, kind, DimDynamic.STATIC))
        ]
        check(real, fake, mode.shape_env.backed_var_to_val)


# Whether the rows come first, or a batch of several is expanded, is open while a size may be 1.
DECIDED = [f for f in LAYOUTS if f not in (rows_and_columns_swapped, expanded_batch)]


@pytest.mark.parametrize(
    "known, layout, of_weights",
    [(False, *pair) for pair in of_each(DECIDED)] + [(True, *pair) for pair in of_each(LAYOUTS)],
    ids=lambda f: f.__name__ if callable(f) else "ones_are_known" if f else "any_may_be_one",
)
def test_strides_of_unbacked_symbols(known, layout, of_weights):
    for shape in shapes():
        if shape[1] == 1:
            continue  # torch cannot make such a fake tensor with channels innermost
        mode = FakeTensorMode(shape_env=ShapeEnv())
        values, sizes = {}, list(shape)
        for d in range(len(shape)):
            if d != 1 and not (known and shape[d] == 1):
                sizes[d] = mode.shape_env.create_unbacked_symint()
                torch._check(sizes[d] >= 1)
                values[sizes[d].node.expr] = sympy.Integer(shape[d])
        strides = layout(sizes)
        known_strides = [
            stride if isinstance(stride, int) else int(stride.node.expr.xreplace(values))
            for stride in strides
        ]
        real = real_inputs(shape, known_strides, of_weights)
        with mode:
            images = [torch.empty_strided(sizes, strides, dtype=x.dtype) for x in real[:2]]
            fake = [*images, mode.from_tensor(real[2], static_shapes=True)]
        check(real, fake, values)
