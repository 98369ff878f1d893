"""TensorFlow's resize tests: the images, sizes, methods and types of ResizeImagesV2Test and
ResizeImagesTest (tensorflow/python/ops/image_ops_test.py) and of the gradient tests
(tensorflow/python/ops/image_grad_test_base.py), computed by TensorFlow and by docs/resample.md's
arguments of `resample`.

TensorFlow computes positions and weights in float32, and its bicubic weights come from a table of
1024 entries, where nothing is antialiased.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor

import torch_dnnl.functional as D
from suites import Case, OutsideError, assert_close, random_image

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import tensorflow as tf

TITLE = "TensorFlow's resize tests"

AA = {"antialias": True, "exclude_outside": True}
KEYS = {"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": True}
# (method, antialias) -> arguments of resample
V2: dict[tuple[str, bool], dict[str, Any]] = {
    ("nearest", False): {"mode": "nearest"},
    ("bilinear", False): {},
    ("bilinear", True): AA,
    ("bicubic", False): KEYS,
    ("bicubic", True): KEYS | AA,
    ("lanczos3", False): {"mode": "lanczos3", "exclude_outside": True},
    ("lanczos3", True): {"mode": "lanczos3", **AA},
    ("lanczos5", False): {"mode": "lanczos5", "exclude_outside": True},
    ("lanczos5", True): {"mode": "lanczos5", **AA},
    ("area", False): {"mode": "area"},
}
METHODS = ("bilinear", "nearest", "bicubic", "area", "lanczos3", "lanczos5", "gaussian",
           "mitchellcubic")  # fmt: skip
TYPES = ("uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64",
         "bfloat16")  # fmt: skip
# batch, height, width, channels, and the size to come to; of the tests of shapes, those whose width
# and height keep their ratio, with fewer images and channels
PROBLEMS = (
    *((1, 6, 4, 1, 6, 4), (1, 6, 4, 1, 3, 2), (1, 3, 2, 1, 6, 4), (1, 6, 6, 1, 4, 4)),
    *((1, 5, 6, 3, 8, 12), (1, 30, 10, 2, 8, 12), (1, 2, 2, 1, 4, 6), (1, 50, 60, 3, 55, 66)),
    *((1, 59, 69, 3, 55, 66), (2, 100, 80, 3, 250, 200), (2, 100, 100, 3, 50, 50)),
    *((1, 100, 100, 3, 150, 150), (1, 299, 299, 3, 320, 320), (2, 3, 2, 4, 50, 38)),
)
LEGACY: dict[tuple[str, bool, bool], dict[str, Any]] = {}
for _method, _attributes in {
    "nearest_neighbor": {"mode": "nearest"},
    "bilinear": {},
    "bicubic": {"mode": "cubic"},
}.items():
    _floor = {"nearest_mode": "floor"} if _method == "nearest_neighbor" else {}
    # (operator, align_corners, half_pixel_centers)
    LEGACY[_method, False, False] = {**_attributes, "coordinates": "asymmetric", **_floor}
    LEGACY[_method, True, False] = {**_attributes, "coordinates": "align_corners"}
LEGACY["bilinear", False, True] = {}
LEGACY["bicubic", False, True] = KEYS
LEGACY["nearest_neighbor", False, True] = {"mode": "nearest"}


def source() -> str:
    return f"tensorflow-cpu {version('tensorflow-cpu')}"


def tolerance(problem: tuple[int, ...], method: str = "", antialias: bool = False) -> float:
    """Relative to the largest value, of which two neighbours may be twice apart.

    A position of float32 is right to a few times 2^-24 of the axis's length. The table of bicubic
    weights takes positions to 1/2048; its weights change by 4 in all at most for a position that
    changes by 1, and there are two axes.
    """
    if method == "bicubic" and not antialias:
        return 2 * 4 / 2048
    return 2e-5 + 2.0**-21 * max(problem[1:3] + problem[4:])


def given(problem: tuple[int, ...], dtype: str) -> tuple[Tensor, Any]:
    """The image in both libraries, NHWC."""
    if not hasattr(torch, dtype) or dtype in ("uint16", "int64"):
        raise OutsideError(f"type {dtype}")
    kind = getattr(torch, dtype)
    image = random_image(problem[:4], kind)
    if kind == torch.int32:
        image %= 1000  # larger ones are not exact in TensorFlow's float32
    if kind.is_floating_point:
        image = (image * 40).to(kind)
    if kind == torch.bfloat16:
        return image, tf.cast(tf.constant(image.float().numpy()), tf.bfloat16)
    return image, tf.constant(image.numpy())


def check(problem: tuple[int, ...], method: str, antialias: bool, dtype: str) -> None:
    if method in ("gaussian", "mitchellcubic"):
        raise OutsideError(f'"{method}"')
    size = problem[4:]
    ratios = zip(problem[1:3], size)
    if method == "area" and any(a % b and b % a for a, b in ratios):
        raise OutsideError("area at other than whole ratios, another definition")
    image, theirs = given(problem, dtype)
    expected = tf.image.resize(theirs, size, method, antialias=antialias)
    # Nearest and area ignore antialias; nearest keeps the type.
    options = V2.get((method, antialias)) or V2[method, False]
    result = D.resample(
        image,
        size,
        data_format="NXC",
        dtype=image.dtype if method == "nearest" else torch.float32,
        **options,
    )
    reference = torch.from_numpy(tf.cast(expected, tf.float64).numpy())
    assert_close(result, reference, tolerance(problem, method, antialias), roundings=2)


def legacy(operator: str, size: Any, corners: bool, half: bool) -> Callable[[Any], Any]:
    function = getattr(tf.raw_ops, f"Resize{operator.title().replace('_', '')}")
    return lambda images: function(
        images=images, size=size, align_corners=corners, half_pixel_centers=half
    )


def check_legacy(problem: tuple[int, ...], key: tuple[str, bool, bool], dtype: str) -> None:
    image, theirs = given(problem, dtype)
    size = list(problem[4:])
    expected = legacy(key[0], size, *key[1:])(theirs)
    kind = image.dtype if key[0] == "nearest_neighbor" else torch.float32
    result = D.resample(image, size, data_format="NXC", dtype=kind, **LEGACY[key])
    reference = torch.from_numpy(tf.cast(expected, tf.float64).numpy())
    assert_close(result, reference, tolerance(problem, key[0]), roundings=2)


def check_gradient(problem: tuple[int, ...], key: tuple[str, bool, bool]) -> None:
    image, theirs = given(problem, "float32")
    size = list(problem[4:])
    generator = np.random.default_rng(0)
    grad = generator.standard_normal((problem[0], *size, problem[3])).astype(np.float32)
    with tf.GradientTape() as tape:
        tape.watch(theirs)
        resized = legacy(key[0], size, *key[1:])(theirs)
    expected = torch.from_numpy(tape.gradient(resized, theirs, tf.constant(grad)).numpy())
    x = image.requires_grad_()
    result = D.resample(x, size, data_format="NXC", **LEGACY[key])
    (ours,) = torch.autograd.grad(result, x, torch.from_numpy(grad))
    assert_close(ours, expected, tolerance(problem, key[0]), roundings=2)


def cases() -> Iterator[Case]:
    for problem, method, dtype in itertools.product(PROBLEMS, METHODS, TYPES):
        for antialias in (False, True):
            name = f"{problem}, {method}, {dtype}, antialias {antialias}"
            run = partial(check, problem, method, antialias, dtype)
            yield Case("tf.image.resize", name, run)
    for problem, key in itertools.product(PROBLEMS, LEGACY):
        for dtype in ("uint8", "int8", "int16", "int32", "float16", "float32"):
            run = partial(check_legacy, problem, key, dtype)
            yield Case("operators of version 1", f"{problem}, {key}, {dtype}", run)
    gradient_problems = [
        (n, *a, c, *b)
        for n, c in ((1, 1), (4, 3), (3, 2))
        for a, b in (
            *(((2, 3), (4, 6)), ((4, 6), (2, 3)), ((2, 3), (5, 6)), ((5, 6), (2, 3))),
            *(((5, 6), (5, 6)), ((4, 6), (8, 16))),
        )
    ]
    for problem, key in itertools.product(gradient_problems, LEGACY):
        run = partial(check_gradient, problem, key)
        yield Case("gradients of version 1", f"{problem}, {key}", run)
