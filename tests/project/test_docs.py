"""What the documents say: snippets run, the support table is current and true,
examples finish."""

import doctest
import os
import pkgutil
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from op_db import CASES, FLOAT8, FLOATING, INTEGERS, SUPPORT
from support_table import README, with_table

import torch_dnnl
import torch_dnnl.functional as D

ROOT = README.parent
# The pages whose snippets need more than the tests' own packages.
DEPLOYMENT = ("onnx",)
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
# A snippet is compared with the library that the comment before it names, where that is installed.
SNIPPET = re.compile(r"(?:<!-- peers: (\w+) -->\n)?```python\n(.*?)```", re.DOTALL)
SNIPPETS = [
    pytest.param(
        snippet,
        id=f"{page.stem}{i}",
        marks=[pytest.mark.ecosystem] if page.stem in DEPLOYMENT else [],
    )
    for page in PAGES
    for i, (peer, snippet) in enumerate(SNIPPET.findall(page.read_text()))
    if not peer or find_spec(peer)
]


def python(*command, cwd=ROOT):
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page(page):
    """It has an example, and its links lead somewhere."""
    text = page.read_text()
    assert "```python\n" in text
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert "://" in target or (page.parent / target).exists(), target


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_snippet_runs(snippet, tmp_path):
    result = python("-c", snippet, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout


def test_support_table_is_current():
    text = README.read_text()
    assert with_table(text) == text, "run: python tests/support_table.py --write"


def test_speed_tables_are_current():
    result = python(str(ROOT / "benchmarks" / "summary.py"))
    assert result.returncode == 0, result.stderr
    pages = (README, ROOT / "docs" / "compile.md", ROOT / "docs" / "performance.md")
    text = "".join(page.read_text() for page in pages)
    tables = result.stdout.split("\n\n")
    assert len(tables) == 4  # the last page has two
    for table in tables:
        assert table.strip() in text, "run: make bench-summary"


def call(name, dtype):
    if name == "fake_reorder":
        return D.fake_reorder(torch.ones(2, 3, 4).to(dtype), dtype=torch.int8, dst_scale=0.1)
    if name == "reorder":
        return D.reorder(torch.ones(2, 3, 4).to(dtype), "acb", scale=2.0)
    if name == "quantized_convolution":
        src, weights = torch.ones(2, 4, 5, 3).to(dtype), torch.ones(3, 3, 3, 2, dtype=torch.int8)
        return D.quantized_convolution(src, weights, dtype=dtype)
    case = next(case for case in CASES if case.function == name)
    return case.call(*(torch.ones(shape).to(dtype) for shape in case.shapes))


EVERY_TYPE = (*FLOATING, *INTEGERS, *FLOAT8, torch.bool, torch.int64, torch.complex64)


@pytest.mark.parametrize("dtype", EVERY_TYPE, ids=lambda d: str(d).removeprefix("torch."))
@pytest.mark.parametrize("name", SUPPORT)
def test_support_table_is_true(name, dtype):
    if dtype in SUPPORT[name].dtypes:
        assert call(name, dtype).dtype == dtype
        return
    with pytest.raises((TypeError, NotImplementedError, RuntimeError), match=name):
        call(name, dtype)


def test_table_of_convolution_kernels_is_current():
    text = (ROOT / "docs" / "convolution.md").read_text()
    table = text[text.index("| Kernel | Supports |") :].split("\n\n")[0]
    names = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert names == torch_dnnl.build_info()["kernels"]["cpu"]["convolution"]


@pytest.mark.slow
def test_super_resolution_example(tmp_path):
    result = python(
        str(ROOT / "examples" / "train_super_resolution.py"),
        "--steps",
        "3",
        "--output",
        str(tmp_path / "demo.png"),
    )
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "demo.png").stat().st_size > 10_000


def test_gallery_example(tmp_path):
    picture = tmp_path / "gallery.png"
    result = python(str(ROOT / "examples" / "resize_gallery.py"), "--output", str(picture))
    assert result.returncode == 0, result.stderr
    assert picture.stat().st_size > 10_000


def test_quantization_example():
    """Training with rounding helps 2 bits; integers classify as rounded float32 does."""
    result = python(
        str(ROOT / "examples" / "quantization_aware_training.py"),
        *("--epochs", "2", "--bits", "8", "2"),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("597 of 597") == 2
    after, during = re.search(r"^ +2 +([\d.]+) +([\d.]+)", result.stdout, re.MULTILINE).groups()
    assert float(after) + 3 < float(during)


def test_quantized_residual_network():
    """The lowered model agrees with torchao's: the exit status says so."""
    result = python(
        str(ROOT / "examples" / "quantize_after_training.py"), *("--size", "64", "--batch", "2")
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "lowered 20 convolutions" in result.stdout
    assert len(re.findall(r"^\w.*? +[\d.]+ +[\d.]+$", result.stdout, re.MULTILINE)) == 4


def unet_example(tmp_path, *variants):
    """Its exit status says that float32 losses agree with torch's."""
    picture = tmp_path / "unet.png"
    result = python(
        str(ROOT / "examples" / "train_unet.py"),
        *("--steps", "3", "--size", "32", "--output", str(picture), "--variants", *variants),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.findall(r"^([\w-]+) +0\.\d+ ", result.stdout, re.MULTILINE) == list(variants)
    assert picture.stat().st_size > 10_000


def test_unet_example(tmp_path):
    unet_example(tmp_path, "eager", "channels_last", "bf16", "torch", "torch-channels_last")


@pytest.mark.slow
def test_compiled_unet_example(tmp_path):
    unet_example(tmp_path, "compile", "torch")


def test_super_resolution_agrees_with_torch():
    result = python(str(ROOT / "examples" / "train_super_resolution.py"), "--check")
    assert result.returncode == 0, result.stdout + result.stderr


def test_benchmarks_run(tmp_path):
    table, bars = tmp_path / "rows.csv", tmp_path / "bars.png"
    result = python(
        str(ROOT / "benchmarks" / "run.py"),
        *("--op", "overhead", "--pass", "backward", "--pass", "both", "--seconds", "0.001"),
        *("--csv", str(table), "--plot", str(bars)),
    )
    assert result.returncode == 0, result.stderr
    assert "geometric mean" in result.stdout.splitlines()[-1]
    assert len(table.read_text().splitlines()) > 10 and bars.stat().st_size > 10_000


@pytest.mark.slow
def test_kernel_benchmarks_run(tmp_path):
    table = tmp_path / "kernels.csv"
    result = python(
        str(ROOT / "benchmarks" / "run.py"),
        *("--op", "conv", "--kernel", "reference", "--match", "mbv2.dw14 ncx"),
        *("--few", "--seconds", "0.001", "--csv", str(table)),
    )
    assert result.returncode == 0, result.stderr
    assert "The choices lose" in result.stdout.splitlines()[-1]
    rows = [line.split(",")[4] for line in table.read_text().splitlines()[1:]]
    assert rows.count("reference") == 3 and len(rows) == 6


@pytest.mark.slow
def test_comparison_of_builds_runs():
    """With itself."""
    result = python(
        str(ROOT / "benchmarks" / "compare.py"),
        *(str(ROOT), "--op", "images", "--match", "256 to 224 antialias nchw"),
        *("--pass", "forward", "--pass", "backward", "--seconds", "0.01", "--restarts", "2"),
    )
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert len(lines) == 3 and "forward" in lines[1]  # of bytes, which have no gradients
    assert lines[2].startswith("1 rows: geometric mean")


@pytest.mark.slow
@pytest.mark.parametrize("dtype, rows", [("bfloat16", 6), ("int8", 2)])
def test_overheads_are_timed_on_any_cpu(dtype, rows):
    result = python(
        str(ROOT / "benchmarks" / "overheads.py"),
        *("--dtype", dtype, "--match", "wavenet", "--seconds", "0.01"),
    )
    assert result.returncode == 0, result.stderr
    assert len(result.stdout.splitlines()) == 1 + rows


MODULES = (D, torch_dnnl.nn, torch_dnnl.quantization)
PUBLIC = [f"{module.__name__}.{name}" for module in MODULES for name in module.__all__]
MODELS = ("accelerate", "convert", "optimize", "revert")  # functions of whole models
PUBLIC += [f"torch_dnnl:{name}" for name in MODELS]


@pytest.mark.parametrize("name", PUBLIC)
def test_docstring_examples_run(name):
    """Every public docstring has an example, and it prints what it says."""
    text = pkgutil.resolve_name(name).__doc__ or ""
    public = {n: getattr(module, n) for module in MODULES for n in module.__all__}
    public |= {name: getattr(torch_dnnl, name) for name in MODELS}
    examples = doctest.DocTestParser().get_doctest(text, {"torch": torch, **public}, name, None, 0)
    assert examples.examples, f"{name} has no example"
    assert doctest.DocTestRunner().run(examples).failed == 0
