"""Arithmetic with a number for each channel, as part of the weights and the bias beside it.

Batch norm with constant statistics is such arithmetic.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torch_dnnl.graph.layers import HAS_PAIR, channel_axis, is_linear
from torch_dnnl.graph.nodes import (
    arguments_of,
    aten,
    call,
    call_with,
    dnnl,
    erase_unused,
    is_floating,
    only_user,
    replace,
    value,
)

_convert = torch.ops.prims.convert_element_type.default
_permute = aten.permute.default
_norm = aten._native_batch_norm_legit_no_training.default
_ARITHMETIC = (aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor)
_SYMMETRIC = (aten.add.Tensor, aten.mul.Tensor)
_LAYERS = (dnnl.convolution.default, dnnl.convolution_transpose.default, aten.linear.default)

Vector = Tensor | float | None
# Gets the node to replace, a function of tensors, and the nodes of these tensors. Returns nodes for
# the two results of the function: new weights, and a new bias or None. Returns None if the layer
# must stay: the tensors are unknown, or the results lose digits.
Maker = Callable[[Node, Callable[..., Any], Sequence[Node]], tuple[Node, Node | None] | None]


@dataclass
class Step:
    """One operator of a chain."""

    node: Node  # whose value is the result of the step
    kind: Any = None  # an operator of _ARITHMETIC, _norm, _permute, or None for a change of type
    operand: Any = None  # a node or number; of _norm its arguments, of _permute the dimensions


class Chain(list[Step]):
    """Operators that act by channels, each the only user of the one before."""

    @property
    def operands(self) -> list[Node]:
        """The nodes of the vectors."""
        found = []
        for step in self:
            if step.kind is _norm:
                found += [step.operand[name] for name in _VECTORS]
            else:
                found.append(step.operand)
        return [operand for operand in found if isinstance(operand, Node)]

    @property
    def last(self) -> Node:
        return self[-1].node

    def affine(self, read: Callable[[Any], Any], shift: Vector = None) -> tuple[Vector, Vector]:
        """The scale and the shift of the whole chain; None for one that changes nothing.

        `read` gives the vector of a node, and numbers as they are. `shift` is added before.
        """
        scale: Vector = None
        for step in self:
            if step.kind in (None, _permute):
                continue
            if step.kind is _norm:
                weight, bias, mean, variance = (read(step.operand[name]) for name in _VECTORS)
                factor = (variance + step.operand["eps"]).rsqrt()
                factor = factor if weight is None else factor * weight
                moved = -mean if shift is None else shift - mean
                shift = moved * factor if bias is None else moved * factor + bias
                scale = factor if scale is None else scale * factor
                continue
            operand = read(step.operand)
            if step.kind in (aten.mul.Tensor, aten.div.Tensor):
                compute = operator.mul if step.kind is aten.mul.Tensor else operator.truediv
                scale = compute(1.0 if scale is None else scale, operand)
                shift = None if shift is None else compute(shift, operand)
            else:
                operand = operand if step.kind is aten.add.Tensor else -operand
                shift = operand if shift is None else shift + operand
        return scale, shift


_VECTORS = ("weight", "bias", "running_mean", "running_var")


def chain_of(result: Node, axis: int, user: Node | None = None) -> Chain:
    """The operators after `result` that act by channels.

    `axis` is that of the channels, counted from the end. `user` is the first operator, by default
    the only user of `result`. Types may change between, to wider ones and back: narrower ones would
    round. The last result has the type of the first.
    """
    chain = Chain()
    last, complete = result, 0
    dtype = value(result).dtype
    user = user or only_user(result)
    while user is not None:
        step = _step(user, last, dtype, axis)
        if step is None or value(step.node) is None:
            break
        if step.kind is _permute:
            dims = [d % len(step.operand) for d in step.operand]
            axis = dims.index(axis % len(dims)) - len(dims)
        chain.append(step)
        last = step.node
        user = only_user(last)
        if value(last).dtype == dtype:
            complete = len(chain)
    chain = Chain(chain[:complete])
    return chain if any(step.kind not in (None, _permute) for step in chain) else Chain()


def _step(user: Node, last: Node, dtype: torch.dtype, axis: int) -> Step | None:
    if user.target in (_convert, aten.to.dtype):
        # `to` may have other arguments, all of them about copies.
        return Step(user) if _is_at_least(value(user), dtype) else None
    if user.target is _permute:
        return Step(user, _permute, user.args[1])
    if user.target is _norm:
        norm, output = arguments_of(user), only_user(user)
        is_result = output is not None and output.target is operator.getitem and output.args[1] == 0
        is_along = axis % value(last).dim() == 1 and norm["input"] is last
        return Step(output, _norm, norm) if output is not None and is_result and is_along else None
    operand = _operand_by_channel(user, last, axis)
    return None if operand is None else Step(user, user.target, operand)


def _is_at_least(converted: Any, other: torch.dtype) -> bool:
    """Whether a floating type has all numbers of another."""
    dtype = converted.dtype
    if not dtype.is_floating_point or dtype.itemsize == 1:  # float8 is promoted to nothing
        return False
    return bool(torch.promote_types(dtype, other) == dtype)


def _operand_by_channel(node: Node, last: Node, axis: int) -> Any:
    """What a node combines `last` with, if that is a number or one for each channel."""
    if node.target not in _ARITHMETIC or node.kwargs:
        return None
    first, second = node.args
    if second is last and node.target in _SYMMETRIC:
        first, second = second, first
    if first is not last or second is last:
        return None
    if isinstance(second, (int, float)):
        return None if node.target is aten.div.Tensor and second == 0 else second
    if not isinstance(second, Node) or not isinstance(value(second), Tensor):
        return None
    result = value(last)
    channels = result.shape[axis]
    sizes = tuple(value(second).shape)
    if not all(isinstance(n, int) for n in (channels, *sizes)):
        return None
    expected = tuple(channels if i - len(sizes) == axis else 1 for i in range(len(sizes)))
    if len(sizes) > result.dim() or sizes != expected or math.prod(sizes) != channels:
        return None
    return second if _is_made_of_vectors(second, channels) else None


def _is_made_of_vectors(node: Node, channels: int) -> bool:
    """Whether nothing larger is behind a tensor: of parameters that is so, of features not."""
    waiting, seen = [node], {node}
    while waiting:
        tensor = value(each := waiting.pop())
        if not isinstance(tensor, Tensor) or not all(isinstance(n, int) for n in tensor.shape):
            return False
        if tensor.numel() > channels:
            return False
        waiting += [source for source in each.all_input_nodes if source not in seen]
        seen.update(each.all_input_nodes)
    return True


def fold_channels(graph: Graph, make: Maker, wide: torch.dtype | None = None) -> None:
    """Puts what follows each layer, and acts by channels, into weights and bias.

    `wide` is the type to compute with; by default float32, or float64 where something is float64.
    """
    for layer in list(graph.nodes):
        if layer.target not in _LAYERS or arguments_of(layer).get("algorithm", "auto") != "auto":
            continue
        if layer.target is aten.linear.default and not is_linear(layer):
            continue
        result = _result_of(layer)
        if result is None or value(result) is None:
            continue
        chain = chain_of(result, channel_axis(layer))
        if chain:
            _fold(layer, result, chain, make, wide)


def _result_of(layer: Node) -> Node | None:
    if layer.target not in HAS_PAIR:
        return layer
    result = only_user(layer)
    is_plain = arguments_of(layer)["activation"] is None and arguments_of(layer)["residual"] is None
    return result if is_plain and result is not None and result.args[1] == 0 else None


def _fold(layer: Node, result: Node, chain: Chain, make: Maker, wide: torch.dtype | None) -> None:
    arguments = arguments_of(layer)
    name = "weight" if layer.target is aten.linear.default else "weights"
    nodes = [node for node in (arguments[name], arguments["bias"]) if node is not None]
    nodes += chain.operands
    dtype, channels = value(result).dtype, value(result).shape[channel_axis(layer)]
    has_double = torch.float64 in (dtype, *(value(node).dtype for node in nodes))
    wide = wide or (torch.float64 if has_double else torch.float32)

    def folded(weights: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor | None]:
        read = _reader(nodes[1:], tensors, channels, wide)
        scale, shift = chain.affine(read, read(arguments["bias"]))
        if scale is not None:
            weights = (weights * _over_weights(layer, weights, scale)).to(dtype)
        return weights, _as_bias(shift, weights, channels, dtype)

    with layer.graph.inserting_before(chain.last):
        made = make(layer, folded, nodes)
        if made is None:
            return
        arguments |= {name: made[0], "bias": made[1]}
        new = call_with(layer, layer.target, arguments, val=value(layer))
        if result is not layer:
            new = call(result, operator.getitem, new, 0, val=value(result))
        for step in chain:
            if step.kind is _permute:
                new = call(step.node, _permute, new, step.operand)
    chain.last.replace_all_uses_with(new)
    erase_unused(chain.last)


def _reader(
    nodes: Sequence[Node], tensors: Sequence[Tensor], channels: int, wide: torch.dtype
) -> Callable[[Any], Any]:
    """Gives the vectors of nodes, in the type to compute with."""
    found = dict(zip(nodes, tensors, strict=True))

    def read(item: Any) -> Any:
        return found[item].reshape(channels).to(wide) if isinstance(item, Node) else item

    return read


def _as_bias(shift: Vector, like: Tensor, channels: int, dtype: torch.dtype) -> Tensor | None:
    if shift is None or isinstance(shift, Tensor):
        return None if shift is None else shift.to(dtype)
    return torch.full((channels,), shift, dtype=dtype, device=like.device)


def _over_weights(layer: Node, weights: Tensor, scale: Any) -> Any:
    """The scale of the result's channels, in the shape that multiplies the weights."""
    if not isinstance(scale, Tensor):
        return scale
    arguments = arguments_of(layer)
    is_xio = arguments.get("weights_format") == "XIO"
    ones = [1] * (weights.dim() - 2)
    if layer.target is not dnnl.convolution_transpose.default:
        return scale if is_xio else scale.reshape(-1, 1, *ones)
    # [I, O / groups, *K] or [*K, O / groups, I]: each group of inputs has outputs of its own.
    groups, inputs = arguments["groups"], weights.shape[-1 if is_xio else 0]
    each = scale.reshape(groups, 1, -1).expand(-1, inputs // groups, -1).reshape(inputs, -1)
    return each.t() if is_xio else each.reshape(inputs, -1, *ones)


def fold_into_next(graph: Graph, make: Maker) -> None:
    """Puts arithmetic by channel before a convolution into its weights and bias. A zero of the
    padding is no result of that arithmetic: with padding, what is added has to stay.

    What fits no convolution, and takes more than one operator, becomes a depthwise convolution with
    one tap: one pass over the image, which may end with an activation.
    """
    for start in list(graph.nodes):
        image = value(start)
        if not isinstance(image, Tensor) or not is_floating(image) or image.dim() not in (3, 4, 5):
            continue
        is_never_empty = all(statically_known_true(n >= 1) for n in image.shape[1:])
        if not image.is_cpu or not isinstance(image.shape[1], int) or not is_never_empty:
            continue
        for user in list(start.users):
            chain = chain_of(start, 1 - image.dim(), user)
            if not chain or any(step.kind is _permute for step in chain):
                continue
            conv = only_user(chain.last)
            is_image = conv is not None and _takes_image(conv, chain.last)
            if conv is not None and is_image and _fold_before(start, chain, conv, make):
                continue
            if len(chain) > 1 or chain[0].kind is _norm:
                _replace_by_convolution(start, chain, make)


def _exact(
    chain: Chain, read: Callable[[Any], Any], dtype: torch.dtype, most_sums: int
) -> tuple[Vector, Vector]:
    """The scale and the shift; a shift of NaN where x * scale + shift loses digits.

    x * scale - mean * scale cancels digits that (x - mean) * scale keeps, and the weights of a
    convolution times x cancel digits that x - mean keeps. A norm loses few digits if its mean is
    within a few deviations of 0. `most_sums`: beside norms; a sum has to be the last step.
    """
    scale, shift = chain.affine(read)
    if shift is None:
        return scale, None
    kinds = [step.kind for step in chain if step.kind not in (None, _permute)]
    sums = [i for i, kind in enumerate(kinds) if kind in _SUMS]
    loses = dtype.itemsize < 4 or len(sums) > most_sums or any(i + 1 < len(kinds) for i in sums)
    return scale, math.nan if loses or _has_large_mean(chain, read) else shift


_SUMS = (aten.add.Tensor, aten.sub.Tensor)
_LARGEST_MEAN = 4.0  # in deviations


def _has_large_mean(chain: Chain, read: Callable[[Any], Any]) -> bool:
    for step in chain:
        if step.kind is _norm:
            mean, variance = (read(step.operand[name]) for name in ("running_mean", "running_var"))
            deviation = (variance + step.operand["eps"]).sqrt()
            if bool((mean.abs() > _LARGEST_MEAN * deviation).any()):
                return True
    return False


def _takes_image(conv: Node, image: Node) -> bool:
    if conv.target is not dnnl.convolution.default:
        return False
    arguments = arguments_of(conv)
    formats = (arguments["data_format"], arguments["weights_format"], arguments["algorithm"])
    return arguments["src"] is image and formats == ("NCX", "OIX", "auto")


def _fold_before(start: Node, chain: Chain, conv: Node, make: Maker) -> bool:
    arguments = arguments_of(conv)
    pads = [*(arguments["pads_begin"] or [0]), *(arguments["pads_end"] or [0])]
    is_padded = arguments["auto_pad"] not in ("none", "valid") or any(pad != 0 for pad in pads)
    if is_padded and any(
        step.kind not in (None, aten.mul.Tensor, aten.div.Tensor) for step in chain
    ):
        return False
    nodes = [node for node in (arguments["weights"], arguments["bias"]) if node is not None]
    nodes += chain.operands
    channels, groups = value(start).shape[1], arguments["groups"]
    dtype = value(conv).dtype

    def folded(weights: Tensor, *tensors: Tensor) -> tuple[Tensor, Tensor | None]:
        read = _reader(nodes[1:], tensors, channels, torch.float64)
        scale, shift = _exact(chain, read, dtype, most_sums=0)
        bias = None if arguments["bias"] is None else tensors[0].double()
        each = weights.double().reshape(
            groups, -1, *weights.shape[1:]
        )  # [groups, O / groups, I / groups, *K]

        def by_input(vector: Any) -> Any:
            if not isinstance(vector, Tensor):
                return vector
            return vector.reshape(groups, 1, -1, *[1] * (weights.dim() - 2))

        if shift is not None:
            added = (each * by_input(shift)).flatten(2).sum(2).flatten()
            bias = added if bias is None else bias + added
        each = each if scale is None else each * by_input(scale)
        return each.reshape(weights.shape).to(dtype), None if bias is None else bias.to(dtype)

    with conv.graph.inserting_before(conv):
        made = make(conv, folded, nodes)
        if made is None:
            return False
        arguments |= {"src": start, "weights": made[0], "bias": made[1]}
        replace(conv, call_with(conv, conv.target, arguments, val=value(conv)))
    erase_unused(chain.last)
    return True


def _replace_by_convolution(start: Node, chain: Chain, make: Maker) -> None:
    image, nodes = value(start), chain.operands
    channels = image.shape[1]

    def folded(*tensors: Tensor) -> tuple[Tensor, Tensor | None]:
        read = _reader(nodes, tensors, channels, torch.float64)
        scale, shift = _exact(chain, read, image.dtype, most_sums=1)
        ones = torch.ones(channels, dtype=torch.float64, device=image.device)
        weights = (ones if scale is None else ones * scale).to(image.dtype)
        shape = (channels, 1, *[1] * (image.dim() - 2))
        return weights.reshape(shape), _as_bias(shift, weights, channels, image.dtype)

    with chain.last.graph.inserting_before(chain.last):
        made = make(chain.last, folded, nodes)
        if made is None:
            return
        options = {"groups": channels, "data_format": "NCX", "weights_format": "OIX"}
        arguments = {"src": start, "weights": made[0], "bias": made[1]} | options
        like: Any = chain[0].node.args[0] if chain[0].kind is _norm else chain[0].node
        new = call_with(like, dnnl.convolution.default, arguments, val=value(chain.last))
    chain.last.replace_all_uses_with(new)
    erase_unused(chain.last)
