"""`lower`: a model of quantize and dequantize operators in integers, by our operators.

torchao's `convert_pt2e` returns a graph in float32, in which pairs of quantize and dequantize
operators say where the values are those of integers. Here each convolution between such pairs
becomes one `quantized_convolution`, and the operators that remain become reorders. torchao itself
is not needed: its operators are known by their names.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from torch_dnnl._quantized_graph import (
    CONVOLUTIONS,
    INTEGERS,
    Affine,
    Epilogue,
    affine_of,
    arguments_of,
    is_mutated,
    name_of,
)
from torch_dnnl.functional._reorder import reorder
from torch_dnnl.nn.quantized import channels_last

__all__ = ["lower"]

_reorder = torch.ops.torch_dnnl.reorder.default
_quantized_convolution = torch.ops.torch_dnnl.quantized_convolution.default


def lower(model: torch.nn.Module) -> GraphModule:
    """Replaces quantize and dequantize operators, and the convolutions between them, by ours.

    Each of these patterns becomes one `torch.ops.torch_dnnl.quantized_convolution`; in brackets,
    what may be missing:

        dequantize, convolution of constant int8 weights, [bias], [addition of a residual],
        [relu, silu, gelu, sigmoid, tanh, hardswish, or relu6, hardtanh, clamp before quantize],
        [quantize]

    A pattern ends before a value that is used elsewhere too. Without quantize, the result is
    float32. A residual may be dequantized or float32. The other quantize and dequantize operators
    become `torch.ops.torch_dnnl.reorder`, and everything else stays as it is, but for the layout:
    images are quantized to channels_last, and what is made of them, results too, keeps that.

    The results of a layer are those of `model` but for float32 rounding: where that carries a value
    across the middle between two integers, the integers differ by 1. So they do where a value lies
    in the middle exactly and the zero point is odd, as a convolution rounds after adding it, and
    torch before. Each such integer moves what later layers make of it.

    Args:
        model: what torchao's `convert_pt2e` returns, with any quantizer that gives int8 or uint8,
            for each tensor or for each channel. It stays as it is, and shares with the result what
            both of them need.

    Returns:
        A GraphModule of the same inputs and outputs. Weights are int8, in memory channels last.

    Raises:
        TypeError: `model` is not a `torch.fx.GraphModule`.

    Example:
        >>> from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
        >>> from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86
        >>> quantizer = x86.X86InductorQuantizer()
        >>> config = x86.get_default_x86_inductor_quantization_config()
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU()).eval()
        >>> image = torch.rand(1, 3, 8, 8)
        >>> exported = torch.export.export(model, (image,)).module()
        >>> prepared = prepare_pt2e(exported, quantizer.set_global(config))
        >>> _ = prepared(image)  # calibrates
        >>> lowered = lower(convert_pt2e(prepared))
        >>> [str(node.target) for node in lowered.graph.nodes if node.op == "call_function"]
        ['torch_dnnl.reorder.default', 'torch_dnnl.quantized_convolution.default']
    """
    if not isinstance(model, GraphModule):
        raise TypeError(
            "lower: expected model to be a torch.fx.GraphModule, as convert_pt2e returns it, got "
            f"{type(model).__name__}"
        )
    lowering = _Lowering(model)
    return lowering.result()


class _Lowering:
    """The copy of a model, and what is known of the tensors in its graph."""

    def __init__(self, model: GraphModule) -> None:
        self._graph = torch.fx.Graph()
        self._graph.set_codegen(model.graph._codegen)  # how the inputs and outputs are nested
        self._graph.output(self._graph.graph_copy(model.graph, {}))
        self._model = GraphModule(model, self._graph)
        self._model.meta.update(model.meta)
        self._shapes: dict[Node, Sequence[Any]] = {}
        self._dtypes: dict[Node, torch.dtype] = {}
        self._affine: dict[Node, Affine] = {}
        self._weights: dict[Any, tuple[str, str | float]] = {}
        self._quantizing: set[Node] = set()  # reorders in the place of quantize and dequantize
        for node in self._graph.nodes:
            self._learn(node)

    def result(self) -> GraphModule:
        for node in list(self._graph.nodes):
            if name_of(node) in CONVOLUTIONS:
                self._lower_convolution(node)
        self._remove_unused()
        for node, affine in list(self._affine.items()):
            if node.users:
                self._lower_affine(node, affine)
        self._remove_unused()
        self._use_channels_last()
        self._graph.lint()
        # Another GraphModule, which has only what the graph still uses.
        lowered = GraphModule(self._model, self._graph)
        lowered.meta.update(self._model.meta)
        return lowered

    def _learn(self, node: Node) -> None:
        """The shape and type of a tensor; quantize and dequantize come without them."""
        value = node.meta.get("val")
        if node.op == "get_attr":
            value = self._attribute(node)
        affine = affine_of(node, self._shapes, self._number)
        if affine is not None:
            self._affine[node] = affine
            self._dtypes[node] = torch.float32 if affine.is_dequantize else affine.dtype
            if affine.source in self._shapes:
                self._shapes[node] = self._shapes[affine.source]
        elif isinstance(value, Tensor):
            self._shapes[node] = value.shape
            self._dtypes[node] = value.dtype

    # Constants.

    def _attribute(self, node: Node) -> Any:
        return operator.attrgetter(str(node.target))(self._model)

    def _constant(self, value: Any) -> Any:
        """The number, or the tensor that a node has in every call; None if that is unknown."""
        if not isinstance(value, Node):
            return value
        if is_mutated(value):
            return None
        if value.op == "get_attr":
            tensor = self._attribute(value)
            return tensor.detach() if isinstance(tensor, Tensor) else None
        if value not in self._affine:
            return None
        arguments = [self._constant(argument) for argument in value.args]
        known = all(c is not None or a is None for c, a in zip(arguments, value.args, strict=True))
        if not known or not callable(value.target):
            return None
        with torch.no_grad():
            return value.target(*arguments, **value.kwargs)

    def _number(self, value: Any) -> Any:
        """A node's number, if it is a constant of one element; else the node or number itself."""
        if isinstance(value, Node) and value.op == "get_attr":
            tensor = self._attribute(value)
            if isinstance(tensor, Tensor) and tensor.numel() == 1 and tensor.dim() < 2:
                return tensor.item()
        return value

    def _add_buffer(self, name: str, tensor: Tensor) -> str:
        name = name.lstrip("_")
        unique, number = name, 0
        while hasattr(self._model, unique):
            number += 1
            unique = f"{name}_{number}"
        self._model.register_buffer(unique, tensor)
        return unique

    # Convolutions.

    def _lower_convolution(self, conv: Node) -> None:
        call = arguments_of(conv)
        src = self._affine.get(call["input"])
        if src is None or not src.is_per_tensor_of_bytes or call.get("transposed", False):
            return
        if is_mutated(call["input"]) or is_mutated(src.source):
            return
        if len(self._shapes.get(conv, ())) != len(self._shapes.get(call["weight"], (0,))):
            return  # unknown, or without a batch
        if call["bias"] is not None and self._dtypes.get(call["bias"]) != torch.float32:
            return
        weights = self._prepared_weights(conv, call["weight"])
        if weights is None:
            return
        epilogue = Epilogue(conv)
        epilogue.extend(self._affine, self._is_residual)
        weight, scale = weights
        with self._graph.inserting_before(epilogue.first_place):
            new = self._graph.call_function(
                _quantized_convolution,
                (src.source, self._graph.get_attr(weight), self._bias(call["bias"])),
                {
                    **self._convolution_options(call),
                    **_operand("src_scale", src.scale),
                    **_operand("src_zero_point", src.zero_point),
                    **_operand(
                        "weights_scale",
                        self._graph.get_attr(scale) if isinstance(scale, str) else scale,
                    ),
                    **self._residual_options(epilogue.residual),
                    "activation": epilogue.activation,
                    **_dst_options(epilogue.quantize),
                },
            )
            self._describe(new, conv, epilogue.quantize)
            if epilogue.quantize is not None:
                new = self._clamped(new, epilogue.quantize, epilogue.bounds)
        epilogue.last.replace_all_uses_with(new)
        for node in reversed(epilogue.nodes):
            self._graph.erase_node(node)
            self._affine.pop(node, None)

    def _bias(self, bias: Node | None) -> Node | None:
        """The bias; if it is dequantized, its values."""
        constant = self._constant(bias)
        if bias is None or constant is None or bias.op == "get_attr":
            return bias
        return self._graph.get_attr(self._add_buffer(f"{bias.name}_value", constant))

    def _prepared_weights(self, conv: Node, weight: Node) -> tuple[str, str | float] | None:
        """The names of int8 weights and of their scales, or their scale."""
        affine = self._affine.get(weight)
        if affine is None or not affine.is_dequantize or affine.axis not in (None, 0):
            return None
        key = (affine.source, affine.scale, affine.zero_point)
        if key not in self._weights:
            integers, scale, zero = map(self._constant, key)
            if not isinstance(integers, Tensor) or scale is None or zero is None:
                return None
            per_channel = [-1, *[1] * (integers.dim() - 1)]
            zero = zero.reshape(per_channel) if isinstance(zero, Tensor) else zero
            integers = integers.int() - zero
            if integers.numel() and not -128 <= integers.min() <= integers.max() <= 127:
                return None
            if isinstance(scale, Tensor):
                scale = self._add_buffer(f"{conv.name}_weight_scale", scale.float().flatten())
            name = self._add_buffer(f"{conv.name}_weight", channels_last(integers.to(torch.int8)))
            self._weights[key] = name, scale
        return self._weights[key]

    def _convolution_options(self, call: dict[str, Any]) -> dict[str, Any]:
        n = len(self._shapes[call["weight"]]) - 2
        options = {
            "strides": _per_dimension(call["stride"], n),
            "dilations": _per_dimension(call["dilation"], n),
            "groups": call["groups"],
            "data_format": "NCX",
            "weights_format": "OIX",
        }
        if isinstance(call["padding"], str):
            return options | {"auto_pad": {"same": "same_upper"}.get(call["padding"], "valid")}
        return options | {"pads_begin": _per_dimension(call["padding"], n)}

    def _is_residual(self, residual: Any, conv: Node) -> bool:
        """Whether it is a float32 tensor that is as large as the result of the convolution."""
        # Takes ten times as long as importing this package.
        from torch.fx.experimental.symbolic_shapes import statically_known_true

        if not isinstance(residual, Node) or self._dtypes.get(residual) != torch.float32:
            return False
        sizes, expected = self._shapes.get(residual), self._shapes[conv]
        return (
            sizes is not None
            and not is_mutated(residual)
            and len(sizes) == len(expected)
            and all(statically_known_true(a == b) for a, b in zip(sizes, expected, strict=True))
        )

    def _residual_options(self, residual: Node | None) -> dict[str, Any]:
        if residual is None:
            return {}
        affine = self._affine.get(residual)
        if affine is None or not affine.is_per_tensor_of_bytes or is_mutated(affine.source):
            return {"residual": residual}
        return {
            "residual": affine.source,
            **_operand("residual_scale", affine.scale),
            **_operand("residual_zero_point", affine.zero_point),
        }

    def _clamped(
        self, node: Node, affine: Affine, bounds: tuple[float, float] = (-torch.inf, torch.inf)
    ) -> Node:
        """The integers of `node`, kept within bounds that their type does not keep by itself.

        `bounds` are those of the values. To round preserves order, so that it makes no difference
        whether the values are kept within them or the integers within what they round to.
        """
        low, high = affine.quant_min, affine.quant_max
        if bounds != (-torch.inf, torch.inf):
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
        clamped = self._graph.call_function(torch.ops.aten.clamp.default, (node, low, high))
        self._describe(clamped, node, affine)
        return clamped

    def _describe(self, new: Node, old: Node, quantize: Affine | None) -> None:
        """What is known of the tensor of a node in the place of another one."""
        new.meta = {key: value for key, value in old.meta.items() if key != "val"}
        self._dtypes[new] = torch.float32 if quantize is None else quantize.dtype
        if old in self._shapes:
            self._shapes[new] = self._shapes[old]

    # What remains.

    def _lower_affine(self, node: Node, affine: Affine) -> None:
        """A quantize or dequantize becomes a reorder.

        To quantize, torch multiplies by the inverse of the scale. A quotient may be another number,
        and where values lie halfway between integers, as the means of integers do, another integer.
        """
        if affine.dtype not in INTEGERS:
            return
        is_inverse = not affine.is_dequantize
        zero = "src_zero_point" if affine.is_dequantize else "dst_zero_point"
        with self._graph.inserting_before(node):
            operands = {
                **self._spread_operand("scale", affine.scale, node, affine, is_inverse),
                **self._spread_operand(zero, affine.zero_point, node, affine),
            }
            if len(operands) < 2:
                return
            new = self._graph.call_function(
                _reorder,
                (affine.source,),
                {
                    "dtype": torch.float32 if affine.is_dequantize else affine.dtype,
                    **operands,
                    **({} if affine.is_dequantize else {"round_before_zero_point": True}),
                },
            )
            self._describe(new, node, None if affine.is_dequantize else affine)
            self._quantizing.add(new)
            if not affine.is_dequantize:
                new = self._clamped(new, affine)
        node.replace_all_uses_with(new)

    def _spread_operand(
        self,
        name: str,
        value: float | Node,
        node: Node,
        affine: Affine,
        is_inverse: bool = False,
    ) -> dict[str, Any]:
        """The argument of a reorder, in the rank of its tensor; empty if that is unknown."""
        if not isinstance(value, Node):
            return _operand(name, 1 / value if is_inverse else value)
        if node not in self._shapes:
            return {}
        sizes = [1] * len(self._shapes[node])
        if affine.axis is not None:
            sizes[affine.axis] = -1
        constant = self._constant(value)
        if constant is not None and name.endswith("zero_point") and not constant.any():
            return _operand(name, 0)
        if constant is not None:
            constant = constant.reciprocal() if is_inverse else constant
            buffer = self._add_buffer(f"{value.name}_spread", constant.reshape(sizes))
            return {name: self._graph.get_attr(buffer)}
        if is_inverse:
            value = self._graph.call_function(torch.ops.aten.reciprocal.default, (value,))
        return {name: self._graph.call_function(torch.ops.aten.reshape.default, (value, sizes))}

    def _use_channels_last(self) -> None:
        """Has what convolutions take quantized to channels_last, in which they are faster; what
        follows keeps that layout. So views, which may not fit it, become reshapes."""
        formats = {4: "nhwc", 5: "ndhwc"}
        if any(node.target == torch.ops.aten.as_strided.default for node in self._graph.nodes):
            return
        for node in self._graph.nodes:
            if node.target == torch.ops.aten.view.default:
                node.target = torch.ops.aten.reshape.default
            feeds = any(user.target == _quantized_convolution for user in node.users)
            format = formats.get(len(self._shapes.get(node, ())))
            if node in self._quantizing and feeds and format is not None:
                node.update_kwarg("dst_format", format)

    def _remove_unused(self) -> None:
        """Guards, which are modules, have no users."""
        self._graph.eliminate_dead_code(lambda node: node.is_impure() or node.op == "call_module")


def _operand(name: str, value: float | Node) -> dict[str, Any]:
    """As the operators take it: a tensor, or a number under another name."""
    return {name if isinstance(value, Node) else f"{name}_value": value}


def _dst_options(quantize: Affine | None) -> dict[str, Any]:
    if quantize is None:
        return {"dtype": torch.float32}
    return {
        "dtype": quantize.dtype,
        **_operand("dst_scale", quantize.scale),
        **_operand("dst_zero_point", quantize.zero_point),
    }


def _per_dimension(value: Any, n: int) -> list[Any]:
    """torch's lists may have one entry for all dimensions."""
    return [*value] * n if len(value) == 1 else [*value]
