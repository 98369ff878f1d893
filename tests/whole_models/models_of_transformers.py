"""The models of transformers for `image_models.py`."""

from typing import Any

from image_models import ImageModel, made_by


def model(name: str, result: str, multiple: int = 16, **config: Any) -> ImageModel:
    """`backbone`: the name of its configuration, and what that has."""
    backbone = config.pop("backbone", None)

    def make(transformers: Any) -> Any:
        kind = getattr(transformers, name)
        if backbone is None:
            return kind(kind.config_class(**config))
        name_of_backbone, arguments = backbone
        copied = {key: list(x) if isinstance(x, list) else x for key, x in arguments.items()}
        part = getattr(transformers, name_of_backbone)(**copied)
        return kind(kind.config_class(backbone_config=part, **config))

    return ImageModel("transformers", made_by("transformers", make), result, multiple)


def classifier(name: str, multiple: int = 16, **config: Any) -> ImageModel:
    return model(f"{name}ForImageClassification", "logits", multiple, **config)


STAGES = [f"stage{i}" for i in range(1, 5)]
PYRAMID = {"depths": [1, 1], "hidden_sizes": [16, 32]}
BLOCKS = PYRAMID | {"num_encoder_blocks": 2}
ATTENDED = BLOCKS | {"num_attention_heads": (1, 2), "sr_ratios": (4, 1)}
VIT = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2}
TOKENS = {"out_features": STAGES, "reshape_hidden_states": False}
DINO = VIT | TOKENS | {"image_size": 28}
BEIT = VIT | {"image_size": 32, "intermediate_size": 48, "use_relative_position_bias": True}
DPT = {"neck_hidden_sizes": (16, 16, 24, 32), "fusion_hidden_size": 16}
SWIN = {"embed_dim": 16, "depths": (1, 2), "num_heads": (2, 4), "window_size": 4}
RESNET = PYRAMID | {"embedding_size": 16}
DETR = {
    "d_model": 32,
    "num_queries": 5,
    **{f"{part}_layers": 1 for part in ("encoder", "decoder")},
    **{f"{part}_ffn_dim": 48 for part in ("encoder", "decoder")},
    **{f"{part}_attention_heads": 2 for part in ("encoder", "decoder")},
}
VITDET = VIT | {
    "num_channels": 4,
    "image_size": 32,
    "pretrain_image_size": 32,
    "window_size": 2,
    "window_block_indices": [0, 2],
    "residual_block_indices": [1, 3],
    "use_relative_position_embeddings": True,
    "out_features": ["stage4"],
}

MODELS = {
    "segformer": model(
        "SegformerForSemanticSegmentation", "logits", decoder_hidden_size=32, **ATTENDED
    ),
    "pvt_v2": classifier("PvtV2", mlp_ratios=(4, 4), **ATTENDED),
    "convnext_v2": classifier("ConvNextV2", num_stages=2, **PYRAMID),
    "swin2sr": model("Swin2SRForImageSuperResolution", "reconstruction", 8, **SWIN),
    "mobilevit": model(
        "MobileViTForSemanticSegmentation",
        "logits",
        32,
        hidden_sizes=(16, 24, 32),
        neck_hidden_sizes=(8, 16, 16, 24, 24, 32, 64),
        num_attention_heads=2,
        aspp_out_channels=16,
    ),
    "dpt": model(
        "DPTForDepthEstimation", "predicted_depth", 14, backbone=("Dinov2Config", DINO), **DPT
    ),
    "beit": model(
        "BeitForSemanticSegmentation",
        "logits",
        16,
        use_auxiliary_head=False,
        out_indices=[1, 2, 3, 4],
        **BEIT,
    ),
    # Not EfficientNet: Inductor's gradient of its pool, which is larger than the image, is wrong.
    # Not CvT: its gradients under "aot_eager" are wrong, before any backend sees them (torch 2.14).
    "resnet": classifier("ResNet", **RESNET),
    "regnet": classifier("RegNet", embedding_size=16, groups_width=8, **PYRAMID),
    "poolformer": classifier("PoolFormer", **BLOCKS),
    "focalnet": classifier("FocalNet", embed_dim=16, depths=(1, 1), hidden_sizes=(32, 64)),
    "upernet": model(
        "UperNetForSemanticSegmentation",
        "logits",
        backbone=("ConvNextConfig", PYRAMID | {"num_stages": 2, "out_features": STAGES[:2]}),
        hidden_size=16,
        use_auxiliary_head=False,
    ),
    "detr": model(
        "DetrForObjectDetection",
        "logits",
        backbone=("ResNetConfig", RESNET | {"out_features": ["stage2"]}),
        **DETR,
    ),
    "vitmatte": model(
        "VitMatteForImageMatting",
        "alphas",
        backbone=("VitDetConfig", VITDET),
        hidden_size=32,
        convstream_hidden_sizes=[8, 16, 24],
        fusion_hidden_sizes=[24, 16, 16, 8],
    ),
}
MODELS["vitmatte"].channels = 4  # the image and its trimap
