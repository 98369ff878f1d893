"""The README's support table, written from the table in op_db.

python tests/support_table.py          # prints it
python tests/support_table.py --write  # puts it into README.md
"""

import re
import sys

from op_db import SUPPORT
from paths import ROOT

README = ROOT / "README.md"
BEGIN, END = "<!-- support table: begin -->\n", "<!-- support table: end -->"


def table() -> str:
    lines = [
        "| Function | Devices | Spatial dimensions | Types | Memory layouts |",
        "|---|---|---|---|---|",
    ]
    rows: dict[tuple[str, ...], list[str]] = {}  # functions that differ in their dimensions alone
    for name, support in SUPPORT.items():
        types = ", ".join(str(dtype).removeprefix("torch.") for dtype in support.dtypes)
        family = re.sub(r"\dd$", "", name)
        rows.setdefault((family, support.devices, types, support.layouts), []).append(name)
    for (_, devices, types, layouts), names in rows.items():
        functions = ", ".join(f"`{name}`" for name in names)
        ranks = ", ".join(SUPPORT[name].ranks for name in names)
        lines.append(f"| {functions} | {devices} | {ranks} | {types} | {layouts} |")
    return "\n".join(lines) + "\n"


def with_table(text: str) -> str:
    head, rest = text.split(BEGIN)
    return head + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    if "--write" in sys.argv:
        README.write_text(with_table(README.read_text()))
    else:
        print(table(), end="")
