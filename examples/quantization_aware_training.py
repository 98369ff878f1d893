"""Trains a digit classifier whose arithmetic is int8, or fewer bits, and runs it in integers.

A convolutional network learns scikit-learn's handwritten digits in float32. Then, for each number
of bits, its activations and weights are rounded by `Reorder(..., fake=True)` in front of every
convolution:

- after training: with steps (scales) that just cover the largest value seen, and no training;
- in training: from there, weights and steps learn together, for as many epochs again. The gradient
  of a step is that of learned step size quantization (LSQ; Esser et al., 2020), which the operator
  computes. A weight tensor has a step per output channel, an activation tensor one.

The trained network is then written as integers, a `QuantizedConv2d` for each layer, and computed in
them: int8 activations times int8 weights, summed in int32, and each sum brought to the int8 of the
next layer (zero points, bias, scale, ReLU and saturation) before it is written. It classifies as
the rounded float32 network does. Their logits differ by float32 rounding, and by a step of an
activation where that carries a sum across the middle between two codes. Fewer than 8 bits are
stored and computed as int8 too.

    python examples/quantization_aware_training.py                # under a minute on one CPU core
    python examples/quantization_aware_training.py --bits 8 2 --epochs 40 --seed 1
"""

import argparse
import copy
import math
import sys
import time
from collections.abc import Sequence

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F
from tqdm import tqdm

from torch_dnnl.functional import conv2d
from torch_dnnl.nn import Conv2d, QuantizedConv2d, Reorder

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
        return conv2d(self.activations(x), weight, conv.bias, conv.stride, conv.padding)

    @torch.no_grad()
    def in_integers(self, following: ActivationRounding | None) -> QuantizedConv2d:
        """The same with int8 weights: int8 in; int8 out, after ReLU, as the layer `following`
        rounds its input, or float32."""
        rounded = copy.deepcopy(self.conv)
        rounded.weight.copy_(self.weights(self.conv.weight))
        result = {"dtype": torch.float32}
        if following is not None:
            result = {
                "dst_scale": following.step,
                "dst_zero_point": following.zero_point,
                "activation": "relu",
            }
        return QuantizedConv2d.from_float(
            rounded,
            src_scale=self.activations.step,
            src_zero_point=self.activations.zero_point,
            weight_scale=self.weights.step.flatten(),
            **result,
        )


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


def in_integers(network: Digits) -> torch.nn.Sequential:
    """The network of RoundedConvs with integers between its layers."""
    roundings = [layer.activations for layer in network.layers]
    first = roundings[0]
    return torch.nn.Sequential(
        Reorder(dtype=torch.int8, dst_scale=first.step.detach(), dst_zero_point=first.zero_point),
        *(
            layer.in_integers(following)
            for layer, following in zip(network.layers, [*roundings[1:], None], strict=True)
        ),
        torch.nn.Flatten(),
    )


def bytes_of_weights(network: torch.nn.Module) -> int:
    convolutions = [m for m in network.modules() if isinstance(m, (Conv2d, QuantizedConv2d))]
    return sum(layer.weight.nbytes for layer in convolutions)


@torch.no_grad()
def milliseconds(network: torch.nn.Module, images: Tensor) -> float:
    """The median time of a batch."""
    times = []
    for _ in range(30):
        start = time.perf_counter()
        network(images)
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2] * 1e3


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
    kinds: dict[str, torch.nn.Module] = {"float32": network}
    for bits in args.bits:
        learned = rounded(network, seen[0], bits)
        without_training = accuracy(learned, *unseen)
        train(learned, *seen, args.epochs, f"{bits} bits")
        with torch.no_grad():
            logits = learned(unseen[0])
            as_integers = in_integers(learned)
            integers = as_integers(unseen[0])
        kinds |= {f"{bits} bits, rounded float32": learned, f"{bits} bits, int8": as_integers}
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
    print(f"\n{'':24}accuracy   ms for {len(unseen[0])} digits   bytes of weights")
    for kind, model in kinds.items():
        cost = f"{milliseconds(model, unseen[0]):20.2f}{bytes_of_weights(model):19}"
        print(f"{kind:24}{accuracy(model, *unseen):8.1f}{cost}")
    return 0 if agree else 1


if __name__ == "__main__":
    raise SystemExit(main())
