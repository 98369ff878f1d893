"""oneDNN memory format tags: how a tag reads, and the shape of the tensor that it describes.

The letters in front name the dimensions, outermost first. In a generic tag they are the dimensions
by number, "a" the first: "abcd" is a dense 4-D tensor, "acdb" the same with the second dimension
innermost. A named tag uses the letters of a kind of tensor, in whose order the dimensions count:
"nhwc" is "acdb", since the dimensions of an image count as n, c, h, w.

An upper-case letter is a dimension cut into blocks. The blocks follow, from outer to inner, each
as its size and its dimension: "aBcd16b" (or "nChw16c") keeps 16 consecutive channels together, and
in "OIhw4i16o4i" the dimension i has blocks of 4 * 4, whose outer digit lies outside the 16 of o.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass

import torch

__all__ = ["Format", "canonical", "parse", "physical_shape"]


@dataclass(frozen=True)
class Format:
    """A parsed tag.

    Attributes:
        order: the logical dimensions, outermost first.
        blocks: the inner blocks, outermost first, each as (dimension, size).
    """

    order: tuple[int, ...]
    blocks: tuple[tuple[int, int], ...] = ()

    @property
    def ndim(self) -> int:
        """Number of logical dimensions."""
        return len(self.order)

    @property
    def is_blocked(self) -> bool:
        """Whether the tag has inner blocks."""
        return bool(self.blocks)

    def block_size(self, dim: int) -> int:
        """The product of the blocks of a logical dimension; 1 if it has none."""
        product = 1
        for block_dim, size in self.blocks:
            product *= size if block_dim == dim else 1
        return product

    def physical_shape(self, size: Sequence[int]) -> tuple[int, ...]:
        """The shape of the tensor that `reorder` returns for this tag.

        Args:
            size: the logical sizes.

        Returns:
            For a plain tag `size` itself, as the tag only sets the strides. For a blocked tag the
            outer dimensions in the tag's order, blocked ones divided and rounded up, then the
            inner blocks.

        Raises:
            ValueError: `size` has not one entry per dimension, or a negative one.

        Example:
            >>> parse("nChw16c").physical_shape((2, 20, 7, 7))
            (2, 2, 7, 7, 16)
        """
        if len(size) != self.ndim or any(n < 0 for n in size):
            raise ValueError(
                f"physical_shape: expected size to be {self.ndim} sizes for the tag '{self}', "
                f"got {tuple(size)}"
            )
        if not self.is_blocked:
            return tuple(size)
        outer = tuple(-(-size[dim] // self.block_size(dim)) for dim in self.order)
        return outer + tuple(block for _, block in self.blocks)

    def __str__(self) -> str:
        """The generic spelling."""
        blocked = {dim for dim, _ in self.blocks}
        lower, upper = string.ascii_lowercase, string.ascii_uppercase
        outer = (upper[dim] if dim in blocked else lower[dim] for dim in self.order)
        return "".join(outer) + "".join(f"{size}{lower[dim]}" for dim, size in self.blocks)


def parse(tag: str) -> Format:
    """Reads a tag, named or generic.

    Raises:
        TypeError: `tag` is not a str.
        ValueError: a malformed tag; the message names the wrong character.

    Example:
        >>> parse("OIhw4i16o4i").blocks
        ((1, 4), (0, 16), (1, 4))

    Definition: oneDNN, memory format tags.
    """
    if not isinstance(tag, str):
        raise TypeError(
            f"parse: expected tag to be a str, got {tag!r} of type {type(tag).__name__}"
        )
    order, dims, sizes = torch.ops.torch_dnnl.parse_format(tag)
    return Format(tuple(order), tuple(zip(dims, sizes, strict=True)))


def canonical(tag: str) -> str:
    """The generic spelling of a tag.

    Example:
        >>> canonical("nhwc"), canonical("gOIhw8i8o")
        ('acdb', 'aBCde8c8b')
    """
    return str(parse(tag))


def physical_shape(tag: str, size: Sequence[int]) -> tuple[int, ...]:
    """`parse(tag).physical_shape(size)`.

    Example:
        >>> physical_shape("OIhw4i16o4i", (32, 3, 3, 3))
        (2, 1, 3, 3, 4, 16, 4)
    """
    return parse(tag).physical_shape(size)
