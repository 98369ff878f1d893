"""Trains a U-Net to find shapes drawn over photographs, in several ways at once, and compares them.

Ellipses, rectangles and triangles of random colours, partly transparent and a little turned, lie
over crops of two photographs; the network says of each pixel which shape is on top there. The crops
are from the left two thirds of the photographs in training, from the right third in the
measurement.

Every convolution of the network has SAME padding, the strided ones too; its blocks are
depthwise-separable; Resample enlarges. The variants train the same network from the same seed on
the same images, a step of each in turn, so that their times and their losses can be compared:

    eager                    torch_dnnl, as it is called
    channels_last            torch_dnnl, all tensors in torch.channels_last
    compile                  torch_dnnl through torch.compile
    bf16                     torch_dnnl under autocast to bfloat16
    torch                    the same network made of torch.nn
    torch-channels_last, torch-compile, torch-bf16

    python examples/train_unet.py                             # three minutes on a CPU core
    python examples/train_unet.py --variants eager torch --steps 1000 --threads 4
    python examples/train_unet.py --variants bf16 torch-bf16 --steps 20
"""

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_sample_images
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from torch_dnnl.functional import reorder
from torch_dnnl.nn import Conv2d, Resample

CLASSES = ("background", "ellipse", "rectangle", "triangle")
SHAPES = 3  # drawn in each image
WIDTH, LEVELS = 16, 3  # channels at the full resolution, and how often it is halved
BATCH = 8
LEARNING_RATE = 7e-3
UNSEEN = 32  # images for the measurement
# The losses of the first steps differ by rounding alone. Later, training amplifies that, as it does
# any difference; sooner with ReLU, whose gradient jumps, than with SiLU.
FIRST, ALLOWED = 10, 1e-5


class TorchConv2d(torch.nn.Conv2d):
    """torch.nn's layer with the SAME padding that it has for stride 1 only."""

    def __init__(self, *channels_and_kernel: int, stride: int = 1, padding: str, **options):
        padding = "same" if stride == 1 else "valid"
        super().__init__(*channels_and_kernel, stride=stride, padding=padding, **options)

    def forward(self, x: Tensor) -> Tensor:
        if self.padding == "valid":
            pads: list[int] = []  # the last dimension comes first
            for size, kernel, stride in zip(
                x.shape[2:], self.kernel_size, self.stride, strict=True
            ):
                total = max(0, kernel - (size % stride or stride))
                pads = [total // 2, total - total // 2, *pads]
            x = F.pad(x, pads)
        return super().forward(x)


class Library(NamedTuple):
    """What a network is made of."""

    conv: type[torch.nn.Conv2d]
    enlarge: Callable[[], torch.nn.Module]


OURS = Library(Conv2d, lambda: Resample(scale_factor=2))
TORCH = Library(TorchConv2d, lambda: torch.nn.Upsample(scale_factor=2, mode="bilinear"))


class UNet(torch.nn.Module):
    """[N, 3, H, W] -> the logits of the classes, [N, 4, H, W]; H, W are multiples of 2^LEVELS."""

    def __init__(self, library: Library):
        super().__init__()

        def conv(inputs: int, outputs: int, kernel: int, **options) -> torch.nn.Module:
            return library.conv(inputs, outputs, kernel, padding="same_upper", **options)

        def block(inputs: int, outputs: int, stride: int = 1) -> torch.nn.Sequential:
            return torch.nn.Sequential(
                conv(inputs, inputs, 3, stride=stride, groups=inputs, bias=False),
                torch.nn.BatchNorm2d(inputs),
                torch.nn.SiLU(),
                conv(inputs, outputs, 1, bias=False),
                torch.nn.BatchNorm2d(outputs),
                torch.nn.SiLU(),
            )

        widths = [WIDTH * 2**level for level in range(LEVELS + 1)]
        steps = list(itertools.pairwise(widths))
        self.stem = conv(3, WIDTH, 3)
        self.encoders = torch.nn.ModuleList(block(wide, wide) for wide in widths)
        self.halves = torch.nn.ModuleList(block(wide, wider, stride=2) for wide, wider in steps)
        self.enlarge = library.enlarge()
        self.decoders = torch.nn.ModuleList(block(wide + wider, wide) for wide, wider in steps)
        self.head = conv(WIDTH, len(CLASSES), 1)

    def forward(self, image: Tensor) -> Tensor:
        x = self.encoders[0](self.stem(image - 0.5))
        skipped = []
        for half, encoder in zip(self.halves, self.encoders[1:], strict=True):
            skipped.append(x)
            x = encoder(half(x))
        for skip, decoder in zip(reversed(skipped), reversed(self.decoders), strict=True):
            x = decoder(torch.cat([skip, self.enlarge(x)], 1))
        return self.head(x)


def load_photographs() -> Tensor:
    """[photograph, 3, H, W] in float32 from 0 to 1."""
    pixels = torch.from_numpy(np.stack(load_sample_images().images))  # uint8 [photograph, H, W, 3]
    return reorder(pixels.permute(0, 3, 1, 2), "nchw", dtype=torch.float32, scale=1 / 255)


def coverage(kind: Tensor, size: int, rng: torch.Generator) -> Tensor:
    """How much of each pixel a random shape covers, [N, size, size]; its kind is 1, 2 or 3, [N].

    From the distance to its edge, in pixels: 1 from half a pixel inside, 0 from half outside.
    """

    def draw(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(len(kind), 1, 1, generator=rng)

    pixels = torch.arange(size) + 0.5
    x = pixels[None, None, :] - draw(0.1, 0.9) * size
    y = pixels[None, :, None] - draw(0.1, 0.9) * size
    angle = draw(-0.2, 0.2)
    x, y = x * angle.cos() + y * angle.sin(), y * angle.cos() - x * angle.sin()
    a, b = draw(0.08, 0.3) * size, draw(0.08, 0.3) * size
    ellipse = ((x / a).hypot(y / b) - 1) * torch.minimum(a, b)
    rectangle = torch.maximum(x.abs() - a, y.abs() - b)
    slope = a.hypot(2 * b)  # of a triangle with the base 2a and the height 2b
    triangle = torch.maximum(y - b, (2 * b * x.abs() - a * (y + b)) / slope)
    outside = torch.stack([ellipse, rectangle, triangle])[kind - 1, torch.arange(len(kind))]
    return (0.5 - outside).clamp(0, 1)


def draw_images(
    photos: Tensor, count: int, size: int, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Images, [count, 3, size, size], and the class of each pixel, [count, size, size]."""

    def draw(n: int) -> int:
        return int(torch.randint(n, (), generator=rng))

    crops = []
    for _ in range(count):
        photo = photos[draw(len(photos))]
        top, left = (draw(n - size + 1) for n in photo.shape[1:])
        crop = photo[:, top : top + size, left : left + size]
        crops.append(crop.flip(2) if draw(2) else crop)
    images, classes = torch.stack(crops), torch.zeros(count, size, size, dtype=torch.long)
    for _ in range(SHAPES):
        kind = torch.randint(1, len(CLASSES), (count,), generator=rng)
        covered = coverage(kind, size, rng)
        color, opacity = torch.rand(count, 4, 1, 1, generator=rng).split([3, 1], 1)
        images = images.lerp(color, covered[:, None] * (0.4 + 0.5 * opacity))
        classes = torch.where(covered > 0.5, kind[:, None, None], classes)
    return images, classes


class Variant(NamedTuple):
    library: Library
    memory_format: torch.memory_format = torch.contiguous_format
    compiled: bool = False
    bf16: bool = False


WAYS = {
    "eager": {},
    "channels_last": {"memory_format": torch.channels_last},
    "compile": {"compiled": True},
    "bf16": {"bf16": True},
}
VARIANTS = {name: Variant(OURS, **way) for name, way in WAYS.items()}
VARIANTS["torch"] = Variant(TORCH)
VARIANTS |= {f"torch-{name}": Variant(TORCH, **way) for name, way in WAYS.items() if way}


class Training:
    """A network in training: its losses, and the seconds that each step took."""

    def __init__(self, variant: Variant, args: argparse.Namespace):
        torch.manual_seed(args.seed)  # the same weights in every variant
        self.variant = variant
        self.network = UNet(variant.library).to(memory_format=variant.memory_format)
        self.call = (
            torch.compile(self.network, fullgraph=True) if variant.compiled else self.network
        )
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=LEARNING_RATE)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, LEARNING_RATE, total_steps=args.steps + 1, pct_start=0.2
        )
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def step(self, images: Tensor, classes: Tensor) -> None:
        images = images.contiguous(memory_format=self.variant.memory_format)
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.variant.bf16):
            loss = F.cross_entropy(self.call(images), classes)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self.losses.append(loss.item())
        self.seconds.append(time.perf_counter() - start)

    @torch.no_grad()
    def predict(self, images: Tensor) -> Tensor:
        """The most probable class of each pixel."""
        self.network.eval()
        with torch.autocast("cpu", torch.bfloat16, enabled=self.variant.bf16):
            return torch.cat([self.network(part).argmax(1) for part in images.split(BATCH)])


def mean_iou(predicted: Tensor, truth: Tensor) -> float:
    """The pixels that both call a class over those that either does; the mean over the classes."""
    ratios = []
    for label in range(len(CLASSES)):
        a, b = predicted == label, truth == label
        ratios.append((a & b).sum() / (a | b).sum())
    return torch.stack(ratios).mean().item()


def largest_difference(training: Training, reference: Training) -> float:
    """Of the losses of the first steps."""
    pairs = zip(training.losses[:FIRST], reference.losses[:FIRST], strict=True)
    return max(abs(a - b) for a, b in pairs)


def save_picture(
    path: str, rows: dict[str, Tensor], trainings: dict[str, Training], columns: int = 6
) -> None:
    """Rows of images and of classes, and the loss of each variant below."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplot_mosaic(
        [[f"{title} {column}" for column in range(columns)] for title in rows]
        + [["loss"] * columns],
        figsize=(13, 10),
        layout="constrained",
    )
    for title, row in rows.items():
        for column in range(columns):
            axis = axes[f"{title} {column}"]
            if row.dim() == 4:
                axis.imshow(row[column].permute(1, 2, 0).clamp(0, 1).numpy())
            else:
                axis.imshow(row[column].numpy(), cmap="tab10", vmin=0, vmax=9)
            axis.set(xticks=[], yticks=[])
        axes[f"{title} 0"].set_ylabel(title)
    for name, training in trainings.items():
        count = min(20, len(training.losses))
        mean = np.convolve(training.losses, np.full(count, 1 / count), "valid")
        style = "--" if training.variant.library is TORCH else "-"
        axes["loss"].plot(range(count - 1, len(training.losses)), mean, style, label=name)
    axes["loss"].set(xlabel="step", ylabel=f"loss, mean of {count} steps")
    axes["loss"].legend()
    figure.savefig(path, dpi=100)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train a U-Net in several ways and compare them.")
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--size", type=int, default=64, help="of the images, in pixels")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="more help only on idle cores")
    parser.add_argument("--output", default="unet.png", help="the picture")
    parser.add_argument(
        "--variants",
        nargs="+",
        choices=VARIANTS,
        default=["eager", "channels_last", "compile", "bf16", "torch", "torch-channels_last"],
    )
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    if args.size % 2**LEVELS:
        parser.error(f"argument --size: expected a multiple of {2**LEVELS}, got {args.size}")

    photos = load_photographs()
    split = photos.shape[3] * 2 // 3
    rng = torch.Generator().manual_seed(args.seed)
    trainings = {name: Training(VARIANTS[name], args) for name in args.variants}
    progress = tqdm(
        range(args.steps),
        desc="training",
        unit="step",
        # A log file gets a line now and then, a terminal a moving bar.
        mininterval=0.1 if sys.stderr.isatty() else 5,
    )
    for _ in progress:
        images, classes = draw_images(photos[..., :split], BATCH, args.size, rng)
        for training in trainings.values():
            training.step(images, classes)

    unseen, truth = draw_images(photos[..., split:], UNSEEN, args.size, rng)
    reference = trainings.get("torch")
    agree = True
    last = min(20, args.steps)
    print(f"{'':22}seconds     loss, mean of    mean IoU on     largest difference to torch")
    print(
        f"{'variant':22}per step{f'the last {last}':>18}{'unseen images':>17}"
        f"{f'of the first {min(FIRST, args.steps)} losses':>29}"
    )
    for name, training in trainings.items():
        iou = mean_iou(training.predict(unseen), truth)
        row = (
            f"{name:22}{statistics.median(training.seconds):8.3f}"
            f"{statistics.mean(training.losses[-last:]):18.4f}{iou:17.3f}"
        )
        if reference not in (None, training):
            difference = largest_difference(training, reference)
            agree &= difference <= ALLOWED or training.variant.bf16
            row += f"{difference:29.1e}"
        print(row)
    if reference is not None:
        print(f"allowed in float32: {ALLOWED:.1e}")

    name, training = next(iter(trainings.items()))
    rows = {"image": unseen, "truth": truth, f"prediction: {name}": training.predict(unseen)}
    save_picture(args.output, rows, trainings)
    print(f"wrote {args.output}")
    return 0 if agree else 1


if __name__ == "__main__":
    raise SystemExit(main())
