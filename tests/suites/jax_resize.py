"""JAX's resize tests: the shapes, methods and types of tests/image_test.py of github.com/jax-ml/jax
at cec06d116c05, computed by jax.image.resize and by docs/resample.md's arguments of `resample`.

The reference is JAX's float32 result of the same numbers: in half types JAX multiplies matrices of
rounded weights.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from typing import Any

import jax
import numpy as np
import torch
from torch import Tensor

import torch_dnnl.functional as D
from suites import Case, assert_close, random_image

TITLE = "JAX's resize tests"

AA = {"antialias": True, "exclude_outside": True}
KEYS = {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": True}
# (method, antialias) -> arguments of resample
METHODS: dict[tuple[str, bool], dict[str, Any]] = {
    ("nearest", False): {"mode": "nearest"},
    ("nearest", True): {"mode": "nearest"},
    ("linear", False): {},
    ("linear", True): AA,
    ("cubic", False): KEYS,
    ("cubic", True): KEYS | AA,
    ("lanczos3", False): {"mode": "lanczos3", "exclude_outside": True},
    ("lanczos3", True): {"mode": "lanczos3", **AA},
    ("lanczos5", False): {"mode": "lanczos5", "exclude_outside": True},
    ("lanczos5", True): {"mode": "lanczos5", **AA},
}
# The sizes of images of [2, H, W, 4], which are compared with TensorFlow there, and of [H, W],
# which are compared with Pillow and torch.
IMAGES = ((3, 2), (6, 4), (33, 17), (50, 38))
PLANES = ((3, 2), (6, 4), (33, 17), (50, 39))
TYPES = (torch.float32, torch.bfloat16, torch.float16)


def source() -> str:
    return f"jax {version('jax')}"


@partial(jax.jit, static_argnums=(1, 2))  # one program for a pair of sizes, not one for each step
def resize(array: Any, shape: tuple[int, ...], key: tuple[str, bool]) -> Any:
    return jax.image.resize(array, shape, key[0], antialias=key[1])


@partial(jax.jit, static_argnums=(2, 3))
def gradient(array: Any, grad: Any, shape: tuple[int, ...], key: tuple[str, bool]) -> Any:
    return jax.vjp(lambda x: resize(x, shape, key), array)[1](grad)[0]


def check(
    shape: tuple[int, ...], target: tuple[int, ...], key: tuple[str, bool], dtype: torch.dtype
) -> None:
    """[N, H, W, C], or a plane."""
    image = random_image(shape, dtype)
    reference = np.asarray(resize(image.float().numpy(), target, key))
    ours = resampled(image, target, key)
    # Positions are float32 there.
    assert_close(ours, torch.tensor(reference), sums=2e-5, roundings=2)


def resampled(image: Tensor, target: tuple[int, ...], key: tuple[str, bool]) -> Tensor:
    if image.dim() == 4:
        return D.resample(image, target[1:3], data_format="NXC", **METHODS[key])
    return D.resample(image[None, None], target, **METHODS[key])[0, 0]


def check_gradient(shape: tuple[int, ...], target: tuple[int, ...], key: tuple[str, bool]) -> None:
    image, grad = random_image(shape, torch.float32), random_image(target, torch.float32, 1)
    theirs = gradient(image.numpy(), grad.numpy(), target, key)
    x = image.requires_grad_()
    (ours,) = torch.autograd.grad(resampled(x, target, key), x, grad)
    assert_close(ours, torch.tensor(np.asarray(theirs)), sums=2e-5, roundings=2)


def cases() -> Iterator[Case]:
    for key, dtype in itertools.product(METHODS, TYPES):
        for size, target in itertools.product(IMAGES, IMAGES):
            sizes = ((2, *size, 4), (2, *target, 4))
            name = f"{sizes[0]} to {sizes[1]}, {key}, {dtype}"
            yield Case("images", name, partial(check, *sizes, key, dtype))
        for sizes in (((3, 1, 2), (6, 1, 4)),):
            name = f"{sizes[0]} to {sizes[1]}, {key}, {dtype}"
            yield Case("volumes", name, partial(check, *sizes, key, dtype))
        for size, target in itertools.product(PLANES, PLANES):
            name = f"{size} to {target}, {key}, {dtype}"
            yield Case("planes", name, partial(check, size, target, key, dtype))
    for key in METHODS:
        for size, target in itertools.product(IMAGES, IMAGES):
            sizes = ((2, *size, 4), (2, *target, 4))
            name = f"{sizes[0]} to {sizes[1]}, {key}"
            yield Case("gradients", name, partial(check_gradient, *sizes, key))
