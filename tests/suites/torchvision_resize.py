"""torchvision's resize tests: the cases of class TestResize of its test/test_transforms_v2.py (an
image of 17 x 11 pixels; five sizes, with and without max_size; interpolations, antialias, types,
layouts), by `interpolate` and docs/resample.md's arguments of `resample`.

As in torchvision's tests, bytes may be 1 off: of Pillow's, and, for `interpolate`, of torch's fixed
point. `resample` gives torchvision's float64 result of the same bytes, rounded once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as v2

import torch_dnnl.functional as D
from suites import Case, KnownError, assert_close, assert_equal, random_image
from torch_dnnl import accelerate

TITLE = "torchvision's resize tests"

INPUT = (17, 11)
SIZES: tuple[Any, ...] = (17, [17], (17,), [12, 13], (12, 13))
MODES = ("nearest", "nearest-exact", "bilinear", "bicubic")
CUBIC = {"mode": "cubic", "cubic_coeff_a": -0.5, "antialias": True, "exclude_outside": True}
# (interpolation, antialias) -> arguments of resample
RESAMPLE: dict[tuple[str, bool], dict[str, Any]] = {
    ("nearest", False): {
        "mode": "nearest",
        "coordinates": "asymmetric",
        "nearest_mode": "floor",
    },
    ("nearest-exact", False): {"mode": "nearest"},
    ("bilinear", False): {},
    ("bilinear", True): {"antialias": True, "exclude_outside": True},
    ("bicubic", False): {"mode": "cubic"},
    ("bicubic", True): CUBIC,
}


def source() -> str:
    return f"torchvision {version('torchvision')}, Pillow {version('pillow')}"


def output_size(size: Any, max_size: int | None, image: tuple[int, int] = INPUT) -> list[int]:
    """One number is the shorter side, as long as the longer one is no longer than max_size."""
    if not isinstance(size, int) and len(size) == 2:
        return list(size)
    short = size if isinstance(size, int) else size[0]
    height, width = image
    long = short * max(image) // min(image)
    if max_size is not None and long > max_size:
        short, long = short * max_size // long, max_size
    return [long, short] if height >= width else [short, long]


def sizes() -> Iterator[tuple[Any, int | None]]:
    for size in SIZES:
        yield size, None
        if isinstance(size, int) or len(size) == 1:  # others refuse a max_size
            yield size, (size if isinstance(size, int) else size[0]) + 1


def ours(image: Tensor, size: list[int], mode: str, antialias: bool) -> Tensor:
    options = {"antialias": True} if antialias and mode.startswith("bi") else {}
    return D.interpolate(image, size, mode=mode, **options)


def check(
    image: Tensor, size: Any, max_size: int | None, mode: str, antialias: bool, which: str
) -> None:
    """`which` is the function of ours, or accelerate() around torchvision's."""
    arguments = (size, InterpolationMode(mode), max_size, antialias)
    theirs = v2.resize(image, *arguments)
    batch = image.reshape(-1, *image.shape[-3:])
    if which == "accelerate":
        with accelerate():
            result = v2.resize(image, *arguments)
        assert result.stride() == theirs.stride(), f"strides {result.stride()}"
    elif which == "interpolate":
        result = ours(batch, output_size(size, max_size), mode, antialias)
    else:
        options = RESAMPLE[mode, antialias and mode.startswith("bi")]
        result = D.resample(batch, output_size(size, max_size), **options)
    result = result.reshape(theirs.shape)
    if mode.startswith("nearest"):
        assert_equal(result, theirs)
    elif theirs.dtype == torch.uint8 and which != "resample":  # which rounds once, at the end
        difference = (result.int() - theirs.int()).abs().max().item()
        assert difference <= 1, f"{difference} off"
    else:
        assert_close(result, v2.resize(image.double(), *arguments))


def check_pillow(size: Any, max_size: int | None, mode: str) -> None:
    image = random_image((3, *INPUT), torch.uint8)
    picture = v2.to_pil_image(image)
    height, width = output_size(size, max_size)
    result = ours(image[None], [height, width], mode, True)[0]

    def difference(*steps: Any) -> int:
        theirs = picture
        for step in steps:
            theirs = v2.resize(theirs, *step)
        return int((result.int() - v2.pil_to_tensor(theirs).int()).abs().max())

    in_one = difference((size, InterpolationMode(mode), max_size))
    if in_one > 1 and mode == "bicubic":
        steps = [[INPUT[0], width], [height, width]]
        if difference(*((step, InterpolationMode(mode)) for step in steps)) <= 1:
            raise KnownError("Pillow 13 resizes the height first here and saturates in between")
    assert in_one <= 1, f"{in_one} off"


def images() -> Iterator[tuple[str, Tensor]]:
    for dtype in (torch.uint8, torch.float32):
        image = random_image((3, *INPUT), dtype)
        if dtype.is_floating_point:
            image = image.sigmoid()
        yield f"{dtype}", image
        last = image[None].contiguous(memory_format=torch.channels_last)
        yield f"{dtype}, channels last", last[0]
        yield f"{dtype}, a batch, channels last", last.expand(2, -1, -1, -1)
        yield f"{dtype}, a video", random_image((4, 3, *INPUT), torch.uint8).to(dtype)
    yield "torch.float16", random_image((3, *INPUT), torch.float16).sigmoid()


def cases() -> Iterator[Case]:
    for size, max_size in sizes():
        for mode in MODES[1:]:  # its test says why "nearest" is another one in Pillow
            name = f"{mode}, {size}, max_size {max_size}"
            yield Case("Pillow's bytes", name, partial(check_pillow, size, max_size, mode))
    for which in ("interpolate", "resample", "accelerate"):
        row = "within accelerate()" if which == "accelerate" else f"by {which}"
        combinations = itertools.product(images(), sizes(), MODES, (False, True))
        for (words, image), (size, max_size), mode, antialias in combinations:
            name = f"{words}, {mode}, {size}, max_size {max_size}, antialias {antialias}"
            yield Case(row, name, partial(check, image, size, max_size, mode, antialias, which))
