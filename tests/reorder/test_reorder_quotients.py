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
@pytest.mark.parametrize(
    "zero_point",
    [3, -7.0, 128.0, 2.5, 2.0**22 - 1, -(2.0**22), -(2.0**30), 2.0**41, -1.5 * 2.0**40],
)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32])
@pytest.mark.parametrize("round_before", [False, True])
def test_numbers_of_every_size(scale, dtype, zero_point, round_before):
    exponents = torch.arange(-149, 128, dtype=torch.float64)
    sizes = (2**exponents).float() * 1.7
    edges = torch.tensor([0.0, -0.0, float("inf"), -float("inf")])
    halves = (torch.arange(-300, 300).double() + 0.5) * torch.tensor(scale).double()
    x = torch.cat([sizes, -sizes, edges, halves.float(), torch.tensor([float("nan")])])
    # Numbers have to be values of the type, tensors may have any.
    shift = zero_point if zero_point == 3 else torch.tensor([zero_point])
    result = D.reorder(
        x,
        dtype=dtype,
        dst_scale=scale,
        dst_zero_point=shift,
        round_before_zero_point=round_before,
    )
    limits = torch.iinfo(dtype)
    quotients = x / torch.tensor(scale)
    shifted = (quotients.round() if round_before else quotients) + zero_point
    exact = shifted.double().round().clamp(limits.min, limits.max).nan_to_num(0)
    assert torch.equal(result, exact.to(dtype))


@pytest.mark.parametrize("scale", [0.3, 3e38, float("inf"), float("nan")])
@pytest.mark.parametrize("zero_point", [5.0, 3e38, float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_products_with_any_number(scale, zero_point, dtype):
    """Of integers, some of which are infinite or NaN."""
    x = torch.arange(-128, 128).to(torch.int8)
    numbers = torch.tensor([scale]), torch.tensor([zero_point])
    result = D.reorder(x, dtype=dtype, scale=numbers[0], src_zero_point=numbers[1])
    expected = ((x.float() - zero_point) * torch.tensor(scale)).to(dtype)
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(result.nan_to_num(0), expected.nan_to_num(0))
