"""The documentation site, which `make docs` writes to build/docs.

Sphinx's source folder is the root of the repository, with this file named by `-c docs`. So
README.md, CONTRIBUTING.md, SECURITY.md and CHANGELOG.md are pages as they are, and links between
pages, and from pages to source files, mean the same on the site and where the files are read
without it.
"""

import re
import sys
from pathlib import Path

from sphinx import addnodes

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_extensions")]

import torch_dnnl  # noqa: E402

project = "torch_dnnl"
version = release = torch_dnnl.__version__
root_doc = "docs/index"
include_patterns = [
    *("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs/**"),
    *("benchmarks/results/README.md", "tools/emulator/README.md"),
]
exclude_patterns = [".*", "build", "csrc", "examples", "tests", "torch_dnnl"]  # are not walked

extensions = [
    "matplotlib.sphinxext.plot_directive",
    "myst_parser",
    "snippets",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]

smartquotes_action = "D"  # dashes alone, as names in quotes are copied

# Pages. Indented blocks are formulas and drawings.
myst_heading_anchors = 4
highlight_language = "text"
copybutton_exclude = ".linenos, .gp, .go"  # prompts and what they print

# Docstrings.
default_role = "py:obj"
autodoc_inherit_docstrings = False  # those of torch speak of torch
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Shape"]
python_maximum_signature_line_length = 80
viewcode_line_numbers = True

plot_formats = [("svg", 96)]
plot_html_show_formats = False
plot_html_show_source_link = False

html_theme = "furo"
html_title = f"torch_dnnl {release}"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
templates_path = ["_templates"]
html_additional_pages = {"index": "to_first_page.html"}


def to_markup(app, what, name, obj, options, lines):
    """Our docstrings are plain text: what they mean is said in reStructuredText's marks.

    An indented block behind a colon is a formula, and a star in front of a name is no emphasis.
    """
    text = "\n".join(lines)
    text = re.sub(r"^(\S.*[^:]):\n\n(?=    )", r"\1::\n\n", text, flags=re.MULTILINE)
    lines[:] = re.sub(r"(?<=[\s\[(,])\*(?=[A-Za-z])", r"\\*", text).split("\n")


def without_folders(app, doctree):
    """Links to folders, which are no pages of the site, become text."""
    here = Path(doctree["source"]).parent
    for link in list(doctree.findall(addnodes.pending_xref)):
        if link["reftype"] == "myst" and (here / link["reftarget"]).is_dir():
            link.replace_self(link.children)


def setup(app):
    app.connect("autodoc-process-docstring", to_markup, priority=400)  # napoleon's is 500
    app.connect("doctree-read", without_folders)
