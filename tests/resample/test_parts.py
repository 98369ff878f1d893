"""Parts of a resize: the argument `window`, and which rows a part needs."""

import itertools

import pytest
import torch

import torch_dnnl

OPS = torch.ops.torch_dnnl

# Source and result sizes of the first axis; everything that changes which rows are read.
SIZES = ((7, 12), (12, 7), (5, 5), (19, 4), (3, 16), (1, 4), (6, 1))
OPTIONS = [
    {},
    {"mode": "nearest"},
    {"mode": "nearest", "coordinates": "torch_nearest"},
    {"mode": "nearest", "coordinates": "asymmetric", "nearest_mode": "floor"},
    {"mode": "cubic", "coordinates": "align_corners"},
    {"mode": "cubic", "antialias": True},
    {"mode": "lanczos3", "exclude_outside": True},
    {"mode": "area"},
    {"mode": "linear", "coordinates": "tf_crop_and_resize", "roi": [0.3, 0.0, 1.4, 1.0]},
    {"mode": "cubic", "coordinates": "tf_crop_and_resize", "roi": [0.9, 0.0, -0.3, 1.0]},
]
DEFAULTS = {
    "scales": [],
    "mode": "linear",
    "coordinates": "half_pixel",
    "nearest_mode": "round_prefer_ceil",
    "antialias": False,
    "cubic_coeff_a": -0.75,
    "exclude_outside": False,
    "roi": [],
}


def rows(begin, end, of_source, src, dst, options, is_double=True):
    return OPS.resample_rows(
        begin, end, of_source, src, dst, 0, is_double, *(DEFAULTS | options).values()
    )


def window(src, src_begin, dst, dst_begin):
    """Of the first axis; the second one is whole."""
    return [src[0], src[1], src_begin, 0, dst[0], dst[1], dst_begin, 0]


def parts(size):
    bounds = sorted({0, 1, size // 2, size - 1, size})
    return [(a, b) for a, b in itertools.combinations(bounds, 2) if a < b]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_parts_have_the_bits_of_the_whole(sizes, options, dtype):
    src, dst = (sizes[0], 5), (sizes[1], 4)
    call = {"algorithm": "reference", **options}
    fill = {} if "roi" not in options else {"extrapolation_value": 2.5}
    image = torch.randn(2, 3, *src, dtype=dtype)
    whole = OPS.resample(image, dst, **call, **fill)
    for begin, end in parts(dst[0]):
        first, last = rows(begin, end, False, src, dst, options, dtype == torch.float64)
        last = max(last, first + 1)  # of an image without rows there is nothing to give
        part = OPS.resample(
            image[:, :, first:last],
            (end - begin, dst[1]),
            window=window(src, first, dst, begin),
            **call,
            **fill,
        )
        assert torch.equal(part, whole[:, :, begin:end])
    grad = torch.randn(whole.shape, dtype=dtype)
    whole = OPS.resample_backward(grad, src, **call)
    for begin, end in parts(src[0]):
        first, last = rows(begin, end, True, src, dst, options, dtype == torch.float64)
        last = max(last, first + 1)
        part = OPS.resample_backward(
            grad[:, :, first:last],
            (end - begin, src[1]),
            window=window(src, begin, dst, first),
            **call,
        )
        assert torch.equal(part, whole[:, :, begin:end])


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_rows_are_those_with_weights(sizes, options):
    """The matrix of the axis, from the results for single rows."""
    src, dst = (sizes[0], 1), (sizes[1], 1)
    rows_of_source = torch.eye(src[0], dtype=torch.float64).reshape(src[0], 1, src[0], 1)
    result = OPS.resample(rows_of_source, dst, **options)
    matrix = result.reshape(src[0], dst[0]).T  # [output, input]
    for begin, end in parts(dst[0]):
        read = matrix[begin:end].any(0).nonzero().flatten().tolist()
        first, last = rows(begin, end, False, src, dst, options)
        assert set(read) <= set(range(first, last))
        # Taps may be exactly 0, next to others.
        assert last - first <= (read[-1] - read[0] + 1 if read else 0) + 2
    for begin, end in parts(src[0]):
        made = matrix[:, begin:end].any(1).nonzero().flatten().tolist()
        first, last = rows(begin, end, True, src, dst, options)
        assert set(made) <= set(range(first, last))


KERNELS = ("auto", *torch_dnnl.build_info()["kernels"]["cpu"]["resample"])


@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("options", [{}, {"mode": "nearest"}, {"mode": "cubic", "antialias": True}])
def test_every_kernel_computes_parts(options, data_format):
    """Each that takes the whole: forward, of rows 2 to 5, and backward, of rows 3 to 9."""
    dim, channels = (1, 3) if data_format == "NXC" else (2, 1)
    src, dst = (13, 9), (6, 18)

    def image(*spatial):
        shape = [2, *spatial]
        shape.insert(channels, 4)
        return torch.randn(shape)

    computed = {False: 0, True: 0}
    for algorithm, of_source in itertools.product(KERNELS, (False, True)):
        call = {"data_format": data_format, "algorithm": algorithm, **options}
        operator = OPS.resample_backward if of_source else OPS.resample
        begin, end = (3, 9) if of_source else (2, 5)
        made, given = (src, image(*dst)) if of_source else (dst, image(*src))
        try:
            whole = operator(given, made, **call)
        except NotImplementedError:
            continue
        first, last = rows(begin, end, of_source, src, dst, options, False)
        src_begin, dst_begin = (begin, first) if of_source else (first, begin)
        part = operator(
            given.narrow(dim, first, last - first),
            (end - begin, made[1]),
            window=window(src, src_begin, dst, dst_begin),
            **call,
        )
        torch.testing.assert_close(part, whole.narrow(dim, begin, end - begin))
        computed[of_source] += 1
    assert min(computed.values()) >= 2


def test_parts_are_differentiable():
    src, dst = (9, 5), (6, 7)
    first, last = rows(1, 4, False, src, dst, {})
    part = torch.randn(1, 2, last - first, 5, dtype=torch.float64, requires_grad=True)

    def resample(x):
        return OPS.resample(x, (3, 7), window=window(src, first, dst, 1))

    torch.autograd.gradcheck(resample, (part,), check_forward_ad=True, fast_mode=True)
    torch.autograd.gradgradcheck(resample, (part,), fast_mode=True)


@pytest.mark.parametrize(
    "given, message",
    [
        ([9, 5, 0, 0], "window to have four entries per spatial dimension"),
        ([9, 5, 6, 0, 6, 7, 1, 0], "window to have a whole source of at least 11"),
        ([9, 5, 0, 0, 6, 7, 4, 0], "window to have a whole resized image of at least 7"),
        ([9, 5, -1, 0, 6, 7, 1, 0], "every entry of window to be from 0 to"),
        ([9, 5, 2, 0, 6, 7, 1, 0], "window to have rows 1 to 6 of the source"),
    ],
)
def test_windows_that_do_not_fit_are_refused(given, message):
    image = torch.randn(1, 2, 5, 5)
    with pytest.raises(ValueError, match=f"resample: expected {message}"):
        OPS.resample(image, (3, 7), window=given, extrapolation_value=1.0)


def test_huge_wholes_take_no_time():
    """Neither the rows nor the taps of one are run through to know what a part reads."""
    widened = {"mode": "cubic", "antialias": True, "exclude_outside": True}
    with pytest.raises(ValueError, match=f"window to have rows 0 to {2**47} of the source"):
        OPS.resample(
            torch.ones(1, 1, 1), [1], window=[2**47, 0, 1, 0], extrapolation_value=1.0, **widened
        )
    assert rows(0, 2, True, [2**62], [5], widened) == (0, 2)
    outside = {"coordinates": "tf_crop_and_resize", "roi": [2.0, 3.0]}
    assert rows(0, 2**62, False, [5], [2**62], outside) == (0, 0)


def test_rows_outside_of_the_parts_count_as_0():
    """So parts of the source, or of the gradient, give parts of a sum."""
    src, dst, call = (9, 5), (6, 7), {"mode": "cubic", "antialias": True}
    image, grad = torch.randn(1, 2, *src).double(), torch.randn(1, 2, *dst).double()
    cuts = (0, 2, 3, 6)
    results = [
        OPS.resample(image[:, :, a:b], dst, window=window(src, a, dst, 0), **call)
        for a, b in itertools.pairwise((*cuts, 9))
    ]
    torch.testing.assert_close(sum(results), OPS.resample(image, dst, **call))
    results = [
        OPS.resample_backward(grad[:, :, a:b], src, window=window(src, 0, dst, a), **call)
        for a, b in itertools.pairwise(cuts)
    ]
    torch.testing.assert_close(sum(results), OPS.resample_backward(grad, src, **call))


def test_rows_outside_of_the_image_are_refused():
    with pytest.raises(ValueError, match="resample_rows: expected begin and end"):
        rows(2, 7, False, (9, 5), (6, 7), {})
    with pytest.raises(ValueError, match="resample_rows: expected axis"):
        OPS.resample_rows(0, 1, False, [9], [6], 1, False, *DEFAULTS.values())


def test_rows_have_the_factors_of_resample():
    corners = {"coordinates": "align_corners", "scales": [1.0]}
    with pytest.raises(ValueError, match="resample_rows: expected scale_factor"):
        rows(0, 1, False, [1], [2], corners)
    with pytest.raises(ValueError, match="resample_rows: expected scale_factor"):
        rows(0, 1, False, [1], [2], {"antialias": True, "scales": [0.25]})
