"""What a release says of itself in several places is the same in all of them."""

import re

from paths import ROOT


def only(pattern, file):
    (match,) = re.findall(pattern, (ROOT / file).read_text(), re.MULTILINE)
    return match


def test_version():
    version = only(r'^version = "(.+)"$', "pyproject.toml")
    assert only(r"^version: (.+)$", "CITATION.cff") == version
    assert f"\n## {version} " in (ROOT / "CHANGELOG.md").read_text()


def test_repository():
    homepage = only(r'^Homepage = "(.+)"$', "pyproject.toml")
    assert only(r"^repository-code: (.+)$", "CITATION.cff") == homepage


def test_torches():
    """What the workflow builds wheels for are the versions of which README.md speaks."""
    first, last = only(r"torch (2\.\d+) to (2\.\d+)", "README.md")
    listed = only(r"^        torch: \[(.+)\]$", ".github/workflows/wheels.yml")
    minors = [".".join(v.strip(' "').split(".")[:2]) for v in listed.split(",")]
    assert minors[0] == first and minors[-1] == last and minors == sorted(set(minors))
    for version in only(r"^WHEEL_TORCHES := (.+)$", "Makefile").split():
        assert ".".join(version.split(".")[:2]) in minors
    assert only(r'return "torch>=(.+)"', "setup.py") == first
