"""Resample beyond the table: random problems, exact adjoints, F.interpolate's
semantics over modes, sizes, factors, layouts and types."""

import random

import pytest
import torch
import torch.nn.functional as F
from op_db import assert_matches
from oracles.resample import resample as oracle

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
    pairs = [(choose.randint(1, 300), choose.randint(1, 300)) for _ in range(80)]
    pairs += [(12297, 4099), (4099, 12297), (22, 29), (5000, 5003), (3, 20000), (20000, 3)]
    for length, size in pairs:
        x = torch.randn(1, 1, length, dtype=torch.float64, requires_grad=True)
        y = D.resample(x, size, mode=mode, antialias=mode == "cubic" and length < 5000)
        g = torch.randn_like(y)
        (gx,) = torch.autograd.grad(y, x, g)
        forward, backward = (y * g).sum(), (x * gx).sum()
        assert abs(forward - backward) <= 1e-13 * (y.abs() * g.abs()).sum().clamp(min=1)


INTERPOLATIONS = [
    *[("nearest", rank, {}) for rank in (3, 4, 5)],
    *[("nearest-exact", rank, {}) for rank in (3, 4, 5)],
    *[("area", rank, {}) for rank in (3, 4, 5)],
    *[
        (mode, rank, {"align_corners": align})
        for mode, rank in [("linear", 3), ("bilinear", 4), ("trilinear", 5), ("bicubic", 4)]
        for align in (False, True)
    ],
    *[
        (mode, 4, {"antialias": True, "align_corners": align})
        for mode in ("bilinear", "bicubic")
        for align in (False, True)
    ],
]


@pytest.mark.parametrize(
    "mode,rank,options",
    INTERPOLATIONS,
    ids=lambda v: "-".join(v) if isinstance(v, dict) else str(v),
)
def test_interpolate_is_torchs(mode, rank, options):
    choose = random.Random(f"{mode}{rank}{options}")
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    for trial in range(60):
        shape = [choose.randint(1, 3), choose.randint(1, 5)]
        shape += [choose.randint(1, 14 if rank < 5 else 6) for _ in range(rank - 2)]
        x = torch.randn(shape, dtype=torch.float64)
        if rank in formats and trial % 2:
            x = x.contiguous(memory_format=formats[rank])
        if choose.random() < 0.5:
            kwargs = {"size": [choose.randint(1, 17 if rank < 5 else 8) for _ in shape[2:]]}
        else:
            factors = [max(choose.uniform(0.3, 3.1), 1.01 / n) for n in shape[2:]]
            kwargs = {
                "scale_factor": factors,
                "recompute_scale_factor": choose.choice([None, False, True]),
            }
        x.requires_grad_()
        ours = D.interpolate(x, mode=mode, **kwargs, **options)
        theirs = F.interpolate(x, mode=mode, **kwargs, **options)
        if options.get("antialias") and ours.shape[-1] == 1:
            continue  # torch mixes up the strides of its intermediate image: see the next test
        # torch's gradients, and its nearest forward for channels_last, ignore the factor of an axis
        # that keeps or doubles its size; its other forward kernels do not.
        factor_lost = "scale_factor" in kwargs and any(
            o in (i, 2 * i) for i, o in zip(shape[2:], ours.shape[2:])
        )
        if not (factor_lost and mode == "nearest"):
            assert_matches(ours, theirs, 1e-5)
        assert ours.stride() == theirs.stride(), (shape, kwargs, options)
        if factor_lost:
            continue
        grad = torch.randn_like(theirs)
        (a,), (b,) = (torch.autograd.grad(y, x, grad) for y in (ours, theirs))
        assert_matches(a, b, 1e-5)


def test_antialias_to_one_column():
    """torch's two passes in one call disagree with the same passes in two calls; ours agree."""
    x = torch.randn(1, 1, 10, 7, dtype=torch.float64)
    ours = D.interpolate(x, (15, 1), mode="bilinear", antialias=True)
    rows = F.interpolate(x, (15, 7), mode="bilinear", antialias=True)
    assert_matches(ours, F.interpolate(rows, (15, 1), mode="bilinear", antialias=True))


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.bfloat16, torch.float64])
def test_nearest_takes_torchs_indices(mode, dtype):
    """Where rounded index arithmetic differs from exact arithmetic, torch's is matched."""
    pairs = [(4, 41), (4, 61), (4, 436), (8, 436), (7, 7), (9, 18), (1000, 37), (37, 1000)]
    for length, size in pairs:
        x = torch.arange(length, dtype=torch.float32).remainder(256).to(dtype)[None, None]
        ours, theirs = D.interpolate(x, size, mode=mode), F.interpolate(x, size, mode=mode)
        assert_same_indices(ours, theirs)
        factor = size / length * 1.0007
        ours = D.interpolate(x, scale_factor=factor, mode=mode)
        assert_same_indices(ours, F.interpolate(x, scale_factor=factor, mode=mode))


def assert_same_indices(ours, theirs):
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        # ATen's baseline kernels lack the fused multiply-add of its other ones, and so are one
        # index off here and there from torch's own results on every other machine.
        assert (ours.int() - theirs.int()).abs().max() <= 1
    else:
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
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


@pytest.mark.parametrize("mode", ["bicubic", "lanczos", "bilinear"])
@pytest.mark.parametrize("antialias", [False, True])
def test_bytes_round_as_torchs(mode, antialias):
    """Within 1 of torch, which rounds and saturates between the axes, where filters overshoot."""
    x = torch.randint(2, (2, 3, 23, 31), dtype=torch.uint8) * 255
    if mode == "lanczos" and not antialias:
        return
    for kwargs in (
        {"size": (40, 17)},
        {"size": (9, 60)},
        {"scale_factor": (1.7, 0.6)},
        {"scale_factor": 0.6, "recompute_scale_factor": True},
    ):
        for image in (x, x.contiguous(memory_format=torch.channels_last)):
            ours = D.interpolate(image, mode=mode, antialias=antialias, **kwargs)
            theirs = F.interpolate(image, mode=mode, antialias=antialias, **kwargs)
            assert ours.stride() == theirs.stride()
            assert (ours.int() - theirs.int()).abs().max() <= 1, kwargs


@pytest.mark.parametrize("mode", ["linear", "cubic", "lanczos5"])
def test_widest_antialias(mode):
    """The filter reaches across the image from far outside, or does not reach it any more."""
    x = torch.randn(1, 1, 300, dtype=torch.float64)
    options = {"mode": mode, "antialias": True, "recompute_scale_factor": False}
    ours = D.resample(x, 20, 1 / 500, **options)
    assert_matches(ours, oracle(x, 20, 1 / 500, **options))


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
