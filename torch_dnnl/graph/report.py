"""The report of `optimize`: a line for each layer."""

from __future__ import annotations

import operator
from typing import Any

from torch.fx import Graph, Node

from torch_dnnl.graph.calls import QUICK
from torch_dnnl.graph.layers import ATEN
from torch_dnnl.graph.nodes import arguments_of, aten, dnnl, is_floating, name_of, only_user, value
from torch_dnnl.graph.resizes import POOLS

_LAYER = "torch_dnnl_layer"  # the key of the layer's label in the data of nodes
_norm = aten._native_batch_norm_legit_no_training.default
_of_batch = aten._native_batch_norm_legit.no_stats
_KINDS: dict[Any, str] = {
    **dict.fromkeys(ATEN, "convolution"),
    **dict.fromkeys((dnnl.convolution.default, dnnl.convolution_fused.default), "convolution"),
    dnnl.convolution_transpose.default: "convolution",
    dnnl.quantized_convolution.default: "convolution",
    dnnl.quantized_convolution_packed.default: "convolution",
    **dict.fromkeys(QUICK, "convolution"),
    aten.linear.default: "linear",
    **dict.fromkeys((_norm, aten.group_norm.default, aten.layer_norm.default), "norm"),
    **dict.fromkeys((aten.instance_norm.default, aten.rms_norm.default), "norm"),
    **dict.fromkeys((_of_batch, aten._native_batch_norm_legit.default), "norm"),
    dnnl.resample.default: "resize",
    **dict.fromkeys(POOLS, "resize"),
}


class Report:
    """Labels the convolutions, linear layers, norms and resizes of a graph before it is changed."""

    def __init__(self, graph: Graph) -> None:
        self.failure: str | None = None  # why nothing is replaced
        self._layers: list[str] = []
        for node in graph.nodes:
            if node.target in _KINDS:
                label = f"{_KINDS[node.target]} {_path(node) or node.name}"
                label += f" ({node.name})" * (label in self._layers)  # is called again
                self._layers.append(label)
                node.meta[_LAYER] = label

    def text(self, graph: Graph) -> str:
        """A line for each layer: what became of it, or why it stayed."""
        found: dict[str, str] = {}
        for node in graph.nodes:
            if node.target in _KINDS and _LAYER in node.meta:
                found[node.meta[_LAYER]] = _described(node)
        gone = "part of the weights of another layer, or of a constant"
        if self.failure is not None:
            why = "torch.export has no functional graph"
            return f"nothing is replaced, as {why}: {self.failure}"
        return "\n".join(f"{label}: {found.get(label, gone)}" for label in self._layers)


def _path(node: Node) -> str:
    """The name of the module that made a call."""
    stack = node.meta.get("nn_module_stack") or {}
    path = list(stack.values())[-1][0] if stack else ""
    return str(path).removeprefix("L['self'].")


def _described(node: Node) -> str:
    operator = QUICK.get(node.target)
    name = operator._schema.name if operator else name_of(node)
    if not name.startswith("torch_dnnl::"):
        return f"{name}, {_reason(node)}"
    if operator:
        names = [argument.name for argument in operator._schema.arguments]
        arguments: dict[str, Any] = dict(zip(names, node.args, strict=True))
    else:
        arguments = arguments_of(node)
    residual = "a residual" if arguments.get("residual") is not None else None
    parts = [part for part in (residual, arguments.get("activation")) if part]
    name = name.removesuffix("_fused").removesuffix("_packed")
    return f"{name} with {' and '.join(parts)}" if parts else name


def _reason(node: Node) -> str:
    """Why torch computes a layer."""
    inputs: Any = [value(each) for each in node.all_input_nodes]
    if node.target in ATEN:
        if not is_floating(*inputs):
            return f"for tensors of {', '.join(sorted({str(x.dtype) for x in inputs}))}"
        return "as it has no batch, or an output padding as large as the stride"
    if node.target is _norm:
        source: Any = arguments_of(node)["input"]
        is_layer = source.target in _KINDS or source.target is operator.getitem
        if value(source).dtype.itemsize < 4 and not is_layer:
            return f"as a pass of its own is for float32 and float64, not {value(source).dtype}"
        if only_user(source) is not node:
            return f"as others use the result of {source.name} too"
        return f"behind {name_of(source) or source.name}"
    if node.target is _of_batch:
        return "as its statistics are those of the batch"
    is_as_fast = node.target is aten.linear.default or node.target in POOLS
    return "which is as fast" if is_as_fast else "as torch_dnnl has none"
