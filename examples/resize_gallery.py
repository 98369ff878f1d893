"""Draws one photograph through every mode of Resample, with and without antialiasing.

The picture has a row for each way to resize: enlarged, shrunk, and shrunk with antialiasing. It
shows one detail of the photograph, and of that the middle where it is enlarged; all are magnified
pixel by pixel, so that one sees what each mode does to an edge.

    python examples/resize_gallery.py                                   # writes gallery.png
    python examples/resize_gallery.py --photo flower --at 180 240 --shrink 0.25

The columns in terms of other libraries (docs/resample.md has more of them, and the small print):

    resample(...)           torch F.interpolate      ONNX Resize        Pillow   OpenCV
    mode="nearest"          mode="nearest-exact"     mode="nearest" *   NEAREST  INTER_NEAREST_EXACT
    mode="linear"           mode="bilinear"          mode="linear"      -        INTER_LINEAR
    mode="cubic"            mode="bicubic"           mode="cubic"       -        INTER_CUBIC
    mode="lanczos3"         -                        -                  -        -
    mode="lanczos5"         -                        -                  -        -
    mode="area"             mode="area"              -                  BOX **   INTER_AREA **
    and in the last row, with antialias=True, exclude_outside=True:
    mode="linear"           "bilinear", antialias    antialias=1 ***    BILINEAR -
    mode="cubic" ****       "bicubic", antialias     antialias=1 ***    BICUBIC  -
    mode="lanczos3"         "lanczos", antialias     -                  LANCZOS  -

    *     with nearest_mode="round_prefer_ceil"
    **    where the sizes divide; "area" is torch's adaptive average otherwise
    ***   with exclude_outside=1, and the same cubic_coeff_a
    ****  with cubic_coeff_a=-0.5
"""

import argparse

import matplotlib
import torch
from sklearn.datasets import load_sample_image
from torch import Tensor

from torch_dnnl.functional import reorder, resample

matplotlib.use("Agg")
import matplotlib.pyplot as plt

MODES = ("nearest", "linear", "cubic", "lanczos3", "lanczos5", "area")
# What torch and Pillow set with antialiasing.
ANTIALIAS = {"antialias": True, "exclude_outside": True, "cubic_coeff_a": -0.5}


def load_photograph(name: str) -> Tensor:
    """[1, 3, H, W] in float32 from 0 to 1."""
    pixels = torch.from_numpy(load_sample_image(f"{name}.jpg").copy())  # uint8 [H, W, 3]
    return reorder(pixels.permute(2, 0, 1)[None], "nchw", dtype=torch.float32, scale=1 / 255)


def gallery(
    photo: Tensor, top: int, left: int, side: int, enlarge: float, shrink: float
) -> dict[str, list[Tensor | None]]:
    """For each way to resize, the original and an image for each mode that has one."""

    def detail(image: Tensor, scale: float = 1.0) -> Tensor:
        y, x, n = (round(value * scale) for value in (top, left, side))
        return image[..., y : y + n, x : x + n]

    def shrunk(mode: str, **options) -> Tensor | None:
        if options and mode in ("nearest", "area"):
            return None  # they have no filter to widen
        return detail(resample(photo, scale_factor=shrink, mode=mode, **options), shrink)

    quarter = slice(side * 3 // 8, max(side * 5 // 8, side * 3 // 8 + 1))
    part = detail(photo)[..., quarter, quarter]
    return {
        f"x {enlarge:g}": [part, *(resample(part, None, enlarge, mode=mode) for mode in MODES)],
        f"x {shrink:g}": [detail(photo), *map(shrunk, MODES)],
        f"x {shrink:g}, antialias": [
            detail(photo),
            *(shrunk(mode, **ANTIALIAS) for mode in MODES),
        ],
    }


def save_picture(path: str, rows: dict[str, list[Tensor | None]]) -> None:
    columns = ("photograph", *MODES)
    figure, axes = plt.subplots(
        len(rows), len(columns), figsize=(18, 2.9 * len(rows)), layout="constrained"
    )
    for line, (title, images) in zip(axes, rows.items(), strict=True):
        for axis, column, image in zip(line, columns, images, strict=True):
            axis.set_axis_off()
            if image is None:
                continue
            pixels = image[0].clamp(0, 1).permute(1, 2, 0).numpy()
            axis.imshow(pixels, interpolation="nearest")
            axis.set_title(column if image is images[0] else f"{column} {title}")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw a photograph through every mode.")
    parser.add_argument("--photo", choices=("china", "flower"), default="china")
    parser.add_argument("--enlarge", type=float, default=8.0, help="factor above 1")
    parser.add_argument("--shrink", type=float, default=0.4, help="factor below 1")
    parser.add_argument("--at", type=int, nargs=2, default=(88, 200), metavar=("ROW", "COLUMN"))
    parser.add_argument("--side", type=int, default=96, help="of the detail at --at, in pixels")
    parser.add_argument("--output", default="gallery.png", help="the picture")
    args = parser.parse_args()

    photo = load_photograph(args.photo)
    save_picture(args.output, gallery(photo, *args.at, args.side, args.enlarge, args.shrink))
    print(f"wrote {args.output}")


if __name__ == "__main__":
    main()
