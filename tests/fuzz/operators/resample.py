"""The operators of resampling: whole images and parts of them, by matrices of each axis."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from op_db import TOLERANCE
from oracles.resample import axis_matrix
from torch import Tensor

import torch_dnnl
from fuzz.problems import FLOATING, Operator, Problem, Tape, TensorSpec, layout, like

OPS = torch.ops.torch_dnnl
KERNELS = torch_dnnl.build_info()["kernels"]["cpu"]["resample"]
MODES = ["linear", "nearest", "cubic", "area", "lanczos3", "lanczos5"]
RULES = [
    *("half_pixel", "half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"),
    *("pytorch_half_pixel", "tf_half_pixel_for_nn", "tf_crop_and_resize"),
]
# ATen's own, which no oracle defines: for memory.
RULES_OF_TORCH = [
    *("torch_linear", "torch_antialias_corners", "torch_nearest", "torch_nearest_exact"),
    *("torch_nearest_direct", "torch_nearest_exact_direct"),
]
ROUNDING = ["round_prefer_ceil", "round_prefer_floor", "floor", "ceil"]
INTEGERS = ("uint8", "int8", "int16", "int32")
OF_AN_AXIS = (
    *("mode", "coordinates", "nearest_mode", "antialias", "cubic_coeff_a", "exclude_outside"),
)


@functools.lru_cache(maxsize=256)
def _matrix(
    whole_in: int, whole_out: int, factor: float | None, roi: tuple[float, float], options: Any
) -> tuple[Tensor, Tensor]:
    matrix, outside = axis_matrix(whole_in, whole_out, factor, roi=roi, **dict(options))
    return torch.from_numpy(matrix), torch.from_numpy(outside)


def axes(
    call: dict[str, Any], in_size: list[int], out_size: list[int]
) -> list[tuple[Tensor, Tensor]]:
    """By spatial dimension: the matrix, [out, in], and which outputs are extrapolated. Of a part,
    what of both lies in it."""
    spatial, window = len(in_size), call.get("window")
    options = tuple((name, call[name]) for name in OF_AN_AXIS)
    roi, result = call["roi"], []
    for d in range(spatial):
        wholes, begins = (in_size[d], out_size[d]), (0, 0)
        if window:
            wholes = window[d], window[2 * spatial + d]
            begins = window[spatial + d], window[3 * spatial + d]
        bounds = (roi[d], roi[spatial + d]) if roi else (0.0, 1.0)
        matrix, outside = _matrix(*wholes, (call["scales"] or [None] * spatial)[d], bounds, options)
        inputs = slice(begins[0], begins[0] + in_size[d])
        outputs = slice(begins[1], begins[1] + out_size[d])
        result.append((matrix[outputs, inputs], outside[outputs]))
    return result


def _applied(image: Tensor, matrices: list[Tensor], first: int) -> Tensor:
    for d, matrix in enumerate(matrices):
        image = torch.tensordot(image, matrix, ([first + d], [1])).movedim(-1, first + d)
    return image


def _taken(image: Tensor, matrices: list[Tensor], first: int) -> Tensor:
    """The same by matrices of one 1 in each row, or none: 0 times an infinity is not added."""
    for d, matrix in enumerate(matrices):
        shape = [1] * image.dim()
        shape[first + d] = -1
        image = image.index_select(first + d, matrix.argmax(1))
        image = torch.where(matrix.any(1).view(shape), image, 0.0)
    return image


def _first(call: dict[str, Any]) -> int:
    return 1 if call["data_format"] == "NXC" else 2


def _size(call: dict[str, Any]) -> list[int]:
    first, src = _first(call), call["src"]
    if call.get("size") is not None:
        return call["size"]
    return [math.floor(n * f) for n, f in zip(src.shape[first:], call["scales"])]


def expected(call: dict[str, Any]) -> Tensor:
    """In float64, before it is rounded to the type of the result."""
    first, src = _first(call), call["src"].double()
    size = _size(call)
    rows = axes(call, list(src.shape[first : first + len(size)]), size)
    matrices = [matrix for matrix, _ in rows]
    if call["mode"] == "nearest":
        result = _taken(src, matrices, first)
    else:
        result = _applied(src, matrices, first)
    for d, (_, outside) in enumerate(rows):
        if outside.any():
            shape = [1] * src.dim()
            shape[first + d] = -1
            fill = torch.tensor(call["extrapolation_value"], dtype=torch.float64)
            result = torch.where(outside.view(shape), fill, result)
    return result


def expected_backward(call: dict[str, Any]) -> Tensor:
    first, grad = _first(call), call["grad"].double()
    size = call["src_size"]
    rows = axes(call, size, list(grad.shape[first : first + len(size)]))
    if call["coordinates"] == "tf_crop_and_resize":  # an output of one axis outside is constant
        for d, (_, outside) in enumerate(rows):
            shape = [1] * grad.dim()
            shape[first + d] = -1
            grad = torch.where(outside.view(shape), 0.0, grad)
    return _applied(grad, [matrix.T for matrix, _ in rows], first)


def compare(call: dict[str, Any], actual: Tensor, wanted: Tensor) -> None:
    assert actual.shape == wanted.shape, f"sizes {actual.shape}, expected {wanted.shape}"
    if actual.numel() == 0:
        return
    image = call["src"] if "src" in call else call["grad"]
    finite = torch.where(image.double().isfinite(), image.double(), 0.0)
    largest = max(finite.abs().max().item(), abs(call.get("extrapolation_value", 0.0)), 1.0)
    is_wide = image.dtype in (torch.float64, torch.int32)
    # Weights are float32 unless sums are float64; lanczos and cubic overshoot a little. Backward
    # sums over as many rows as read one.
    shrinks = max(1.0, wanted.abs().max().item() / largest) if "grad" in call else 1.0
    error = largest * shrinks * (1e-11 if is_wide else 4e-6)
    if actual.dtype.is_floating_point:
        if call["mode"] == "nearest" and "src" in call:
            exact = wanted.to(actual.dtype).double()
            assert torch.equal(actual.double().nan_to_num(7.5), exact.nan_to_num(7.5)), "nearest"
            return
        tolerance = TOLERANCE[actual.dtype]
        limit = error + tolerance * wanted.abs().clamp_min(1e-30)
        limits = torch.finfo(actual.dtype)
        wrong = (actual.double() - wanted).abs() > limit + limits.smallest_normal * limits.eps
        wrong &= wanted.abs() <= limits.max * (1 - limits.eps)  # others overflow
        assert not wrong.any(), f"error {(actual.double() - wanted).abs().max():.3g}"
        return
    limits = torch.iinfo(actual.dtype)
    low, high = (
        (wanted + e).nan_to_num(0.0).round().clamp(limits.min, limits.max) for e in (-error, error)
    )
    assert ((low <= actual) & (actual <= high)).all(), "an integer that is not the nearest"


def adjoint(call: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    call, first = dict(call), _first(call)
    if "src" in call:
        spatial = list(call["src"].shape[first:][: call["src"].dim() - 2])
        y = OPS.resample(**call)
        g = like(y)
        given, back = call.pop("src"), {"grad": g, "src_size": spatial}
        call.pop("size"), call.pop("extrapolation_value")
        other = OPS.resample_backward(**back, **call)
    else:
        y = OPS.resample_backward(**call)
        g = like(y)
        given = call.pop("grad")
        call.pop("src_size")
        size = list(given.shape[first:][: given.dim() - 2])
        other = OPS.resample(src=g, size=size, **call)
    terms = y.double() * g.double(), given.double() * other.double()
    return terms[0].sum(), terms[1].sum(), max(t.abs().sum() for t in terms)


def _options(tape: Tape, mode: str, rank: int, rules: list[str]) -> dict[str, Any]:
    """What the axes share; takes 24 bytes."""
    tape = tape.part(24)
    name, rule = tape.pick(MODES), tape.pick(rules)
    options: dict[str, Any] = {
        "scales": [],
        "mode": name,
        "coordinates": rule,
        "nearest_mode": tape.pick(ROUNDING),
        "antialias": tape.chance(0.4) and name not in ("nearest", "area"),
        "cubic_coeff_a": tape.pick([-0.75, -0.5, 0.0, -1.0]),
        "exclude_outside": tape.chance(0.3),
    }
    bounds = [tape.number(-0.3, 1.3) for _ in range(6)]
    has_roi = rule == "tf_crop_and_resize" or tape.chance(0.1)
    options["roi"] = bounds[: 2 * rank] if has_roi else []
    return options


def _make(operator: str, tape: Tape, mode: str) -> Problem:
    rank = tape.pick([1, 2, 2, 3])
    rules = RULES + (RULES_OF_TORCH if mode == "guarded" else [])
    options = _options(tape, mode, rank, rules)
    most = {1: 40, 2: 20, 3: 9}[rank]
    src = [tape.integer(1, most) for _ in range(3)][:rank]
    dst = [tape.integer(1, most) for _ in range(3)][:rank]
    n, channels = tape.pick([1, 2, 2, 0]), tape.pick([1, 2, 3, 4, 8, 16, 17, 33, 0])
    stretch = [tape.number(0.9, 1.1) for _ in range(3)]
    given, exact = tape.pick(["size", "size", "size", "both", "scales"]), tape.chance(0.3)
    parts = tape.part(16)
    backward = operator == "resample_backward"
    if options["coordinates"] != "align_corners" and given != "size":
        # Exact ratios lead to ties, where nearest depends on the rounding of the factor to float64.
        exact = exact and options["mode"] != "nearest"
        factors = [o / i * (1.0 if exact else s + 3e-6) for i, o, s in zip(src, dst, stretch)]
        if not options["antialias"] or all(f * i >= 0.5 for f, i in zip(factors, src)):
            options["scales"] = factors
    if operator == "resample_rows":
        axis, of_source = parts.integer(0, rank - 1), parts.chance(0.5)
        rows = (src if of_source else dst)[axis]
        begin = parts.integer(0, rows)
        options |= {"begin": begin, "end": parts.integer(begin, rows), "of_source": of_source}
        options |= {"src_size": src, "dst_size": dst, "axis": axis}
        return Problem(operator, {}, options | {"is_double": parts.chance(0.5)})
    options["data_format"] = tape.pick(["NCX", "NXC"])
    options["algorithm"] = tape.pick(["auto", "auto", *KERNELS])
    threads = tape.pick([1, 1, 2, 3])
    types = FLOATING if backward or mode in ("gradients", "adjoint") else (*FLOATING, *INTEGERS)
    if mode in ("gradients", "adjoint"):
        types = ("float64", "float32")
    dtype, result = tape.pick(types), tape.pick(types)
    kind = tape.pick(["normal", "integers", "finite", "wide"])
    if options["mode"] == "nearest" and not backward and mode not in ("gradients", "adjoint"):
        kind = tape.pick(["corners", kind])  # copies; sums of infinities are not defined
    if tape.chance(0.3):
        options["dtype"] = dtype if mode in ("gradients", "adjoint") else result
    if parts.chance(0.25):
        # A part of both, and the rest is 0. Where a region is extrapolated, all rows have to be
        # there.
        more = [[parts.integer(0, 3) for _ in range(2)] for _ in range(2 * rank)]
        if options["coordinates"] == "tf_crop_and_resize":
            more[:rank] = [[0, 0]] * rank
        wholes = [b + size + e for (b, e), size in zip(more, src + dst)]
        begins = [b for b, _ in more]
        options["window"] = wholes[:rank] + begins[:rank] + wholes[rank:] + begins[rank:]
        options["scales"] = []
    nxc = options["data_format"] == "NXC"
    spatial = dst if backward else src
    shape = (n, *spatial, channels) if nxc else (n, channels, *spatial)
    spec = layout(tape, TensorSpec(shape, dtype, values=kind))
    if backward:
        return Problem(operator, {"grad": spec}, {"src_size": src, **options}, threads)
    # The size that follows from the factors has to be the one of `dst` in parts alone.
    computed = options["scales"] and all(
        math.floor(x * f) >= 1 for x, f in zip(src, options["scales"])
    )
    options["size"] = None if given == "scales" and computed else dst
    is_crop = options["coordinates"] == "tf_crop_and_resize" and mode != "adjoint"
    options["extrapolation_value"] = tape.pick([0.0, 0.25, -3.0]) if is_crop else 0.0
    return Problem(operator, {"src": spec}, options, threads)


def expected_rows(call: dict[str, Any]) -> tuple[int, int]:
    """The first and the last row with a weight, and one more; (0, 0) if there is none."""
    sizes = call["src_size"][call["axis"]], call["dst_size"][call["axis"]]
    if max(sizes) > 10_000:
        raise MemoryError("resample_rows: the matrix of so long an axis")
    matrix, _ = axes(call, call["src_size"], call["dst_size"])[call["axis"]]
    matrix = matrix.T if call["of_source"] else matrix
    weights = matrix[call["begin"] : call["end"]].abs()
    # Less is the rounding of a weight that is 0.
    found = (weights > 1e-10).any(0).nonzero().flatten().tolist()
    return (found[0], found[-1] + 1) if found else (0, 0)


def _compare_rows(call: dict[str, Any], actual: tuple[int, int], wanted: tuple[int, int]) -> None:
    """Taps may be exactly 0, next to others."""
    (begin, end), (first, last) = actual, wanted
    length = (call["dst_size"] if call["of_source"] else call["src_size"])[call["axis"]]
    assert 0 <= begin <= end <= length, f"rows {actual} of {length}"
    assert first == last or (begin <= first and last <= end), f"{actual} without {wanted}"
    filter_rows = {"lanczos3": 8, "lanczos5": 12, "cubic": 6}.get(call["mode"], 4)
    if not call["of_source"] and not call["antialias"] and call["mode"] != "area":
        assert end - begin <= last - first + filter_rows, f"{actual}, needed are {wanted}"


def _operator(name: str, expected_of: Any, **more: Any) -> Operator:
    return Operator(name, lambda tape, mode: _make(name, tape, mode), expected_of, **more)


OPERATORS = [
    _operator("resample", expected, compare=compare, adjoint=adjoint, differentiable=("src",)),
    _operator(
        "resample_backward",
        expected_backward,
        compare=compare,
        adjoint=adjoint,
        differentiable=("grad",),
    ),
    _operator("resample_rows", expected_rows, compare=_compare_rows),
]
