"""Graphs of quantize and dequantize operators in integers: what torchao's `convert_pt2e` returns.

torchao itself is not needed: its operators are known by their names.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from torch_dnnl.functional._reorder import reorder
from torch_dnnl.graph.activations import bounds_of
from torch_dnnl.graph.constants import Constants, is_impure
from torch_dnnl.graph.epilogues import fuse_epilogues
from torch_dnnl.graph.layers import ATEN, aten_arguments, attributes_of
from torch_dnnl.graph.layouts import allow_any_layout
from torch_dnnl.graph.nodes import (
    arguments_of,
    aten,
    call,
    call_with,
    computed,
    dnnl,
    is_mutated,
    make_functional,
    mode_of,
    name_of,
    only_user,
    replace,
    value,
)
from torch_dnnl.nn.quantized import channels_last

_convolution = dnnl.quantized_convolution.default
_reorder = dnnl.reorder.default
_INTEGERS = (torch.uint8, torch.int8, torch.int32)
_BYTES = (torch.uint8, torch.int8)
_FLOAT32 = 6  # as a schema's default
_AFFINE = {  # whether an operator dequantizes
    "quantized_decomposed::quantize_per_tensor": False,
    "quantized_decomposed::quantize_per_channel": False,
    "torchao::quantize_affine": False,
    "quantized_decomposed::dequantize_per_tensor": True,
    "quantized_decomposed::dequantize_per_channel": True,
    "torchao::dequantize_affine": True,
}


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
    def is_operand(self) -> bool:
        """Whether it is a dequantize that a quantized convolution does itself."""
        is_of_bytes = self.is_dequantize and self.axis is None and self.dtype in _BYTES
        return is_of_bytes and not is_mutated(self.node) and not is_mutated(self.source)

    @property
    def is_epilogue(self) -> bool:
        """Whether it is a quantize that a quantized convolution does itself, wherever it is."""
        is_of_bytes = not self.is_dequantize and self.axis is None and self.dtype in _BYTES
        return (
            is_of_bytes
            and not isinstance(self.scale, Node)
            and not isinstance(self.zero_point, Node)
        )


def has_quantized(graph: Graph) -> bool:
    """Whether a graph has quantize or dequantize operators."""
    return any(name_of(node) in _AFFINE for node in graph.nodes)


def lower_quantized(module: GraphModule) -> None:
    """Every convolution between dequantize and quantize as a `quantized_convolution`, and the other
    quantize and dequantize operators as reorders. The graph of `module` is changed."""
    _complete(module)
    make_functional(module.graph)
    _Lowering(module).run()


def _complete(module: GraphModule) -> None:
    """Adds the values of nodes that have none, as quantize and dequantize come without them."""
    mode: Any = mode_of(module.graph)
    for node in module.graph.nodes if mode is not None else ():
        if "val" in node.meta:
            continue
        if node.op == "get_attr":
            tensor = operator.attrgetter(str(node.target))(module)
            if isinstance(tensor, Tensor):
                node.meta["val"] = mode.from_tensor(tensor, static_shapes=True)
        elif name_of(node) in _AFFINE:
            call = arguments_of(node)
            dtype = call.get("output_dtype", call.get("dtype"))
            dtype = torch.float32 if _AFFINE[name_of(node)] else dtype
            if value(call["input"]) is not None and dtype is not None:
                node.meta["val"] = computed(
                    aten.empty_like.default, (call["input"],), {"dtype": dtype}
                )
        elif node.op == "call_function":
            inputs = node.all_input_nodes
            if inputs and all(value(each) is not None for each in inputs):
                with suppress(Exception):  # an operator without a rule for fake tensors
                    node.meta["val"] = computed(node.target, node.args, node.kwargs)


class _Lowering:
    def __init__(self, module: GraphModule) -> None:
        self._graph = module.graph
        self._constants = Constants(module)
        self._affine: dict[Node, Affine] = {}
        self._weights: dict[Any, tuple[Node, float | Node] | None] = {}
        self._quantizing: set[Node] = set()  # reorders in the place of quantize and dequantize
        for node in self._graph.nodes:
            affine = _affine_of(node, self._constants)
            if affine is not None:
                self._affine[node] = affine

    def run(self) -> None:
        for node in list(self._graph.nodes):
            if node.target in (*ATEN, dnnl.convolution.default):
                self._lower_convolution(node)
        fuse_epilogues(self._graph, self._residual)
        for node in self._graph.find_nodes(op="call_function", target=_convolution):
            if node.meta.pop("is_lowered", False):
                self._absorb_quantize(node)
        self._graph.eliminate_dead_code(is_impure)
        for node, affine in list(self._affine.items()):
            if node.users:
                self._lower_affine(node, affine)
        self._graph.eliminate_dead_code(is_impure)
        self._use_channels_last()

    # Convolutions.

    def _lower_convolution(self, conv: Node) -> None:
        """A convolution of integers, whose result is float32, in the place of `conv`."""
        is_aten = conv.target in ATEN
        arguments = aten_arguments(conv) if is_aten else arguments_of(conv)
        names = ("input", "weight") if is_aten else ("src", "weights")
        image, weight, bias = (arguments[name] for name in (*names, "bias"))
        src = self._affine.get(image)
        if src is None or not src.is_operand or arguments.get("transposed", False):
            return
        result, floats = value(conv), value(weight)
        if not isinstance(result, Tensor) or floats is None or result.dim() != floats.dim():
            return  # unknown, or without a batch
        if result.dtype != torch.float32 or result.dim() not in (3, 4, 5):
            return
        if bias is not None and (value(bias) is None or value(bias).dtype != torch.float32):
            return
        weights = self._prepared_weights(conv, weight)
        if weights is None:
            return
        options = attributes_of(arguments) if is_aten else arguments
        options |= {"src": src.source, "weights": weights[0], "bias": self._bias(bias)}
        options |= _operand("src_scale", src.scale) | _operand("src_zero_point", src.zero_point)
        options |= _operand("weights_scale", weights[1]) | {"dtype": torch.float32}
        with self._graph.inserting_before(conv):
            new = call_with(conv, _convolution, options, val=result)
        new.meta["is_lowered"] = True
        replace(conv, new)

    def _bias(self, bias: Node | None) -> Node | None:
        """The bias; if it is dequantized, its values."""
        constant = self._constants.value(bias)
        if bias is None or constant is None or bias.op == "get_attr":
            return bias
        with self._graph.inserting_before(bias):
            return self._constants.add(f"{bias.name}_value", constant)

    def _prepared_weights(self, conv: Node, weight: Node) -> tuple[Node, float | Node] | None:
        """int8 weights and their scale, made once for all that share them."""
        affine = self._affine.get(weight)
        if affine is None or not affine.is_dequantize or affine.axis not in (None, 0):
            return None
        key = (affine.source, affine.scale, affine.zero_point)
        if key not in self._weights:
            self._weights[key] = self._made_weights(conv, *key)
        return self._weights[key]

    def _made_weights(self, conv: Node, *key: Any) -> tuple[Node, float | Node] | None:
        integers, scale, zero = map(self._constants.value, key)
        if not isinstance(integers, Tensor) or scale is None or zero is None:
            return None
        per_channel = [-1, *[1] * (integers.dim() - 1)]
        zero = zero.reshape(per_channel) if isinstance(zero, Tensor) else zero
        integers = integers.int() - zero
        if integers.numel() and not -128 <= integers.min() <= integers.max() <= 127:
            return None
        first = next(iter(self._graph.nodes))
        with self._graph.inserting_before(first):
            weights = channels_last(integers.to(torch.int8))
            node = self._constants.add(f"{conv.name}_weight", weights)
            if isinstance(scale, Tensor):
                scale = self._constants.add(f"{conv.name}_weight_scale", scale.float().flatten())
        return node, scale

    def _residual(self, layer: Node, residual: Node) -> dict[str, Any]:
        affine = self._affine.get(residual)
        if layer.target is not _convolution or affine is None or not affine.is_operand:
            return {"residual": residual}
        return {
            "residual": affine.source,
            **_operand("residual_scale", affine.scale),
            **_operand("residual_zero_point", affine.zero_point),
        }

    def _absorb_quantize(self, conv: Node) -> None:
        """A clamp, and a quantize, after a convolution."""
        user = only_user(conv)
        bounds = None if user is None else bounds_of(user)
        quantize = user if user is None or bounds is None else only_user(user)
        affine = None if quantize is None else self._affine.get(quantize)
        if quantize is None or affine is None or not affine.is_epilogue:
            return
        options = arguments_of(conv) | {"dtype": affine.dtype}
        options |= _operand("dst_scale", affine.scale)
        options |= _operand("dst_zero_point", affine.zero_point)
        with self._graph.inserting_before(conv):
            new = call_with(conv, _convolution, options)
            new = self._clamped(new, affine, bounds or (-math.inf, math.inf))
        quantize.replace_all_uses_with(new)

    def _clamped(
        self, node: Node, affine: Affine, bounds: tuple[float, float] = (-math.inf, math.inf)
    ) -> Node:
        """The integers of `node`, kept within bounds that their type does not keep by itself.

        `bounds` are those of the values. Rounding preserves order, so the integers are kept within
        the integers that the bounds round to.
        """
        low, high = affine.quant_min, affine.quant_max
        if bounds != (-math.inf, math.inf):
            assert not isinstance(affine.scale, Node) and not isinstance(affine.zero_point, Node)
            rounded = reorder(
                torch.tensor(bounds, dtype=torch.float32, device="cpu"),
                dtype=affine.dtype,
                dst_scale=affine.scale,
                dst_zero_point=affine.zero_point,
            )
            low, high = max(low, int(rounded[0])), min(high, int(rounded[1]))
        limits = torch.iinfo(affine.dtype)
        if low <= limits.min and high >= limits.max:
            return node
        return call(node, aten.clamp.default, node, low, high, val=value(node))

    # The other quantize and dequantize operators.

    def _lower_affine(self, node: Node, affine: Affine) -> None:
        """A quantize or dequantize becomes a reorder.

        To quantize, torch multiplies by the inverse of the scale. A quotient may be another number,
        and where values lie halfway between integers, as the means of integers do, another integer.
        """
        side = "src" if affine.is_dequantize else "dst"
        with self._graph.inserting_before(node):
            scale = self._spread("scale", affine.scale, affine, not affine.is_dequantize)
            zero = self._spread(f"{side}_zero_point", affine.zero_point, affine)
            if not scale or not zero:
                return
            options = {"src": affine.source, "dtype": torch.float32} | scale | zero
            if not affine.is_dequantize:
                options |= {"dtype": affine.dtype, "round_before_zero_point": True}
            new = call_with(node, _reorder, options, val=value(node))
            self._quantizing.add(new)
            if not affine.is_dequantize:
                new = self._clamped(new, affine)
        node.replace_all_uses_with(new)

    def _spread(
        self, name: str, number: float | Node, affine: Affine, is_inverse: bool = False
    ) -> dict[str, Any]:
        """The argument of a reorder, in the rank of its tensor; empty if that is unknown."""
        if not isinstance(number, Node):
            return _operand(name, 1 / number if is_inverse else number)
        tensor = value(affine.node)
        if tensor is None:
            return {}
        sizes = [1] * tensor.dim()
        if affine.axis is not None:
            sizes[affine.axis] = -1
        constant = self._constants.value(number)
        if constant is not None and name.endswith("zero_point") and not constant.any():
            return _operand(name, 0)
        if constant is not None:
            constant = constant.reciprocal() if is_inverse else constant
            return {name: self._constants.add(f"{number.name}_spread", constant.reshape(sizes))}
        if is_inverse:
            number = call(number, aten.reciprocal.default, number)
        return {name: call(number, aten.reshape.default, number, sizes)}

    def _use_channels_last(self) -> None:
        """Has what convolutions take quantized to channels_last, in which they are faster; what
        follows keeps that layout."""
        formats = {4: "nhwc", 5: "ndhwc"}
        if self._graph.find_nodes(op="call_function", target=aten.as_strided.default):
            return
        allow_any_layout(self._graph)
        for node in self._graph.nodes:
            feeds = any(user.target == _convolution for user in node.users)
            if node in self._quantizing and feeds and value(node).dim() in formats:
                node.update_kwarg("dst_format", formats[value(node).dim()])


def _operand(name: str, number: float | Node) -> dict[str, Any]:
    """As the operators take it: a tensor, or a number under another name."""
    return {name if isinstance(number, Node) else f"{name}_value": number}


def _affine_of(node: Node, constants: Constants) -> Affine | None:
    """What a node quantizes or dequantizes, if it does so and reorder can."""
    is_dequantize = _AFFINE.get(name_of(node))
    if is_dequantize is None:
        return None

    def number(item: Any) -> Any:
        """The number of a constant of one element; else the node or number itself."""
        found = constants.value(item) if isinstance(item, Node) else item
        is_one = isinstance(found, Tensor) and found.numel() == 1 and found.dim() < 2
        return found.item() if is_one else item

    call = arguments_of(node)
    out_dtype = call.get("out_dtype", call.get("output_dtype"))
    if is_dequantize and out_dtype not in (None, torch.float32, _FLOAT32):
        return None
    dtype = call.get("dtype", call.get("input_dtype"))
    if name_of(node) == "torchao::quantize_affine":
        dtype = call["output_dtype"]
    if dtype not in _INTEGERS:
        return None
    # Operators for each channel have the plural of the name.
    scale: Any = call.get("scale", call.get("scales"))
    zero: Any = call.get("zero_point", call.get("zero_points"))
    axis = call.get("axis")
    if "block_size" in call:
        axis = _axis_of_blocks(call["block_size"], value(call["input"]))
        if axis == _MANY:
            return None
    if axis is None:
        scale, zero = number(scale), number(zero)
    limits = torch.iinfo(dtype)
    low, high = (number(call.get(name)) for name in ("quant_min", "quant_max"))
    low, high = limits.min if low is None else low, limits.max if high is None else high
    zero = 0 if zero is None else zero
    if isinstance(low, Node) or isinstance(high, Node) or not _are_valid(scale, zero, limits):
        return None
    return Affine(node, is_dequantize, scale, zero, axis, dtype, int(low), int(high))


def _are_valid(scale: Any, zero_point: Any, limits: torch.iinfo) -> bool:
    """Whether the operators take them; operators do not read tensors to check them."""
    is_scale = isinstance(scale, Node) or (
        0 < torch.tensor(scale, dtype=torch.float32, device="cpu").item() < math.inf
    )
    return is_scale and (
        isinstance(zero_point, Node)
        or (zero_point == int(zero_point) and limits.min <= zero_point <= limits.max)
    )


_MANY = -1


def _axis_of_blocks(block_size: Sequence[int], tensor: Tensor | None) -> int | None:
    """The axis along which torchao's blocks lie, None for a single block, else `_MANY`."""
    if tensor is None or tensor.dim() != len(block_size):
        return _MANY
    cut = [
        axis
        for axis, (block, size) in enumerate(zip(block_size, tensor.shape, strict=True))
        if block not in (-1, size)
    ]
    if not cut:
        return None
    return cut[0] if len(cut) == 1 and block_size[cut[0]] == 1 else _MANY
