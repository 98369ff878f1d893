"""The choice among the kernels of an operator."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor

_HAS_CUDA = torch._C._dispatch_has_kernel_for_dispatch_key("torch_dnnl::convolution", "CUDA")


def kernels(family: str, device: str) -> list[str]:
    """The names of a device's kernels of a family of operators, in order of preference."""
    names = getattr(torch.ops.torch_dnnl, f"{family}_kernels_{device}", None)
    return list(names()) if names is not None else []


def has_kernels(tensor: Tensor) -> bool:
    """Whether there are kernels for the device of a tensor."""
    return tensor.is_cpu or (_HAS_CUDA and tensor.is_cuda)


def _options(algorithm: str) -> dict[str, str]:
    """The operators' own default is left out: the fewer arguments, the quicker the call."""
    return {} if algorithm == "auto" else {"algorithm": algorithm}


class Choice(threading.local):
    """What a context manager chose for a family of operators, in this thread."""

    def __init__(self, function: str, known: tuple[str, ...]) -> None:
        """`function`: the context manager; `known`: what it may choose."""
        self.function, self.known = function, known
        # What to pass to an operator. An attribute of the class, a compiled function would not see
        # being replaced.
        self.options = _options("auto")

    def options_with(self, algorithm: str | None) -> dict[str, str]:
        """What to pass to an operator; `algorithm`: the choice of this call."""
        return self.options if algorithm is None else _options(algorithm)

    @contextmanager
    def within(self, algorithm: str) -> Iterator[None]:
        """Chooses `algorithm` within the context."""
        if not isinstance(algorithm, str):
            raise TypeError(
                f"{self.function}: expected algorithm to be a str, got {type(algorithm).__name__}"
            )
        if algorithm not in self.known:
            raise ValueError(
                f"{self.function}: expected algorithm to be one of {self.known}, got {algorithm!r}"
            )
        before = self.options
        self.options = _options(algorithm)
        try:
            yield
        finally:
            self.options = before


def _names(family: str, *groups: str) -> tuple[str, ...]:
    """`groups` of kernels, and the kernels of all devices."""
    names = [name for device in ("cpu", "cuda") for name in kernels(family, device)]
    return tuple(dict.fromkeys((*groups, "reference", *names)))


convolution = Choice("conv_algorithm", _names("convolution", "auto", "direct", "winograd"))
resample = Choice("resample_algorithm", _names("resample", "auto"))
reorder = Choice("reorder_algorithm", _names("reorder", "auto"))


def conv_algorithm(algorithm: str) -> AbstractContextManager[None]:
    """Chooses how convolutions are computed within the context, in this thread.

    It applies to every convolution called there, and to its derivatives wherever they are computed.

    Args:
        algorithm: one of

            - "auto", the default: a rule that depends on types, sizes and attributes alone, never
              on timings. On the CPU, unless in float64, Winograd's F(4x4, 3x3) or, where there
              are few tiles or images of one or two rows or columns, F(2x2, 3x3), for 3x3 kernels
              with stride and dilation 1, at least 16 input and output channels in each group, 2^22
              products in all, and outputs enough to make up for the transforms
              (`docs/convolution.md` has the numbers); else as "direct".
            - "direct": sums of products as the definition has them, in kernels for the case.
            - "winograd": Winograd's wherever it is possible, but for groups of few channels, few
              output channels and rows that fill vectors; else as "direct".
            - "reference": one loop for everything, to compare with. Slow.
            - the name of a kernel (`torch_dnnl.build_info()["kernels"]` lists them): this kernel
              alone. A call that it does not support raises NotImplementedError.

    Raises:
        TypeError, ValueError: not one of these.

    Example:
        >>> with torch_dnnl.conv_algorithm("direct"):
        ...     y = torch_dnnl.functional.conv2d(x, weight)

    Winograd's transforms round differently: relative errors in float32 are of the order of 1e-6,
    about ten times those of sums in blocks, by F(4x4, 3x3), and one to two times those by
    F(2x2, 3x3).
    """
    return convolution.within(algorithm)


def resample_algorithm(algorithm: str) -> AbstractContextManager[None]:
    """Chooses the kernel that computes `resample` and `interpolate` within the context.

    It applies in this thread, to every call in the context and to its derivatives wherever they
    are computed.

    Args:
        algorithm: one of

            - "auto", the default: the best kernel for the layout and the sizes.
            - "reference": one loop for everything, to compare with. Slow.
            - the name of a kernel (`torch_dnnl.build_info()["kernels"]` lists them): this kernel
              alone. A call that it does not support raises NotImplementedError.

    Raises:
        TypeError, ValueError: not one of these.

    Example:
        >>> with torch_dnnl.resample_algorithm("reference"):
        ...     y = torch_dnnl.functional.interpolate(x, scale_factor=2)
    """
    return resample.within(algorithm)


def reorder_algorithm(algorithm: str) -> AbstractContextManager[None]:
    """Chooses the kernel that computes `reorder` within the context.

    It applies in this thread, to every call in the context and to its derivatives wherever they
    are computed.

    Args:
        algorithm: one of

            - "auto", the default: the best kernel for the layouts and types.
            - "reference": one loop for everything, to compare with. Slow.
            - the name of a kernel (`torch_dnnl.build_info()["kernels"]` lists them): this kernel
              alone. A call that it does not support raises NotImplementedError.

    Raises:
        TypeError, ValueError: not one of these.

    Example:
        >>> with torch_dnnl.reorder_algorithm("reference"):
        ...     y = torch_dnnl.functional.reorder(x, "nChw16c")
    """
    return reorder.within(algorithm)
