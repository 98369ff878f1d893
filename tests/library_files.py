"""What is asked of a library as a file, of those in the tree as of those in a wheel."""

import re
import subprocess


def readelf(*arguments):
    return subprocess.check_output(["readelf", "-W", *arguments], text=True)


def check_memory_and_folders(path):
    """No segment can be written and executed, nor the stack executed, the table of relocations is
    closed after loading; and no folder of its own is searched for libraries."""
    segments = [line.split() for line in readelf("--segments", path).splitlines() if "0x" in line]
    flags = {line[0]: "".join(line[6:-1]) for line in segments if line[0].isupper()}
    loaded = ["".join(line[6:-1]) for line in segments if line[0] == "LOAD"]
    assert any("E" in f for f in loaded) and not any("W" in f and "E" in f for f in loaded)
    assert flags["GNU_STACK"] == "RW" and "GNU_RELRO" in flags
    dynamic = readelf("--dynamic", path)
    assert "TEXTREL" not in dynamic and "RPATH" not in dynamic and "RUNPATH" not in dynamic
    needed = [line.split("[")[1].rstrip("]") for line in dynamic.splitlines() if "(NEEDED)" in line]
    assert needed and all("/" not in name for name in needed)


def check_symbols(path):
    """It asks the system for no file, connection or process; torch's functions have their own."""
    symbols = [line.split() for line in readelf("--dyn-syms", path).splitlines()]
    asked = {s[7].split("@")[0] for s in symbols if len(s) > 7 and s[6] == "UND"}
    opens = r"f?open(64|at)?|creat|socket|connect|bind|v?fork|exec.*|system|popen|posix_spawn.*"
    assert asked and not [s for s in asked if re.fullmatch(opens, s) or "filebuf" in s]
