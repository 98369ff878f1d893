"""resample beyond the table: random problems, exact adjoints, integer and mixed types, extremes."""

import itertools
import random

import pytest
import torch
import torch.nn.functional as F
from op_db import INTEGERS, TOLERANCE, assert_matches
from oracles.resample import resample as oracle
from threads import threads

import torch_dnnl.functional as D

MODES = ["nearest", "linear", "cubic", "lanczos3", "lanczos5", "area"]
RULES = [
    "half_pixel",
    "align_corners",
    "asymmetric",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "tf_half_pixel_for_nn",
    "tf_crop_and_resize",
]
ROUNDING = ["round_prefer_ceil", "round_prefer_floor", "floor", "ceil"]


def random_problem(choose: random.Random):
    rank = choose.choice([1, 1, 2, 3])
    lengths = [choose.randint(1, 9) for _ in range(rank)]
    size = [choose.randint(1, 12) for _ in range(rank)]
    mode, rule = choose.choice(MODES), choose.choice(RULES)
    options = {
        "mode": mode,
        "coordinates": rule,
        "nearest_mode": choose.choice(ROUNDING),
        "antialias": mode not in ("nearest", "area") and choose.random() < 0.4,
        "cubic_coeff_a": choose.choice([-0.5, -0.75]),
        "exclude_outside": choose.random() < 0.4,
        "data_format": choose.choice(["NCX", "NXC"]),
    }
    if rule == "tf_crop_and_resize":
        options["roi"] = [choose.uniform(-0.3, 1.3) for _ in range(2 * rank)]
        options["extrapolation_value"] = 0.25
    elif choose.random() < 0.4 and rule != "align_corners":
        factors = [o / i * choose.uniform(0.9, 1.1) for i, o in zip(lengths, size)]
        options |= {"scale_factor": factors, "recompute_scale_factor": False}
    channels_last = options["data_format"] == "NXC"
    shape = [2, *lengths, 3] if channels_last else [2, 3, *lengths]
    return shape, size, options


@pytest.mark.parametrize("seed", range(40))
def test_random_problems(seed):
    choose = random.Random(seed)
    for _ in range(25):
        shape, size, options = random_problem(choose)
        x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        result, expected = D.resample(x, size, **options), oracle(x, size, **options)
        assert_matches(result, expected, 1e-11)
        grad = torch.randn_like(expected)
        (ours,) = torch.autograd.grad(result, x, grad)
        (theirs,) = torch.autograd.grad(expected, x, grad)
        assert_matches(ours, theirs, 1e-11)


@pytest.mark.parametrize("mode", MODES)
def test_exact_adjoint(mode):
    """<A x, g> = <x, A' g>, also where a product of sizes is beyond 2^24."""
    choose = random.Random(mode)
    pairs = [(choose.randint(1, 300), choose.randint(1, 300)) for _ in range(78)]
    pairs += [(choose.randint(4097, 9000), choose.randint(4097, 9000)) for _ in range(4)]
    pairs += [(12297, 4099), (4099, 12297), (22, 29), (5000, 5003), (3, 20000), (20000, 3)]
    for length, size in pairs:
        options = {
            "mode": mode,
            "coordinates": choose.choice(RULES),
            "antialias": mode not in ("nearest", "area") and choose.random() < 0.5,
            "exclude_outside": choose.random() < 0.5,
            "roi": [choose.uniform(-0.3, 1.3) for _ in range(2)],
        }
        x = torch.randn(1, 1, length, dtype=torch.float64, requires_grad=True)
        y = D.resample(x, size, **options)
        g = torch.randn_like(y)
        (gx,) = torch.autograd.grad(y, x, g)
        forward, backward = (y * g).sum(), (x * gx).sum()
        allowed = 1e-13 * (y.abs() * g.abs()).sum().clamp(min=1)
        assert abs(forward - backward) <= allowed, (length, size, options)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("mode", MODES)
def test_integers_round_to_even_and_saturate(mode, dtype):
    info = torch.iinfo(dtype)
    x = torch.randint(info.min, info.max, (2, 2, 9, 7), dtype=torch.int64).to(dtype)
    result = D.resample(x, (6, 11), mode=mode)
    expected = oracle(x.double(), (6, 11), mode=mode)
    if mode == "nearest":
        assert torch.equal(result.double(), expected)
    # The sums are float32 (float64 for int32): within their error of a tie, either way is right.
    error = (result.double() - expected.round().clamp(info.min, info.max)).abs()
    near_tie = ((expected - expected.floor()) - 0.5).abs() < 1e-6 * info.max
    assert (error[~near_tie] == 0).all() and (error <= 1).all()


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_halves_round_to_even(rank, dtype):
    """Twice the size: sums of quarters are exact, and often end in a half."""
    info = torch.iinfo(dtype)
    shape = (2, 3, *(5, 4, 7)[:rank])
    x = torch.randint(info.min, info.max, shape, dtype=torch.int64).to(dtype)
    expected = oracle(x.double(), scale_factor=2).round()
    for layout in (x, x.movedim(1, -1).contiguous().movedim(-1, 1)):
        assert torch.equal(D.resample(layout, scale_factor=2).double(), expected)


@pytest.mark.parametrize("source", [*INTEGERS, torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_mixed_types(rank, source):
    """An output type other than the input's: rounded once, saturated."""
    shape, size = (2, 3, *(5, 4, 7)[:rank]), (4, 9, 6)[:rank]
    if source in INTEGERS:
        info = torch.iinfo(source)
        x = torch.randint(info.min, info.max, shape, dtype=torch.int64).to(source)
    else:
        x = (torch.randn(shape) * 200).to(source)
    largest = x.double().abs().max().item()
    error = largest * (1e-13 if source in (torch.int32, torch.float64) else 1e-6)
    for mode, dtype in itertools.product(("nearest", "linear", "cubic", "area"), INTEGERS):
        info = torch.iinfo(dtype)
        result = D.resample(x, size, mode=mode, dtype=dtype)
        assert result.dtype == dtype
        low, high = (
            (oracle(x.double(), size, mode=mode) + d).round().clamp(info.min, info.max)
            for d in (-error, error)
        )
        assert ((low <= result) & (result <= high)).all(), (mode, dtype)
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        result = D.resample(x, size, mode="cubic", dtype=dtype)
        assert result.dtype == dtype
        tolerance = max(TOLERANCE[dtype], TOLERANCE[torch.float32] if error > 1e-9 else 0)
        assert_matches(result, oracle(x.double(), size, mode="cubic"), tolerance)


def test_output_type_and_saturation():
    x = torch.tensor([[[-3.0, 0.5, 1.5, 2.5, 300.0, float("nan"), float("inf")]]])
    result = D.resample(x, 7, mode="nearest", dtype=torch.uint8)
    assert result.tolist() == [[[0, 0, 2, 2, 255, 0, 255]]]
    assert D.resample(x.to(torch.uint8), 7, dtype=torch.float16).dtype == torch.float16


def test_many_pixels_in_one_dimension():
    """Positions stay exact where float32 arithmetic is pixels off."""
    length = 300_001
    x = torch.arange(length, dtype=torch.float64)[None, None]
    result = D.resample(x, 2 * length)
    expected = ((torch.arange(2 * length, dtype=torch.float64) + 0.5) / 2 - 0.5).clamp(
        0, length - 1
    )
    assert_matches(result[0, 0], expected, 1e-15)


@pytest.mark.parametrize("mode", ["linear", "cubic", "lanczos5"])
def test_widest_antialias(mode):
    """The filter reaches across the image from far outside, or does not reach it any more."""
    x = torch.randn(1, 1, 300, dtype=torch.float64)
    options = {"mode": mode, "antialias": True, "recompute_scale_factor": False}
    ours = D.resample(x, 20, 1 / 500, **options)
    assert_matches(ours, oracle(x, 20, 1 / 500, **options))


@pytest.mark.parametrize("mode", ["lanczos3", "lanczos5"])
def test_nothing_but_zeros_of_lanczos_inside(mode):
    """The last output lies one pixel beyond the image: its neighbours are zeros, but for rounding,
    which is not to be scaled up."""
    x = torch.tensor([[[1.0, 2.0, 10.0]]], dtype=torch.float64)
    options = {"coordinates": "asymmetric", "exclude_outside": True}
    ours = D.resample(x, 4, 1.0, mode=mode, recompute_scale_factor=False, **options)
    assert_matches(ours, torch.tensor([[[1.0, 2.0, 10.0, 10.0]]], dtype=torch.float64), 1e-15)


@pytest.mark.parametrize("rule", RULES)
def test_factors_at_the_ends_of_float64(rule):
    """Positions overflow; results stay means of pixels."""
    if rule == "align_corners":
        return  # refuses factors that leave no output
    x = torch.rand(1, 2, 5)
    options = {"coordinates": rule, "recompute_scale_factor": False, "extrapolation_value": 0.5}
    for factor in (6e-309, 5e-308, 1e-300, 1e300):
        for roi in ([0.0, 1.0], [1e308, -1e308]):
            y = D.resample(x, 100, factor, roi=roi, **options)
            assert ((y >= 0) & (y <= 1)).all(), (factor, roi)


def test_huge_expanded_image_is_not_copied():
    """No machine has the memory for a copy."""
    x = torch.tensor([2.0]).expand(1, 1, 2**45)
    assert_matches(D.resample(x, 3), torch.full((1, 1, 3), 2.0, dtype=torch.float64), 0)
    assert D.resample(x, 2, mode="nearest").tolist() == [[[2.0, 2.0]]]


def test_more_weights_than_memory():
    """Also where their number is beyond 64 bits: 10 times this length is just below 2**65."""
    x = torch.ones(1, 1, 1).expand(1, 1, 2**65 // 10)
    refused = r"expected sizes .* filter weights"
    with pytest.raises(ValueError, match=f"resample: {refused}"):
        D.resample(x, 1, mode="area")
    with pytest.raises(ValueError, match=f"resample: {refused}"):
        D.resample(x, 2048, mode="lanczos5", antialias=True)
    with pytest.raises(RuntimeError, match=f"interpolate: {refused}"):
        D.interpolate(x, 1, mode="area")
    x = torch.ones(1, 1, 100_000, requires_grad=True)
    y = D.resample(x, 100_000, 1e9, recompute_scale_factor=False).sum()
    with pytest.raises(ValueError, match=f"resample: {refused}"):  # one pixel is read by all
        y.backward()


@pytest.mark.parametrize("mode", ["nearest", "bilinear"])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_results_larger_than_caches(memory_format, mode):
    """40 MB, which is written past the caches, to memory that may lie in huge pages."""
    x = torch.randn(1, 3, 611, 1373).contiguous(memory_format=memory_format)
    result = D.interpolate(x, (1223, 2747), mode=mode)
    assert result.nbytes > 32 << 20
    assert_matches(result, F.interpolate(x.double(), (1223, 2747), mode=mode), 1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8])
@pytest.mark.parametrize("factor", [2, 3])
def test_threads_share_repeated_rows(factor, dtype):
    """Rows that repeat the one above are copied, if the same thread has made that one."""
    x = (torch.randn(2, 3, 37, 45) * 40 + 128).to(dtype)
    for layout in (x, x.contiguous(memory_format=torch.channels_last)):
        expected = x.repeat_interleave(factor, 2).repeat_interleave(factor, 3)
        for count in (1, 2, 5):
            with threads(count):
                assert torch.equal(D.interpolate(layout, scale_factor=factor), expected)
