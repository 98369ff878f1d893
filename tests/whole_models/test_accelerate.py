"""accelerate: what runs ours within it, and that all else is as it is without it."""

import asyncio
import doctest
import threading

import pytest
import torch
import torch.nn.functional as F
from recorder import Recorder
from torch.nn.functional import conv2d as imported_conv2d
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

import torch_dnnl
import torch_dnnl.functional as D
from torch_dnnl import accelerate

with torch.backends.__allow_nonbracketed_mutation():  # torch's tests take it from all others
    from torch.testing._internal.common_methods_invocations import op_db


def ours_in(function, *args, **kwargs):
    with Recorder() as recorder:
        function(*args, **kwargs)
    return recorder.names


def is_accelerated():
    return ours_in(F.conv1d, torch.ones(1, 1, 3), torch.ones(1, 1, 1)) == ["convolution"]


IMAGE, KERNEL = torch.randn(2, 3, 8, 9), torch.randn(4, 3, 3, 3)
LINE, VOLUME = torch.randn(2, 3, 9), torch.randn(2, 3, 5, 4, 6)

# What is called, and the operator that runs in its place.
CALLS = {
    "F.conv1d": (lambda: F.conv1d(LINE, torch.ones(4, 3, 3)), "convolution"),
    "F.conv2d": (lambda: F.conv2d(IMAGE, KERNEL, None, 2, (1, 2)), "convolution"),
    "F.conv3d": (lambda: F.conv3d(VOLUME, torch.ones(4, 3, 1, 2, 3)), "convolution"),
    "torch.conv2d": (
        lambda: torch.conv2d(input=IMAGE, weight=KERNEL, padding="same", dilation=2),
        "convolution",
    ),
    "a function imported before": (lambda: imported_conv2d(IMAGE, KERNEL), "convolution"),
    "unbatched": (lambda: F.conv2d(IMAGE[0], KERNEL, torch.ones(4)), "convolution"),
    "F.conv_transpose1d": (
        lambda: F.conv_transpose1d(LINE, torch.ones(3, 4, 3), stride=2, output_padding=1),
        "convolution_transpose",
    ),
    "torch.conv_transpose2d": (
        lambda: torch.conv_transpose2d(IMAGE, torch.ones(3, 2, 2, 2), None, 2),
        "convolution_transpose",
    ),
    "F.conv_transpose3d": (
        lambda: F.conv_transpose3d(VOLUME, torch.ones(3, 2, 2, 2, 2), dilation=(1, 2, 1)),
        "convolution_transpose",
    ),
    "F.interpolate": (lambda: F.interpolate(IMAGE, scale_factor=1.5, mode="bicubic"), "resample"),
    "area": (lambda: F.interpolate(VOLUME, 3, mode="area"), "resample"),
    "bytes": (lambda: F.interpolate((IMAGE * 9).byte(), 5, mode="bilinear"), "resample"),
    "F.upsample": (lambda: F.upsample(IMAGE, (4, 5), mode="nearest"), "resample"),
    "F.upsample_nearest": (lambda: F.upsample_nearest(LINE, 7), "resample"),
    "F.upsample_bilinear": (lambda: F.upsample_bilinear(IMAGE, 7), "resample"),
    "nn.Conv2d": (
        lambda: torch.nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect")(IMAGE),
        "convolution",
    ),
    "nn.ConvTranspose2d": (
        lambda: torch.nn.ConvTranspose2d(3, 4, 3, 2)(IMAGE, output_size=(18, 19)),
        "convolution_transpose",
    ),
    "nn.Upsample": (
        lambda: torch.nn.Upsample(scale_factor=2, mode="trilinear")(VOLUME),
        "resample",
    ),
    "autocast": (
        lambda: torch.autocast("cpu", torch.bfloat16)(F.conv2d)(IMAGE, KERNEL),
        "convolution",
    ),
}


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("name", CALLS)
def test_ours_runs_instead(name):
    call, operator = CALLS[name]
    torch.manual_seed(0)
    expected = call()
    torch.manual_seed(0)
    with accelerate(), Recorder() as recorder:
        actual = call()
    assert recorder.names == [operator]
    assert (actual.dtype, actual.stride()) == (expected.dtype, expected.stride())
    if actual.dtype == torch.uint8:
        assert (actual.int() - expected.int()).abs().max() <= 1
    else:
        tolerance = 2**-6 if actual.dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    assert not ours_in(call)


class Named(torch.Tensor):
    """A subclass of Tensor, with torch's own __torch_function__."""


class Halved(torch.Tensor):
    """A subclass that has another convolution."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        return result / 2 if func is F.conv2d else result


def jagged():
    return torch.nested.nested_tensor([torch.randn(3, 4, 5), torch.randn(3, 4, 5)])


# Calls that torch takes or refuses by itself.
TORCHS = {
    "complex": lambda: F.conv2d(IMAGE + 1j * IMAGE, KERNEL + 0j),
    "integers": lambda: F.conv1d(torch.ones(1, 1, 4).long(), torch.ones(1, 1, 2).long()),
    "types that differ": lambda: F.conv2d(IMAGE, KERNEL.double()),
    "types of a bias": lambda: F.conv2d(IMAGE, KERNEL, torch.ones(4).half()),
    "sparse": lambda: F.conv2d(IMAGE.to_sparse(), KERNEL),
    "mkldnn": lambda: F.conv2d(IMAGE.to_mkldnn(), KERNEL).to_dense(),
    "nested": lambda: F.interpolate(jagged(), scale_factor=2).to_padded_tensor(0),
    "meta": lambda: F.conv2d(IMAGE.to("meta"), KERNEL.to("meta")),
    "subclass": lambda: F.conv2d(IMAGE.as_subclass(Named), KERNEL),
    "subclass of weight": lambda: F.conv2d(IMAGE, KERNEL.as_subclass(Halved)),
    "subclass, resized": lambda: F.interpolate(IMAGE.as_subclass(Named), 5),
    "quantized": lambda: F.interpolate(
        torch.quantize_per_tensor(IMAGE, 0.1, 0, torch.quint8), 5
    ).dequantize(),
    "nearest of bytes": lambda: F.interpolate((IMAGE * 9).byte(), 5),
    "linear of bytes": lambda: F.interpolate((LINE * 9).byte(), 5, mode="linear"),
    "area of bytes": lambda: F.interpolate((IMAGE * 9).byte(), 5, mode="area"),
    "antialias of half": lambda: F.interpolate(IMAGE.half(), 5, mode="bilinear", antialias=True),
    "antialias of a line": lambda: F.interpolate(LINE, 5, mode="linear", antialias=True),
    "our padding": lambda: F.conv2d(IMAGE, KERNEL, padding="same_upper"),
    "pairs of pads": lambda: F.conv2d(IMAGE, KERNEL, padding=((1, 1), (0, 1))),
    "no pads": lambda: F.conv2d(IMAGE, KERNEL, padding=()),
    "same with a stride": lambda: F.conv2d(IMAGE, KERNEL, padding="same", stride=2),
    "a float for a stride": lambda: F.conv2d(IMAGE, KERNEL, stride=1.5),
    "channels": lambda: F.conv2d(IMAGE, KERNEL[:, :2]),
    "a kernel that is too large": lambda: F.conv2d(IMAGE[..., :2], KERNEL),
    "output padding": lambda: F.conv_transpose2d(IMAGE, KERNEL[:3], output_padding=3),
    "no weight": lambda: F.conv2d(IMAGE),
    "None": lambda: F.conv2d(IMAGE, None),
    "no tensor": lambda: F.interpolate([1.0], 2),
    "no such argument": lambda: F.conv2d(IMAGE, KERNEL, strides=1),
    "no size": lambda: F.interpolate(IMAGE),
    "no such mode": lambda: F.interpolate(IMAGE, 5, mode="quadratic"),
    "an empty result": lambda: F.interpolate(IMAGE, (0, 2)),
}


def outcome(call):
    try:
        return call()
    except Exception as error:
        return error


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", TORCHS)
def test_torch_has_its_own_results_and_errors(name):
    expected = outcome(TORCHS[name])
    with accelerate(), Recorder() as recorder:
        actual = outcome(TORCHS[name])
    assert recorder.names == []
    assert type(actual) is type(expected)
    if isinstance(expected, Exception):
        assert str(actual) == str(expected)
        assert actual.__context__ is None
    elif expected.device.type == "meta":
        assert (actual.shape, actual.stride()) == (expected.shape, expected.stride())
    else:
        assert torch.equal(actual, expected)


SAMPLES = [
    op
    for op in op_db
    if op.name.startswith(("nn.functional.conv", "nn.functional.interpolate", "nn.functional.upsa"))
]


def gradients_of(result, inputs):
    generator = torch.Generator().manual_seed(0)
    seed = torch.randn(result.shape, dtype=result.dtype, generator=generator)
    return torch.autograd.grad(result, inputs, seed)


@pytest.mark.filterwarnings("ignore:.*deprecated", "ignore:Using padding='same'")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("op", SAMPLES, ids=lambda op: op.full_name)
def test_samples_of_torch(op, dtype):
    """Values and gradients of the calls that torch tests itself with."""
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-4}[dtype]
    count = ran = 0
    for sample in op.sample_inputs("cpu", dtype, requires_grad=True):
        call = lambda sample=sample: op(sample.input, *sample.args, **sample.kwargs)  # noqa: E731
        inputs = [x for x in (sample.input, *sample.args, *sample.kwargs.values())
                  if isinstance(x, torch.Tensor)]  # fmt: skip
        expected = call()
        with accelerate(), Recorder() as recorder:
            actual = call()
            actual_gradients = gradients_of(actual, inputs)
        assert actual.stride() == expected.stride(), sample
        torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
        expected_gradients = gradients_of(expected, inputs)
        torch.testing.assert_close(
            actual_gradients, expected_gradients, rtol=tolerance, atol=tolerance
        )
        count += 1
        ran += bool(recorder.names)
    assert ran == count > 0


def test_errors_of_torch():
    """Calls with which torch tests its errors."""
    count = 0
    for op in SAMPLES:
        for sample in op.error_inputs("cpu") if op.error_inputs_func else ():
            call = sample.sample_input
            with accelerate(), pytest.raises(sample.error_type, match=sample.error_regex):
                op(call.input, *call.args, **call.kwargs)
            count += 1
    assert count > 0


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.head = torch.nn.Conv2d(1, 2, 3, padding=1)
        self.up = torch.nn.Upsample(scale_factor=2, mode="bilinear")
        self.back = torch.nn.ConvTranspose2d(2, 1, 2)

    def forward(self, x):
        return self.back(self.up(F.relu(self.head(x))))


OPERATORS = ["convolution", "resample", "convolution_transpose"]


@pytest.mark.parametrize("where", ["within", "inside", "decorator"])
def test_compile(where):
    """One graph with our operators; the same function outside has none."""
    torch._dynamo.reset()
    network, x, graphs = Network(), torch.randn(1, 1, 5, 6), []

    def backend(graph, inputs):
        graphs.append(graph.code)
        return graph

    def run_inside(x):
        with accelerate():
            return network(x)

    function = {
        "within": network,
        "inside": run_inside,
        "decorator": accelerate(lambda x: network(x)),
    }[where]
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    for _ in range(2):
        if where == "within":
            with accelerate():
                actual = compiled(x)
        else:
            actual = compiled(x)
    assert len(graphs) == 1
    assert all(f"torch_dnnl.{operator}." in graphs[0] for operator in OPERATORS)
    torch.testing.assert_close(actual, network(x))
    compiled_outside = torch.compile(network, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled_outside(x), network(x))
    assert "torch_dnnl" not in graphs[-1]


def test_compiled_calls_that_torch_takes():
    """What is not ours is decided without an exception, which a graph could not contain."""
    torch._dynamo.reset()
    names = ("complex", "integers", "nearest of bytes")
    with accelerate():
        for name in names:
            compiled = torch.compile(TORCHS[name], backend="eager", fullgraph=True)
            torch.testing.assert_close(compiled(), TORCHS[name]())


@pytest.mark.parametrize("strict", [False, True])
def test_export(strict):
    network, x = Network().eval(), torch.randn(1, 1, 5, 6)
    with accelerate():
        program = torch.export.export(network, (x,), strict=strict)
    assert all(f"torch_dnnl.{operator}." in program.graph_module.code for operator in OPERATORS)
    torch.testing.assert_close(program.module()(x), network(x))


def test_backward_outside():
    network, x = Network(), torch.randn(1, 1, 5, 6)
    with accelerate():
        loss = network(x).square().sum()
    names = ours_in(loss.backward)
    assert "resample_backward" in names
    assert "convolution_backward_weights" in names
    actual = [p.grad for p in network.parameters()]
    expected = torch.autograd.grad(network(x).square().sum(), list(network.parameters()))
    torch.testing.assert_close(actual, list(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("how", ["Tensor.backward", "autograd.backward", "autograd.grad"])
def test_checkpoints_compute_again_what_they_computed(how, reentrant):
    network = Network()
    x = torch.randn(1, 1, 5, 6, requires_grad=True)
    with accelerate():
        loss = checkpoint(network, x, use_reentrant=reentrant).sum()
        if how == "autograd.grad" and not reentrant:
            names = ours_in(torch.autograd.grad, loss, x)
        elif how == "autograd.backward":
            names = ours_in(torch.autograd.backward, [loss])
        else:
            names = ours_in(loss.backward)
    assert names[:3] == OPERATORS
    assert not is_accelerated()


def test_checkpoints_may_be_computed_again_outside():
    """Then by torch's functions, which save tensors of the same sizes in the same order."""
    network = Network()
    x = torch.randn(1, 1, 5, 6, requires_grad=True)
    with accelerate():
        loss = checkpoint(network, x, use_reentrant=False).square().sum()
    assert "resample" not in ours_in(loss.backward)
    (expected,) = torch.autograd.grad(network(x).square().sum(), x)
    torch.testing.assert_close(x.grad, expected, rtol=1e-4, atol=1e-4)


def test_transforms():
    weight = torch.randn(2, 1, 3, dtype=torch.float64)
    images = torch.randn(4, 1, 6, dtype=torch.float64)

    def loss(weight, image):
        return F.interpolate(F.conv1d(image[None], weight), scale_factor=2).pow(3).sum()

    per_image = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
    expected = per_image(weight, images)
    tangent = torch.randn_like(weight)
    slope = torch.func.jvp(lambda w: loss(w, images[0]), (weight,), (tangent,))
    with accelerate(), Recorder() as recorder:
        torch.testing.assert_close(per_image(weight, images), expected)
        torch.testing.assert_close(
            torch.func.jvp(lambda w: loss(w, images[0]), (weight,), (tangent,)), slope
        )
    assert {"convolution", "resample", "resample_backward"} <= set(recorder.names)
    x = weight.clone().requires_grad_()
    with accelerate():
        assert torch.autograd.gradcheck(lambda w: loss(w, images[0]), x)
        assert torch.autograd.gradgradcheck(lambda w: loss(w, images[0]), x)


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_without_gradients(guard):
    x = IMAGE.clone().requires_grad_()
    with guard(), accelerate():
        assert ours_in(F.conv2d, x, KERNEL) == ["convolution"]
        result = F.conv2d(x, KERNEL)
    assert not result.requires_grad
    assert result.is_inference() == (guard is torch.inference_mode)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast(dtype):
    x, network = torch.randn(1, 1, 5, 6, dtype=dtype), Network()
    with torch.autocast("cpu", torch.bfloat16):
        volume = x.bfloat16()[None]  # averaged in float32
        calls = [lambda: network(x), lambda: F.interpolate(x, 7, mode="bilinear")]
        calls.append(lambda: F.interpolate(volume, 2, mode="area"))
        expected = [call() for call in calls]
        with accelerate():
            actual = [call() for call in calls]
    assert [a.dtype for a in actual] == [e.dtype for e in expected]
    torch.testing.assert_close(actual, expected, rtol=2**-6, atol=2**-6)


def test_nests_and_ends():
    context = accelerate()
    with context:
        with context, accelerate():
            assert is_accelerated()
        assert is_accelerated()
    assert not is_accelerated()
    with pytest.raises(KeyError), accelerate():
        raise KeyError
    assert not is_accelerated()


@pytest.mark.parametrize("decorate", [accelerate, accelerate()], ids=["plain", "with brackets"])
def test_decorators(decorate):
    def outer(depth):
        """Its text."""
        return is_accelerated() and (depth == 0 or outer(depth - 1))

    def steps():
        yield is_accelerated()
        yield is_accelerated()

    outer, steps = decorate(outer), decorate(steps)
    assert outer(2) and not is_accelerated()
    assert outer.__doc__ == "Its text."
    generator = steps()
    assert next(generator)
    assert not is_accelerated()
    assert next(generator)
    generator.close()
    assert not is_accelerated()


async def inner():
    await asyncio.sleep(0)


@pytest.mark.parametrize("decorate", [accelerate, accelerate()], ids=["plain", "with brackets"])
@pytest.mark.parametrize(
    ("function", "got"),
    [
        (inner, "the async function <function inner at .* other tasks would run"),
        (torch.nn.Conv2d, "the class Conv2d"),
        (None, "NoneType"),
        ("cpu", "str"),
    ],
)
def test_what_cannot_be_decorated(decorate, function, got):
    with pytest.raises(
        TypeError, match=f"^accelerate: expected function to be a function, got {got}$"
    ):
        decorate(function)


def test_async_functions():
    async def outer():
        with accelerate():
            here = is_accelerated()
        await inner()
        return here and not is_accelerated()

    assert asyncio.run(outer())


def test_threads():
    results = {}

    def work(name, function):
        results[name] = function()

    with accelerate():
        threads = [
            threading.Thread(target=work, args=("plain", is_accelerated)),
            threading.Thread(target=work, args=("decorated", accelerate()(is_accelerated))),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert is_accelerated()
    assert results == {"plain": False, "decorated": True}


def test_other_modes():
    """Modes around and within see torch's functions, and our own functions are as they were."""

    class Log(TorchFunctionMode):
        def __init__(self):
            super().__init__()
            self.functions = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.functions.append(func)
            return func(*args, **(kwargs or {}))

    with accelerate(), Log() as log:
        assert ours_in(F.conv2d, IMAGE, KERNEL) == ["convolution"]
    assert torch.conv2d in log.functions
    with torch.device("meta"), accelerate():
        assert torch.nn.Conv2d(1, 1, 1).weight.is_meta
    with accelerate():
        assert ours_in(D.conv2d, IMAGE, KERNEL, padding="same_upper") == ["convolution"]
        assert ours_in(torch_dnnl.nn.Conv2d(3, 4, 3), IMAGE) == ["convolution"]
        assert ours_in(D.interpolate, LINE, 4, mode="linear", antialias=True) == ["resample"]


def test_docstring_example():
    public = {"torch": torch, "accelerate": accelerate}
    text = accelerate.__doc__
    examples = doctest.DocTestParser().get_doctest(text, public, "accelerate", None, 0)
    assert examples.examples
    assert doctest.DocTestRunner().run(examples).failed == 0
