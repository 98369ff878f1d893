"""tests/suites: how cases are counted, what counts as close, and that the page has the table."""

import re
from types import SimpleNamespace

import pytest
import torch
from paths import ROOT
from suites import (
    SUITES,
    Case,
    KnownError,
    OutsideError,
    Row,
    assert_close,
    missing,
    rows_of,
    run,
)
from suites.__main__ import BEGIN, END, HEAD, differences, table, write


def failing(error):
    def check():
        raise error

    return check


def test_cases_are_counted():
    checks = {
        "right": lambda: None,
        "known": failing(KnownError("it rounds twice")),
        "wrong": failing(AssertionError("3 off")),
        "crash": failing(RuntimeError("no kernel")),
        "absent": failing(OutsideError("type int4")),
    }
    cases = [Case("values", name, check) for name, check in checks.items()]
    parts = {"TITLE": "A suite", "source": lambda: "it 1.0", "cases": lambda: iter(cases)}
    suite = SimpleNamespace(__name__="suites.jax_resize", **parts)
    (row,) = run(suite)
    assert (row.passed, row.total) == (1, 4)
    assert row.unexplained == [
        "values: wrong: AssertionError: 3 off",
        "values: crash: RuntimeError: no kernel",
    ]
    words = "1: it rounds twice; 2: without a known reason; beside these: type int4 (1)"
    assert differences(row) == words
    assert table([row]) == f"| `jax_resize` | A suite: it 1.0 | values | 1 / 4 | {words} |\n"
    assert run(suite, only="right")[0].total == 1


def test_rows_take_the_place_of_the_suites(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}{END}after\n")
    monkeypatch.setattr("suites.__main__.PAGE", page)
    write([Row("opinfo", "a", "of"), Row("jax_resize", "b", "of")])
    write([Row("jax_resize", "c", "of"), Row("onednn", "d", "of")])
    text = page.read_text()
    names = [line.split(" | ")[2] for line in text.splitlines() if line.startswith("| `")]
    assert names == ["a", "d", "c"]
    assert text.startswith(f"before\n{BEGIN}{HEAD}") and text.endswith(f"{END}after\n")


def test_what_is_not_installed_is_said(monkeypatch):
    monkeypatch.setitem(SUITES, "jax_resize", ("torch", "torch-dnnl-of-another-name"))
    assert missing("jax_resize") == ["torch-dnnl-of-another-name"]
    (row,) = rows_of("jax_resize")
    assert row.source == "not installed: torch-dnnl-of-another-name" and not row.unexplained


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_close_is_one_rounding(dtype):
    exact = torch.randn(1000, dtype=torch.float64)
    assert_close(exact.to(dtype), exact)
    further = exact.clone().to(dtype)
    further[7] *= 1 + (1e-11 if dtype == torch.float64 else 2 * torch.finfo(dtype).eps + 1e-5)
    further[7] += torch.sign(further[7]) * (3e-11 if dtype == torch.float64 else 3e-5)
    with pytest.raises(AssertionError, match="1 of 1000 elements differ"):
        assert_close(further, exact)


def test_close_integers():
    exact = torch.tensor([0.4, 0.5, 1.5, 254.6, 300, -3], dtype=torch.float64)
    assert_close(torch.tensor([0, 0, 2, 255, 255, 0], dtype=torch.uint8), exact)
    assert_close(torch.tensor([0, 1, 1, 255, 255, 0], dtype=torch.uint8), exact)
    with pytest.raises(AssertionError, match=r"the worst is 1, not 0\.4"):
        assert_close(torch.tensor([1, 0, 2, 255, 255, 0], dtype=torch.uint8), exact)
    with pytest.raises(AssertionError, match="sizes"):
        assert_close(torch.zeros(5, dtype=torch.uint8), exact)


def test_nan_and_infinities_have_their_places():
    special = torch.tensor([1.0, torch.nan, torch.inf, -torch.inf])
    assert_close(special, special.double())
    for i in range(1, 4):
        other = special.clone()
        other[i] = 1.0
        with pytest.raises(AssertionError):
            assert_close(other, special.double())


def test_the_page_has_the_table():
    """Rows of suites that exist, and no difference that nobody can explain."""
    page = (ROOT / "docs" / "reliability.md").read_text()
    rows = page.partition(BEGIN)[2].partition(END)[0]
    found = re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)
    assert {"opinfo", "onnx_nodes"} <= set(found) <= set(SUITES), "run: make suites ARGS=--write"
    assert "without a known reason" not in rows
