"""Every framework's resize, spelled as docs/resample.md says: each row of its tables, with those of
the libraries that are installed here; and by formula what has no library: oneDNN."""

import importlib
import itertools
import random
import re
from importlib.util import find_spec

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from op_db import assert_matches
from paths import ROOT

import torch_dnnl.functional as D

PAGE = (ROOT / "docs" / "resample.md").read_text()
SHAPE = (12, 10)
ANY_RATIO = [(7, 15), (25, 4), (12, 10), (5, 11), (36, 3), (1, 3)]
WHOLE_RATIO = [(6, 5), (4, 10), (3, 1)]

# What the calls in the tables mention besides their libraries.
ALIASES = {
    "Resampling": "PIL.Image.Resampling",
    "InterpolationMode": "torchvision.transforms.InterpolationMode",
    "v2": "torchvision.transforms.v2.functional",
    "ndimage": "scipy.ndimage",
    "transform": "skimage.transform",
    "tf": "tensorflow",
    "keras": "keras",
    "jax": "jax",
    "cv2": "cv2",
}


def rows():
    for library, table in re.findall(r"<!-- peers: (\w+) -->\n((?:\|.*\n)+)", PAGE):
        for line in table.splitlines()[2:]:
            theirs, ours = (cell.strip() for cell in line.strip("|").split("|"))
            call, note = re.fullmatch(r"`(.*?)`(.*)", theirs).groups()
            if library == "torch" and "lanczos" in call and "lanczos" not in F.interpolate.__doc__:
                continue  # torch 2.11
            if find_spec(library):
                yield pytest.param(call, note, ours.strip("`"), id=call)


def names_in(call, image, size):
    """The variables that the tables use."""
    names = {"F": F, "image": image, "size": size, "h": size[0], "w": size[1]}
    names["x"] = torch.from_numpy(image)[None, None]
    names["nhwc"] = image[None, ..., None]
    names["zoom"] = tuple(o / i for i, o in zip(image.shape, size))
    names["factors"] = tuple(i // o for i, o in zip(image.shape, size))
    for name, path in ALIASES.items():
        if re.search(rf"\b{name}\b", call):
            parent, _, last = path.rpartition(".")
            names[name] = (
                getattr(importlib.import_module(parent), last)
                if last[0].isupper()
                else importlib.import_module(path)
            )
    if "pillow" in call:
        names["pillow"] = importlib.import_module("PIL.Image").fromarray(image)
    return names


@pytest.mark.parametrize("call,note,arguments", list(rows()))
def test_row_of_the_page(call, note, arguments):
    image = np.random.default_rng(0).random(SHAPE, dtype=np.float32)
    sizes = WHOLE_RATIO if "whole ratios" in note else ANY_RATIO
    if scale := re.search(r"scale (\d+)", note):
        sizes = [tuple(n * int(scale[1]) for n in SHAPE)]
    tolerance = float(found[1]) if (found := re.search(r"within ([\d.]+)", note)) else 1e-5
    for size in sizes:
        theirs = np.asarray(eval(call, names_in(call, image, size))).reshape(size)
        ours = D.resample(torch.from_numpy(image)[None, None], size, **eval(f"dict({arguments})"))
        kept = [
            [o for o in range(out) if (2 * o + 1) * length % (2 * out) or "ties" not in note]
            for length, out in zip(SHAPE, size)
        ]
        theirs = torch.tensor(theirs, dtype=torch.float64)
        assert_matches(ours[0, 0][kept[0]][:, kept[1]], theirs[kept[0]][:, kept[1]], tolerance)


def test_rows_are_found():
    assert len(list(rows())) >= 15


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "lanczos"])
def test_bytes_are_pillows(mode):
    """Within 1, the horizontal pass first: in one call Pillow sometimes begins with the other."""
    from PIL import Image

    choose = random.Random(mode)
    further = differing = values = 0
    for _ in range(60):
        height, width, h, w = (choose.randint(5, 70) for _ in range(4))
        image = torch.randint(256, (height, width, 3), dtype=torch.uint8)
        filter = Image.Resampling[mode.upper()]
        rows = Image.fromarray(image.numpy()).resize((w, height), filter)
        theirs = torch.from_numpy(np.array(rows.resize((w, h), filter)))
        for x in (image.permute(2, 0, 1)[None], image.permute(2, 0, 1)[None].contiguous()):
            ours = D.interpolate(x, (h, w), mode=mode, antialias=True)[0].permute(1, 2, 0)
            difference = (ours.int() - theirs.int()).abs()
            # Sums of float32 can round the first pass another way, and the second one weighs it.
            assert difference.max() <= (1 if mode == "bilinear" else 2)
            further += (difference > 1).sum().item()
            differing += (difference > 0).sum().item()
            values += difference.numel()
    assert further <= 1
    # Bilinear, which cannot overshoot, rounds once.
    assert differing < values * (0.25 if mode == "bilinear" else 1e-3)


def onednn_nearest(src, size):
    for axis, (length, out) in enumerate(zip(src.shape, size)):
        index = (2 * np.arange(out) + 1) * length // (2 * out)  # round half up
        src = src.take(np.minimum(index, length - 1), axis)
    return src


def onednn_linear(src, size):
    """The sum over the 2^d corners around each output point."""
    corners = []
    for length, out in zip(src.shape, size):
        x = ((2 * np.arange(out) + 1) * length - out) / (2 * out)
        low = np.maximum(np.floor(x), 0).astype(int)
        high = np.minimum(np.maximum(np.ceil(x), 0), length - 1).astype(int)
        weight = np.where(low == high, 0, x - low)
        corners.append([(low, 1 - weight), (high, weight)])
    total = 0
    for corner in itertools.product(*corners):
        weight = 1
        for _, w in corner:
            weight = np.multiply.outer(weight, w)
        total = total + weight * src[np.ix_(*(index for index, _ in corner))]
    return total


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    "mode,definition", [("nearest", onednn_nearest), ("linear", onednn_linear)]
)
def test_defaults_are_onednns(mode, definition, rank):
    choose = random.Random(rank)
    for trial in range(60):
        shape = [choose.randint(1, 12 if rank < 3 else 6) for _ in range(rank)]
        src = np.random.default_rng(trial).random(shape)
        if trial % 2:
            # A factor decides the size alone.
            factor = [max(choose.uniform(0.3, 3), 1.01 / n) for n in shape]
            target = {"scale_factor": factor}
            size = [int(n * f) for n, f in zip(shape, factor)]
        else:
            size = [choose.randint(1, 15 if rank < 3 else 8) for _ in range(rank)]
            target = {"size": size}
        expected = torch.from_numpy(definition(src, size))
        ours = D.resample(torch.from_numpy(src)[None, None], mode=mode, **target)
        assert_matches(ours[0, 0], expected)
        channels_last = torch.from_numpy(src)[None, ..., None]
        ours = D.resample(channels_last, mode=mode, data_format="NXC", **target)
        assert_matches(ours[0, ..., 0], expected)
