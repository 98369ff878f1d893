"""Other people's suites, those that need torch and ONNX alone; `make suites` runs all of them."""

import pytest
from suites import opinfo, run

pytestmark = pytest.mark.ecosystem


def test_onnx_nodes():
    from suites import onnx_nodes  # needs onnx, which `make test`, as it collects this, has not

    rows = {row.name: row for row in run(onnx_nodes)}
    assert set(rows) == {*onnx_nodes.OPERATORS, "torch's convolutions"}
    assert [row.unexplained for row in rows.values() if row.unexplained] == []
    assert all(row.passed == row.total for row in rows.values())
    assert rows["Resize"].total >= 30 and rows["torch's convolutions"].total >= 20


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["conv2d", "conv_transpose1d", "interpolate.bicubic"])
def test_samples_of_torch(name, monkeypatch):
    """tests/whole_models/test_accelerate.py has float32 and float64 of all of them."""
    chosen = [op for op in opinfo.OPERATORS if op.full_name == f"nn.functional.{name}"]
    monkeypatch.setattr(opinfo, "OPERATORS", chosen)
    rows = run(opinfo)
    assert len(rows) == (6 if name == "conv2d" else 4)
    assert [row.unexplained for row in rows if row.unexplained] == []
    assert all(row.total >= 10 for row in rows)
