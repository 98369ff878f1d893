"""A call of an operator with DTensors: how its tensors are laid out, and what each rank computes.

A rule says for one dimension of the mesh where the tensors of a call lie: each sharded along one
index of the operator, such as the batch or the output channels, or replicated. A call takes for
each dimension of the mesh the rule for which its tensors have to move the fewest bytes; where rules
move equally many, the first one. The dimensions of the mesh may have different rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.distributed._functional_collectives import _are_we_tracing
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._redistribute import redistribute_local_tensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

from torch_dnnl.distributed.windows import shards

Index = str | int  # a name or, of a spatial dimension, its number


@dataclass(frozen=True)
class Rule:
    """Where the tensors of a call lie along one dimension of the mesh.

    Attributes:
        index: the index of the operator that is cut; None where everything is replicated.
        inputs: the placement of each tensor argument.
        outputs: the placement of each output.
    """

    index: Index | None
    inputs: Mapping[str, Placement]
    outputs: Sequence[Placement]


@dataclass
class Call:
    """A call of an operator.

    Attributes:
        op: the operator.
        arguments: every argument by its name, defaults included.
        mesh: that of the tensors.
        tensors: meta tensors of the whole tensor arguments, by name.
        outputs: meta tensors of the whole results.
        rules: those chosen so far, of the first dimensions of the mesh.
        local: the tensors of this rank, as the rules say, once all of them are chosen.
    """

    op: OpOverload
    arguments: dict[str, Any]
    mesh: DeviceMesh
    tensors: dict[str, Tensor]
    outputs: list[Tensor]
    rules: list[Rule] = field(default_factory=list)
    local: dict[str, Tensor] = field(default_factory=dict)

    def parts(self, *indices: Index) -> list[int]:
        """The sizes of the dimensions of the mesh that cut one of these indices."""
        return [self.mesh.size(m) for m in self.dims_of(*indices)]

    def dims_of(self, *indices: Index) -> list[int]:
        """The dimensions of the mesh that cut one of these indices."""
        return [m for m, rule in enumerate(self.rules) if rule.index in indices]

    def local_shape(self, output: int) -> list[int]:
        """The shape of this rank's part of an output."""
        shape = list(self.outputs[output].shape)
        for mesh_dim, rule in enumerate(self.rules):
            placement = rule.outputs[output]
            if isinstance(placement, Shard):
                parts = shards(shape[placement.dim], self.mesh.size(mesh_dim))
                shape[placement.dim] = parts[self.mesh.get_local_rank(mesh_dim)].length
        return shape

    def remake_outputs(self, **changes: Any) -> None:
        """Makes the whole results those of the call with these arguments."""
        whole = {**self.arguments, **self.tensors, **changes}
        with disable_proxy_modes_tracing():
            self.outputs = outputs_of(self.op(**whole))

    def run(self, **changes: Any) -> list[Tensor]:
        """Calls the operator with this rank's tensors and with `changes`."""
        return outputs_of(self.op(**{**self.arguments, **self.local, **changes}))


# What an operator needs: the rules that a call can have along the next dimension of the mesh, given
# those in call.rules; and the outputs of this rank, given its tensors in call.local. Instead of
# tensors of this rank, DTensors may be returned.
Rules = Callable[[Call], list[Rule]]
Compute = Callable[[Call], list[Tensor]]


def outputs_of(result: Any) -> list[Tensor]:
    """The outputs of an operator that has one or several."""
    return [result] if isinstance(result, Tensor) else list(result)


def handler(rules: Rules, compute: Compute) -> Callable[..., Any]:
    """The function to which DTensor gives the calls of an operator."""
    plan = partial(_plan, rules)
    cached_plan = lru_cache(maxsize=4096)(plan)

    def handle(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        arguments, mesh = _bound(op, args, kwargs)
        # Plans of traced calls have symbolic sizes.
        planned = (plan if _are_we_tracing() else cached_plan)(op, mesh, _as_key(arguments))
        call = replace(planned, arguments=arguments, outputs=list(planned.outputs), local={})
        if mesh.get_coordinate() is None:  # this process is not in the mesh
            results = [
                torch.empty(0, dtype=like.dtype, device=mesh.device_type) for like in call.outputs
            ]
        else:
            call.local = {name: _placed(call, name) for name in call.tensors}
            results = compute(call)
        wrapped = [
            result if isinstance(result, DTensor) else _wrapped(call, i, result)
            for i, result in enumerate(results)
        ]
        return wrapped[0] if len(op._schema.returns) == 1 else tuple(wrapped)

    return handle


def _bound(
    op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, Any], DeviceMesh]:
    """The arguments by name, tensors as DTensors, and their mesh."""
    schema = op._schema.arguments
    arguments = {argument.name: argument.default_value for argument in schema}
    arguments |= dict(zip(arguments, args, strict=False)) | kwargs
    name = op._schema.name.split("::")[1]
    mesh = next(v.device_mesh for v in arguments.values() if isinstance(v, DTensor))
    for argument, value in arguments.items():
        if isinstance(value, DTensor):
            if value.device_mesh != mesh:
                raise ValueError(
                    f"{name}: expected {argument} to be on the mesh of the other tensors, {mesh}, "
                    f"got one on {value.device_mesh}"
                )
        elif isinstance(value, Tensor):
            # As DTensor has it: one number is the same everywhere.
            if value.numel() != 1 and not DTensor._op_dispatcher._allow_implicit_replication:
                raise TypeError(
                    f"{name}: expected {argument} to be a DTensor as other tensors are, got a "
                    f"Tensor of sizes {list(value.shape)}"
                )
            arguments[argument] = DTensor.from_local(
                value, mesh, [Replicate()] * mesh.ndim, run_check=False
            )
    return arguments, mesh


def _as_key(arguments: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """What a plan depends on: of tensors, what they are and where they lie."""
    return tuple(
        (name, value._spec)
        if isinstance(value, DTensor)
        else (name, tuple(value) if isinstance(value, (list, tuple)) else value)
        for name, value in arguments.items()
    )


def _plan(rules: Rules, op: OpOverload, mesh: DeviceMesh, key: tuple[tuple[str, Any], ...]) -> Call:
    """The call with its rules, without tensors of this rank; raises the operator's errors."""
    specs = {name: value for name, value in key if isinstance(value, DTensorSpec)}
    tensors = {}
    with disable_proxy_modes_tracing():
        for name, spec in specs.items():
            assert spec.tensor_meta is not None  # of a tensor
            tensors[name] = torch.empty_strided(
                spec.shape, spec.stride, dtype=spec.tensor_meta.dtype, device="meta"
            )
    call = Call(op, {**dict(key), **tensors}, mesh, tensors, [])
    call.remake_outputs()
    for mesh_dim in range(mesh.ndim):
        call.rules.append(
            min(rules(call), key=lambda rule: _bytes_to_move(call, specs, rule, mesh_dim))
        )
    return call


def _bytes_to_move(call: Call, specs: dict[str, DTensorSpec], rule: Rule, mesh_dim: int) -> float:
    """What a rank sends for a rule along one dimension of the mesh, in relation to other rules."""
    parts = call.mesh.size(mesh_dim)
    total = 0.0
    for name, tensor in call.tensors.items():
        current, wanted = specs[name].placements[mesh_dim], rule.inputs[name]
        if current == wanted or isinstance(current, Replicate):
            continue
        share = tensor.numel() * tensor.element_size() * (parts - 1) / parts
        if isinstance(current, Partial) and isinstance(wanted, Replicate):
            share *= 2  # to all, of sums that are made first
        elif not isinstance(current, Partial) and isinstance(wanted, Shard):
            share /= parts  # of a shard
        total += share
    return total


def _placed(call: Call, name: str) -> Tensor:
    """This rank's part of an argument, where the rules want it."""
    tensor = call.arguments[name]
    spec, local = tensor._spec, tensor._local_tensor
    wanted = DTensorSpec(
        call.mesh, tuple(rule.inputs[name] for rule in call.rules), tensor_meta=spec.tensor_meta
    )
    return local if spec == wanted else redistribute_local_tensor(local, spec, wanted)


def _wrapped(call: Call, output: int, result: Tensor) -> DTensor:
    like = call.outputs[output]
    spec = DTensorSpec(
        call.mesh,
        tuple(rule.outputs[output] for rule in call.rules),
        tensor_meta=TensorMeta(like.shape, like.stride(), like.dtype),
    )
    return DTensor(result, spec, requires_grad=False)  # type: ignore[no-untyped-call]
