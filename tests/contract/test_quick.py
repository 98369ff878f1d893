"""The quick way to the operators: which calls take it, and that it is the same operator."""

import threading

import pytest
import torch
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import torch_dnnl.functional as D
from torch_dnnl.functional import _conv, _conv_transpose, _quick, _reorder, _resample

IMAGE, KERNEL = torch.randn(2, 3, 8, 9), torch.randn(3, 3, 3, 3)
BIAS = torch.randn(3)

OPTIONS = {"data_format": "NCX", "weights_format": "OIX"}
PACKED = D.pack_weights(KERNEL, weights_format="OIX")

CALLS = {
    "convolution": lambda: D.convolution(IMAGE, KERNEL, BIAS, strides=2, **OPTIONS),
    "convolution fused": lambda: D.convolution(IMAGE, KERNEL, activation="relu", **OPTIONS),
    "convolution packed": lambda: D.convolution(
        IMAGE, PACKED, activation="elu", alpha=0.5, **OPTIONS
    ),
    "conv2d": lambda: D.conv2d(IMAGE, KERNEL),
    "conv2d of lists": lambda: D.conv2d(IMAGE, KERNEL, BIAS, [2, 1], (1, 2), 1, 1),
    "conv1d": lambda: D.conv1d(IMAGE[:, :, 0], KERNEL[..., 0], None, 2, 1, 2),
    "conv3d": lambda: D.conv3d(IMAGE[..., None], KERNEL[..., None], groups=1),
    "conv_transpose2d": lambda: D.conv_transpose2d(IMAGE, KERNEL, BIAS, 2, (1, 0), 1),
    "conv_transpose1d": lambda: D.conv_transpose1d(IMAGE[..., 0], KERNEL[..., 0], dilation=(2,)),
    "interpolate": lambda: D.interpolate(IMAGE, 5),
    "interpolate by factors": lambda: D.interpolate(IMAGE, None, [0.5, 2], "bicubic"),
    "reorder": lambda: D.reorder(IMAGE, "nhwc"),
    "reorder of types": lambda: D.reorder(IMAGE, "nChw16c", dtype=torch.bfloat16),
    "reorder by numbers": lambda: D.reorder(
        IMAGE, dtype=torch.uint8, dst_scale=0.1, dst_zero_point=3, round_before_zero_point=True
    ),
    "reorder by tensors": lambda: D.reorder(
        IMAGE, scale=BIAS.view(1, 3, 1, 1), src_zero_point=2, accumulate=2 * IMAGE, beta=0.5
    ),
    "reorder along an axis": lambda: D.reorder(
        IMAGE, dtype=torch.int8, dst_scale=BIAS.abs() + 0.01, axis=1
    ),
}


class Watched(TorchDispatchMode):
    """A mode, within which torch.ops is called."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


def refuse(*args, **kwargs):
    raise AssertionError("called through torch.ops")


@pytest.fixture
def no_ops(monkeypatch):
    """torch.ops is not called from the functions."""
    for name in _conv._OPERATORS:
        monkeypatch.setitem(_conv._OPERATORS, name, refuse)
    monkeypatch.setattr(_conv_transpose, "_convolution_transpose", refuse)
    monkeypatch.setattr(_resample, "_resample", refuse)
    monkeypatch.setattr(_reorder, "_reorder", refuse)


@pytest.mark.parametrize("name", CALLS)
def test_plain_calls_take_it(name, no_ops):
    with pytest.raises(AssertionError), Watched():
        CALLS[name]()
    CALLS[name]()


@pytest.mark.parametrize("name", CALLS)
def test_both_ways_are_the_same(name, monkeypatch):
    actual = CALLS[name]()
    with Watched():
        expected = CALLS[name]()
    assert (actual.stride(), actual.dtype) == (expected.stride(), expected.dtype)
    assert torch.equal(actual, expected)


quick_convolution = _quick.quick("convolution")
quick_reorder = _quick.quick("reorder")


class Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "args",
    [
        (),
        (IMAGE,),
        (IMAGE, None),
        (None, KERNEL),
        (IMAGE.as_subclass(Subclass), KERNEL),
        (IMAGE, KERNEL.as_subclass(Subclass)),
        (IMAGE, KERNEL, 1),
        (IMAGE, KERNEL, None, 1.0),
        (IMAGE, KERNEL, None, True),
        (IMAGE, KERNEL, None, 2**70),
        (IMAGE, KERNEL, None, (1, 1.0)),
        (IMAGE, KERNEL, None, (1,)),
        (IMAGE, KERNEL, None, ()),
        (IMAGE, KERNEL, None, "same"),
        (IMAGE, KERNEL, None, 1, 0, 0, 1, b"none"),
        (IMAGE, KERNEL, None, 1, 0, 0, 1, "\ud800"),
        (IMAGE, KERNEL, None, 1, 0, 0, 1, "none", None),
        (IMAGE, KERNEL, None, 1, 0, 0, 1, "none", 1, "NCX", "OIX", "auto", "one more"),
    ],
)
def test_other_arguments_do_not(args):
    assert quick_convolution(*args) is NotImplemented


def test_names():
    options = {"data_format": "NCX", "weights_format": "OIX"}
    expected = D.conv2d(IMAGE, KERNEL, None, 2)
    assert torch.equal(quick_convolution(IMAGE, KERNEL, strides=2, **options), expected)
    assert quick_convolution(IMAGE, KERNEL, stride=2, **options) is NotImplemented
    assert quick_convolution(IMAGE, KERNEL, src=IMAGE) is NotImplemented
    assert quick_reorder(IMAGE, dtype=1) is NotImplemented


def test_modes_and_tracers_see_the_call():
    with BaseTorchFunctionMode():
        assert quick_reorder(IMAGE) is NotImplemented
    traced = torch.jit.trace(lambda x: D.conv2d(x, KERNEL), IMAGE)
    assert "torch_dnnl::convolution" in str(traced.graph)
    x = torch.randn(2, 3, 5, 6)
    assert torch.equal(traced(x), D.conv2d(x, KERNEL))


def test_errors_are_those_of_the_operator():
    for call in (quick_convolution, torch.ops.torch_dnnl.convolution.default):
        with pytest.raises(TypeError, match="convolution: expected weights to have the type of"):
            call(IMAGE, KERNEL.double(), None)


def test_threads_do_not_share_arguments():
    """What one converts, another may replace at once."""
    expected = {s: D.conv2d(IMAGE, KERNEL, None, (s, s)) for s in (1, 2, 3)}
    wrong = []

    def work(stride):
        for _ in range(300):
            if not torch.equal(D.conv2d(IMAGE, KERNEL, None, (stride, stride)), expected[stride]):
                wrong.append(stride)

    threads = [threading.Thread(target=work, args=(stride,)) for stride in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("name", CALLS)
def test_without_it(name, monkeypatch):
    """As in a Python that it was not built for."""
    expected = CALLS[name]()
    monkeypatch.setattr(_quick, "_python", None)
    absent = _quick.quick("convolution")
    for operator in _conv._QUICK:
        monkeypatch.setitem(_conv._QUICK, operator, absent)
    for module, attribute in (
        (_conv_transpose, "_quick_transpose"),
        (_resample, "_quick_resample"),
        (_reorder, "_quick_reorder"),
    ):
        monkeypatch.setattr(module, attribute, absent)
    assert torch.equal(CALLS[name](), expected)
