"""What int8 weights of a convolution need when its int8 source is computed with as uint8."""

import pytest
import torch
from test_reorder import assert_same_bits

import torch_dnnl.functional as D


@pytest.mark.parametrize(
    ("size", "tags", "groups"),
    [
        ((20, 7, 3, 3), (None, "oihw", "hwio", "OIhw4i16o4i", "OIhw16i16o", "acdb"), False),
        ((20, 7), (None, "io", "OI16i16o"), False),
        ((3, 10, 6, 5), ("goiw", "gOIw4i16o4i", "wgio"), True),
        ((3, 10, 6, 5), ("abcd", "aBCd4c16b4c"), False),  # a generic tag names no groups
    ],
)
def test_compensation_of_int8_weights(size, tags, groups):
    """u8 x s8 and s8 x s8 products differ by 128 times the sum of the weights."""
    weights = torch.randn(size)
    scale = torch.rand(size[0], *[1] * (len(size) - 1)) * 0.02 + 0.01
    expected = D.reorder(weights, dtype=torch.int8, dst_scale=scale)
    sums = expected.long().flatten(2 if groups else 1).sum(-1)
    for tag in tags:
        options = {"dtype": torch.int8, "dst_scale": scale}
        result, compensation = D.reorder(weights, tag, **options, compensation="s8s8")
        assert_same_bits(result, D.reorder(weights, tag, **options))
        assert compensation.dtype == torch.int32
        assert torch.equal(compensation.long(), -128 * sums)
        if tag is not None and any(c.isdigit() for c in tag):
            again, compensation = D.reorder(
                *(result, "".join(c for c in tag.lower() if c.isalpha())[: len(size)]),
                src_format=tag, size=size, compensation="s8s8",
            )  # fmt: skip
            assert torch.equal(again, expected)
            assert torch.equal(compensation.long(), -128 * sums)


def test_compensation_makes_the_product_right():
    src = torch.randint(-128, 128, (5, 7), dtype=torch.int8)
    weights, compensation = D.reorder(
        torch.randn(4, 7), dtype=torch.int8, dst_scale=0.02, compensation="s8s8"
    )
    as_uint8 = src.int() + 128
    expected = src.int() @ weights.int().T
    assert torch.equal(as_uint8 @ weights.int().T + compensation, expected)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("compensation to be 's8s8' or None, got 'u8'", {"compensation": "u8"}),
        ("dtype to be int8 with compensation, got torch.uint8", {"dtype": torch.uint8}),
        ("src to be weights .* got 1-D with sizes", {"src": torch.ones(3)}),
        ("at most 131071 weights of an output channel", {"src": torch.ones(1, 131072)}),
    ],
)
def test_bad_compensation(message, options):
    call = {"src": torch.ones(2, 3), "dtype": torch.int8, "compensation": "s8s8", **options}
    with pytest.raises(ValueError, match=f"^reorder: expected {message}"):
        D.reorder(**call)


def test_compensation_between_blocked_formats():
    """Without a size, the padded channels of the source count, not those of the destination."""
    blocked = D.reorder(torch.ones(20, 7, 1, 1, dtype=torch.int8), "OIhw16i16o")
    for tag in ("oihw", None, "OIhw4i64o4i"):
        _, compensation = D.reorder(blocked, tag, src_format="OIhw16i16o", compensation="s8s8")
        assert compensation.tolist() == [-128 * 7] * 20 + [0] * 12
