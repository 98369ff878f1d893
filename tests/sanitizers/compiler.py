"""Compiles libraries and programs under a sanitizer, and runs them.

A sanitizer is None, "address" (AddressSanitizer and UndefinedBehaviorSanitizer) or "thread"
(ThreadSanitizer). A source is compiled again when it, a header that it includes or the command has
changed.
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
from paths import ROOT
from torch.utils import cpp_extension

COMPILER = os.environ.get("CXX", "g++")  # g++: its attributes and linker scripts are used
JOBS = 2  # compilers at once
BUILD = ROOT / "build" / "sanitizers"

COMMON = ["-std=c++20", "-g1", "-fPIC", "-fvisibility=hidden", "-fno-omit-frame-pointer"]
KERNELS = ["-ffp-contract=off", f"-I{ROOT / 'csrc'}", "-Wno-unknown-pragmas"]
INCLUDES = [f"-isystem{path}" for path in cpp_extension.include_paths()]
LIBRARIES = [f"-L{path}" for path in cpp_extension.library_paths()]
TORCH = [*LIBRARIES, "-ltorch", "-ltorch_cpu", "-lc10"]


# Of UndefinedBehaviorSanitizer what costs little to compile. It ends the process, as others do.
UNDEFINED = (
    *("signed-integer-overflow", "shift", "integer-divide-by-zero", "float-cast-overflow"),
    *("bounds", "bool", "enum"),
)


def sanitize(sanitizer: str | None, more: tuple[str, ...] = ()) -> list[str]:
    """Flags of the compiler; `more`: other undefined behaviour that is looked for."""
    if sanitizer != "address":
        return [f"-fsanitize={sanitizer}"] if sanitizer else []
    undefined = ",".join((*UNDEFINED, *more))
    return [f"-fsanitize=address,{undefined}", f"-fno-sanitize-recover={undefined}"]


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


def compile_object(source: Path, flags: list[str]) -> Path:
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


def compile_all(sources: Iterable[Path], flags: list[str]) -> list[Path]:
    with ThreadPoolExecutor(JOBS) as pool:
        return list(pool.map(lambda source: compile_object(source, flags), sources))


def link(product: Path, objects: list[Path], flags: list[str]) -> Path:
    product.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(
        "\n".join(f"{path} {path.stat().st_mtime_ns}" for path in objects).encode()
    ).hexdigest()
    stamp = product.with_suffix(".stamp")
    if not (product.exists() and stamp.exists() and stamp.read_text() == digest):
        mine = product.with_suffix(f".{os.getpid()}")
        _run([COMPILER, *objects, *flags, "-o", mine])
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

    @property
    def count(self) -> int:
        """How often `old` is there."""
        return (ROOT / "csrc" / self.file).read_text().count(self.old)

    def compile(self, flags: list[str]) -> Path:
        """The source's object with the mistake."""
        assert self.count == 1, f"{self.file}: {self.old!r} is there {self.count} times"
        folder = BUILD / "mistake"
        shutil.rmtree(folder, ignore_errors=True)
        # A folder that is searched before csrc.
        changed = folder / self.file
        changed.parent.mkdir(parents=True)
        changed.write_text((ROOT / "csrc" / self.file).read_text().replace(self.old, self.new))
        source = changed if self.file == self.source else ROOT / "csrc" / self.source
        return compile_object(source, [f"-I{folder}", *flags])


def product_name(
    stem: str, sanitizer: str | None, mistake: Mistake | None, defines: Iterable[str] = ()
) -> Path:
    return BUILD / "-".join(
        [stem, sanitizer or "plain", *defines, *(["mistake"] if mistake else [])]
    )


def run_under(sanitizer: str | None) -> tuple[list[str], dict[str, str]]:
    """What goes in front of a command, and the environment, to run Python or a program with it."""
    # Threads that wait would take the time of those that work, where there are more than cores.
    environment = {"OMP_WAIT_POLICY": "passive", **os.environ}
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
        environment["UBSAN_OPTIONS"] = "print_stacktrace=1"
        return [], environment
    # Of Python and torch, which are not instrumented, ThreadSanitizer would see half the locks.
    options = "ignore_noninstrumented_modules=1:halt_on_error=1:exitcode=66:die_after_fork=0"
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


def run_tests(sanitizer: str | None, *arguments: str | Path, **environment: str):
    """pytest, with what `environment` says of libraries."""
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    # Leaves the sanitizers' reports alone, which bypass sys.stderr.
    return run([*pytest, "--capture=sys", *arguments], sanitizer, **environment)
