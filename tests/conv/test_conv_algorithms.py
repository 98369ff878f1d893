"""Winograd's algorithm against float64, and the choice of an algorithm."""

import random
import threading

import pytest
import torch
import torch.nn.functional as F
from threads import same_on_threads

import torch_dnnl
import torch_dnnl.functional as D

ALGORITHMS = ("auto", "direct", "winograd", "reference")


def random_problem(choose: random.Random):
    """A convolution with a 3x3 kernel in float64: of images or of volumes, plane by plane."""
    groups = choose.choice([1, 1, 2, 3])
    ic, oc = groups * choose.choice([1, 5, 8, 17, 33]), groups * choose.choice([1, 6, 16, 19, 49])
    spatial = [choose.randint(3, 23), choose.randint(3, 23)]
    kernel, pads = [3, 3], [[choose.randint(0, 3) for _ in range(2)] for _ in range(2)]
    if choose.random() < 0.2:
        spatial, kernel, pads = [2, *spatial], [1, *kernel], [[0, 0], *pads]
    src = torch.randn(choose.randint(1, 3), ic, *spatial, dtype=torch.float64)
    weights = torch.randn(oc, ic // groups, *kernel, dtype=torch.float64)
    bias = torch.randn(oc, dtype=torch.float64) if choose.random() < 0.5 else None
    return src, weights, bias, pads, groups


def expected(src, weights, bias, pads, groups):
    padded = F.pad(src, [pad for pair in reversed(pads) for pad in pair])
    return (F.conv2d if src.dim() == 4 else F.conv3d)(padded, weights, bias, groups=groups)


def error(actual, reference):
    return ((actual.double() - reference).norm() / reference.norm()).item()


@pytest.fixture
def poison():
    before = torch.are_deterministic_algorithms_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.utils.deterministic.fill_uninitialized_memory = fill
    torch.use_deterministic_algorithms(before)


# Below the error of float32 in large images by tiles of 4x4 outputs.
OF_SMALL_TILES = 5e-7
# Half the bar that oneDNN's own tests have for Winograd in float32; one rounding of other types.
BARS = {torch.float32: 1e-5, torch.bfloat16: 2**-8, torch.float16: 2**-11}


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("weights_format", ["OIX", "XIO"])
@pytest.mark.parametrize("dtype", BARS)
def test_winograd_is_accurate(dtype, data_format, weights_format):
    choose = random.Random(data_format + weights_format)
    torch.manual_seed(0)
    for trial in range(25 if dtype == torch.float32 else 10):
        *tensors, pads, groups = random_problem(choose)
        src, weights, bias = (t if t is None else t.to(dtype).double() for t in tensors)
        src.requires_grad_(), weights.requires_grad_()
        reference = expected(src, weights, bias, pads, groups)
        upstream = torch.randn_like(reference).to(dtype).double()
        grad, weights_grad = torch.autograd.grad(reference, (src, weights), upstream)

        spatial = range(2, src.dim())
        to_data = [0, *spatial, 1] if data_format == "NXC" else list(range(src.dim()))
        to_weights = [*spatial, 1, 0] if weights_format == "XIO" else list(range(src.dim()))
        own = src.detach().to(dtype).permute(to_data)
        if choose.random() < 0.7:
            own = own.contiguous()
        own.requires_grad_()
        own_weights = weights.detach().to(dtype).permute(to_weights).requires_grad_()
        result = D.convolution(
            own,
            own_weights,
            None if bias is None else bias.to(dtype),
            pads_begin=[begin for begin, _ in pads],
            pads_end=[end for _, end in pads],
            groups=groups,
            data_format=data_format,
            weights_format=weights_format,
            algorithm="winograd",
        )
        context = (trial, src.shape, weights.shape, pads, groups)
        assert error(result, reference.detach().permute(to_data)) < BARS[dtype], context
        upstream = upstream.to(dtype).permute(to_data)
        own_grads = torch.autograd.grad(result, (own, own_weights), upstream)
        assert error(own_grads[0], grad.permute(to_data)) < BARS[dtype], context
        assert error(own_grads[1], weights_grad.permute(to_weights)) < BARS[dtype], context


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("weights_format", ["OIX", "OXI", "XIO", "XOI"])
@pytest.mark.parametrize(
    "shape, groups, oc",
    [
        ((3, 150, 7, 9), 1, 200),  # transformed kernels that are too large to be kept
        ((1, 70, 5, 11), 1, 140),  # tiles of 2x2 outputs, as in those marked so
        ((2, 66, 6, 8), 2, 192),
        ((2, 80, 3, 5), 2, 200),  # 2x2
        ((1, 270, 2, 7), 1, 290),  # 2x2, too large to be kept
    ],
)
def test_few_tiles(weights_format, shape, groups, oc):
    """Fewer tiles than channels of outputs, so that inputs are transformed first."""
    torch.manual_seed(0)
    src = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(oc, shape[1] // groups, 3, 3, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(oc, dtype=torch.float64)
    reference = expected(src, weights, bias, ((1, 1), (1, 1)), groups)
    upstream = torch.randn_like(reference)
    (grad,) = torch.autograd.grad(reference, src, upstream)

    order = ["OIX".index(axis) for axis in weights_format]
    laid = torch.empty([weights.flatten(2).shape[i] for i in order])
    own = laid.permute([order.index(i) for i in range(3)]).unflatten(2, (3, 3))
    own.copy_(weights.detach())
    for dtype, bar in ((torch.float32, 5e-6), (torch.bfloat16, BARS[torch.bfloat16])):
        for to_data, name in (([0, 1, 2, 3], "NCX"), ([0, 2, 3, 1], "NXC")):
            rounded = [t.detach().to(dtype) for t in (src, upstream)]
            x, g = (t.permute(to_data).contiguous() for t in rounded)
            attributes = ([1, 1], [1, 1], [1, 1], [1, 1], "none", groups, name, "OIX", "winograd")
            own_dtype = own.to(dtype)  # with the same strides
            # Weights that come again may have been kept.
            for _ in range(3):
                y = torch.ops.torch_dnnl.convolution(x, own_dtype, bias.to(dtype), *attributes)
                back = torch.ops.torch_dnnl.convolution_backward_data(
                    g, own_dtype, list(shape[2:]), *attributes
                )
                roundings = 1 if dtype == torch.float32 else 2  # of inputs as well
                assert error(y, reference.detach().permute(to_data)) < roundings * bar
                assert error(back, grad.permute(to_data)) < roundings * bar


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize(
    "shape, groups, oc",
    [
        ((1, 720, 28, 29), 8, 720),  # kernels of a few groups at a time
        ((3, 600, 4, 300), 2, 512),  # inputs of some tiles of one group
        ((2, 330, 2, 525), 1, 512),  # of some tiles of 2x2 outputs
        ((2, 1160, 9, 9), 1, 64),  # kernels that take more than inputs, for one panel
    ],
)
def test_wide_layers_in_parts(data_format, shape, groups, oc):
    """What would take much memory at once: values, and the same bits for any number of threads."""
    torch.manual_seed(0)
    src, weights = torch.randn(shape), torch.randn(oc, shape[1] // groups, 3, 3)
    upstream = torch.randn(shape[0], oc, *shape[2:])
    # Exact enough in float32: sums in blocks, beside bars of ten times their error.
    with torch_dnnl.conv_algorithm("direct"):
        result = D.conv2d(src.requires_grad_(), weights, padding=1, groups=groups)
        (grad,) = torch.autograd.grad(result, src, upstream)
    to_data = [0, 2, 3, 1] if data_format == "NXC" else [0, 1, 2, 3]
    x, g = (t.detach().permute(to_data).contiguous() for t in (src, upstream))
    attributes = ([1, 1], [1, 1], [1, 1], [1, 1], "none", groups, data_format, "OIX", "winograd")
    ops = torch.ops.torch_dnnl
    y, back = same_on_threads(
        lambda: (
            ops.convolution(x, weights, None, *attributes),
            ops.convolution_backward_data(g, weights, list(shape[2:]), *attributes),
        )
    )
    assert error(y, result.detach().double().permute(to_data)) < 5e-6
    assert error(back, grad.double().permute(to_data)) < 5e-6


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize(
    "n, ic, oc, size",
    [
        (3, 40, 50, (2, 37)),
        (2, 16, 33, (21, 2)),
        (1, 90, 70, (5, 6)),
        (1, 33, 20, (9, 10)),
        (40, 35, 24, (2, 2)),
        (3, 17, 80, (1, 1)),
    ],
)
def test_small_tiles_are_accurate(data_format, n, ic, oc, size):
    """Tiles of 2x2 outputs, where these take fewer products: about as exact as direct sums."""
    torch.manual_seed(0)
    src = torch.randn(n, ic, *size, dtype=torch.float64, requires_grad=True)
    weights, bias = torch.randn(oc, ic, 3, 3), torch.randn(oc)
    reference = expected(src, weights.double(), bias.double(), ((1, 1), (1, 1)), 1)
    upstream = torch.randn_like(reference)
    (grad,) = torch.autograd.grad(reference, src, upstream)
    to_data = [0, 2, 3, 1] if data_format == "NXC" else [0, 1, 2, 3]
    x, g = (t.detach().float().permute(to_data).contiguous() for t in (src, upstream))
    attributes = ([1, 1], [1, 1], [1, 1], [1, 1], "none", 1, data_format, "OIX", "winograd")
    y = torch.ops.torch_dnnl.convolution(x, weights, bias, *attributes)
    back = torch.ops.torch_dnnl.convolution_backward_data(g, weights, list(size), *attributes)
    assert error(y, reference.detach().permute(to_data)) < OF_SMALL_TILES
    assert error(back, grad.permute(to_data)) < OF_SMALL_TILES


@pytest.mark.parametrize("algorithm, bar", [("direct", 4e-7), ("winograd", 2e-6)])
def test_sums_over_many_channels_are_accurate(algorithm, bar):
    """They are added up in blocks, whose errors do not grow with the number of channels."""
    torch.manual_seed(0)
    for size in (7, 20):
        src, weights = torch.randn(1, 1536, size, size), torch.randn(32, 1536, 3, 3)
        reference = expected(src.double(), weights.double(), None, ((1, 1), (1, 1)), 1)
        with torch_dnnl.conv_algorithm(algorithm):
            actual = D.conv2d(src, weights, padding=1)
        assert error(actual, reference) < bar


@pytest.mark.usefixtures("poison")
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("weights_format", ["OIX", "XIO"])
@pytest.mark.parametrize(
    "shape, groups, oc, pads",
    [
        ((3, 70, 9, 31), 1, 131, ((1, 1), (1, 1))),  # both sides in blocks of channels
        ((1, 66, 67, 141), 2, 64, ((2, 0), (0, 5))),  # rows longer than a block of tiles; chunks
        ((2, 16, 50, 46), 1, 17, ((4, 4), (3, 0))),  # pads beyond the kernel; chunks
        ((1, 288, 91, 95), 32, 256, ((1, 1), (1, 1))),  # more tiles than are summed at once
    ],
)
def test_weights_gradient_in_blocks(data_format, weights_format, shape, groups, oc, pads):
    """The weights gradient of views, amid NaN, whose strides are of either order."""
    torch.manual_seed(0)
    n, ic, h, w = shape
    out = (h + sum(pads[0]) - 2, w + sum(pads[1]) - 2)
    whole = torch.full((n, ic + 1, h + 2, w + 3), torch.nan)
    src = whole[:, 1:, 1:-1, 2:-1].copy_(torch.randn(shape))
    upstream = torch.randn(out[1], n, out[0], oc).permute(1, 3, 2, 0)
    weights = torch.zeros(oc, ic // groups, 3, 3, dtype=torch.float64, requires_grad=True)
    result = expected(src.double(), weights, None, pads, groups)
    (reference,) = torch.autograd.grad(result, weights, upstream.double())

    to_data = [0, 2, 3, 1] if data_format == "NXC" else [0, 1, 2, 3]
    to_weights = [2, 3, 1, 0] if weights_format == "XIO" else [0, 1, 2, 3]
    for x in (src, src.contiguous(), src.contiguous(memory_format=torch.channels_last)):
        for g in (upstream, upstream.contiguous()):
            actual = torch.ops.torch_dnnl.convolution_backward_weights(
                *(g.permute(to_data), x.permute(to_data), [3, 3], [1, 1]),
                *([begin for begin, _ in pads], [end for _, end in pads], [1, 1], "none"),
                *(groups, data_format, weights_format, "winograd"),
            )
            assert error(actual, reference.permute(to_weights)) < BARS[torch.float32]


def test_weights_gradient_of_many_tiles_is_accurate():
    """Sums over 1568 and 32 tiles, of inputs whose mean is not 0 too."""
    for n, channels, size in [(8, 64, 56), (8, 256, 7)]:
        src, weights = torch.randn(n, channels, size, size), torch.zeros(channels, channels, 3, 3)
        upstream = torch.randn_like(src)
        for x in (src, src.relu()):
            reference = torch.nn.grad.conv2d_weight(
                x.double(), weights.shape, upstream.double(), padding=1
            )
            actual = torch.ops.torch_dnnl.convolution_backward_weights(
                *(upstream, x, [3, 3], [1, 1], [1, 1], [1, 1], [1, 1], "none"),
                *(1, "NCX", "OIX", "winograd"),
            )
            assert error(actual, reference) < 5e-6
            assert (actual - reference).abs().max() < BARS[torch.float32] * reference.abs().max()


def test_automatic_choice_is_winograd_for_wide_layers():
    """The same bits as what it chose."""
    wide, narrow = torch.randn(2, 40, 24, 24), torch.randn(2, 8, 24, 24)
    for src, name, other in [(wide, "winograd", "direct"), (narrow, "direct", "winograd")]:
        weight = torch.randn(48, src.shape[1], 3, 3, requires_grad=True)
        src.requires_grad_()
        results = {}
        for algorithm in ALGORITHMS:
            with torch_dnnl.conv_algorithm(algorithm):
                result = D.conv2d(src, weight, padding=1)
            grads = torch.autograd.grad(result, (src, weight), torch.ones_like(result))
            results[algorithm] = (result.detach(), *grads)
        for i in range(3):
            assert torch.equal(results["auto"][i], results[name][i])
            assert not torch.equal(results["auto"][i], results[other][i])
            for algorithm in ALGORITHMS:
                torch.testing.assert_close(
                    results[algorithm][i], results["reference"][i], rtol=1e-4, atol=2e-3
                )


@pytest.mark.parametrize(
    "n, ic, oc, size, tile",
    [
        (4, 64, 96, (3, 64), 4),
        (4, 64, 96, (2, 64), 2),
        (4, 64, 96, (64, 2), 2),
        (8, 180, 96, (2, 2), 2),  # 12 tiles and kernels of 16 positions; 32 outputs of 6
        (7, 180, 96, (2, 2), None),
        (8, 80, 96, (3, 3), 4),
        (7, 80, 96, (3, 3), None),
        (1, 351, 332, (2, 2), 2),  # 2^20 weights
        (1, 350, 332, (2, 2), None),
        (1, 160, 96, (9, 9), 2),
        (1, 160, 96, (7, 7), 4),
        (1, 160, 96, (9, 6), 2),  # 19 tiles and kernels of 16 positions; 10 of 36
        (1, 160, 96, (9, 8), 4),  # 24 and 10
        (1, 160, 96, (10, 13), 4),
        (320, 16, 96, (3, 3), 4),
        (352, 15, 96, (3, 3), None),
        (320, 16, 15, (5, 5), None),
        (1, 16, 17, (42, 42), 4),
        (1, 16, 17, (40, 42), None),  # fewer products than 2^22
    ],
)
def test_automatic_choice_for_results(n, ic, oc, size, tile):
    """At the edges of what Winograd takes, and of its sizes of tiles."""
    src, weight = torch.randn(n, ic, *size), torch.randn(oc, ic, 3, 3)
    results = {}
    for algorithm in ("auto", "winograd", "direct"):
        with torch_dnnl.conv_algorithm(algorithm):
            results[algorithm] = D.conv2d(src, weight, padding=1)
    assert torch.equal(results["auto"], results["winograd" if tile else "direct"])
    assert not torch.equal(results["winograd"], results["direct"])
    src[0, 0, 0, 0] = torch.nan  # which reaches all outputs of its tile; but for 2x2 that tells
    reached = D.conv2d(src, weight, padding=1)[0, 0].isnan()
    expected_reach = torch.zeros(size, dtype=torch.bool)
    expected_reach[: tile or 2, : tile or 2] = True
    assert torch.equal(reached, expected_reach)


def test_automatic_choice_counts_pixels_that_meet_data():
    src, weight = torch.randn(64, 64, 1, 1), torch.randn(96, 64, 3, 3)
    results = {}
    for algorithm in ("auto", "winograd", "direct"):
        with torch_dnnl.conv_algorithm(algorithm):
            results[algorithm] = D.conv2d(src, weight, padding=2)
    assert torch.equal(results["auto"], results["direct"])
    assert not torch.equal(results["winograd"], results["direct"])


@pytest.mark.parametrize(
    "n, ic, oc, size, name",
    [
        (16, 64, 72, (2, 4), "winograd"),
        (15, 80, 72, (2, 4), "direct"),
        (256, 16, 17, (2, 4), "winograd"),
        (272, 15, 17, (2, 4), "direct"),
        (256, 16, 17, (1, 9), "direct"),
        (256, 16, 17, (9, 1), "direct"),
        (16, 16, 18, (10, 10), "direct"),  # fewer products than 2^22
    ],
)
def test_automatic_choice_for_weights_gradients(n, ic, oc, size, name):
    """At the edges of what Winograd takes."""
    src, upstream = torch.randn(n, ic, *size), torch.randn(n, oc, *size)
    results = {
        algorithm: torch.ops.torch_dnnl.convolution_backward_weights(
            *(upstream, src, [3, 3], [1, 1], [1, 1], [1, 1], [1, 1], "none"),
            *(1, "NCX", "OIX", algorithm),
        )
        for algorithm in ("auto", "winograd", "direct")
    }
    assert torch.equal(results["auto"], results[name])
    assert not torch.equal(results["winograd"], results["direct"])


def test_threads_do_not_change_results():
    src, weight = torch.randn(3, 40, 30, 30), torch.randn(70, 40, 3, 3, requires_grad=True)
    upstream = torch.randn(3, 70, 30, 30)

    def results():
        for layout in (torch.contiguous_format, torch.channels_last):
            result = D.conv2d(src.to(memory_format=layout), weight, padding=1)
            yield from (result, *torch.autograd.grad(result, weight, upstream))

    same_on_threads(results)


def test_derivatives_follow_the_choice():
    src, weight = torch.randn(2, 40, 24, 24, requires_grad=True), torch.randn(48, 40, 3, 3)
    grads = {}
    for algorithm in ("winograd", "direct"):
        with torch_dnnl.conv_algorithm(algorithm):
            result = D.conv2d(src, weight, padding=1)
        grads[algorithm] = torch.autograd.grad(result, src, torch.ones_like(result))[0]
        per_call = D.convolution(
            *(src, weight), data_format="NCX", weights_format="OIX", pads_begin=1,
            algorithm=algorithm, pads_end=1,
        )  # fmt: skip
        assert torch.equal(result, per_call)
    assert not torch.equal(grads["winograd"], grads["direct"])
    torch.testing.assert_close(grads["winograd"], grads["direct"], rtol=1e-4, atol=1e-3)


def test_choice_belongs_to_its_thread_and_context():
    src, weight = torch.randn(2, 40, 24, 24), torch.randn(48, 40, 3, 3)
    automatic = D.conv2d(src, weight)
    seen = []
    with torch_dnnl.conv_algorithm("direct"):
        direct = D.conv2d(src, weight)
        with torch_dnnl.conv_algorithm("auto"):
            assert torch.equal(D.conv2d(src, weight), automatic)
        assert torch.equal(D.conv2d(src, weight), direct)
        thread = threading.Thread(target=lambda: seen.append(D.conv2d(src, weight)))
        thread.start()
        thread.join()
    assert torch.equal(seen[0], automatic) and not torch.equal(automatic, direct)
    assert torch.equal(D.conv2d(src, weight), automatic)


def test_choice_is_traced():
    src, weight = torch.randn(2, 40, 24, 24), torch.randn(48, 40, 3, 3)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(src, weight):
        with torch_dnnl.conv_algorithm("direct"):
            return D.conv2d(src, weight)

    with torch_dnnl.conv_algorithm("direct"):
        direct = D.conv2d(src, weight)
    assert torch.equal(compiled(src, weight), direct)
    assert not torch.equal(direct, D.conv2d(src, weight))


def test_choice_around_compiled_functions():
    """In a thread that has made none before it compiles."""
    src, weight = torch.randn(2, 40, 24, 24), torch.randn(48, 40, 3, 3)
    results = {}

    def run():
        compiled = torch.compile(lambda x, w: D.conv2d(x, w), fullgraph=True, backend="aot_eager")
        results["auto"] = compiled(src, weight)
        with torch_dnnl.conv_algorithm("direct"):
            results["direct"] = compiled(src, weight)
            results["expected"] = D.conv2d(src, weight)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert torch.equal(results["direct"], results["expected"])
    assert not torch.equal(results["direct"], results["auto"])


def test_bad_choices():
    with pytest.raises(ValueError, match=r"^conv_algorithm: expected algorithm .* got 'fft'"):
        torch_dnnl.conv_algorithm("fft").__enter__()
    with pytest.raises(TypeError, match=r"^conv_algorithm: expected algorithm .* got int"):
        torch_dnnl.conv_algorithm(3).__enter__()
    src, weights = torch.ones(1, 4, 4, 1), torch.ones(3, 3, 1, 1)
    for device in ("cpu", "meta"):
        with pytest.raises(ValueError, match=r"^convolution: expected algorithm .* got .fft"):
            D.convolution(src.to(device), weights.to(device), algorithm="fft")
    with pytest.raises(TypeError, match=r"^convolution: expected algorithm to be a str or None"):
        D.convolution(src, weights, algorithm=3)
