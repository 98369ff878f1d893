"""torch.compile(backend="torch_dnnl"): what follows a convolution becomes part of it, and what does
not."""

import pytest
import torch
import torch.nn.functional as F
from test_compile_backend import (
    assert_close,
    check_inference,
    check_training,
    compiled,
    images,
    recorded,
)
from torch import nn
from torch._inductor import config


def test_result_before_the_activation_is_used_too():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv1d(4, 4, 3, padding=1)

        def forward(self, x):
            y = self.conv(x) + x
            return y.relu() + 2 * y

    (call,) = check_inference(Model().double(), images(2, 4, 9)).fused
    assert call["keep_preactivation"] and call["activation"] == "relu"


@pytest.mark.parametrize("check", [check_inference, check_training])
def test_activation_of_a_view(check):
    """As in transformers, where tokens follow from pixels."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 6, 3, padding=1)
            self.linear = nn.Linear(6, 3)

        def forward(self, x):
            return self.linear(F.gelu(self.conv(x).flatten(2).transpose(1, 2)))

    (call,) = check(Model().double(), images(2, 4, 5, 6)).fused
    assert call["activation"] == "gelu"
    assert call["keep_preactivation"] == (check is check_training)


@pytest.mark.parametrize("bounds", [nn.ReLU6(), nn.Hardtanh(0.0, 6.0), nn.Hardtanh(0, 6)])
def test_relu6_with_either_kind_of_bounds(bounds):
    model = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), bounds)
    assert check_inference(model, torch.randn(2, 16, 9, 9) * 9).activations == ["relu6"]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.float64])
def test_vectors_of_other_types(dtype):
    """They are part of weights and bias, with the values that they have in the sum."""
    w = torch.randn(16, 16, 3, 3)
    v = torch.full((16, 1, 1), 100).to(dtype)

    def function(x, v):
        y = F.conv2d(x, w, padding=1)
        return ((y - v - v) * v * v / v).to(x.dtype)

    x = torch.randn(2, 16, 20, 20)
    with recorded(), torch.no_grad():
        assert_close(compiled(function)(x, v), function(x, v), x.dtype)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_narrower_types_between_round(dtype):
    w, v = torch.randn(16, 16, 3, 3), torch.rand(16, 1, 1) + 0.5

    def function(x):
        y = F.conv2d(x, w, padding=1)
        return (y * v).to(dtype).to(x.dtype) + v

    x = torch.randn(2, 16, 20, 20)
    with recorded(), torch.no_grad(), config.patch(emulate_precision_casts=True):
        result, expected = compiled(function)(x), function(x)
    # A sum that lies close to the middle of two numbers may be rounded to the other one.
    is_other = (result - expected).abs() > 1e-4
    assert is_other.float().mean() < 5e-3
