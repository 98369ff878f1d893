"""How a `forward` that has no graph uses the submodules, as far as its source says.

A batch norm is folded into a convolution only if no such forward may see the result of the
convolution. What its source does not exclude is taken to happen.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import types
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch

from torch_dnnl.fusion.source import definition, has_plain_attributes, is_name, own_name

# What gives submodules, or their tensors, to code that does not name them: functions, and
# attributes beside them.
_REACHING_FUNCTIONS = {"vars", "getattr", "eval", "exec", "super"}
_REACHING = {
    *_REACHING_FUNCTIONS,
    *("children", "named_children", "modules", "named_modules", "_modules", "get_submodule"),
    *("parameters", "named_parameters", "_parameters", "get_parameter", "state_dict", "apply"),
    *("buffers", "named_buffers", "_buffers", "get_buffer"),
    *("items", "values", "__dict__"),
    *("__getattr__", "__getattribute__"),
}


class Uses:
    """How the code of a forward that is not plain uses the submodules.

    `reaches` says that it may get at any of them, or that there is no source.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.mentioned: Counter[str] = Counter()  # every attribute
        self.elsewhere: set[str] = set()  # attributes that may be those of a submodule
        self.iterated: set[str] = set()  # attributes whose items are called; "" is the module
        self.not_called: set[str] = set()  # attributes of which more may happen than a call
        cls = type(module)
        self.reaches = (
            "forward" in vars(module)
            or not has_plain_attributes(cls)
            or any(_has_items_of_its_own(type(part)) for part in module.modules())
        )
        self.forward = definition(inspect.unwrap(cls.forward))
        for function, is_own in self._functions(module):
            tree = definition(function)
            if tree is None:
                self.reaches = True
            else:
                self._look_at(tree, is_own, _wrapped_names(function))

    @staticmethod
    def _functions(module: torch.nn.Module) -> Iterator[tuple[Any, bool]]:
        """The forward and the methods that it may call; whether they are of the module's class.

        Of one that wraps another, as decorators do, both.
        """
        own, classes = type(module), {type(part) for part in module.modules()}
        wanted = [(own, "forward")]
        seen = set(wanted)
        while wanted:
            cls, name = wanted.pop()
            function = inspect.getattr_static(cls, name, None)
            for inner in ("fget", "__func__", "func"):
                function = getattr(function, inner, function)
            if not callable(function) or (name != "forward" and _is_of_torch(function)):
                continue
            layers = [function]
            while hasattr(layers[-1], "__wrapped__"):
                layers.append(layers[-1].__wrapped__)
            for layer in layers:
                yield layer, cls is own
                tree = definition(layer)
                if tree is None:
                    continue
                for node in ast.walk(tree):
                    if isinstance(node, ast.Attribute) and node.attr not in _REACHING | {"forward"}:
                        is_own = is_name(node.value, own_name(tree))
                        found = {(c, node.attr) for c in ([cls] if is_own else classes)} - seen
                        wanted += found
                        seen |= found

    def _look_at(self, tree: ast.FunctionDef, is_own: bool, wrapped: set[str]) -> None:
        own = own_name(tree)
        functions = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        called = {id(function) for function in functions}
        for function in functions:  # an item of `self.layers[0](x)`
            if isinstance(function, ast.Subscript) and isinstance(function.value, ast.Attribute):
                called.add(id(function.value))
                self.iterated.add(function.value.attr)
        bases = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        harmless = {id(function) for function in functions if is_name(function, own)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) in wrapped:
                harmless |= {id(argument) for argument in node.args[:1]}
            if isinstance(node, ast.Attribute) and _is_of_arguments(node, tree):
                harmless.add(id(node))
            if isinstance(node, ast.Attribute) and node.attr in ("dtype", "device"):
                harmless |= {id(part) for part in ast.walk(node)} if _is_of_any(node) else set()
            if isinstance(node, (ast.If, ast.IfExp)):
                tested = list(ast.walk(node.test))
                if not any(_does_more(part, own) for part in tested):
                    harmless |= {id(part) for part in tested}
            if isinstance(node, (ast.For, ast.comprehension)):
                harmless |= _iterated(node, tree, called)
                for part in ast.walk(node.iter):
                    if isinstance(part, ast.Attribute):
                        is_self = is_name(part.value, own) and part.attr in _REACHING
                        self.iterated.add("" if is_self else part.attr)
                    elif is_name(part, own) and id(part) not in bases:
                        self.iterated.add("")
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                self.mentioned[node.attr] += 1
                if not (is_own and is_name(node.value, own)):
                    self.elsewhere.add(node.attr)
                if id(node) not in harmless | called | bases:
                    self.not_called.add(node.attr)
            is_self = is_name(node, own) and id(node) not in bases
            is_reaching = (
                getattr(node, "attr", None) in _REACHING
                or getattr(node, "id", None) in _REACHING_FUNCTIONS
            )
            if (is_reaching or is_self) and id(node) not in harmless:
                self.reaches = True

    def may_reach(self, path: list[str]) -> bool:
        """Whether the code may do more to the module at this path than to call what holds it."""
        is_part = len(path) > 1
        return (
            self.reaches
            or path[-1] in (self.elsewhere if is_part else self.mentioned)
            or (path[-2] if is_part else "") in self.iterated
            or bool(self.not_called.intersection(path[:-1]))
        )


def _does_more(part: ast.AST, own: str) -> bool:
    """Whether a part of a test may see more of the submodules than that there is one."""
    if not isinstance(part, ast.Call):
        return isinstance(part, (ast.NamedExpr, ast.Subscript))
    of_names = all(isinstance(x, (ast.Name, ast.Constant)) for x in part.args[:1])
    if is_name(part.func, "hasattr") or is_name(part.func, "isinstance"):
        return not of_names
    root = part.func
    while isinstance(root, ast.Attribute):
        root = root.value
    is_of_others = isinstance(part.func, ast.Attribute) and isinstance(root, ast.Name)
    return not is_of_others or is_name(root, own) or bool(part.args)


def _has_items_of_its_own(cls: type) -> bool:
    """Whether calls, loops and items are not what they are in torch's own modules."""
    names = ("__call__", "__getitem__", "__iter__", "children", "named_children", "named_modules")
    methods = (inspect.getattr_static(cls, name, None) for name in names)
    return not all(method is None or _is_of_torch(method) for method in methods)


def _wrapped_names(function: Any) -> set[str]:
    """What a function that wraps another calls it."""
    inner = getattr(function, "__wrapped__", None)
    outside = {} if inner is None else inspect.getclosurevars(function).nonlocals
    return {name for name, value in outside.items() if value is inner}


def _is_of_arguments(node: ast.Attribute, tree: ast.FunctionDef) -> bool:
    """Whether this is `kwargs.items` of the arguments, or the parameters of a signature."""
    source = node.value
    function = getattr(source, "func", None)
    name = getattr(function, "attr", getattr(function, "id", None))
    return (tree.args.kwarg is not None and is_name(source, tree.args.kwarg.arg)) or (
        node.attr == "parameters" and name == "signature"
    )


def _is_of_any(node: ast.Attribute) -> bool:
    """Whether this is the type or device in `next(self.parameters()).dtype`."""
    call = node.value
    source = _only_argument(call) if isinstance(call, ast.Call) else None
    return (
        is_name(getattr(call, "func", call), "next")
        and isinstance(source, ast.Call)
        and not source.args
        and isinstance(source.func, ast.Attribute)
        and source.func.attr in ("parameters", "buffers")
    )


def _is_of_torch(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith("torch.nn.modules.")


def _iterated(loop: Any, tree: ast.AST, called: set[int]) -> set[int]:
    """What a loop runs over, if all that it does with the items is to call them."""
    source, target, kind = loop.iter, loop.target, ""
    parts = [source]
    if isinstance(source, ast.Call):
        kind = getattr(source.func, "id", getattr(source.func, "attr", ""))
        if kind not in ("enumerate", "zip", "items", "values", "children", "named_children"):
            return set()
        parts = [source.func, *source.args]
    if kind in ("enumerate", "items", "named_children"):
        if not isinstance(target, ast.Tuple):
            return set()
        target = target.elts[-1]
    names = {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
    loads = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and node.id in names and isinstance(node.ctx, ast.Load)
    ]
    return {id(part) for part in parts} if all(id(load) in called for load in loads) else set()


def chained(uses: Uses, first: str, second: str) -> bool:
    """Whether a forward gives the result of `self.first` to `self.second` and to nothing else.

    That is `self.second(self.first(...))`, or two statements in a row that write the same variable.
    """
    tree = uses.forward
    if tree is None or uses.reaches or "" in uses.iterated:
        return False
    own = own_name(tree)
    places = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in (first, second)
    ]
    if len(places) != 2 or not all(is_name(place.value, own) for place in places):
        return False
    if {first, second} & uses.not_called or uses.mentioned[first] + uses.mentioned[second] != 2:
        return False
    for node in ast.walk(tree):
        inner = _only_argument(node) if _calls(node, own, second) else None
        if _calls(inner, own, first) and _only_argument(inner) is not None:
            return True
        for block in (getattr(node, name, None) for name in ("body", "orelse", "finalbody")):
            if isinstance(block, list) and _in_a_row(block, own, first, second):
                return True
    return False


def calls_alone(cls: type, first: str, second: str) -> bool:
    """Whether a method calls `self.first` and not `self.second`: somebody may call that method."""
    for base in cls.__mro__:
        if base.__module__.partition(".")[0] == "torch":
            continue
        for member in vars(base).values():
            function = getattr(member, "fget", getattr(member, "__func__", member))
            tree = definition(function) if isinstance(function, types.FunctionType) else None
            if tree is None:
                continue
            nodes, own = list(ast.walk(tree)), own_name(tree)
            if any(_calls(node, own, first) for node in nodes) and not any(
                _calls(node, own, second) for node in nodes
            ):
                return True
    return False


def _calls(node: ast.AST | None, own: str, name: str) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == name
        and is_name(node.func.value, own)
    )


def _only_argument(call: Any) -> ast.AST | None:
    is_only = len(call.args) == 1 and not call.keywords
    return call.args[0] if is_only and not isinstance(call.args[0], ast.Starred) else None


def _in_a_row(block: list[ast.stmt], own: str, first: str, second: str) -> bool:
    for a, b in itertools.pairwise(block):
        if not (isinstance(a, ast.Assign) and isinstance(b, ast.Assign)):
            continue
        names = [t.id for s in (a, b) for t in s.targets if isinstance(t, ast.Name)]
        if len(a.targets) + len(b.targets) != 2:
            continue
        is_plain = _calls(a.value, own, first) and _only_argument(a.value) is not None
        if len(set(names)) == 1 and len(names) == 2 and is_plain:
            argument = _only_argument(b.value) if _calls(b.value, own, second) else None
            if argument is not None and is_name(argument, names[0]):
                return True
    return False
