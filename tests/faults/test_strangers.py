"""What a stranger may hand over: tags and other texts, sizes, state dicts, pickled modules.

Each is an exception or a right result; none ends the process or takes long."""

import copy
import io
import pickle
import time

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import torch_dnnl
import torch_dnnl.functional as D
from torch_dnnl import formats

IMAGE = torch.randn(1, 4, 6, 5)
WEIGHTS = torch.randn(4, 4, 3, 3)
REFUSED = (ValueError, TypeError, RuntimeError, NotImplementedError)  # UnicodeError is a ValueError

TEXTS = {
    "empty": "",
    "long": "n" * 10**6,
    "digits": "aBcd" + "9" * 10**6 + "b",
    "blocks": "aBcd" + "2b" * 500_000,
    "zeros": "aBcd" + "0" * 10**6 + "16b",
    "NUL": "nchw\0",
    "NUL first": "\0nhwc",
    "unicode": "\uff4e\uff43\uff48\uff57",
    "combined": "nc\u0301hw",
    "surrogate": "nc\udc80hw",
    "right to left": "\u202enhwc",
    "bytes of a code": "\x7fELF\x02\x01",
    "format": "%s%n{0}{argument}",
    "newline": "nhwc\n",
    "case": "NHWC",
}


# Every argument of every function that is a text.
def text_calls(text):
    convolution = {"data_format": "NCX", "weights_format": "OIX"}
    for name in ("data_format", "weights_format", "auto_pad", "activation"):
        options = convolution | {name: text}
        yield name, lambda o=options: D.convolution(IMAGE, WEIGHTS, **o)
        yield name, lambda o=options: D.convolution_transpose(IMAGE, WEIGHTS, **o)
    yield "padding", lambda: D.conv2d(IMAGE, WEIGHTS, padding=text)
    yield "mode", lambda: D.interpolate(IMAGE, scale_factor=2, mode=text)
    for name in ("mode", "coordinates", "nearest_mode", "data_format"):
        yield name, lambda n=name: D.resample(IMAGE, scale_factor=2, **{n: text})
    for name in ("dst_format", "src_format"):
        yield name, lambda n=name: D.reorder(IMAGE, **{n: text})
        yield name, lambda n=name: D.fake_reorder(IMAGE, dtype=torch.int8, **{n: text})
    yield "compensation", lambda: D.reorder(IMAGE.to(torch.int8), compensation=text)
    yield "tag", lambda: formats.parse(text)
    ops = torch.ops.torch_dnnl
    yield "algorithm", lambda: ops.resample(IMAGE, [3, 3], algorithm=text)
    yield "algorithm", lambda: ops.reorder(IMAGE, algorithm=text)
    yield (
        "algorithm",
        lambda: ops.convolution(
            *(IMAGE, WEIGHTS), data_format="NCX", weights_format="OIX", algorithm=text
        ),
    )
    yield (
        "activation",
        lambda: ops.convolution_fused_backward(
            *(IMAGE, IMAGE, text, IMAGE, WEIGHTS, [6, 5], [3, 3])
        ),
    )


def is_refused(call):
    try:
        call()
    except REFUSED:
        return True
    return False


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_texts(text):
    for name, call in text_calls(text):
        start = time.perf_counter()
        assert is_refused(call), name
        assert time.perf_counter() - start < 5, name


LETTERS = st.sampled_from("abcdefghijklmnopstwxABCDEFGNCHWIO0123456789 \0é")
BLOCKS = st.lists(st.tuples(st.integers(0, 70), st.sampled_from("abcdefz")), max_size=5)


def tag_of(order, blocks):
    blocked = {dim for _, dim in blocks}
    outer = "".join(dim.upper() if dim in blocked else dim for dim in order)
    return outer + "".join(f"{size}{dim}" for size, dim in blocks)


TAGS = st.one_of(
    st.text(LETTERS, max_size=24),
    st.text(max_size=12),
    st.builds(tag_of, st.integers(1, 13).flatmap(
        lambda n: st.permutations("abcdefghijklm"[:n])), BLOCKS),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(TAGS)
@example("a1a")
@example("A2147483647a")
@example("A65536a65536a")
def test_tags(tag):
    """A tag says one thing and is written in one way, or a ValueError says what is wrong."""
    try:
        format = formats.parse(tag)
    except UnicodeError:  # no text of UTF-8
        return
    except ValueError as error:
        if ": expected " not in str(error):
            raise
        return
    assert sorted(format.order) == list(range(format.ndim))
    again = formats.parse(str(format))
    assert again == format
    size = [2] * format.ndim
    shape = format.physical_shape(size)
    if torch.Size(shape).numel() > 10_000:
        return
    x = torch.arange(2.0**format.ndim).view(size)
    moved = D.reorder(x, tag)
    assert tuple(moved.shape) == shape
    back = D.reorder(moved, "".join("abcdefghijkl"[: format.ndim]), src_format=tag, size=size)
    assert torch.equal(back, x)


HUGE = [2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, 10**30]


@pytest.mark.parametrize("number", [*HUGE, *(-n for n in HUGE), 0, -1])
def test_sizes(number):
    """Sizes that no memory has, and numbers that do not fit. What is refused takes no memory."""
    nothing, blocked = torch.empty(0, 4, 6, 5), IMAGE.reshape(1, 1, 6, 5, 4)
    for call in (
        lambda: D.interpolate(IMAGE, size=(number, 3)),
        lambda: D.interpolate(IMAGE, scale_factor=float(number) * 2**32),
        lambda: D.resample(nothing, size=(number, number)),
        lambda: D.reorder(IMAGE, "nchw", src_format="nChw4c", size=(number, 4, 6, 5)),
        lambda: D.reorder(blocked, "nchw", src_format="nChw4c", size=(number,) * 4),
        lambda: D.reorder(IMAGE, f"aBcd{number}b"),
        lambda: D.conv2d(IMAGE, WEIGHTS, padding=number),
        lambda: D.conv2d(IMAGE, WEIGHTS, padding=[(number, number), (0, 0)]),
        lambda: D.conv2d(IMAGE, WEIGHTS, stride=number, groups=number),
        lambda: D.conv2d(IMAGE, WEIGHTS, groups=number),
        lambda: D.conv2d(IMAGE, WEIGHTS, dilation=number, padding=number),
        lambda: D.conv_transpose2d(IMAGE, WEIGHTS, output_padding=number),
        lambda: D.conv_transpose2d(IMAGE, WEIGHTS, stride=number),
        lambda: torch.ops.torch_dnnl.convolution_backward_data(IMAGE, WEIGHTS, [number, number]),
        lambda: torch.ops.torch_dnnl.convolution_backward_weights(IMAGE, IMAGE, [number, number]),
        lambda: torch.ops.torch_dnnl.resample_backward(IMAGE, [number, number]),
    ):  # fmt: skip
        start = time.perf_counter()
        with torch.profiler.profile(profile_memory=True) as profile:
            try:
                result = call()
            except (*REFUSED, OverflowError, MemoryError):
                result = None
        assert time.perf_counter() - start < 5
        # A result is of nothing, or is small.
        assert result is None or result.numel() < 10**6
        events = profile.profiler.kineto_results.events()
        assert max((e.nbytes() for e in events if e.name() == "[memory]"), default=0) < 10**7


def layers():
    layers = torch_dnnl.nn
    torch.manual_seed(0)
    yield layers.Conv2d(4, 4, 3, padding="same_upper"), IMAGE
    yield layers.ConvTranspose2d(4, 4, 3), IMAGE
    yield layers.Conv(2, 4, 4, 3, data_format="NCX", activation="silu"), IMAGE
    yield layers.Reorder("nhwc", dtype=torch.int8, dst_scale=torch.rand(1, 4, 1, 1) + 0.1), IMAGE
    quantized = layers.QuantizedConv2d(4, 4, 3, src_scale=0.1, dst_scale=0.1)
    yield quantized, (IMAGE * 50).to(torch.int8)


LAYERS = list(layers())


def name_of(layer):
    return type(layer).__name__


def tampered(value):
    """Values in the place of a tensor."""
    yield value.new_zeros(0)
    yield value.new_zeros(3, 5, 2)
    yield value.new_zeros(())
    yield value.to(torch.complex64)
    yield value.to(torch.int64)
    yield value.to(torch.float64) * torch.nan
    yield torch.full_like(value, 1e30 if value.is_floating_point() else 100)
    yield value.to("meta")
    yield value.to_sparse()
    yield value[:1].expand(2**40, *value.shape[1:]) if value.dim() else value.expand(2**40)
    yield None
    yield "weights"


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
@pytest.mark.parametrize("assign", [False, True], ids=["copied", "assigned"])
@pytest.mark.parametrize("layer, x", LAYERS, ids=[name_of(layer) for layer, _ in LAYERS])
def test_state_dicts(layer, x, assign):
    """Wrong shapes, types, devices and values: load_state_dict refuses them, or the next call does,
    or it computes with them."""
    for key, value in layer.state_dict().items():
        for instead in tampered(value):
            victim, twin = copy.deepcopy(layer), copy.deepcopy(layer)
            state = {**victim.state_dict(), key: instead}
            try:
                victim.load_state_dict(state, assign=assign)
                y = victim(x)
            except (*REFUSED, AttributeError, KeyError):
                continue
            if instead.dtype != value.dtype and assign:
                continue  # a copy would be of other values
            with torch.no_grad():
                dict([*twin.named_parameters(), *twin.named_buffers()])[key].copy_(instead)
            torch.testing.assert_close(y, twin(x), rtol=0, atol=0, equal_nan=True)
    for state in ({}, {**layer.state_dict(), "extra": torch.ones(3)}, {"weight.": torch.ones(1)}):
        with pytest.raises(RuntimeError, match=r"Missing key|Unexpected key"):
            copy.deepcopy(layer).load_state_dict(state)


ATTRIBUTES = {
    "stride": [0, (0, 0), (-1, -1), (2**62, 1), "1", None, (1,) * 9, (1.5, 1)],
    "padding": [-1, (-1, -1), (2**62, 2**62), "any", None, ((1, 2), 3), [(2**70, 0), (0, 0)]],
    "dilation": [0, (0, 1), (2**62, 2**62), None],
    "groups": [0, -1, 3, 2**40, None, "1"],
    "padding_mode": ["mirror", None],
    "kernel_size": [(0, 0), (2**40, 1), None],
    "output_padding": [(-1, -1), (2**62, 0), None],
    "data_format": ["NCHW", "", None, "NXC"],
    "weights_format": ["IO", None, "XIO"],
    "auto_pad": ["same", None],
    "activation": ["swish", 1],
    "strides": [0, (2**62,) * 2, None],
    "pads_begin": [-1, 2**62, None],
    "dst_format": ["nhw", "a" * 10**5, "aBcd2147483647b", None],
    "dtype": [torch.complex64, torch.int64, None, "int8"],
    "dst_scale": [0.0, float("nan"), "1", torch.zeros(7)],
    "dst_zero_point": [300, float("inf")],
    "_pads": [None, (-5, -5), 2**62],
}


@pytest.mark.parametrize("layer, x", LAYERS, ids=[name_of(layer) for layer, _ in LAYERS])
def test_pickled_modules(layer, x):
    """Of any attributes: the operator checks what a call is made with."""
    tried = 0
    for name in ATTRIBUTES.keys() & vars(layer).keys():
        for value in ATTRIBUTES[name]:
            victim = copy.deepcopy(layer)
            victim.__dict__[name] = value
            again = pickle.loads(pickle.dumps(victim))
            tried += 1
            try:
                y = again(x)
            except (*REFUSED, OverflowError, AttributeError):
                continue
            assert y.numel() < 10**6
    assert tried >= 4


def test_weights_only_loads_no_module():
    """torch.load runs what a pickle says, but not as it is called by default."""
    file = io.BytesIO()
    torch.save(torch_dnnl.nn.Conv2d(1, 1, 1), file)
    file.seek(0)
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        torch.load(file)
    for layer, _ in LAYERS:
        file = io.BytesIO()
        torch.save(layer.state_dict(), file)
        file.seek(0)
        assert torch.load(file).keys() == layer.state_dict().keys()
