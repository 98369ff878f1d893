"""Models of other libraries that take images, with few channels and layers and random parameters.

They are in `models_of_transformers.py`, `models_of_diffusers.py` and `models_of_timm.py`. A model
whose library is not installed cannot be made; `library` says which it is.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn


@dataclass
class ImageModel:
    library: str
    maker: Callable[[], nn.Module]
    result: str | None = None  # the key or attribute of what forward() returns
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
        if self.result:
            is_dict = isinstance(result, dict)
            result = result[self.result] if is_dict else getattr(result, self.result)
        return [result] if isinstance(result, Tensor) else list(result)


def installed(*tables: Any) -> dict[str, ImageModel]:
    """The models of modules such as `models_of_timm` whose libraries are installed."""
    models = [each for table in tables for each in table.MODELS.items()]
    return {name: model for name, model in models if find_spec(model.library)}


def images(layout: str, batch: int, channels: int, rows: int, columns: int) -> Tensor:
    """`decoded`: the channels of a pixel side by side. One image has a stride like no other."""
    if layout == "planes":
        return torch.rand(batch, channels, rows, columns)
    if batch == 1:
        return torch.rand(rows, columns, channels).permute(2, 0, 1)[None]
    return torch.rand(batch, rows, columns, channels).permute(0, 3, 1, 2)


@contextmanager
def double_precision() -> Iterator[None]:
    """Sets the type of tensors that a model makes without naming a type."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


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
