"""`convert`: a model of torch's layers with ours in their places. `revert`: the way back."""

from __future__ import annotations

import copy
import copyreg
import sys
import types
import weakref
from typing import Any, Generic, TypeVar

import torch
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.modules.module import _WrappedHook
from torch.utils.hooks import RemovableHandle

from torch_dnnl import _classes, fusion

__all__ = ["convert", "revert"]

_M = TypeVar("_M", bound=torch.nn.Module)


def convert(module: _M, inplace: bool = False, verbose: bool = False, fuse: bool = False) -> _M:
    """Replaces torch's convolution and upsampling layers in a model by ours.

    The layers are `torch.nn.Conv1d`, `Conv2d`, `Conv3d`, `ConvTranspose1d`, `ConvTranspose2d`,
    `ConvTranspose3d`, `Upsample`, `UpsamplingNearest2d` and `UpsamplingBilinear2d`, anywhere in the
    model or as the model itself, and layers of subclasses that inherit torch's `forward` and
    `_conv_forward`; these stay instances of their class. timm's `Conv2dSame` is one of them, and
    parametrized layers are. The new layers share the parameters, buffers and hooks of the old
    layers. So `state_dict` stays the same, and an optimizer that was made before the conversion
    goes on working. These modules stay as they are: subclasses with a forward of their own
    (quantization-aware, ...), lazy layers that have seen no input, complex convolutions, and
    modules compiled by TorchScript.

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
        inplace: change the modules of `module` themselves. Otherwise `module` stays as it is. Its
            copy has copies of the modules, and of the lists, dicts and sets that the modules hold.
            The copy shares everything else with `module`.
        verbose: print each layer that was replaced or fused, and each layer that was left alone,
            with the reason.
        fuse: fold batch norms, and fuse residuals and activations, of a model in eval mode.

    Returns:
        The converted model; `module` itself with `inplace=True`.

    Raises:
        TypeError: `module` is not a `torch.nn.Module`.
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
    model = module if inplace else _StructuralCopy(module).result
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
    """Replaces our layers in a model by torch's: the inverse of `convert`.

    The layers share the parameters, buffers and hooks of ours. Layers of subclasses get their class
    back, and fused modules theirs. Our other layers (`Conv`, `Resample`, `Reorder`, the quantized
    ones, and subclasses of ours) stay.

    Args:
        module: the model.
        inplace: as of `convert`.

    Returns:
        The model with torch's layers; `module` itself with `inplace=True`.

    Raises:
        TypeError: `module` is not a `torch.nn.Module`.
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
    model = module if inplace else _StructuralCopy(module).result
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


def _all_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Those of `model.modules()`, and the others of some that are equal."""
    found: dict[int, torch.nn.Module] = {}
    waiting = [model]
    while waiting:
        module = waiting.pop()
        if id(module) not in found:
            found[id(module)] = module
            waiting += [child for child in module._modules.values() if child is not None]
    return list(found.values())


class _StructuralCopy(Generic[_M]):
    """Copies the modules of a model and the containers they hold; all else is shared.

    Modules that are shared within the model stay shared, and cycles stay cycles. A reference to a
    module of the model, such as a bound method that serves as a hook, becomes one to its copy.
    """

    def __init__(self, model: _M) -> None:
        modules = _all_modules(model)
        self._modules = set(map(id, modules))
        attributes = (value for module in modules for value in vars(module).values())
        self._dicts = {id(value) for value in attributes if isinstance(value, dict)}
        self._copies: dict[int, Any] = {}
        self.result: _M = self._of(model)

    def _of(self, value: Any) -> Any:
        if type(value) in weakref.ProxyTypes:  # of what may be gone
            return value
        if id(value) in self._copies:
            return self._copies[id(value)]
        if id(value) in self._modules:
            return self._module(value)
        if isinstance(value, dict):
            return self._dict(value)
        if type(value) is set:
            result = self._remember(value, set())
            result.update(map(self._of, value))
            return result
        if type(value) is list:
            result = self._remember(value, [])
            result.extend(map(self._of, value))
            return result
        if type(value) in (tuple, frozenset):
            items = [(item, self._of(item)) for item in value]
            is_same = all(old is new for old, new in items)
            return value if is_same else type(value)(new for _, new in items)
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

    def _dict(self, value: dict[Any, Any]) -> Any:
        """Only what differs is set: subclasses may do more, or refuse."""
        result = self._remember(value, copy.copy(value))
        if result is value:  # it does not change
            return value
        items = [(key, self._of(key), item, self._of(item)) for key, item in value.items()]
        has_other_keys = any(key is not new for key, new, _, _ in items)
        if has_other_keys:
            result.clear()
        for _, key, old, new in items:
            if has_other_keys or new is not old:
                result[key] = new
        return result

    def _module(self, module: torch.nn.Module) -> torch.nn.Module:
        if isinstance(module, torch.jit.ScriptModule):
            return module
        # __init__ and __setattr__ may do more than copy, so neither is called.
        result: torch.nn.Module = self._remember(module, object.__new__(type(module)))
        vars(result).update({name: self._of(item) for name, item in vars(module).items()})
        for name in copyreg._slotnames(type(module)):  # type: ignore[attr-defined]
            if hasattr(module, name):
                object.__setattr__(result, name, self._of(getattr(module, name)))
        # The call that torch.compile has compiled calls the original.
        vars(result).pop("_compiled_call_impl", None)
        dynamo = sys.modules.get("torch._dynamo.eval_frame")
        if dynamo is not None and isinstance(result, dynamo.OptimizedModule):
            result._initialize()
        return result

    def _remember(self, value: Any, result: Any) -> Any:
        self._copies[id(value)] = result
        return result
