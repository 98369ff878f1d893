"""Calls of every operator on small tensors, forward and backward, and on every CPU kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from op_db import CASES
from quantized_problems import problem as quantized_problem
from random_problems import FAMILIES, problem
from torch import Tensor

import torch_dnnl
import torch_dnnl.functional as D

Call = Callable[[], tuple[Tensor, ...]]
KERNELS = torch_dnnl.build_info()["kernels"]["cpu"]


def with_gradients(call: Callable[..., Tensor], inputs: list[Tensor]) -> tuple[Tensor, ...]:
    """The result, and the gradients of its sum."""
    result = call(*inputs)
    gradients = torch.autograd.grad(result, inputs, torch.ones_like(result))
    return result.detach(), *gradients


def rows() -> Iterator[tuple[str, Call]]:
    """Those of op_db, and of what is not differentiable."""
    for case in CASES:
        inputs = case.inputs(requires_grad=True)
        yield case.name, partial(with_gradients, case.call, inputs)
    image = torch.linspace(-3, 3, 2 * 20 * 5 * 3).view(2, 20, 5, 3)
    scale = torch.linspace(0.1, 0.2, 20)
    weights = torch.randint(-128, 128, (32, 20, 3, 3), dtype=torch.int8)
    integer = {"dtype": torch.int8, "dst_scale": scale, "axis": 1}
    yield "quantize", lambda: (D.reorder(image, "nhwc", **integer),)
    yield "block", lambda: (D.reorder(image, "nChw16c", **integer),)
    yield "fake", lambda: (D.fake_reorder(image, **integer),)
    yield "compensate", lambda: D.reorder(weights, "OIhw4i16o4i", compensation="s8s8")
    yield "bytes", lambda: (D.interpolate(weights.view(torch.uint8), size=(7, 2)),)


def problems(count: int) -> Iterator[tuple[str, Call]]:
    """Random ones, that many for each kernel that supports them."""
    for family in FAMILIES:
        for kernel in KERNELS[family]:
            found = 0
            for number in range(20 * count):
                case = problem(family, 5, number)
                if found < count and case.inputs[0].numel() < 50_000:
                    found += yield from _on_kernel(f"{family}-{number}", case, kernel)
    for number in range(count):
        quantized = quantized_problem(number)
        for kernel in KERNELS["quantized_convolution"]:
            call = partial(_one, quantized.run, kernel)
            if _supports(call):
                yield f"quantized-{number}-{kernel}", call


def _on_kernel(name, case, kernel):
    supported = False
    for operator in case.calls:
        call = partial(_one, case.run, operator, kernel)
        if _supports(call):
            supported = True
            yield f"{name}-{operator}-{kernel}", call
    return supported


def _one(run: Callable[..., Tensor], *args: object) -> tuple[Tensor]:
    return (run(*args),)


def _supports(call: Call) -> bool:
    try:
        call()
    except NotImplementedError:
        return False
    return True
