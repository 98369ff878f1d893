"""Transposed convolution modules: torch's `ConvTranspose1d` to `ConvTranspose3d`, our kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvTransposeNd

from torch_dnnl import functional
from torch_dnnl.nn._repr import library_name

_FUNCTIONS: tuple[Callable[..., Tensor], ...] = (
    functional.conv_transpose1d,
    functional.conv_transpose2d,
    functional.conv_transpose3d,
)


class _TransposedConv(_ConvTransposeNd):
    """What `ConvTranspose1d` to `ConvTranspose3d` share: our function.

    This class comes before torch's class among their bases.
    """

    _get_name = library_name

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        output_padding = self._output_padding(
            input,
            output_size,
            self.stride,  # type: ignore[arg-type]
            self.padding,  # type: ignore[arg-type]
            self.kernel_size,  # type: ignore[arg-type]
            len(self.kernel_size),
            self.dilation,  # type: ignore[arg-type]
        )
        options: tuple[Any, ...] = (self.stride, self.padding, output_padding)
        function = _FUNCTIONS[len(self.kernel_size) - 1]
        return function(input, self.weight, self.bias, *options, self.groups, self.dilation)


class ConvTranspose1d(_TransposedConv, torch.nn.ConvTranspose1d):
    """`torch.nn.ConvTranspose1d` over `torch_dnnl.functional.conv_transpose1d`.

    Constructor, parameters, `state_dict`, initialisation and `forward` are torch's: `output_size`,
    the second argument, chooses among the sizes that a stride allows.

    Shape:
        [N, in_channels, W] or [in_channels, W] -> [N, out_channels, OW] or [out_channels, OW].

    Example:
        >>> ConvTranspose1d(4, 8, 3, stride=2)(torch.rand(1, 4, 10), [22]).shape
        torch.Size([1, 8, 22])

    Definition: `torch.nn.ConvTranspose1d`.
    """


class ConvTranspose2d(_TransposedConv, torch.nn.ConvTranspose2d):
    """`torch.nn.ConvTranspose2d` over `torch_dnnl.functional.conv_transpose2d`.

    Constructor, parameters, `state_dict`, initialisation and `forward` are torch's: `output_size`,
    the second argument, chooses among the sizes that a stride allows.

    Shape:
        [N, in_channels, H, W] -> [N, out_channels, OH, OW]; unbatched without N.

    Example:
        >>> ConvTranspose2d(16, 3, 4, stride=2, padding=1)(torch.rand(1, 16, 8, 8)).shape
        torch.Size([1, 3, 16, 16])

    Definition: `torch.nn.ConvTranspose2d`.
    """


class ConvTranspose3d(_TransposedConv, torch.nn.ConvTranspose3d):
    """`torch.nn.ConvTranspose3d` over `torch_dnnl.functional.conv_transpose3d`.

    Constructor, parameters, `state_dict`, initialisation and `forward` are torch's: `output_size`,
    the second argument, chooses among the sizes that a stride allows.

    Shape:
        [N, in_channels, D, H, W] -> [N, out_channels, OD, OH, OW]; unbatched without N.

    Example:
        >>> ConvTranspose3d(4, 2, 2, stride=2)(torch.rand(1, 4, 2, 3, 4)).shape
        torch.Size([1, 2, 4, 6, 8])

    Definition: `torch.nn.ConvTranspose3d`.
    """
