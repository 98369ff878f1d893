"""Fixtures for every test: fresh outputs are poisoned, seeds are fixed, float32 is float32."""

import ctypes

import pytest
import torch

# glibc gives 1 MB or more back to the system as soon as it is freed, instead of what it learns from
# the sizes that it meets: how much memory is in use can be measured, whatever ran before.
M_MMAP_THRESHOLD = -3  # of malloc.h
ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)


def pytest_addoption(parser):
    parser.addoption("--problems", type=int, default=60, help="random problems for each kernel")
    parser.addoption("--seed", type=int, default=0, help="of random problems")
    parser.addoption("--backend", default="torch_dnnl", help="of test_image_models.py")


def pytest_collection_modifyitems(items):
    """Tests marked `cuda` need a GPU; nothing else is ever skipped. Where there is one, what a
    module runs on its DEVICE is one of them. The longest file comes first: last, it would go on
    alone."""
    items.sort(key=lambda item: item.path.name != "test_cuda_on_host.py")
    if torch.cuda.is_available():
        for item in items:
            if getattr(item.module, "DEVICE", "cpu") == "cuda":
                item.add_marker(pytest.mark.cuda)
        return
    for item in items:
        if item.get_closest_marker("cuda") is not None:
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(autouse=True)
def poisoned_outputs():
    """An element that a kernel does not write shows up as NaN (or the largest integer)."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.backends.cudnn.allow_tf32 = False  # torch's default is to round factors to 10 bits
    yield
    torch.use_deterministic_algorithms(False)
