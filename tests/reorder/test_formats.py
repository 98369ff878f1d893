"""Format tags: how they read, how they print, and that the operator reads them alike."""

import pytest
import torch

import torch_dnnl
from torch_dnnl import formats

TAGS = {  # tag: generic spelling, logical sizes, physical shape
    "nchw": ("abcd", (2, 3, 4, 5), (2, 3, 4, 5)),
    "nhwc": ("acdb", (2, 3, 4, 5), (2, 3, 4, 5)),
    "ncdhw": ("abcde", (2, 3, 4, 5, 6), (2, 3, 4, 5, 6)),
    "nwc": ("acb", (2, 3, 4), (2, 3, 4)),
    "oihw": ("abcd", (2, 3, 4, 5), (2, 3, 4, 5)),
    "hwio": ("cdba", (2, 3, 4, 5), (2, 3, 4, 5)),
    "dhwio": ("cdeba", (2, 3, 4, 5, 6), (2, 3, 4, 5, 6)),
    "goihw": ("abcde", (2, 3, 4, 5, 6), (2, 3, 4, 5, 6)),
    "ba": ("ba", (2, 3), (2, 3)),
    "x": ("a", (5,), (5,)),
    "ldigo": ("abcde", (1, 2, 3, 4, 5), (1, 2, 3, 4, 5)),
    "nChw16c": ("aBcd16b", (2, 20, 4, 5), (2, 2, 4, 5, 16)),
    "aBcd16b": ("aBcd16b", (2, 32, 4, 5), (2, 2, 4, 5, 16)),
    "ABcd4b16a4b": ("ABcd4b16a4b", (20, 3, 2, 2), (2, 1, 2, 2, 4, 16, 4)),
    "OIhw4i16o4i": ("ABcd4b16a4b", (16, 17, 3, 3), (1, 2, 3, 3, 4, 16, 4)),
    "OhwI16i64o4i": ("AcdB16b64a4b", (65, 64, 3, 3), (2, 3, 3, 1, 16, 64, 4)),
    "gOIhw8i8o": ("aBCde8c8b", (2, 9, 8, 3, 3), (2, 2, 1, 3, 3, 8, 8)),
    "Goihw8g": ("Abcde8a", (9, 1, 1, 3, 3), (2, 1, 1, 3, 3, 8)),
}

MALFORMED = {  # tag: what the message says of the wrong character
    "": "it does not start with a letter",
    "16a": "it does not start with a letter",
    "abd": "'d' (character 3)",
    "aab": "'a' (character 2)",
    "nchz": "'z' (character 4)",
    "ohwn": "'n' (character 4)",
    "ab-d": "'-' (character 3)",
    "ab²": "'²' (character 3)",
    "aBcd": "'B' (character 2)",
    "nCHw16c": "'H' (character 3)",
    "abcd16b": "'b' (character 7)",
    "aBcd16": "'6' (character 6)",
    "aBcd0b": "'0' (character 5)",
    "aBcd016b": "'0' (character 5)",
    "aBcd16e": "'e' (character 7)",
    "aBcd16B": "'B' (character 7)",
    "aBcd16bb": "'b' (character 8)",
    "aBcd9999999999b": "'9' (character 14)",
    "nhw": "'c' is missing",
    "abcdefghijklm": "13",
}


@pytest.mark.parametrize("tag", TAGS)
def test_parse(tag):
    generic, size, physical = TAGS[tag]
    parsed = formats.parse(tag)
    assert formats.canonical(tag) == str(parsed) == generic
    assert formats.parse(generic) == parsed
    assert parsed.ndim == len(size)
    assert parsed.is_blocked == any(char.isdigit() for char in tag)
    assert parsed.physical_shape(size) == formats.physical_shape(tag, size) == physical


@pytest.mark.parametrize("tag", TAGS)
def test_the_operator_agrees(tag):
    _, size, physical = TAGS[tag]
    result = torch_dnnl.functional.reorder(torch.randn(size), tag)
    assert result.shape == physical
    if not formats.parse(tag).is_blocked:
        order = formats.parse(tag).order
        assert result.permute(order).is_contiguous()


def test_block_sizes():
    parsed = formats.parse("OIhw4i16o4i")
    assert parsed.order == (0, 1, 2, 3)
    assert parsed.blocks == ((1, 4), (0, 16), (1, 4))
    assert [parsed.block_size(dim) for dim in range(4)] == [16, 16, 1, 1]


@pytest.mark.parametrize("tag", MALFORMED)
def test_malformed(tag):
    with pytest.raises(ValueError, match="parse: expected tag") as caught:
        formats.parse(tag)
    assert MALFORMED[tag] in str(caught.value)


@pytest.mark.parametrize("tag", [tag for tag in MALFORMED if tag.isascii()])
def test_the_operator_refuses_the_same(tag):
    with pytest.raises(ValueError, match="reorder: expected dst_format"):
        torch_dnnl.functional.reorder(torch.zeros(2, 2, 2, 2), tag)


def test_bad_arguments():
    with pytest.raises(TypeError, match="tag to be a str"):
        formats.parse(4)
    with pytest.raises(ValueError, match="4 sizes"):
        formats.physical_shape("nchw", (1, 2, 3))
    with pytest.raises(ValueError, match="4 sizes"):
        formats.physical_shape("nChw8c", (1, 2, 3, -1))
