"""interpolate against F.interpolate: modes, sizes, factors, layouts, types, and where it goes
further."""

import random

import pytest
import torch
import torch.nn.functional as F
from layouts import LAYOUTS
from op_db import assert_matches

import torch_dnnl.functional as D

LANCZOS = ["lanczos"] if "lanczos" in F.interpolate.__doc__ else []  # not in torch 2.11
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
    *[(mode, 4, {"antialias": True}) for mode in LANCZOS],
]
every_mode = pytest.mark.parametrize(
    "mode,rank,options",
    INTERPOLATIONS,
    ids=lambda v: "-".join(k for k in v if v[k]) if isinstance(v, dict) else str(v),
)


@every_mode
def test_interpolate_is_torchs(mode, rank, options):
    choose = random.Random(f"{mode}{rank}{options}")
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    for trial in range(60):
        shape = [choose.randint(1, 3), choose.randint(1, 5)]
        shape += [choose.randint(1, 14 if rank < 5 else 6) for _ in range(rank - 2)]
        x = torch.randn(shape, dtype=torch.float64)
        if rank in formats and trial % 2:
            x = x.contiguous(memory_format=formats[rank])
        elif rank == 3 and trial % 2:
            x = x.mT.contiguous().mT
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
        assert_matches(ours, theirs, 1e-5)
        assert ours.stride() == theirs.stride(), (shape, kwargs, options)
        if "scale_factor" in kwargs and any(
            o in (i, 2 * i) for i, o in zip(shape[2:], ours.shape[2:])
        ):
            continue  # torch's gradients ignore the factor of such an axis
        grad = torch.randn_like(theirs)
        (a,), (b,) = (torch.autograd.grad(y, x, grad) for y in (ours, theirs))
        assert_matches(a, b, 1e-5)


def test_antialias_to_one_column():
    """torch's two passes in one call disagree with the same passes in two calls; ours agree."""
    x = torch.randn(1, 1, 10, 7, dtype=torch.float64)
    ours = D.interpolate(x, (15, 1), mode="bilinear", antialias=True)
    rows = F.interpolate(x, (15, 7), mode="bilinear", antialias=True)
    assert_matches(ours, F.interpolate(rows, (15, 1), mode="bilinear", antialias=True))


# What decides which of its nearest kernels ATen uses: sizes from C to the last axis, and layout.
KERNELS = {
    "one": ((2,), None),
    "small": ((2, 1), None),
    "large": ((2, 130), None),
    "large-few-channels-last": ((3, 130), torch.channels_last),
    "large-channels-last": ((4, 130), torch.channels_last),
    "volume": ((4, 1, 2), None),
    "volume-channels-last": ((4, 1, 2), torch.channels_last_3d),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.bfloat16, torch.float64])
def test_nearest_takes_torchs_indices(mode, dtype, kernel):
    """Where rounded index arithmetic differs from exact arithmetic, torch's is matched."""
    (channels, *spatial), memory_format = KERNELS[kernel]
    pairs = [(4, 41), (4, 61), (8, 111), (2, 82), (2, 47), (2, 55), (7, 7), (9, 18), (50, 37)]
    if kernel != "small":
        pairs += [(4, 436), (8, 436), (1000, 37), (37, 1000), (22, 163), (59, 161), (47, 129)]
    for length, size in pairs:
        row = torch.arange(length, dtype=torch.float32).remainder(256).to(dtype)
        x = row.expand(1, channels, *spatial, length).contiguous()
        x = x.contiguous(memory_format=memory_format or torch.contiguous_format)
        factor = (*(1.0 for _ in spatial), size / length * 1.0007)
        for target in (
            {"size": (*spatial, size)},
            {"scale_factor": factor},
            {"scale_factor": factor, "recompute_scale_factor": True},
        ):
            ours, theirs = (f(x, mode=mode, **target) for f in (D.interpolate, F.interpolate))
            assert_same_indices(ours, theirs)


def assert_same_indices(ours, theirs):
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        # ATen's baseline kernels lack the fused multiply-add of its other ones, and so are one
        # index off here and there from torch's own results on every other machine.
        assert (ours.int() - theirs.int()).abs().max() <= 1
    else:
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("mode", ["bicubic", "bilinear", *LANCZOS])
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


# Spatial sizes and targets: larger, smaller, odd, equal, 1.
TARGETS = {
    3: [((7,), (15,)), ((16,), (5,)), ((6,), (6,)), ((1,), (4,)), ((9,), (1,))],
    4: [
        ((5, 7), (11, 14)),
        ((12, 9), (5, 4)),
        ((6, 8), (6, 3)),
        ((1, 2), (3, 5)),
        ((9, 5), (1, 5)),
    ],
    5: [((2, 5, 3), (5, 3, 6)), ((4, 4, 5), (2, 4, 3)), ((3, 1, 2), (1, 2, 2))],
}


def torchs_or_none(x, *args, **kwargs):
    try:
        return F.interpolate(x, *args, **kwargs)
    except (NotImplementedError, RuntimeError):
        return None


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.bfloat16, torch.float16, torch.uint8],
    ids=lambda d: str(d).removeprefix("torch."),
)
@every_mode
def test_every_type_is_torchs(mode, rank, options, dtype):
    """Also the types that torch refuses, as it resizes the same values in float64."""
    for (spatial, size), repeats in zip(TARGETS[rank], (1, 3, 2, 1, 4)):
        x = (torch.randn(2, repeats, *spatial) * 40 + 128).to(dtype)
        ours = D.interpolate(x, size, mode=mode, **options)
        theirs = torchs_or_none(x, size, mode=mode, **options)
        exact = F.interpolate(x.double(), size, mode=mode, **options)
        assert ours.dtype == dtype
        if theirs is not None:
            assert ours.stride() == theirs.stride()
        if mode.startswith("nearest"):
            assert_same_indices(ours, theirs)
        elif dtype != torch.uint8:
            assert_matches(ours, exact)
        elif mode in ("bicubic", "lanczos"):  # round between the axes
            assert (ours - exact.clamp(0, 255)).abs().max() <= 2
        else:
            assert (ours - exact).abs().max() <= 0.5 + 1e-3
            assert theirs is None or (ours.int() - theirs.int()).abs().max() <= 1


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
@every_mode
def test_every_layout_is_torchs(mode, rank, options, layout):
    for spatial, size in TARGETS[rank][:3]:
        x = layout(torch.randn(3, 4, *spatial, dtype=torch.float64))
        ours = D.interpolate(x, size, mode=mode, **options)
        theirs = F.interpolate(x, size, mode=mode, **options)
        assert_matches(ours, theirs, 1e-6)
        assert ours.stride() == theirs.stride()


@pytest.mark.parametrize("align_corners", [False, True])
def test_antialias_in_one_and_three_dimensions(align_corners):
    """torch has it in two; the others are the same passes."""
    options = {"antialias": True, "align_corners": align_corners}
    for mode, flat in [("linear", "bilinear"), ("bicubic", "bicubic")]:
        x = torch.randn(2, 3, 17, dtype=torch.float64)
        expected = F.interpolate(x[:, :, None], (1, 6), mode=flat, **options)[:, :, 0]
        assert_matches(D.interpolate(x, 6, mode=mode, **options), expected)
    for mode, flat in [("trilinear", "bilinear"), ("bicubic", "bicubic")]:
        x = torch.randn(2, 3, 7, 6, 9, dtype=torch.float64)
        planes = F.interpolate(x.flatten(1, 2), (4, 5), mode=flat, **options)
        columns = planes.unflatten(1, (3, 7)).flatten(3)
        expected = F.interpolate(columns.flatten(0, 1)[:, None], (3, 20), mode=flat, **options)
        ours = D.interpolate(x, (3, 4, 5), mode=mode, **options)
        assert_matches(ours, expected.reshape(ours.shape))


@pytest.mark.parametrize("rank", [3, 4, 5])
def test_area_of_one_pixel(rank):
    """Strides that could be those of any layout."""
    for strides in ((6, 1, 6, 6, 6), (6, 1, 1, 1, 1), (1, 1, 1, 1, 1), (6, 1, 36, 6, 1)):
        x = torch.randn(6).as_strided((1, 6, 1, 1, 1)[:rank], strides[:rank])
        for size in ((4, 1, 2)[: rank - 2], (1, 1, 1)[: rank - 2]):
            ours, theirs = (f(x, size, mode="area") for f in (D.interpolate, F.interpolate))
            assert torch.equal(ours, theirs) and ours.stride() == theirs.stride()


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 5, 4), (2, 3, 3, 4, 5)])
def test_area_of_nothing(shape):
    """Only in this mode torch gives an empty result, of its own strides."""
    x = torch.randn(shape)
    rank = len(shape) - 2
    for target in ({"size": 0}, {"size": (0, 3, 2)[:rank]}, {"scale_factor": 0.1}):
        ours, theirs = (f(x, mode="area", **target) for f in (D.interpolate, F.interpolate))
        assert ours.shape == theirs.shape and ours.stride() == theirs.stride()
        assert ours.numel() == 0


@pytest.mark.parametrize("antialias", [None, 0, 1])
def test_antialias_is_a_truth_value(antialias):
    x = torch.randn(1, 2, 9, 8)
    ours, theirs = (
        f(x, 5, mode="bilinear", antialias=antialias) for f in (D.interpolate, F.interpolate)
    )
    assert_matches(ours, theirs.double())


@pytest.mark.parametrize("mode", ["bicubic", "bilinear"])
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"size": (3,)}, ValueError),
        ({"size": (3, 3, 3)}, ValueError),
        ({"scale_factor": (2.0,)}, ValueError),
        ({"scale_factor": torch.tensor(2.0)}, TypeError),
    ],
)
def test_bytes_are_checked(mode, options, error):
    image = torch.zeros(2, 3, 9, 8, dtype=torch.uint8)
    for function in (D.interpolate, torch.nn.functional.interpolate):
        with pytest.raises(error):
            function(image, mode=mode, **options)
