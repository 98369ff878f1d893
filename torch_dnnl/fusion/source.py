"""Whether the source of a `forward` proves that tracing records all that it does.

`torch.fx` runs a forward once and records the calls that its tensors see. That is the whole forward
only if nothing else depends on the arguments and nothing else is changed: `if mask is None`, a list
that grows, a random number would be lost. `reads` accepts a forward whose statements are known to
have no such part, and nothing else, and says what has to stay for that. A forward that tests which
arguments it got has one graph for each answer: `ways` lists them.
"""

from __future__ import annotations

import ast
import builtins
import cmath
import inspect
import types
from collections import Counter
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from torch_dnnl.fusion import lookup, recording
from torch_dnnl.fusion.definitions import definition, nodes
from torch_dnnl.fusion.lists import Lists
from torch_dnnl.fusion.lookup import Unclear

_STATEMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.If, ast.For, ast.Pass)
_EXPRESSIONS = (
    *(ast.Name, ast.Attribute, ast.Call, ast.BinOp, ast.UnaryOp, ast.Constant, ast.Subscript),
    *(ast.Slice, ast.Tuple, ast.List, ast.Dict, ast.IfExp, ast.keyword, ast.expr_context),
    *(ast.operator, ast.USub),
)
_IN_TESTS = (ast.Compare, ast.BoolOp, ast.boolop, ast.cmpop, ast.unaryop)
_MODULES = (torch.nn.Sequential, torch.nn.ModuleList)
ABSENT = object()  # the value of an attribute that is not there
_TESTED = 3  # so many arguments make up to eight graphs
_is_scripting: Any = torch.jit.is_scripting  # type: ignore[attr-defined]


class _Asked(Unclear):
    """A test of an argument of which nothing is known."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class _AnyTensor:
    """Stands for an argument that is a tensor, of which no more than that is known."""

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise Unclear

    def __eq__(self, other: object) -> bool:
        raise Unclear


TENSOR = _AnyTensor()


@dataclass
class Reads:
    """What a forward took from its module that is no tensor; the methods that it consists of."""

    attributes: dict[str, Any] = field(default_factory=dict)
    methods: dict[str, Any] = field(default_factory=dict)
    # Containers that were looped over or tested, and the modules on the way to them.
    containers: list[torch.nn.Module] = field(default_factory=list)


def reads(module: torch.nn.Module, arguments: dict[str, Any] | None = None) -> Reads | None:
    """What tracing the forward of a module in eval mode takes for given, if it records all else
    that the forward does; None if it may not. `arguments`: those of which something is known, a
    value or that it is a TENSOR."""
    try:
        return _read(module, arguments or {})
    except Unclear:
        return None


def ways(module: torch.nn.Module, known: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """What has to be known of the arguments of a forward, for each graph that it has."""
    known = known or {}
    try:
        _read(module, known)
    except _Asked as error:
        parameter = signature(type(module).forward).parameters[error.name]
        choices: tuple[Any, ...] = (parameter.default,)
        if parameter.default is None or parameter.default is parameter.empty:
            choices = (None, TENSOR)
        if len(known) == _TESTED:
            choices = ()
        return [way for value in choices for way in ways(module, {**known, error.name: value})]
    except Unclear:
        return []
    return [known]


def signature(function: Any) -> inspect.Signature:
    """Of a function itself, not of what it wraps."""
    try:
        return inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError) as error:  # of a function of C, of None
        raise Unclear from error


def of_method(cls: type, name: str) -> list[tuple[Any, str, Any]]:
    """What a method of a class is, and what may be replaced in it: (object, attribute, value)."""
    function = getattr(cls, name)
    parts = [n for n in ("__code__", "__defaults__") if hasattr(function, n)]
    rows = [(cls, name, function), *((function, part, getattr(function, part)) for part in parts)]
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # of one that is empty
            rows.append((cell, "cell_contents", cell.cell_contents))
    return rows


def _read(module: torch.nn.Module, arguments: dict[str, Any]) -> Reads:
    if "forward" in vars(module):
        raise Unclear
    found = Reads()
    try:
        _Plain(module, "forward", type(module).forward, found, arguments).check(set())
    except (RecursionError, ValueError) as error:  # the latter of a variable without a value
        raise Unclear from error
    return found


class _Method(ast.NodeVisitor):
    """A method of a module, and what is known of its variables: of its arguments at first."""

    def __init__(
        self,
        module: torch.nn.Module,
        name: str,
        function: Any,
        reads: Reads,
        known: dict[str, Any],
    ) -> None:
        if not isinstance(function, types.FunctionType) or name in vars(module):
            raise Unclear
        tree = definition(function.__code__)
        if tree is None:
            raise Unclear
        arguments = tree.args
        if arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
            raise Unclear
        if arguments.posonlyargs or hasattr(function, "__wrapped__"):
            raise Unclear  # torch.fx takes these for others
        if not all(map(lookup.can_be_said, function.__defaults__ or ())):
            raise Unclear  # the graph would have another list
        self.module, self.function, self.tree, self.reads = module, function, tree, reads
        reads.methods[name] = function
        self.own, *_ = function.__code__.co_varnames
        self.locals = set(function.__code__.co_varnames) - {self.own}
        if any(isinstance(node, (ast.Global, ast.Nonlocal)) for node in nodes(tree)):
            raise Unclear
        names = [node for node in nodes(tree) if isinstance(node, ast.Name)]
        self.written = Counter(node.id for node in names if not _is_load(node))
        self.known = dict(known)
        self.parameters = {argument.arg for argument in arguments.args}  # until they are changed
        self.modules: set[str] = set()  # variables that stand for submodules
        self.lists = Lists(tree)
        self.is_forward = name == "forward"

    def _known_in(self, method: Any, values: dict[str, ast.expr]) -> dict[str, Any]:
        """What is known of the arguments of a method that is called with some values."""
        parameters = signature(method).parameters.values()
        known = {p.name: p.default for p in parameters if lookup.is_constant(p.default)}
        for name, value in values.items():
            known.pop(name, None)
            if isinstance(value, ast.Constant) and lookup.is_constant(value.value):
                known[name] = value.value
            elif isinstance(value, ast.Name) and value.id in self.known:
                known[name] = self.known[value.id]
        return known

    def _forget(self, names: set[str]) -> None:
        """They get another value."""
        self.modules -= names
        self.parameters -= names
        for name in names:
            self.known.pop(name, None)

    def _test(self, test: ast.expr) -> bool:
        """The outcome of a test that depends on what the module is, not on what it is given."""
        for node in ast.walk(test):
            self._check_comparison(node)
            is_known = isinstance(node, ast.Name) and node.id in (self.own, *self.known)
            if isinstance(node, ast.Name) and node.id in self.parameters and not is_known:
                raise _Asked(node.id)
            if isinstance(node, ast.Call):
                if self._value(node.func) is not _is_scripting:
                    raise Unclear
            elif isinstance(node, (ast.Name, ast.Attribute)) and not is_known:
                value = self._value(node)
                is_own = isinstance(node, ast.Attribute) and _root(node) == self.own
                if is_own:
                    self._take(node, value)  # type: ignore[arg-type]
                is_kind = is_own and (
                    lookup.is_constant(value) or isinstance(value, torch.nn.Module)
                )
                is_kind |= not is_own and isinstance(value, types.ModuleType)
                if not is_kind and value is not _is_scripting:
                    raise Unclear
                if isinstance(value, torch.nn.Module):
                    self._take_container(node)
                    if not lookup.has_plain_truth(value):
                        raise Unclear
            elif not isinstance(node, (*_EXPRESSIONS, *_IN_TESTS)):
                raise Unclear
        code = compile(ast.Expression(test), "<test>", "eval")
        try:
            return bool(
                eval(code, self.function.__globals__, {self.own: self.module, **self.known})
            )
        except Exception as error:  # a name of an enclosing function, a tensor of many elements
            raise Unclear from error

    def _check_comparison(self, node: ast.AST) -> None:
        """Whether one tensor is another, nobody knows."""
        if not isinstance(node, ast.Compare):
            return
        names = [n.id for n in ast.walk(node) if isinstance(n, ast.Name)]
        if len(names) > 1 and any(self.known.get(name) is TENSOR for name in names):
            raise Unclear
        is_identity = any(isinstance(operator, (ast.Is, ast.IsNot)) for operator in node.ops)
        constants = [n.value for n in (node.left, *node.comparators) if isinstance(n, ast.Constant)]
        if is_identity and any(value not in (None, True, False) for value in constants):
            raise Unclear  # the code of the test has another string or number

    def _take_container(self, node: ast.AST) -> None:
        """What a container holds may change, though nothing of it is called."""
        while not _is_name(node, self.own):
            value = self._value(node)
            self.reads.containers += [value] if isinstance(value, torch.nn.Module) else []
            if not isinstance(node, (ast.Attribute, ast.Subscript)):
                return
            node = node.value

    def _take(self, node: ast.Attribute, value: Any) -> None:
        """What is no tensor has to be the module's own, or one of torch's."""
        if _root(node) != self.own:
            if not lookup.is_of_torch(self._value(node.value)):
                raise Unclear
        elif not _is_name(node.value, self.own):
            raise Unclear
        else:
            self.reads.attributes[node.attr] = value

    def _value(self, node: ast.AST) -> Any:
        """The object of a dotted path that begins with the module or with a global name."""
        if isinstance(node, ast.Attribute):
            return lookup.attribute(self._value(node.value), node.attr)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            value = self._value(node.value)
            kinds = [kind.__getitem__ for kind in lookup.CONTAINERS]
            if isinstance(value, lookup.CONTAINERS) and type(value).__getitem__ in kinds:
                try:
                    return value[node.slice.value]  # type: ignore[index]
                except (IndexError, KeyError, TypeError) as error:
                    raise Unclear from error
        if not isinstance(node, ast.Name) or node.id in self.locals:
            raise Unclear
        if node.id == self.own:
            return self.module
        variables = inspect.getclosurevars(self.function)
        for scope in (variables.nonlocals, variables.globals, vars(builtins)):
            if node.id in scope:
                return scope[node.id]
        raise Unclear


class _Plain(_Method):
    """Raises Unclear at the first statement of a method that tracing may miss."""

    def check(self, lists: set[str]) -> bool:
        """`lists`: arguments that may be a list or dict which was made by the forward. Returns
        whether the result may be one."""
        self.lists.names |= lists
        for statement in self.tree.body:
            self.visit(statement)
        self.lists.check_uses()
        returns = [node.value for node in nodes(self.tree) if isinstance(node, ast.Return)]
        if not self.is_forward:
            for value in returns:
                self.lists.check_flat(value)
        return any(map(self.lists.makes, returns))

    def visit(self, node: ast.AST) -> None:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_docstring:
            return
        if not isinstance(node, (*_STATEMENTS, *_EXPRESSIONS)):
            raise Unclear
        super().visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        got = {}
        if isinstance(node.value, ast.Call) and _is_name(node.value.func, "getattr"):
            target, *others = node.targets
            if others or not isinstance(target, ast.Name) or self.written[target.id] != 1:
                raise Unclear
            got = {target.id: self._got(node.value)}
        else:
            self.visit(node.value)
        for target in node.targets:
            self._check_target(target)
        self.lists.name(node.targets, node.value)
        self.known |= got

    def _got(self, call: ast.Call) -> Any:
        """What `getattr(self, "name", default)` is, for tests of it."""
        is_constant = all(isinstance(part, ast.Constant) for part in call.args[1:])
        is_own = len(call.args) in (2, 3) and _is_name(call.args[0], self.own)
        if (
            self._value(call.func) is not getattr
            or not (is_constant and is_own)
            or call.keywords
            or not lookup.has_plain_attributes(type(self.module))
        ):
            raise Unclear
        _, name, *default = (getattr(part, "value", None) for part in call.args)
        has_it = any(name in scope for scope in lookup.scopes(self.module))
        has_it |= inspect.getattr_static(type(self.module), name, Unclear) is not Unclear
        if not has_it and not default:
            raise Unclear
        value = lookup.attribute(self.module, name) if has_it else default[0]
        is_module = isinstance(value, torch.nn.Module) and lookup.has_plain_truth(value)
        if not is_module and not lookup.is_constant(value):
            raise Unclear
        self.reads.attributes[name] = value if has_it else ABSENT
        return value

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._check_target(node.target)
        if node.value is not None:
            self.visit(node.value)
            self.lists.name([node.target], node.value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._check_remainder(node.op, node.value)
        self.visit(node.value)
        if self.lists.makes(node.target):
            raise Unclear  # a list grows by what anything has
        self._check_target(node.target)

    def _check_target(self, target: ast.AST) -> None:
        targets = target.elts if isinstance(target, ast.Tuple) else [target]
        names = {node.id for node in targets if isinstance(node, ast.Name)}
        if len(names) != len(targets) or self.own in names:
            raise Unclear
        self._forget(names)

    def visit_If(self, node: ast.If) -> None:
        for statement in node.body if self._test(node.test) else node.orelse:
            self.visit(statement)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit(node.body if self._test(node.test) else node.orelse)

    def visit_For(self, node: ast.For) -> None:
        modules: Any = self.module
        if not self._is_over_children(node.iter):
            modules = self.module if _is_name(node.iter, self.own) else self._value(node.iter)
            if not isinstance(modules, _MODULES):
                raise Unclear
            if type(modules).__iter__ not in [kind.__iter__ for kind in _MODULES]:
                raise Unclear
            self._take_container(node.iter)
        if any(
            type(child).__call__ is not torch.nn.Module.__call__ for child in modules.children()
        ):
            raise Unclear
        if not isinstance(node.target, ast.Name):
            raise Unclear
        self._check_target(node.target)
        # What a round changes, the next one sees.
        names = [name for name in ast.walk(node) if isinstance(name, ast.Name)]
        self._forget({name.id for name in names if not _is_load(name)})
        self.modules.add(node.target.id)
        for statement in (*node.body, *node.orelse):
            self.visit(statement)

    def _is_over_children(self, node: ast.expr) -> bool:
        """Whether this is `self.children()`, of the submodules as they are registered."""
        if not isinstance(node, ast.Call) or node.args or node.keywords:
            return False
        method = self._value(node.func)
        return bool(method == types.MethodType(torch.nn.Module.children, self.module))

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self._check_remainder(node.op, node.right)
        self.generic_visit(node)

    def _check_remainder(self, operator: ast.operator, right: ast.AST) -> None:
        """Of a text, "%s" would write what tracing has in the place of a value."""
        names = [name for name in ast.walk(right) if isinstance(name, ast.Name)]
        if isinstance(operator, ast.Mod) and names:
            raise Unclear

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, complex) and not cmath.isfinite(node.value):
            raise Unclear  # of which no code is written

    def visit_Dict(self, node: ast.Dict) -> None:
        if not all(isinstance(key, ast.Constant) for key in node.keys):
            raise Unclear  # keys that are equal
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        # Of submodules only calls are known; a global variable may get another value.
        is_module = isinstance(self.known.get(node.id), torch.nn.Module)
        if node.id in self.modules or is_module or node.id not in self.locals:
            raise Unclear

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if _root(node) is None or _root(node) in self.locals:
            if node.attr not in recording.ATTRIBUTES:
                raise Unclear  # which is recorded where it is used, and not by its own name
            self.visit(node.value)
            return
        value = self._value(node)
        if not isinstance(value, torch.Tensor):
            self._take(node, value)
        if not isinstance(value, torch.Tensor) and not lookup.can_be_said(value):
            raise Unclear

    def visit_Call(self, node: ast.Call) -> None:
        if any(keyword.arg is None for keyword in node.keywords):
            raise Unclear
        self._check_called(node.func, node)
        for value in (*node.args, *(keyword.value for keyword in node.keywords)):
            self.visit(value)

    def _check_method(self, name: str, method: Any, call: ast.Call) -> None:
        _, *names = signature(method).parameters
        values = dict(zip(names, call.args, strict=False))
        values |= {keyword.arg or "": keyword.value for keyword in call.keywords}
        known = self._known_in(method, values)
        lists = {name for name, value in values.items() if self.lists.makes(value)}
        for parameter in lists:
            self.lists.check_flat(values[parameter])
        try:
            if _Plain(self.module, name, method, self.reads, known).check(lists):
                self.lists.makers.add(id(call))
        except _Asked as error:
            value = values.get(error.name)
            if not isinstance(value, ast.Name) or value.id not in self.parameters:
                raise Unclear from error
            raise _Asked(value.id) from error

    def _check_called(self, function: ast.AST, call: ast.Call) -> None:
        if isinstance(function, ast.Name) and function.id in self.modules:
            return
        is_method = isinstance(function, ast.Attribute)
        if is_method and (_root(function) is None or _root(function) in self.locals):
            # Of a tensor, or of a module that is known at once. Lists grow by methods of their own.
            name = function.attr  # type: ignore[attr-defined]
            if not hasattr(torch.Tensor, name) or hasattr(list, name) or hasattr(dict, name):
                raise Unclear
            if isinstance(function.value, ast.Constant):  # type: ignore[attr-defined]
                raise Unclear  # of a text, some make lists
            self.visit(function.value)  # type: ignore[attr-defined]
            return
        value = self._value(function)
        if isinstance(value, torch.nn.Module) and value is not self.module:
            if type(value).__call__ is not torch.nn.Module.__call__:
                raise Unclear  # which runs while the others are recorded
            return
        if isinstance(value, types.MethodType) and value.__self__ is self.module:
            name = function.attr  # type: ignore[attr-defined]
            self._check_method(name, value.__func__, call)
        elif not (isinstance(value, Hashable) and value in lookup.torch_functions()):
            raise Unclear
        elif isinstance(function, ast.Attribute) and _root(function) == self.own:
            self._take(function, value)


def _is_load(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Load)


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _root(node: ast.AST) -> str | None:
    """The variable at the beginning of a dotted path, if there is one."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None
