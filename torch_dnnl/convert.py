"""`convert`: a model of torch's layers with ours in their places."""

from __future__ import annotations

import copy
import sys
import types
from typing import Any

import torch
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.module import _WrappedHook
from torch.utils.hooks import RemovableHandle

from torch_dnnl import nn

# Exact types: a subclass may do anything in its forward.
_REPLACEMENTS: dict[type[torch.nn.Module], type[torch.nn.Module]] = {
    torch.nn.Conv1d: nn.Conv1d,
    torch.nn.Conv2d: nn.Conv2d,
    torch.nn.Conv3d: nn.Conv3d,
    torch.nn.ConvTranspose1d: nn.ConvTranspose1d,
    torch.nn.ConvTranspose2d: nn.ConvTranspose2d,
    torch.nn.ConvTranspose3d: nn.ConvTranspose3d,
    torch.nn.Upsample: nn.Upsample,
    torch.nn.UpsamplingNearest2d: nn.Upsample,
    torch.nn.UpsamplingBilinear2d: nn.Upsample,
}


def convert(
    module: torch.nn.Module, inplace: bool = False, verbose: bool = False
) -> torch.nn.Module:
    """Replaces torch's convolution and upsampling layers in a model by ours.

    The layers are `torch.nn.Conv1d`, `Conv2d`, `Conv3d`, `ConvTranspose1d`, `ConvTranspose2d`,
    `ConvTranspose3d`, `Upsample`, `UpsamplingNearest2d` and `UpsamplingBilinear2d`, anywhere in the
    model or as the model itself. The new layers share the parameters, buffers and hooks of the old
    layers. So `state_dict` stays the same, and an optimizer that was made before the conversion
    goes on working. These modules stay as they are:
    subclasses of the layers (lazy, parametrized, quantization-aware, ...), complex convolutions,
    and modules compiled by TorchScript.

    Args:
        module: the model.
        inplace: change the modules of `module` themselves. Otherwise `module` stays as it is. Its
            copy has copies of the modules, and of the lists and dicts that the modules hold. The
            copy shares everything else with `module`.
        verbose: print each layer that was replaced, and each layer that was left alone, with the
            reason.

    Returns:
        The converted model; `module` itself with `inplace=True`.

    Raises:
        TypeError: `module` is not a `torch.nn.Module`.

    Example:
        >>> model = convert(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()))
        >>> type(model[0]).__module__
        'torch_dnnl.nn.conv'
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(
            f"convert: expected module to be a torch.nn.Module, got {type(module).__name__}"
        )
    model = module if inplace else _StructuralCopy(module).result
    for name, layer in list(model.named_modules()):
        old = type(layer)
        reason = _reason_to_leave(layer)
        if reason is None:
            layer.__class__ = _REPLACEMENTS[old]
        if verbose and (reason is None or _looks_convertible(layer)):
            what = f"{name or '(the model)'}: {old.__module__}.{old.__qualname__}"
            print(f"replaced   {what}" if reason is None else f"left alone {what}, {reason}")
    return model


def _reason_to_leave(layer: torch.nn.Module) -> str | None:
    if isinstance(layer, torch.jit.ScriptModule):
        return "compiled by TorchScript"
    if type(layer) not in _REPLACEMENTS:
        bases = [old.__name__ for old in _REPLACEMENTS if isinstance(layer, old)]
        return f"a subclass of {bases[0]}" if bases else "no layer that we have"
    weight = getattr(layer, "weight", None)
    if weight is not None and not weight.is_floating_point():
        return f"its weight is {weight.dtype}"
    return None


def _looks_convertible(layer: torch.nn.Module) -> bool:
    """Whether somebody may have expected to see this layer replaced."""
    if type(layer) in _REPLACEMENTS.values():
        return False
    name = str(getattr(layer, "original_name", type(layer).__name__))  # the former of TorchScript
    return isinstance(layer, (_ConvNd, torch.nn.Upsample)) or "Conv" in name or "Upsampl" in name


class _StructuralCopy:
    """Copies the modules of a model and the containers they hold; all else is shared.

    Modules that are shared within the model stay shared, and cycles stay cycles. A reference to a
    module of the model, such as a bound method that serves as a hook, becomes one to its copy.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._modules = {id(module) for module in model.modules()}
        attributes = (value for module in model.modules() for value in vars(module).values())
        self._dicts = {id(value) for value in attributes if isinstance(value, dict)}
        self._copies: dict[int, Any] = {}
        self.result: torch.nn.Module = self._of(model)

    def _of(self, value: Any) -> Any:
        if id(value) in self._copies:
            return self._copies[id(value)]
        if id(value) in self._modules:
            return self._module(value)
        if isinstance(value, dict):
            result = self._remember(value, copy.copy(value))
            for key, item in value.items():
                result[key] = self._of(item)
            return result
        if type(value) is list:
            result = self._remember(value, [])
            result.extend(map(self._of, value))
            return result
        if type(value) is tuple:
            return tuple(map(self._of, value))
        if isinstance(value, types.MethodType):
            return types.MethodType(value.__func__, self._of(value.__self__))
        if isinstance(value, RemovableHandle) and id(value.hooks_dict_ref()) in self._dicts:
            # Lazy modules remove their own hooks; the copy has to remove the hooks of the copy.
            extra = [self._of(ref()) for ref in value.extra_dict_ref]
            handle = RemovableHandle(self._of(value.hooks_dict_ref()), extra_dict=extra)
            handle.id = value.id
            return self._remember(value, handle)
        if isinstance(value, _WrappedHook):
            owner = value.module() if value.with_module else None
            return _WrappedHook(self._of(value.hook), self._of(owner))
        return value

    def _module(self, module: torch.nn.Module) -> torch.nn.Module:
        if isinstance(module, torch.jit.ScriptModule):
            return module
        # __init__ and __setattr__ may do more than copy, so neither is called.
        result: torch.nn.Module = self._remember(module, object.__new__(type(module)))
        vars(result).update({name: self._of(item) for name, item in vars(module).items()})
        # The call that torch.compile has compiled calls the original.
        vars(result).pop("_compiled_call_impl", None)
        dynamo = sys.modules.get("torch._dynamo.eval_frame")
        if dynamo is not None and isinstance(result, dynamo.OptimizedModule):
            result._initialize()
        return result

    def _remember(self, value: Any, result: Any) -> Any:
        self._copies[id(value)] = result
        return result
