"""Weights in the layout that a kernel reads: `pack_weights` and `PackedWeights`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_exporting

from torch_dnnl._literals import WeightsFormat
from torch_dnnl.functional._errors import check_types

_dnnl = torch.ops.torch_dnnl
Size = int | Sequence[int]

# The header of packed weights, its bytes and the places of two names: as
# csrc/conv/cpu/shared/packed/buffer.h has them.
_HEADER, _LIBRARY, _KERNEL = 256, slice(32, 48), slice(48, 80)
# Spatial sizes of the images that are expected by default, by the number of spatial dimensions.
_SIZES = {1: (1024,), 2: (32, 32), 3: (16, 16, 16)}


class PackedWeights:
    """What `pack_weights` returns: weights of a convolution, and the layout of one kernel.

    It stands in the place of `weights` in `convolution`, `convolution_transpose`, `conv1d` to
    `conv3d` and `quantized_convolution`. It can be copied and pickled, and torch.export keeps it
    as constants.

    Attributes:
        weights: the plain weights, which gradients, batches of `vmap` and calls that the layout is
            not for are computed with. After `without_weights()`, one number in their sizes.
        packed: the layout, a uint8 tensor; without elements where the kernel reads plain weights.
        shape, dtype, device: those of the weights.

    Example:
        >>> packed = pack_weights(torch.rand(3, 3, 32, 64))
        >>> packed.without_weights().nbytes < packed.nbytes
        True
    """

    def __init__(self, weights: Tensor, packed: Tensor, options: dict[str, Any]) -> None:
        self.weights, self.packed = weights, packed
        self._options = options

    shape = property(lambda self: self.weights.shape)
    dtype = property(lambda self: self.weights.dtype)
    device = property(lambda self: self.weights.device)

    @property
    def has_weights(self) -> bool:
        """Whether the plain weights are kept."""
        return self.weights.numel() == 1 or any(self.weights.stride())

    def for_call(self) -> Tensor:
        """The layout, for an operator."""
        if is_exporting() and not self.has_weights and _is_for_onnx():
            raise ValueError(
                "PackedWeights: expected the plain weights, as ONNX models hold these, got packed "
                "weights alone"
            )
        return self.packed

    @property
    def kernel(self) -> str | None:
        """The kernel that the layout is for; None where kernels read plain weights."""
        return self._name(_KERNEL) if self.packed.numel() else None

    @property
    def nbytes(self) -> int:
        """Bytes of memory: of the layout and, if they are kept, of the plain weights."""
        return self.packed.nbytes + (self.weights.nbytes if self.has_weights else 0)

    def without_weights(self) -> PackedWeights:
        """The layout alone, which takes less memory.

        Gradients, `vmap`, and calls that the layout is not for, raise a ValueError then. `self`
        itself is returned where there is no layout.
        """
        if not self.packed.numel() or self.weights.numel() == 1:
            return self
        number = float("nan") if self.dtype.is_floating_point else 0
        gone = self.weights.new_full((), number).expand(self.shape)
        return PackedWeights(gone, self.packed, self._options)

    def unpack(self) -> Tensor:
        """The plain weights.

        Raises:
            ValueError: the plain weights are not kept, and the layout holds Winograd's transform.
        """
        if self.has_weights:
            return self.weights
        if str(self.kernel).startswith("winograd"):
            raise ValueError(
                "PackedWeights.unpack: expected plain weights, or a layout that holds them, got "
                f"the transformed weights of {self.kernel}"
            )
        return _unpacked(self)

    def __repr__(self) -> str:
        kept = "with plain weights" if self.has_weights else "without plain weights"
        layout = f"{self.kernel} ({self._name(_LIBRARY)})" if self.packed.numel() else "none"
        sizes, dtype = list(self.shape), self.dtype
        return f"PackedWeights({sizes}, {dtype}, layout={layout}, {self.nbytes} bytes {kept})"

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.has_weights and self.packed.numel():  # this may be another CPU
            packed = _packed(self.weights, self._options)
            if packed.numel() and packed[_LIBRARY].tolist() != self.packed[_LIBRARY].tolist():
                self.packed = packed

    def _name(self, place: slice) -> str:
        return bytes(self.packed[place].tolist()).rstrip(b"\0").decode()


def pack_weights(
    weights: Tensor,
    *,
    groups: int = 1,
    strides: Size = 1,
    dilations: Size = 1,
    weights_format: WeightsFormat = "XIO",
    transposed: bool = False,
    algorithm: str = "auto",
    size: Size | None = None,
) -> PackedWeights:
    """Brings weights once into the layout that the kernel of a convolution reads.

    Calls with the result save the packing: a fifth of a call with one image for many layers, more
    for layers of many channels and few pixels. The results have the bits of calls with plain
    weights by the same kernel. The layout serves images of any size, batch and memory format.

    Args:
        weights: [*K, C / groups, O] in XIO or [O, C / groups, *K] in OIX: float64, float32,
            bfloat16, float16, or int8 for `quantized_convolution`.
        groups, strides, dilations: as of the calls. Calls with other ones read the plain weights.
        weights_format: "XIO" or "OIX"; `conv1d` to `conv3d` have OIX.
        transposed: the weights are those of `convolution_transpose`, in any format; its kernels
            read plain weights.
        algorithm: "auto", "direct", "winograd" or the name of a kernel, as of `convolution`.
        size: the images that are expected, in pixels, one for all spatial dimensions or one for
            each. The kernel is chosen for these. Default: 1024, 32 x 32 or 16 x 16 x 16.

    Returns:
        PackedWeights, which keep `weights` beside the layout (`without_weights()` drops these). On
        GPUs, kernels read plain weights, and there is no layout.

    Raises:
        ValueError, TypeError: as `convolution`.
        NotImplementedError: `algorithm` is a kernel that does not have this convolution.

    Example:
        >>> weights = torch.rand(3, 3, 32, 64)
        >>> packed = pack_weights(weights, size=56)
        >>> src = torch.rand(1, 56, 56, 32)
        >>> from torch_dnnl.functional import convolution
        >>> convolution(src, packed, auto_pad="same_upper").shape
        torch.Size([1, 56, 56, 64])

    Definition: oneDNN, memory format `any` and reorder of weights.
    """
    check_types(
        "pack_weights",
        {
            "weights": (weights, "a Tensor"),
            "groups": (groups, "an int"),
            "strides": (strides, "an int or a sequence of ints"),
            "dilations": (dilations, "an int or a sequence of ints"),
            "weights_format": (weights_format, "a str"),
            "transposed": (transposed, "a bool"),
            "algorithm": (algorithm, "a str"),
            "size": (size, "an int or a sequence of ints or None"),
        },
    )
    if weights.dim() not in (3, 4, 5):
        raise ValueError(
            "pack_weights: expected weights to be 3-D to 5-D, got "
            f"{weights.dim()}-D with sizes {list(weights.shape)}"
        )
    n = weights.dim() - 2
    if isinstance(size, (list, tuple)) and len(size) != n:
        raise ValueError(
            f"pack_weights: expected size to have one entry per spatial dimension ({n}), got {size}"
        )
    options = {
        "groups": groups,
        "strides": strides,
        "dilations": dilations,
        "weights_format": weights_format,
        "transposed": transposed,
        "algorithm": algorithm,
        "size": size,
    }
    plain = weights.detach()
    if plain.numel() > 1 and not any(plain.stride()):
        plain = plain.contiguous()  # one number in all sizes means that the weights are dropped
    return PackedWeights(plain, _packed(plain, options), options)


def _packed(weights: Tensor, options: dict[str, Any]) -> Tensor:
    n = weights.dim() - 2
    is_xio = options["weights_format"] == "XIO"
    none = weights.new_empty(0, dtype=torch.uint8)
    if options["transposed"]:
        return none

    def listed(name: str) -> list[int]:
        item = options[name]
        return list(item) if isinstance(item, (list, tuple)) else [item] * n

    kernel = weights.shape[:n] if is_xio else weights.shape[2:]
    size = list(_SIZES[n]) if options["size"] is None else listed("size")
    # Pads keep images, as in most networks, and fit any kernel.
    pads = [d * (k - 1) // 2 for d, k in zip(listed("dilations"), kernel, strict=False)]
    least = [d * (k - 1) + 1 for d, k in zip(listed("dilations"), kernel, strict=False)]
    size = [max(s, m - 2 * p) for s, m, p in zip(size, least, pads, strict=False)]
    channels = weights.shape[-2 if is_xio else 1] * options["groups"]
    is_nxc = is_xio or weights.is_contiguous(memory_format=_FORMATS[n])
    sizes = [1, *size, channels] if is_nxc else [1, channels, *size]
    pack = _dnnl.pack_weights if weights.is_floating_point() else _dnnl.pack_quantized_weights
    return pack(  # type: ignore[no-any-return]
        weights,
        sizes,
        listed("strides"),
        pads,
        pads,
        listed("dilations"),
        groups=options["groups"],
        data_format="NXC" if is_nxc else "NCX",
        weights_format=options["weights_format"],
        algorithm=options["algorithm"],
    )


def _is_for_onnx() -> bool:
    return torch.onnx.is_in_onnx_export()  # False where Dynamo traces it


# What torch.compiler.assume_constant_result sets, which imports all of Dynamo.
_is_for_onnx._dynamo_marked_constant = True  # type: ignore[attr-defined]


_FORMATS = {1: torch.contiguous_format, 2: torch.channels_last, 3: torch.channels_last_3d}


def _unpacked(packed: PackedWeights) -> Tensor:
    """The weights out of a layout.

    The layout of numbers, in the place of weights, says where each weight is. The numbers are
    packed digit by digit: every type has the digits.
    """
    weights, base = packed.weights, 128
    options = packed._options | {"algorithm": packed.kernel}
    dtypes = (torch.float64,) if weights.dtype == torch.float64 else (torch.float32, weights.dtype)
    dtypes = (torch.int8, torch.int16) if weights.dtype == torch.int8 else dtypes

    def laid_out(values: Tensor, dtype: torch.dtype) -> Tensor:
        numbers = values.reshape(weights.shape).to(weights.dtype)
        return _packed(numbers, options)[_HEADER:].view(dtype)

    count = weights.numel()
    ones = torch.ones(count)
    dtype = next(each for each in dtypes if int((laid_out(ones, each) == 1).sum()) >= count)
    places = (laid_out(ones, dtype) == 1).nonzero().flatten()[:count]  # then come sums of integers
    numbers, index = torch.arange(count), torch.zeros(count, dtype=torch.int64)
    scale = 1
    while scale < count:
        index += scale * laid_out(numbers // scale % base, dtype)[places].long()
        scale *= base
    plain = torch.empty(count, dtype=dtype)
    plain[index] = packed.packed[_HEADER:].view(dtype)[places]
    return plain.to(weights.dtype).reshape(weights.shape)
