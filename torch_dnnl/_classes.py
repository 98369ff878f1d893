"""Classes made while a model is converted: a layer keeps its class and gets our methods.

Each of them stands between the class of a layer and torch's, so `isinstance` with the class of the
layer stays true. Its name is that of the layer's class. That name finds another class, so pickle is
told how the class was made.
"""

from __future__ import annotations

import copyreg
import dis
import types
import weakref
from abc import ABCMeta
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parametrize

from torch_dnnl import nn

Class = type[torch.nn.Module]

_OURS: dict[Class, Class] = {
    torch.nn.Conv1d: nn.Conv1d,
    torch.nn.Conv2d: nn.Conv2d,
    torch.nn.Conv3d: nn.Conv3d,
    torch.nn.ConvTranspose1d: nn.ConvTranspose1d,
    torch.nn.ConvTranspose2d: nn.ConvTranspose2d,
    torch.nn.ConvTranspose3d: nn.ConvTranspose3d,
    torch.nn.Upsample: nn.Upsample,
}
_THEIRS = {ours: theirs for theirs, ours in _OURS.items()}
# timm's layer with TensorFlow's padding, where it is and where it was. What it becomes has that
# padding as `_call_padding`.
_SAME = ("timm.layers.conv2d_same.Conv2dSame", "timm.models.layers.conv2d_same.Conv2dSame")

_INDIFFERENT = ("builtins.object", "typing.Generic")  # to being subclassed
_KNOWN = ("torch", "typing", "builtins")  # whose classes take no other class for their own
_BASES = frozenset(("__bases__", "__base__", "__mro__", "mro"))
_SILENT = ("PUSH_NULL", "CACHE", "EXTENDED_ARG")  # instructions
_PARTS = ("__code__", "__func__", "__wrapped__", "fget", "fset", "fdel", "func")
_WRAPPED = 10

# Values hold their keys, which are their bases, and go when no layer has them any more.
_made: weakref.WeakValueDictionary[tuple[object, ...], Class] = weakref.WeakValueDictionary()


def make(
    bases: tuple[type, ...], members: dict[str, Any], again: Callable[..., Class | None], old: Class
) -> Class:
    """A class with the name of `old`. `again(old)` makes it anew where a layer is unpickled."""
    key = (again, old)
    made = _made.get(key)
    if made is not None:
        return made
    kind: Any = type(old)
    if (kind.__new__, kind.__init__) not in [(k.__new__, type.__init__) for k in (type, ABCMeta)]:
        raise TypeError(f"its metaclass {kind.__name__} may keep a list of its classes")
    theirs = [cls for cls in old.__mro__ if cls.__module__.partition(".")[0] not in _KNOWN]
    members_of = [member for cls in theirs for member in vars(cls).values()]
    if any(map(_asks_for_class, {code for member in members_of for code in _codes(member)})):
        raise TypeError("its methods take the class of the instance for their own")
    if any(_definer(old, name) != "builtins.object" for name in ("__reduce__", "__reduce_ex__")):
        raise TypeError("it has a pickle of its own")

    def reduce_ex(self: Any, protocol: Any) -> Any:
        reduced = super(new, self).__reduce_ex__(max(int(protocol), 2))
        if isinstance(reduced, tuple) and reduced[0] is getattr(copyreg, "__newobj__"):  # noqa: B009
            made, *args = reduced[1]
            if made is new:
                return (_instance, (again, old, *args), *reduced[2:])
        return reduced

    names = {"__module__": old.__module__, "__qualname__": old.__qualname__, "__doc__": old.__doc__}
    own = {**names, **members, "__reduce_ex__": reduce_ex}
    new: Class = types.new_class(old.__name__, bases, exec_body=lambda scope: scope.update(own))
    return _made.setdefault(key, new)


def _codes(member: Any, depth: int = 0) -> Iterator[types.CodeType]:
    """The code of a method, a property or what is wrapped in one, and of the functions within."""
    if isinstance(member, types.CodeType):
        yield member
        for constant in member.co_consts:
            yield from _codes(constant)
    if depth > _WRAPPED or isinstance(member, type):
        return
    inner = [getattr(member, name, None) for name in _PARTS]
    for cell in getattr(member, "__closure__", None) or ():
        with suppress(ValueError):  # of one that is empty
            inner.append(cell.cell_contents)
    for part in inner:
        if isinstance(part, (types.CodeType, types.FunctionType, types.MethodType)):
            yield from _codes(part, depth + 1)


@lru_cache(10000)
def _asks_for_class(code: types.CodeType) -> bool:
    """Whether a method calls the like of `super(self.__class__, self)` or `type(self).__base__`,
    which has no end in a subclass."""
    if not _BASES.isdisjoint(code.co_names):
        return True
    if "super" not in code.co_names:
        return False
    steps = [each for each in dis.get_instructions(code) if each.opname not in _SILENT]
    after = [steps[i + 1 : i + 3] for i, each in enumerate(steps) if each.argval == "super"]
    return any(
        first.opname.startswith("LOAD_FAST")
        or first.argval in ("type", *code.co_cellvars)  # variables, too
        or (second.opname.startswith("LOAD_ATTR") and second.argval == "__class__")
        for first, second, *_ in after
    )


def _instance(again: Callable[..., Class | None], old: Class, *args: Any) -> Any:
    cls = again(old) or old
    return cls.__new__(cls, *args)


def torch_classes() -> list[Class]:
    return list(_OURS)


def torch_class(cls: type) -> Class | None:
    """The layer of torch that `cls` is or inherits from."""
    return next((base for base in cls.__mro__ if base in _OURS), None)


def is_ours(cls: type) -> bool:
    return issubclass(cls, tuple(_THEIRS))


def replacement(old: Class) -> Class | None:
    """The class that a layer of class `old` gets; None if its forward is not torch's."""
    base = torch_class(old)
    if base is None or is_ours(old):
        return None
    if old is base:
        return _OURS[old]
    if _definer(old, "__init_subclass__") not in _INDIFFERENT:
        raise TypeError("it is told of its subclasses")
    members: dict[str, Any] = {"_original_class": old}
    if not _inherits(old, base, "_conv_forward"):
        return None
    if not _inherits(old, base, "forward"):
        if base is not torch.nn.Conv2d or _definer(old, "forward") not in _SAME:
            return None
        members |= {"forward": _same_forward, "_call_padding": "same_upper"}
    return make((old, _OURS[base]), members, replacement, old)


def _inherits(old: type, base: type, method: str) -> bool:
    return getattr(old, method, None) is getattr(base, method, None)


def _definer(cls: type, method: str) -> str:
    definer = next(base for base in cls.__mro__ if method in vars(base))
    return f"{definer.__module__}.{definer.__qualname__}"


def _same_forward(self: nn.Conv2d, input: Tensor) -> Tensor:
    """TensorFlow's SAME, whatever `padding` is. Some code keeps this method of a layer that is
    reverted later."""
    options: Any = (self.stride, "same_upper", self.dilation, self.groups)
    return nn.Conv2d._torch_dnnl_function(input, self.weight, self.bias, *options)


def original(cls: Class) -> Class | None:
    """The class of which `replacement` made `cls`, if it did."""
    return _THEIRS.get(cls) or vars(cls).get("_original_class")


def change(layer: torch.nn.Module, of: Callable[[Class], Class | None]) -> bool:
    """Gives a layer the class `of(its class)`; says whether there is one.

    A parametrized layer has a class of its own, made by torch, whose base is the layer's real class
    and which `remove_parametrizations` takes away again. Such a class is made anew on another base.
    """
    old = type(layer)
    if not has_parametrized_class(layer):
        new = of(old)
    else:
        base = of(old.__bases__[0])
        members = {k: v for k, v in vars(old).items() if k not in ("__dict__", "__weakref__")}
        new = (
            None
            if base is None
            else types.new_class(
                old.__name__, (base,), exec_body=lambda scope: scope.update(members)
            )
        )
    if new is not None:
        assign(layer, new)
    return new is not None


def assign(module: torch.nn.Module, cls: type) -> None:
    """Gives a module a class, whatever its own `__setattr__` does."""
    object.__setattr__(module, "__class__", cls)


def has_parametrized_class(layer: torch.nn.Module) -> bool:
    cls = type(layer)
    return (
        len(cls.__bases__) == 1
        and cls.__name__ == f"Parametrized{cls.__bases__[0].__name__}"
        and parametrize.is_parametrized(layer)
        and all(isinstance(vars(cls).get(name), property) for name in layer.parametrizations)  # type: ignore[union-attr]
    )


def layer_class(layer: torch.nn.Module) -> Class:
    """The class of a layer, without its parametrizations."""
    return type(layer).__bases__[0] if has_parametrized_class(layer) else type(layer)
