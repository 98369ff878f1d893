"""The models of torchvision for `image_models.py`, as they are."""

from typing import Any

from image_models import ImageModel, made_by


def model(name: str, result: str | None = None, **config: Any) -> ImageModel:
    def make(torchvision: Any) -> Any:
        return torchvision.models.get_model(name, weights=None, **config)

    return ImageModel("torchvision", made_by("torchvision", make), result)


CLASSIFIERS = (
    *("alexnet", "vgg11_bn", "resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2"),
    *("densenet121", "squeezenet1_1", "mobilenet_v2", "mobilenet_v3_small", "mobilenet_v3_large"),
    *("efficientnet_b0", "efficientnet_v2_s", "mnasnet0_5", "shufflenet_v2_x0_5", "googlenet"),
    *("regnet_x_400mf", "regnet_y_400mf", "convnext_tiny", "swin_t"),
)
SEGMENTATION = ("fcn_resnet50", "deeplabv3_mobilenet_v3_large", "lraspp_mobilenet_v3_large")
OPTIONS = {"googlenet": {"init_weights": False, "aux_logits": False}}
MODELS = {f"torchvision_{name}": model(name, **OPTIONS.get(name, {})) for name in CLASSIFIERS}
MODELS |= {
    f"torchvision_{name}": ImageModel(
        "torchvision",
        made_by(
            "torchvision",
            lambda lib, name=name: lib.models.get_model(name, weights=None, weights_backbone=None),
        ),
        "out",
    )
    for name in SEGMENTATION
}
