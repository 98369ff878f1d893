"""A few hundred steps of soak.py: `make soak` makes 100,000."""

import pytest
import torch
from soak import Soak

COMPILED = pytest.param("torch_dnnl", marks=pytest.mark.ecosystem)  # which takes minutes


@pytest.mark.parametrize("backend", [None, COMPILED])
def test_memory_is_flat(backend):
    """After the first half, in which most sizes are met for the first time. What would show is a
    tensor of each step: of 15 KB and more."""
    torch._dynamo.reset()
    sets = Soak(backend).run(400)
    assert sets[-1] - sets[4] < 3
