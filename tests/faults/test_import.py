"""What import says where the package does not fit its torch, or a library is damaged: an
ImportError in one sentence."""

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from failing import HERE

import torch_dnnl

PACKAGE = Path(torch_dnnl.__file__).parent
CPU = f"_cpu_{torch_dnnl.build_info()['cpu_capability'].lower()}.so"
(PYTHON,) = (p.name for p in PACKAGE.glob("_python.*.so"))


def edit(change):
    """Changes the bytes of a library."""

    def damage(path):
        content = bytearray(path.read_bytes())
        path.unlink()  # it is a link
        path.write_bytes(change(content))

    return damage


def flipped(at):
    def change(content):
        content[at] ^= 1
        return content

    return edit(change)


def says(pattern, replacement):
    """Changes what the build wrote down of itself."""

    def damage(path):
        text, count = re.subn(pattern, replacement, path.read_text())
        assert count == 1
        path.unlink()
        path.write_text(text)

    return damage


TORCH = r"torch_version = .*"
LIBRARIES = ["_C.so", CPU]
DAMAGES = {
    "nothing": ("_C.so", lambda path: None),
    "older torch": ("_build.py", says(TORCH, "torch_version = '1.13.1'")),
    "newer torch": ("_build.py", says(TORCH, "torch_version = '2.99.0+cpu'")),
    "no version of torch": ("_build.py", says(TORCH, "torch_version = ''")),
    "not built": ("_build.py", lambda path: path.unlink()),
    **{f"missing {name}": (name, lambda path: path.unlink()) for name in LIBRARIES},
    "empty": ("_C.so", edit(lambda content: b"")),
    "a header alone": ("_C.so", edit(lambda content: content[:64])),
    **{
        f"half of {name}": (name, edit(lambda content: content[: len(content) // 2]))
        for name in [*LIBRARIES, PYTHON]
    },
    "without its end": ("_C.so", edit(lambda content: content[:-4096])),
    "text": ("_C.so", edit(lambda content: b"version https://example.org\n" * 20)),
    "another format": ("_C.so", flipped(1)),
    "of 32 bits": ("_C.so", flipped(4)),
    "of another byte order": ("_C.so", flipped(5)),
    "of another machine": ("_C.so", flipped(18)),
    "no library for Python": (PYTHON, lambda path: path.unlink()),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """By the damage, which is done to a copy of the package: of links, but for what is damaged."""
    folders = {}
    for number, (name, (file, damage)) in enumerate(DAMAGES.items()):
        folders[name] = tmp_path_factory.mktemp(f"damaged{number}")
        copy = folders[name] / "torch_dnnl"
        shutil.copytree(PACKAGE, copy, copy_function=os.symlink)
        damage(copy / file)
    done = subprocess.run(
        [sys.executable, HERE / "import_each.py", *folders.values()],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path_factory.mktemp("elsewhere"),
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(folders, json.loads(done.stdout)))


@pytest.mark.parametrize("name", sorted(set(DAMAGES) - {"nothing"}))
def test_damaged(outcomes, name):
    """The library for Python makes calls quick; without it there are the others."""
    assert outcomes["nothing"] == "imported 6.0"
    said = outcomes[name]
    file = DAMAGES[name][0]
    if file == PYTHON:
        assert said == "imported 6.0"
    elif name == "not built":
        assert said.startswith("ImportError: torch_dnnl is not built: run `make`")
    else:
        assert said.startswith("ImportError: torch_dnnl ") and "\n" not in said, said
        assert "does not load into torch" in said and "build it again" in said
        assert file == "_build.py" or file in said, said


def test_no_permission(tmp_path):
    """To read a library."""
    copy = tmp_path / "torch_dnnl"
    shutil.copytree(PACKAGE, copy, copy_function=os.symlink)
    edit(lambda content: content)(copy / "_C.so")
    (copy / "_C.so").chmod(0)

    def give_up():
        """A superuser's right to read everything, which capabilities(7) call these two."""
        for capability in (1, 2):
            ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP

    done = subprocess.run(
        [sys.executable, HERE / "import_each.py", tmp_path],
        capture_output=True, text=True, timeout=120, cwd=tmp_path.parent, preexec_fn=give_up,
    )  # fmt: skip
    (said,) = json.loads(done.stdout)
    assert said.startswith("ImportError: torch_dnnl ") and "Permission denied" in said, said
