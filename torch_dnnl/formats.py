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

__all__ = ["Format", "canonical", "parse", "physical_shape"]

_MAX_DIMS = 12
_MAX_BLOCKS = 12
_MAX_BLOCK = 2**31 - 1
_GENERIC = string.ascii_lowercase[:_MAX_DIMS]

# The dimensions of a tensor in logical order, for each kind of tensor that has named tags:
# activations, weights (with groups), and those of recurrent networks.
_NAMED = (
    *("x", "nc", "ncw", "nchw", "ncdhw"),
    *("oi", "oiw", "oihw", "oidhw", "goiw", "goihw", "goidhw"),
    *("tn", "tnc", "ldnc", "ldigo", "ldio", "ldgo"),
)


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
        outer = (_GENERIC[dim].upper() if dim in blocked else _GENERIC[dim] for dim in self.order)
        return "".join(outer) + "".join(f"{size}{_GENERIC[dim]}" for dim, size in self.blocks)


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
    rank = next((at for at, char in enumerate(tag) if char in string.digits), len(tag))
    logical = _logical_order(tag, rank)
    order = tuple(map(logical.index, tag[:rank].lower()))
    blocks: list[tuple[int, int]] = []
    at = rank
    while at < len(tag):
        block, at = _block(tag, at, rank, logical)
        blocks.append(block)
    for at, (char, dim) in enumerate(zip(tag, order, strict=False)):
        size = Format(order, tuple(blocks)).block_size(dim)
        if char.isupper() and not any(dim == blocked for blocked, _ in blocks):
            raise _malformed(tag, at, "is upper case, but no block of that dimension follows")
        if size > _MAX_BLOCK:
            raise _malformed(tag, at, "has blocks that multiply to more than an int32")
    if len(blocks) > _MAX_BLOCKS:
        raise _malformed(tag, len(tag) - 1, f"ends more than {_MAX_BLOCKS} blocks")
    return Format(order, tuple(blocks))


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


def _logical_order(tag: str, rank: int) -> str:
    """The letters of the dimensions in logical order, from those in front of a tag."""
    for at, char in enumerate(tag[:rank]):
        if char not in string.ascii_letters:
            raise _malformed(tag, at, "is neither a letter nor a digit")
    letters = tag[:rank].lower()
    for at, char in enumerate(letters):
        if char in letters[:at]:
            raise _malformed(tag, at, "stands for a dimension that was there before")
    if not 0 < rank <= _MAX_DIMS:
        raise ValueError(
            f"parse: expected tag to start with 1 to {_MAX_DIMS} letters, got {tag!r} with {rank}"
        )
    if any(char in letters for char in "abef"):  # in no name, and every generic tag has an a
        for at, char in enumerate(letters):
            if char not in _GENERIC[:rank]:
                raise _malformed(tag, at, f"is not one of the dimensions {_GENERIC[:rank]!r}")
        return _GENERIC[:rank]
    for logical in _NAMED:
        if sorted(logical) == sorted(letters):
            return logical
    for at in range(rank):
        if not any(set(letters[: at + 1]) <= set(logical) for logical in _NAMED):
            raise _malformed(tag, at, "names no dimension that goes with the ones before it")
    raise ValueError(f"parse: expected tag to name all dimensions of a tensor, got {tag!r}")


def _block(tag: str, at: int, rank: int, logical: str) -> tuple[tuple[int, int], int]:
    """The block (dimension, size) at a position of a tag, and the position after it."""
    start = at
    while at < len(tag) and tag[at] in string.digits:
        at += 1
    if start == at:
        raise _malformed(tag, at, "has no block size before it")
    if tag[start] == "0":
        raise _malformed(tag, start, "does not start a block size")
    if at == len(tag):
        raise _malformed(tag, at - 1, "is not followed by the dimension of the block")
    if tag[at] not in logical:
        raise _malformed(tag, at, "is not one of the dimensions in front, in lower case")
    if tag[at].upper() not in tag[:rank]:
        raise _malformed(tag, at, "is blocked, so it must be upper case in front")
    return (logical.index(tag[at]), int(tag[start:at])), at + 1


def _malformed(tag: str, at: int, problem: str) -> ValueError:
    return ValueError(
        "parse: expected tag to be a oneDNN format tag such as 'nhwc', 'acdb' or 'aBcd16b', got "
        f"{tag!r}: {tag[at]!r} (character {at + 1}) {problem}"
    )
