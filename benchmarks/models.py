"""Times whole models of other libraries, as they are and converted by `torch_dnnl.convert`.

    pip install torchvision transformers diffusers
    python benchmarks/models.py --dtype bfloat16
    python benchmarks/models.py --match resnet --layouts nhwc --modes training

The models have random weights; one whose library is not installed is left out, and named. A row
has the median milliseconds of a call, the two models in turn and warm; torch's time divided by
ours; and how far each result is from that of the model in float64, relative to its largest value. A
training step is the forward pass, the mean square of the result as its loss, the backward pass and
a step of SGD.
"""

import argparse
import copy
import csv
import importlib.util
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from measure import interleaved
from torch import Tensor, nn

import torch_dnnl


@dataclass
class Model:
    library: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of the input
    result: str | None = None  # the attribute of what forward() returns
    arguments: dict[str, object] = field(default_factory=dict)  # of forward(), beside the input

    def run(self, module: nn.Module, x: Tensor) -> Tensor:
        result = module(x, **self.arguments)
        return getattr(result, self.result) if self.result else result


def of_torchvision(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from torchvision import models

        return getattr(models, name)(weights=None)

    return make


def of_transformers(name: str, **config: object) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        kind = getattr(transformers, name)
        return kind(kind.config_class(**config))

    return make


def upernet() -> nn.Module:
    import transformers

    sizes = [96, 192, 384, 768]  # a list: the backbone appends to it
    stages = [f"stage{i}" for i in range(1, 5)]
    backbone = transformers.ConvNextConfig(hidden_sizes=sizes, out_features=stages)
    config = transformers.UperNetConfig(backbone_config=backbone, use_auxiliary_head=False)
    return transformers.UperNetForSemanticSegmentation(config)


def wav2vec2() -> nn.Module:
    """The convolutions alone, in float32 the most of its time."""
    import transformers

    return transformers.Wav2Vec2Model(transformers.Wav2Vec2Config()).feature_extractor


def of_diffusers(name: str, **config: object) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import diffusers

        return getattr(diffusers, name)(**config)

    return make


UNET = {"sample_size": 64, "block_out_channels": (64, 128, 256, 256)}
VAE = {
    "block_out_channels": (64, 128, 256),
    "down_block_types": ("DownEncoderBlock2D",) * 3,
    "up_block_types": ("UpDecoderBlock2D",) * 3,
    "layers_per_block": 2,
}
MODELS = {
    "resnet50": Model("torchvision", of_torchvision("resnet50"), (2, 3, 224, 224)),
    "convnext_tiny": Model("torchvision", of_torchvision("convnext_tiny"), (2, 3, 224, 224)),
    "mobilenet_v2": Model("torchvision", of_torchvision("mobilenet_v2"), (4, 3, 224, 224)),
    "segformer_b0": Model(
        "transformers",
        of_transformers("SegformerForSemanticSegmentation"),
        (1, 3, 256, 256),
        "logits",
    ),
    "upernet_convnext": Model("transformers", upernet, (2, 3, 256, 256), "logits"),
    "unet2d": Model(
        "diffusers",
        of_diffusers("UNet2DModel", **UNET),
        (1, 3, 64, 64),
        "sample",
        {"timestep": 10},
    ),
    "autoencoder_kl": Model(
        "diffusers", of_diffusers("AutoencoderKL", **VAE), (1, 3, 128, 128), "sample"
    ),
    "wav2vec2_features": Model("transformers", wav2vec2, (2, 16000)),
}


def in_layout(value: nn.Module | Tensor, layout: str) -> nn.Module | Tensor:
    is_image = isinstance(value, nn.Module) or value.dim() == 4
    return value.to(memory_format=torch.channels_last) if layout == "nhwc" and is_image else value


def inference(model: Model, module: nn.Module, x: Tensor) -> Callable[[], object]:
    module.eval()

    @torch.no_grad()
    def call() -> Tensor:
        return model.run(module, x)

    return call


def training(model: Model, module: nn.Module, x: Tensor) -> Callable[[], object]:
    module.train()
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-6)

    def call() -> None:
        optimizer.zero_grad(set_to_none=True)
        model.run(module, x).float().square().mean().backward()
        optimizer.step()

    return call


MODES = {"inference": inference, "training": training}


def rows(names: list[str], args: argparse.Namespace) -> Iterator[dict[str, object]]:
    dtype = getattr(torch, args.dtype)
    for name in names:
        model = MODELS[name]
        torch.manual_seed(0)
        exact = model.make().double().eval()
        x = torch.randn(model.shape, dtype=torch.float64)
        with torch.no_grad():
            expected = model.run(exact, x)
        for layout in args.layouts.split(","):
            theirs = in_layout(copy.deepcopy(exact).to(dtype), layout)
            ours = torch_dnnl.convert(copy.deepcopy(theirs))
            image = in_layout(x.to(dtype), layout)
            with torch.no_grad():
                errors = [
                    (model.run(module, image).double() - expected).abs().max().item()
                    / expected.abs().max().item()
                    for module in (ours, theirs)
                ]
            for mode in args.modes.split(","):
                calls = [MODES[mode](model, module, image) for module in (ours, theirs)]
                times = interleaved(*calls, rounds=9, budget=args.seconds)
                yield {
                    "model": name,
                    "layout": layout,
                    "mode": mode,
                    "dtype": args.dtype,
                    "ours_ms": times[0] * 1e3,
                    "peer_ms": times[1] * 1e3,
                    "ratio": times[1] / times[0],
                    "error": errors[0],
                    "peer_error": errors[1],
                }


def main() -> None:
    parser = argparse.ArgumentParser(description="Time whole models of other libraries.")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--layouts", default="nchw,nhwc")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--match", default="", help="only models with this in their name")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each row")
    parser.add_argument("--csv", type=Path, help="where the rows are written")
    args = parser.parse_args()
    named = [name for name in MODELS if args.match in name]
    names = [name for name in named if importlib.util.find_spec(MODELS[name].library)]
    if missing := sorted({MODELS[name].library for name in named if name not in names}):
        print(f"not installed, and left out: {', '.join(missing)}")
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    print(f"{'model':>18} {'':4} {'':9} {'ours ms':>9} {'peer ms':>9} {'ratio':>6}", end="")
    print(f" {'error':>9} {'peer error':>10}")
    done = []
    for row in rows(names, args):
        done.append(row)
        print(
            "{model:>18} {layout} {mode:9} {ours_ms:9.1f} {peer_ms:9.1f} {ratio:6.2f}"
            " {error:9.1e} {peer_error:10.1e}".format(**row),
            flush=True,
        )
    if done:
        ratios = [float(row["ratio"]) for row in done]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"{len(done)} rows: geometric mean {mean:.2f}, worst {min(ratios):.2f}")
    if args.csv and done:
        with args.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, done[0])
            writer.writeheader()
            writer.writerows(done)


if __name__ == "__main__":
    main()
