"""Convolution layers that take a residual and an activation, and batch norm folded into them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parametrize

from torch_dnnl import _classes, functional, nn
from torch_dnnl.functional._conv import same_padding

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.nn.functional.relu,
    "relu6": torch.nn.functional.relu6,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": torch.nn.functional.hardswish,
}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_NORMS: dict[type, int] = {  # and the number of spatial dimensions
    torch.nn.BatchNorm1d: 1,
    torch.nn.BatchNorm2d: 2,
    torch.nn.BatchNorm3d: 3,
}
# Others', which are known by what they are called: the same in two dimensions. timm's go on with
# their `drop` and `act`.
_NAMED_NORMS = (
    "timm.layers.norm_act.BatchNormAct2d",
    "timm.layers.norm_act.FrozenBatchNormAct2d",
    "torchvision.ops.misc.FrozenBatchNorm2d",
)


class _Fused:
    """The forward of a layer of ours that adds a residual and applies an activation.

    It comes before the layer's class among the bases. Called with an input alone, the layer is what
    it was. Where the kernel cannot take the residual, the operations are done one after the other.
    """

    _norm: str | None = None  # the class of a batch norm that is folded into the weights

    def forward(
        self: Any, input: Tensor, residual: Any = None, activation: str | None = None
    ) -> Tensor:
        plain: Any = super().forward  # type: ignore[misc]
        if self._norm is not None and input.dim() != len(self.kernel_size) + 2:
            raise ValueError(
                f"{self._norm}: expected its input to be a batch of images, as the convolution "
                f"before it, into which it is folded, gets {input.dim()}-D input"
            )
        if residual is None and activation is None:
            return plain(input)  # type: ignore[no-any-return]
        sizes = _output_sizes(self, input)
        if sizes is None or not (residual is None or _fits(residual, input, sizes)):
            dst = plain(input)
            dst = dst if residual is None else dst + residual
            return dst if activation is None else _ACTIVATIONS[activation](dst)
        options = {"strides": self.stride, "dilations": self.dilation, "groups": self.groups}
        options |= {"residual": residual, "activation": activation, "data_format": "NCX"}
        begin, end = _pads(self, input)
        options |= {"pads_begin": begin, "pads_end": end}
        if self.transposed:
            options["output_padding"] = self.output_padding
            return functional.convolution_transpose(
                input, self.weight, self.bias, weights_format="IOX", **options
            )
        return functional.convolution(
            input, self.weight, self.bias, weights_format="OIX", **options
        )


def _pads(layer: Any, input: Tensor) -> tuple[list[int], list[int]]:
    padding = getattr(layer, "_call_padding", layer.padding)
    if padding == "valid":
        padding = (0,) * len(layer.kernel_size)
    if isinstance(padding, str):
        auto_pad = "same_upper" if padding == "same" else padding
        geometry = (layer.kernel_size, layer.stride, layer.dilation)
        padding = same_padding(input.shape[2:], *geometry, auto_pad)
    pairs = [pads if isinstance(pads, (list, tuple)) else (pads, pads) for pads in padding]
    return [begin for begin, _ in pairs], [end for _, end in pairs]


def _output_sizes(layer: Any, input: Tensor) -> list[int] | None:
    """Of a batch of images; None of anything else."""
    n = len(layer.kernel_size)
    if input.dim() != n + 2 or layer.padding_mode != "zeros":
        return None
    begin, end = _pads(layer, input)
    sizes = []
    for i, size in enumerate(input.shape[2:]):
        reach = (layer.kernel_size[i] - 1) * layer.dilation[i] + 1
        pads, stride = begin[i] + end[i], layer.stride[i]
        if layer.transposed:
            sizes.append((size - 1) * stride + reach - pads + layer.output_padding[i])
        else:
            sizes.append((size + pads - reach) // stride + 1)
    return [input.shape[0], layer.out_channels, *sizes]


def _fits(residual: Any, input: Tensor, sizes: list[int]) -> bool:
    """Whether the sum has the type and the sizes of the convolution."""
    return (
        isinstance(residual, Tensor)
        and residual.dtype == input.dtype
        and residual.device == input.device
        and list(residual.shape) == sizes
        and not torch.is_autocast_enabled(input.device.type)
    )


def fused_class(old: _classes.Class) -> _classes.Class:
    """The class of a fused layer; `old` is what the layer's class was before the conversion."""
    ours = _classes.replacement(old) or old
    members = {"_original_class": None, "_fused_class": old}
    return _classes.make((_Fused, ours), members, fused_class, old)


def is_fused(layer: torch.nn.Module) -> bool:
    """Whether a layer has what torch's layers lack since the model was fused."""
    return isinstance(layer, _Fused)


def has_hooks(module: torch.nn.Module) -> bool:
    """Whether calls of a module do more than its forward."""
    state = vars(module)
    return (
        any(state.get(name) for name in HOOKS)
        or state.get("_compiled_call_impl") is not None
        or "forward" in state
        or type(module).__call__ is not torch.nn.Module.__call__
    )


def can_fuse(layer: torch.nn.Module) -> bool:
    """Whether a layer is a convolution of ours that may take an epilogue."""
    if is_fused(layer):
        return not has_hooks(layer)
    convs = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    transposed = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    old = _classes.original(type(layer))
    return isinstance(layer, (*convs, *transposed)) and old is not None and not has_hooks(layer)


def make_fused(layer: torch.nn.Module) -> None:
    if not is_fused(layer):
        old = _classes.original(type(layer))
        assert old is not None
        layer.__class__ = fused_class(old)


def _norm_dims(norm: torch.nn.Module) -> int | None:
    """The number of spatial dimensions of a batch norm."""
    cls = type(norm)
    return 2 if f"{cls.__module__}.{cls.__qualname__}" in _NAMED_NORMS else _NORMS.get(cls)


def after_fold(norm: Any) -> Any:
    """What takes the place of a batch norm that is folded: what it goes on with."""
    rest = [norm._modules[name] for name in ("drop", "act") if name in norm._modules]
    rest = [part for part in rest if type(part) is not torch.nn.Identity or has_hooks(part)]
    if len(rest) == 1:
        return rest[0]
    place = torch.nn.Sequential(*rest) if rest else torch.nn.Identity()
    place.training = False  # of its own: a dropout may be in training mode
    return place


def can_fold(conv: Any, norm: Any) -> bool:
    """Whether a batch norm may become part of the convolution whose only consumer it is."""
    if not can_fuse(conv) or _norm_dims(norm) != len(conv.kernel_size) or has_hooks(norm):
        return False
    weight, mean = conv._parameters.get("weight"), norm._buffers.get("running_mean")
    if weight is None or mean is None or norm._buffers.get("running_var") is None:
        return False
    return (
        not conv.training
        and not norm.training
        and mean.shape == (conv.out_channels,)
        and (type(norm) in _NORMS or weight.dtype == mean.dtype)
        and weight.device == mean.device
        and not parametrize.is_parametrized(norm)
    )


@torch.no_grad()
def fold(conv: Any, norm: Any) -> bool:
    """Scales the weights and moves the bias as the batch norm does with its running statistics.

    Computed in float64 and rounded once. Where the new weights would overflow, nothing changes.
    """
    weight, bias = conv.weight, conv.bias
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.double()
    shift = (-norm.running_mean if bias is None else bias.double() - norm.running_mean) * scale
    if norm.bias is not None:
        shift = shift + norm.bias.double()
    # [groups, I / groups, O / groups, *K] of a transposed convolution, else [O, I / groups, *K]
    shape = (conv.groups, 1, -1) if conv.transposed else (-1, 1)
    factors = scale.view(*shape, *(1,) * len(conv.kernel_size))
    grouped = weight.unflatten(0, (conv.groups, -1)) if conv.transposed else weight
    new = torch.empty_like(weight)  # in the memory format of the weights
    new.copy_((grouped * factors).view_as(weight))
    new_bias = shift.to(weight.dtype)
    if not weight.is_meta and not all(
        bool(t.sum(dtype=torch.float64).isfinite()) for t in (new, new_bias)
    ):
        return False
    conv.weight = torch.nn.Parameter(new, weight.requires_grad)
    conv.bias = torch.nn.Parameter(new_bias, weight.requires_grad)
    make_fused(conv)
    conv._norm = type(norm).__name__
    return True
