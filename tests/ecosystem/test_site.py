"""The documentation site: Sphinx builds it without a warning, and every link in it leads somewhere.

Its snippets are run by tests/project/test_docs.py, and not again here.
"""

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from paths import ROOT

import torch_dnnl

pytestmark = pytest.mark.ecosystem


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    options = ["-c", "docs", "-d", str(folder / "trees"), "-W", "--keep-going", "-q"]
    result = subprocess.run(
        [sys.executable, "-m", "sphinx", *options, "-D", "snippets_run=0", ".", folder / "html"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return folder / "html"


class Page(HTMLParser):
    """The links of a page, and the places in it that links may name."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.places: set[str] = set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id":
                self.places.add(value)
            elif name in ("href", "src") and value:
                self.links.add(value)


def test_links_lead_somewhere(site):
    pages = {path: Page(path) for path in site.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            places = pages[target].places if parts.fragment and target in pages else None
            if not target.exists() or (places and unquote(parts.fragment) not in places):
                broken.append((path.name, link))
    assert len(pages) > 20 and broken == []


@pytest.mark.parametrize(
    "module, page",
    [
        (torch_dnnl.functional, "functional"),
        (torch_dnnl.nn, "nn"),
        (torch_dnnl.quantization, "quantization"),
        (torch_dnnl.formats, "formats"),
    ],
)
def test_every_public_name_is_in_the_reference(site, module, page):
    places = Page(site / "docs" / "api" / f"{page}.html").places
    missing = [name for name in module.__all__ if f"{module.__name__}.{name}" not in places]
    assert missing == []


def test_formulas_keep_their_lines(site):
    """In a docstring, an indented block is text as it stands."""
    text = (site / "docs" / "api" / "functional.html").read_text()
    assert "v = scale * (src - src_zero_point) + beta * accumulate     in float32" in text
