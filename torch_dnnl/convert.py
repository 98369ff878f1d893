"""`convert`: a model with torch_dnnl's layers in place of torch's. `revert`: the way back.

A layer changes by its class, so its parameters, buffers and hooks stay where they are. A layer of
torch gets torch_dnnl's class. A layer of a subclass gets a subclass of both.
"""

from __future__ import annotations

import copy
import copyreg
import typing
import weakref
from abc import ABCMeta
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations

from torch_dnnl import functional, nn

__all__ = ["convert", "revert"]

_M = TypeVar("_M", bound=torch.nn.Module)
_Class = type[torch.nn.Module]

_REPLACEMENTS: dict[_Class, _Class] = {
    torch.nn.Conv1d: nn.Conv1d,
    torch.nn.Conv2d: nn.Conv2d,
    torch.nn.Conv3d: nn.Conv3d,
    torch.nn.ConvTranspose1d: nn.ConvTranspose1d,
    torch.nn.ConvTranspose2d: nn.ConvTranspose2d,
    torch.nn.ConvTranspose3d: nn.ConvTranspose3d,
    torch.nn.Upsample: nn.Upsample,
}
_ORIGINALS = {new: old for old, new in _REPLACEMENTS.items()}
_SAME = "timm.layers.conv2d_same.Conv2dSame"  # its padding is TensorFlow's


def convert(module: _M, inplace: bool = False, verbose: bool = False) -> _M:
    """Replaces torch's convolution and upsampling layers in a model by torch_dnnl's.

    The layers are `torch.nn.Conv1d`, `Conv2d`, `Conv3d`, `ConvTranspose1d`, `ConvTranspose2d`,
    `ConvTranspose3d`, `Upsample`, `UpsamplingNearest2d` and `UpsamplingBilinear2d`, anywhere in the
    model or as the model itself. Layers of subclasses that inherit torch's `forward` and
    `_conv_forward` are replaced, too. So is timm's `Conv2dSame`, and so are parametrized layers.
    Parameters, buffers, hooks and `state_dict` keep their names and values. `print(model)` shows
    `torch_dnnl.` before the name of each replaced layer.

    These layers stay as they are: subclasses with a forward of their own (quantization-aware, ...),
    layers whose `forward` or `_conv_forward` somebody replaced, lazy layers that have seen no
    input, layers with complex or integer parameters, and modules compiled by TorchScript.

    A replaced layer of a subclass gets a new class, which is a subclass of its class and has the
    same name. The layer can be copied and pickled as before. Code that takes `type(layer)` for the
    class itself, such as `type(layer) is Mine` or `super(self.__class__, self)`, is wrong about
    this layer. A layer stays as it is if its class has a metaclass, an `__init_subclass__` or a
    `__reduce__` of its own.

    Args:
        module: the model.
        inplace: change the layers of `module` itself, over the same parameters: an optimizer that
            was made before goes on. Otherwise the result is a copy as `copy.deepcopy` makes it,
            with its own parameters and buffers, and `module` stays as it is. `copy.deepcopy` does
            not copy functions, such as hooks with closures, and leaves out some hooks of a
            `GraphModule`.
        verbose: print each layer that was replaced, and each layer that was left alone, with the
            reason.

    Returns:
        The converted model; `module` itself with `inplace=True`.

    Raises:
        TypeError: `module` is not a `torch.nn.Module`, or `copy.deepcopy` cannot copy a part of it,
            such as a lock or the result of a computation with gradients.

    Example:
        >>> convert(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()))
        Sequential(
          (0): torch_dnnl.Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))
          (1): ReLU()
        )
    """
    model = _to_change("convert", module, inplace)
    for name, layer in list(model.named_modules()):
        old = type_before_parametrizations(layer)
        reason = _reason_to_leave(layer, old)
        if reason is None:
            _change_class(layer, _replacement(old))
        if verbose and reason != "":
            what = f"{name or '(the model)'}: {old.__module__}.{old.__qualname__}"
            print(f"left alone {what}, {reason}" if reason else f"replaced   {what}")
    return model


def revert(module: _M, inplace: bool = False) -> _M:
    """Replaces torch_dnnl's layers in a model by torch's: the inverse of `convert`.

    The layers keep their parameters, buffers and hooks, and a `forward` that somebody replaced.
    Layers of subclasses get their class back. torch_dnnl's other layers (`Conv`, `Resample`,
    `Reorder`, the quantized ones, and subclasses) stay.

    Args:
        module: the model.
        inplace: as in `convert`.

    Returns:
        The model with torch's layers; `module` itself with `inplace=True`.

    Raises:
        TypeError: as in `convert`.
        ValueError: a layer has a padding that torch lacks. Nothing is changed then.

    Example:
        >>> layer = revert(convert(torch.nn.Conv2d(3, 8, 3)))
        >>> type(layer) is torch.nn.Conv2d
        True
    """
    model = _to_change("revert", module, inplace)
    for name, layer in model.named_modules():
        if _original(layer) is not None and _torch_padding(layer) is None:
            raise ValueError(
                "revert: expected module to have paddings that torch's layers have, "
                f"{name or 'the model'} got {layer.padding!r} with stride {layer.stride}"
            )
    for layer in list(model.modules()):
        original = _original(layer)
        if original is not None:
            padding = _torch_padding(layer)
            if isinstance(layer, _ConvNd) and padding != layer.padding:
                layer.padding = padding
                layer._reversed_padding_repeated_twice = _pads_of_torch(layer)
            _change_class(layer, original)
    return model


def _to_change(function: str, module: _M, inplace: bool) -> _M:
    """The module itself, or a copy."""
    if not isinstance(module, torch.nn.Module):
        raise TypeError(
            f"{function}: expected module to be a torch.nn.Module, got {type(module).__name__}"
        )
    if inplace:
        return module
    originals = set(map(id, module.modules()))
    try:
        result = copy.deepcopy(module)
        for part in result.modules():
            if id(part) in originals:  # a change of the copy would change the model
                raise TypeError(f"the copy of {type(part).__name__} is the module itself")
    except Exception as error:  # whatever the code of others raises
        raise TypeError(
            f"{function}: expected module to be one that copy.deepcopy can copy (inplace=True "
            f"needs no copy), got {type(error).__name__}: {error}"
        ) from error
    for part in result.modules():
        # A copy may have kept the call that `Module.compile` made, which runs the original.
        vars(part).pop("_compiled_call_impl", None)
    return result


def _torch_class(cls: type) -> _Class | None:
    """The layer of torch that `cls` is or inherits from."""
    return next((base for base in cls.__mro__ if base in _REPLACEMENTS), None)


def _reason_to_leave(layer: torch.nn.Module, cls: _Class) -> str | None:
    """The reason to leave a layer alone. None: `convert` replaces the layer. "": the layer is none
    that a user expects to be replaced."""
    if isinstance(layer, torch.jit.ScriptModule):
        is_layer = layer.original_name in {base.__name__ for base in _REPLACEMENTS}
        return "compiled by TorchScript" if is_layer else ""
    base = _torch_class(cls)
    if base is None or issubclass(cls, tuple(_ORIGINALS)):
        return ""
    if isinstance(layer, LazyModuleMixin):
        return "lazy, and has seen no input"
    for method in ("forward", "_conv_forward"):
        if method in vars(layer):
            return f"its {method} was replaced"
        is_torchs = getattr(cls, method, None) is getattr(base, method, None)
        if not is_torchs and not (method == "forward" and _is_same_of_timm(cls)):
            return f"a subclass of {base.__name__} with its own {method}"
    # A parametrized layer computes its weight from these parameters.
    for parameter in layer.parameters():
        if not parameter.is_floating_point():
            return f"it has a parameter of {parameter.dtype}"
    for method in ("__init_subclass__", "__reduce__", "__reduce_ex__"):
        if _definer(cls, method) not in (object, typing.Generic):
            return f"its class has a {method} of its own"
    if type(cls) not in (type, ABCMeta):
        return f"its class has the metaclass {type(cls).__name__}"
    return None


def _definer(cls: type, method: str) -> type:
    return next(base for base in cls.__mro__ if method in vars(base))


def _is_same_of_timm(cls: type) -> bool:
    definer = _definer(cls, "forward")
    return f"{definer.__module__}.{definer.__qualname__}" == _SAME


def _same_forward(self: torch.nn.Conv2d, input: Tensor) -> Tensor:
    """TensorFlow's SAME, whatever `padding` is."""
    options: Any = (self.stride, "same_upper", self.dilation, self.groups)
    return functional.conv2d(input, self.weight, self.bias, *options)


# The replacement of each subclass. It holds its key, which is its base, and goes with its layers.
_made: weakref.WeakValueDictionary[_Class, _Class] = weakref.WeakValueDictionary()


def _replacement(old: _Class) -> _Class:
    """The class that a layer of class `old` gets."""
    base = _torch_class(old)
    assert base is not None
    if old is base:
        return _REPLACEMENTS[base]
    made = _made.get(old)
    if made is not None:
        return made

    def reduce_ex(self: torch.nn.Module, protocol: Any) -> Any:
        """The name of the class finds `old`, so the pickle says how to make the class."""
        function, args, *rest = cast(Any, super(new, self)).__reduce_ex__(max(int(protocol), 2))
        if function is copyreg.__newobj__ and args[0] is new:  # type: ignore[attr-defined]
            function, args = _unpickled, (old, *args[1:])
        return function, args, *rest

    names = ("__module__", "__qualname__", "__doc__")
    members = {name: getattr(old, name) for name in names}
    members |= {"_converted_from": old, "__reduce_ex__": reduce_ex}
    if _is_same_of_timm(old):
        members["forward"] = _same_forward
    new: _Class = type(old.__name__, (old, _REPLACEMENTS[base]), members)
    return _made.setdefault(old, new)


def _unpickled(old: _Class, *args: Any) -> torch.nn.Module:
    new = _replacement(old)
    return new.__new__(new, *args)


def _original(layer: torch.nn.Module) -> _Class | None:
    """The class that `revert` gives a layer; None if it has no other."""
    cls = type_before_parametrizations(layer)
    return _ORIGINALS.get(cls) or vars(cls).get("_converted_from")


def _change_class(layer: torch.nn.Module, new: _Class) -> None:
    """Gives a layer another class. A class that torch made for the parametrizations of the layer is
    made again over that class."""
    if is_parametrized(layer):
        old = type(layer)
        own = {k: v for k, v in vars(old).items() if k not in ("__dict__", "__weakref__")}
        new = type(old.__name__, (new,), own)
    object.__setattr__(layer, "__class__", new)  # whatever its own `__setattr__` does


def _torch_padding(layer: torch.nn.Module) -> Any:
    """The padding of torch's layer that pads alike; None if there is none."""
    if not isinstance(layer, _ConvNd):
        return ()
    padding: Any = layer.padding
    if padding in ("same_upper", "same_lower"):
        is_even = padding == "same_upper" or all(reach % 2 == 0 for reach in _reaches(layer))
        return "same" if is_even and all(stride == 1 for stride in layer.stride) else None
    if isinstance(padding, str) or not any(isinstance(pads, tuple) for pads in padding):
        return padding
    return tuple(begin for begin, _ in padding) if all(a == b for a, b in padding) else None


def _pads_of_torch(layer: _ConvNd) -> list[int]:
    """What torch's layer pads with if `padding_mode` is not "zeros", the last dimension first."""
    padding: Any = layer.padding
    if padding == "same":
        return [pad for reach in _reaches(layer)[::-1] for pad in (reach // 2, (reach + 1) // 2)]
    return [pad for pad in reversed(padding) for _ in range(2)]


def _reaches(layer: _ConvNd) -> list[int]:
    return [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
