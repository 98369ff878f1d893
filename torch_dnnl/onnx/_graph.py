"""What the translations share: the arguments of a call, nodes of the graph, and refusals.

torch.onnx calls a translation once for each call of its operator in an exported program. Tensors
and unknown sizes arrive as values of the graph, all other arguments as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import torch
from onnxscript import evaluator, ir
from torch.fx.experimental.symbolic_shapes import statically_known_true

import torch_dnnl  # noqa: F401 (the operators)

BFLOAT16, DOUBLE, FLOAT, FLOAT16 = (
    ir.DataType.BFLOAT16,
    ir.DataType.DOUBLE,
    ir.DataType.FLOAT,
    ir.DataType.FLOAT16,
)
INT8, INT16, INT32, INT64, UINT8 = (
    ir.DataType.INT8,
    ir.DataType.INT16,
    ir.DataType.INT32,
    ir.DataType.INT64,
    ir.DataType.UINT8,
)
FLOAT8 = (ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT8E5M2)
INTEGERS = (INT8, INT16, INT32, INT64, UINT8)

Value = Any  # a value of the graph; onnxscript has no types
Size = Any  # an int, or a size that torch.export knows by a symbol


class UnsupportedError(NotImplementedError):
    """A call that no nodes of ONNX compute."""


def refuse(operator: str, expected: str, got: object) -> NoReturn:
    raise UnsupportedError(f"{operator}: expected {expected} for ONNX, got {got}")


TABLE: dict[Any, Callable[..., Any]] = {}


def translates(*names: str) -> Callable[[Callable[[SimpleNamespace], Any]], Callable[..., Any]]:
    """Enters a function of the arguments of a call into the table, as the translation of `names`.

    Returns:
        The translation of the first name.
    """

    def enter(function: Callable[[SimpleNamespace], Any]) -> Callable[..., Any]:
        for name in names:
            operator = getattr(torch.ops.torch_dnnl, name).default
            TABLE[operator] = _translation(operator._schema.arguments, function)
            TABLE[operator].__name__ = name
        return TABLE[getattr(torch.ops.torch_dnnl, names[0]).default]

    return enter


def _translation(
    schema: Sequence[Any], function: Callable[[SimpleNamespace], Any]
) -> Callable[..., Any]:
    def translation(*args: Any, **kwargs: Any) -> Any:
        call = {argument.name: argument.default_value for argument in schema}
        call.update(zip((argument.name for argument in schema), args, strict=False), **kwargs)
        if call.get("dtype") == -1:  # how torch.onnx spells None
            call["dtype"] = None
        return function(SimpleNamespace(**call))

    return translation


# ---- nodes ----


def opset() -> Any:
    """The operators of ONNX, in the version that is exported to; calling one adds a node."""
    return evaluator.default().opset


def constant(value: Any, dtype: Any) -> Value:
    return opset().Constant(value=ir.tensor(value, dtype=dtype))


def cast(value: Value, source: Any, target: Any) -> Value:
    return value if source == target else opset().Cast(value, to=target)


def vector(sizes: Sequence[int | Value]) -> Value:
    """A 1-D tensor of sizes, some of which are values of the graph."""
    if not any(isinstance(size, ir.Value) for size in sizes):
        return constant(list(sizes), INT64)
    parts = [
        opset().Reshape(size, constant([1], INT64))
        if isinstance(size, ir.Value)
        else constant([size], INT64)
        for size in sizes
    ]
    return opset().Concat(*parts, axis=0)


def channels_first(image: Value, is_nxc: bool, rank: int) -> Value:
    """NCX of NXC, if it is that."""
    return opset().Transpose(image, perm=[0, rank - 1, *range(1, rank - 1)]) if is_nxc else image


def channels_last(image: Value, is_nxc: bool, rank: int) -> Value:
    """NXC of NCX, if that is wanted."""
    return opset().Transpose(image, perm=[0, *range(2, rank), 1]) if is_nxc else image


def limits(dtype: Any) -> tuple[int, int]:
    info = np.iinfo(dtype.numpy())
    return int(info.min), int(info.max)


def saturated(value: Value, source: Any, target: Any) -> Value:
    """Rounded to nearest even and limited to the range of an integer type; NaN becomes 0."""
    op = opset()
    number = op.Where(op.IsNaN(value), constant(0.0, source), value)
    low, high = (constant(float(bound), source) for bound in limits(target))
    return op.Clip(op.Round(number), low, high)


def convert(operator: str, value: Value, source: Any, target: Any) -> Value:
    """A value in another type, as every operator of ours converts."""
    op = opset()
    if target in FLOAT8 or source in FLOAT8:
        if op.version < 19:
            refuse(operator, "opset_version to be 19 or more with float8", op.version)
        # To and from float32 alone; a Cast to float8 saturates.
        value, source = cast(value, source, FLOAT), FLOAT
    if target in INTEGERS and source in INTEGERS:
        (low, high), (least, most) = limits(source), limits(target)
        if low < least or high > most:
            bounds = max(low, least), min(high, most)
            value = op.Clip(value, *(constant(bound, source) for bound in bounds))
    elif target in INTEGERS:
        # int32 has limits that float32 has not.
        wide = DOUBLE if source == DOUBLE or target == INT32 else FLOAT
        value, source = saturated(cast(value, source, wide), wide, target), wide
    return cast(value, source, target)


# ---- sizes and numbers ----


def fx_node(value: Value) -> Any:
    """The node of the exported program that a value comes from, as torch.onnx notes it."""
    return (value.producer() or value).meta["node"]


def shape(value: Value) -> tuple[Size, ...]:
    """The sizes of a tensor. torch.onnx has texts for those that are not known; here they are the
    symbols of torch.export, which can be computed with."""
    texts = [size if isinstance(size, int) else size.value for size in value.shape]
    if all(isinstance(size, int) for size in texts):
        return tuple(texts)
    traced = fx_node(value).meta["val"]
    # An operator with several results has one node.
    for tensor in traced if isinstance(traced, (tuple, list)) else (traced,):
        if [size if isinstance(size, int) else str(size.node) for size in tensor.shape] == texts:
            return tuple(tensor.shape)
    raise LookupError(f"no tensor of sizes {texts} in {traced}")


def traced_size(size: int | Value) -> Size:
    """What torch.export knows of a size."""
    return fx_node(size).meta["val"] if isinstance(size, ir.Value) else size


def is_known(condition: Any) -> bool:
    """Whether a condition on sizes holds for all that they may be."""
    return statically_known_true(condition)


def known(operator: str, argument: str, values: Iterable[Any] | None, default: Any, n: int) -> Any:
    """A list of numbers, one for each of n dimensions; empty or None: the default."""
    numbers = list(values or ())
    if any(isinstance(number, ir.Value) for number in numbers):
        refuse(operator, f"{argument} to be numbers", "sizes that depend on the input")
    return numbers or [default] * n


def elements(value: Value) -> int | None:
    """How many there are, if that is known."""
    sizes = list(value.shape)
    return math.prod(sizes) if all(isinstance(size, int) for size in sizes) else None


def is_neutral(number: float | Value, neutral: float) -> bool:
    return not isinstance(number, ir.Value) and number == neutral


def operand(call: SimpleNamespace, name: str) -> float | Value:
    """A scale or zero point: a tensor or, if there is none, a number."""
    tensor = getattr(call, name)
    return getattr(call, f"{name}_value") if tensor is None else tensor
