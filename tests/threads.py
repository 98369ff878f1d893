"""Calls on a given number of threads."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def same_on_threads(
    compute: Callable[[], Iterable[Tensor]], counts: Sequence[int] = (1, 2, 3)
) -> list[Tensor]:
    """What compute() returns, or yields, which has the same bits from any number of threads."""
    results = []
    for count in counts:
        with threads(count):
            results.append(list(compute()))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))
    return results[0]
