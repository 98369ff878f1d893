"""Models of other libraries that take images, with few channels and layers and random parameters.

They are in `models_of_transformers.py`, `models_of_diffusers.py` and `models_of_timm.py`. A model
whose library is not installed cannot be made; `library` says which it is.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class ImageModel:
    library: str
    maker: Callable[[], nn.Module]
    result: str | None = None  # the attribute of what forward() returns
    multiple: int = 32  # sizes of images are multiples of it
    channels: int = 3
    arguments: Callable[[int], dict[str, object]] | None = None  # of forward(), for n images

    def make(self) -> nn.Module:
        torch.manual_seed(0)
        module = self.maker().eval()
        randomize(module)
        return module

    def run(self, module: Callable[..., Any], x: Tensor) -> list[Tensor]:
        more = self.arguments(len(x)) if self.arguments else {}
        result = module(x, **more)
        result = getattr(result, self.result) if self.result else result
        return [result] if isinstance(result, Tensor) else list(result)


@torch.no_grad()
def randomize(module: nn.Module) -> None:
    """Numbers with which every layer matters: libraries begin with zeros, or scales of 1e-6."""
    for name, parameter in module.named_parameters():
        if parameter.dim() > 1:
            parameter.normal_().div_(math.sqrt(math.prod(parameter.shape[1:])))
        elif name.endswith("bias"):
            parameter.normal_().mul_(0.1)
        else:
            parameter.uniform_(0.5, 1.5)
    for name, buffer in module.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_().mul_(0.1)
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 1.5)


def made_by(module: str, make: Callable[[Any], nn.Module]) -> Callable[[], nn.Module]:
    """What `make` makes of a module of Python's, which is imported only then."""
    return lambda: make(import_module(module))
