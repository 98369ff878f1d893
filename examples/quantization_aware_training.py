"""Trains a digit classifier whose arithmetic is int8, or fewer bits, and runs it in integers.

A convolutional network learns scikit-learn's handwritten digits in float32. Then, for each number
of bits, its activations and weights are rounded by `Reorder(..., fake=True)` in front of every
convolution:

- after training: with steps (scales) that just cover the largest value seen, and no training;
- in training: from there, weights and steps learn together, for as many epochs again. The gradient
  of a step is that of learned step size quantization (LSQ; Esser et al., 2020), which the operator
  computes. A weight tensor has a step per output channel, an activation tensor one.

The trained network is then written as integers by `reorder` and computed in them: int8 activations
times int8 weights, summed in int32, and each sum brought to the int8 of the next layer by one
reorder (zero points, bias, scale and saturation in one pass). It classifies as the rounded float32
network does. Their logits differ by float32 rounding, and by a step of an activation where that
carries a sum across the middle between two codes.

    python examples/quantization_aware_training.py                # under a minute on one CPU core
    python examples/quantization_aware_training.py --bits 8 2 --epochs 40 --seed 1
"""

import argparse
import copy
import itertools
import math
import sys
from collections.abc import Sequence

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from torch_dnnl.functional import conv2d, fake_reorder, reorder
from torch_dnnl.nn import Conv2d, Reorder

TRAINING = 1200  # of 1797 digits, in the order of the data set; the others are for measuring
BATCH = 50
LEARNING_RATE = 4e-3
# Adam moves a parameter by about its learning rate: that of a step is this fraction of the step.
STEP_LEARNING_RATE = 5e-3


def zero_point_of(bits: int) -> int:
    """What to add to 0 ... 2^bits - 1 so that they are the uppermost codes of an int8."""
    return 128 - 2**bits


class ActivationRounding(torch.nn.Module):
    """To the 2^bits multiples 0, step, 2 step, ... of a learned step; for values that are >= 0."""

    def __init__(self, largest: Tensor, bits: int):
        super().__init__()
        self.step = torch.nn.Parameter((largest / (2**bits - 1)).reshape(1, 1, 1, 1))
        self.zero_point = zero_point_of(bits)
        self.round = Reorder(
            dtype=torch.int8, dst_scale=self.step, dst_zero_point=self.zero_point, fake=True
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.round(x)


class WeightRounding(torch.nn.Module):
    """To multiples -2^(bits - 1) ... 2^(bits - 1) - 1 of a learned step per output channel."""

    def __init__(self, weight: Tensor, bits: int):
        super().__init__()
        largest = weight.abs().amax(dim=(1, 2, 3), keepdim=True)
        self.step = torch.nn.Parameter(largest / (2 ** (bits - 1) - 1))
        # An int8 saturates at 127. A zero point lays the largest of fewer bits there, its negative
        # the smallest at -128; where both are 0, once is enough.
        shift = zero_point_of(bits - 1)
        self.round = torch.nn.Sequential(
            *(
                Reorder(dtype=torch.int8, dst_scale=self.step, dst_zero_point=zero, fake=True)
                for zero in sorted({shift, -shift})
            )
        )

    def forward(self, weight: Tensor) -> Tensor:
        return self.round(weight)


class RoundedConv(torch.nn.Module):
    """A convolution of rounded activations with rounded weights."""

    def __init__(self, conv: Conv2d, largest: Tensor, bits: int):
        super().__init__()
        self.conv = conv
        self.activations = ActivationRounding(largest, bits)
        self.weights = WeightRounding(conv.weight.detach(), bits)

    def forward(self, x: Tensor) -> Tensor:
        conv = self.conv
        weight = self.weights(conv.weight)
        bias = fake_reorder(conv.bias, dtype=torch.int32, dst_scale=self.sum_step())
        return conv2d(self.activations(x), weight, bias, conv.stride, conv.padding)

    def sum_step(self) -> Tensor:
        """What 1 stands for in the sums of integer products, [O]."""
        return (self.activations.step * self.weights.step).flatten()


class Digits(torch.nn.Module):
    """[N, 1, 8, 8] in float32 from 0 to 1 -> the logits of ten digits, [N, 10]."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            [
                Conv2d(1, 16, 3, padding=1),
                Conv2d(16, 32, 3, padding=1, stride=2),
                Conv2d(32, 10, 4),
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers[:-1]:
            x = layer(x).relu()
        return self.layers[-1](x).flatten(1)


@torch.no_grad()
def rounded(network: Digits, images: Tensor, bits: int) -> Digits:
    """A copy whose layers round to `bits` bits, with steps that just cover what they see here."""
    network = copy.deepcopy(network)
    x = images
    for i, layer in enumerate(network.layers):
        network.layers[i] = RoundedConv(layer, x.amax(), bits)
        x = layer(x).relu()
    return network


def train(network: Digits, images: Tensor, labels: Tensor, epochs: int, what: str) -> None:
    """Adam, with a learning rate that falls to 0 along a cosine; a moving bar or a few lines."""
    steps = [p for name, p in network.named_parameters() if name.endswith("step")]
    others = [p for name, p in network.named_parameters() if not name.endswith("step")]
    groups = [{"params": [p], "lr": STEP_LEARNING_RATE * p.mean().item()} for p in steps]
    optimizer = torch.optim.Adam([*groups, {"params": others}], lr=LEARNING_RATE)
    total = epochs * len(images) // BATCH
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 + 0.5 * math.cos(math.pi * step / total)
    )
    progress = tqdm(
        range(epochs), what, unit="epoch", mininterval=0.1 if sys.stderr.isatty() else 5
    )
    for _ in progress:
        for batch in torch.randperm(len(images)).split(BATCH):
            loss = F.cross_entropy(network(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        progress.set_postfix(loss=f"{loss.item():.4f}", refresh=False)


@torch.no_grad()
def accuracy(network: Digits, images: Tensor, labels: Tensor) -> float:
    """In percent."""
    return (network(images).argmax(1) == labels).double().mean().item() * 100


class IntegerConv:
    """A RoundedConv in integers: int8 in, int32 sums out; and what those sums mean."""

    def __init__(self, layer: RoundedConv):
        conv = layer.conv
        self.in_step, self.in_zero = layer.activations.step, layer.activations.zero_point
        self.stride, self.padding = conv.stride[0], conv.padding[0]
        self.weight = reorder(
            layer.weights(conv.weight), dtype=torch.int8, dst_scale=layer.weights.step
        )
        bias = reorder(conv.bias, dtype=torch.int32, dst_scale=layer.sum_step())
        # A sum is too large by the zero point times the weights and lacks the bias.
        zero = self.in_zero * self.weight.sum((1, 2, 3), dtype=torch.int32) - bias
        self.out_zero = zero.reshape(1, -1, 1, 1)
        self.out_scale = layer.sum_step().reshape(1, -1, 1, 1)

    def __call__(self, codes: Tensor) -> Tensor:
        """int8 [N, I, H, W] -> int32 [N, O, H', W']."""
        codes = F.pad(codes, [self.padding] * 4, value=self.in_zero)
        size = self.weight.size(2)
        patches = codes.unfold(2, size, self.stride).unfold(3, size, self.stride)
        patches = patches.permute(0, 2, 3, 1, 4, 5).flatten(3)  # [N, H', W', I * size * size]
        sums = patches.int() @ self.weight.flatten(1).T.int()
        return sums.permute(0, 3, 1, 2)


@torch.no_grad()
def integer_logits(network: Digits, images: Tensor) -> tuple[Tensor, int]:
    """The logits of a rounded network, computed in integers; and the bytes of its weights."""
    layers = [IntegerConv(layer) for layer in network.layers]
    first = layers[0]
    codes = reorder(images, dtype=torch.int8, dst_scale=first.in_step, dst_zero_point=first.in_zero)
    for layer, following in itertools.pairwise(layers):
        codes = reorder(
            layer(codes),
            dtype=torch.int8,
            src_zero_point=layer.out_zero,
            scale=layer.out_scale,
            dst_scale=following.in_step,
            dst_zero_point=following.in_zero,
        ).clamp(min=following.in_zero)  # ReLU
    last = layers[-1]
    logits = reorder(
        last(codes), dtype=torch.float32, src_zero_point=last.out_zero, scale=last.out_scale
    )
    return logits.flatten(1), sum(layer.weight.nbytes for layer in layers)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Quantization-aware training, run in integers.")
    parser.add_argument("--epochs", type=int, default=30, help="of each training")
    parser.add_argument("--bits", type=int, nargs="+", default=[8, 4, 3, 2], choices=range(2, 9))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(arguments)
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # so small a network has no work for more

    digits = load_digits()
    images = torch.from_numpy(digits.images).float().unsqueeze(1) / 16  # [1797, 1, 8, 8]
    labels = torch.from_numpy(digits.target)
    seen, unseen = (images[:TRAINING], labels[:TRAINING]), (images[TRAINING:], labels[TRAINING:])

    network = Digits()
    train(network, *seen, args.epochs, "float32")
    rows, agree = [], True
    for bits in args.bits:
        learned = rounded(network, seen[0], bits)
        without_training = accuracy(learned, *unseen)
        train(learned, *seen, args.epochs, f"{bits} bits")
        with torch.no_grad():
            logits = learned(unseen[0])
        integers, size = integer_logits(learned, unseen[0])
        # Two sums of integers can be equal, where rounding errors part those of float32.
        chosen = integers.gather(1, logits.argmax(1, keepdim=True)).flatten()
        same = (chosen == integers.amax(1)).sum().item()
        agree &= same == len(logits)
        rows.append(
            f"{bits:4}{without_training:16.1f}{accuracy(learned, *unseen):13.1f}"
            f"{(integers.argmax(1) == unseen[1]).double().mean() * 100:14.1f}"
            f"{same:11} of {len(logits)}{(integers - logits).abs().max():12.1e}"
            f" of {logits.abs().max():.1f}"
        )

    print(
        f"accuracy in percent on {len(unseen[0])} digits; float32: {accuracy(network, *unseen):.1f}"
    )
    print("          rounded after   rounded in   the same in   classified     largest difference")
    print("bits           training     training      integers      equally              of logits")
    print("\n".join(rows))
    print(f"weights: {size} bytes of int8, {4 * size} of float32")
    return 0 if agree else 1


if __name__ == "__main__":
    raise SystemExit(main())
