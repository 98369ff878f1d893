"""Builds the libraries of torch_dnnl with the torch that is installed.

`_C` holds the schemas and everything above the kernels. The CPU kernels are compiled once per
instruction set (`_cpu_default`, `_cpu_avx2`, `_cpu_avx512`). The CUDA kernels are in `_cuda`, those
of reorder and of quantized convolution in `_cuda_exact`. All are plain shared libraries, loaded
with torch.ops.load_library, not Python modules. What was built, and with which torch, is recorded
in `torch_dnnl/_build.py`.

Environment:
  TORCH_DNNL_CUDA=0|1   never, or by all means, build the CUDA kernels (default: if torch has CUDA
                        and there is an nvcc for it)
  TORCH_DNNL_CPU        instruction sets, such as default,avx2, or `native` for the one that this
                        machine uses, or `none`, to see what else compiles (default: all)
  TORCH_DNNL_PYTHONS    other Pythons, such as python3.10,python3.12, that get a `_python` of their
                        own, without which calls go through torch.ops (default: none)
  TORCH_DNNL_LABEL=1    name torch and the device in the version, as in 0.1.0+torch2.13.cpu: wheels
                        for different torches have different names then
  TORCH_CUDA_ARCH_LIST  GPU architectures (default: see DEFAULT_ARCHS)
  MAX_JOBS              compilers at once (default: the number of cores)
"""

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NoReturn

from setuptools import Extension, setup
from setuptools.command.egg_info import egg_info

ROOT = Path(__file__).resolve().parent

# sm_80 code also runs on sm_86 and sm_89, and GPUs newer than Hopper compile its PTX when they load
# it; sm_90a is Hopper with its own matrix instructions, which no other GPU has.
DEFAULT_ARCHS = "8.0+PTX;9.0a"

# ATen's own flags, so that at::vec::Vectorized has the width that ATen's kernels use.
CPU_FLAGS = {
    "default": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": [
        *("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"),
        *("-mavx2", "-mfma", "-mf16c"),
    ],
}


def fail(message: str) -> NoReturn:
    sys.exit(f"torch_dnnl: {message}")


try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError as error:
    fail(f"setuptools 70.1 or newer is needed: `pip install -U setuptools` ({error})")
try:
    import torch
except ImportError as error:
    fail(
        "building needs the torch that it will run with: install torch 2.11 or newer, "
        f"then build with `pip install --no-build-isolation .` ({error})"
    )

from torch.utils.cpp_extension import (  # noqa: E402
    CUDA_HOME,
    BuildExtension,
    CppExtension,
    CUDAExtension,
)


def check_environment() -> None:
    """Stops with one sentence where the build would otherwise stop with a traceback."""
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < (2, 11):
        fail(f"torch 2.11 or newer is needed, torch {torch.__version__} is installed")
    if version > (2, 15):
        print(f"torch_dnnl: torch {torch.__version__} is newer than 2.15, the last one tried")

    # An environment that is used without being activated does not have its ninja on PATH.
    os.environ["PATH"] = sysconfig.get_path("scripts") + os.pathsep + os.environ.get("PATH", "")
    if shutil.which("ninja") is None:
        fail("ninja is not found: install it with `pip install ninja`")
    compiler = shlex.split(os.environ.setdefault("CXX", "c++"))[0]
    if shutil.which(compiler) is None:
        fail(f"the C++ compiler `{compiler}` is not found: install g++, or set CXX")
    os.environ.setdefault("MAX_JOBS", str(os.cpu_count()))


def why_no_cuda() -> str | None:
    """What keeps `_cuda` from being built; None if nothing does."""
    if torch.version.cuda is None:
        return "this torch is built without CUDA"
    nvcc = Path(CUDA_HOME or "", "bin", "nvcc")
    if not nvcc.exists():
        return "nvcc is not found (put it on PATH or set CUDA_HOME)"
    said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=False).stdout
    release = re.search(r"release (\d+)\.\d+", said)
    if release is None or release[1] != torch.version.cuda.split(".")[0]:
        found = release[0] if release else "of an unknown release"
        return f"nvcc is {found} and torch is built with CUDA {torch.version.cuda}"
    return None


def choose_cuda() -> tuple[bool, str]:
    """Whether the CUDA kernels are built, and the reason in words."""
    wish = os.environ.get("TORCH_DNNL_CUDA", "")
    if wish not in ("", "0", "1"):
        fail(f"TORCH_DNNL_CUDA is 0, 1 or unset, not {wish!r}")
    if wish == "0":
        return False, "without CUDA: TORCH_DNNL_CUDA=0"
    obstacle = why_no_cuda()
    if obstacle is None:
        # Set always: without a GPU in sight torch has no default of its own.
        archs = os.environ.setdefault("TORCH_CUDA_ARCH_LIST", DEFAULT_ARCHS)
        return True, f"with CUDA {torch.version.cuda} for {archs}"
    if wish == "1":
        fail(f"TORCH_DNNL_CUDA=1 cannot be done: {obstacle}")
    return False, f"without CUDA: {obstacle}"


def choose_cpu() -> list[str]:
    """The instruction sets to compile the CPU kernels for."""
    wish = os.environ.get("TORCH_DNNL_CPU") or ",".join(CPU_FLAGS)
    if wish == "none":
        return []
    if platform.machine() not in ("x86_64", "AMD64"):
        return ["default"]
    if wish == "native":
        # ATen's words for it, such as AVX512_VNNI, begin with those of the libraries.
        used = torch.backends.cpu.get_cpu_capability().lower()
        return [name for name in CPU_FLAGS if used.startswith(name)] or ["default"]
    names = wish.split(",")
    if unknown := set(names) - set(CPU_FLAGS):
        fail(
            f"TORCH_DNNL_CPU is native, none or some of {', '.join(CPU_FLAGS)}, "
            f"not {', '.join(sorted(unknown))}"
        )
    return [name for name in CPU_FLAGS if name in names]


def pythons() -> dict[str, tuple[str, str]]:
    """The libraries `_python` for each Python: the end of its file's name, its folder of headers.

    They differ by the headers alone: none is linked to Python, and torch's part of Python has the
    same symbols in all of them.
    """
    found = {"_python": (sysconfig.get_config_var("EXT_SUFFIX"), sysconfig.get_path("include"))}
    question = "import sysconfig as s; print(s.get_config_var('EXT_SUFFIX'), s.get_path('include'))"
    for python in filter(None, os.environ.get("TORCH_DNNL_PYTHONS", "").split(",")):
        try:
            answer = subprocess.check_output([python, "-c", question], text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            fail(f"TORCH_DNNL_PYTHONS names {python}, which does not run ({error})")
        suffix, headers = answer.strip().split(" ", 1)
        if not Path(headers, "Python.h").exists():
            fail(f"TORCH_DNNL_PYTHONS names {python}, whose headers are not in {headers}")
        if suffix != found["_python"][0]:
            found[f"_python_{suffix.split('.')[1]}"] = suffix, headers
    return found


def sources(suffix: str, device: str | None = None) -> list[str]:
    """The files of a library: those in the folders of a device, or of Python, or in neither's."""
    devices = {"cpu", "cuda", "python"}
    wanted = {device} if device else set()
    paths = [
        path.relative_to(ROOT)
        for path in (ROOT / "csrc").rglob(f"*{suffix}")
        if devices & set(path.parts) == wanted
    ]
    # The longest first: a core that is left with one of them at the end has the others wait.
    return sorted(map(str, paths), key=lambda path: (-os.path.getsize(ROOT / path), path))


def library(
    name: str, sources: list[str], flags: list[str], headers: tuple[str, ...] = ()
) -> Extension:
    """One library of C++ or CUDA sources; `headers`: folders beside ours and torch's."""
    cuda = name.startswith("_cuda")
    # Contraction is off so that a formula rounds alike in every library; where a kernel wants FMA
    # it says so.
    host = ["-g0", "-fvisibility=hidden", "-ffp-contract=off"]
    # Messages of asserts name files, which no user has at the place where they were compiled.
    for folder, prefix in ((ROOT, "torch_dnnl"), (Path(torch.__file__).parent, "torch")):
        host.append(f"-ffile-prefix-map={folder}={prefix}")
    # These warnings come from ATen's headers and from GCC's intrinsics, in hundreds.
    quiet = ["-Wno-unknown-pragmas", "-Wno-maybe-uninitialized"]
    quiet += ["-Wno-uninitialized", "-Wno-sign-compare"]
    nvcc = [f"-Xcompiler={','.join(host)}"]
    if name == "_cuda_exact":
        nvcc.append("-fmad=false")
    common = ["-std=c++20", "-DNDEBUG", *flags]
    openmp = [] if cuda else ["-fopenmp"]
    extension = (CUDAExtension if cuda else CppExtension)(
        f"torch_dnnl.{name}",
        sources,
        include_dirs=[str(ROOT / "csrc"), *headers],
        depends=sorted(map(str, ROOT.glob("csrc/**/*.h"))),
        extra_compile_args={"cxx": common + host + quiet + openmp, "nvcc": common + nvcc},
    )
    # The OpenMP that at::parallel_for needs and the CUDA runtime are those that torch has loaded: a
    # second copy would be a second thread pool. Only _python calls Python, so that the operators
    # also load into a C++ process.
    left_out = ["cudart"] if name in PYTHONS else ["cudart", "torch_python"]
    extension.libraries = [needed for needed in extension.libraries if needed not in left_out]
    return extension


def still_current(record: Path) -> list[str]:
    """The CPU libraries that an earlier build for this torch left, no older than any source."""
    before: dict[str, object] = {}
    if record.exists():
        exec(record.read_text(), before)
    if before.get("torch_version") != str(torch.__version__):
        return []
    newest = max(path.stat().st_mtime for path in (ROOT / "csrc").rglob("*.*"))
    built = {name: record.with_name(f"_cpu_{name}.so") for name in CPU_FLAGS}
    return [
        path.stem
        for path in built.values()
        if path.stem in before["libraries"] and path.exists() and path.stat().st_mtime >= newest
    ]


def version_label() -> str:
    """What follows the version in the name of a wheel for one torch and one kind of device."""
    if os.environ.get("TORCH_DNNL_LABEL", "") != "1":
        return ""
    device = f"cu{torch.version.cuda.replace('.', '')}" if cuda else "cpu"
    return f"+torch{'.'.join(torch.__version__.split('.')[:2])}.{device}"


def torch_requirement() -> str:
    """The torch that the libraries load into; of sources, any that they can be built with."""
    if "sdist" in sys.argv:
        return "torch>=2.11"
    version = torch.__version__.split("+")[0]
    if not re.fullmatch(r"[\d.]+", version):
        return f"torch=={version}"  # a range has no pre-releases of its first version
    major, minor = map(int, version.split(".")[:2])
    return f"torch>={major}.{minor},<{major}.{minor + 1}"


def description() -> str:
    """README.md, whose links to files lead to the repository, as a package index has no files."""

    repository = re.search(r'^Homepage = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.M)[1]

    def absolute(match: re.Match[str]) -> str:
        kind = "raw" if match[1].startswith("!") else "blob"
        return f"{match[1]}({repository}/{kind}/main/{match[2]})"

    text = (ROOT / "README.md").read_text()
    return re.sub(r"(!?\[[^]]*\])\(((?!\w+:|#)[^)]+)\)", absolute, text)


PYTHONS = pythons()
cpu_names = choose_cpu()
cuda, cuda_reason = choose_cuda()

PRECOMPILED = {part: ROOT / "csrc" / "core" / part / "precompiled.h" for part in ("torch", "cpu")}

# Tables of kernels and registrations contain no vectors, so one object serves all CPU libraries.
CPU_TABLES = [path for path in sources(".cpp", "cpu") if path.endswith("_cpu.cpp")]
CPU_KERNELS = [path for path in sources(".cpp", "cpu") if path not in CPU_TABLES]

libraries = [library("_C", sources(".cpp"), ["-O2"])]
for name, (_, headers) in PYTHONS.items():
    libraries.append(library(name, sources(".cpp", "python"), ["-O2"], (headers,)))
for name in cpu_names:
    capability = [f"-DCPU_CAPABILITY={name.upper()}", f"-DCPU_CAPABILITY_{name.upper()}"]
    libraries.append(library(f"_cpu_{name}", CPU_KERNELS, ["-O3", *capability, *CPU_FLAGS[name]]))
if cuda:
    # The kernels of Reorder and of quantized convolution agree with the CPU's to the bit, so that
    # they must not fuse a * b + c. The libraries do not link to each other: what launches kernels
    # is in both.
    cuda_sources = sources(".cu", "cuda") + sources(".cpp", "cuda")
    exact = [path for path in cuda_sources if {"reorder", "quantized"} & set(Path(path).parts)]
    launching = [path for path in cuda_sources if "/core/" in path]
    others = [path for path in cuda_sources if path not in exact]
    libraries.append(library("_cuda", others, ["-O3"]))
    libraries.append(library("_cuda_exact", exact + launching, ["-O3"]))


class BuildLibraries(BuildExtension):
    """torch's BuildExtension, one object directory per library, and a record of the build."""

    def run(self) -> None:
        check_environment()
        names = ", ".join(extension.name.split(".")[1] for extension in libraries)
        print(f"torch_dnnl: building {names} for torch {torch.__version__}, {cuda_reason}")
        sys.stdout.flush()
        try:
            super().run()
        except RuntimeError as error:
            fail(f"{error}; the compiler's own message is above")
        self.write_facts()

    def build_extension(self, ext: Extension) -> None:
        # The CPU libraries have the same sources. The directory also outlives temporary ones that
        # pip may choose, and is not shared with another torch, so objects can be reused.
        name = ext.name.split(".")[1]
        self.build_temp = str(ROOT / "build" / f"torch-{torch.__version__}" / name)
        if name.startswith("_cpu_"):
            self.add_tables(ext)
            self.precompile(ext, PRECOMPILED["cpu"], Path(self.build_temp))
        elif name == "_C":
            self.precompile(ext, PRECOMPILED["torch"], Path(self.build_temp))
        super().build_extension(ext)

    def precompile(self, ext: Extension, source: Path, folder: Path) -> None:
        """Compiles a header for a library's flags, unless that was done, and has it included."""
        compiler = [*shlex.split(os.environ["CXX"]), *self.compiler.compiler_so[1:]]
        version = subprocess.run([compiler[0], "--version"], capture_output=True, text=True)
        if "Free Software Foundation" not in version.stdout:
            return  # such a header is GCC's own
        header = folder / source.name
        header.parent.mkdir(parents=True, exist_ok=True)
        flags = ext.extra_compile_args["cxx"]
        folders = [f"-I{folder}" for folder in ext.include_dirs]
        output = header.with_name(f"{header.name}.gch")
        command = [*compiler, *folders, *flags, "-x", "c++-header", str(source), "-o", output]
        # What it depends on: the flags, the compiler and the header; torch has a folder of its own.
        text = "\n".join([*map(str, command), version.stdout, source.read_text()])
        record = header.with_suffix(".txt")
        if not (output.exists() and record.exists() and record.read_text() == text):
            record.unlink(missing_ok=True)
            shutil.copy(source, header)
            if subprocess.run(command, check=False).returncode != 0:
                fail(f"{source} cannot be compiled; the compiler's message is above")
            record.write_text(text)
        flags += ["-Winvalid-pch", "-include", str(header)]

    def add_tables(self, ext: Extension) -> None:
        """Compiles CPU_TABLES, unless the library before has, and links the objects."""
        tables = library("_cpu", CPU_TABLES, ["-O2"])
        folder = Path(self.build_temp).with_name("_cpu")
        self.precompile(tables, PRECOMPILED["torch"], folder)
        ext.extra_objects = self.compiler.compile(
            tables.sources,
            output_dir=str(folder),
            include_dirs=tables.include_dirs,
            extra_postargs=tables.extra_compile_args,
            depends=tables.depends,
        )

    def get_ext_filename(self, ext_name: str) -> str:
        *package, name = ext_name.split(".")
        # For one version of Python, which the file's name has; or for none.
        file = f"_python{PYTHONS[name][0]}" if name in PYTHONS else f"{name}.so"
        return os.path.join(*package, file)

    def write_facts(self) -> None:
        """Writes _build.py beside the libraries, be that in the source tree or in a wheel."""
        path = Path(self.get_ext_fullpath(libraries[0].name)).with_name("_build.py")
        archs = re.split("[; ]+", os.environ["TORCH_CUDA_ARCH_LIST"]) if cuda else None
        names = [extension.name.split(".")[1] for extension in libraries]
        facts = {
            "version": self.distribution.get_version(),
            "torch_version": str(torch.__version__),
            "cuda_version": torch.version.cuda if cuda else None,
            "cuda_archs": archs,
            "libraries": names + [name for name in still_current(path) if name not in names],
        }
        lines = ['"""Written by setup.py: what was built, and with what."""\n']
        lines += [f"{key} = {value!r}" for key, value in facts.items()]
        path.write_text("\n".join(lines) + "\n")


class Metadata(egg_info):
    """The version with its label, which setup.cfg, as sdist writes it, would take away."""

    def finalize_options(self) -> None:
        if label := version_label():
            self.tag_build = label
            if self.egg_base is None:  # a build in place has its own, beside the package
                self.egg_base = str(ROOT / "build")
                os.makedirs(self.egg_base, exist_ok=True)
        super().finalize_options()


class Wheel(bdist_wheel):
    """A wheel for any Python: but for `_python`, of which there may be several, none is needed."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(
    license="Apache-2.0",
    install_requires=[torch_requirement(), "numpy"],
    long_description=description(),
    long_description_content_type="text/markdown",
    ext_modules=libraries,
    cmdclass={"build_ext": BuildLibraries, "egg_info": Metadata, "bdist_wheel": Wheel},
)
