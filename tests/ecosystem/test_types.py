"""Type checkers take right calls of the package and report wrong ones: those of typed_calls.py."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

pytestmark = pytest.mark.ecosystem

CALLS = Path(__file__).with_name("typed_calls.py")
LINES = CALLS.read_text().splitlines()
WRONG = {number for number, line in enumerate(LINES, 1) if line.endswith("# wrong")}


def run(*command: str, cwd: Path) -> str:
    result = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=cwd,
        env=os.environ | {"MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1, result.stdout + result.stderr  # it found errors
    return result.stdout


def errors_of_mypy(folder: Path) -> dict[int, str]:
    """Line numbers and messages."""
    printed = run(
        "mypy", "--strict", "--cache-dir", str(ROOT / ".mypy_cache"), str(CALLS), cwd=folder
    )
    found = re.findall(rf"{CALLS.name}:(\d+): error: (.*)", printed)
    return {int(line): message for line, message in found}


def errors_of_pyright(folder: Path) -> dict[int, str]:
    """The same, by the build of pyright that a Python package has."""
    configuration = {
        "typeCheckingMode": "strict",
        "include": [str(CALLS)],
        "extraPaths": [str(ROOT)],
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(configuration))
    options = ["--outputjson", "--pythonpath", sys.executable, "--project", str(folder)]
    found = json.loads(run("basedpyright", *options, cwd=folder))["generalDiagnostics"]
    return {
        each["range"]["start"]["line"] + 1: each["message"]
        for each in found
        if each["severity"] == "error"
    }


@pytest.mark.parametrize("errors_of", [errors_of_mypy, errors_of_pyright])
def test_wrong_calls_alone_are_reported(errors_of, tmp_path):
    found = errors_of(tmp_path)
    assert {line: found[line] for line in found.keys() - WRONG} == {}
    assert {line: LINES[line - 1].strip() for line in WRONG - found.keys()} == {}
