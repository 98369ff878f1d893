"""What `torch_dnnl.quantization` reads in a graph: quantize and dequantize operators, and what may
follow a convolution."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

CONVOLUTIONS = ("aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::convolution")
INTEGERS = (torch.uint8, torch.int8, torch.int32)

_AFFINE = {
    "quantized_decomposed::quantize_per_tensor": False,
    "quantized_decomposed::quantize_per_channel": False,
    "torchao::quantize_affine": False,
    "quantized_decomposed::dequantize_per_tensor": True,
    "quantized_decomposed::dequantize_per_channel": True,
    "torchao::dequantize_affine": True,
}
_FLOAT32 = 6  # as a schema's default
_ACTIVATIONS = ("relu", "silu", "gelu", "sigmoid", "tanh", "hardswish")


def name_of(node: Node) -> str:
    """`aten::relu` of `torch.ops.aten.relu.default`; the name of an operator in place ends in _."""
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target._schema.name
    if isinstance(node.target, torch._ops.OpOverloadPacket):
        return node.target._qualified_op_name
    return ""


def arguments_of(node: Node) -> dict[str, Any]:
    """The arguments of an operator's call by their names, defaults included."""
    target = node.target
    if isinstance(target, torch._ops.OpOverloadPacket):
        target = target.default
    assert isinstance(target, torch._ops.OpOverload)
    schema = target._schema.arguments
    names = [argument.name for argument in schema]
    defaults = {a.name: a.default_value for a in schema if a.has_default_value()}
    return defaults | dict(zip(names, node.args, strict=False)) | node.kwargs


def is_mutated(node: Node) -> bool:
    """Whether an operator in place may change its tensor after it was made."""
    return any(
        argument.alias_info is not None and argument.alias_info.is_write and value is node
        for user in node.users
        if isinstance(user.target, torch._ops.OpOverload)
        for argument, value in zip(user.target._schema.arguments, user.args, strict=False)
    )


@dataclass(frozen=True)
class Affine:
    """A quantize or dequantize operator; the integer q is the value scale * (q - zero_point)."""

    node: Node
    is_dequantize: bool
    scale: float | Node
    zero_point: float | Node
    axis: int | None  # of scale and zero_point; None: they are one for the tensor
    dtype: torch.dtype  # of the integers
    quant_min: int
    quant_max: int

    @property
    def source(self) -> Node:
        """What it quantizes or dequantizes, which may have been replaced since."""
        source: Node = arguments_of(self.node)["input"]
        return source

    @property
    def is_per_tensor_of_bytes(self) -> bool:
        """Whether it is a dequantize that our convolution can do itself."""
        return self.is_dequantize and self.axis is None and self.dtype in (torch.uint8, torch.int8)

    @property
    def can_follow_convolution(self) -> bool:
        """Whether it is a quantize that our convolution can do itself, wherever it is computed."""
        return (
            not self.is_dequantize
            and self.axis is None
            and self.dtype in (torch.uint8, torch.int8)
            and not isinstance(self.scale, Node)
            and not isinstance(self.zero_point, Node)
        )


def affine_of(
    node: Node, shapes: Mapping[Node, Sequence[Any]], number: Callable[[Any], Any]
) -> Affine | None:
    """What a node quantizes or dequantizes, if it does so and reorder can.

    `number` gives the number of a node that is a constant of one element.
    """
    is_dequantize = _AFFINE.get(name_of(node))
    if is_dequantize is None:
        return None
    call = arguments_of(node)
    out_dtype = call.get("out_dtype", call.get("output_dtype"))
    if is_dequantize and out_dtype not in (None, torch.float32, _FLOAT32):
        return None
    dtype = call.get("dtype", call.get("input_dtype"))
    if name_of(node) == "torchao::quantize_affine":
        dtype = call["output_dtype"]
    if dtype not in INTEGERS:
        return None
    scale, zero = (_first(call, name) for name in ("scale", "zero_point"))
    axis = call.get("axis")
    if "block_size" in call:
        axis = _axis_of_blocks(call["block_size"], shapes.get(call["input"]))
        if axis == _MANY:
            return None
    if axis is None:
        scale, zero = number(scale), number(zero)
    limits = torch.iinfo(dtype)
    bounds = [number(call.get(name)) for name in ("quant_min", "quant_max")]
    low, high = (
        limit if bound is None else bound
        for bound, limit in zip(bounds, (limits.min, limits.max), strict=True)
    )
    zero = 0 if zero is None else zero
    if isinstance(low, Node) or isinstance(high, Node) or not _are_valid(scale, zero, dtype):
        return None
    return Affine(node, is_dequantize, scale, zero, axis, dtype, int(low), int(high))


def _first(call: dict[str, Any], name: str) -> Any:
    """The argument of this name; operators for each channel have the plural."""
    return call[name] if name in call else call.get(f"{name}s")


def _are_valid(scale: Any, zero_point: Any, dtype: torch.dtype) -> bool:
    """Whether our operators take them; they do not read tensors to check them."""
    limits = torch.iinfo(dtype)
    is_scale = isinstance(scale, Node) or (
        0 < torch.tensor(scale, dtype=torch.float32, device="cpu").item() < math.inf
    )
    return is_scale and (
        isinstance(zero_point, Node)
        or (zero_point == int(zero_point) and limits.min <= zero_point <= limits.max)
    )


_MANY = -1


def _axis_of_blocks(block_size: Sequence[int], sizes: Sequence[Any] | None) -> int | None:
    """The axis along which torchao's blocks lie, None for a single block, else `_MANY`."""
    if sizes is None or len(sizes) != len(block_size):
        return _MANY
    cut = [
        axis
        for axis, (block, size) in enumerate(zip(block_size, sizes, strict=True))
        if block not in (-1, size)
    ]
    if not cut:
        return None
    return cut[0] if len(cut) == 1 and block_size[cut[0]] == 1 else _MANY


class Epilogue:
    """A convolution, and the operators after it that become part of it.

    Each of them is the only user of the one before it.
    """

    def __init__(self, conv: Node) -> None:
        self.nodes = [conv]
        self.first_place = conv  # where everything that is needed has been computed
        self.residual: Node | None = None
        self.activation: str | None = None
        self.bounds = (-math.inf, math.inf)
        self.quantize: Affine | None = None

    @property
    def last(self) -> Node:
        return self.nodes[-1]

    def extend(
        self, affine: Mapping[Node, Affine], is_residual: Callable[[Any, Node], bool]
    ) -> None:
        """Takes all that may become part of the convolution."""
        conv = self.last
        user = self._only_user(self.last)
        residual = None if user is None else self._added(user)
        if user is not None and is_residual(residual, conv):
            self.residual, self.first_place = residual, user
            user = self._take(user)
        activation = None if user is None else _activation(user)
        if user is not None and activation is not None:
            self.activation = activation
            user = self._take(user)
        bounds = None if user is None else _bounds(user)
        if user is not None and bounds is not None:
            quantize = self._only_user(user)
            if quantize is not None and _is_epilogue(affine.get(quantize)):
                self.bounds = bounds
                user = self._take(user)
        if user is not None and _is_epilogue(affine.get(user)):
            self.quantize = affine[user]
            self._take(user)

    def _take(self, node: Node) -> Node | None:
        self.nodes.append(node)
        return self._only_user(node)

    @staticmethod
    def _only_user(node: Node) -> Node | None:
        users = list(node.users)
        return users[0] if len(users) == 1 else None

    def _added(self, node: Node) -> Any:
        """What an addition adds to the last node."""
        if name_of(node) not in ("aten::add", "aten::add_"):
            return None
        call = arguments_of(node)
        operands = [call["self"], call["other"]]
        if call["alpha"] != 1 or operands.count(self.last) != 1:
            return None
        operands.remove(self.last)
        return operands[0]


def _is_epilogue(quantize: Affine | None) -> bool:
    return quantize is not None and quantize.can_follow_convolution


def _activation(node: Node) -> str | None:
    name = name_of(node).removeprefix("aten::").removesuffix("_")
    if name not in _ACTIVATIONS or node.kwargs.get("approximate", "none") != "none":
        return None
    return name


def _bounds(node: Node) -> tuple[float, float] | None:
    """Between which an operator keeps the values."""
    name = name_of(node).removeprefix("aten::").removesuffix("_")
    if name == "relu6":
        return 0.0, 6.0
    names = {"hardtanh": ("min_val", "max_val"), "clamp": ("min", "max")}.get(name)
    if names is None:
        return None
    call = arguments_of(node)
    low, high = (call[name] for name in names)
    low, high = -math.inf if low is None else low, math.inf if high is None else high
    if isinstance(low, Node) or isinstance(high, Node) or not low <= high:
        return None
    return float(low), float(high)
