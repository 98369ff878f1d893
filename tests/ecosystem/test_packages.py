"""The packages: what is in the sources and in a wheel, and a wheel in an environment of its own."""

import base64
import csv
import hashlib
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import packages
import pytest
import torch
from library_files import check_memory_and_folders, check_symbols
from paths import ROOT

import torch_dnnl

pytestmark = pytest.mark.ecosystem

MINOR = ".".join(torch.__version__.split(".")[:2])
PUBLIC = torch_dnnl.__version__.split("+")[0]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Of this tree, whose build folder has the objects, with this machine's kernels alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_DNNL_CPU", "native")
        patch.setenv("TORCH_DNNL_CUDA", "0")
        return packages.build_wheel(sys.executable, ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    return packages.build_sdist(tmp_path_factory.mktemp("sdist"))


@pytest.fixture
def python(tmp_path):
    """That of a new environment, which sees the packages of this one."""
    return packages.environment(tmp_path / "environment", below=sys.executable)


def metadata(wheel):
    with zipfile.ZipFile(wheel) as files:
        (name,) = (n for n in files.namelist() if n.endswith(".dist-info/METADATA"))
        return message_from_bytes(files.read(name))


def test_sources_are_whole(sdist):
    """What git has, and what setuptools adds."""
    with tarfile.open(sdist) as files:
        names = {m.name.split("/", 1)[1] for m in files.getmembers() if m.isfile()}
    tracked = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    assert set(tracked) - names == set()
    added = {name for name in names - set(tracked) if not name.startswith("torch_dnnl.egg-info/")}
    assert added <= {"PKG-INFO", "setup.cfg"}


def test_sources_take_any_torch(sdist):
    """The sources are built for the torch that is there; a wheel is for one."""
    with tarfile.open(sdist) as files:
        info = message_from_bytes(files.extractfile(f"torch_dnnl-{PUBLIC}/PKG-INFO").read())
    assert "torch>=2.11" in info.get_all("Requires-Dist")
    assert info["Version"] == PUBLIC


def test_wheel_of_the_sources_names_torch_too(sdist, tmp_path):
    """What pip asks for before it builds."""
    with tarfile.open(sdist) as files:
        files.extractall(tmp_path, filter="data")
    source = tmp_path / f"torch_dnnl-{PUBLIC}"
    code = "import build.util, sys; m = build.util.project_wheel_metadata(sys.argv[1], False)\n"
    code += "print(m['Version'], m.get_all('Requires-Dist'))"
    said = packages.run(sys.executable, "-c", code, source, TORCH_DNNL_LABEL="1")
    assert f"{PUBLIC}+torch{MINOR}." in said
    assert re.search(rf"'torch\S*>={MINOR}", said), said


def test_wheel_names_what_it_is_for(wheel):
    """The torch and the device in the version; any Python 3; the oldest Linux that can load it."""
    pattern = rf"torch_dnnl-{PUBLIC}\+torch{MINOR}\.cpu-py3-none-manylinux_2_\d+_\w+\.whl"
    assert re.fullmatch(pattern, wheel.name), wheel.name
    info = metadata(wheel)
    major, minor = MINOR.split(".")
    pins = [r.replace(" ", "") for r in info.get_all("Requires-Dist") if re.match(r"torch[><=]", r)]
    assert pins in ([f"torch<{major}.{int(minor) + 1},>={MINOR}"],
                    [f"torch>={MINOR},<{major}.{int(minor) + 1}"])  # fmt: skip


def test_wheel_has_what_runs(wheel):
    """The package, libraries, headers and the configuration of CMake; no sources, no torch."""
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.check_output(["git", "ls-files", "torch_dnnl"], cwd=ROOT, text=True)
    assert set(tracked.splitlines()) - names == set()
    libraries = {Path(n).name.split(".")[0] for n in names if n.endswith(".so")}
    assert {"_C", "_python"} < libraries
    assert libraries <= {"_C", "_python", "_cuda", "_cuda_exact"} | {
        f"_cpu_{level}" for level in ("default", "avx2", "avx512")
    }
    assert {n.split("/")[0] for n in names} == {
        "torch_dnnl",
        f"{'-'.join(wheel.name.split('-')[:2])}.dist-info",
    }


def test_wheel_is_what_its_record_says(wheel):
    """Each file has its digest and size there, and none lies outside of the package."""
    with zipfile.ZipFile(wheel) as files:
        assert files.testzip() is None
        (record,) = (n for n in files.namelist() if n.endswith(".dist-info/RECORD"))
        rows = list(csv.reader(files.read(record).decode().splitlines()))
        names = [info.filename for info in files.infolist() if not info.is_dir()]
        assert sorted(name for name, *_ in rows) == sorted(names)
        for name, digest, size in rows:
            assert not name.startswith("/") and ".." not in name.split("/")
            if name != record:
                content = files.read(name)
                sha = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
                assert (digest, int(size)) == (f"sha256={sha.decode()}", len(content)), name


def test_libraries_of_the_wheel(wheel, tmp_path):
    """auditwheel may have rewritten what the loader is asked for."""
    with zipfile.ZipFile(wheel) as files:
        libraries = [name for name in files.namelist() if name.endswith(".so")]
        for name in libraries:
            path = files.extract(name, tmp_path)
            check_memory_and_folders(path)
            check_symbols(path)
    assert len(libraries) >= 3


def test_index_can_show_the_description(wheel, sdist):
    """Links of README.md lead somewhere from a package index too."""
    text = metadata(wheel).get_payload()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links and all("://" in link for link in links)
    for link in links:  # those of the repository are files
        if match := re.match(r"https://\S+/(?:blob|raw)/main/(.*)", link):
            assert (ROOT / match[1]).exists(), link
    packages.run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)


def test_wheel_runs_in_an_environment_of_its_own(wheel, python):
    said = packages.try_wheel(python, wheel)
    assert re.search(rf"torch_dnnl {re.escape(PUBLIC)}\+torch.*: 9 checks passed$", said), said


def test_wheel_refuses_another_torch(wheel, python):
    """pip and import each say so; here the wheel's record of torch is made to be another one's."""
    packages.install(python, wheel)
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    record = Path(packages.run(python, "-c", where).strip(), "torch_dnnl", "_build.py")
    record.write_text(re.sub("torch_version = .*", "torch_version = '2.99.0'", record.read_text()))
    said = packages.refusal(python)
    assert "was built with torch 2.99.0 and does not load into torch" in said


def test_workflows_and_citation_are_valid():
    """By their schemas."""
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert len(workflows) == 3
    for schema, files in (
        ("vendor.github-workflows", workflows),
        ("vendor.citation-file-format", [ROOT / "CITATION.cff"]),
    ):
        packages.run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *files)
