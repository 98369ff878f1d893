"""Fake quantization: values to the bit, gradients, transforms, what the backward keeps."""

import itertools
import math
import random

import numpy as np
import pytest
import torch
from oracles.reorder import FLOAT8, INTEGERS, parse
from oracles.reorder import fake_reorder as oracle
from test_reorder import add_random_steps, assert_same_bits, random_tag, random_values
from torch.func import grad, hessian, jacfwd, jacrev, vmap
from torch.utils import _pytree as pytree

import torch_dnnl.functional as D
from torch_dnnl.formats import physical_shape

FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
QUANTIZED = (*INTEGERS, *FLOAT8)


def random_problem(choose: random.Random):
    size = [choose.choice([1, 2, 3, 5, 8, 9, 16]) for _ in range(choose.choice([1, 2, 3, 4, 4, 5]))]
    while math.prod(size) > 5000:
        size[choose.randrange(len(size))] = 2
    if choose.random() < 0.1:  # longer than a piece
        size = [3, 1027]
    options = {"dtype": choose.choice(QUANTIZED)}
    src = random_values(choose, size, choose.choice(FLOATING))
    if choose.random() < 0.3:
        tag = random_tag(choose, len(size))
        if parse(tag)[1]:
            options |= {"src_format": tag, "size": size}
            src = D.reorder(src, tag)
    if choose.random() < 0.4:
        options["dst_format"] = random_tag(choose, len(size))
    add_random_steps(choose, src, size, options)
    return src, options


def gradients(function, src, options):
    """Of src and of all tensor options of a floating type."""
    tensors = {"src": src, **{k: v for k, v in options.items() if isinstance(v, torch.Tensor)}}
    leaves = {
        name: value.detach().clone(memory_format=torch.preserve_format).requires_grad_()
        for name, value in tensors.items()
        if value.dtype in FLOATING
    }
    result = function(**{"src": src, **options, **leaves})
    generator = torch.Generator().manual_seed(0)
    upstream = torch.randn(result.shape, generator=generator, dtype=torch.float64).to(result)
    return dict(zip(leaves, torch.autograd.grad(result, list(leaves.values()), upstream)))


@pytest.mark.parametrize("seed", range(20))
def test_kernels_match_oracle(seed):
    choose = random.Random(seed)
    torch.manual_seed(seed)
    for trial in range(15):
        src, options = random_problem(choose)
        context = (seed, trial, src.shape, src.stride(), src.dtype, options)
        assert_same_bits(D.fake_reorder(src, **options), oracle(src, **options), context)


@pytest.mark.parametrize("quantized", QUANTIZED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_and_masks_of_any_length(dtype, quantized):
    """Whole blocks of vectors and what is left of one; values, bits and the zeros after them."""
    torch.manual_seed(0)
    for count, step in itertools.product((1, 7, 16, 63, 64, 65, 129, 1024, 1031, 4099), (1, 2)):
        src = (torch.randn(3, count * step) * 300).to(dtype)[:, ::step]
        src[0, 0], src[1, count // 2], src[2, -1] = math.nan, math.inf, 0.25
        for scale in (
            *(torch.tensor(0.5), torch.tensor([[0.5], [2.0], [0.125]])),
            torch.rand(1, count) + 0.5,
        ):
            options = {"dtype": quantized, "dst_scale": scale, "dst_zero_point": torch.tensor(3)}
            options["round_before_zero_point"] = step == 2
            context = (count, step, scale.shape)
            assert_same_bits(D.fake_reorder(src, **options), oracle(src, **options), context)
            _, mask = torch.ops.torch_dnnl.fake_reorder(src, **options)
            bits = np.unpackbits(mask.numpy(), bitorder="little")
            leaf = src.detach().clone().requires_grad_()
            (grad,) = torch.autograd.grad(oracle(leaf, **options).sum(), leaf)
            assert bits[: 3 * count].tolist() == (grad.flatten() != 0).int().tolist(), context
            assert not bits[3 * count :].any(), context


def tame(tensor):
    """Without what makes a gradient infinite: see test_what_saturates_has_no_gradient."""
    if tensor.dtype in FLOAT8:
        tensor = tensor.float()
    return torch.where(tensor.isfinite(), tensor, 1).clamp(-1e3, 1e3)


@pytest.mark.parametrize("seed", range(20))
def test_gradients_match_oracle(seed):
    choose = random.Random(seed)
    torch.manual_seed(seed)
    for _ in range(8):
        src, options = random_problem(choose)
        options = {
            name: tame(value) if name == "accumulate" and value is not None else value
            for name, value in options.items()
        }
        src = tame(src)
        ours = gradients(D.fake_reorder, src, options)
        theirs = gradients(oracle, src, options)
        for name, expected in theirs.items():
            # The oracle multiplies by dst_scale and divides by it again, and sums in another
            # order; sums cancel, so they are compared in float64.
            is_sum = name not in ("src", "accumulate")
            if is_sum and src.dtype != torch.float64:
                assert ours[name].dtype == expected.dtype
                continue
            width = max((expected.dtype, src.dtype), key=lambda t: torch.finfo(t).eps)
            largest = expected.abs().max().item() if expected.numel() else 0.0
            torch.testing.assert_close(
                *(ours[name], expected), rtol=4 * torch.finfo(width).eps,
                atol=largest * (1e-9 if is_sum else 4 * torch.finfo(width).eps),
            )  # fmt: skip


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_what_saturates_has_no_gradient(dtype):
    bound = float(torch.iinfo(dtype).max if dtype in INTEGERS else torch.finfo(dtype).max)
    src = torch.tensor([1.0, bound * 4, -bound * 4, math.inf, -math.inf, 2.0], requires_grad=True)
    scale = torch.tensor(0.5, requires_grad=True)
    zero_point = torch.tensor(1.0, requires_grad=True)
    result = D.fake_reorder(src, dtype=dtype, dst_scale=scale, dst_zero_point=zero_point)
    result.sum().backward()
    low = float(torch.iinfo(dtype).min) if dtype in INTEGERS else -bound
    assert src.grad.tolist() == [1, 0, 0, 0, 0, 1]
    # LSQ: bound - z where saturated, q - z - w = 0 elsewhere, as these values are not rounded.
    assert scale.grad.item() == pytest.approx(2 * (bound - 1) + 2 * (low - 1), abs=bound * 1e-6)
    assert zero_point.grad.item() == -4 * 0.5


def test_bounds_are_inside():
    src = torch.tensor([127.0, 127.49, 127.5, -128.0, -128.5, -128.51], requires_grad=True)
    D.fake_reorder(src, dtype=torch.int8).sum().backward()
    assert src.grad.tolist() == [1, 1, 0, 1, 1, 0]
    src = torch.tensor([math.nan], requires_grad=True)
    result = D.fake_reorder(src, dtype=torch.int8)
    result.sum().backward()
    assert result.item() == 0 and src.grad.item() == 0


@pytest.mark.parametrize("dtype", FLOATING)
@pytest.mark.parametrize("shape", [(2, 16, 5, 7), (3, 1027), (7,), (0, 3), ()])
def test_backward_keeps_bits(dtype, shape):
    """One bit per element, and a byte, are all that the gradient of src needs."""
    kept = []
    src = torch.randn(shape, dtype=dtype, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: (kept.append(x), x)[1], lambda x: x):
        D.fake_reorder(src, dtype=torch.int8, dst_scale=0.1)
    assert sum(x.nbytes for x in kept) == math.ceil(src.numel() / 8) + 1


def test_keeps_layout():
    src = torch.randn(2, 8, 5, 3)
    last = src.to(memory_format=torch.channels_last)
    views = [src, last, src.permute(3, 0, 2, 1), last[..., :2], last[:, ::2], src[:, :1]]
    views += [src[:1].expand(4, -1, -1, -1), last[..., :1].expand(-1, -1, -1, 4)]
    for view in views:
        result = D.fake_reorder(view, dtype=torch.int8)
        assert result.stride() == torch.empty_like(view).stride()


def test_mask_of_nothing_is_zero():
    for _ in range(20):
        poison = torch.full((64,), 255, dtype=torch.uint8)
        del poison
        _, mask = torch.ops.torch_dnnl.fake_reorder(torch.ones(0, 3), torch.int8)
        assert mask.tolist() == [0]
    _, mask = torch.ops.torch_dnnl.fake_reorder(torch.ones(5, 0), torch.int8, batch_dims=1)
    assert mask.tolist() == [[0]] * 5


def test_blocked_result_is_padded_with_zeros():
    src = torch.randn(2, 8, 5, 3)
    blocked = D.fake_reorder(src, "nChw16c", dtype=torch.int8, dst_scale=0.1)
    assert blocked.shape == physical_shape("nChw16c", src.shape)
    assert (blocked[..., 8:] == 0).all()


def loss(src, scale, zero_point):
    options = {"dst_scale": scale, "dst_zero_point": zero_point, "dtype": torch.int8}
    result = D.fake_reorder(src, **options)
    return (result * torch.linspace(-1, 1, result.numel()).view_as(result)).sum()


def test_vmap_of_gradients():
    src, scale = torch.randn(5, 2, 3, 7) * 30, torch.rand(5, 1, 3, 1) + 0.1
    zero_point = torch.tensor(3.0)
    for layout in (src, src.permute(1, 0, 2, 3).contiguous().permute(1, 0, 2, 3)):
        mapped = vmap(grad(loss, argnums=(0, 1, 2)), in_dims=(0, 0, None))(
            layout, scale, zero_point
        )
        for i in range(5):
            single = grad(loss, argnums=(0, 1, 2))(src[i], scale[i], zero_point)
            for batch, one in zip(mapped, single):
                torch.testing.assert_close(batch[i], one)


def test_jacobians_agree():
    """Reverse and forward mode, to second order: one rule each for every argument."""
    src = torch.randn(2, 3, 2) * 100
    scale, zero_point = torch.rand(1, 3, 1) + 0.2, torch.full((2, 1, 1), 2.0)

    def function(*arguments):
        return D.fake_reorder(
            arguments[0], dtype=torch.int8, dst_scale=arguments[1], dst_zero_point=arguments[2]
        )

    arguments = (src, scale, zero_point)
    for reverse, forward in zip(
        jacrev(function, argnums=(0, 1, 2))(*arguments),
        jacfwd(function, argnums=(0, 1, 2))(*arguments),
    ):
        torch.testing.assert_close(reverse, forward)
    assert 0 < reverse.count_nonzero() < reverse.numel()  # some saturated

    def square(scale, zero_point):
        return function(src, scale, zero_point).square().sum()

    twice = jacrev(jacrev(square, argnums=(0, 1)), argnums=(0, 1))(scale, zero_point)
    mixed = hessian(square, argnums=(0, 1))(scale, zero_point)
    for a, b in zip(pytree.tree_leaves(twice), pytree.tree_leaves(mixed)):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiles(dynamic):
    compiled = torch.compile(loss, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for shape in [(2, 3, 8, 8), (3, 5, 8, 9)]:
        src = (torch.randn(shape) * 30).to(memory_format=torch.channels_last).requires_grad_()
        scale = (torch.rand(1, shape[1], 1, 1) + 0.1).requires_grad_()
        arguments = (src, scale, torch.tensor(1.0, requires_grad=True))
        ours = torch.autograd.grad(compiled(*arguments), arguments)
        for a, b in zip(ours, torch.autograd.grad(loss(*arguments), arguments)):
            torch.testing.assert_close(a, b)


def test_operators_pass_opcheck():
    src = torch.randn(2, 4, 3, requires_grad=True)
    scale = torch.rand(1, 4, 1).add(0.1).requires_grad_()
    op = torch.ops.torch_dnnl.fake_reorder
    options = {"dst_format": "bca", "dst_scale": scale, "dst_zero_point_value": 2.0}
    torch.library.opcheck(op, (src, torch.uint8), options)
    torch.library.opcheck(op, (src, torch.uint8), {**options, "step_gradient": True})
    _, mask = op(src, torch.uint8, **options)
    torch.library.opcheck(
        torch.ops.torch_dnnl.fake_reorder_backward, (src.detach().requires_grad_(), mask, "bca")
    )


@pytest.mark.parametrize(
    ("error", "message", "change"),
    [
        (
            TypeError,
            "src to be float64, float32, bfloat16 or float16",
            {"src": torch.ones(2, dtype=int)},
        ),
        (TypeError, "dtype to be a torch.dtype, got None", {"dtype": None}),
        (ValueError, "dtype to be float8_e4m3fn, .*, got float32", {"dtype": torch.float32}),
        (ValueError, "dst_scale to be different from 0", {"dst_scale": 0.0}),
        (ValueError, "dst_zero_point to be a value of int8, got 200", {"dst_zero_point": 200}),
        (
            ValueError,
            r"dst_scale to be 1-D with each size 1 or a divisor .*\[2\], got 1-D with sizes \[3\]",
            {"dst_scale": torch.ones(3)},
        ),
        (TypeError, "dst_scale to be a number .*, got True", {"dst_scale": True}),
        (TypeError, "scale to be a number .*, got True", {"scale": True}),
        (TypeError, "beta to be a number, got False", {"beta": False}),
        (TypeError, "round_before_zero_point to be a bool, got 1", {"round_before_zero_point": 1}),
        (ValueError, "'q' in dst_format|dst_format.*'q'|q", {"dst_format": "q"}),
        (ValueError, "accumulate to have the sizes of", {"accumulate": torch.ones(3)}),
    ],
)
def test_bad_calls(error, message, change):
    call = {"src": torch.ones(2), "dtype": torch.int8, **change}
    with pytest.raises(error, match=f"^fake_reorder: .*({message})"):
        D.fake_reorder(**call)
    if change.get("src", call["src"]).is_floating_point():
        on_meta = {k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in call.items()}
        with pytest.raises(error, match=f"^fake_reorder: .*({message})"):
            D.fake_reorder(**on_meta)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_bad_masks(device):
    backward = torch.ops.torch_dnnl.fake_reorder_backward
    grad = torch.ones(3, 20, device=device)
    for mask, error in [
        (torch.zeros(8), TypeError),
        (torch.zeros(8, dtype=torch.uint8), ValueError),  # 60 bits take 8 bytes, and one more
        (torch.zeros(3, 3, dtype=torch.uint8), ValueError),
        (torch.zeros((), dtype=torch.uint8), ValueError),
    ]:
        with pytest.raises(error, match=r"^fake_reorder_backward: expected mask to "):
            backward(grad, mask.to(device))
    assert backward(grad, torch.zeros(9, dtype=torch.uint8, device=device)).shape == (3, 20)
    assert backward(grad, torch.zeros(3, 4, dtype=torch.uint8, device=device)).shape == (3, 20)
