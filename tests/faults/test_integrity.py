"""The libraries as files: what the system's loader is asked for, and what it is not."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import torch_dnnl

LIBRARIES = sorted(Path(torch_dnnl.__file__).parent.glob("*.so"))


def readelf(*arguments):
    return subprocess.check_output(["readelf", "-W", *arguments], text=True)


@pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: path.name)
def test_library(path):
    """No segment can be written and executed, nor the stack executed, the table of relocations is
    closed after loading; and no other folder is searched for libraries."""
    segments = [line.split() for line in readelf("--segments", path).splitlines() if "0x" in line]
    flags = {line[0]: "".join(line[6:-1]) for line in segments if line[0].isupper()}
    loaded = ["".join(line[6:-1]) for line in segments if line[0] == "LOAD"]
    assert any("E" in f for f in loaded) and not any("W" in f and "E" in f for f in loaded)
    assert flags["GNU_STACK"] == "RW" and "GNU_RELRO" in flags
    dynamic = readelf("--dynamic", path)
    assert "TEXTREL" not in dynamic and "RPATH" not in dynamic and "RUNPATH" not in dynamic
    needed = [line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line]
    assert needed and all("/" not in name for name in needed)


@pytest.mark.parametrize("path", LIBRARIES, ids=lambda path: path.name)
def test_no_file_connection_or_process(path):
    """No library asks the system for one; torch's have functions of their own for it."""
    symbols = [line.split() for line in readelf("--dyn-syms", path).splitlines()]
    asked = {s[7].split("@")[0] for s in symbols if len(s) > 7 and s[6] == "UND"}
    opens = r"f?open(64|at)?|creat|socket|connect|bind|v?fork|exec.*|system|popen|posix_spawn.*"
    assert asked and not [s for s in asked if re.fullmatch(opens, s) or "filebuf" in s]


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
