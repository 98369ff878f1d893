"""A row of the table, and what its results are compared by."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

FLOATING = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

# What a result may differ by from the float64 oracle, relative to the largest
# value of the result: a few roundings of the type, more for float32 sums.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 4e-6,
    torch.bfloat16: 2**-8,
    torch.float16: 2**-10,
}


@dataclass(frozen=True)
class Case:
    name: str
    function: str  # of torch_dnnl.functional
    call: Callable[..., Tensor]
    oracle: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    peer: Callable[..., Tensor] | None = None
    scales: tuple[int, ...] = ()  # inputs that stay float32 and positive
    batched: bool = True  # the first dimension of the first input may be empty
    in_matrix: bool = False  # part of the transform matrix that compiles with Inductor

    def inputs(self, dtype=torch.float32, device="cpu", seed=0, requires_grad=False):
        generator = torch.Generator().manual_seed(seed)
        tensors = []
        for i, shape in enumerate(self.shapes):
            values = torch.randn(shape, generator=generator, dtype=torch.float64)
            own = dtype
            if i in self.scales:
                values = values.abs() + 0.5
                own = torch.promote_types(dtype, torch.float32)
            tensors.append(values.to(own).to(device).requires_grad_(requires_grad))
        return tensors


def by_name(case):
    """Readable test ids."""
    return case.name


def assert_matches(actual: Tensor, expected: Tensor, tolerance: float | None = None) -> None:
    """Closeness relative to the largest expected value; shapes must agree."""
    assert actual.shape == expected.shape, f"{tuple(actual.shape)} != {tuple(expected.shape)}"
    if expected.numel() == 0:
        return
    tolerance = TOLERANCE[actual.dtype] if tolerance is None else tolerance
    error = (actual.detach().cpu().double() - expected.detach().double()).abs().max().item()
    limit = tolerance * max(1.0, expected.abs().max().item())
    assert error <= limit, f"error {error:.3g} above {limit:.3g}"
