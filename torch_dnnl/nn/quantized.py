"""Convolution layers of int8 weights for inference: `QuantizedConv1d` to `QuantizedConv3d`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvNd

from torch_dnnl import functional
from torch_dnnl._literals import Activation
from torch_dnnl.functional._conv import AUTO_PAD, Padding, Size
from torch_dnnl.functional._errors import check_types, describe, in_words_of, is_int
from torch_dnnl.functional._quantized import Number

_Layer = TypeVar("_Layer", bound="_QuantizedConv")

# The buffers of one element: their types, and the values that change nothing.
_SCALARS = {
    "src_scale": (torch.float32, 1.0),
    "src_zero_point": (torch.int32, 0),
    "dst_scale": (torch.float32, 1.0),
    "dst_zero_point": (torch.int32, 0),
    "residual_scale": (torch.float32, 1.0),
    "residual_zero_point": (torch.int32, 0),
}


def channels_last(weight: Tensor) -> Tensor:
    """OIX weights in the memory order [O, *K, I], which the kernels pack fastest."""
    return weight.movedim(1, -1).contiguous().movedim(-1, 1)


class _QuantizedConv(torch.nn.Module):
    """What the three classes share; see `QuantizedConv2d`."""

    _float_class: type[_ConvNd]
    _n: int  # spatial dimensions

    weight: Tensor
    bias: Tensor | None
    weight_scale: Tensor

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Padding = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        src_scale: Number = 1.0,
        src_zero_point: Number = 0,
        dst_scale: Number = 1.0,
        dst_zero_point: Number = 0,
        dtype: torch.dtype = torch.int8,
        activation: Activation | None = None,
        alpha: float | None = None,
        beta: float | None = None,
        residual_scale: Number = 1.0,
        residual_zero_point: Number = 0,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        scalars = {
            "src_scale": src_scale,
            "src_zero_point": src_zero_point,
            "dst_scale": dst_scale,
            "dst_zero_point": dst_zero_point,
            "residual_scale": residual_scale,
            "residual_zero_point": residual_zero_point,
        }
        self._check(
            in_channels=(in_channels, "an int"),
            out_channels=(out_channels, "an int"),
            kernel_size=(kernel_size, "an int or a sequence of ints"),
            stride=(stride, "an int or a sequence of ints"),
            dilation=(dilation, "an int or a sequence of ints"),
            groups=(groups, "an int"),
            bias=(bias, "a bool"),
            dtype=(dtype, "a torch.dtype"),
            activation=(activation, "a str or None"),
            alpha=(alpha, "a number or None"),
            beta=(beta, "a number or None"),
            **{name: (value, "a number or a Tensor") for name, value in scalars.items()},
        )
        self._check_channels(in_channels, out_channels, groups)
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = self._tuple("kernel_size", kernel_size)
        self.stride = self._tuple("stride", stride)
        self.padding = padding
        self.dilation = self._tuple("dilation", dilation)
        self.groups = groups
        self.dtype = dtype
        self.activation, self.alpha, self.beta = activation, alpha, beta
        self._pads = self._pads_of(padding)
        shape = (out_channels, in_channels // groups, *self.kernel_size)
        self._check_call(shape, scalars)

        weight = torch.zeros(shape, dtype=torch.int8, device=device)
        self.register_buffer("weight", channels_last(weight))
        floats: dict[str, Any] = {"dtype": torch.float32, "device": device}
        self.register_buffer("weight_scale", torch.ones(out_channels, **floats))
        self.register_buffer("bias", torch.zeros(out_channels, **floats) if bias else None)
        for name, value in scalars.items():
            stored = torch.as_tensor(value, dtype=_SCALARS[name][0], device=device)
            self.register_buffer(name, stored.detach().clone().reshape(()))

    @classmethod
    def from_float(
        cls: type[_Layer],
        conv: _ConvNd,
        *,
        src_scale: Number,
        src_zero_point: Number = 0,
        weight_scale: Tensor | None = None,
        dst_scale: Number = 1.0,
        dst_zero_point: Number = 0,
        dtype: torch.dtype = torch.int8,
        activation: Activation | None = None,
        alpha: float | None = None,
        beta: float | None = None,
        residual_scale: Number = 1.0,
        residual_zero_point: Number = 0,
    ) -> _Layer:
        """A layer with the weights of `conv`, rounded to int8 for each output channel.

        Args:
            conv: `torch.nn.Conv1d`, `Conv2d` or `Conv3d`, as the class has it, or a subclass such
                as ours, with zeros as padding.
            weight_scale: [out_channels]. Default: the largest magnitude of the weights of each
                output channel, divided by 127.
            others: as in the constructor.
        """
        name = f"{cls.__name__}.from_float"
        if not isinstance(conv, cls._float_class):
            expected = f"torch.nn.{cls._float_class.__name__}"
            raise TypeError(f"{name}: expected conv to be a {expected}, got {describe(conv)}")
        if conv.padding_mode != "zeros":
            raise NotImplementedError(
                f"{name}: expected conv to have padding_mode='zeros', got {conv.padding_mode!r}"
            )
        weight = conv.weight.detach().float()
        if weight_scale is None:
            largest = weight.abs().flatten(1).amax(1)
            # All weights of a channel may be 0; any scale is right then.
            weight_scale = torch.where(largest > 0, largest / 127, 1.0)
        padding: Any = conv.padding
        layer = cls(
            conv.in_channels,
            conv.out_channels,
            conv.kernel_size,
            conv.stride,
            padding,
            conv.dilation,
            conv.groups,
            conv.bias is not None,
            src_scale=src_scale,
            src_zero_point=src_zero_point,
            dst_scale=dst_scale,
            dst_zero_point=dst_zero_point,
            dtype=dtype,
            activation=activation,
            alpha=alpha,
            beta=beta,
            residual_scale=residual_scale,
            residual_zero_point=residual_zero_point,
            device=weight.device,
        )
        layer._set_weights(name, weight, weight_scale)
        if layer.bias is not None and conv.bias is not None:
            layer.bias.copy_(conv.bias.detach())
        return layer

    def _set_weights(self, name: str, weight: Tensor, scale: Tensor) -> None:
        check_types(name, {"weight_scale": (scale, "a Tensor")})
        if scale.shape != self.weight_scale.shape:
            raise ValueError(
                f"{name}: expected weight_scale to have the sizes [{self.out_channels}], got "
                f"{list(scale.shape)}"
            )
        self.weight_scale.copy_(scale.detach())
        rounded = functional.reorder(weight, dtype=torch.int8, dst_scale=self.weight_scale, axis=0)
        self.weight.copy_(rounded)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Tensor:
        is_unbatched = False
        if isinstance(x, Tensor) and x.dim() != self._n + 2:
            if x.dim() != self._n + 1:
                expected = f"{self._n + 2}-D or, unbatched, {self._n + 1}-D"
                raise self._error("x", expected, f"{x.dim()}-D with sizes {list(x.shape)}")
            is_unbatched, x = True, x.unsqueeze(0)
            residual = residual.unsqueeze(0) if isinstance(residual, Tensor) else residual
        result = functional.quantized_convolution(
            x,
            self.weight,
            self.bias,
            weights_scale=self.weight_scale,
            residual=residual,
            **{name: getattr(self, name) for name in _SCALARS},
            **self._options(),
        )
        return result.squeeze(0) if is_unbatched else result

    def _options(self) -> dict[str, Any]:
        return {
            "dtype": self.dtype,
            "activation": self.activation,
            "alpha": self.alpha,
            "beta": self.beta,
            "strides": self.stride,
            **self._pads,
            "dilations": self.dilation,
            "groups": self.groups,
            "data_format": "NCX",
            "weights_format": "OIX",
        }

    def extra_repr(self) -> str:
        parts = [
            f"{self.in_channels}, {self.out_channels}",
            f"kernel_size={self.kernel_size}",
            f"stride={self.stride}",
        ]
        ones = (1,) * self._n
        for name, usual in (("padding", (0, (0,) * self._n)), ("dilation", (ones,))):
            if getattr(self, name) not in usual:
                parts.append(f"{name}={getattr(self, name)!r}")
        if self.groups != 1:
            parts.append(f"groups={self.groups}")
        if self.bias is None:
            parts.append("bias=False")
        for name, (_, neutral) in _SCALARS.items():
            value = getattr(self, name)
            if not value.is_meta and value.item() != neutral:
                parts.append(f"{name}={value.item():.6g}")
        parts.append(f"dtype={self.dtype}")
        for name in ("activation", "alpha", "beta"):
            if getattr(self, name) is not None:
                parts.append(f"{name}={getattr(self, name)!r}")
        return ", ".join(parts)

    # What follows checks the arguments of the constructor.

    def _check(self, **arguments: tuple[object, str]) -> None:
        check_types(type(self).__name__, arguments)

    def _error(self, name: str, expected: str, got: object) -> ValueError:
        return ValueError(f"{type(self).__name__}: expected {name} to be {expected}, got {got}")

    def _check_channels(self, in_channels: int, out_channels: int, groups: int) -> None:
        for name, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
            if not 1 <= channels < 2**31:
                raise self._error(name, f"from 1 to {2**31 - 1}", channels)
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise self._error(
                "groups",
                "positive and to divide in_channels and out_channels",
                f"groups={groups}, in_channels={in_channels}, out_channels={out_channels}",
            )

    def _tuple(self, name: str, value: Size) -> tuple[int, ...]:
        entries = tuple(value) if isinstance(value, Sequence) else (value,) * self._n
        entries = entries * self._n if len(entries) == 1 else entries
        if len(entries) != self._n or min(entries) < 1:
            raise self._error(name, f"a positive int or {self._n} of them", value)
        return entries

    def _pads_of(self, padding: Any) -> dict[str, Any]:
        """The arguments of `quantized_convolution` that say this padding."""
        if padding is None:
            self._check(padding=(padding, "an int or a sequence of ints"))
        if isinstance(padding, str):
            if padding not in AUTO_PAD:
                raise self._error("padding", f"one of {', '.join(map(repr, AUTO_PAD))}", padding)
            if padding == "same" and any(stride != 1 for stride in self.stride):
                raise self._error("stride", "1 with padding='same'", self.stride)
            return {"auto_pad": AUTO_PAD[padding]}
        entries = padding if isinstance(padding, (list, tuple)) else [padding]
        pairs = [(entry, entry) if is_int(entry) else entry for entry in entries]
        pairs = pairs * self._n if len(pairs) == 1 else pairs
        if len(pairs) != self._n or not all(map(_is_pair, pairs)):
            expected = f"an int, {self._n} ints, {self._n} (begin, end) pairs of ints or a str"
            raise self._error("padding", expected, padding)
        begin, end = zip(*pairs, strict=True)
        return {"pads_begin": begin, "pads_end": end}

    def _check_call(self, shape: Sequence[int], scalars: dict[str, Number]) -> None:
        """Raises at once what every call would raise."""
        reach = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        numbers: dict[str, Any] = {
            name: value for name, value in scalars.items() if not isinstance(value, Tensor)
        }
        # Its type is known when it comes; it has to be one that has the zero point.
        src_dtype = torch.int8 if numbers.get("src_zero_point", 0) < 0 else torch.uint8
        src = torch.empty(0, self.in_channels, *reach, dtype=src_dtype, device="meta")
        weight = torch.empty(shape, dtype=torch.int8, device="meta")
        names = {"strides": "stride", "dilations": "dilation", "pads_begin": "padding"}
        try:
            functional.quantized_convolution(src, weight, **numbers, **self._options())
        except (TypeError, ValueError) as error:
            message = in_words_of(type(self).__name__, error, names)
            raise type(error)(message) from None
        for name, value in scalars.items():
            if isinstance(value, Tensor) and value.numel() != 1:
                raise self._error(name, "a number or a tensor of one element", describe(value))


def _is_pair(value: object) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(map(is_int, value))


class QuantizedConv1d(_QuantizedConv):
    """A convolution of int8 or uint8 signals with int8 weights, for inference.

    The arguments and the attributes are those of `QuantizedConv2d`.

    Shape:
        [N, in_channels, W] -> [N, out_channels, OW]; unbatched without N. `forward` takes the
        residual as its second argument.

    Example:
        >>> layer = QuantizedConv1d(4, 8, 3, padding=((2, 0),), src_scale=0.1, dst_scale=0.5)
        >>> layer(torch.randint(-128, 128, (1, 4, 10), dtype=torch.int8)).shape
        torch.Size([1, 8, 10])

    Definition: `torch_dnnl.functional.quantized_convolution`.
    """

    _float_class = torch.nn.Conv1d
    _n = 1


class QuantizedConv2d(_QuantizedConv):
    """A convolution of int8 or uint8 images with int8 weights, for inference.

    A new layer has the weights 0; `from_float` takes those of a `torch.nn.Conv2d`, and
    `load_state_dict` those of another such layer, with the scales and zero points.

    Args:
        in_channels, out_channels, kernel_size, stride, dilation, groups, bias: as in
            `torch.nn.Conv2d`.
        padding: as in `torch_dnnl.nn.Conv2d`. Pads mean the value 0, in integers `src_zero_point`.
        src_scale, src_zero_point: what the integers of the input mean: an integer q is the value
            src_scale * (q - src_zero_point). Numbers or tensors of one element. Default: 1 and 0.
        dst_scale, dst_zero_point: the same of the result, if `dtype` is an integer type.
        dtype: of the result: uint8, int8, int32, float32, bfloat16 or float16. Default: int8.
        activation, alpha, beta: as of `torch_dnnl.functional.convolution`; all but "prelu".
        residual_scale, residual_zero_point: of the residual that `forward` adds, if it is given.
        device: of the buffers.

    Attributes:
        weight: int8 [out_channels, in_channels / groups, *kernel_size], in memory channels last.
        weight_scale: float32 [out_channels].
        bias: float32 [out_channels] or None, in units of the value.
        src_scale, src_zero_point, dst_scale, dst_zero_point, residual_scale, residual_zero_point:
            float32 and int32 of no dimensions. These and the others are buffers. They have to keep
            their types: `half()` and `double()` make a layer that raises a TypeError.

    Shape:
        [N, in_channels, H, W], uint8 or int8 in any memory format -> [N, out_channels, OH, OW];
        unbatched without N. `forward` takes as its second argument a residual of the shape of the
        result, of any type that `dtype` may be. It is added before the activation.

    Raises:
        ValueError: sizes that do not fit, a scale of 0, a zero point out of range.
        TypeError: an argument of a wrong type.

    Example:
        >>> conv = torch.nn.Conv2d(3, 16, 3, padding=1)
        >>> layer = QuantizedConv2d.from_float(
        ...     conv, src_scale=1 / 255, dst_scale=0.02, dtype=torch.uint8, activation="relu")
        >>> image = torch.randint(256, (1, 3, 8, 8), dtype=torch.uint8)
        >>> layer(image).shape, layer(image).dtype
        (torch.Size([1, 16, 8, 8]), torch.uint8)
        >>> values = layer(image) * layer.dst_scale
        >>> bool((values - conv(image / 255).relu()).abs().max() < 0.02)
        True

    Definition: `torch_dnnl.functional.quantized_convolution`.
    """

    _float_class = torch.nn.Conv2d
    _n = 2


class QuantizedConv3d(_QuantizedConv):
    """A convolution of int8 or uint8 volumes with int8 weights, for inference.

    The arguments and the attributes are those of `QuantizedConv2d`.

    Shape:
        [N, in_channels, D, H, W] -> [N, out_channels, OD, OH, OW]; unbatched without N. `forward`
        takes the residual as its second argument.

    Example:
        >>> layer = QuantizedConv3d(2, 4, 3, padding="same", dtype=torch.float32)
        >>> layer(torch.randint(256, (1, 2, 5, 6, 7), dtype=torch.uint8)).shape
        torch.Size([1, 4, 5, 6, 7])

    Definition: `torch_dnnl.functional.quantized_convolution`.
    """

    _float_class = torch.nn.Conv3d
    _n = 3
