"""Winograd's algorithm against float64, and the choice of an algorithm."""

import random
import threading

import pytest
import torch
import torch.nn.functional as F

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


# The bar that oneDNN's own tests have for Winograd in float32; one rounding of the other types.
BARS = {torch.float32: 2e-5, torch.bfloat16: 2**-8, torch.float16: 2**-11}


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
        src.requires_grad_()
        reference = expected(src, weights, bias, pads, groups)
        upstream = torch.randn_like(reference).to(dtype).double()
        (grad,) = torch.autograd.grad(reference, src, upstream)

        spatial = range(2, src.dim())
        to_data = [0, *spatial, 1] if data_format == "NXC" else list(range(src.dim()))
        to_weights = [*spatial, 1, 0] if weights_format == "XIO" else list(range(src.dim()))
        own = src.detach().to(dtype).permute(to_data)
        if choose.random() < 0.7:
            own = own.contiguous()
        own.requires_grad_()
        result = D.convolution(
            own,
            weights.to(dtype).permute(to_weights),
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
        (own_grad,) = torch.autograd.grad(result, own, upstream.to(dtype).permute(to_data))
        assert error(own_grad, grad.permute(to_data)) < BARS[dtype], context


def test_automatic_choice_is_winograd_for_wide_layers():
    """The same bits as what it chose."""
    wide, narrow = torch.randn(2, 40, 24, 24), torch.randn(2, 8, 24, 24)
    for src, name, other in [(wide, "winograd", "direct"), (narrow, "direct", "winograd")]:
        weight = torch.randn(48, src.shape[1], 3, 3)
        results = {}
        for algorithm in ALGORITHMS:
            with torch_dnnl.conv_algorithm(algorithm):
                results[algorithm] = D.conv2d(src, weight, padding=1)
        assert torch.equal(results["auto"], results[name])
        assert not torch.equal(results["auto"], results[other])
        for result in results.values():
            torch.testing.assert_close(result, results["reference"], rtol=1e-4, atol=1e-3)


def test_threads_do_not_change_results():
    src, weight = torch.randn(3, 40, 30, 30), torch.randn(70, 40, 3, 3)
    before = torch.get_num_threads()
    for layout in (torch.contiguous_format, torch.channels_last):
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(D.conv2d(src.to(memory_format=layout), weight, padding=1))
        assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])
    torch.set_num_threads(before)


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
