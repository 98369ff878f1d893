"""Quantizes a residual network after training by torchao, and runs it in integers.

torchao's `X86InductorQuantizer` decides what is quantized, a few batches calibrate the scales, and
`convert_pt2e` returns a model in float32, in which quantize and dequantize operators (q/dq) round
all that would be integers. `torch_dnnl.quantization.lower` makes integers of it: each convolution,
with its bias, residual, ReLU and rounding, is one `quantized_convolution`.

The network is ResNet-18 or, by its name, one of torchvision's, of random weights, and the images
are random too: this measures how well the lowered model agrees with what torchao returned, and how
long they take; not what a network loses by being quantized.

    python examples/quantize_after_training.py               # under a minute on two CPU cores
    python examples/quantize_after_training.py --batch 8 --size 160 --threads 4
    python examples/quantize_after_training.py --torchvision resnet50
"""

import argparse
import logging
import time
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

import torch_dnnl
from torch_dnnl.quantization import lower


def conv_bn(inputs: int, outputs: int, size: int, stride: int = 1) -> torch.nn.Sequential:
    conv = torch.nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    return torch.nn.Sequential(conv, torch.nn.BatchNorm2d(outputs))


class Block(torch.nn.Module):
    """Two convolutions, and the input or a 1x1 convolution of it added."""

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.first = conv_bn(inputs, outputs, 3, stride)
        self.second = conv_bn(outputs, outputs, 3)
        same = inputs == outputs and stride == 1
        self.shortcut = torch.nn.Identity() if same else conv_bn(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return (self.second(self.first(x).relu()) + self.shortcut(x)).relu()


class ResNet18(torch.nn.Module):
    """[N, 3, H, W] -> [N, 1000]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 64, 7, stride=2)
        blocks, inputs = [], 64
        for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            blocks += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
            inputs = outputs
        self.blocks = torch.nn.Sequential(*blocks)
        self.classifier = torch.nn.Linear(inputs, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.stem(x).relu(), 3, 2, 1)
        return self.classifier(self.blocks(x).mean((2, 3)))


def random_images(count: int, size: int) -> Tensor:
    """Noise of all scales, about as smooth as photographs."""
    sizes = [size // 2**i for i in range(6)]
    layers = (torch.randn(count, 3, n, n) * (size / n) ** 0.5 for n in sizes)
    return sum(F.interpolate(layer, size, mode="bilinear") for layer in layers) / 8


@torch.no_grad()
def trained_network(size: int, name: str | None) -> torch.nn.Module:
    """Random weights, and batch norms that have seen images. `name`: torchvision's."""
    if name is None:
        network: torch.nn.Module = ResNet18()
    else:
        from torchvision import models  # which need not be installed

        network = models.get_model(name, weights=None)
    for _ in range(2):
        network(random_images(8, size))
    return network.eval()


def quantized(network: torch.nn.Module, images: Tensor) -> torch.fx.GraphModule:
    """In q/dq operators, calibrated on the images, for any batch."""
    batch = torch.export.Dim("batch", min=1, max=1024)
    # strict: the quantizer takes each call of a ReLU for a module of its own.
    program = torch.export.export(network, (images,), dynamic_shapes=({0: batch},), strict=True)
    exported = program.module()
    config = x86.get_default_x86_inductor_quantization_config()
    prepared = prepare_pt2e(exported, x86.X86InductorQuantizer().set_global(config))
    with torch.no_grad():
        prepared(images)
    return convert_pt2e(prepared)


class LastIntegers(torch.fx.Interpreter):
    """Runs a model and keeps the last bytes that it computes."""

    def run_node(self, node: torch.fx.Node) -> object:
        result = super().run_node(node)
        if isinstance(result, Tensor) and result.dtype == torch.uint8:
            self.integers = result
        return result


@torch.no_grad()
def compare(lowered: torch.fx.GraphModule, reference: torch.fx.GraphModule, x: Tensor) -> float:
    """Prints how far apart they are; returns the cosine of the angle between the logits."""
    runs = [LastIntegers(model) for model in (lowered, reference)]
    ours, theirs = (run.run(x) for run in runs)
    steps = (runs[0].integers.int() - runs[1].integers.int()).abs()
    cosine = F.cosine_similarity(ours, theirs).min().item()
    print(
        f"the last integers: at most {steps.max()} apart, {(steps > 0).double().mean():.2%} differ"
    )
    print(f"the logits: cosine {cosine:.6f}, {(ours - theirs).abs().max():.1e} apart", end=" ")
    print(f"of {theirs.abs().max():.2f}")
    return cosine


@torch.no_grad()
def milliseconds(model: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """The median time of a call."""
    times = []
    for _ in range(9):
        start = time.perf_counter()
        model(x)
        times.append(time.perf_counter() - start)
    return sorted(times)[len(times) // 2] * 1e3


def bytes_of(model: torch.nn.Module) -> int:
    return sum(tensor.nbytes for tensor in model.state_dict().values())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A network quantized after training.")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--size", type=int, default=224, help="of the images, in pixels")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--torchvision", metavar="NAME", help="one of its networks, if installed")
    args = parser.parse_args(arguments)
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    warnings.filterwarnings("ignore", category=FutureWarning)
    logging.getLogger("torch.export").setLevel(logging.ERROR)

    network = trained_network(args.size, args.torchvision)
    reference = quantized(network, random_images(16, args.size))
    start = time.perf_counter()
    lowered = lower(reference)
    convolutions = [n for n in lowered.graph.nodes if "quantized_convolution" in str(n.target)]
    print(f"lowered {len(convolutions)} convolutions in {time.perf_counter() - start:.2f} seconds")

    x = random_images(args.batch, args.size)
    cosine = compare(lowered, reference, x)
    print(f"\n{'':28}ms for {args.batch} images   megabytes")
    for name, model in (
        ("float32, torch", network),
        ("float32, torch_dnnl.convert", torch_dnnl.convert(network)),
        ("q/dq in float32, torchao", reference),
        ("int8, lowered", lowered),
    ):
        print(f"{name:28}{milliseconds(model, x):15.1f}{bytes_of(model) / 1e6:12.1f}")
    return 0 if cosine > 0.999 else 1


if __name__ == "__main__":
    raise SystemExit(main())
