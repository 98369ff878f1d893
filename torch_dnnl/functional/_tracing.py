"""How a trace of torch.jit takes images of any size.

A trace records the sizes that Python hands to an operator as numbers. So where a result's sizes
depend on those of the images, the call is a function that TorchScript compiles, which computes them
for each input.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

is_tracing: Callable[[], bool] = torch.jit.is_tracing  # type: ignore[attr-defined]


def script_if_tracing(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`torch.jit.script_if_tracing`, with types."""
    scripted: Callable[..., Tensor] = torch.jit.script_if_tracing(function)  # type: ignore[no-untyped-call]
    return scripted
