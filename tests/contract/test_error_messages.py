"""Bad calls: how values and types of other kinds are named in the messages."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from test_errors import IMAGE, NXC, WEIGHT, XIO

import torch_dnnl.functional as D


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor", "ignore:The PyTorch API of nested")
def test_tensors_of_other_kinds():
    for other in (
        torch.quantize_per_tensor(IMAGE, 0.1, 0, torch.quint8),
        torch.nested.nested_tensor(list(IMAGE)),
        IMAGE.to_sparse(),
    ):
        kinds = r"a Tensor \(strided, neither quantized nor nested\), got a (quan|nest|torch.sp)"
        with pytest.raises(TypeError, match=f"conv2d: expected input to be {kinds}"):
            D.conv2d(other, WEIGHT)
        kinds = kinds.replace(", got", " or None, got")
        with pytest.raises(TypeError, match=f"reorder: expected scale to be a number or {kinds}"):
            D.reorder(IMAGE, scale=other)


def test_long_values_are_cut_short():
    for stride in (["a"] * 10_000, [10**400] * 1000):
        with pytest.raises((TypeError, ValueError), match="conv2d: expected stride") as failure:
            D.conv2d(IMAGE, WEIGHT, stride=stride)
        assert len(str(failure.value)) < 400


def test_halves_of_characters():
    """Such a str has no UTF-8, and reaches no operator."""
    for call in (
        lambda: D.resample(IMAGE, (4, 4), mode="\ud800"),
        lambda: D.reorder(IMAGE, "ab\udfffcd"),
        lambda: D.convolution(NXC, XIO, activation="\ud800"),
    ):
        with pytest.raises(
            ValueError, match=r"^\w+: expected \w+ to have whole characters, got '.*ud"
        ):
            call()


def test_integers_of_other_kinds():
    expected = F.conv2d(IMAGE, WEIGHT, stride=2)
    for two in (np.int64(2), torch.tensor(2), [np.int32(2), 2]):
        result = D.conv2d(IMAGE, WEIGHT, stride=two)
        torch.testing.assert_close(result, expected)


def test_types_have_their_names_in_python():
    for call in (
        lambda: D.reorder(IMAGE, dtype=torch.int64),
        lambda: D.reorder(IMAGE, scale=torch.ones(1, 3, 1, 1, dtype=torch.int64)),
        lambda: D.reorder(IMAGE, accumulate=IMAGE.long()),
        lambda: D.fake_reorder(IMAGE, dtype=torch.int64),
        lambda: torch.ops.torch_dnnl.reorder_backward(IMAGE.long(), IMAGE.shape),
        lambda: torch.ops.torch_dnnl.fake_reorder(IMAGE.long(), torch.int8),
    ):
        with pytest.raises((TypeError, ValueError), match=r"got .*int64"):
            call()
    with pytest.raises(ValueError, match="a value of int8, got 300"):
        D.reorder(IMAGE, dtype=torch.int8, dst_zero_point=300)


def test_other_device():
    with pytest.raises(ValueError, match="device"):
        D.convolution(NXC.to("meta"), XIO)
    with pytest.raises(ValueError, match="convolution: expected residual on the device"):
        D.convolution(
            NXC, XIO, auto_pad="same_upper", residual=NXC.new_empty(2, 5, 4, 4).to("meta")
        )
    with pytest.raises(ValueError, match="device"):
        D.reorder(IMAGE, scale=torch.ones(1, 3, 1, 1, device="meta"))
