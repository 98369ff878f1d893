"""The libraries as files: what the system's loader is asked for, and what it is not."""

import subprocess
import sys
from pathlib import Path

import pytest
from library_files import check_memory_and_folders, check_symbols

import torch_dnnl

LIBRARIES = sorted(Path(torch_dnnl.__file__).parent.glob("*.so"))


@pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: path.name)
def test_library(path):
    check_memory_and_folders(path)


@pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: path.name)
def test_no_file_connection_or_process(path):
    check_symbols(path)


def test_calls_open_nothing():
    """Python's own audit of files, connections and processes sees none, but for imports."""
    code = (
        "import sys, torch, torch_dnnl.functional as D\n"
        "x, w = torch.randn(1, 4, 6, 5), torch.randn(4, 4, 3, 3)\n"
        "calls = (lambda: D.conv2d(x, w), lambda: D.reorder(x, 'nhwc', dtype=torch.int8),\n"
        "         lambda: D.interpolate(x, scale_factor=2, mode='bilinear'),\n"
        "         lambda: D.resample(x, scale_factor=0.5), lambda: D.conv_transpose2d(x, w))\n"
        "for call in calls: call()\n"
        "seen = []\n"
        "kinds = ('open', 'socket.', 'subprocess.', 'os.', 'ctypes.')\n"
        "sys.addaudithook(lambda event, _: event.startswith(kinds) and seen.append(event))\n"
        "for call in calls: call()\n"
        "assert not seen, seen\n"
        "open('/dev/null').close()\n"
        "assert seen == ['open'], seen\n"
    )
    subprocess.check_call([sys.executable, "-c", code])
