"""torch's OpInfo: the samples and error inputs that torch tests its own convolutions and resizes
with (torch/testing/_internal/common_methods_invocations.py), in every type that torch has for the
CPU.

Values and gradients count as passed where they are torch's bits, or torch's float64 result of the
same numbers rounded once (`assert_close`). uint8 images of torch, which rounds after each axis in
fixed point, may also be 1 off: docs/resample.md says why. Errors have the type of torch's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

import torch_dnnl.functional as D
from suites import Case, KnownError, OutsideError, assert_close
from torch_dnnl import accelerate

with torch.backends.__allow_nonbracketed_mutation():  # torch's tests take it from all others
    from torch.testing._internal.common_methods_invocations import op_db

TITLE = "torch's OpInfo"

PREFIXES = (
    *("nn.functional.conv", "nn.functional.interpolate", "nn.functional.upsample"),
    *("nn.functional.adaptive_avg_pool", "_upsample_bilinear2d_aa"),
)
OPERATORS = [op for op in op_db if op.name.startswith(PREFIXES)]
FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# accelerate() leaves these to torch: one is no function of torch's, the others are not resizes
# there.
NOT_REPLACED = ("nn.functional.adaptive_avg_pool", "_upsample_bilinear2d_aa")


def source() -> str:
    return f"torch {torch.__version__.split('+')[0]}"


def area(rank: int, input: Tensor, output_size: Any) -> Tensor:
    if input.dim() == rank + 1:
        return area(rank, input[None], output_size)[0]
    sizes = [output_size] * rank if isinstance(output_size, int) else output_size
    spatial = zip(sizes, input.shape[2:], strict=True)
    return D.resample(input, [n if size is None else size for size, n in spatial], mode="area")


def antialiased(
    input: Tensor,
    output_size: Any,
    align_corners: bool,
    scale_factors: Any = None,
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Tensor:
    """ATen's operator. Unlike `interpolate` it takes sizes and, for the positions, factors; with
    align_corners it reads no factors."""
    options: dict[str, Any] = {"mode": "bilinear", "antialias": True}
    if scales_h is None or align_corners:
        return D.interpolate(
            input, output_size, scale_factors, align_corners=align_corners, **options
        )
    factors = {"scale_factor": [scales_h, scales_w], "recompute_scale_factor": False}
    return D.resample(input, output_size, **factors, antialias=True, exclude_outside=True)


def ours_of(op: Any) -> Callable[..., Tensor]:
    """Our function of the same call."""
    name = op.name.removeprefix("nn.functional.")
    if name == "_upsample_bilinear2d_aa":
        return antialiased
    if name.startswith("adaptive_avg_pool"):
        return partial(area, int(name[-2]))
    if name.startswith("upsample_"):
        mode = name.removeprefix("upsample_")
        corners = True if mode == "bilinear" else None
        return lambda input, size=None, scale_factor=None: D.interpolate(
            input, size, scale_factor, mode, align_corners=corners
        )
    return getattr(D, name)


def tensors_of(sample: Any) -> list[Tensor]:
    values = (sample.input, *sample.args, *sample.kwargs.values())
    return [value for value in values if isinstance(value, Tensor)]


def samples(op: Any, dtype: torch.dtype) -> Iterator[tuple[str, Any]]:
    """Those of torch's reference tests, which include the others; each also with gaps in memory."""
    torch.manual_seed(0)
    for i, sample in enumerate(op.reference_inputs("cpu", dtype)):
        yield f"{i}", sample
        yield f"{i}, noncontiguous", sample.noncontiguous()


def gradients(function: Callable[..., Tensor], sample: Any, seed: Tensor) -> list[Tensor]:
    """Of all tensors of the sample, for a given gradient of the result."""
    leaves = [tensor.detach().requires_grad_() for tensor in tensors_of(sample)]
    remaining = iter(leaves)

    def with_leaves(value: Any) -> Any:
        return next(remaining) if isinstance(value, Tensor) else value

    args = [with_leaves(value) for value in (sample.input, *sample.args)]
    kwargs = {name: with_leaves(value) for name, value in sample.kwargs.items()}
    return list(torch.autograd.grad(function(*args, **kwargs), leaves, seed.to(leaves[0].dtype)))


def call(function: Callable[..., Any], sample: Any) -> Any:
    return function(sample.input, *sample.args, **sample.kwargs)


def widened(sample: Any) -> Any:
    return sample.transform(lambda x: x.double() if isinstance(x, Tensor) else x)


def assert_as_torch(ours: Tensor, torchs: Tensor, exact: Callable[[], Tensor]) -> None:
    assert ours.dtype == torchs.dtype, f"{ours.dtype}, not {torchs.dtype}"
    assert ours.stride() == torchs.stride(), f"strides {ours.stride()}, not {torchs.stride()}"
    if torch.equal(ours, torchs):
        return
    if ours.dtype == torch.uint8:
        difference = (ours.int() - torchs.int()).abs()
        if difference.max() <= 1:
            return
        if difference.max() == 2 and (difference == 2).double().mean() <= 1e-4:
            raise KnownError("a byte in 10000 is 2 off torch's fixed point: docs/resample.md")
    assert_close(ours, exact())


def check_values(op: Any, function: Callable[..., Tensor], sample: Any, replaced: bool) -> None:
    try:
        torchs = call(op, sample)
    except NotImplementedError:  # antialias of half types
        if replaced:
            check_error(function, sample, NotImplementedError)
        else:
            assert_close(call(function, sample), call(op, widened(sample)))
        return
    assert_as_torch(call(function, sample), torchs, lambda: call(op, widened(sample)).detach())


def check_gradients(op: Any, function: Callable[..., Tensor], sample: Any) -> None:
    try:
        result = call(op, sample)
    except NotImplementedError:
        raise OutsideError("antialias of half types, which torch does not have") from None
    generator = torch.Generator().manual_seed(0)
    seed = torch.randn(result.shape, dtype=torch.float64, generator=generator).to(result.dtype)
    exact: list[Tensor] = []

    def exact_gradient(i: int) -> Tensor:
        exact.extend(() if exact else gradients(op, widened(sample), seed))
        return exact[i]

    ours, torchs = gradients(function, sample, seed), gradients(op, sample, seed)
    for i, (our, their) in enumerate(zip(ours, torchs, strict=True)):
        assert_as_torch(our, their, lambda i=i: exact_gradient(i))


def check_error(function: Callable[..., Tensor], sample: Any, kind: type[Exception]) -> None:
    try:
        call(function, sample)
    except kind:
        return
    raise AssertionError(f"no {kind.__name__}")


def cases() -> Iterator[Case]:
    for where in ("within accelerate()", "torch_dnnl.functional"):
        for op in OPERATORS:
            replaced = where.startswith("within")
            if replaced and op.name.startswith(NOT_REPLACED):
                continue
            function = accelerate()(op.op) if replaced else ours_of(op)
            name = op.full_name.removeprefix("nn.functional.")
            for dtype in sorted(op.supported_dtypes("cpu"), key=str):
                if not (replaced or dtype in (*FLOATING, torch.uint8)):
                    continue
                for number, sample in samples(op, dtype):
                    label = f"{name}, {dtype}, {number}"
                    run = partial(check_values, op, function, sample, replaced)
                    yield Case(f"values, {where}", label, run)
                    if dtype in FLOATING:
                        run = partial(check_gradients, op, function, sample)
                        yield Case(f"gradients, {where}", label, run)
            if op.error_inputs_func and not op.name.startswith(NOT_REPLACED):
                for i, error in enumerate(op.error_inputs("cpu")):
                    run = partial(check_error, function, error.sample_input, error.error_type)
                    yield Case(f"errors, {where}", f"{name}, {i}", run)
