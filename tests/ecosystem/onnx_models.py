"""Models of many calls, exported to ONNX at once, and what runtimes compute of them.

What only these tests need is imported in functions: tests are collected without it, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from op_db import assert_matches
from torch import Tensor, nn

Call = tuple[Callable[..., Any], Sequence[Tensor]]

# Relative to the largest value of a result: sums in other orders; in float16 also, after each
# node, a rounding that ours have not.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.float64: 1e-12}


class Calls(nn.Module):
    """Functions, each of the tensors that are its own."""

    def __init__(self, calls: Sequence[Call]) -> None:
        super().__init__()
        self.functions = [function for function, _ in calls]
        self.counts = [len(tensors) for _, tensors in calls]

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        rest = list(tensors)
        results = []
        for function, count in zip(self.functions, self.counts):
            results.append(function(*rest[:count]))
            del rest[:count]
        return tuple(results)


class Layers(nn.Module):
    """Functions or modules, all of the same image."""

    def __init__(self, layers: Sequence[Callable[[Tensor], Tensor]]) -> None:
        super().__init__()
        self.layers = layers
        self.modules_of = nn.ModuleList(x for x in layers if isinstance(x, nn.Module))

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        return tuple(layer(image) for layer in self.layers)


def exported(model: nn.Module, inputs: Sequence[Tensor], **options: Any) -> Any:
    """A model of ONNX that its checker accepts, of the operator set that was asked for."""
    import onnx

    import torch_dnnl.onnx

    logging.disable(logging.WARNING)  # torch's traces, which pytest would keep
    try:
        program = torch_dnnl.onnx.export(model.eval(), tuple(inputs), verbose=False, **options)
    finally:
        logging.disable(logging.NOTSET)
    proto = program.model_proto
    onnx.checker.check_model(proto, full_check=True)
    versions = {entry.domain: entry.version for entry in proto.opset_import}
    assert versions[""] == options.get("opset_version", 20)
    return proto


def nodes_of(proto: Any) -> list[str]:
    return [node.op_type for node in proto.graph.node]


def run(proto: Any, inputs: Sequence[Tensor], by: str = "onnxruntime") -> list[Tensor]:
    """The results of a model: by "onnxruntime", by that without its optimizations ("as exported"),
    or by ONNX's own definitions ("reference")."""
    import onnxruntime
    from onnx.reference import ReferenceEvaluator

    names = [value.name for value in proto.graph.input]
    feed = {name: x.detach().numpy() for name, x in zip(names, inputs, strict=True)}
    if by == "reference":
        results = ReferenceEvaluator(proto).run(None, feed)
    else:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = 1
        if by == "as exported":
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        results = session.run(None, feed)
    return [torch.from_numpy(np.array(result)) for result in results]


def compared(
    calls: Sequence[Call], by: str = "onnxruntime", **options: Any
) -> tuple[list[tuple[Tensor, Tensor]], Any]:
    """For each call its result here and its result there, of one model; and the model."""
    inputs = [tensor for _, tensors in calls for tensor in tensors]
    model = Calls(calls)
    with torch.no_grad():
        ours = model(*inputs)
    proto = exported(model, inputs, **options)
    theirs = run(proto, inputs, by)
    assert [x.dtype for x in theirs] == [x.dtype for x in ours]
    return list(zip(ours, theirs, strict=True)), proto


def check(
    calls: Sequence[Call],
    by: str = "onnxruntime",
    **options: Any,
) -> Any:
    """Compares the calls of one model, and returns the model."""
    pairs, proto = compared(calls, by, **options)
    for ours, theirs in pairs:
        assert_matches(theirs, ours.double(), TOLERANCE[ours.dtype])
    return proto


def check_dynamic(
    layers: Sequence[Callable[[Tensor], Tensor]],
    channels: int,
    sizes: Sequence[Sequence[int]],
    n: int = 2,
    **options: Any,
) -> Any:
    """Compares layers that are exported as one model for symbolic sizes, the channels excepted:
    images of all the `sizes`, of the batch and the n spatial dimensions. Returns the model."""
    axes = dict.fromkeys([0, *range(2, n + 2)], torch.export.Dim.DYNAMIC)
    images = [torch.randn(batch, channels, *rest) for batch, *rest in sizes]
    model = Layers(layers)
    proto = exported(model, images[:1], dynamic_shapes=(axes,), **options)
    for image in images:
        with torch.no_grad():
            ours = model(image)
        for expected, result in zip(ours, run(proto, [image])):
            assert_matches(result, expected.double(), TOLERANCE[expected.dtype])
    return proto
