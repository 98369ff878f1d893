"""Where the tests are, and the project."""

from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
CUDA_ON_HOST = TESTS / "cuda_on_host"


def path_of(name: str) -> Path:
    """The one file test_<name>.py, in whatever folder."""
    (path,) = TESTS.glob(f"*/test_{name}.py")
    return path
