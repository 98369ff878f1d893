"""The rules of resample and its adjoint: each image of the batch and each channel is by itself.

A shard in a spatial dimension is a window of the whole resize: its coordinates are those of the
whole, and it needs the rows of the other image that its filters reach.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import Placement, Replicate, Shard

from torch_dnnl.distributed.dispatch import Call, Index, Rule
from torch_dnnl.distributed.exchange import exchange_rows
from torch_dnnl.distributed.windows import Rows, shards

OPERATORS = ("resample", "resample_backward")

# The arguments that say, with the sizes, which rows belong to which.
_OF_COORDINATES = (
    "scales",
    "mode",
    "coordinates",
    "nearest_mode",
    "antialias",
    "cubic_coeff_a",
    "exclude_outside",
    "roi",
)


def _dims(call: Call) -> dict[Index, int]:
    """The dimension of each index, in the image and in the result."""
    spatial = call.outputs[0].dim() - 2
    first, channel = (1, spatial + 1) if call.arguments["data_format"] == "NXC" else (2, 1)
    return {"n": 0, "c": channel, **{axis: first + axis for axis in range(spatial)}}


def rules(call: Call) -> list[Rule]:
    """What a call may have along the next dimension of the mesh."""
    dims = _dims(call)
    taken = [rule.index for rule in call.rules]
    is_part = call.arguments["window"] is not None
    (name,) = call.tensors

    def rule(index: Index | None) -> Rule:
        placement: Placement = Replicate() if index is None else Shard(dims[index])
        return Rule(index, {name: placement}, [placement])

    free = [
        index for index in dims if isinstance(index, str) or (index not in taken and not is_part)
    ]
    return [rule(None), *map(rule, free)]


def compute(call: Call) -> list[Tensor]:
    """This rank's result."""
    dims = _dims(call)
    axes = [axis for axis in range(len(dims) - 2) if call.dims_of(axis)]
    changes = _exchanged(call, dims, axes) if axes else {}
    shape = call.local_shape(0)
    if 0 in shape:
        return [next(iter(call.local.values())).new_empty(shape, dtype=call.outputs[0].dtype)]
    return call.run(**changes)


def _exchanged(call: Call, dims: dict[Index, int], axes: list[int]) -> dict[str, list[int]]:
    """Gets the rows that this rank needs; its window of the whole, as the operator takes it."""
    ((name, image),) = call.tensors.items()
    of_source = name == "grad"
    spatial, first = len(dims) - 2, dims[0]
    read, made = (
        [int(size) for size in shape[first : first + spatial]]
        for shape in (image.shape, call.outputs[0].shape)
    )
    src_size, dst_size = (made, read) if of_source else (read, made)
    options = [call.arguments[option] for option in _OF_COORDINATES]
    size, read_from, made_from = list(made), [0] * spatial, [0] * spatial
    for axis in axes:
        (mesh_dim,) = call.dims_of(axis)
        parts = shards(made[axis], call.mesh.size(mesh_dim))
        is_double = image.dtype == torch.float64
        wanted = [
            Rows(
                *torch.ops.torch_dnnl.resample_rows(
                    *rows, of_source, src_size, dst_size, axis, is_double, *options
                )
            )
            for rows in parts
        ]
        rank, dim = call.mesh.get_local_rank(mesh_dim), dims[axis]
        local = exchange_rows(call.local[name], dim, read[axis], wanted, call.mesh, mesh_dim)
        if wanted[rank].length == 0:  # the operator takes no image without rows, and reads none
            shape = list(local.shape)
            shape[dim] = 1
            local = local.new_zeros(shape)
        call.local[name] = local
        size[axis] = parts[rank].length
        read_from[axis], made_from[axis] = wanted[rank].begin, parts[rank].begin
    src_from, dst_from = (made_from, read_from) if of_source else (read_from, made_from)
    return {
        "src_size" if of_source else "size": size,
        "window": [*src_size, *src_from, *dst_size, *dst_from],
    }
