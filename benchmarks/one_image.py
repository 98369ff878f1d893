"""Times layers of one image: with weights packed once, and with what follows the sums.

    python benchmarks/one_image.py
    python benchmarks/one_image.py --dtype bfloat16 --threads 2 --csv one_image.csv

A row is a layer in a memory format. The columns are microseconds of a call: `plain` and `packed`
are torch_dnnl's with weights of either kind. `onednn` is oneDNN's with prepacked weights, as
Inductor calls it. `fixed` is the part of a packed call that does not grow with the batch,
(2 t(1) - t(2)) / t(1). The others are packed calls with a residual or an activation, divided by
`packed`. `error` is the norm of the difference from float64, relative to the norm.
"""

import argparse
import csv
import math
import statistics
import sys

import torch
import torch.nn.functional as F
from measure import interleaved
from torch import Tensor

from torch_dnnl.functional import convolution, pack_weights

# Name, channels of image and result, groups, kernel, stride, pixels of a side of the image.
LAYERS = [
    ("7x7 stride 2, 3 to 64, 224", 3, 64, 1, 7, 2, 224),
    ("3x3, 512, 7", 512, 512, 1, 3, 1, 7),
    ("3x3, 256, 14", 256, 256, 1, 3, 1, 14),
    ("3x3, 128, 28", 128, 128, 1, 3, 1, 28),
    ("3x3, 64, 56", 64, 64, 1, 3, 1, 56),
    ("3x3 stride 2, 128, 28", 128, 128, 1, 3, 2, 28),
    ("3x3 stride 2, 256, 14", 256, 256, 1, 3, 2, 14),
    ("1x1, 512 to 2048, 7", 512, 2048, 1, 1, 1, 7),
    ("1x1, 1024 to 256, 14", 1024, 256, 1, 1, 1, 14),
    ("1x1, 64 to 256, 56", 64, 256, 1, 1, 1, 56),
    ("1x1, 128 to 512, 28", 128, 512, 1, 1, 1, 28),
    ("3x3 groups of 24, 48, 28", 48, 48, 2, 3, 1, 28),
    ("depthwise 3x3, 192, 28", 192, 192, 192, 3, 1, 28),
    ("depthwise 3x3, 384, 14", 384, 384, 384, 3, 1, 14),
]
ACTIVATIONS = ("relu", "silu", "hardswish", "gelu")


def prepacked(x: Tensor, w: Tensor, b: Tensor, padding: int, stride: int, groups: int):
    """A call of oneDNN's convolution with weights in oneDNN's format, and bias."""
    lists = ([padding] * 2, [stride] * 2, [1] * 2, groups)
    weights = torch._C._nn.mkldnn_reorder_conv2d_weight(w.to_mkldnn(), *lists, list(x.shape))
    return lambda: torch.ops.mkldnn._convolution_pointwise(x, weights, b, *lists, "none", [], "")


def row(layer, layout: str, dtype: torch.dtype, budget: float) -> dict[str, object]:
    name, ic, oc, groups, kernel, stride, size = layer
    memory_format = torch.channels_last if layout == "NHWC" else torch.contiguous_format

    def image(n: int, channels: int, side: int) -> Tensor:
        x = torch.randn(n, channels, side, side).to(dtype)
        return x.contiguous(memory_format=memory_format)

    x, two = image(1, ic, size), image(2, ic, size)
    w = torch.randn(oc, ic // groups, kernel, kernel).to(dtype) / math.sqrt(ic // groups) / kernel
    w, b = w.contiguous(memory_format=memory_format), torch.randn(oc).to(dtype)
    padding = kernel // 2
    options = {
        "strides": stride,
        "pads_begin": padding,
        "pads_end": padding,
        "groups": groups,
        "data_format": "NCX",
        "weights_format": "OIX",
    }
    packed = pack_weights(w, groups=groups, strides=stride, weights_format="OIX", size=size)
    residual = torch.randn_like(convolution(x, w, b, **options))

    def call(image=x, weights=packed, **more):
        return lambda: convolution(image, weights, b, **options, **more)

    calls = {"plain": call(weights=w), "packed": call(), "two": call(two)}
    with_onednn = dtype != torch.float64
    if with_onednn:
        calls["onednn"] = prepacked(x, w, b, padding, stride, groups)
    calls["residual"] = call(residual=residual)
    calls |= {activation: call(activation=activation) for activation in ACTIVATIONS}
    with torch.no_grad():
        times = dict(zip(calls, interleaved(*calls.values(), budget=budget), strict=True))
        exact = F.conv2d(x.double(), w.double(), b.double(), stride, padding, 1, groups)
        error = ((calls["packed"]().double() - exact).norm() / exact.norm()).item()
    found = {"layer": name, "layout": layout, "kernel": packed.kernel or "plain weights"}
    for column in ("plain", "packed", "onednn"):
        found[column] = round(times[column] * 1e6, 1)
    found["fixed"] = round(2 - times["two"] / times["packed"], 3)
    for column in ("residual", *ACTIVATIONS):
        found[column] = round(times[column] / times["packed"], 3)
    return found | {"error": f"{error:.1e}"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a row")
    parser.add_argument("--match", default="", help="a part of the names of layers")
    parser.add_argument("--csv", help="a file to write")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    rows = []
    for layer in LAYERS:
        for layout in ("NCHW", "NHWC") if args.match in layer[0] else ():
            rows.append(row(layer, layout, getattr(torch, args.dtype), args.seconds))
            print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)
    if not rows:
        sys.exit(f"one_image: expected --match to be part of a name, got {args.match!r}")
    of_onednn = [r["onednn"] / r["packed"] for r in rows]
    mean = statistics.geometric_mean(of_onednn)
    print(f"onednn / packed: mean {mean:.2f}, worst {min(of_onednn):.2f}")
    for column in ("residual", *ACTIVATIONS):
        values = [r[column] for r in rows]
        print(f"{column}: median {statistics.median(values):.3f}, worst {max(values):.3f}")
    if args.csv:
        with open(args.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
