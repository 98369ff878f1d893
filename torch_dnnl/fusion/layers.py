"""Convolution layers that take a batch norm, a residual and an activation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._prims_common import suggest_memory_format

from torch_dnnl import _classes, functional, nn
from torch_dnnl.functional._conv import same_padding
from torch_dnnl.fusion import folds, sums

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.nn.functional.relu,
    "relu6": torch.nn.functional.relu6,
    "silu": torch.nn.functional.silu,
    "gelu": torch.nn.functional.gelu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "hardswish": torch.nn.functional.hardswish,
}
_DEPTH = 10
_CALL = torch.nn.Module.__call__
_CALL_IMPL = torch.nn.Module._call_impl  # which _CALL calls
_PLAIN = (Tensor, torch.nn.Parameter)  # no other class of theirs asks to see calls
FUSED_CALL = "_torch_dnnl_call"  # the method of fused layers


class _Fused:
    """A layer of ours that can be called with what follows it: a batch norm, a sum, an activation.

    It comes before the layer's class among the bases. Where the kernel cannot take all, the
    operations are done one after the other.
    """

    def _torch_dnnl_call(
        self: Any,
        input: Tensor,
        norm: torch.nn.Module | None = None,
        residual: Any = None,
        addition: str | None = None,
        activation: str | None = None,
    ) -> Tensor:
        """`addition`: the name of the sum with the residual, if there is one."""
        weights = (self.weight, self.bias) if norm is None else _folded(self, norm, input)
        is_batch = _is_batch(input, weights)
        # By the call that the layer itself makes, where it can be given other weights.
        takes_weights = not self.transposed and not hasattr(self, "_call_padding")
        if (
            not is_batch
            or weights is None
            or not _is_written_out(self, input.dim() - 2)
            or (addition is None and activation is None and takes_weights)
            or self.padding_mode != "zeros"
            or not (addition is None or _fits(self, residual, addition, input, weights[0]))
            or (activation == "relu6" and _has_gradient(input, *weights, residual))
        ):
            if weights is not None and takes_weights and (norm is None or is_batch):
                dst = self._conv_forward(input, *weights)
                dst = dst if norm is None else _with_plain_strides(dst)
            else:
                dst = self.forward(input)
                dst = dst if norm is None else _normalized(norm, dst)
            dst = dst if addition is None else sums.add(addition, dst, residual)
            return dst if activation is None else _ACTIVATIONS[activation](dst)
        options = {"strides": self.stride, "dilations": self.dilation, "groups": self.groups}
        options |= {"residual": residual, "activation": activation, "data_format": "NCX"}
        begin, end = _pads(self, input, weights[0])
        options |= {"pads_begin": begin, "pads_end": end}
        compute: Any = functional.convolution
        if self.transposed:
            compute = functional.convolution_transpose
            options["output_padding"] = self.output_padding
        weights_format = "IOX" if self.transposed else "OIX"
        try:
            return _with_plain_strides(
                compute(input, *weights, weights_format=weights_format, **options)
            )
        except (TypeError, ValueError):
            self.forward(input)  # whose exception is torch's
            raise


def _with_plain_strides(image: Tensor) -> Tensor:
    """What is contiguous, whatever strides its dimensions of size 1 have, gets the usual ones, as
    torch's batch norm and activations give them: later results lie in memory as these say."""
    if 1 not in image.shape[1:] or not image.is_contiguous():
        return image
    return image.view(-1).view(image.shape)


def _folded(layer: Any, norm: Any, input: Any) -> Any:
    """Weights and bias with a batch norm; None where the result would have another type."""
    is_other = folds.is_frozen(norm) and isinstance(input, Tensor) and _is_autocast(input)
    return None if is_other else folds.weights(layer, norm)


def _is_autocast(tensor: Tensor) -> bool:
    kind = tensor.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def _is_batch(input: Any, weights: Any) -> bool:
    """Whether these are tensors that ask nothing, and the input has a batch dimension."""
    if weights is None or not isinstance(input, Tensor) or not isinstance(weights[0], Tensor):
        return False
    return input.dim() == weights[0].dim() and not any(map(sees_calls, (input, *weights)))


def _is_written_out(layer: Any, rank: int) -> bool:
    """Whether the layer has a number for each dimension, as its class makes it."""
    options = [layer.stride, layer.dilation, layer.output_padding]
    options += [] if isinstance(layer.padding, str) else [layer.padding]
    return all(type(option) is tuple and len(option) == rank for option in options)


def sees_calls(value: Any, depth: int = 0) -> bool:
    """Whether a tensor, or one in a list or dict, has a class that asks to see calls. Nobody looks
    for one as deep as in a list that has itself."""
    if isinstance(value, (list, tuple, dict)):
        values = value.values() if isinstance(value, dict) else value
        return depth > _DEPTH or any(sees_calls(each, depth + 1) for each in values)
    return isinstance(value, (Tensor, fx.Proxy)) and type(value) not in _PLAIN


def _normalized(norm: Any, image: Tensor) -> Tensor:
    """What a batch norm makes of an image, before the activation that it may have."""
    if not folds.has_activation(norm):
        return norm(image)  # type: ignore[no-any-return]
    if image.dim() != 4:
        raise ValueError(f"expected 4D input (got {image.dim()}D input)")
    if folds.is_frozen(norm):
        scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
        shift = norm.bias - norm.running_mean * scale
        return image * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)  # type: ignore[no-any-return]
    values = (norm.running_mean, norm.running_var, norm.weight, norm.bias)
    return torch.nn.functional.batch_norm(image, *values, False, 0.0, norm.eps)


def _has_gradient(*tensors: Any) -> bool:
    """Whether a graph is recorded. torch's relu6 keeps its input for it and ours its result, which
    may be changed in place."""
    return torch.is_grad_enabled() and any(
        isinstance(tensor, Tensor) and tensor.requires_grad for tensor in tensors
    )


def _pads(layer: Any, input: Tensor, weight: Tensor) -> tuple[list[int], list[int]]:
    padding = getattr(layer, "_call_padding", layer.padding)
    if padding == "valid":
        padding = (0,) * (weight.dim() - 2)
    if isinstance(padding, str):
        auto_pad = "same_upper" if padding == "same" else padding
        geometry = (weight.shape[2:], layer.stride, layer.dilation)
        padding = same_padding(input.shape[2:], *geometry, auto_pad)
    pairs = [pads if isinstance(pads, (list, tuple)) else (pads, pads) for pads in padding]
    return [begin for begin, _ in pairs], [end for _, end in pairs]


def _output_sizes(layer: Any, input: Tensor, weight: Tensor) -> list[int]:
    begin, end = _pads(layer, input, weight)
    channels = weight.shape[1] * layer.groups if layer.transposed else weight.shape[0]
    sizes = [input.shape[0], channels]
    for i, size in enumerate(input.shape[2:]):
        reach = (weight.shape[2 + i] - 1) * layer.dilation[i] + 1
        pads, stride = begin[i] + end[i], layer.stride[i]
        if layer.transposed:
            sizes.append((size - 1) * stride + reach - pads + layer.output_padding[i])
        else:
            sizes.append((size + pads - reach) // stride + 1)
    return sizes


def _fits(layer: Any, residual: Any, addition: str, input: Tensor, weight: Tensor) -> bool:
    """Whether the sum has the type, the sizes and the memory format of the convolution."""
    return (
        isinstance(residual, Tensor)
        and not torch.overrides.has_torch_function((residual,))
        and residual.layout == torch.strided
        and residual.dtype == input.dtype
        and residual.device == input.device
        and list(residual.shape) == _output_sizes(layer, input, weight)
        and not _is_autocast(input)
        and (not sums.begins_with_other(addition) or _has_format_of_result(residual, input, weight))
    )


def _has_format_of_result(residual: Tensor, input: Tensor, weight: Tensor) -> bool:
    formats = {suggest_memory_format(each) for each in (input, weight)}
    return len(formats) == 1 and residual.is_contiguous(memory_format=formats.pop())


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
    state, cls = vars(module), type(module)
    return bool(
        state.get("_forward_hooks")
        or state.get("_forward_pre_hooks")
        or state.get("_backward_hooks")
        or state.get("_backward_pre_hooks")
        or state.get("_compiled_call_impl") is not None
        or "forward" in state
        or "_conv_forward" in state
        or "_call_impl" in state
        or "_wrapped_call_impl" in state
        or cls.__call__ is not _CALL
        or cls._call_impl is not _CALL_IMPL
        or cls._wrapped_call_impl is not _CALL
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
        _classes.assign(layer, fused_class(old))


def make_plain(layer: torch.nn.Module) -> None:
    folds.forget(layer)
    _classes.change(layer, _plain_class)


def replaceable(layer: torch.nn.Module) -> list[tuple[Any, str, Any]]:
    """What a fused layer would call if it were not: (class, attribute, value)."""
    cls: Any = type(layer)
    return [(cls, name, getattr(cls, name)) for name in ("forward", "_conv_forward")]


def _plain_class(cls: _classes.Class) -> _classes.Class | None:
    old: _classes.Class | None = vars(cls).get("_fused_class")
    return None if old is None else _classes.replacement(old) or old
