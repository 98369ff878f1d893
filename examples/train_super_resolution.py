"""Trains a x2 super-resolution network on two photographs and compares it with bicubic upsampling.

The network learns from the left two thirds of each photograph and is measured on the right third,
which it has never seen. Every image operation is torch_dnnl's: one Reorder turns uint8 NHWC into
float32 NCHW, Resample makes the small images and the copies of the photographs at other scales, and
the network is made of Conv2d and Resample.

    python examples/train_super_resolution.py                 # two minutes on two CPU cores
    python examples/train_super_resolution.py --device cuda --dtype bf16 --compile
    python examples/train_super_resolution.py --check         # the same training with torch.nn
"""

import argparse
import functools
import sys
import time
from collections.abc import Iterator

import numpy as np
import torch
from sklearn.datasets import load_sample_images
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from torch_dnnl.functional import reorder, resample
from torch_dnnl.nn import Conv2d, Resample

WIDTH, BLOCKS = 32, 4  # channels and residual blocks of the network
BATCH, CROP = 16, 64
SCALES = (1.0, 0.8, 0.6, 0.4)  # of the photographs in training
LEARNING_RATE = 2e-3
DETAIL = 96  # side of what the picture shows of each photograph

OURS = {
    "conv": Conv2d,
    "nearest": Resample(scale_factor=2, mode="nearest"),
    "bicubic": Resample(scale_factor=2, mode="cubic"),
}
TORCH = {
    "conv": torch.nn.Conv2d,
    "nearest": torch.nn.Upsample(scale_factor=2, mode="nearest"),
    "bicubic": torch.nn.Upsample(scale_factor=2, mode="bicubic"),
}


class SuperResolution(torch.nn.Module):
    """[N, 3, H, W] -> [N, 3, 2H, 2W]: bicubic upsampling plus the details that it lacks.

    Nearly all of the work is done at the low resolution, where it costs a quarter.
    """

    def __init__(self, conv, nearest, bicubic):
        super().__init__()
        conv = functools.partial(conv, kernel_size=3, padding=1)
        self.head = conv(3, WIDTH)
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(conv(WIDTH, WIDTH), torch.nn.ReLU(), conv(WIDTH, WIDTH))
            for _ in range(BLOCKS)
        )
        self.neck = conv(WIDTH, WIDTH // 2)
        self.nearest = nearest
        self.tail = conv(WIDTH // 2, 3)
        self.bicubic = bicubic
        # Training starts from blocks that pass their input on and from no details at all.
        for layer in (*(block[-1] for block in self.blocks), self.tail):
            torch.nn.init.zeros_(layer.weight)
            torch.nn.init.zeros_(layer.bias)

    def forward(self, image: Tensor) -> Tensor:
        features = self.head(image - 0.5)
        for block in self.blocks:
            features = features + block(features)
        return self.bicubic(image) + self.tail(self.nearest(self.neck(features)))


def load_photographs(device: str) -> tuple[list[str], Tensor]:
    """Their names, and [photograph, 3, H, W] in float32 from 0 to 1, with even H and W."""
    data = load_sample_images()
    pixels = torch.from_numpy(np.stack(data.images)).to(device)  # uint8 [photograph, H, W, 3]
    photos = reorder(pixels.permute(0, 3, 1, 2), "nchw", dtype=torch.float32, scale=1 / 255)
    height, width = (size // 2 * 2 for size in photos.shape[2:])
    return [name.split("/")[-1] for name in data.filenames], photos[..., :height, :width]


def shrink(images: Tensor, factor: float = 0.5) -> Tensor:
    return resample(images, scale_factor=factor, mode="cubic", antialias=True)


def random_crops(pyramid: list[Tensor], rng: torch.Generator) -> Tensor:
    """[BATCH, 3, CROP, CROP] from any photograph at any scale, turned and mirrored at random."""

    def draw(n: int) -> int:
        return int(torch.randint(n, (), generator=rng))

    crops = []
    for _ in range(BATCH):
        photos = pyramid[draw(len(pyramid))]
        photo = photos[draw(len(photos))]
        top, left = (draw(size - CROP + 1) for size in photo.shape[1:])
        crop = photo[:, top : top + CROP, left : left + CROP].rot90(draw(4), (1, 2))
        crops.append(crop.flip(2) if draw(2) else crop)
    return torch.stack(crops)


def train(network: torch.nn.Module, photos: Tensor, args: argparse.Namespace) -> Iterator[float]:
    """Takes args.steps steps and yields the loss of each; the same crops for the same seed."""
    rng = torch.Generator().manual_seed(args.seed)
    pyramid = [shrink(photos, scale) for scale in SCALES]
    optimizer = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=args.steps, pct_start=0.05
    )
    if args.compile:
        network = torch.compile(network, fullgraph=True)
    for _ in range(args.steps):
        truth = random_crops(pyramid, rng)
        with torch.autocast(args.device, torch.bfloat16, enabled=args.dtype == "bf16"):
            loss = F.l1_loss(network(shrink(truth)), truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        yield loss.item()


def check(photos: Tensor, args: argparse.Namespace) -> bool:
    """Trains our network and the same one made of torch.nn side by side; do the losses agree?"""
    torch.backends.cudnn.allow_tf32 = False  # torch would round its operands to 10 bits
    args.steps = 10
    ours, theirs = SuperResolution(**OURS), SuperResolution(**TORCH)
    theirs.load_state_dict(ours.state_dict())
    pairs = zip(
        train(ours.to(args.device), photos, args),
        train(theirs.to(args.device), photos, args),
        strict=True,
    )
    largest = 0.0
    print("step  torch_dnnl  torch.nn    difference")
    for step, (a, b) in enumerate(pairs):
        largest = max(largest, abs(a - b))
        print(f"{step:4}  {a:.8f}  {b:.8f}  {abs(a - b):.1e}")
    print(f"largest difference {largest:.1e}, allowed 1.0e-04")
    return largest <= 1e-4


@torch.no_grad()
def enlarge(network: torch.nn.Module, images: Tensor) -> Tensor:
    """The mean of what the network makes of each image turned and mirrored in the eight ways."""
    results = []
    for turns in range(4):
        turned = images.rot90(turns, (2, 3))
        for view, back in ((turned, lambda x: x), (turned.flip(3), lambda x: x.flip(3))):
            results.append(back(network(view)).rot90(-turns, (2, 3)))
    return torch.stack(results).mean(0)


def psnr(image: Tensor, truth: Tensor) -> float:
    return -10 * F.mse_loss(image.clamp(0, 1), truth).log10().item()


def where_bicubic_fails(bicubic: Tensor, truth: Tensor) -> tuple[int, int]:
    """Top and left of the square detail that has the largest error."""
    error = F.avg_pool2d((bicubic - truth).square().mean(0, keepdim=True), DETAIL, stride=8)[0]
    row, column = divmod(int(error.argmax()), error.shape[1])
    return row * 8, column * 8


def save_picture(
    path: str, names: list[str], rows: list[list[Tensor]], losses: list[float]
) -> None:
    """A detail of each photograph: low resolution, bicubic, ours, truth; and the loss below."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplot_mosaic(
        [[f"{name} {column}" for column in range(4)] for name in names] + [["loss"] * 4],
        figsize=(13, 11),
        layout="constrained",
    )
    titles = ("low resolution", "bicubic", "ours", "truth")
    for name, images in zip(names, rows, strict=True):
        top, left = where_bicubic_fails(images[1], images[3])
        for column, (title, image) in enumerate(zip(titles, images, strict=True)):
            y, x, side = (n // 2 if column == 0 else n for n in (top, left, DETAIL))
            detail = image[:, y : y + side, x : x + side].clamp(0, 1)
            axis = axes[f"{name} {column}"]
            axis.imshow(detail.permute(1, 2, 0).cpu().numpy(), interpolation="nearest")
            axis.set_title(f"{name}: {title}")
            axis.axis("off")
    count = min(50, len(losses))
    mean = np.convolve(losses, np.full(count, 1 / count), "valid")
    axes["loss"].plot(losses, linewidth=0.3, label="each step")
    axes["loss"].plot(range(count - 1, len(losses)), mean, label=f"mean of {count} steps")
    axes["loss"].set(xlabel="step", ylabel="mean absolute error")
    axes["loss"].legend()
    figure.savefig(path, dpi=100)


def main() -> int:
    parser = argparse.ArgumentParser(description="Train a x2 super-resolution network.")
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32", help="bf16: by autocast")
    parser.add_argument("--compile", action="store_true", help="train through torch.compile")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", default="demo.png", help="the picture")
    parser.add_argument("--check", action="store_true", help="compare ten steps with torch.nn")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    names, photos = load_photographs(args.device)
    split = photos.shape[3] * 2 // 3 // 2 * 2
    seen, unseen = photos[..., :split], photos[..., split:]
    if args.check:
        return 0 if check(seen, args) else 1

    network = SuperResolution(**OURS).to(args.device)
    start = time.perf_counter()
    losses = []
    progress = tqdm(
        train(network, seen, args),
        total=args.steps,
        desc="training",
        unit="step",
        # A log file gets a line now and then, a terminal a moving bar.
        mininterval=0.1 if sys.stderr.isatty() else 5,
    )
    for loss in progress:
        losses.append(loss)
        progress.set_postfix(loss=f"{np.mean(losses[-50:]):.4f}", refresh=False)
    print(f"{args.steps} steps in {time.perf_counter() - start:.0f} s")

    small = shrink(unseen)
    bicubic, ours = OURS["bicubic"](small), enlarge(network, small)
    print(f"{'right third of':16}{'bicubic':>10}{'ours':>10}{'gain':>10}   (PSNR in dB)")
    for name, *images in zip(names, bicubic, ours, unseen, strict=True):
        before, after = psnr(images[0], images[2]), psnr(images[1], images[2])
        print(f"{name:16}{before:10.2f}{after:10.2f}{after - before:+10.2f}")
    rows = [list(images) for images in zip(small, bicubic, ours, unseen, strict=True)]
    save_picture(args.output, names, rows, losses)
    print(f"wrote {args.output}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
