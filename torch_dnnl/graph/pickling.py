"""Results of `optimize` in files: the graph, node by node.

torch.fx would trace the code of the graph again. It would run what depends on no input once and for
all: random numbers, and writes to buffers.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate

from torch_dnnl.graph.calls import quicken_attributes
from torch_dnnl.graph.memory import keep_freed_memory


class Optimized(GraphModule):
    """A `torch.fx.GraphModule` that is pickled with its graph."""

    def __init__(self, root: torch.nn.Module, graph: Graph) -> None:
        super().__init__(root, graph)
        keep_freed_memory()

    def __reduce__(self) -> tuple[Any, ...]:
        left_out = ("_graph", "_tracer_cls")
        state = {name: item for name, item in vars(self).items() if name not in left_out}
        codegen = copy.copy(self.graph._codegen)
        codegen._body_transformer = None
        calls = [
            (node.op, node.name, _named(node.target), *_arguments(node))
            for node in self.graph.nodes
        ]
        return _loaded, (state, calls, codegen)


@dataclass
class _Result:
    """The result of the call with this name."""

    name: str


@dataclass
class _Format:
    """A memory format, which the protocol of torch.save does not know."""

    name: str


@dataclass
class _Operator:
    """`torch.ops.aten.add.Tensor`, which pickle does not know."""

    path: tuple[str, ...]


def _named(target: Any) -> Any:
    if isinstance(target, torch._ops.OpOverload):
        return _Operator((*target._schema.name.split("::"), target._overloadname))
    if isinstance(target, torch._ops.HigherOrderOperator):
        return _Operator(("higher_order", target.name()))  # type: ignore[no-untyped-call]
    return target


def _arguments(node: Node) -> Any:
    def named(item: Any) -> Any:
        if isinstance(item, Node):
            return _Result(item.name)
        if isinstance(item, torch.memory_format):
            return _Format(str(item).removeprefix("torch."))
        return item

    return map_aggregate((node.args, node.kwargs), named)


def _loaded(state: dict[str, Any], calls: list[tuple[Any, ...]], codegen: Any) -> Optimized:
    graph = Graph()
    nodes: dict[str, Node] = {}

    def found(item: Any) -> Any:
        if isinstance(item, _Result):
            return nodes[item.name]
        return getattr(torch, item.name) if isinstance(item, _Format) else item

    for op, name, target, args, kwargs in calls:
        function: Any = target
        if isinstance(target, _Operator):
            function = torch.ops
            for part in target.path:
                function = getattr(function, part)
        arguments: Any = map_aggregate((args, kwargs), found)
        nodes[name] = graph.create_node(op, function, arguments[0], arguments[1], name)
    graph.set_codegen(codegen)
    root = torch.nn.Module()
    vars(root).update(state)
    module = Optimized(root, graph)
    vars(module).update({name: item for name, item in state.items() if name not in vars(module)})
    quicken_attributes(graph, module)
    module.recompile()
    return module
