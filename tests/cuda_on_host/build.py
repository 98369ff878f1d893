"""Compiles CUDA sources for the CPU (see cuda_on_host.h) and says how to run the result.

`build()` makes the library of all CUDA kernels, which TORCH_DNNL_LIBRARY puts in the place of the
CPU kernels; `build_program()` makes a program of one source. Both take a sanitizer, "address" or
"thread", and `run()` runs a command that loads what they made. A source is compiled again when it,
a header that it includes or the command has changed.

    python tests/cuda_on_host/build.py [address|thread]     prints the library's path
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils import cpp_extension

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
COMPILER = os.environ.get("CXX", "g++")  # g++: its attributes and linker scripts are used
JOBS = 2  # compilers at once
BUILD = ROOT / "build" / "cuda_on_host"

RUNTIME = HERE / "cuda_on_host.cpp"
# What shared_memory.ld needs: a section for each variable.
COMMON = ["-std=c++20", "-g", "-fPIC", "-fvisibility=hidden", "-fdata-sections", f"-I{HERE}"]
KERNELS = [
    *("-O1", "-DTORCH_DNNL_CUDA_ON_HOST", "-ffp-contract=off", f"-I{ROOT / 'csrc'}"),
    *("-fno-omit-frame-pointer", "-Wno-unknown-pragmas"),
]
LINK = [f"-Wl,-T,{HERE / 'shared_memory.ld'}"]


def _sanitize(sanitizer: str | None) -> list[str]:
    return [f"-fsanitize={sanitizer}"] if sanitizer else []


def _run(command: list[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(map(str, command))}\n{done.stdout}{done.stderr}")


def _is_newer(product: Path, depfile: Path) -> bool:
    """Whether `product` is newer than all that the compiler's `depfile` says it was made from."""
    if not (product.exists() and depfile.exists()):
        return False
    rule = depfile.read_text().replace("\\\n", " ").split(": ", 1)[1]
    needed = [Path(name.replace("\\ ", " ")) for name in re.split(r"(?<!\\)\s+", rule) if name]
    made = product.stat().st_mtime_ns
    return all(path.exists() and path.stat().st_mtime_ns < made for path in needed)


def _compile(source: Path, flags: list[str]) -> Path:
    """The object of a source; its name has a digest of the command."""
    command = [COMPILER, *COMMON, *flags, "-x", "c++", "-c", str(source)]
    digest = hashlib.sha256(shlex.join([*command, torch.__version__]).encode()).hexdigest()[:12]
    folder = BUILD / "objects"
    folder.mkdir(parents=True, exist_ok=True)
    product = folder / f"{source.stem}-{digest}.o"
    depfile = product.with_suffix(".d")
    if not _is_newer(product, depfile):
        # Several processes may build at once: each writes its own file, the last one stays.
        mine = product.with_suffix(f".{os.getpid()}.o")
        _run([*command, "-MMD", "-MF", depfile, "-o", mine])
        mine.replace(product)
    return product


def _link(product: Path, objects: list[Path], flags: list[str]) -> Path:
    product.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(
        "\n".join(f"{path} {path.stat().st_mtime_ns}" for path in objects).encode()
    ).hexdigest()
    stamp = product.with_suffix(".stamp")
    if not (product.exists() and stamp.exists() and stamp.read_text() == digest):
        mine = product.with_suffix(f".{os.getpid()}")
        _run([COMPILER, *objects, *LINK, *flags, "-o", mine])
        mine.replace(product)
        stamp.write_text(digest)
    return product


@dataclass(frozen=True)
class Mistake:
    """`old`, which is in `file` once, becomes `new`, in what `source` is compiled from."""

    source: str  # both within csrc
    file: str
    old: str
    new: str

    def plant(self, folder: Path) -> Path:
        """Writes the changed file into a folder that is searched before csrc; the source to
        compile."""
        text = (ROOT / "csrc" / self.file).read_text()
        assert text.count(self.old) == 1, (
            f"{self.file}: {self.old!r} is there {text.count(self.old)} times"
        )
        changed = folder / self.file
        changed.parent.mkdir(parents=True, exist_ok=True)
        text = text.replace(self.old, self.new)
        if not (changed.exists() and changed.read_text() == text):
            changed.write_text(text)
        return changed if self.file == self.source else ROOT / "csrc" / self.source


def _flags(sanitizer: str | None) -> list[str]:
    includes = [f"-isystem{path}" for path in cpp_extension.include_paths()]
    return [*KERNELS, *_sanitize(sanitizer), *includes]


def _kernels(sanitizer: str | None, mistake: Mistake | None) -> list[Path]:
    """The objects of all CUDA kernels."""
    flags = _flags(sanitizer)
    sources = sorted([*ROOT.glob("csrc/**/*.cu"), *ROOT.glob("csrc/**/cuda/**/*.cpp")])
    if mistake is not None:
        sources.remove(ROOT / "csrc" / mistake.source)
    with ThreadPoolExecutor(JOBS) as pool:
        objects = list(pool.map(lambda source: _compile(source, flags), sources))
    if mistake is not None:
        planted = BUILD / "mistake"
        shutil.rmtree(planted, ignore_errors=True)
        planted_object = _compile(mistake.plant(planted), [f"-I{planted}", *flags])
        # Of a header's functions, which other objects have too, the linker takes the first ones.
        # Else last: ThreadSanitizer names no source lines of code at the lowest addresses.
        is_shared = mistake.file != mistake.source and sanitizer != "thread"
        place = 0 if is_shared else len(objects)
        objects.insert(place, planted_object)
    return objects


def _product(
    stem: str, sanitizer: str | None, mistake: Mistake | None, defines: Iterable[str] = ()
) -> Path:
    return BUILD / "-".join(
        [stem, sanitizer or "plain", *defines, *(["mistake"] if mistake else [])]
    )


def build(sanitizer: str | None = None, mistake: Mistake | None = None) -> Path:
    """The library of all CUDA kernels, registered for the CPU."""
    objects = [*_kernels(sanitizer, mistake), _compile(RUNTIME, ["-O2"])]
    libraries = [f"-L{path}" for path in cpp_extension.library_paths()]
    libraries += ["-ltorch", "-ltorch_cpu", "-lc10"]
    product = _product("kernels", sanitizer, mistake).with_suffix(".so")
    return _link(product, objects, ["-shared", *_sanitize(sanitizer), *libraries])


def build_program(
    source: Path,
    sanitizer: str | None = None,
    defines: Iterable[str] = (),
    *,
    kernels: bool = False,
    mistake: Mistake | None = None,
) -> Path:
    """A program of one source, which may use c10 and, if it is linked with them, all kernels."""
    flags = [*_flags(sanitizer), *(f"-D{name}" for name in defines)]
    objects = [_compile(source, flags), _compile(RUNTIME, ["-O2"])]
    libraries = ["-Wl,--as-needed", "-lc10"]
    if kernels:
        objects += _kernels(sanitizer, mistake)
        libraries += ["-ltorch", "-ltorch_cpu"]
    for path in cpp_extension.library_paths():
        libraries += [f"-L{path}", f"-Wl,-rpath,{path}"]
    product = _product(source.stem, sanitizer, mistake, defines)
    return _link(product, objects, [*_sanitize(sanitizer), *libraries])


def run_under(sanitizer: str | None) -> tuple[list[str], dict[str, str]]:
    """What goes in front of a command, and the environment, to run Python or a program with it."""
    environment = dict(os.environ)
    if sanitizer is None:
        return [], environment
    short = {"address": "libasan.so", "thread": "libtsan.so"}[sanitizer]
    # libstdc++ too: otherwise AddressSanitizer does not find the __cxa_throw it stands before.
    preload = [
        subprocess.check_output([COMPILER, f"-print-file-name={name}"], text=True).strip()
        for name in (short, "libstdc++.so.6")
    ]
    environment["LD_PRELOAD"] = " ".join(preload)
    if sanitizer == "address":
        environment["ASAN_OPTIONS"] = "detect_leaks=0:protect_shadow_gap=0"
        return [], environment
    # Of Python and torch, which are not instrumented, ThreadSanitizer would see half the locks.
    options = "ignore_noninstrumented_modules=1:halt_on_error=1:exitcode=66"
    environment["TSAN_OPTIONS"] = options
    # Its shadow has fixed addresses, which a randomised address space may take.
    setarch = shutil.which("setarch")
    return [setarch, "-R"] if setarch else [], environment


def run(
    command: Iterable[str | Path], sanitizer: str | None, **environment: str
) -> subprocess.CompletedProcess[str]:
    prefix, base = run_under(sanitizer)
    return subprocess.run(
        [*prefix, *map(str, command)],
        env={**base, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def run_tests(library: Path, sanitizer: str | None, *arguments: str | Path):
    """pytest over a library that takes the place of the CPU kernels."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    # Leaves the sanitizers' reports alone, which bypass sys.stderr.
    return run([*pytest, "--capture=sys", *arguments], sanitizer, TORCH_DNNL_LIBRARY=str(library))


if __name__ == "__main__":
    print(build(*sys.argv[1:]))
