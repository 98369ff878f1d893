"""The module that reorders, quantizes or fake-quantizes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from torch_dnnl import functional
from torch_dnnl.functional._errors import check_types
from torch_dnnl.functional._reorder import Number
from torch_dnnl.nn._repr import argument_repr


class Reorder(torch.nn.Module):
    """`torch_dnnl.functional.reorder`, or `fake_reorder`, with its arguments fixed.

    A scale or zero point that is an `nn.Parameter` is a parameter of the module and is learned.
    A scale or zero point that is another tensor is a buffer of the module. Both keep their shape:
    with `axis`, [1] or [C].

    Args:
        fake: whether to return the dequantized values (`fake_reorder`). Default: False.
        others: the arguments of `torch_dnnl.functional.reorder` after `src`, with its defaults,
            except `accumulate`, which `forward` takes, and `compensation`.

    Shape:
        As `torch_dnnl.functional.reorder`.

    Example:
        >>> to_float = Reorder("nchw", dtype=torch.float32, scale=1 / 255)
        >>> image = torch.randint(256, (1, 8, 8, 3), dtype=torch.uint8)
        >>> to_float(image.permute(0, 3, 1, 2)).is_contiguous()
        True
        >>> steps = torch.nn.Parameter(torch.full((3,), 0.1))  # learned, one for each channel
        >>> Reorder(dtype=torch.int8, dst_scale=steps, axis=1, fake=True)
        Reorder(dtype=torch.int8, dst_scale=Parameter[3], axis=1, fake=True)

    Definition: the oneDNN Reorder primitive.
    """

    scale: Number | None
    dst_scale: Number | None
    src_zero_point: Number | None
    dst_zero_point: Number | None

    def __init__(
        self,
        dst_format: str | None = None,
        *,
        src_format: str | None = None,
        size: tuple[int, ...] | None = None,
        dtype: torch.dtype | None = None,
        scale: Number | None = None,
        dst_scale: Number | None = None,
        src_zero_point: Number | None = None,
        dst_zero_point: Number | None = None,
        beta: float = 1.0,
        round_before_zero_point: bool = False,
        axis: int | None = None,
        fake: bool = False,
    ) -> None:
        super().__init__()
        check_types("Reorder", {"fake": (fake, "a bool")})
        self.dst_format = dst_format
        self.src_format = src_format
        self.size = size
        self.dtype = dtype
        self._keep("scale", scale)
        self._keep("dst_scale", dst_scale)
        self._keep("src_zero_point", src_zero_point)
        self._keep("dst_zero_point", dst_zero_point)
        self.beta = beta
        self.round_before_zero_point = round_before_zero_point
        self.axis = axis
        self.fake = fake

    def _keep(self, name: str, value: Number | None) -> None:
        if isinstance(value, Tensor) and not isinstance(value, torch.nn.Parameter):
            self.register_buffer(name, value)
        else:
            setattr(self, name, value)

    def forward(self, src: Tensor, accumulate: Tensor | None = None) -> Tensor:
        function: Callable[..., Tensor] = functional.reorder
        if self.fake:
            function = functional.fake_reorder
        return function(
            src,
            self.dst_format,
            src_format=self.src_format,
            size=self.size,
            dtype=self.dtype,
            scale=self.scale,
            dst_scale=self.dst_scale,
            src_zero_point=self.src_zero_point,
            dst_zero_point=self.dst_zero_point,
            accumulate=accumulate,
            beta=self.beta,
            round_before_zero_point=self.round_before_zero_point,
            axis=self.axis,
        )

    def extra_repr(self) -> str:
        return argument_repr(self, Reorder)
