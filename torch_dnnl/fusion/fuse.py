"""Folds batch norms into convolutions and lets modules call convolutions with their epilogues.

What is changed is what can be proved from the code of the model's modules:

- A batch norm is folded if no module's forward sees the convolution's result but to hand it to the
  batch norm. An `Identity` takes its place; of timm's, the activation that is its part.
- A module's forward is replaced by its graph, in which sums and activations are arguments of the
  convolutions before them, if the graph is known to be all that the forward does.

The second kind changes no submodule, so a submodule that is called by itself, or a forward that has
no graph, still has the same results.
"""

from __future__ import annotations

import gc
import types
import weakref
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from torch_dnnl.fusion import graph as graphs
from torch_dnnl.fusion.layers import HOOKS, after_fold, can_fold, fold
from torch_dnnl.fusion.uses import Uses, calls_alone, chained


def fuse(model: torch.nn.Module) -> dict[torch.nn.Module, list[str]]:
    """Fuses a converted model in place. Returns what each convolution took in."""
    done: dict[torch.nn.Module, list[str]] = {}
    code = _Code(model)
    for conv, norm in list(code.pairs()):
        if code.belongs_to(norm, conv) and can_fold(conv, norm) and fold(conv, norm):
            ((parent, name),) = code.owners[id(norm)]
            parent._modules[name] = after_fold(norm)
            done[conv] = ["batch norm"]
    for module in list(model.modules()):
        for layer, parts in graphs.install(module):
            done.setdefault(layer, []).append(parts)
    return done


class _Code:
    """Which modules hold and call the modules of a model, and how."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.owners: dict[int, list[tuple[torch.nn.Module, str]]] = {}
        self.graphs: list[tuple[torch.nn.Module, fx.Graph]] = []
        self.opaque: dict[torch.nn.Module, Uses] = {}
        self.calls: Counter[int] = Counter()  # in all graphs
        self.held: set[int] = set()  # by attributes, beside the registered submodules
        for module in model.modules():
            for name, child in module._modules.items():
                if child is not None:
                    self.owners.setdefault(id(child), []).append((module, name))
            others = [value for name, value in vars(module).items() if name != "_modules"]
            self.held |= {id(value) for value in _modules_in(others)}
            if module._modules:
                self._read(module)

    def _read(self, module: torch.nn.Module) -> None:
        graph = graphs.trace(module)
        if graph is not None:
            self.graphs.append((module, graph))
            for node in graph.nodes:
                layer = graphs.called(module, node)
                if layer is not None:
                    self.calls[id(layer)] += 1
                if node.op in ("call_module", "get_attr"):
                    # What holds it, or whose weights it is, is used: as if it was called twice.
                    owner, _, _ = str(node.target).rpartition(".")
                    while owner:
                        self.calls[id(module.get_submodule(owner))] += 2
                        owner, _, _ = owner.rpartition(".")
        elif type(module).forward is not torch.nn.Module.forward:
            self.opaque[module] = Uses(graphs.as_written(module))

    def pairs(self) -> Iterator[tuple[torch.nn.Module, torch.nn.Module]]:
        """Convolutions whose result a forward gives to one other module and to nothing else."""
        for module, graph in self.graphs:
            for node in graph.nodes:
                user = graphs.only_user(node)
                first = graphs.called(module, node)
                second = None if user is None else graphs.called(module, user)
                if first is None or second is None or user is None:
                    continue
                is_alone = len(node.args) == 1 and not node.kwargs
                if is_alone and user.args == (node,) and not user.kwargs:
                    yield first, second
        for module, uses in self.opaque.items():
            for first_name, first in module._modules.items():
                for second_name, second in module._modules.items():
                    if first is None or second is None or not can_fold(first, second):
                        continue
                    if chained(uses, first_name, second_name):
                        yield first, second

    def belongs_to(self, norm: torch.nn.Module, conv: torch.nn.Module) -> bool:
        """Whether these two are in one place, and no other code may use one of them."""
        for layer in (norm, conv):
            owners = self.owners.get(id(layer), [])
            if len(owners) != 1 or id(layer) in self.held or self.calls[id(layer)] > 1:
                return False
        ((parent, name),) = self.owners[id(conv)]
        ((other, norm_name),) = self.owners[id(norm)]
        if parent is other and calls_alone(type(parent), name, norm_name):
            return False
        in_graph = self.calls[id(conv)] == self.calls[id(norm)] == 1
        in_source = self.calls[id(conv)] == self.calls[id(norm)] == 0
        if not in_graph and not in_source:
            return False
        for layer in (norm, conv):
            for module, path in self._above(layer, [], set()):
                if any(vars(module).get(name) for name in HOOKS):  # which are given the module
                    return False
                if id(module) in self.held:
                    return False
                uses = self.opaque.get(module)
                is_seen = in_source and module is parent
                if uses is not None and not is_seen and uses.may_reach(path):
                    return False
        return True

    def _above(
        self, module: torch.nn.Module, path: list[str], seen: set[int]
    ) -> Iterator[tuple[torch.nn.Module, list[str]]]:
        """The modules that contain a module, and the names from them to it."""
        for owner, name in self.owners.get(id(module), []):
            if id(owner) not in seen:
                yield owner, [name, *path]
                yield from self._above(owner, [name, *path], {*seen, id(owner)})


def _modules_in(value: Any) -> Iterator[torch.nn.Module]:
    """The modules that a value keeps, such as a list of their methods or a function's variables."""
    wanted, seen = [value], set()
    while wanted:
        value = wanted.pop()
        if id(value) in seen or isinstance(value, _KEEPS_NONE):
            continue
        seen.add(id(value))
        if isinstance(value, weakref.ref):
            wanted.append(value())
        elif isinstance(value, torch.nn.Module):
            yield value.forward.__self__ if isinstance(value, weakref.ProxyTypes) else value
        elif isinstance(value, types.FunctionType):  # but not the variables of its module
            wanted += (value.__closure__, value.__defaults__, value.__kwdefaults__, vars(value))
        else:
            wanted += gc.get_referents(value)


# A graph names what it calls.
_KEEPS_NONE = (type, types.ModuleType, types.CodeType, torch.Tensor, fx.Graph)
