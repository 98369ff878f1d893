"""The models of diffusers for `image_models.py`."""

from typing import Any

import torch
from image_models import ImageModel, made_by


def model(name: str, result: str = "sample", multiple: int = 8, **config: Any) -> ImageModel:
    def make(diffusers: Any) -> Any:
        return getattr(diffusers, name)(**config)

    return ImageModel("diffusers", made_by("diffusers", make), result, multiple)


def step(images: int) -> dict[str, object]:
    return {"timestep": 10}


def step_with_text(images: int) -> dict[str, object]:
    """Two tokens of a text for each image."""
    tokens = torch.linspace(-1, 1, images * 2 * 16).reshape(images, 2, 16)
    return {"timestep": 10, "encoder_hidden_states": tokens}


PARTS = {"block_out_channels": (16, 32), "norm_num_groups": 4, "layers_per_block": 1}
CODER = PARTS | {
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
}
DC = {
    "block_types": ("ResBlock", "ResBlock", "EfficientViTBlock"),
    "block_out_channels": (16, 32, 64),
    "layers_per_block": (1, 1, 1),
    "qkv_multiscales": ((), (), (5,)),
}
MODELS = {
    "unet2d": model(
        "UNet2DModel",
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        **PARTS,
    ),
    "unet2d_condition": model(
        "UNet2DConditionModel",
        in_channels=3,
        cross_attention_dim=16,
        attention_head_dim=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        **PARTS,
    ),
    "autoencoder_kl": model("AutoencoderKL", **CODER),
    "autoencoder_tiny": model(
        "AutoencoderTiny",
        encoder_block_out_channels=(16,) * 4,
        decoder_block_out_channels=(16,) * 4,
        num_encoder_blocks=(1,) * 4,
        num_decoder_blocks=(1,) * 4,
    ),
    "autoencoder_dc": model(
        "AutoencoderDC",
        latent_channels=8,
        attention_head_dim=8,
        **{f"{part}_{name}": x for part in ("encoder", "decoder") for name, x in DC.items()},
    ),
}
MODELS["unet2d"].arguments = step
MODELS["unet2d_condition"].arguments = step_with_text
