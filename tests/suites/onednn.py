"""oneDNN's own answers: its library, called through onednn.cpp, on shapes of its tests
(onednn_shapes.py), in both plain layouts, compared with our operators of the same attributes.

Floating results are compared within the roundings of both. Integer results are equal: the data and
the scales are such that float32 holds every value on the way. Weights of 7 bits keep oneDNN's sums
of bytes exact on CPUs that have no instruction for them.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from ctypes import POINTER, Structure, byref, c_bool, c_char_p, c_float, c_int64, c_void_p
from functools import cache, partial
from importlib.metadata import files
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import torch_dnnl.functional as D
from suites import SUITES, Case, KnownError, OutsideError, assert_close, assert_equal, random_image
from suites.onednn_shapes import BASIC, OTHERS, REORDERS, RESAMPLING, TAILS, Convolution

TITLE = "oneDNN"
LIBRARY, HEADERS = SUITES["onednn"]

OPS = torch.ops.torch_dnnl
NAMES = {
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int32: "s32",
    torch.int8: "s8",
    torch.uint8: "u8",
}
BY_NAME = {name: dtype for dtype, name in NAMES.items()}


class CTensor(Structure):
    _fields_ = (
        ("type", c_char_p),
        ("tag", c_char_p),
        ("sizes", POINTER(c_int64)),
        ("rank", c_int64),
        ("data", c_void_p),
    )


class CSpatial(Structure):
    _fields_ = (
        *((name, POINTER(c_int64)) for name in ("strides", "dilations", "begin", "end")),
        ("rank", c_int64),
    )


class CQuantization(Structure):
    _fields_ = (
        ("scales", POINTER(c_float)),
        ("count", c_int64),
        ("mask", c_int64),
        ("zero_point", c_int64),
    )


def numbers(values: Sequence[int]) -> Any:
    return (c_int64 * len(values))(*values)


def described(data: Tensor | None, dtype: torch.dtype, tag: str, sizes: Sequence[int]) -> CTensor:
    """A dense tensor in the format of the tag, of these logical sizes."""
    address = None if data is None else data.data_ptr()
    return CTensor(NAMES[dtype].encode(), tag.encode(), numbers(sizes), len(sizes), address)


def quantization(scales: Tensor | None = None, mask: int = 0, zero_point: int = 0) -> CQuantization:
    if scales is None:
        return CQuantization(None, 0, 0, zero_point)
    values = (c_float * scales.numel())(*scales.flatten().tolist())
    return CQuantization(values, scales.numel(), mask, zero_point)


@cache
def library() -> ctypes.CDLL:
    """onednn.cpp, compiled for the library that is installed."""

    def installed(distribution: str, name: str) -> Path:
        found = [file for file in files(distribution) or () if file.name == name]
        return Path(found[0].locate()).resolve()

    shared = installed(LIBRARY, "libdnnl.so.3")
    headers = next(p for p in installed(HEADERS, "dnnl.hpp").parents if p.name == "include")
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "onednn.so"
        source = Path(__file__).with_suffix(".cpp")
        command = ["g++", "-std=c++17", "-shared", "-fPIC", f"-I{headers}", source, shared]
        subprocess.run([*command, f"-Wl,-rpath,{shared.parent}", "-o", result], check=True)
        loaded = ctypes.CDLL(str(result))
    for name in ("version", "resampling", "reorder", "convolution"):
        getattr(loaded, f"onednn_{name}").restype = c_char_p
    loaded.onednn_bytes.restype = c_int64
    return loaded


def source() -> str:
    version = library().onednn_version().decode()
    return f"{LIBRARY} (oneDNN {version}), shapes of benchdnn at 3f27bec21fdc"


def call(name: str, *arguments: Any) -> None:
    """A primitive; OutsideError where this build of oneDNN has none."""
    message = getattr(library(), f"onednn_{name}")(*arguments).decode()
    if "could not create a primitive descriptor" in message:
        raise OutsideError("oneDNN has no such primitive on this CPU")
    if message:
        raise OutsideError(f"oneDNN: {message}")


def plain(rank: int, last: bool) -> str:
    """The tag of a dense tensor, with the second dimension in place or last."""
    letters = "abcdef"[:rank]
    return letters[0] + letters[2:] + letters[1] if last else letters


def laid_out(tensor: Tensor, tag: str) -> Tensor:
    """In the order of a plain tag, dense."""
    return tensor.permute([ord(letter) - ord("a") for letter in tag]).contiguous()


def logical(tensor: Tensor, tag: str) -> Tensor:
    """The view that `laid_out` makes dense."""
    order = [ord(letter) - ord("a") for letter in tag]
    return tensor.permute([order.index(d) for d in range(len(order))])


def resampled(
    input: Tensor, sizes: Sequence[int], mode: str, dtype: torch.dtype, backward: bool
) -> Tensor:
    """oneDNN's resampling of an image that is dense in a plain order, in the same order."""
    order = sorted(range(input.dim()), key=lambda d: -input.stride(d))
    tag = "".join("abcdef"[d] for d in order)
    given = laid_out(input, tag)
    shape = [(*input.shape[:2], *sizes)[d] for d in order]
    result = torch.zeros(shape, dtype=dtype)
    pair = [
        described(given, input.dtype, tag, input.shape),
        described(result, dtype, tag, (*input.shape[:2], *sizes)),
    ]
    src, dst = reversed(pair) if backward else pair
    call("resampling", byref(src), byref(dst), mode.encode(), c_bool(backward))
    return logical(result, tag)


def position_error(size: Sequence[int], out: Sequence[int]) -> float:
    """Of oneDNN, relative to the largest value: its positions are float32, ours are exact."""
    return 4e-6 + 2.0**-23 * max(*size, *out)


def check_resampling(
    problem: tuple[int, int, tuple[int, ...], tuple[int, ...]],
    mode: str,
    tag: str,
    types: tuple[torch.dtype, torch.dtype],
) -> None:
    batch, channels, size, out = problem
    input = random_image((batch, channels, *size), types[0])
    if types[1] in (torch.int8, torch.uint8) and types[0] == torch.float32:
        input *= 90
    input = logical(laid_out(input, tag), tag)
    theirs = resampled(input, out, mode, types[1], False)
    ours = D.resample(input, out, mode=mode, dtype=types[1])
    if not types[1].is_floating_point and not torch.equal(ours, theirs):
        # In the middle between two integers, rounding errors choose one.
        theirs = resampled(input.float(), out, mode, torch.float32, False)
    assert_close(ours, theirs, position_error(size, out), roundings=2)


def check_resampling_backward(
    problem: tuple[int, int, tuple[int, ...], tuple[int, ...]],
    mode: str,
    tag: str,
    dtype: torch.dtype,
) -> None:
    batch, channels, size, out = problem
    grad = logical(laid_out(random_image((batch, channels, *out), dtype), tag), tag)
    theirs = resampled(grad, size, mode, dtype, True)
    x = torch.zeros((batch, channels, *size), dtype=dtype, requires_grad=True)
    (ours,) = torch.autograd.grad(D.resample(x, out, mode=mode), x, grad)
    assert_close(ours, theirs, position_error(size, out), roundings=2)


def resampling() -> Iterator[Case]:
    pairs = [("f32", "f32"), ("bf16", "bf16"), ("f16", "f16"), ("s8", "s8"), ("u8", "u8")]
    mixed = [("f32", "s8"), ("f32", "u8"), ("s8", "f32"), ("u8", "f32"), ("f32", "s32")]
    for i, problem in enumerate(RESAMPLING):
        for mode, last in itertools.product(("nearest", "linear"), (False, True)):
            tag = plain(len(problem[2]) + 2, last)
            for source, target in (*pairs, *(mixed if i < 14 else ())):
                types = (BY_NAME[source], BY_NAME[target])
                name = f"{problem}, {mode}, {tag}, {source} to {target}"
                check = partial(check_resampling, problem, mode, tag, types)
                yield Case("resampling, forward", name, check)
            for kind in ("f32", "bf16", "f16"):
                name = f"{problem}, {mode}, {tag}, {kind}"
                check = partial(check_resampling_backward, problem, mode, tag, BY_NAME[kind])
                yield Case("resampling, backward", name, check)


def physical(tensor: Tensor, tag: str) -> Tensor:
    """The bytes of a logical tensor in a format."""
    result = D.reorder(tensor, tag)
    return laid_out(result, tag) if tag.islower() and tag.isalpha() else result


def check_reorder(
    problem: tuple[tuple[int, ...], str, str],
    types: tuple[torch.dtype, torch.dtype],
    scaled: str = "",
    zero_points: bool = False,
    beta: float = 0.0,
) -> None:
    """`scaled`: "common", or the letters of the dimensions along which scales differ."""
    sizes, source_tag, target_tag = problem
    values = random_image(sizes, types[0])
    if types[0].is_floating_point:  # ones that are rounded, and ones that saturate
        values = (values * 90).to(types[0])
    src = physical(values, source_tag)
    options: dict[str, Any] = {}
    of = {"src": quantization(), "dst": quantization()}
    mask, shape = 0, [1] * len(sizes)
    for letter in scaled if scaled != "common" else "":
        d = ord(letter) - ord("a")
        mask, shape[d] = mask | 1 << d, sizes[d]
    for name, argument in (("src", "scale"), ("dst", "dst_scale")) if scaled else ():
        generator = torch.Generator().manual_seed(len(name + argument))
        scales = 2.0 ** torch.randint(-2, 2, shape, generator=generator)  # exact in float32
        of[name], options[argument] = quantization(scales, mask), scales
    if zero_points:  # -1 for the source there, which is no uint8
        of["src"].zero_point, of["dst"].zero_point = 1, 2
        options |= {"src_zero_point": 1, "dst_zero_point": 2}
    blocked = not (source_tag.islower() and source_tag.isalpha())
    if blocked:
        options |= {"src_format": source_tag, "size": sizes}
    before = random_image(sizes, types[1], seed=1)
    if types[1].is_floating_point:
        before = before.round()
    dst = physical(before, target_tag) if beta else physical(torch.zeros_like(before), target_tag)
    if beta:
        options |= {"accumulate": D.reorder(before, target_tag), "beta": beta}
    theirs = dst.clone()
    call(
        "reorder",
        byref(described(src, types[0], source_tag, sizes)),
        byref(described(theirs, types[1], target_tag, sizes)),
        byref(of["src"]),
        byref(of["dst"]),
        c_float(beta),
    )
    view = src if blocked else logical(src, source_tag)

    def reordered(options: dict[str, Any]) -> Tensor:
        result = D.reorder(view, target_tag, dtype=types[1], **options)
        is_plain = target_tag.islower() and target_tag.isalpha()
        return laid_out(result, target_tag) if is_plain else result

    ours = reordered(options)
    if types[1] == torch.int32:
        explain(ours, theirs)
    if zero_points and not torch.equal(ours, theirs):
        rest = {name: value for name, value in options.items() if "zero_point" not in name}
        if torch.equal(reordered(rest), theirs):
            raise KnownError("oneDNN leaves zero points out where it transposes 8x8 bytes")
    assert_equal(ours, theirs)


def explain(ours: Tensor, theirs: Tensor) -> None:
    """The two differences that there are among large numbers of int32."""
    below = 2**31 - 128  # the largest number of float32 below 2^31
    saturated = (theirs == below) & (ours == 2**31 - 1)
    elsewhere = (ours.double() - theirs.double()).abs()[~saturated]
    if bool(saturated.any()) and not bool(elsewhere.any()):
        raise KnownError("oneDNN's int32 saturate at 2147483520, ours at 2147483647")
    in_float32 = theirs.double().abs()[~saturated] * 2.0**-23
    if bool(elsewhere.any()) and bool((elsewhere <= in_float32).all()):
        raise KnownError("int32 beyond 2^24 pass through float32 on one side alone")


def reorders() -> Iterator[Case]:
    types = ("f32", "bf16", "f16", "s32", "s8", "u8")
    pairs = [*itertools.product(types, types)]
    for (i, problem), pair in itertools.product(enumerate(REORDERS), pairs):
        name = f"{problem}, {pair[0]} to {pair[1]}"
        kinds = (BY_NAME[pair[0]], BY_NAME[pair[1]])
        yield Case("reorder", name, partial(check_reorder, problem, kinds))
        if math.prod(problem[0]) > 20000:
            continue
        attributes: dict[str, dict[str, Any]] = {
            "scales": {"scaled": "common"},
            "scales per channel": {"scaled": "b"},
            "zero points": {"zero_points": True},
            "a sum": {"beta": 0.5},
        }
        if i in (0, 1, 20, 24, 25):
            attributes |= {
                "scales of two dimensions": {"scaled": "ab"},
                "scales, zero points": {"scaled": "b", "zero_points": True},
                "scales, a sum": {"scaled": "b", "beta": 0.5},
                "all": {"scaled": "b", "beta": 0.5, "zero_points": True},
            }
        for words, options in attributes.items():
            yield Case(
                "reorder with attributes",
                f"{name}, {words}",
                partial(check_reorder, problem, kinds, **options),
            )


class Problem:
    """Tensors of a convolution: of the logical sizes in NCX and OIX, dense in the order of tags."""

    def __init__(self, shape: Convolution, last: bool) -> None:
        self.axes = shape.axes()
        columns = zip(*self.axes)
        self.size, self.kernel, self.strides, self.begin, self.end, self.dilations, self.out = (
            columns
        )
        self.groups, self.last = shape.groups, last
        self.src = (2, shape.inputs, *self.size)
        self.dst = (2, shape.outputs, *self.out)
        self.weights = (shape.outputs, shape.inputs // shape.groups, *self.kernel)
        self.tag = plain(shape.rank + 2, last)
        self.grouped = (shape.groups, shape.outputs // shape.groups, *self.weights[1:])
        letters = "abcdef"[: shape.rank + 3]
        self.weights_tag = letters[3:] + letters[2] + letters[:2] if last else letters
        dense = [d - 1 for d in self.dilations]
        spatial = map(numbers, (self.strides, dense, self.begin, self.end))
        self.spatial = CSpatial(*spatial, shape.rank)

    def call(self, which: str, tensors: dict[str, Tensor], of: dict[str, CQuantization]) -> None:
        """oneDNN's primitive; the result is written into its tensor."""

        def pointer(name: str, tag: str, sizes: Sequence[int]) -> Any:
            return byref(described(tensors[name], tensors[name].dtype, tag, sizes))

        bias = tensors.get("bias")
        described_bias = CTensor(b"f32", None, numbers([self.dst[1]]), 1, None)
        if bias is not None:
            described_bias = CTensor(
                NAMES[bias.dtype].encode(), None, numbers(bias.shape), 1, bias.data_ptr()
            )
        call(
            "convolution",
            which.encode(),
            pointer("src", self.tag, self.src),
            pointer("weights", self.weights_tag, self.grouped),
            byref(described_bias),
            pointer("dst", self.tag, self.dst),
            byref(self.spatial),
            *(byref(of.get(name, quantization())) for name in ("src", "weights", "dst")),
        )

    def dense(self, name: str, tensor: Tensor) -> Tensor:
        """In oneDNN's order."""
        if name == "weights":
            return laid_out(tensor.reshape(self.grouped), self.weights_tag)
        return laid_out(tensor, self.tag)

    def view(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor in oneDNN's order, with the dimensions of our formats."""
        if name == "weights":
            ours = logical(tensor, self.weights_tag).flatten(0, 1)
            return ours.movedim((1, 0), (-2, -1)) if self.last else ours
        ours = logical(tensor, self.tag)
        return ours.movedim(1, -1) if self.last else ours

    def attributes(self) -> dict[str, Any]:
        return {
            "strides": self.strides,
            "pads_begin": self.begin,
            "pads_end": self.end,
            "dilations": self.dilations,
            "groups": self.groups,
            "data_format": "NXC" if self.last else "NCX",
            "weights_format": "XIO" if self.last else "OIX",
        }


def check_convolution(shape: Convolution, last: bool, dtype: torch.dtype, which: str) -> None:
    problem = Problem(shape, last)
    made = {"forward": "dst", "backward_data": "src", "backward_weights": "weights"}[which]
    tensors = {}
    for seed, name in enumerate(("src", "weights", "dst")):
        value = random_image(getattr(problem, name), dtype, seed)
        tensors[name] = problem.dense(name, torch.zeros_like(value) if name == made else value)
    views = {name: problem.view(name, tensor) for name, tensor in tensors.items()}
    options = problem.attributes()
    if which == "forward":
        tensors["bias"] = random_image([shape.outputs], dtype, 3)
    problem.call(which, tensors, {})
    if which == "forward":
        ours = D.convolution(views["src"], views["weights"], tensors["bias"], **options)
    elif which == "backward_data":
        arguments = (views["dst"], views["weights"], problem.size)
        ours = OPS.convolution_backward_data(*arguments, **options)
    else:
        arguments = (views["dst"], views["src"], problem.kernel)
        ours = OPS.convolution_backward_weights(*arguments, **options)
    # Sums of a few thousand products, in another order: a few more roundings than in a resize.
    assert_close(ours, problem.view(made, tensors[made]), sums=1e-5, roundings=2)


def check_integers(
    shape: Convolution, last: bool, source: torch.dtype, target: torch.dtype, scaled: bool
) -> None:
    problem = Problem(shape, last)
    generator = torch.Generator().manual_seed(1)
    weights = torch.randint(-63, 64, problem.weights, generator=generator, dtype=torch.int8)
    tensors = {
        "src": problem.dense("src", random_image(problem.src, source)),
        "weights": problem.dense("weights", weights),
        "dst": problem.dense("dst", torch.zeros(problem.dst, dtype=target)),
    }
    views = {name: problem.view(name, tensor) for name, tensor in tensors.items()}
    options, of = problem.attributes(), {}
    if scaled:
        # Powers of two, and a bias in fourths: float32 holds every value on the way.
        exponents = torch.randint(-9, -6, [shape.outputs], generator=generator)
        per_channel, quarter, two = 2.0**exponents, torch.tensor(0.25), torch.tensor(2.0)
        tensors["bias"] = torch.randint(-80, 80, [shape.outputs], generator=generator) / 4
        of["src"] = quantization(quarter, zero_point=2)
        # With groups, the weights' first two dimensions are both output channels.
        of["weights"] = quantization(per_channel, 3)
        of["dst"] = quantization(two, zero_point=0 if target.is_floating_point else 1)
        options |= {
            "src_scale": 0.25,
            "src_zero_point": 2,
            "weights_scale": per_channel,
            "dst_scale": 2.0,
        }
        if target.is_floating_point:
            # Ours knows a scale of the result for integers alone; a power of two is exact.
            del options["dst_scale"]
        else:
            options["dst_zero_point"] = 1
    problem.call("forward", tensors, of)
    ours = D.quantized_convolution(
        views["src"], views["weights"], tensors.get("bias"), dtype=target, **options
    )
    if scaled and target.is_floating_point:
        ours = ours / 2
    assert_equal(ours, problem.view("dst", tensors["dst"]))


def convolutions() -> Iterator[Case]:
    for shape, last in itertools.product((*BASIC, *TAILS, *OTHERS), (False, True)):
        layout = "channels last" if last else "channels first"
        for which in ("forward", "backward_data", "backward_weights"):
            for kind in ("f32", "bf16", "f16"):
                yield Case(
                    f"convolution, {which.replace('_', ' ')}",
                    f"{shape.name}, {layout}, {kind}",
                    partial(check_convolution, shape, last, BY_NAME[kind], which),
                )
        if shape.products() > 4e6:
            continue  # oneDNN has loops alone for bytes in these layouts without VNNI: seconds
        combinations: list[tuple[str, str, bool]] = [
            (source, target, scaled)
            for source in ("u8", "s8")
            for target, scaled in (("s32", False), ("f32", True), ("u8", True), ("s8", True))
        ]
        for source, target, scaled in combinations:
            yield Case(
                "convolution of bytes",
                f"{shape.name}, {layout}, {source} to {target}",
                partial(check_integers, shape, last, BY_NAME[source], BY_NAME[target], scaled),
            )


def cases() -> Iterator[Case]:
    parts: tuple[Callable[[], Iterator[Case]], ...] = (resampling, reorders, convolutions)
    for part in parts:
        yield from part()
