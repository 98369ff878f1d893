"""Times a quantized ResNet-50 by several ways of running it.

    python benchmarks/quantized_models.py
    python benchmarks/quantized_models.py --batch 1 --size 160 --threads 4

The network has random weights. torchao's `X86InductorQuantizer` quantizes it, as in
examples/quantize_after_training.py. For images in NCHW and channels_last, a table has the median
milliseconds of a call, interleaved and warm; torch's time in float32 divided by each; and how far
the logits are from those of torchao's model of quantize and dequantize operators (q/dq), relative
to the largest of them. Below it: how far the last integers of the lowered model are from q/dq's.
"""

import argparse
import copy
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from measure import interleaved
from torch import Tensor
from torch.nn import functional as F

import torch_dnnl
from torch_dnnl.quantization import lower

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from quantize_after_training import LastIntegers, conv_bn, quantized, random_images

FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8")


class Bottleneck(torch.nn.Module):
    """Convolutions of 1x1, 3x3 and 1x1, and the input or a 1x1 convolution of it added."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.reduce = conv_bn(inputs, width, 1)
        self.conv = conv_bn(width, width, 3, stride)
        self.expand = conv_bn(width, outputs, 1)
        same = inputs == outputs and stride == 1
        self.shortcut = torch.nn.Identity() if same else conv_bn(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(self.reduce(x).relu()).relu()
        return (self.expand(y) + self.shortcut(x)).relu()


class ResNet50(torch.nn.Module):
    """[N, 3, H, W] -> [N, 1000]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv_bn(3, 64, 7, stride=2)
        blocks, inputs = [], 64
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for i in range(count):
                blocks.append(Bottleneck(inputs, width, stride if i == 0 else 1))
                inputs = 4 * width
        self.blocks = torch.nn.Sequential(*blocks)
        self.classifier = torch.nn.Linear(inputs, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(self.stem(x).relu(), 3, 2, 1)
        return self.classifier(self.blocks(x).mean((2, 3)))


def describe_cpu() -> str:
    """The name of the CPU, and which of the instructions that matter it has."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    fields = {name.strip(): value.strip() for name, _, value in (s.partition(":") for s in lines)}
    own = fields.get("flags", "").split()
    has = ", ".join(flag if flag in own else f"no {flag}" for flag in FLAGS)
    return f"{fields.get('model name', 'unknown CPU')}: {has}"


def compare(network: torch.nn.Module, x: Tensor, label: str, seconds: float) -> None:
    """Prints the table of a memory format, that of the network and the images."""
    calibration = random_images(8, x.size(-1))
    if label == "channels_last":
        calibration = calibration.contiguous(memory_format=torch.channels_last)
    reference = quantized(network, calibration)
    lowered = lower(reference)
    models: dict[str, Callable[[Tensor], Tensor]] = {
        "float32, torch": network,
        "float32, torch_dnnl.convert": torch_dnnl.convert(network),
        "int8, lowered": lowered,
        "int8, lowered, compiled": torch.compile(lowered),
        "int8, pt2e and Inductor": torch.compile(reference),
    }
    expected = reference(x)
    errors = {
        name: ((model(x) - expected).abs().max() / expected.abs().max()).item()  # compiles it
        for name, model in models.items()
    }
    times = interleaved(*(lambda m=m: m(x) for m in models.values()), rounds=9, budget=seconds)
    print(f"\n{label:28}{'ms':>10}{'ratio':>8}{'error':>10}")
    for (name, error), time in zip(errors.items(), times, strict=True):
        print(f"{name:28}{time * 1e3:10.1f}{times[0] / time:8.2f}{error:10.1e}")
    runs = [LastIntegers(model) for model in (lowered, reference)]
    for run in runs:
        run.run(x)
    steps = (runs[0].integers.int() - runs[1].integers.int()).abs()
    print(
        f"the last integers of the lowered model and of q/dq: at most {steps.max()} apart, ", end=""
    )
    print(f"{(steps > 0).double().mean():.2%} differ", flush=True)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description="Time a quantized ResNet-50.")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--size", type=int, default=224, help="of the images, in pixels")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=60.0, help="for each memory format")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    torch._inductor.config.freezing = True  # without it, Inductor keeps q/dq in float32
    warnings.filterwarnings("ignore")
    logging.getLogger("torch.export").setLevel(logging.ERROR)
    print(
        f"{describe_cpu()}\ntorch {torch.__version__}, {args.threads} threads, batch {args.batch}"
    )

    network = ResNet50()
    network(random_images(8, args.size))  # batch norms see images
    network.eval()
    x = random_images(args.batch, args.size)
    for label, memory_format in (
        ("NCHW", torch.contiguous_format),
        ("channels_last", torch.channels_last),
    ):
        own = copy.deepcopy(network).to(memory_format=memory_format)
        compare(own, x.contiguous(memory_format=memory_format), label, args.seconds)


if __name__ == "__main__":
    main()
