"""`convert`: a model of torch's layers with ours in their places. `revert`: the way back."""

from __future__ import annotations

import copy
import copyreg
import gc
import types
import weakref
from typing import Any, TypeVar

import torch
from torch.fx import GraphModule
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.lazy import LazyModuleMixin

from torch_dnnl import _classes, fusion

__all__ = ["convert", "revert"]

_M = TypeVar("_M", bound=torch.nn.Module)

# A copy of a model shares these objects with the model. torch copies a TorchScript module with new
# parameters, and cannot copy a TorchScript function. To copy a weak proxy copies its target.
_SHARED: Any = (torch.Tensor, torch.jit.ScriptModule, torch.jit.ScriptFunction, *weakref.ProxyTypes)
_ATOMIC = (type, types.FunctionType, types.ModuleType)  # `copy.deepcopy` does not look into these


def convert(module: _M, inplace: bool = False, verbose: bool = False, fuse: bool = False) -> _M:
    """Replaces torch's convolution and upsampling layers in a model by ours.

    The layers are `torch.nn.Conv1d`, `Conv2d`, `Conv3d`, `ConvTranspose1d`, `ConvTranspose2d`,
    `ConvTranspose3d`, `Upsample`, `UpsamplingNearest2d` and `UpsamplingBilinear2d`, anywhere in the
    model or as the model itself, and layers of subclasses that inherit torch's `forward` and
    `_conv_forward`; these stay instances of their class. timm's `Conv2dSame` is one of them, and
    parametrized layers are. The new layers have the parameters, buffers and hooks of the old
    layers. So `state_dict` stays the same, and an optimizer that was made before the conversion
    goes on working. These modules stay as they are: subclasses with a forward of their own
    (quantization-aware, ...), layers whose `forward` or `_conv_forward` somebody replaced, lazy
    layers that have seen no input, complex convolutions, and modules compiled by TorchScript.

    With `fuse=True`, for inference:

    - A batch norm is folded into the weights of the convolution before it. So are torchvision's
      `FrozenBatchNorm2d`, and timm's `BatchNormAct2d` and `FrozenBatchNormAct2d`, of which the
      activation stays.
    - A residual and an activation (relu, relu6, silu, exact gelu, sigmoid, tanh, hardswish) after a
      convolution are computed in its kernel, whether they are functions or modules, also of other
      people's that do nothing else.

    The model stays what it was: no parameter, buffer or submodule goes or changes, so `state_dict`
    is the same, training goes on, and a layer that is called by itself has its own result. A
    module's forward becomes its graph, in eval mode, where its source proves that the graph is all
    that it does; there are several graphs where it tests up to three optional arguments. A forward
    whose source does not prove it, and a `GraphModule`, call their parts as before. The forward of
    the class takes over in training mode, where an attribute, a submodule or a method that the
    graph was made of is another one, where a layer that the graph calls otherwise has hooks, for
    arguments of subclasses of `Tensor`, and within `torch.compile`, `torch.export`, other tracing,
    `torch.func` and other libraries' modes. The weights with their batch norms are kept beside the
    parameters, which takes as much memory again, and are made anew when one of these is written to.
    What is written past torch's count of versions (`tensor.data`, NumPy, DLPack, storages, other
    processes, collectives, `F.batch_norm` in training, an optimizer with `fused=True` for the model
    that was converted) is seen after `train()` or `eval()`. The class of a fused module, and of a
    converted layer of a subclass, is a subclass of its class. `isinstance` does not tell, but code
    that asks for the class itself sees it (`type(module) is`, `type(module).__dict__`,
    `self.__class__.n += 1`, `pickle.dumps(type(module))`, `forward.__code__`). Functions that are
    replaced in their Python modules are not noticed, and what a hook or a submodule changes while a
    forward runs is noticed in the next call. Convolutions that do not depend on each other may be
    called in another order. Gradients are of the parameters as they were in the forward pass, where
    torch refuses some that were changed since. Where a submodule was replaced, `eval()` fuses
    again. `torch.fx`, which makes the graphs, replaces `Module.__call__` meanwhile, so no other
    thread may call modules during a conversion with `fuse=True` or while a fused model is copied or
    unpickled. A fused model has the results of the model up to rounding, and gradients for its
    inputs and parameters.

    Args:
        module: the model.
        inplace: change the modules of `module` themselves. Otherwise `module` stays as it is, and
            `copy.deepcopy` makes a copy. The copy shares all tensors and all modules compiled by
            TorchScript with `module`. The copy has its own modules, containers and other objects.
            Hooks and replaced forwards of the copy call these modules, also by bound methods and
            `functools.partial`. A function is not copied: a closure keeps the modules of `module`.
            A module with a `__deepcopy__` of its own may share less.
        verbose: print each layer that was replaced or fused, and each layer that was left alone,
            with the reason.
        fuse: fold batch norms, and fuse residuals and activations, of a model in eval mode.

    Returns:
        The converted model; `module` itself with `inplace=True`.

    Raises:
        TypeError: `module` is not a `torch.nn.Module`, or `copy.deepcopy` cannot copy a part of it,
            such as a lock or an open file.
        ValueError: `fuse=True` and `module` is in training mode.

    Example:
        >>> model = convert(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()))
        >>> type(model[0]).__module__
        'torch_dnnl.nn.conv'
    """
    _check_module("convert", module)
    if fuse and module.training:
        raise ValueError(
            "convert: expected module to be in eval mode for fuse=True (call module.eval() first), "
            "got training mode"
        )
    model = module if inplace else _copy("convert", module)
    fusion.fuse_copies(model)
    for name, layer in list(model.named_modules()):
        old = _classes.layer_class(layer)
        reason = _reason_to_leave(layer)
        if reason is None:
            _classes.change(layer, _classes.replacement)
        if verbose and (reason is None or _looks_convertible(layer)):
            what = f"{name or '(the model)'}: {old.__module__}.{old.__qualname__}"
            print(f"replaced   {what}" if reason is None else f"left alone {what}, {reason}")
    if fuse:
        fused = fusion.fuse(model)
        names = {id(layer): name or "(the model)" for name, layer in model.named_modules()}
        for layer, parts in fused if verbose else ():
            print(f"fused      {names[id(layer)]}: {', '.join(parts)}")
    return model


def revert(module: _M, inplace: bool = False) -> _M:
    """Replaces torch_dnnl's layers in a model by torch's: the inverse of `convert`.

    The layers keep their parameters, buffers and hooks, and a `forward` that somebody replaced.
    Layers of subclasses get their class back, and fused modules theirs. torch_dnnl's other layers
    (`Conv`, `Resample`, `Reorder`, the quantized ones, and subclasses) stay.

    Args:
        module: the model.
        inplace: as of `convert`.

    Returns:
        The model with torch's layers; `module` itself with `inplace=True`.

    Raises:
        TypeError: as of `convert`.
        ValueError: a layer has a padding that torch lacks. Nothing is changed then.

    Example:
        >>> layer = revert(convert(torch.nn.Conv2d(3, 8, 3)))
        >>> type(layer) is torch.nn.Conv2d
        True
    """
    _check_module("revert", module)
    for name, layer in module.named_modules():
        what = name or "the model"
        if _theirs(layer) is not None and _torch_padding(layer) is None:
            raise ValueError(
                f"revert: expected module to have paddings that torch's layers have, {what} got "
                f"{layer.padding!r} with stride {layer.stride}"
            )
    model = module if inplace else _copy("revert", module)
    fusion.unfuse(model)
    for layer in list(model.modules()):
        if _theirs(layer) is not None:
            padding = _torch_padding(layer)
            if isinstance(layer, _ConvNd) and padding != layer.padding:
                layer.padding = padding
                layer._reversed_padding_repeated_twice = _pads_of_torch(layer)
            _classes.change(layer, _classes.original)
    return model


def _check_module(function: str, module: object) -> None:
    if not isinstance(module, torch.nn.Module):
        raise TypeError(
            f"{function}: expected module to be a torch.nn.Module, got {type(module).__name__}"
        )


def _theirs(layer: torch.nn.Module) -> _classes.Class | None:
    cls = _classes.layer_class(layer)
    return _classes.original(cls) or vars(cls).get("_fused_class")


def _torch_padding(layer: torch.nn.Module) -> Any:
    """What torch's layer calls the padding; None if it has none that is the same."""
    if not isinstance(layer, _ConvNd):
        return ()
    padding: Any = layer.padding
    if padding in ("same_upper", "same_lower"):
        reaches = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        is_even = padding == "same_upper" or all(reach % 2 == 0 for reach in reaches)
        return "same" if is_even and all(stride == 1 for stride in layer.stride) else None
    if isinstance(padding, str) or not any(isinstance(pads, tuple) for pads in padding):
        return padding
    return tuple(begin for begin, _ in padding) if all(a == b for a, b in padding) else None


def _pads_of_torch(layer: _ConvNd) -> list[int]:
    """What torch's layer pads with if `padding_mode` is not "zeros", the last dimension first."""
    padding: Any = layer.padding
    if padding == "same":
        reaches = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        return [pad for reach in reversed(reaches) for pad in (reach // 2, reach - reach // 2)]
    return [pad for pad in reversed(padding) for _ in range(2)]


def _reason_to_leave(layer: torch.nn.Module) -> str | None:
    if isinstance(layer, torch.jit.ScriptModule):
        return "compiled by TorchScript"
    old = _classes.layer_class(layer)
    if isinstance(layer, LazyModuleMixin):
        return "lazy, and has seen no input"
    try:
        new = _classes.replacement(old)
    except TypeError as error:  # of a class that does not let itself be subclassed
        return f"its class has no subclass: {error}"
    if new is None:
        base = _classes.torch_class(old)
        return f"a subclass of {base.__name__} with its own forward" if base else "no layer of ours"
    for method in ("forward", "_conv_forward"):
        if method in vars(layer):
            return f"its {method} was replaced"
    # Of a parametrized layer the weight would be computed.
    is_parametrized = _classes.has_parametrized_class(layer)
    weights = [*layer.parameters()] if is_parametrized else [getattr(layer, "weight", None)]
    for weight in weights:
        if weight is not None and not weight.is_floating_point():
            return f"its weight is {weight.dtype}"
    return None


def _looks_convertible(layer: torch.nn.Module) -> bool:
    """Whether somebody may have expected to see this layer replaced."""
    if _classes.is_ours(type(layer)):
        return False
    if isinstance(layer, torch.jit.ScriptModule):
        return layer.original_name in {cls.__name__ for cls in _classes.torch_classes()}
    if isinstance(layer, (_ConvNd, torch.nn.Upsample)):
        return True
    weight = layer._parameters.get("weight")
    return "Conv" in type(layer).__name__ and weight is not None and weight.dim() > 2


def _copy(function: str, model: _M) -> _M:
    try:
        return _deep_copy(model)
    except Exception as error:  # whatever the code of others raises
        raise TypeError(
            f"{function}: expected module to be one that copy.deepcopy can copy (inplace=True "
            f"needs no copy), got {type(error).__name__}: {error}"
        ) from error


def _deep_copy(model: _M) -> _M:
    """The copy that `copy.deepcopy` makes of a model, over the tensors of the model."""
    values = _reachable(model)
    memo = {id(value): value for value in values if issubclass(type(value), _SHARED)}
    modules: list[Any] = [value for value in values if issubclass(type(value), torch.nn.Module)]
    modules = [module for module in modules if id(module) not in memo]
    # torch.compile's module answers for the module within, and only that module would be copied.
    wrappers = [
        m for m in modules if getattr(getattr(m, "__deepcopy__", None), "__self__", m) is not m
    ]
    memo |= {id(module): object.__new__(type(module)) for module in wrappers}
    for module in reversed(wrappers):
        memo[id(module)].__setstate__(copy.deepcopy(module.__getstate__(), memo))
    result = copy.deepcopy(model, memo)
    for module in modules:
        if id(module) in memo:
            _complete(memo[id(module)], module, memo)
    originals = set(map(id, modules))
    for part in result.modules():
        if id(part) in originals:  # a change of the copy would change the model
            raise TypeError(f"{type(part).__name__}.__deepcopy__ returns the module itself")
    return result


def _reachable(model: torch.nn.Module) -> list[Any]:
    """The objects that a deep copy comes to, and some more."""
    found: dict[int, Any] = {}
    waiting: list[Any] = [model]
    while waiting:
        value = waiting.pop()
        if id(value) not in found and not issubclass(type(value), _ATOMIC):
            found[id(value)] = value
            if not issubclass(type(value), _SHARED):
                waiting += gc.get_referents(value)
    return list(found.values())


def _complete(result: Any, module: torch.nn.Module, memo: dict[int, Any]) -> None:
    """Adds to the copy of a module what torch leaves out."""
    if isinstance(module, GraphModule):  # hooks, and attributes that its graph does not use
        vars(result).update(copy.deepcopy(vars(module), memo))
    for name in copyreg._slotnames(type(module)):  # type: ignore[attr-defined]
        if hasattr(module, name):
            object.__setattr__(result, name, copy.deepcopy(getattr(module, name), memo))
    # The call that torch.compile has compiled calls the original.
    vars(result).pop("_compiled_call_impl", None)
