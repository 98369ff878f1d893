"""Lets the modules of a model call their convolutions with what follows them.

A module's forward is replaced by its graph, in which batch norms, sums and activations are
arguments of the convolutions before them, if the graph is known to be all that the forward does. No
submodule changes, so a submodule that is called by itself, or a forward that has no graph, has the
same results as before.
"""

from __future__ import annotations

import functools
import types
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torch_dnnl import _classes
from torch_dnnl.fusion import folds, graph, source
from torch_dnnl.fusion.layers import has_hooks, make_fused, make_plain

_is_jit_tracing: Any = torch.jit.is_tracing  # type: ignore[attr-defined]
_Mode = torch._C._TorchDispatchModeKey
_TRACING = (_Mode.FAKE, _Mode.PROXY, _Mode.FUNCTIONAL)


def fuse(model: torch.nn.Module) -> dict[torch.nn.Module, list[str]]:
    """Fuses a converted model in place. Returns what each convolution took in."""
    done: dict[torch.nn.Module, list[str]] = {}
    for module in list(model.modules()):
        for layer, parts in install(module):
            done.setdefault(layer, []).extend(parts)
    return done


def fuse_copies(model: torch.nn.Module) -> None:
    """Makes the modules of a copy of a fused model call the copies."""
    for module in model.modules():
        if isinstance(module, FusedCalls):
            vars(module)["_fused_calls"] = None
            install(module)


def unfuse(model: torch.nn.Module) -> None:
    """The way back, in place."""
    for module in list(model.modules()):
        if isinstance(module, FusedCalls):
            vars(module).pop("_fused_calls", None)
            module.__class__ = graph.class_as_written(module)  # type: ignore[assignment]
        make_plain(module)


@dataclass
class _Fused:
    """A forward made of a graph, and what it was made of."""

    of: torch.nn.Module  # and of no copy that has its attributes
    forward: Any
    parts: tuple[tuple[torch.nn.Module, list[tuple[str, torch.nn.Module | None]]], ...]
    values: tuple[tuple[Any, str, Any], ...]  # attributes of modules and classes
    methods: tuple[tuple[torch.nn.Module, str], ...]  # which no attribute of the module stands for
    layers: tuple[tuple[torch.nn.Module, type], ...]  # not called, or called otherwise
    norms: tuple[torch.nn.Module, ...]

    def is_current(self) -> bool:
        for module, children in self.parts:
            if list(module._modules.items()) != children:
                return False
        for of, name, value in self.values:
            if getattr(of, name, source.ABSENT) is not value:
                return False
        for module, name in self.methods:
            if name in vars(module):
                return False
        for layer, cls in self.layers:
            if (type(layer) is not cls and graph.class_as_written(layer) is not cls) or has_hooks(
                layer
            ):
                return False
        return not any(norm.training for norm in self.norms)


def install(module: torch.nn.Module) -> list[tuple[torch.nn.Module, list[str]]]:
    """Lets a module call its convolutions so; what they got, layer by layer."""
    if not module._modules or module.training:
        return []
    found = graph.trace(module)
    if found is None:
        return []
    inlined = graph.to_look_into(module, found)
    found = graph.trace(module, inlined)
    assert found is not None
    graph.separate_activations(module, found)
    looked_into = [module, *inlined]
    opened = [*graph.holders(module, found), *(x for m in looked_into for x in graph.lists(m))]
    opened = list(dict.fromkeys([*opened, *looked_into]))
    watched = [*inlined, *graph.drop_identities(module, found)]
    done, methods, norms = [], [], []
    values: list[tuple[Any, str, Any]] = []
    for part in looked_into:
        written, reads = graph.class_as_written(part), source.reads(graph.as_written(part))
        assert reads is not None  # as it has a graph
        # Submodules are compared all at once.
        own = [(n, value) for n, value in reads.attributes.items() if n not in part._modules]
        values += [(part, name, value) for name, value in own]
        values += [(written, name, value) for name, value in reads.methods.items()]
        methods += [(part, name) for name in reads.methods]
    for epilogue in graph.epilogues(module, found):
        conv, *others = epilogue.layers
        done.append((conv, epilogue.parts))
        watched += [conv, *others]
        for layer in others:
            if epilogue.norm is not None and layer is others[0]:
                norms.append((conv, layer))
                values.append((type(layer), "forward", type(layer).forward))
            else:
                values += graph.read_by_forward(layer)
        epilogue.rewrite(found)
    cls = fused_calls_class(graph.class_as_written(module)) if done else None
    if cls is None:
        return []
    for node in found.nodes:
        node.type = None  # annotations need not be what a graph's code can say
    forward = type(fx.GraphModule(graph.as_written(module), found)).forward
    for conv, _ in done:
        make_fused(conv)
    module.__class__ = cls
    vars(module)["_fused_calls"] = _Fused(
        module,
        forward,
        tuple((part, list(part._modules.items())) for part in opened),
        tuple(values),
        tuple(methods),
        tuple((layer, graph.class_as_written(layer)) for layer in watched),
        tuple(norm for _, norm in norms),
    )
    if not _is_traced():
        with torch.no_grad():  # without a record of them, they are kept
            for conv, norm in norms:
                folds.weights(conv, norm)
    return done[::-1]


def _is_traced(*inputs: Any) -> bool:
    """Whether somebody records what is called, or has no values: what the modules are written to
    do is to be seen then."""
    return (
        torch.compiler.is_compiling()
        or _is_jit_tracing()
        or torch._C._functorch.maybe_current_level() is not None
        or any(isinstance(value, fx.Proxy) for value in inputs)
        or (
            torch._C._len_torch_dispatch_stack() > 0
            and any(torch._C._get_dispatch_mode(key) is not None for key in _TRACING)
        )
    )


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

    _fused_calls: _Fused | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Nothing: no other class of the user's is made, as far as that class can tell."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        fused = self._fused_calls
        if (
            fused is None
            or fused.of is not self
            or self.training
            or _is_traced(*args, *kwargs.values())
            or _has_hooks_of_all()
            or not fused.is_current()
        ):
            return super().forward(*args, **kwargs)
        return fused.forward(self, *args, **kwargs)

    def train(self, mode: bool = True) -> Any:
        for layer, _ in self._fused_calls.layers if self._fused_calls is not None else ():
            folds.forget(layer)
        return super().train(mode)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_fused_calls": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        install(self)


def fused_calls_class(old: _classes.Class) -> _classes.Class | None:
    for method in ("__reduce_ex__", "__reduce__", "__getstate__"):
        if getattr(old, method, None) is not getattr(torch.nn.Module, method, None):
            return None  # it has a pickle of its own, as a GraphModule does
    # With the signature of the class's own, by which torch.export names the inputs.
    ours: Any = FusedCalls.forward
    forward = types.FunctionType(ours.__code__, ours.__globals__, "forward", None, ours.__closure__)
    members = {"_class_as_written": old, "forward": functools.update_wrapper(forward, old.forward)}
    try:
        return _classes.make((FusedCalls, old), members, fused_calls_class, old)
    except Exception:  # of a metaclass
        return None
