"""CONTRIBUTING.md's rules for csrc: sizes of files, folders and classes; who includes whom."""

import re
from collections import Counter
from fnmatch import fnmatch

from paths import ROOT

CSRC = ROOT / "csrc"
FILES = {
    str(path.relative_to(CSRC)): path.read_text()
    for path in sorted(CSRC.rglob("*"))
    if path.suffix in (".h", ".cpp", ".cu", ".cuh")
}

# The files of devices that register operators, or make tensors: they see tensors, kernels do not.
THIN = ("*_cpu.cpp", "*_cuda.cpp", "*/on_device*", "*/cudnn.cpp", "resample/cuda/resample.cu")
REGISTRATIONS = ("reorder/cuda/fake_reorder.cu",)
TENSOR_HEADERS = ("torch/*", "ATen/ATen.h", "ATen/core/Tensor.h", "ATen/ops/*", "ATen/Functions.h")


def includes(file):
    return re.findall(r'^#include [<"]([^>"]+)[>"]', FILES[file], re.MULTILINE)


def reached(file, seen=None):
    """What a file includes, itself or by headers of this project."""
    seen = set() if seen is None else seen
    for header in includes(file):
        if header not in seen:
            seen.add(header)
            if header in FILES:
                reached(header, seen)
    return seen


def without_comments(text):
    """Comments, strings and characters left out; the lines stay."""
    tokens = r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])'"
    return re.sub(tokens, lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL)


def classes(text):
    """Name and number of lines of each class and struct."""
    text = without_comments(text)
    head = r"\b(?:class|struct)\s+(\w+)(?:<[^;{}()]*>)?(?:\s+final)?(?:\s*:[^;{}()]*)?\s*\{"
    for match in re.finditer(head, text):
        depth, end = 1, match.end()
        while depth > 0:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        yield match[1], text.count("\n", match.start(), end) + 1


def test_classes_are_counted():
    text = "template <class T>\nstruct A : B<T> {\n  int x; // }\n  struct C { int y; };\n};\n"
    assert list(classes(text)) == [("A", 4), ("C", 1)]


def test_files_are_short():
    lines = {file: text.count("\n") for file, text in FILES.items()}
    for folder in ("torch_dnnl", "tests", "benchmarks", "examples", "tools"):
        for path in (ROOT / folder).rglob("*.py"):
            lines[str(path.relative_to(ROOT))] = path.read_text().count("\n")
    assert {file: n for file, n in lines.items() if n > 500} == {}


def test_readme_is_short():
    assert (ROOT / "README.md").read_text().count("\n") <= 90


def test_folders_are_small():
    folders = Counter(path.parent for path in CSRC.rglob("*") if path.is_file())
    crowded = {str(f.relative_to(CSRC)): n for f, n in folders.items() if n > 14}
    assert crowded == {}


def test_classes_are_short():
    long = {
        f"{file}: {name}": lines
        for file, text in FILES.items()
        for name, lines in classes(text)
        if lines > 150
    }
    assert long == {}


def test_kernels_do_not_include_each_other():
    """The folder of a kernel includes its own files and those of shared/, on either device, and the
    implicit GEMM of igemm/, which is made of shared/."""
    wrong = []
    for file in FILES:
        here = re.match(r"conv/(cpu|cuda)/(\w+)/", file)
        if not here:
            continue
        allowed = {"shared", here[2]}
        if here[2] != "shared":
            allowed.add("igemm")
        if here[1] == "cuda":
            allowed.add(None)
        for header in includes(file):
            there = re.match(r"conv/(?:cpu|cuda)/(?:(\w+)/)?", header)
            if there and there[1] not in allowed:
                wrong.append((file, header))
    assert wrong == []


def test_core_knows_no_primitive():
    wrong = [
        (file, header)
        for file in FILES
        for header in includes(file)
        if file.startswith("core/") and header.startswith(("conv/", "reorder/", "resample/"))
    ]
    assert wrong == []


def test_kernels_see_no_tensors():
    wrong = {}
    for file in FILES:
        is_kernel = re.search(r"/(cpu|cuda)/.*\.(cpp|cu)$", file)
        if is_kernel and not any(fnmatch(file, thin) for thin in (*THIN, *REGISTRATIONS)):
            headers = reached(file)
            found = [h for h in headers if any(fnmatch(h, t) for t in TENSOR_HEADERS)]
            if found:
                wrong[file] = sorted(found)
    assert wrong == {}
