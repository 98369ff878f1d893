"""Whether a compiled library is whole, before it is loaded.

The system maps a library into memory by what the table of segments in it says. Where the file is
shorter, as after a download that broke off, it ends the process with the first access behind the
end, and no exception is raised.
"""

from __future__ import annotations

import struct
from pathlib import Path

_HEADER = struct.Struct("<4sBB26xQQ6x4H2x")  # ELF's, of 64 bits and little-endian
_SEGMENT = struct.Struct("<8xQ16xQ16x")


def check_whole(path: Path) -> None:
    """Raises an OSError, in the words of the system's loader, for a file that is no library of this
    machine's kind or of which a part is missing."""
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            raise OSError(f"{path}: file too short")
        magic, bits, order, programs_at, sections_at, *counts = _HEADER.unpack(header)
        program_size, programs, section_size, sections = counts
        if (magic, bits, order, program_size) != (b"\x7fELF", 2, 1, _SEGMENT.size):
            raise OSError(f"{path}: invalid ELF header")
        file.seek(programs_at)
        table = file.read(program_size * programs)
    needed = [programs_at + program_size * programs, sections_at + section_size * sections]
    if len(table) == program_size * programs:
        needed += [offset + size for offset, size in _SEGMENT.iter_unpack(table)]
    if path.stat().st_size < max(needed):
        raise OSError(f"{path}: file too short, {max(needed)} bytes are needed")
