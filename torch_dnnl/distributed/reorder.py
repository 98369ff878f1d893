"""The rules of reorder, fake_reorder and their adjoints: all of them go element by element.

Every logical dimension may be sharded that no format cuts into blocks, in whole groups of the
elements that have a scale or zero point in common.
"""

from __future__ import annotations

import math

from torch import Tensor
from torch.distributed.tensor import Placement, Replicate, Shard

from torch_dnnl.distributed.dispatch import Call, Rule
from torch_dnnl.distributed.windows import are_in_step
from torch_dnnl.formats import Format, parse

OPERATORS = ("reorder", "reorder_backward")
FAKE_OPERATORS = ("fake_reorder", "fake_reorder_backward")

_SCALES = ("scale", "dst_scale", "src_zero_point", "dst_zero_point")


def _formats(call: Call) -> tuple[Format | None, Format | None]:
    """Those of the first tensor and of the result; None or plain: dimensions are the logical."""
    tags = [call.arguments["src_format"], call.arguments["dst_format"]]
    src, dst = (parse(tag) if tag is not None else None for tag in tags)
    if dst is None and src is not None and src.is_blocked:
        dst = src
    return (dst, src) if "grad" in call.tensors else (src, dst)


def _position(format: Format | None, dim: int) -> int | None:
    """Where a tensor has a logical dimension; None where that is cut into blocks."""
    if format is None or not format.is_blocked:
        return dim
    return format.order.index(dim) if format.block_size(dim) == 1 else None


def _scale_placement(call: Call, scale: Tensor, dim: int, size: int) -> Placement | None:
    """Of a scale or zero point, where a dimension is sharded; None where groups would be cut."""
    if scale.dim() == 0 or scale.shape[dim] == 1:
        return Replicate()
    parts = [*call.parts(dim), call.mesh.size(len(call.rules))]
    groups = int(scale.shape[dim])
    # The gradient of groups is a reshape and a sum, for which DTensor takes even shards alone.
    is_even = groups == size or groups % math.prod(parts) == 0
    return Shard(dim) if is_even and are_in_step(size, groups, parts) else None


def _replicated(call: Call) -> Rule:
    return Rule(None, dict.fromkeys(call.tensors, Replicate()), [Replicate()] * len(call.outputs))


def rules(call: Call) -> list[Rule]:
    """What a call of reorder or reorder_backward may have along the next dimension of the mesh."""
    source, target = _formats(call)
    first = next(iter(call.tensors))
    src = call.tensors[first]
    format = source if source is not None and source.is_blocked else None
    found = [_replicated(call)]
    for dim in range(src.dim() if format is None else format.ndim):
        of_src, of_dst = _position(source, dim), _position(target, dim)
        if of_src is None or of_dst is None:
            continue
        inputs: dict[str, Placement | None] = {first: Shard(of_src)}
        for name, tensor in call.tensors.items():
            if name in _SCALES:
                inputs[name] = _scale_placement(call, tensor, dim, int(src.shape[of_src]))
            elif name == "accumulate":
                inputs[name] = Shard(of_dst)
        placements = {name: p for name, p in inputs.items() if p is not None}
        if len(placements) == len(inputs):
            found.append(Rule(dim, placements, [Shard(of_dst)]))
    return found


def compute(call: Call) -> list[Tensor]:
    """This rank's result."""
    src = next(iter(call.local.values()))
    shape = call.local_shape(0)
    if 0 in shape:
        return [src.new_empty(shape, dtype=call.outputs[0].dtype)]
    if call.arguments["size"] is None:
        return call.run()
    source, _ = _formats(call)
    size = list(call.arguments["size"])
    for rule in call.rules:
        if isinstance(rule.index, int):
            position = _position(source, rule.index)
            assert position is not None  # of a rule
            size[rule.index] = src.shape[position]
    return call.run(size=size)


def _order(call: Call) -> list[int]:
    """The dimensions of fake_reorder's result, outermost first, as its mask has them."""
    backward = "format" in call.arguments
    tag = call.arguments["format" if backward else "dst_format"]
    return list(parse(tag).order) if tag is not None else list(range(call.outputs[0].dim()))


def fake_rules(call: Call) -> list[Rule]:
    """What a call of fake_reorder or its backward may have along the next dimension of the mesh.

    The mask has bits in the order of memory. It keeps sharded dimensions, and those outside of them
    in memory, as dimensions; so the gradient can be sharded in these.
    """
    found = [_replicated(call)]
    for position, dim in enumerate(_order(call)):
        if "mask" in call.tensors:
            if position < call.tensors["mask"].dim() - 1:
                inputs: dict[str, Placement] = {"grad": Shard(dim), "mask": Shard(position)}
                found.append(Rule(dim, inputs, [Shard(dim)]))
            continue
        src = call.tensors["src"]
        placements = {
            name: _scale_placement(call, tensor, dim, int(src.shape[dim]))
            for name, tensor in call.tensors.items()
            if name in _SCALES
        }
        scales = {name: p for name, p in placements.items() if p is not None}
        if len(scales) == len(placements):
            found.append(Rule(dim, {"src": Shard(dim), **scales}, [Shard(dim), Shard(position)]))
    return found


def fake_compute(call: Call) -> list[Tensor]:
    """This rank's result and, of fake_reorder, mask."""
    changes = {}
    if "mask" not in call.tensors:
        order = _order(call)
        kept = [order.index(rule.index) + 1 for rule in call.rules if isinstance(rule.index, int)]
        changes["batch_dims"] = max([*kept, call.arguments["batch_dims"]])
        call.remake_outputs(**changes)
    first = next(iter(call.local.values()))
    if first.numel() == 0:
        return [
            first.new_zeros(call.local_shape(i), dtype=output.dtype)
            for i, output in enumerate(call.outputs)
        ]
    return call.run(**changes)
