"""Division by a scale: rounded as IEEE 754 has it, to the last bit, however it is computed."""

import pytest
import torch

import torch_dnnl.functional as D

EVERY_MANTISSA = torch.arange(2**23, dtype=torch.int32).add(0x3F800000).view(torch.float32)
# The reciprocals of numbers next to powers of 2 are hard to round with; the others are any.
HARDEST = [2 - 2**-23, 2 - 2**-22, 1 + 2**-23, 1.0]
OTHERS = torch.rand(8, generator=torch.Generator().manual_seed(3)).add(1).tolist()


@pytest.mark.parametrize("divisor", HARDEST + OTHERS)
def test_every_mantissa(divisor):
    # Quotients lie between 2^22 and 2^24: integers show all bits of most, and halves' ties.
    scale = divisor * 2.0**-23
    result = D.reorder(EVERY_MANTISSA, dtype=torch.int32, dst_scale=scale)
    expected = (EVERY_MANTISSA / torch.tensor(scale)).round().int()
    assert torch.equal(result, expected)


@pytest.mark.parametrize("scale", [3e-44, 1e-38, 2e-19, 0.3, 5e18, 1e38, -0.3])
@pytest.mark.parametrize("zero_point", [3, -(2.0**30), 2.0**41, -1.5 * 2.0**40])
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32])
def test_numbers_of_every_size(scale, dtype, zero_point):
    exponents = torch.arange(-149, 128, dtype=torch.float64)
    sizes = (2**exponents).float() * 1.7
    edges = torch.tensor([0.0, -0.0, float("inf"), -float("inf")])
    halves = (torch.arange(-300, 300).double() + 0.5) * torch.tensor(scale).double()
    x = torch.cat([sizes, -sizes, edges, halves.float(), torch.tensor([float("nan")])])
    # Numbers have to be values of the type, tensors may have any.
    shift = zero_point if zero_point == 3 else torch.tensor([zero_point])
    result = D.reorder(x, dtype=dtype, dst_scale=scale, dst_zero_point=shift)
    limits = torch.iinfo(dtype)
    quotients = x / torch.tensor(scale) + zero_point
    exact = quotients.double().round().clamp(limits.min, limits.max).nan_to_num(0)
    assert torch.equal(result, exact.to(dtype))
