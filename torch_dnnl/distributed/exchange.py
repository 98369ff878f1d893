"""The exchange of rows between the ranks of one dimension of a mesh, each of which has a shard."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed._functional_collectives as collectives
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from torch_dnnl.distributed.windows import Rows, shards


def exchange_rows(
    local: Tensor, dim: int, size: int, wanted: Sequence[Rows], mesh: DeviceMesh, mesh_dim: int
) -> Tensor:
    """The rows of a sharded tensor that this rank wants, whichever ranks have them.

    Every rank of the dimension of the mesh calls it, with the same `wanted`. What a rank has itself
    is not sent; where every rank has what it wants, nothing is.

    Args:
        local: the shard of this rank.
        dim: the dimension that is sharded, as DTensor's Shard has it.
        size: of the whole tensor in that dimension.
        wanted: for each rank of the dimension of the mesh, the rows that it wants.
        mesh, mesh_dim: where the shards are.

    Returns:
        The rows `wanted[rank]`, in the memory format of `local`.
    """
    rank, owned = mesh.get_local_rank(mesh_dim), shards(size, mesh.size(mesh_dim))
    own, want = owned[rank], wanted[rank]

    def rows_of_own(other: Rows) -> Tensor:
        part = own.overlap(other)
        return local.narrow(dim, part.begin - own.begin, part.length)

    kept = rows_of_own(want)
    if all(
        has.overlap(wants).length == wants.length for has, wants in zip(owned, wanted, strict=True)
    ):
        return kept
    parts = [rows_of_own(Rows(0, 0) if r == rank else rows) for r, rows in enumerate(wanted)]
    counts = [0 if r == rank else rows.overlap(want).length for r, rows in enumerate(owned)]
    sent = torch.cat([part.movedim(dim, 0) for part in parts]).contiguous()
    received = collectives.all_to_all_single(
        sent, counts, [part.shape[dim] for part in parts], (mesh, mesh_dim)
    )
    received = collectives.wait_tensor(received)  # type: ignore[no-untyped-call]
    before = sum(counts[:rank])
    return _joined(local, dim, [received[:before], kept.movedim(dim, 0), received[before:]])


def _joined(like: Tensor, dim: int, parts: Sequence[Tensor]) -> Tensor:
    """Parts that have `dim` in front, one after the other, with `like`'s order of memory."""
    shape = list(like.shape)
    shape[dim] = sum(part.shape[0] for part in parts)
    order = sorted(range(like.dim()), key=like.stride, reverse=True)
    joined = torch.empty_permuted(shape, order, dtype=like.dtype, device=like.device)
    torch.cat(list(parts), out=joined.movedim(dim, 0))
    return joined
