"""A Sphinx extension: snippets of pages run, and what they print stands below them.

Every block of Python in a page is a program of its own, as in tests/project/test_docs.py. One that
follows `<!-- peers: name -->` runs where that library is installed. A snippet that fails is a
warning. `-D snippets_run=0` leaves them alone.
"""

import contextlib
import io
import re
from importlib.util import find_spec

import torch
from docutils import nodes
from sphinx.util import logging

logger = logging.getLogger(__name__)


def printed_by(source: str, name: str) -> str:
    """What a program prints."""
    torch.manual_seed(0)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, name, "exec"), {"__name__": "__main__"})
    return printed.getvalue().rstrip()


def is_without_peer(block: nodes.literal_block) -> bool:
    """Whether the comment before it names a library that is not here."""
    before = block.previous_sibling()
    if not isinstance(before, nodes.comment):
        return False
    peer = re.search(r"peers: (\w+)", before.astext())
    return peer is not None and find_spec(peer[1]) is None


def run_snippets(app, doctree):
    if not app.config.snippets_run:
        return
    for block in list(doctree.findall(nodes.literal_block)):
        if block.get("language") != "python" or is_without_peer(block):
            continue
        try:
            output = printed_by(block.astext(), f"{app.env.docname}.md")
        except Exception as error:
            logger.warning(f"a snippet raised {error!r}", location=block)
            continue
        if output:
            box = nodes.container(classes=["output"])
            box += nodes.literal_block(output, output, language="text")
            block.parent.insert(block.parent.index(block) + 1, box)


def setup(app):
    app.add_config_value("snippets_run", True, "env", bool)
    app.connect("doctree-read", run_snippets)
    return {"version": "1", "parallel_read_safe": True}
