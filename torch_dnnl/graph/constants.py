"""The tensors that a graph computes from parameters, buffers and numbers alone."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from torch_dnnl.graph.nodes import is_mutated, mode_of

_LARGEST = 1 << 24  # elements of a constant that is larger than its inputs


class Constants:
    """The constants of a graph: tensors that are the same in every call."""

    def __init__(self, module: GraphModule) -> None:
        self._module = module
        attributes = module.graph.find_nodes(op="get_attr")
        mutated = [self._attribute(node) for node in attributes if is_mutated(node)]
        self._mutable = {t.untyped_storage()._cdata for t in mutated if isinstance(t, Tensor)}
        self._known: dict[Node, Any] = {}
        self._mode = mode_of(module.graph)

    def value(self, item: Any) -> Any:
        """The tensor or number that a node has in every call; None if there is none. An object that
        is no node is its own value."""
        if not isinstance(item, Node):
            return item
        waiting = [item]
        while waiting:
            node = waiting[-1]
            before = [] if node in self._known else self._sources(node)
            if not before and node not in self._known:
                self._known[node] = self._computed(node)
            waiting = [*waiting, *before] if before else waiting[:-1]
        return self._known[item]

    def add(self, name: str, tensor: Tensor) -> Node:
        """A buffer of the module, read at the graph's point of insertion."""
        name = name.lstrip("_").replace(".", "_")
        unique, number = name, 0
        while hasattr(self._module, unique):
            number += 1
            unique = f"{name}_{number}"
        self._module.register_buffer(unique, tensor)
        node = self._module.graph.get_attr(unique)
        if self._mode is not None:
            node.meta["val"] = self._mode.from_tensor(tensor, static_shapes=True)
        self._known[node] = tensor
        return node

    def fold(self) -> None:
        """Keeps the results that the graph computes from constants."""
        for node in list(self._module.graph.nodes):
            if node.op != "call_function" or not node.users or escapes(node):
                continue
            tensor = self.value(node)
            if not isinstance(tensor, Tensor):
                continue
            if all(self.value(user) is not None for user in node.users):
                continue  # the users are constants too
            with self._module.graph.inserting_before(node):
                new = self.add(node.name, tensor.clone(memory_format=torch.preserve_format))
            node.replace_all_uses_with(new)
        self._module.graph.eliminate_dead_code(is_impure)

    def _sources(self, node: Node) -> list[Node]:
        """The inputs of a node whose values are unknown so far."""
        is_made = node.op == "call_function" and _is_function(node.target) and not is_mutated(node)
        return [s for s in node.all_input_nodes if s not in self._known] if is_made else []

    def _attribute(self, node: Node) -> Any:
        return operator.attrgetter(str(node.target))(self._module)

    def _computed(self, node: Node) -> Any:
        if is_mutated(node):
            return None
        if node.op == "get_attr":
            tensor = self._attribute(node)
            is_tensor = isinstance(tensor, Tensor)
            if not is_tensor or tensor.untyped_storage()._cdata in self._mutable:
                return None
            return tensor.detach()
        if node.op != "call_function" or not _is_function(node.target):
            return None
        inputs = node.all_input_nodes
        if any(self.value(each) is None for each in inputs):
            return None
        target: Any = node.target
        args, kwargs = map_arg((node.args, node.kwargs), self.value)
        with torch.no_grad():
            result = target(*args, **kwargs)
        sizes = [t.numel() for t in map(self.value, inputs) if isinstance(t, Tensor)]
        is_large = isinstance(result, Tensor) and result.numel() > max([_LARGEST, *sizes])
        return None if is_large else result


def is_impure(node: Node) -> bool:
    """Whether a call does something besides its result. Guards are modules without users."""
    return node.op == "call_module" or node.is_impure()


def _is_function(target: Any) -> bool:
    """Whether the result of an operator depends on its arguments alone."""
    if target is operator.getitem:
        return True
    return (
        isinstance(target, torch._ops.OpOverload)
        and torch.Tag.nondeterministic_seeded not in target.tags
        and not target._schema.is_mutable
    )


def escapes(node: Node) -> bool:
    """Whether the caller may get the tensor itself, or a view, and write to it."""
    return any(
        user.op == "output" or user.is_impure() or (_is_view(user.target) and escapes(user))
        for user in node.users
    )


def _is_view(target: Any) -> bool:
    """Whether a result may share memory. Operators made of others do not say so."""
    if not isinstance(target, torch._ops.OpOverload):
        return True
    name = str(target.name())  # type: ignore[no-untyped-call]
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    is_composite = has_kernel(name, "CompositeImplicitAutograd")
    return is_composite or any(result.alias_info is not None for result in target._schema.returns)
