"""How the modules of the package print: their names, and arguments that are no defaults."""

from __future__ import annotations

import inspect

from torch import Tensor, nn


def library_name(module: nn.Module) -> str:
    """`Module._get_name` of the layers that are named as torch's: tells them apart in print."""
    return f"torch_dnnl.{type(module).__name__}"


def argument_repr(module: nn.Module, cls: type[nn.Module], skip: tuple[str, ...] = ()) -> str:
    """`name=value` of each argument of the constructor of `cls` that differs from its default.

    The module must keep each argument as an attribute of the same name.
    """
    parts = []
    for name, parameter in inspect.signature(cls).parameters.items():
        value = getattr(module, name, parameter.default)
        if name in skip:
            continue
        if isinstance(value, Tensor):
            parts.append(f"{name}={type(value).__name__}{list(value.shape)}")
        elif value != parameter.default:
            parts.append(f"{name}={value!r}")
    return ", ".join(parts)
