"""Which rows a shard needs, against the definition of convolution, row by row."""

import doctest
import itertools

import pytest
import torch

from torch_dnnl.distributed import windows
from torch_dnnl.distributed.windows import (
    Rows,
    are_in_step,
    gradient_window,
    nested_shards,
    shards,
    source_window,
)


def problems():
    """Sizes, taps, strides, dilations and pads, with the number of results."""
    for size, taps, stride, dilation in itertools.product(
        (1, 2, 5, 9), (1, 2, 3), (1, 2, 5), (1, 3)
    ):
        reach = (taps - 1) * dilation + 1
        for pads in ((0, 0), (1, 2), (reach + 1, 3)):
            if size + sum(pads) >= reach:
                results = (size + sum(pads) - reach) // stride + 1
                yield size, taps, stride, dilation, reach, pads, results


def rows_read(result: int, taps: int, stride: int, dilation: int, pad: int) -> list[int]:
    """By a convolution, those of padding too; the definition."""
    return [result * stride - pad + tap * dilation for tap in range(taps)]


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7])
def test_source_window_is_what_its_rows_read(parts):
    count = 0
    for size, taps, stride, dilation, reach, pads, results in problems():
        for dst in shards(results, parts):
            rows, (before, after) = source_window(dst, size, stride, pads[0], reach)
            definition = [rows_read(o, taps, stride, dilation, pads[0]) for o in range(*dst)]
            needed = [i for reads in definition for i in reads if 0 <= i < size]
            assert set(needed) <= set(range(*rows))
            if dst.length == 0:
                assert rows.length == 0
                continue
            # Nothing beyond the first and the last row that is covered.
            first, last = definition[0][0], definition[-1][0] + reach - 1
            inside = [i for i in range(first, last + 1) if 0 <= i < size]
            assert list(range(*rows)) == inside
            # As a call of its own: as many results, of the same rows; zeros stand for no rows.
            given = max(rows.length, 1)
            assert before >= 0 and after >= 0
            assert (given + before + after - reach) // stride + 1 == dst.length
            for o, reads in enumerate(definition):
                own = rows_read(o, taps, stride, dilation, before)
                inside = [i + rows.begin for i in own if 0 <= i < rows.length]
                assert inside == [i for i in reads if 0 <= i < size]
            count += 1
    assert count > 150


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7])
def test_gradient_window_is_what_reads_its_rows(parts):
    count = 0
    for size, taps, stride, dilation, reach, pads, results in problems():
        reads = [rows_read(o, taps, stride, dilation, pads[0]) for o in range(results)]
        for src in shards(size, parts):
            rows, (before, after) = gradient_window(src, results, stride, pads[0], reach)
            readers = [o for o in range(results) if any(i in range(*src) for i in reads[o])]
            assert set(readers) <= set(range(*rows))
            if src.length == 0:
                assert rows.length == 0
                continue
            near = [
                o
                for o in range(results)
                if o * stride - pads[0] < src.end and o * stride - pads[0] + reach > src.begin
            ]
            spare = 1 if stride > reach else 0  # a row, where pads would be negative
            assert len(near) <= rows.length <= len(near) + spare
            assert before >= 0 and after >= 0
            given = (src.length + before + after - reach) // stride + 1
            assert given == rows.length or (rows.length == 0 and given > 0)
            for o in range(rows.length):
                own = rows_read(o, taps, stride, dilation, before)
                inside = [i + src.begin for i in own if 0 <= i < src.length]
                assert inside == [i for i in reads[rows.begin + o] if i in range(*src)]
            count += 1
    assert count > 150


@pytest.mark.parametrize("size", range(12))
@pytest.mark.parametrize("parts", [1, 2, 3, 4, 5])
def test_shards_are_those_of_chunk(size, parts):
    chunks = [list(chunk) for chunk in torch.arange(size).chunk(parts)]
    chunks += [[]] * (parts - len(chunks))
    assert [list(range(*rows)) for rows in shards(size, parts)] == (
        chunks if size else [[]] * parts
    )


def test_nested_shards_and_steps():
    assert nested_shards(10, []) == [Rows(0, 10)]
    assert nested_shards(7, [2, 2]) == [Rows(0, 2), Rows(2, 4), Rows(4, 6), Rows(6, 7)]
    assert are_in_step(10, 5, [1]) and are_in_step(5, 5, [2, 2]) and are_in_step(12, 4, [2, 2])
    assert not are_in_step(10, 5, [2])  # 5 and 5 of the one, 3 and 2 of the other
    assert not are_in_step(12, 4, [3])  # 4, 4, 4 and 2, 2, 0


def test_examples():
    result = doctest.testmod(windows)
    assert result.attempted == 2 and result.failed == 0


def test_overlap():
    assert Rows(2, 6).overlap(Rows(4, 9)) == Rows(4, 6)
    assert Rows(2, 6).overlap(Rows(7, 9)).length == Rows(2, 6).overlap(Rows(0, 2)).length == 0
    assert Rows(3, 3).overlap(Rows(0, 9)) == Rows(3, 3)
