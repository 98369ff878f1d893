"""Lists and dicts that a forward makes, of which a graph makes another one for each use."""

from __future__ import annotations

import ast
from collections import Counter

from torch_dnnl.fusion import definitions
from torch_dnnl.fusion.lookup import Unclear

_NEW = (ast.List, ast.Dict, ast.Call)


class Lists:
    """What variables of a method may have a list or dict that the forward makes. What a submodule
    or a function of torch makes is recorded."""

    def __init__(self, tree: ast.FunctionDef) -> None:
        self._tree = tree
        self.names: set[str] = set()
        self.makers: set[int] = set()  # the ids of calls of methods that return such a one

    def makes(self, node: ast.AST | None) -> bool:
        """Whether an expression may be, or have, such a list."""
        if isinstance(node, ast.Call):
            return id(node) in self.makers
        if isinstance(node, ast.Name):
            return node.id in self.names
        if node is None or isinstance(node, (ast.List, ast.Dict)):
            return node is not None
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice):
            # Lists that have names have no lists as items.
            return not isinstance(node.value, ast.Name) and self.makes(node.value)
        return any(map(self.makes, ast.iter_child_nodes(node)))

    def check_flat(self, node: ast.AST | None) -> None:
        """Raises Unclear if items are lists: these have no name by which they could be followed."""
        if isinstance(node, ast.IfExp):
            self.check_flat(node.body)
            self.check_flat(node.orelse)
        elif node is not None and not isinstance(node, ast.Call):
            items = ast.iter_child_nodes(node)
            if any(map(self.makes, items)):
                raise Unclear

    def name(self, targets: list[ast.expr], value: ast.AST | None) -> None:
        """Takes note of a list that gets a name. A second name, of the list, a part of it or one
        of two lists, would have to be followed, too: then raises Unclear."""
        if self.makes(value):
            self.check_flat(value)
            target, *others = targets
            values = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
            is_new = all(not self.makes(v) or isinstance(v, _NEW) for v in values)
            if others or not is_new or not isinstance(target, ast.Name):
                raise Unclear
            self.names.add(target.id)

    def check_uses(self) -> None:
        """Raises Unclear if a list is used more than once, unless its items alone are."""
        if not self.names:
            return
        nodes = definitions.nodes(self._tree)
        in_loops = {id(n) for loop in nodes if isinstance(loop, ast.For) for n in ast.walk(loop)}
        of_items = {id(node.value) for node in nodes if isinstance(node, ast.Subscript)}
        whole: Counter[str] = Counter()
        items: Counter[str] = Counter()
        for node in nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                uses = items if id(node) in of_items else whole
                uses[node.id] += 2 if id(node) in in_loops else 1
        if any(whole[name] > 1 or (whole[name] and items[name]) for name in self.names):
            raise Unclear
