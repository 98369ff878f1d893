"""SECURITY.md: each test that a promise names is there."""

import re

import pytest
from paths import ROOT

PROMISES = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "SECURITY.md").read_text())


@pytest.mark.parametrize("file, test", PROMISES)
def test_is_there(file, test):
    name = test or r"test_\w+"
    assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE)


def test_each_row_names_one():
    rows = re.findall(r"^\| (?!From)[^-].*\|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    assert len(rows) >= 12 and all("`tests/" in row for row in rows)
