"""The models of timm for `image_models.py`."""

from collections.abc import Callable
from typing import Any

from image_models import ImageModel, made_by
from torch import nn


def model(name: str, multiple: int = 32, **config: Any) -> ImageModel:
    def make(timm: Any) -> nn.Module:
        return timm.create_model(name, num_classes=10, **config)

    return ImageModel("timm", made_by("timm", make), None, multiple)


def of(module: str, make: Callable[[Any], nn.Module]) -> ImageModel:
    """A model of which timm has no small one by name."""
    return ImageModel("timm", made_by(f"timm.models.{module}", make))


def byob(kind: str, **options: Any) -> ImageModel:
    def make(byobnet: Any) -> nn.Module:
        channels = (16, 24, 32, 48)
        blocks = tuple(byobnet.ByoBlockCfg(type=kind, d=1, c=c, s=2, **options) for c in channels)
        config = byobnet.ByoModelCfg(blocks=blocks, stem_type=kind, stem_chs=16)
        return byobnet.ByobNet(config, num_classes=10)

    return of("byobnet", make)


def mobilenet_v3(mobilenetv3: Any) -> nn.Module:
    blocks = [
        ["ds_r1_k3_s2_e1_c16_se0.25_nre"],
        ["ir_r1_k3_s2_e4.5_c24_nre", "ir_r1_k3_s1_e3_c24_nre"],
        ["ir_r2_k5_s2_e4_c32_se0.25"],
        ["ir_r1_k5_s2_e3_c48_se0.25"],
        ["cn_r1_k1_s1_c96"],
    ]
    args = mobilenetv3.decode_arch_def(blocks)
    return mobilenetv3.MobileNetV3(args, num_classes=10, num_features=64, act_layer=nn.Hardswish)


def hrnet(hrnet: Any) -> nn.Module:
    channels = (16, 24, 32, 48)
    config: dict[str, Any] = {"stem_width": 16}
    for n in range(1, 5):
        config[f"stage{n}"] = {
            "num_modules": 1,
            "num_branches": n,
            "block_type": "BOTTLENECK" if n == 1 else "BASIC",
            "num_blocks": (1,) * n,
            "num_channels": channels[:n],
            "fuse_method": "SUM",
        }
    return hrnet.HighResolutionNetFeatures(config, feature_location="")


def darknet(cspnet: Any) -> nn.Module:
    stem = cspnet.CspStemCfg(out_chs=16, kernel_size=6, stride=2, padding=2, pool="")
    kinds = {"stage_type": "cs3", "block_type": "dark"}
    stages = cspnet.CspStagesCfg(
        depth=(1, 1, 1, 1), out_chs=(24, 32, 48, 64), block_ratio=0.5, **kinds
    )
    config = cspnet.CspModelCfg(stem=stem, stages=stages, act_layer="silu")
    return cspnet.CspNet(config, num_classes=10)


GHOSTS = [  # of each block: kernel, inner channels, channels, squeeze and excitation, stride
    [[3, 16, 16, 0, 1]],
    [[3, 48, 24, 0, 2], [3, 48, 24, 0, 1]],
    [[5, 72, 32, 0.25, 2], [5, 72, 32, 0.25, 1]],
    [[3, 96, 48, 0, 2]],
    [[5, 96, 48, 0.25, 2]],
]
VOVNET = {
    "stem_chs": [16, 16, 16],
    "stage_conv_chs": [16, 24, 24, 32],
    "stage_out_chs": [24, 32, 48, 64],
    "layer_per_block": 2,
    "block_per_stage": [1, 1, 1, 1],
    "residual": True,
    "depthwise": True,
    "attn": "ese",
}
DEPTHS, DIMS = (1, 1, 1, 1), (16, 24, 32, 48)
MAXXVIT = {"embed_dim": (32, 32, 32, 64), "depths": DEPTHS, "stem_width": (8, 16)}
MODELS = {
    "timm_nfnet": model("test_nfnet"),
    "timm_maxvit": model("maxvit_rmlp_pico_rw_256", 64, img_size=64, **MAXXVIT),
    "timm_edgenext": model("edgenext_xx_small", dims=DIMS, depths=DEPTHS),
    "timm_fastvit": model("fastvit_t8", embed_dims=(16, 32, 64, 128), layers=DEPTHS),
    "timm_mobilenet_v3": of("mobilenetv3", mobilenet_v3),
    "timm_ghostnet": of("ghostnet", lambda m: m.GhostNet(GHOSTS, num_classes=10)),
    "timm_repvgg": byob("rep"),
    "timm_mobileone": byob("one", block_kwargs={"num_conv_branches": 2}),
    "timm_hrnet": of("hrnet", hrnet),
    "timm_darknet": of("cspnet", darknet),
    "timm_dla": model("dla46_c", levels=(1,) * 6, channels=(16, 16, 16, 24, 32, 48)),
    "timm_vovnet": of("vovnet", lambda m: m.VovNet(VOVNET, num_classes=10)),
    "timm_resnest": model("resnest14d", channels=DIMS, stem_width=8),
    "timm_mobilevit": model("mobilevit_xxs"),
    "timm_efficientvit": model("efficientvit_b0"),
    "timm_mixnet": model("mixnet_s"),
    "timm_starnet": model("starnet_s1"),
    "timm_tinynet": model("tinynet_e"),
}
