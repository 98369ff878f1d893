"""torch's quantization by reorder and fake_reorder: quantized tensors, fake quantization, and the
gradients of learned scales and zero points.

torch multiplies by the rounded inverse of a scale where reorder divides, so x / scale comes out up
to 3 * 2^-24 of itself apart (a rounding of the inverse, of the product, of the quotient). For
powers of two there is no difference, and the results are the same to the bit. For other scales
they may differ, by 1, only where x / scale lies within 2^-22 of itself from the middle between two
integers (with the zero point where that is added before the rounding, in one rounding more).
"""

import pytest
import torch
from oracles.reorder import reorder as reorder_oracle
from oracles.reorder import spread, unpack

import torch_dnnl.functional as D

TYPES = {torch.quint8: torch.uint8, torch.qint8: torch.int8, torch.qint32: torch.int32}
# torch's fake quantization rounds before it adds the zero point, and so do its quantized tensors,
# but not where they are made by FBGEMM, on x86: reorder can do either.
HALF = torch.quantize_per_tensor(torch.tensor(0.5), 1.0, 1, torch.quint8)
ROUNDS_FIRST = HALF.dequantize().item() == 0
POWERS_OF_TWO = [(0.5, 3), (0.25, 101), (4.0, 127), (1.0, 0)]
ANY_SCALE = [(0.1, 7), (0.037, 111), (1.7, 0), (3e-5, 64)]


def values(scale, *shape):
    """Half of them ties or integers in units of the scale; a few beyond every 8-bit range."""
    in_units = torch.randn(shape) * 100
    ties = (in_units * 2).round() / 2
    return torch.where(torch.rand(shape) < 0.5, in_units, ties) * scale


def is_near_tie(x, scale, zero_point=0):
    quotient = x.double() / scale
    fraction = quotient - quotient.floor()
    return (fraction - 0.5).abs() <= (quotient.abs() + zero_point) * 2.0**-22


def assert_same_codes(ours, theirs, x, scale, zero_point, exact):
    assert ours.dtype == theirs.dtype
    if exact:
        assert torch.equal(ours, theirs)
        return
    difference = (ours.long() - theirs.long()).abs()
    near = is_near_tie(x, scale, zero_point)
    assert near.any() and not near.all()
    assert difference[~near].max() == 0 and difference.max() <= 1


@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize("scale,zero_point", POWERS_OF_TWO + ANY_SCALE)
def test_quantize_per_tensor(kind, scale, zero_point):
    scale = torch.tensor(scale).item()  # a float32, as torch's kernels make of it
    x = values(scale, 61, 17)
    ours = D.reorder(
        x,
        dtype=TYPES[kind],
        dst_scale=scale,
        dst_zero_point=zero_point,
        round_before_zero_point=ROUNDS_FIRST,
    )
    theirs = torch.quantize_per_tensor(x, scale, zero_point, kind)
    exact = (scale, zero_point) in POWERS_OF_TWO
    assert_same_codes(ours, theirs.int_repr(), x, scale, zero_point, exact)
    codes = theirs.int_repr()
    back = D.reorder(codes, dtype=torch.float32, scale=scale, src_zero_point=zero_point)
    assert torch.equal(back, theirs.dequantize())


@pytest.mark.parametrize("kind", TYPES, ids=str)
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_quantize_per_channel(kind, exact, axis):
    shape = [13, 9, 11]
    channels = shape[axis]
    per_channel = [-1 if dim == axis else 1 for dim in range(3)]
    scale = 2.0 ** torch.randint(-6, 3, (channels,)) if exact else torch.rand(channels) + 0.01
    zero_point = torch.randint(0, 120, (channels,))
    spread_scale, spread_zero = (t.reshape(per_channel) for t in (scale, zero_point))
    x = values(spread_scale, *shape)
    ours = D.reorder(
        x,
        dtype=TYPES[kind],
        dst_scale=spread_scale,
        dst_zero_point=spread_zero,
        round_before_zero_point=ROUNDS_FIRST,
    )
    theirs = torch.quantize_per_channel(x, scale, zero_point, axis, kind)
    assert_same_codes(ours, theirs.int_repr(), x, spread_scale, spread_zero, exact)
    back = D.reorder(
        theirs.int_repr(),
        dtype=torch.float32,
        scale=spread_scale,
        src_zero_point=spread_zero,
    )
    assert torch.equal(back, theirs.dequantize())


def assert_same_fake(ours, theirs, x, leaves, scale, exact):
    """Values and gradients, of our and of torch's leaf."""
    grad = torch.randn_like(x)
    ours.backward(grad)
    theirs.backward(grad)
    our_grad, their_grad = (leaf.grad for leaf in leaves)
    if exact:
        assert torch.equal(ours, theirs) and torch.equal(our_grad, their_grad)
        return
    away = ~is_near_tie(x, scale)
    assert torch.equal(ours[away], theirs[away])
    assert (ours - theirs).abs().le(1.0001 * scale).all()
    torch.testing.assert_close(our_grad[away], their_grad[away], rtol=3e-7, atol=0)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
@pytest.mark.parametrize("scale,zero_point", POWERS_OF_TWO + ANY_SCALE)
def test_fake_quantize_per_tensor(dtype, scale, zero_point):
    limits = torch.iinfo(dtype)
    scale = torch.tensor(scale).item()
    x = values(scale, 61, 17)
    a, b = (x.clone().requires_grad_() for _ in range(2))
    ours = D.fake_reorder(
        a, dtype=dtype, dst_scale=scale, dst_zero_point=zero_point, round_before_zero_point=True
    )
    theirs = torch.fake_quantize_per_tensor_affine(b, scale, zero_point, limits.min, limits.max)
    assert_same_fake(ours, theirs, x, (a, b), scale, (scale, zero_point) in POWERS_OF_TWO)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_fake_quantize_per_channel(dtype, exact, axis):
    limits = torch.iinfo(dtype)
    shape = [13, 9, 11]
    per_channel = [-1 if dim == axis else 1 for dim in range(3)]
    channels = shape[axis]
    scale = 2.0 ** torch.randint(-6, 3, (channels,)) if exact else torch.rand(channels) + 0.01
    zero_point = torch.randint(0, 120, (channels,), dtype=torch.int32)
    spread_scale = scale.reshape(per_channel)
    x = values(spread_scale, *shape)
    a, b = (x.clone().requires_grad_() for _ in range(2))
    ours = D.fake_reorder(
        a,
        dtype=dtype,
        dst_scale=spread_scale,
        dst_zero_point=zero_point.reshape(per_channel),
        round_before_zero_point=True,
    )
    theirs = torch.fake_quantize_per_channel_affine(
        b, scale, zero_point, axis, limits.min, limits.max
    )
    assert_same_fake(ours, theirs, x, (a, b), spread_scale, exact)


def learned(x, dtype, scale, zero_point, per_channel):
    """Ours and torch's fake quantization: (values, gradients of x, scale, zero point) of each."""
    limits = torch.iinfo(dtype)
    grad = torch.randn_like(x)
    results = []
    for ours in (True, False):
        leaves = [t.clone().requires_grad_() for t in (x, scale, zero_point)]
        if ours:
            y = D.fake_reorder(
                leaves[0],
                dtype=dtype,
                dst_scale=leaves[1].reshape(1, -1),
                dst_zero_point=leaves[2].reshape(1, -1),
                round_before_zero_point=True,
            )
        elif per_channel:
            y = torch._fake_quantize_learnable_per_channel_affine(
                *leaves, 1, limits.min, limits.max, 1.0
            )
        else:
            y = torch._fake_quantize_learnable_per_tensor_affine(
                *leaves, limits.min, limits.max, 1.0
            )
        results.append((y.detach(), *torch.autograd.grad(y, leaves, grad)))
    return results


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8])
@pytest.mark.parametrize("channels", [1, 17], ids=["per_tensor", "per_channel"])
def test_learned_scales(dtype, channels):
    """Both are LSQ; sums of 61 * 17 terms in float32 in another order.

    At a tie torch's backward rounds after it has added the zero point, its forward before, so that
    the gradient is not that of the value with an odd zero point: here they are even. torch also
    rounds a zero point and clamps it to the type's range: here they are integers inside.
    """
    scale = 2.0 ** torch.randint(-4, 3, (channels,))
    zero_point = torch.randint(0, 50, (channels,)) * 2.0
    x = values(scale, 61, 17)
    ours, theirs = learned(x, dtype, scale, zero_point, channels > 1)
    saturated = (ours[0] / scale + zero_point == torch.iinfo(dtype).max).double().mean()
    assert 0.02 < saturated < 0.9  # both branches of the gradients
    assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])
    for a, b in zip(ours[2:], theirs[2:]):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * b.abs().max().item())


def test_learned_scales_at_ties():
    """x / scale = 0.5, 2.5: ours has the gradient of the value it returned, torch has not."""
    x = torch.tensor([[0.5], [2.5]])
    one = torch.ones(1)
    ours, theirs = learned(x, torch.int8, one, one, False)
    assert torch.equal(ours[0], theirs[0]) and ours[0].flatten().tolist() == [0, 2]
    assert torch.equal(ours[2], -theirs[2]) and ours[2] != 0


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn])
@pytest.mark.parametrize("tag", ["abcd", "acdb", "aBcd4b"])
@pytest.mark.parametrize("round_before_zero_point", [False, True])
def test_gradients_of_the_page(dtype, tag, round_before_zero_point):
    """docs/reorder.md's formulas of fake_reorder's gradients, for every operand in groups."""
    size, beta = (4, 6, 5, 3), -0.7
    float64 = {"dtype": torch.float64}
    src = torch.randn(size, **float64) * (80 if dtype in (torch.int8, torch.uint8) else 400)
    src[0, 0, 0, :2] = torch.tensor([torch.inf, torch.nan])
    accumulate = reorder_oracle(torch.randn(size, **float64) * 30, tag)
    operands = {
        "scale": torch.rand(1, 3, 1, 1, **float64) + 0.5,
        "dst_scale": torch.rand(2, 6, 1, 1, **float64) + 0.5,
        "src_zero_point": torch.randint(-9, 9, (4, 1, 1, 3)).double(),
        "dst_zero_point": torch.randint(0, 9, (1, 1, 5, 1)).double(),
    }
    options = {"dtype": dtype, "beta": beta, "round_before_zero_point": round_before_zero_point}

    leaves = {"src": src, "accumulate": accumulate, **operands}
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in leaves.items()}
    y = D.fake_reorder(
        leaves["src"], tag, **options, **{k: leaves[k] for k in leaves if k != "src"}
    )
    grad = torch.randn_like(y)
    ours = dict(zip(leaves, torch.autograd.grad(y, leaves.values(), grad)))

    s, t, zs, zd = (spread(operand, src) for operand in operands.values())
    added = unpack(accumulate, tag, size) if tag == "aBcd4b" else accumulate
    g = unpack(grad, tag, size) if tag == "aBcd4b" else grad
    q = reorder_oracle(src, **options, **operands, accumulate=added).double()
    w = (s * (src - zs) + beta * added) / t
    largest = {torch.float8_e4m3fn: 464}.get(dtype)
    low, high = (-largest, largest) if largest else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    u = w.round() + zd if round_before_zero_point and not largest else w + zd
    u = u if largest else u.round()
    inside = (u >= low) & (u <= high)
    assert 0.02 < (~inside).double().mean() < 0.8
    through = torch.where(inside, g, 0)
    of_step = q - zd - torch.where(inside, w, 0)
    expected = {
        "src": through * s,
        "accumulate": through * beta,
        "scale": torch.where(inside, g * (src - zs), 0),
        "dst_scale": g * of_step,
        "src_zero_point": -through * s,
        "dst_zero_point": -torch.where(inside, 0, g) * t,
    }
    for name, value in expected.items():
        if name in operands:
            for dim, length in enumerate(operands[name].shape):
                value = value.unflatten(dim, (length, -1)).sum(dim + 1)
        if name == "accumulate":
            value = reorder_oracle(value, tag)
        if dtype == torch.float8_e4m3fn and name == "dst_scale":  # that of the NaN is NaN
            assert ours[name][0, 0].isnan() and expected[name].isnan().sum() == 1
            ours[name][0, 0] = value[0, 0] = 0
        torch.testing.assert_close(ours[name], value, rtol=1e-10, atol=1e-10)
