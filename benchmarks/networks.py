"""Models of other libraries with random weights, which models.py times.

A model whose library is not installed cannot be made; `MODELS[name].library` says which it is.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


@dataclass
class Model:
    library: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of the input
    result: str | None = None  # the key or attribute of what forward() returns
    arguments: dict[str, object] = field(default_factory=dict)  # of forward(), beside the input

    def run(self, module: nn.Module, x: Tensor) -> Tensor:
        result = module(x, **self.arguments)
        if not self.result:
            return result
        is_dict = isinstance(result, dict)
        return result[self.result] if is_dict else getattr(result, self.result)


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


def of_timm(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import timm

        return timm.create_model(name, pretrained=False)

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

_IMAGE = (1, 3, 224, 224)


def _classifiers(library: str, make: Callable, *names: str) -> dict[str, Model]:
    return {name: Model(library, make(name), _IMAGE) for name in names}


# `models.py --all` times the twenty networks of MODELS and MORE_MODELS.
MORE_MODELS = {
    **_classifiers(
        *("torchvision", of_torchvision),
        *("resnet18", "densenet121", "mobilenet_v3_large", "efficientnet_b0", "regnet_y_400mf"),
        "shufflenet_v2_x1_0",
    ),
    **_classifiers(
        *("timm", of_timm),
        *("repvgg_a0", "ghostnet_100", "fastvit_t8", "convnextv2_atto", "hrnet_w18_small"),
    ),
    "pvt_v2": Model(
        "transformers", of_transformers("PvtV2ForImageClassification"), _IMAGE, "logits"
    ),
}


class UNet(nn.Module):
    """Two 3x3 convolutions on each of four levels, max-pools, bilinear resizes, concatenations."""

    def __init__(self) -> None:
        super().__init__()
        widths = (32, 64, 128, 256)
        self.down = nn.ModuleList(map(_double, (3, *widths[:-1]), widths))
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.up = nn.ModuleList(_double(low + high, high) for low, high in pairs)
        self.pool, self.resize = nn.MaxPool2d(2), nn.UpsamplingBilinear2d(scale_factor=2)
        self.head = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for layer in self.down:
            x = layer(self.pool(x) if kept else x)
            kept.append(x)
        for layer, other in zip(self.up, kept[-2::-1], strict=True):
            x = layer(torch.cat([self.resize(x), other], 1))
        return self.head(x)


def _double(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for channels in (inputs, outputs):
        layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False)]
        layers += [nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class Decoder(nn.Module):
    """The decoder of a variational autoencoder of diffusers."""

    def __init__(self) -> None:
        super().__init__()
        self.vae = of_diffusers("AutoencoderKL", **VAE)()

    def forward(self, x: Tensor) -> Tensor:
        return self.vae.decode(x).sample


def hifigan() -> nn.Module:
    import transformers

    return transformers.SpeechT5HifiGan(
        transformers.SpeechT5HifiGanConfig(upsample_initial_channel=128)
    )


def detr() -> nn.Module:
    import transformers

    backbone = transformers.ResNetConfig(out_features=["stage4"])
    options = {"use_pretrained_backbone": False, "use_timm_backbone": False}
    config = transformers.DetrConfig(backbone_config=backbone, backbone=None, **options)
    return transformers.DetrForObjectDetection(config)


def of_segmentation(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from torchvision.models import segmentation

        return getattr(segmentation, name)(weights=None, weights_backbone=None)

    return make


# The networks of engines.py, with one image each: classification, segmentation, diffusion,
# detection, super-resolution, audio.
ENGINE_NETWORKS = {
    **_classifiers(
        *("timm", of_timm),
        *("resnet50", "mobilenetv2_100", "mobilenetv3_large_100", "efficientnet_b0"),
        *("convnext_tiny", "regnety_016", "repvgg_a2"),
    ),
    "segformer_b0": MODELS["segformer_b0"],
    "unet2d": MODELS["unet2d"],
    "vae_decoder": Model("diffusers", Decoder, (1, 4, 32, 32)),
    "unet": Model("torch", UNet, (1, 3, 192, 192)),
    **{
        name: MORE_MODELS[name]
        for name in ("resnet18", "densenet121", "shufflenet_v2_x1_0", "ghostnet_100", "fastvit_t8")
    },
    **{name: MORE_MODELS[name] for name in ("convnextv2_atto", "hrnet_w18_small", "pvt_v2")},
    "deeplabv3": Model(
        "torchvision", of_segmentation("deeplabv3_mobilenet_v3_large"), (1, 3, 224, 224), "out"
    ),
    "detr": Model("transformers", detr, (1, 3, 256, 256), "logits"),
    "swin2sr": Model(
        "transformers",
        of_transformers("Swin2SRForImageSuperResolution", embed_dim=60, depths=[4], num_heads=[6]),
        (1, 3, 64, 64),
        "reconstruction",
    ),
    "wav2vec2_features": Model("transformers", wav2vec2, (1, 16000)),
    "hifigan": Model("transformers", hifigan, (1, 50, 80)),
}
