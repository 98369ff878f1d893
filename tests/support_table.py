"""The README's support table, written from the table in op_db.

python tests/support_table.py          # prints it
python tests/support_table.py --write  # puts it into README.md
"""

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
    for name, support in SUPPORT.items():
        types = ", ".join(str(dtype).removeprefix("torch.") for dtype in support.dtypes)
        lines.append(
            f"| `{name}` | {support.devices} | {support.ranks} | {types} | {support.layouts} |"
        )
    return "\n".join(lines) + "\n"


def with_table(text: str) -> str:
    head, rest = text.split(BEGIN)
    return head + BEGIN + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    if "--write" in sys.argv:
        README.write_text(with_table(README.read_text()))
    else:
        print(table(), end="")
