"""What a forward finds in its module, without running anybody's code."""

from __future__ import annotations

import inspect
import types
from functools import cache
from typing import Any

import torch

CONTAINERS = (torch.nn.Sequential, torch.nn.ModuleList, torch.nn.ModuleDict)
# Values that code can say, of exactly these types.
_CONSTANTS = (int, float, str, bool, type(None), torch.dtype, torch.device, torch.memory_format)


class Unclear(Exception):
    """A statement that is not known to be plain."""


def is_constant(value: Any) -> bool:
    return type(value) in _CONSTANTS


def can_be_said(value: Any) -> bool:
    return is_constant(value) or (type(value) is tuple and all(map(is_constant, value)))


def is_of_torch(value: Any) -> bool:
    """Whether this is a Python module whose numbers stay as they are."""
    return isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] in (
        "torch",
        "math",
    )


def has_plain_attributes(cls: type) -> bool:
    """Whether the attributes of a module are where torch looks for them."""
    module: Any = torch.nn.Module
    return (cls.__getattr__, cls.__getattribute__) == (  # type: ignore[attr-defined]
        module.__getattr__,
        module.__getattribute__,
    )


def has_plain_truth(module: torch.nn.Module) -> bool:
    """Whether a module is true as all are, or as long as it holds others."""
    cls = type(module)
    length = getattr(cls, "__len__", None)
    lengths = [None, *(kind.__len__ for kind in CONTAINERS)]
    return not hasattr(cls, "__bool__") and length in lengths


def scopes(module: torch.nn.Module) -> tuple[dict[str, Any], ...]:
    """Where a module's own attributes are."""
    return vars(module), module._parameters, module._buffers, module._modules


def has(module: torch.nn.Module, name: str) -> bool:
    """Whether a module has an attribute, as it is registered."""
    static = inspect.getattr_static(type(module), name, Unclear)
    return static is not Unclear or any(name in scope for scope in scopes(module))


def attribute(value: Any, name: str) -> Any:
    """An attribute, found without running anybody's code."""
    if isinstance(value, types.ModuleType):
        if name in vars(value):
            return vars(value)[name]
        raise Unclear
    if isinstance(value, torch.Tensor):
        return value  # tracing records what is taken from a tensor
    if not isinstance(value, torch.nn.Module):
        raise Unclear
    if not has_plain_attributes(type(value)):
        raise Unclear
    static = inspect.getattr_static(type(value), name, Unclear)
    for scope in scopes(value)[: 1 if static is not Unclear else None]:
        own = scope.get(name) if scope is vars(value) else None
        if isinstance(own, (torch.Tensor, torch.nn.Module)):
            raise Unclear  # which tracing takes for a constant, or calls by another name
        if name in scope:
            return scope[name]
    if isinstance(static, types.FunctionType):
        return types.MethodType(static, value)
    if not is_constant(static):
        raise Unclear
    return static


@cache
def torch_functions() -> frozenset[Any]:
    """The functions that see the tensors they are given, as tracing needs it."""
    table = torch.overrides.get_overridable_functions()
    functions = {function for functions in table.values() for function in functions}
    in_place = {getattr(torch, f"{f.__name__}_", f) for f in functions if hasattr(f, "__name__")}
    return frozenset(functions | in_place)
