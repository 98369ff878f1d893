"""Lets the modules of a model call their convolutions with what follows them.

A module's forward is replaced by its graph, in which batch norms, sums and activations are
arguments of the convolutions before them, if the graph is known to be all that the forward does. No
submodule changes, so a submodule that is called by itself, or a forward that has no graph, has the
same results as before.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
import types
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._device import DeviceContext

from torch_dnnl import _classes
from torch_dnnl._accelerate import accelerate
from torch_dnnl.fusion import folds, graph, source
from torch_dnnl.fusion.layers import has_hooks, make_fused, make_plain, replaceable, sees_calls

_is_jit_tracing: Any = torch.jit.is_tracing  # type: ignore[attr-defined]
_MODES = (DeviceContext, accelerate)  # which change nothing


_Taken = list[tuple[torch.nn.Module, list[str]]]  # what convolutions took in


def fuse(model: torch.nn.Module) -> _Taken:
    """Fuses a converted model in place. Returns what each convolution took in."""
    modules = list(model.modules())
    # Those within first: what a forward is made of is to have the class that it will have.
    taken = [install(module) for module in reversed(modules)]
    done: dict[int, tuple[torch.nn.Module, list[str]]] = {}
    for layer, parts in itertools.chain.from_iterable(reversed(taken)):
        done.setdefault(id(layer), (layer, []))[1].extend(parts)
    return list(done.values())


def _unique(modules: Iterable[torch.nn.Module]) -> tuple[torch.nn.Module, ...]:
    """Each once; some may be equal."""
    return tuple({id(module): module for module in modules}.values())


def fuse_copies(model: torch.nn.Module) -> None:
    """Makes the modules of a copy of a fused model call the copies."""
    for module in model.modules():
        if isinstance(module, FusedCalls):
            vars(module)["_fused_calls"] = ()
            install(module)


def unfuse(model: torch.nn.Module) -> None:
    """The way back, in place."""
    for module in list(model.modules()):
        if isinstance(module, FusedCalls):
            vars(module).pop("_fused_calls", None)
            _classes.assign(module, graph.class_as_written(module))
        make_plain(module)


@dataclass
class _Part:
    """A module and its submodules."""

    module: torch.nn.Module | None  # None: the one whose forward it is
    cls: type
    names: tuple[str, ...]
    children: tuple[torch.nn.Module | None, ...]

    def is_same(self, own: torch.nn.Module) -> bool:
        module = own if self.module is None else self.module
        now = module._modules
        return (
            graph.class_as_written(module) is self.cls
            and tuple(now) == self.names
            and not any(map(operator.is_not, now.values(), self.children))
            and vars(module).keys().isdisjoint(self.names)  # which would be found first
        )


@dataclass
class _Fused:
    """A forward made of a graph, and what it was made of. The module itself, which has this, is
    None here: without a cycle it goes when it is dropped."""

    of: weakref.ref[torch.nn.Module]  # and of no copy that has its attributes
    # Where they are, their defaults, and what they have to be: a value, or any TENSOR.
    arguments: tuple[tuple[int, str, Any, Any], ...]
    forward: Any
    parts: tuple[_Part, ...]
    values: tuple[tuple[Any, str, Any], ...]  # attributes of modules and classes
    # Which no attribute of the module stands for.
    methods: tuple[tuple[torch.nn.Module | None, str], ...]
    layers: tuple[tuple[torch.nn.Module, type], ...]  # not called, or called otherwise
    in_eval: tuple[torch.nn.Module, ...]  # the modules of which it makes a difference
    norms: tuple[tuple[torch.nn.Module, torch.nn.Module], ...]  # and the convolutions before them

    def is_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        for index, name, default, expected in self.arguments:
            value = args[index] if index < len(args) else kwargs.get(name, default)
            if value is not expected and not (
                expected is source.TENSOR and isinstance(value, torch.Tensor)
            ):
                return False
        return True

    def has_parts(self, own: torch.nn.Module) -> bool:
        """Whether the submodules are still there."""
        return all(part.is_same(own) for part in self.parts)

    def is_current(self, own: torch.nn.Module) -> bool:
        if not self.has_parts(own):
            vars(own)["_fused_calls"] = ()  # which keep the old ones
            return False
        for of, name, value in self.values:
            if getattr(own if of is None else of, name, source.ABSENT) is not value:
                return False
        for module, name in self.methods:
            if name in vars(own if module is None else module):
                return False
        for layer, cls in self.layers:
            if (type(layer) is not cls and graph.class_as_written(layer) is not cls) or has_hooks(
                layer
            ):
                return False
        return not any(module.training for module in self.in_eval)


class _Calls(tuple[_Fused, ...]):
    """Whoever copies or pickles a module by its attributes gets none of them."""

    def __reduce__(self) -> Any:
        return tuple, ()


def install(module: torch.nn.Module) -> _Taken:
    """Lets a module call its convolutions so; what they got, layer by layer."""
    if not module._modules or module.training or graph.is_opaque(module):
        return []
    cls = fused_calls_class(graph.class_as_written(module))
    done: dict[int, tuple[torch.nn.Module, list[str]]] = {}
    made = []
    for arguments in source.ways(graph.as_written(module)) if cls is not None else ():
        found, parts = _make(module, arguments)
        if found is not None:
            made.append(found)
            done = {**{id(layer): (layer, names) for layer, names in parts}, **done}
    if not made:
        return []
    assert cls is not None  # else there is no graph
    _classes.assign(module, cls)
    vars(module)["_fused_calls"] = _Calls(made)
    if not _is_traced():
        with torch.no_grad():  # without a record of them, they are kept
            pairs = [pair for fused in made for pair in fused.norms]
            for conv, _ in pairs:
                folds.forget(conv)
            for pair in pairs:
                folds.weights(*pair)
    return list(done.values())[::-1]


def _make(module: torch.nn.Module, arguments: dict[str, Any]) -> tuple[_Fused | None, _Taken]:
    """What calls with these arguments do; None if nothing becomes a part of a convolution."""
    found = graph.trace(module, arguments=arguments)
    if found is None:
        return None, []
    # Such hooks would see how others are recorded.
    inlined = [] if _has_hooks_of_all() else graph.to_look_into(module, found)
    with_parts = graph.trace(module, inlined, arguments) if inlined else None
    found, inlined = (found, []) if with_parts is None else (with_parts, inlined)
    graph.separate_activations(module, found)
    opened = [*graph.holders(module, found), module, *inlined]
    passing = graph.drop_passing(module, found, is_final=True)
    watched, in_eval = [*inlined, *passing], [*passing]
    values, methods, containers = _taken_for_given(module, inlined, arguments)
    values += [value for layer in passing for value in graph.read_by_forward(layer)]
    done, norms = [], []
    for epilogue in graph.epilogues(module, found):
        conv, *others = epilogue.layers
        done.append((conv, epilogue.parts))
        watched += [conv, *others, *epilogue.passed]
        in_eval += [layer for layer in epilogue.passed if folds.is_norm(layer)]
        for layer in others:
            if epilogue.norm is not None and layer is others[0]:
                norms.append((conv, layer))
                in_eval.append(layer)
                values += source.of_method(type(layer), "forward")
            else:
                values += graph.read_by_forward(layer)
        epilogue.rewrite(found)
    for node in found.nodes:
        node.type = None  # annotations need not be what a graph's code can say
    forward = graph.function_of(found) if done else None
    if forward is None:
        return None, []
    for conv, _ in done:
        make_fused(conv)
        values += replaceable(conv)
    values = [(None if of is module else of, name, value) for of, name, value in values]
    fused = _Fused(
        weakref.ref(module),
        _places(graph.class_as_written(module).forward, arguments),
        forward,
        tuple(
            _Part(
                None if part is module else part,
                graph.class_as_written(part),
                tuple(part._modules),
                tuple(part._modules.values()),
            )
            for part in _unique([*opened, *containers])
        ),
        tuple({(id(of), name): (of, name, value) for of, name, value in values}.values()),
        tuple((None if part is module else part, name) for part, name in methods),
        tuple((layer, graph.class_as_written(layer)) for layer in _unique(watched)),
        _unique(in_eval),
        tuple(norms),
    )
    return fused, done


def _taken_for_given(
    module: torch.nn.Module, inlined: list[torch.nn.Module], arguments: dict[str, Any]
) -> tuple[list[tuple[Any, str, Any]], list[tuple[torch.nn.Module, str]], list[torch.nn.Module]]:
    """`values`, `methods` and containers of the module and of those that became a part of its
    graph."""
    values: list[tuple[Any, str, Any]] = []
    methods, containers = [], []
    for part in (module, *inlined):
        known = arguments if part is module else None
        written, reads = graph.class_as_written(part), source.reads(graph.as_written(part), known)
        assert reads is not None  # as it has a graph
        # Submodules are compared all at once.
        own = [(n, value) for n, value in reads.attributes.items() if n not in part._modules]
        values += [(part, name, value) for name, value in own]
        values += [row for name in reads.methods for row in source.of_method(written, name)]
        # Methods of the class that is made, or was, are found first.
        cls = fused_calls_class(written) if part is module else type(part)
        names = [name for name in reads.methods if name != "forward" or part is not module]
        values += [(cls, name, getattr(cls, name)) for name in names if cls is not written]
        methods += [(part, name) for name in reads.methods]
        containers += reads.containers
    return values, methods, containers


def _places(forward: Any, arguments: dict[str, Any]) -> tuple[tuple[int, str, Any, Any], ...]:
    _, *parameters = source.signature(forward).parameters.values()
    return tuple(
        (index, parameter.name, parameter.default, arguments[parameter.name])
        for index, parameter in enumerate(parameters)
        if parameter.name in arguments
    )


def _is_traced(*inputs: Any) -> bool:
    """Whether somebody records what is called, or has no values: what the modules are written to
    do is to be seen then."""
    return (
        torch.compiler.is_compiling()
        or _is_jit_tracing()
        or torch._C._functorch.maybe_current_level() is not None
        or any(map(sees_calls, inputs))
        or any(type(mode) not in _MODES for mode in _function_modes())
        or torch._C._len_torch_dispatch_stack() > 0
    )


def _function_modes() -> list[Any]:
    return [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]


def _has_hooks_of_all() -> bool:
    module = torch.nn.modules.module
    return bool(
        module._global_forward_hooks
        or module._global_forward_pre_hooks
        or module._global_backward_hooks
        or module._global_backward_pre_hooks
    )


class FusedCalls(torch.nn.Module):
    """The forward of a module that calls its convolutions with what follows them.

    It comes before the module's class among the bases. The forward of that class goes on giving the
    same results. It takes over in training mode, where what the graph was made of is no longer so,
    and where calls are recorded.
    """

    _fused_calls: tuple[_Fused, ...] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Nothing: no other class of the user's is made, as far as that class can tell."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self, FusedCalls):  # kept from before the model was reverted
            return type(self).forward(self, *args, **kwargs)
        if not (self.training or _is_traced(*args, *kwargs.values()) or _has_hooks_of_all()):
            for fused in self._fused_calls:
                if fused.is_for(args, kwargs):
                    if fused.of() is self and fused.is_current(self):
                        return fused.forward(self, *args, **kwargs)
                    break
        return super().forward(*args, **kwargs)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Takes and returns what the class's own does."""
        for fused in self._fused_calls:
            for conv, _ in fused.norms:
                folds.forget(conv)
        result: Any = super().train(*args, **kwargs)
        # Of a copy that was made in training mode, or where submodules were replaced.
        if not self.training and not self._fused_calls:
            install(self)
        return result

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_fused_calls": ()}  # type: ignore[no-untyped-call]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        install(self)


def fused_calls_class(old: _classes.Class) -> _classes.Class | None:
    for method in ("__reduce_ex__", "__reduce__", "__getstate__"):
        if getattr(old, method, None) is not getattr(torch.nn.Module, method, None):
            return None  # it has a pickle of its own, as a GraphModule does
    # With the signature of the class's own, by which torch.export names the inputs.
    ours: Any = FusedCalls.forward
    forward: Any = types.FunctionType(
        ours.__code__, ours.__globals__, "forward", None, ours.__closure__
    )
    functools.update_wrapper(forward, old.forward)
    members = {"_class_as_written": old, "forward": forward}
    try:
        forward.__signature__ = inspect.signature(old.forward)  # for those who do not ask the above
        return _classes.make((FusedCalls, old), members, fused_calls_class, old)
    except Exception:  # of a metaclass, or a forward that is no function of Python
        return None
