"""The operators of reorder: every type, tag and operand, to the bit."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import torch
from oracles import reorder as oracle
from oracles.exact_reorder import element, reorder_element
from torch import Tensor

import torch_dnnl
from fuzz.problems import DTYPES, FLOATING, Operator, Problem, Tape, TensorSpec, layout, like

OPS = torch.ops.torch_dnnl
KERNELS = torch_dnnl.build_info()["kernels"]["cpu"]["reorder"]
INTEGERS = ("int8", "uint8", "int32")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
TYPES = (*FLOATING, *FLOAT8, *INTEGERS)
# By the number of dimensions.
NAMED_TAGS = {
    2: ["ab", "ba", "oi", "io", "AB16b16a"],
    3: ["ncw", "nwc", "nCw16c", "oiw", "wio", "OIw4i16o4i"],
    4: ["nchw", "nhwc", "chwn", "nChw8c", "nChw16c", "NChw16n16c", "hwio", "OIhw4i16o4i"],
    5: ["ncdhw", "ndhwc", "nCdhw16c", "goihw", "gOIhw8i8o", "Goihw16g", "dhwio", "OIdhw8o8i"],
}
# Of a result's error, relative to its largest value: gradients have sums in another order.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-6,
    torch.bfloat16: 2**-8,
    torch.float16: 2**-10,
    torch.float8_e4m3fn: 2**-4,
    torch.float8_e5m2: 2**-3,
}


def _tag(tape: Tape, rank: int, *, plain: bool = False) -> str:
    """Takes 24 bytes."""
    tape = tape.part(24)
    if tape.chance(0.4) and rank in NAMED_TAGS:
        named = tape.pick(NAMED_TAGS[rank])
        if not (plain and oracle.parse(named)[1]):
            return named
    order = list(range(rank))
    for d in range(rank - 1):
        other = tape.integer(d, rank - 1) if d < 5 else d
        order[d], order[other] = order[other], order[d]
    count = 0 if plain else tape.pick([0, 0, 1, 1, 2, 3, 4])
    blocks = [(tape.pick([2, 4, 8, 16, 1, 3, 5]), tape.integer(0, rank - 1)) for _ in range(count)]
    blocked = {dim for _, dim in blocks}
    front = "".join(chr(ord("A" if dim in blocked else "a") + dim) for dim in order)
    return front + "".join(f"{size}{chr(ord('a') + dim)}" for size, dim in blocks)


def _sizes(tape: Tape) -> list[int]:
    """Logical sizes; takes 32 bytes."""
    tape = tape.part(32)
    rank = tape.pick([1, 2, 3, 4, 4, 4, 5, 6, 8, 12])
    most = {1: 3000, 2: 70, 3: 24, 4: 17, 5: 6, 6: 4}.get(rank, 2)
    low = 0 if tape.chance(0.05) else 1
    sizes = [tape.integer(low, most) for _ in range(rank)]
    while math.prod(sizes) > 12_000:
        sizes[sizes.index(max(sizes))] = 2
    return sizes


def _physical(tag: str | None, sizes: list[int]) -> tuple[int, ...]:
    """The sizes of the tensor of a tag."""
    if tag is None or not oracle.parse(tag)[1]:
        return tuple(sizes)
    outer, inner = oracle.parse(tag)
    block = [math.prod(n for d, n in inner if d == dim) for dim in range(len(sizes))]
    return (*(-(-sizes[dim] // block[dim]) for dim in outer), *(n for _, n in inner))


def _operand(
    tape: Tape, name: str, sizes: list[int], dtype: str, mode: str
) -> tuple[TensorSpec | None, float | None]:
    """A tensor or a number, or neither; takes 48 bytes. `dtype`: what a zero point belongs to."""
    tape = tape.part(48)
    kind = tape.pick(["none", "none", "number", "tensor", "tensor"])
    is_scale = "scale" in name
    divisors = [[d for d in (1, *range(n, 1, -1)) if n % d == 0] or [n] for n in sizes]
    shape = [tape.pick(options[:250]) for options in divisors]
    if tape.chance(0.2):
        shape = []
    if kind == "number":
        if is_scale:
            return None, tape.pick([0.5, 0.1, 3.0, 255.0, -0.5, 1 / 255, 1e-3, 1.0])
        limits = torch.iinfo(DTYPES[dtype]) if dtype in INTEGERS else None
        low, high = (-100, 100) if limits is None else (max(limits.min, -100), 100)
        return None, float(tape.integer(low, high))
    if kind == "none":
        return None, None
    if is_scale:
        types = [*FLOATING] if mode not in ("gradients",) else ["float64"]
        return layout(tape, TensorSpec(tuple(shape), tape.pick(types), values="positive")), None
    types = ["int32", "float32", "int64", "int8"]
    values = "positive" if dtype == "uint8" else "small"
    own = "float64" if mode == "gradients" else tape.pick(types)
    return layout(tape, TensorSpec(tuple(shape), own, values=values)), None


def _operands(
    tape: Tape, names: tuple[str, ...], sizes: list[int], types: tuple[str, str], mode: str
) -> tuple[dict[str, TensorSpec], dict[str, float]]:
    tensors, numbers = {}, {}
    for name in names:
        own = types[0] if name == "src_zero_point" else types[1]
        tensor, number = _operand(tape, name, sizes, own, mode)
        if tensor is not None:
            tensors[name] = tensor
        elif number is not None:
            numbers[f"{name}_value"] = number
    return tensors, numbers


def _kinds(tape: Tape, mode: str) -> str:
    if mode in ("gradients", "adjoint"):
        return "normal"
    return tape.pick(["wide", "corners", "integers", "corners", "small"])


def _algorithm(tape: Tape) -> dict[str, str]:
    return {"algorithm": tape.pick(["auto", "auto", *KERNELS])}


def _make_reorder(tape: Tape, mode: str) -> Problem:
    sizes = _sizes(tape)
    is_float = mode in ("gradients", "adjoint")
    types = ("float64", "float64", "float32") if is_float else TYPES
    src, dst = tape.pick(types), tape.pick(types)
    has_formats = tape.pick([0, 0, 1, 2, 3])
    src_format, dst_format = _tag(tape, len(sizes)), _tag(tape, len(sizes))
    src_format = src_format if has_formats & 1 else None
    dst_format = dst_format if has_formats & 2 else None
    is_blocked = src_format is not None and bool(oracle.parse(src_format)[1])
    given_size = is_blocked and tape.chance(0.7)
    physical = _physical(src_format, sizes)
    if is_blocked and not given_size:  # whole blocks
        outer, inner = oracle.parse(src_format)
        for position, dim in enumerate(outer):
            block = math.prod(n for d, n in inner if d == dim)
            sizes[dim] = physical[position] * block
    attributes: dict[str, Any] = {"dst_format": dst_format, "src_format": src_format}
    attributes["size"] = sizes if given_size or (not is_blocked and tape.chance(0.1)) else None
    attributes["dtype"] = None if tape.chance(0.1) else dst
    dst = attributes["dtype"] or src
    values = _kinds(tape, mode)
    tensors = {"src": layout(tape, TensorSpec(physical, src, values=values))}
    names = ("scale", "dst_scale", "src_zero_point", "dst_zero_point")
    has_steps = tape.chance(0.6)
    more, numbers = _operands(
        tape, names[:2] if mode == "adjoint" else names, sizes, (src, dst), mode
    )
    result_format = dst_format or (src_format if is_blocked else None)
    accumulate = layout(
        tape, TensorSpec(_physical(result_format, sizes), tape.pick(types), values=values)
    )
    beta = tape.pick([1.0, -0.3, 0.0, 0.5])
    if has_steps:
        tensors, attributes = tensors | more, attributes | numbers
        if tape.chance(0.5) and mode != "adjoint":
            tensors["accumulate"] = accumulate
            attributes["beta"] = beta
        attributes["round_before_zero_point"] = tape.chance(0.5)
    return Problem("reorder", tensors, attributes | _algorithm(tape), tape.pick([1, 1, 2]))


def _make_backward(tape: Tape, mode: str) -> Problem:
    sizes = _sizes(tape)
    types = FLOATING if mode not in ("gradients", "adjoint") else ("float64", "float32")
    grad, dtype = tape.pick(types), tape.pick(types)
    has_formats = tape.pick([0, 1, 2, 3])
    src_format, dst_format = _tag(tape, len(sizes)), _tag(tape, len(sizes))
    src_format = src_format if has_formats & 1 else None
    dst_format = dst_format if has_formats & 2 else None
    result = dst_format
    if dst_format is None and src_format is not None and oracle.parse(src_format)[1]:
        result = src_format
    physical = _physical(result, sizes)
    tensors = {"grad": layout(tape, TensorSpec(physical, grad))}
    more, numbers = _operands(tape, ("scale", "dst_scale"), sizes, (dtype, dtype), mode)
    attributes: dict[str, Any] = {"size": sizes, "dst_format": dst_format, "src_format": src_format}
    attributes["dtype"] = None if tape.chance(0.2) else dtype
    attributes |= numbers
    return Problem(
        "reorder_backward", tensors | more, attributes | _algorithm(tape), tape.pick([1, 1, 2])
    )


def _make_fake(tape: Tape, mode: str) -> Problem:
    sizes = _sizes(tape)
    is_float = mode in ("gradients", "adjoint")
    # Gradients of scales are sums of what cancels.
    src = tape.pick(("float64",) if is_float else FLOATING)
    dtype = tape.pick([*INTEGERS, *FLOAT8])
    dst_format = _tag(tape, len(sizes), plain=True)
    has_format, values = tape.chance(0.4), tape.pick(["wide", "normal", "corners"])
    values = values if mode != "gradients" else "wide"
    tensors = {"src": layout(tape, TensorSpec(tuple(sizes), src, values=values))}
    more, numbers = _operands(tape, ("dst_scale", "dst_zero_point"), sizes, (dtype, dtype), mode)
    attributes: dict[str, Any] = {"dtype": dtype, "dst_format": dst_format if has_format else None}
    attributes |= numbers
    attributes["round_before_zero_point"] = tape.chance(0.5)
    attributes["batch_dims"] = tape.pick([0, 0, 1, 2]) if len(sizes) > 2 else 0
    attributes["step_gradient"] = tape.chance(0.2) and mode != "gradients"
    return Problem(
        "fake_reorder", tensors | more, attributes | _algorithm(tape), tape.pick([1, 1, 2])
    )


def _in_memory(sizes: list[int], tag: str | None) -> tuple[list[int], list[int]]:
    """The order of the dimensions of a result, and its sizes in that order."""
    order = list(range(len(sizes))) if tag is None else oracle.parse(tag)[0]
    return order, [sizes[d] for d in order]


def _mask_sizes(sizes: list[int], tag: str | None, batch_dims: int) -> tuple[int, ...]:
    """A bit for each element of a row, and a byte of zeros."""
    _, lengths = _in_memory(sizes, tag)
    return (*lengths[:batch_dims], (math.prod(lengths[batch_dims:]) + 7) // 8 + 1)


def _make_fake_backward(tape: Tape, mode: str) -> Problem:
    sizes = _sizes(tape)
    types = FLOATING if mode not in ("gradients", "adjoint") else ("float64", "float32")
    grad, tag = tape.pick(types), _tag(tape, len(sizes), plain=True)
    tag = tag if tape.chance(0.5) else None
    batch_dims = tape.pick([0, 0, 1, 2]) if len(sizes) > 2 else 0
    values = tape.pick(["normal", "corners"]) if mode in ("values", "guarded") else "normal"
    tensors = {
        "grad": layout(tape, TensorSpec(tuple(sizes), grad, values=values)),
        "mask": layout(tape, TensorSpec(_mask_sizes(sizes, tag, batch_dims), "uint8")),
    }
    attributes = {"format": tag} | _algorithm(tape)
    return Problem("fake_reorder_backward", tensors, attributes, tape.pick([1, 1, 2]))


def _make_tag(tape: Tape, mode: str) -> Problem:
    rank = tape.pick([1, 2, 3, 4, 5, 6, 12])
    return Problem("parse_format", {}, {"tag": _tag(tape, rank)})


NEUTRAL = {"scale": 1.0, "dst_scale": 1.0, "src_zero_point": 0.0, "dst_zero_point": 0.0}


def options_of(call: dict[str, Any], *names: str) -> dict[str, Any]:
    """The oracle's spelling: an operand is a tensor or a number, or is not there, as is a number
    that changes nothing."""
    options = {name: call[name] for name in names if name in call}
    for name, neutral in NEUTRAL.items():
        number = call.get(f"{name}_value", neutral)
        if call.get(name) is not None:
            options[name] = call[name]
        elif number != neutral:
            options[name] = number
    return options


_REORDER = (
    *("dst_format", "src_format", "size", "dtype", "accumulate", "beta"),
    "round_before_zero_point",
)


def expected_reorder(call: dict[str, Any]) -> Tensor:
    return oracle.reorder(call["src"], **options_of(call, *_REORDER))


def expected_backward(call: dict[str, Any]) -> Tensor:
    """The transposed map, which autograd makes of the oracle in float64."""
    physical = _physical(call["src_format"], call["size"])
    options = options_of(call, "dst_format", "src_format")
    wide = lambda v: v.double() if torch.is_tensor(v) else v  # noqa: E731
    # A number is rounded to the type that is computed in.
    types = (call["grad"].dtype, call.get("dtype"))
    rounds = torch.float64 not in types
    for name in ("scale", "dst_scale"):
        if isinstance(options.get(name), float) and rounds:
            options[name] = torch.tensor(options[name], dtype=torch.float32).item()
        elif torch.is_tensor(options.get(name)) and rounds:
            options[name] = options[name].float()
    options = {name: wide(value) for name, value in options.items()}
    if call["src_format"] is not None and oracle.parse(call["src_format"])[1]:
        options["size"] = call["size"]
    grad = call["grad"].double()
    with torch.enable_grad():
        x = torch.zeros(physical, dtype=torch.float64, requires_grad=True)
        y = oracle.reorder(x, **options)
        (result,) = torch.autograd.grad(y, x, grad, create_graph=grad.requires_grad)
    return result


def _fake_options(call: dict[str, Any]) -> dict[str, Any]:
    return options_of(call, "dst_format", "dtype", "round_before_zero_point")


def expected_fake(call: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Values, or their derivative by a scale of each element; and what did not saturate."""
    options, src = _fake_options(call), call["src"]
    values = oracle.fake_reorder(src, **options)
    with torch.enable_grad():
        leaf = src.detach().clone().requires_grad_()
        kept = options | {"dst_format": None}
        (inside,) = torch.autograd.grad(oracle.fake_reorder(leaf, **kept).sum(), leaf)
        if call["step_gradient"]:
            wide = torch.float64 if src.dtype == torch.float64 else torch.float32
            scale = torch.ones((), dtype=wide)
            if "dst_scale" in options:
                scale = oracle.spread(options["dst_scale"], src.detach().to(wide))
            each = scale.expand(src.shape).clone().requires_grad_()
            result = oracle.fake_reorder(src.detach().to(wide), **(options | {"dst_scale": each}))
            (values,) = torch.autograd.grad(result.sum(), each)
    order, lengths = _in_memory(list(src.shape), options.get("dst_format"))
    sizes = _mask_sizes(list(src.shape), options.get("dst_format"), call["batch_dims"])
    rows = math.prod(lengths[: call["batch_dims"]])
    bits = (inside != 0).permute(order).reshape(rows, math.prod(lengths[call["batch_dims"] :]))
    packed = np.zeros((rows, sizes[-1]), np.uint8)
    found = np.packbits(bits.numpy(), axis=1, bitorder="little")
    packed[:, : found.shape[1]] = found
    return values, torch.from_numpy(packed).reshape(sizes)


def expected_fake_backward(call: dict[str, Any]) -> Tensor:
    grad, mask = call["grad"], call["mask"]
    order, lengths = _in_memory(list(grad.shape), call["format"])
    rows = math.prod(mask.shape[:-1])
    bits = np.unpackbits(
        mask.contiguous().numpy().reshape(rows, mask.shape[-1]), axis=1, bitorder="little"
    )[:, : math.prod(lengths) // max(rows, 1)]
    inside = torch.from_numpy(bits.astype(bool)).reshape(lengths)
    inside = inside.permute([order.index(d) for d in range(len(order))])
    return torch.where(inside, grad, torch.zeros((), dtype=grad.dtype))


def expected_tag(call: dict[str, Any]) -> tuple[list[int], list[int], list[int]]:
    outer, inner = oracle.parse(call["tag"])
    return outer, [d for d, _ in inner], [n for _, n in inner]


def same_bits(actual: Tensor, wanted: Tensor) -> None:
    """Values, types and signs of zeros; one NaN is as good as another."""
    assert actual.dtype == wanted.dtype, f"type {actual.dtype}, expected {wanted.dtype}"
    assert actual.shape == wanted.shape, f"sizes {actual.shape}, expected {wanted.shape}"
    if actual.dtype.is_floating_point:
        actual, wanted = actual.double(), wanted.double()
        assert torch.equal(actual.isnan(), wanted.isnan()), "NaN in other places"
        actual, wanted = actual.nan_to_num(0.25), wanted.nan_to_num(0.25)
        assert torch.equal(actual.signbit(), wanted.signbit()), "zeros of other signs"
    if not torch.equal(actual, wanted):
        at = tuple((actual != wanted).nonzero()[0].tolist())
        raise AssertionError(f"{actual[at].item()!r} at {at}, expected {wanted[at].item()!r}")


def compare_reorder(call: dict[str, Any], actual: Tensor, wanted: Tensor) -> None:
    """To the bit, and some elements by fractions that are rounded once per step."""
    same_bits(actual, wanted)
    options = {"dtype": actual.dtype, "beta": 1.0, "round_before_zero_point": False}
    options |= {k: v for k, v in options_of(call, *_REORDER).items() if v is not None}
    tag = options.get("dst_format") or options.get("src_format")
    sizes = call.get("size")
    if sizes is None:
        sizes = list(call["src"].shape)
        if call["src_format"] is not None and oracle.parse(call["src_format"])[1]:
            sizes = list(oracle.unpack(call["src"], call["src_format"], None).shape)
    choose = random.Random(len(sizes))
    for _ in range(3 if all(sizes) else 0):
        index = [choose.randrange(n) for n in sizes]
        exact = reorder_element(index, sizes, call["src"], options)
        found = element(actual, index, tag)
        # repr: tells 0 from -0, and NaN equals NaN.
        assert repr(found) == repr(exact), f"{found!r} at {index}, exactly {exact!r}"


def _compare_backward(call: dict[str, Any], actual: Tensor, wanted: Tensor) -> None:
    dtype = call.get("dtype") or call["grad"].dtype
    assert actual.dtype == dtype, f"type {actual.dtype}, expected {dtype}"
    assert actual.shape == wanted.shape, f"sizes {actual.shape}, expected {wanted.shape}"
    limits = torch.finfo(dtype)
    widths = [TOLERANCE[t] for t in (dtype, torch.float32) if t != torch.float64]
    is_wide = torch.float64 in (dtype, call["grad"].dtype)
    tolerance = TOLERANCE[dtype] if is_wide else max(widths)
    # Scales may be such numbers, too, as is their product, which has few digits then; and what is
    # lost is divided by the other scale.
    least = limits.smallest_normal * limits.eps / min(1.0, abs(call.get("dst_scale_value") or 1.0))
    allowed = tolerance * wanted.abs() + 16 * least
    if dtype.itemsize == 1:
        wanted = wanted.clamp(-limits.max, limits.max)
    wrong = (actual.double() - wanted).abs() > allowed
    wrong &= wanted.abs() <= limits.max * (1 - limits.eps)
    assert not wrong.any(), f"error {(actual.double() - wanted).abs().max():.3g}"


def _compare_fake(call: dict[str, Any], actual: Any, wanted: Any) -> None:
    assert torch.equal(actual[1], wanted[1]), "the mask"
    if not call["step_gradient"]:
        same_bits(actual[0], wanted[0])
        return
    # q - z - w; where w is close to q the difference is what is left of one rounding of each.
    values, reference = actual[0].double(), wanted[0].double()
    eps = torch.finfo(actual[0].dtype).eps
    finite = reference.isfinite()
    bound = eps * (4 * reference.abs() + 600)
    if call["dtype"] in (torch.int32, torch.float8_e5m2):
        bound = bound + eps * 2.0**33
    assert (((values - reference).abs() <= bound) | ~finite).all(), "the derivative by the scale"


def _compare_bits(call: dict[str, Any], actual: Tensor, wanted: Tensor) -> None:
    same_bits(actual, wanted)


def _compare_lists(call: dict[str, Any], actual: Any, wanted: Any) -> None:
    assert [list(x) for x in actual] == [list(x) for x in wanted], f"{actual}, expected {wanted}"


def _products(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    terms = [a.double() * b.double() for a, b in pairs]
    return terms[0].sum(), terms[1].sum(), max(t.abs().sum() for t in terms)


_OF_BACKWARD = ("scale", "dst_scale", "scale_value", "dst_scale_value", "algorithm")


def _adjoint(call: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    formats = {name: call[name] for name in ("dst_format", "src_format")}
    shared = {name: call[name] for name in _OF_BACKWARD if name in call} | formats
    if "src" in call:
        y, src = OPS.reorder(**call), call["src"]
        g, size = like(y), call["size"] or list(src.shape)
        if formats["src_format"] is not None and oracle.parse(formats["src_format"])[1]:
            size = call["size"] or list(oracle.unpack(src, formats["src_format"], None).shape)
            # What lies in the padding counts for nothing.
            inside = oracle.unpack(src, formats["src_format"], size)
            src = oracle.pack(inside, formats["src_format"])
        back = OPS.reorder_backward(grad=g, size=size, dtype=src.dtype, **shared)
        return _products([(y, g), (src, back)])
    x = OPS.reorder_backward(**call)
    g = like(x)
    blocked = formats["src_format"] is not None and bool(oracle.parse(formats["src_format"])[1])
    size = call["size"] if blocked else None
    if blocked:
        g = oracle.pack(oracle.unpack(g, formats["src_format"], size), formats["src_format"])
    y = OPS.reorder(src=g, size=size, dtype=call["grad"].dtype, **shared)
    return _products([(x, g), (call["grad"], y)])


def _adjoint_of_mask(call: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    y = OPS.fake_reorder_backward(**call)
    g = like(call["grad"])
    back = OPS.fake_reorder_backward(**(call | {"grad": g}))
    return _products([(y, g), (call["grad"], back)])


OPERATORS = [
    Operator(
        "reorder",
        _make_reorder,
        expected_reorder,
        compare_reorder,
        adjoint=_adjoint,
        differentiable=(
            *("src", "accumulate", "scale", "dst_scale", "src_zero_point", "dst_zero_point"),
        ),
    ),
    Operator(
        "reorder_backward",
        _make_backward,
        expected_backward,
        _compare_backward,
        adjoint=_adjoint,
        differentiable=("grad",),
    ),
    Operator(
        "fake_reorder",
        _make_fake,
        expected_fake,
        _compare_fake,
        differentiable=("src", "dst_scale", "dst_zero_point"),
    ),
    Operator(
        "fake_reorder_backward",
        _make_fake_backward,
        expected_fake_backward,
        _compare_bits,
        adjoint=_adjoint_of_mask,
        differentiable=("grad",),
    ),
    Operator("parse_format", _make_tag, expected_tag, _compare_lists),
]
