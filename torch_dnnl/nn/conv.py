"""Convolution modules: `Conv1d` to `Conv3d`, torch's with our kernels, and `Conv`, oneDNN's."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvNd

from torch_dnnl import functional
from torch_dnnl._literals import Activation, AutoPad, DataFormat, PaddingMode, WeightsFormat
from torch_dnnl.functional._conv import AUTO_PAD, Padding, Size, same_padding
from torch_dnnl.functional._errors import check_types, in_words_of, is_int
from torch_dnnl.nn._repr import argument_repr, library_name


class _PaddedConv(_ConvNd):
    """What `Conv1d` to `Conv3d` share: paddings that torch lacks, and our function.

    This class comes before torch's class among their bases. What subclasses of others may have must
    not hide what is used here, hence the names.
    """

    _torch_dnnl_function: Callable[..., Tensor]
    _get_name = library_name

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
        padding_mode: PaddingMode = "zeros",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if isinstance(padding, str) and padding not in AUTO_PAD:
            raise ValueError(
                f"{type(self).__name__}: expected padding to be one of "
                f"{', '.join(map(repr, AUTO_PAD))}, got {padding!r}"
            )
        is_same = isinstance(padding, str) and padding in ("same_upper", "same_lower")
        own = is_same or _has_pairs(padding)
        init: Any = super().__init__  # torch's Conv*d takes the same arguments
        init(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            0 if own else padding,
            dilation,
            groups,
            bias,
            padding_mode,
            device,
            dtype,
        )
        if own:
            n = len(self.kernel_size)
            pads: Any = padding
            if not isinstance(pads, str):
                pairs = [
                    pair
                    for pair in pads
                    if isinstance(pair, (list, tuple)) and len(pair) == 2 and all(map(is_int, pair))
                ]
                if len(pads) != n or len(pairs) != n:
                    raise ValueError(
                        f"{type(self).__name__}: expected padding to be {n} (begin, end) pairs of "
                        f"ints, got {padding}"
                    )
                pads = tuple(map(tuple, pairs))
            self.padding = pads

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not isinstance(self, _PaddedConv):  # some code kept this method, and revert came later
            return type(self)._conv_forward(self, input, weight, bias)
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input = torch.nn.functional.pad(input, _pads(self, input), mode=self.padding_mode)
            padding = 0
        return self._torch_dnnl_function(
            input, weight, bias, self.stride, padding, self.dilation, self.groups
        )


def _pads(layer: _ConvNd, input: Tensor) -> list[int]:
    """The pads in the order of `torch.nn.functional.pad`: the last dimension first."""
    padding: Any = layer.padding
    if padding in ("same_upper", "same_lower"):
        sizes = input.shape[-len(layer.kernel_size) :]
        padding = same_padding(sizes, layer.kernel_size, layer.stride, layer.dilation, padding)
    if not _has_pairs(padding):
        return layer._reversed_padding_repeated_twice
    return [pad for pair in reversed(padding) for pad in pair]


def _has_pairs(padding: object) -> bool:
    return isinstance(padding, (list, tuple)) and any(
        isinstance(entry, (list, tuple)) for entry in padding
    )


class Conv1d(_PaddedConv, torch.nn.Conv1d):
    """`torch.nn.Conv1d` over `torch_dnnl.functional.conv1d`.

    Constructor, parameters, `state_dict` and initialisation are torch's. `padding` also takes
    "same_upper" and "same_lower", with any stride, and one (begin, end) pair.

    Shape:
        [N, in_channels, W] or [in_channels, W] -> [N, out_channels, OW] or [out_channels, OW].

    Example:
        >>> causal = Conv1d(4, 8, 3, padding=((2, 0),))
        >>> causal(torch.rand(1, 4, 10)).shape
        torch.Size([1, 8, 10])

    Definition: `torch.nn.Conv1d`.
    """

    _torch_dnnl_function = staticmethod(functional.conv1d)


class Conv2d(_PaddedConv, torch.nn.Conv2d):
    """`torch.nn.Conv2d` over `torch_dnnl.functional.conv2d`.

    Constructor, parameters, `state_dict` and initialisation are torch's. `padding` also takes
    "same_upper" and "same_lower", with any stride, and one (begin, end) pair per dimension.

    Shape:
        [N, in_channels, H, W] -> [N, out_channels, OH, OW]; unbatched without N.

    Example:
        >>> Conv2d(3, 8, 3, stride=2, padding="same_upper")(torch.rand(1, 3, 9, 9)).shape
        torch.Size([1, 8, 5, 5])

    Definition: `torch.nn.Conv2d`.
    """

    _torch_dnnl_function = staticmethod(functional.conv2d)


class Conv3d(_PaddedConv, torch.nn.Conv3d):
    """`torch.nn.Conv3d` over `torch_dnnl.functional.conv3d`.

    Constructor, parameters, `state_dict` and initialisation are torch's. `padding` also takes
    "same_upper" and "same_lower", with any stride, and one (begin, end) pair per dimension.

    Shape:
        [N, in_channels, D, H, W] -> [N, out_channels, OD, OH, OW]; unbatched without N.

    Example:
        >>> Conv3d(2, 4, 3, padding="same")(torch.rand(1, 2, 5, 6, 7)).shape
        torch.Size([1, 4, 5, 6, 7])

    Definition: `torch.nn.Conv3d`.
    """

    _torch_dnnl_function = staticmethod(functional.conv3d)


class Conv(torch.nn.Module):
    """The Convolution operation of oneDNN Graph as a layer, in any of its formats.

    Args:
        spatial_dims: 1, 2 or 3.
        in_channels, out_channels: number of channels of the input and of the output.
        kernel_size: one for all spatial dimensions or one for each.
        bias: whether to add a learned bias. Default: True.
        device, dtype: of the parameters.
        others: the keyword arguments of `torch_dnnl.functional.convolution`, with its defaults. A
            tensor for `alpha` is a parameter if it is an `nn.Parameter`, else a buffer.

    Attributes:
        weight: [*K, in_channels / groups, out_channels] in XIO or
            [out_channels, in_channels / groups, *K] in OIX. The initial values are those that
            torch's layers have after the same seed.
        bias: [out_channels] or None.

    Shape:
        [N, *X, in_channels] -> [N, *OX, out_channels] in NXC. In NCX the channels are the second
        dimension. `forward` takes the residual as its second argument.

    Raises:
        ValueError: channels that `groups` does not divide; formats, activations or attributes that
            every call would refuse.
        TypeError: an argument of a wrong type.

    Example:
        >>> layer = Conv(2, 3, 16, 3, auto_pad="same_upper", activation="relu")
        >>> layer(torch.rand(1, 8, 8, 3)).shape
        torch.Size([1, 8, 8, 16])

    Definition: oneDNN Graph, operation Convolution.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        spatial_dims: int,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        *,
        strides: Size = 1,
        pads_begin: Size = 0,
        pads_end: Size = 0,
        dilations: Size = 1,
        auto_pad: AutoPad = "none",
        groups: int = 1,
        bias: bool = True,
        data_format: DataFormat = "NXC",
        weights_format: WeightsFormat = "XIO",
        activation: Activation | None = None,
        alpha: float | Tensor | None = None,
        beta: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_types(  # of arguments that are used before _check_call() checks all of them
            "Conv",
            {
                "spatial_dims": (spatial_dims, "an int"),
                "in_channels": (in_channels, "an int"),
                "out_channels": (out_channels, "an int"),
                "kernel_size": (kernel_size, "an int or a sequence of ints"),
                "dilations": (dilations, "an int or a sequence of ints"),
                "data_format": (data_format, "a str"),
                "weights_format": (weights_format, "a str"),
                "groups": (groups, "an int"),
                "bias": (bias, "a bool"),
                "dtype": (dtype, "a torch.dtype or None"),
            },
        )
        if dtype not in (None, torch.float64, torch.float32, torch.bfloat16, torch.float16):
            raise TypeError(
                "Conv: expected dtype to be float64, float32, bfloat16 or float16, "
                f"got {str(dtype).removeprefix('torch.')}"
            )
        if spatial_dims not in (1, 2, 3):
            raise ValueError(f"Conv: expected spatial_dims to be 1, 2 or 3, got {spatial_dims}")
        for name, channels, least in (
            ("in_channels", in_channels, 0),
            ("out_channels", out_channels, 1),
        ):
            if not least <= channels < 2**31:
                raise ValueError(
                    f"Conv: expected {name} to be from {least} to {2**31 - 1}, got {channels}"
                )
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise ValueError(
                "Conv: expected groups to be positive and to divide in_channels and out_channels, "
                f"got groups={groups}, in_channels={in_channels}, out_channels={out_channels}"
            )
        self.spatial_dims = spatial_dims
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = (
            tuple(kernel_size)
            if isinstance(kernel_size, Sequence)
            else (kernel_size,) * spatial_dims
        )
        if len(self.kernel_size) != spatial_dims or min(self.kernel_size) < 1:
            raise ValueError(
                f"Conv: expected kernel_size to be a positive int or {spatial_dims} of them, "
                f"got {kernel_size}"
            )
        self.strides = strides
        self.pads_begin = pads_begin
        self.pads_end = pads_end
        self.dilations = dilations
        self.auto_pad = auto_pad
        self.groups = groups
        self.data_format = data_format
        self.weights_format = weights_format
        self.activation = activation
        if isinstance(alpha, Tensor) and not isinstance(alpha, torch.nn.Parameter):
            self.register_buffer("alpha", alpha)
        else:
            self.alpha = alpha
        self.beta = beta

        inputs = in_channels // groups
        shape = (
            (*self.kernel_size, inputs, out_channels)
            if weights_format == "XIO"
            else (out_channels, inputs, *self.kernel_size)
        )
        self._check_call(shape)
        self.weight = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        if bias:
            self.bias = torch.nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def _check_call(self, shape: Sequence[int]) -> None:
        """Raises at once what every call with weights of this shape would raise."""
        dilations = self.dilations if isinstance(self.dilations, Sequence) else [self.dilations]
        reach = max(self.kernel_size) * max([1, *dilations])
        sizes = [reach] * self.spatial_dims
        if max(math.prod(shape), math.prod(sizes) * max(1, self.in_channels)) >= 2**62:
            raise ValueError(
                f"Conv: expected sizes and dilations that tensors can have, got weights of {shape} "
                f"and dilations={self.dilations}"
            )
        no_images = (
            (0, self.in_channels, *sizes)
            if self.data_format == "NCX"
            else (0, *sizes, self.in_channels)
        )
        options = self._options()
        if isinstance(self.alpha, Tensor):
            options["alpha"] = self.alpha.to("meta", torch.float32)
        try:
            functional.convolution(
                torch.empty(no_images, dtype=torch.float32, device="meta"),
                torch.empty(shape, dtype=torch.float32, device="meta"),
                **options,
            )
        except (TypeError, ValueError) as error:
            raise type(error)(in_words_of("Conv", error, {})) from None

    def _options(self) -> dict[str, Any]:
        return {
            "strides": self.strides,
            "pads_begin": self.pads_begin,
            "pads_end": self.pads_end,
            "dilations": self.dilations,
            "auto_pad": self.auto_pad,
            "groups": self.groups,
            "data_format": self.data_format,
            "weights_format": self.weights_format,
            "activation": self.activation,
            "alpha": self.alpha,
            "beta": self.beta,
        }

    def reset_parameters(self) -> None:
        """Uniform in (-b, b) with b = 1 / sqrt(in_channels / groups * product of kernel_size)."""
        weight = self.weight.detach()
        if self.weights_format == "XIO":
            weight = weight.permute(-1, -2, *range(self.spatial_dims))  # to OIX
        # Drawn in OIX for every format, so that one seed gives one layer.
        drawn = torch.empty_like(weight, memory_format=torch.contiguous_format)
        torch.nn.init.kaiming_uniform_(drawn, a=math.sqrt(5))
        weight.copy_(drawn)
        if self.bias is not None:
            fan_in = weight[0].numel()
            bound = 1 / math.sqrt(fan_in) if fan_in > 0 else 0
            torch.nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, src: Tensor, residual: Tensor | None = None) -> Tensor:
        return functional.convolution(
            src, self.weight, self.bias, **self._options(), residual=residual
        )

    def extra_repr(self) -> str:
        bias = "" if self.bias is not None else ", bias=False"
        return argument_repr(self, Conv, skip=("bias",)) + bias
