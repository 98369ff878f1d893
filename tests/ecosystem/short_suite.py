"""A few checks of an installed torch_dnnl that need nothing but torch: what a wheel is tried with.

python tests/ecosystem/short_suite.py    # prints how many checks passed
"""

import copy
from importlib.metadata import entry_points, requires, version
from pathlib import Path

import torch
import torch.nn.functional as F

import torch_dnnl
import torch_dnnl.functional as D

CHECKS = []


def check(function):
    CHECKS.append(function)
    return function


def values_and_gradients(ours, torchs, *tensors):
    """Both functions of the tensors agree, and so do the gradients of their results."""
    inputs = [[t.clone().requires_grad_() for t in tensors] for _ in range(2)]
    results = [f(*t) for f, t in zip((ours, torchs), inputs, strict=True)]
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    grad = torch.randn_like(results[0])
    for a, b in zip(*(torch.autograd.grad(r, t, grad) for r, t in zip(results, inputs))):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


@check
def metadata():
    """The version names torch, which is pinned to it; and the backend of compile is found."""
    minor = ".".join(torch.__version__.split(".")[:2])
    assert version("torch_dnnl") == torch_dnnl.__version__
    assert f"+torch{minor}." in torch_dnnl.__version__
    (pinned,) = [r for r in requires("torch_dnnl") if r.startswith("torch") and ";" not in r]
    assert f">={minor}" in pinned and "<" in pinned, pinned
    assert "torch_dnnl" in {e.name for e in entry_points(group="torch_dynamo_backends")}


@check
def files():
    """What C++ programs need is installed, and this is not the source tree."""
    package = Path(torch_dnnl.__file__).parent
    assert not (package.parent / "csrc").exists(), package
    assert (package / "include" / "torch_dnnl.h").exists()
    assert (Path(torch_dnnl.cmake_prefix_path) / "TorchDnnl" / "TorchDnnlConfig.cmake").exists()


@check
def convolution():
    for groups in (1, 8):
        x, w, b = torch.randn(2, 8, 11, 13), torch.randn(16, 8 // groups, 3, 3), torch.randn(16)
        for format in (torch.contiguous_format, torch.channels_last):
            values_and_gradients(
                lambda x, w, b: D.conv2d(x, w, b, stride=2, padding=1, groups=groups),  # noqa: B023
                lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1, groups=groups),  # noqa: B023
                *(x.contiguous(memory_format=format), w, b),
            )


@check
def interpolation():
    for mode in ("nearest", "bilinear", "bicubic"):
        values_and_gradients(
            lambda x: D.interpolate(x, scale_factor=1.7, mode=mode),  # noqa: B023
            lambda x: F.interpolate(x, scale_factor=1.7, mode=mode),  # noqa: B023
            torch.randn(2, 3, 9, 14),
        )


@check
def reordering():
    pixels = torch.randint(256, (2, 5, 6, 3), dtype=torch.uint8).permute(0, 3, 1, 2)
    floats = D.reorder(pixels, "nchw", dtype=torch.float32, scale=1 / 255)
    torch.testing.assert_close(floats, pixels / 255)
    bytes = D.reorder(floats, "nhwc", dtype=torch.uint8, dst_scale=1 / 255)
    assert torch.equal(bytes, pixels)
    blocked = D.reorder(floats, "nChw16c")
    assert torch.equal(D.reorder(blocked, "nchw", src_format="nChw16c", size=floats.shape), floats)


@check
def quantized_convolution():
    src = torch.randint(256, (1, 7, 7, 4), dtype=torch.uint8)
    weights = torch.randint(-128, 128, (3, 3, 4, 8), dtype=torch.int8)
    exact = D.convolution(src.double(), weights.double())
    sums = D.quantized_convolution(src, weights, dtype=torch.int32)
    assert torch.equal(sums.double(), exact)


@check
def modules():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Upsample(scale_factor=2)
    )
    converted = torch_dnnl.convert(copy.deepcopy(model))
    assert type(converted[0]) is torch_dnnl.nn.Conv2d
    x = torch.randn(1, 3, 8, 8)
    torch.testing.assert_close(converted(x), model(x), rtol=1e-4, atol=1e-4)


@check
def exported():
    layer = torch_dnnl.nn.Conv2d(3, 4, 3, padding="same_upper", stride=2)
    x = torch.randn(1, 3, 8, 8)
    program = torch.export.export(layer, (x,))
    torch.testing.assert_close(program.module()(x), layer(x))


@check
def bad_call():
    message = ""
    try:
        D.resample(torch.ones(4, 7), size=3)
    except ValueError as error:
        message = str(error)
    assert "expected src to be 3-D to 5-D" in message


if __name__ == "__main__":
    torch.manual_seed(0)
    for function in CHECKS:
        function()
    print(f"torch_dnnl {torch_dnnl.__version__} in torch {torch.__version__}:", end=" ")
    print(f"{len(CHECKS)} checks passed")
