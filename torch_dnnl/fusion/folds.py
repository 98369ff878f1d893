"""Batch norms in eval mode as part of the convolutions before them: the weights of both in one.

The layers keep their own parameters. What they give together is computed from these, once until one
of them is another tensor or has been written to.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parametrize

from torch_dnnl.fusion import lookup

_DIMS: dict[type, int] = {  # spatial ones
    torch.nn.BatchNorm1d: 1,
    torch.nn.BatchNorm2d: 2,
    torch.nn.BatchNorm3d: 3,
}
_FORWARD = torch.nn.BatchNorm2d.forward
# Others', which are known by what they are called: the same in two dimensions. timm's go on with
# their `drop` and `act`.
_WITH_ACTIVATION = (
    "timm.layers.norm_act.BatchNormAct2d",
    "timm.layers.norm_act.FrozenBatchNormAct2d",
)
_NAMED = (*_WITH_ACTIVATION, "torchvision.ops.misc.FrozenBatchNorm2d")

_PLAIN = (Tensor, torch.nn.Parameter)  # tensors whose numbers are at hand
_TENSORS = ("weight", "bias", "running_mean", "running_var")

_Pair = tuple[Tensor, Tensor]


class _Made:
    """The weights of a convolution and a batch norm, and what they were made of."""

    def __init__(self, conv: Any, norm: Any) -> None:
        self.eps = norm.eps
        # With the tensors themselves, so that no other one gets the address of one of them.
        tensors = _tensors(conv, norm)
        self.ids = tuple(map(id, tensors))
        # With their memory, so that no other one comes to where it was.
        self.states = [
            (t, t._version, t.data_ptr(), t.untyped_storage()) for t in tensors if t is not None
        ]
        with torch.inference_mode(False), torch.no_grad():
            made = _computed(conv, norm)
        self.weights = made if made is not None and _are_good(*made) else None

    def is_current(self, conv: Any, norm: Any) -> bool:
        if tuple(map(id, _tensors(conv, norm))) != self.ids or _are_hidden(conv, norm):
            return False
        for tensor, version, address, _ in self.states:
            if tensor._version != version or tensor.data_ptr() != address:
                return False
        return bool(norm.eps == self.eps)


# By the ids of a convolution and of a norm; they go with the convolution.
_made: dict[int, dict[int, _Made]] = {}


def name_of(norm: torch.nn.Module) -> str:
    return f"{type(norm).__module__}.{type(norm).__qualname__}"


def is_norm(layer: torch.nn.Module | None) -> bool:
    """Whether a layer is a batch norm that may be folded, as far as its class says."""
    if layer is None:
        return False
    if type(layer) in _DIMS:
        return type(layer).forward is _FORWARD
    return name_of(layer) in _NAMED


def has_activation(norm: torch.nn.Module) -> bool:
    """Whether `drop` and `act` of the norm follow."""
    return type(norm) not in _DIMS and name_of(norm) in _WITH_ACTIVATION


def is_frozen(norm: torch.nn.Module) -> bool:
    """Whether a norm multiplies and adds by itself, in the types of its buffers."""
    return "Frozen" in type(norm).__name__


def _have_types(weight: Tensor, norm: Any) -> bool:
    """Whether a batch norm takes what a convolution with this weight gives."""
    types = {t.dtype for t in _of_norm(norm)[:4] if t is not None}
    halves = (torch.bfloat16, torch.float16)
    is_mixed = types == {torch.float32} and weight.dtype in halves and type(norm) in _DIMS
    return types == {weight.dtype} or is_mixed


def _is_bias(bias: Tensor | None, weight: Tensor, channels: int) -> bool:
    return bias is None or (bias.dtype == weight.dtype and bias.shape == (channels,))


def can_fold(conv: Any, norm: Any) -> bool:
    """Whether the weights of a convolution may take in a batch norm, as both are now."""
    weight, mean = conv._parameters.get("weight"), norm._buffers.get("running_mean")
    if weight is None or mean is None or norm._buffers.get("running_var") is None:
        return False
    if _are_hidden(conv, norm):
        return False
    if any(t is not None and type(t) not in _PLAIN for t in _tensors(conv, norm)):
        return False
    if "bias" not in conv._parameters or not {"weight", "bias"} <= _scales(norm).keys():
        return False  # plain tensors in their places, which nobody compares
    cls = type(conv)
    if hasattr(cls, "weight") or hasattr(cls, "bias") or not lookup.has_plain_attributes(cls):
        return False  # made of something else in each call
    return (
        not conv.training
        and not norm.training
        and _DIMS.get(type(norm), 2) == weight.dim() - 2
        and (weight.shape[1] * conv.groups if conv.transposed else weight.shape[0])
        == conv.out_channels
        and all(t.shape == (conv.out_channels,) for t in _of_norm(norm)[:4] if t is not None)
        and not any(t.requires_grad for t in _of_norm(norm)[2:4] if t is not None)
        and _is_bias(conv._parameters["bias"], weight, conv.out_channels)
        and _have_types(weight, norm)
        and weight.device == mean.device
        and not parametrize.is_parametrized(norm)
    )


def _are_hidden(conv: Any, norm: Any) -> bool:
    """Whether something else is found by the name of a parameter or buffer."""
    of_conv, of_norm = vars(conv).keys(), vars(norm).keys()
    return not (of_conv.isdisjoint(_TENSORS) and of_norm.isdisjoint(_TENSORS))


def weights(conv: Any, norm: Any) -> _Pair | None:
    """Weights and bias of a convolution with its batch norm; None where there are none.

    Where gradients are recorded, they are computed in each call.
    """
    of_conv = _made.get(id(conv))
    if torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in _tensors(conv, norm)
    ):
        if of_conv is not None:
            of_conv.clear()  # optimizers may write without saying so
        if not conv.weight.requires_grad and any(
            t is not None and t.requires_grad for t in _scales(norm).values()
        ):
            return None  # the image would be kept, which need not stay as it is
        computed = _computed(conv, norm)
        return computed if computed is not None and _are_good(*computed) else None
    made = None if of_conv is None else of_conv.get(id(norm))
    if made is None or not made.is_current(conv, norm):
        if any(t is not None and t.is_inference() for t in _tensors(conv, norm)):
            return None  # which do not say when they are written to
        made = _Made(conv, norm)
        if of_conv is None:
            of_conv = _made[id(conv)] = {}
            weakref.finalize(conv, _made.pop, id(conv), None).atexit = False
        of_conv[id(norm)] = made
    return made.weights


def forget(conv: torch.nn.Module) -> None:
    """What is written by way of `tensor.data` or of NumPy's arrays is not noticed otherwise."""
    _made.get(id(conv), {}).clear()


def _tensors(conv: Any, norm: Any) -> tuple[Tensor | None, ...]:
    of_conv = conv._parameters
    return (of_conv.get("weight"), of_conv.get("bias"), *_of_norm(norm))


def _of_norm(norm: Any) -> tuple[Tensor | None, ...]:
    buffers, scales = norm._buffers, _scales(norm)
    return (
        scales.get("weight"),
        scales.get("bias"),
        buffers.get("running_mean"),
        buffers.get("running_var"),
        buffers.get("num_batches_tracked"),  # which alone says that the others were updated
    )


def _scales(norm: Any) -> dict[str, Any]:
    """Where weight and bias are; in the buffers of frozen ones."""
    return norm._parameters if "weight" in norm._parameters else norm._buffers  # type: ignore[no-any-return]


def _are_good(weight: Tensor, bias: Tensor) -> bool:
    """Whether the numbers are finite, and those of halves not so small that they lose digits."""
    if weight.is_meta:
        return True
    if not all(t.sum(dtype=torch.float64).isfinite() for t in (weight, bias)):
        return False
    if weight.dtype != torch.float16:
        return True
    sizes = weight.detach().abs()
    most = torch.cat([sizes.transpose(0, dim).flatten(1).amax(1) for dim in (0, 1)])
    return bool(((most == 0) | (most >= 2.0**-11)).all())


def _computed(conv: Any, norm: Any) -> _Pair | None:
    """Scales the weights and moves the bias as the batch norm does with its running statistics.

    Computed in float64 and rounded once.
    """
    if not can_fold(conv, norm):
        return None
    weight, bias = conv.weight, conv.bias
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.double()
    shift = (-norm.running_mean if bias is None else bias.double() - norm.running_mean) * scale
    if norm.bias is not None:
        shift = shift + norm.bias.double()
    # [groups, I / groups, O / groups, *K] of a transposed convolution, else [O, I / groups, *K]
    shape = (conv.groups, 1, -1) if conv.transposed else (-1, 1)
    factors = scale.view(*shape, *(1,) * (weight.dim() - 2))
    grouped = weight.unflatten(0, (conv.groups, -1)) if conv.transposed else weight
    scaled = (grouped * factors).view_as(weight).to(weight.dtype)
    if scaled.stride() != weight.stride():  # which say how the result lies in memory
        scaled = torch.empty_like(weight).copy_(scaled)
    return scaled, shift.to(weight.dtype)
