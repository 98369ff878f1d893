"""A Sphinx extension: snippets of pages run, and what they print stands below them.

Every block of Python in a page is a program of its own, as in tests/project/test_docs.py. One that
follows `<!-- peers: name -->` runs where that library is installed, and one that follows
`<!-- timings -->` does not, as those of the machine that makes the site mean nothing. A snippet
that fails is a warning. `-D snippets_run=0` leaves all of them alone.
"""

import contextlib
import io
import os
import re
import tempfile
from importlib.util import find_spec

import torch
from docutils import nodes
from sphinx.util import logging

logger = logging.getLogger(__name__)


def printed_by(source: str, name: str) -> str:
    """What a program prints."""
    torch.manual_seed(0)
    printed = io.StringIO()
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(printed):
        os.chdir(folder)  # for the files that it writes
        try:
            exec(compile(source, name, "exec"), {"__name__": "__main__"})
        finally:
            os.chdir(before)
    return printed.getvalue().rstrip()


def is_left_out(block: nodes.literal_block) -> bool:
    """Whether the comment before it names a library that is not here, or says that it times."""
    before = block.previous_sibling()
    comment = re.fullmatch(
        r"<!-- (?:peers: (\w+)|timings) -->\s*", before.astext() if before is not None else ""
    )
    return comment is not None and (comment[1] is None or find_spec(comment[1]) is None)


def run_snippets(app, doctree):
    if not app.config.snippets_run:
        return
    for block in list(doctree.findall(nodes.literal_block)):
        if block.get("language") != "python" or is_left_out(block):
            continue
        try:
            output = printed_by(block.astext(), f"{app.env.docname}.md")
        except Exception as error:
            what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            logger.warning(f"a snippet raised {what}", location=block)
            continue
        if output:
            box = nodes.container(classes=["output"])
            box += nodes.literal_block(output, output, language="text")
            block.parent.insert(block.parent.index(block) + 1, box)


def setup(app):
    app.add_config_value("snippets_run", True, "env", bool)
    app.connect("doctree-read", run_snippets)
    return {"version": "1", "parallel_read_safe": True}
