"""Whole models on the device at hand, beside torch's own on the CPU in float64.

The models are those that benchmarks/models.py times and whose library is installed, and small ones.
"""

from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec

import pytest
import small_networks
import torch
from models import WAYS, Run, in_layout, relative
from networks import MODELS, Model
from torch import Tensor, nn
from torch.profiler import ProfilerActivity

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
FOUND = small_networks.MODELS | {
    name: model for name, model in MODELS.items() if find_spec(model.library)
}
LAYOUTS = ["nchw", "nhwc"]
CPU = ProfilerActivity.CPU  # where operators are called
# Relative to the norm, of a result and of all gradients: an element on the other side of zero
# before a ReLU is 1e-4 of them. Models of other libraries are deeper, and ten times as far off.
# Training normalizes by a batch of two images, which turns errors of float32 into percents: it is
# compared in float64.
BOUNDS = {torch.float64: (1e-12, 1e-12), torch.float32: (1e-5, 1e-3), torch.bfloat16: (0.02, 0.03)}
TRAINING_BOUNDS = (1e-9, 1e-9)


@dataclass
class Exact:
    model: Model
    module: nn.Module
    x: Tensor
    result: Tensor
    gradients: Tensor


@lru_cache(maxsize=2)  # of large models
def exact(name: str, mode: str) -> Exact:
    torch.manual_seed(0)
    model = FOUND[name]
    module = model.make().double()
    x = torch.randn(model.shape, dtype=torch.float64)
    run = Run(model, module, x, mode, WAYS["eager"])
    with torch.no_grad():
        result = run.result()
    return Exact(model, module, x, result, run.gradients())


def check(name: str, mode: str, layout: str, dtype: torch.dtype, way: str) -> None:
    of_torch = exact(name, mode)
    x = in_layout(of_torch.x.to(DEVICE, dtype), layout)
    run = Run(of_torch.model, of_torch.module, x, mode, WAYS[way])
    with torch.profiler.profile(activities=[CPU]) as profile, torch.no_grad():
        result = run.result()
    called = [event.key for event in profile.key_averages() if "torch_dnnl::" in event.key]
    assert called, "no operator of torch_dnnl ran"
    assert (result.device.type, result.dtype) == (DEVICE, dtype)
    scale = 1 if name in small_networks.MODELS else 10
    of_result, of_gradients = BOUNDS[dtype] if mode == "inference" else TRAINING_BOUNDS
    assert relative(result.cpu(), of_torch.result) < scale * of_result
    assert relative(run.gradients().cpu(), of_torch.gradients) < scale * of_gradients


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
@pytest.mark.parametrize("way", ["accelerate", "convert"])
@pytest.mark.parametrize("name", FOUND)
def test_inference(name, way, dtype, layout):
    check(name, "inference", layout, dtype, way)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("way", ["accelerate", "convert"])
@pytest.mark.parametrize("name", FOUND)
def test_training_step(name, way, layout):
    check(name, "training", layout, torch.float64, way)


@pytest.mark.cuda
@pytest.mark.parametrize("name", FOUND)
def test_compiled_inference(name):
    torch._dynamo.reset()
    check(name, "inference", "nchw", torch.float32, "compiled")
