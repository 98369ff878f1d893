"""The libraries as files: what the system's loader is asked for, and what it is not."""

import subprocess
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
