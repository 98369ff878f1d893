"""Compiles CUDA sources for the CPU (see cuda_on_host.h).

`build()` makes the library of all CUDA kernels, which TORCH_DNNL_LIBRARY puts in the place of the
CPU kernels; `build_program()` makes a program of one source. Both take a sanitizer, as in
sanitizers/compiler.py.

    PYTHONPATH=tests python tests/cuda_on_host/build.py [address|thread]     the library's path
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from paths import CUDA_ON_HOST, ROOT
from sanitizers.compiler import (
    INCLUDES,
    KERNELS,
    LIBRARIES,
    TORCH,
    Mistake,
    compile_all,
    compile_object,
    link,
    product_name,
    sanitize,
)

RUNTIME = CUDA_ON_HOST / "cuda_on_host.cpp"
# What shared_memory.ld needs: a section for each variable.
COMMON = ["-fdata-sections", f"-I{CUDA_ON_HOST}"]
LINK = [f"-Wl,-T,{CUDA_ON_HOST / 'shared_memory.ld'}"]


def _flags(sanitizer: str | None) -> list[str]:
    on_host = [*COMMON, "-O1", "-DTORCH_DNNL_CUDA_ON_HOST"]
    return [*on_host, *KERNELS, *sanitize(sanitizer, ("alignment",)), *INCLUDES]


def _runtime() -> Path:
    return compile_object(RUNTIME, [*COMMON, "-O2"])


def _kernels(sanitizer: str | None, mistake: Mistake | None) -> list[Path]:
    """The objects of all CUDA kernels."""
    flags = _flags(sanitizer)
    sources = sorted([*ROOT.glob("csrc/**/*.cu"), *ROOT.glob("csrc/**/cuda/**/*.cpp")])
    if mistake is not None:
        sources.remove(ROOT / "csrc" / mistake.source)
    objects = compile_all(sources, flags)
    if mistake is not None:
        # Of a header's functions, which other objects have too, the linker takes the first ones.
        # Else last: ThreadSanitizer names no source lines of code at the lowest addresses.
        is_shared = mistake.file != mistake.source and sanitizer != "thread"
        objects.insert(0 if is_shared else len(objects), mistake.compile(flags))
    return objects


def build(sanitizer: str | None = None, mistake: Mistake | None = None) -> Path:
    """The library of all CUDA kernels, registered for the CPU."""
    objects = [*_kernels(sanitizer, mistake), _runtime()]
    product = product_name("kernels", sanitizer, mistake).with_suffix(".so")
    return link(product, objects, [*LINK, "-shared", *sanitize(sanitizer), *TORCH])


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
    objects = [compile_object(source, flags), _runtime()]
    libraries = ["-Wl,--as-needed", *LIBRARIES, "-lc10"]
    if kernels:
        objects += _kernels(sanitizer, mistake)
        libraries = ["-Wl,--as-needed", *TORCH]
    libraries += [f"-Wl,-rpath,{path[2:]}" for path in LIBRARIES]
    product = product_name(source.stem, sanitizer, mistake, defines)
    return link(product, objects, [*LINK, *sanitize(sanitizer), *libraries])


if __name__ == "__main__":
    print(build(*sys.argv[1:]))
