"""Every allocation of every operator fails once: an exception, nothing that stays in use, and the
next call is right."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from calls import problems, rows
from failing import HERE, exhaust, new_library, tensors_allocator
from paths import ROOT, TESTS
from threads import threads

import torch_dnnl


@pytest.fixture(scope="module")
def allocator():
    made = tensors_allocator()
    made.library.install()
    gc.collect()
    gc.disable()  # what it frees would be missed
    yield made
    gc.enable()
    made.library.uninstall()


ROWS = dict(rows())


@pytest.mark.parametrize("name", ROWS)
def test_tensors_and_scratch(allocator, name):
    failed = exhaust(ROWS[name], allocator)
    print(f"{failed} allocations of {name} failed")  # pytest -rP shows it
    assert failed >= 1  # of the result at least


def test_tensors_and_scratch_of_kernels(allocator):
    """Of two threads, each of which has scratch of its own."""
    made = {}
    with threads(2):
        for name, call in problems(2):
            try:
                made[name] = exhaust(call, allocator)
            except AssertionError as error:
                raise AssertionError(f"{name}: {error}") from None
    print(f"{sum(made.values())} allocations of {len(made)} random problems failed")
    assert len(made) > 60 and max(made.values()) > 5


def test_new_and_what_torch_takes_for_a_kernel():
    """In a program of its own, as the library must be there first. What torch's oneDNN takes to
    make the code for a size of matrices is taken before: it may end the process where that fails.
    """
    environment = {
        **os.environ,
        "LD_PRELOAD": str(new_library()),
        "FAIL_IN": f"{Path(torch_dnnl.__file__).parent}/",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(TESTS)]),
    }
    done = subprocess.run(
        [sys.executable, str(HERE / "exhaust_new.py")],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    # The last line before an end without a word is the name of the call.
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    raised = json.loads(done.stdout)
    print(f"{sum(raised.values())} calls of new in {len(raised)} calls failed")
    assert len(raised) > 100 and min(raised.values()) > 0  # each takes some
