"""What torch.fx records of a forward, where its own record would be another program."""

from __future__ import annotations

import dis
import itertools
import keyword
import operator
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import fx
from torch.fx.graph import PythonCode, _custom_builtins

ATTRIBUTES = ("shape", "dtype", "device", "ndim", "T", "mT")  # that a graph may have


def unpack(values: Iterable[Any], count: int) -> tuple[Any, ...]:
    """What `a, b = values` takes from them, or its exception."""
    found = tuple(itertools.islice(values, count + 1))
    if len(found) > count:
        raise ValueError(f"too many values to unpack (expected {count})")
    if len(found) < count:
        raise ValueError(f"not enough values to unpack (expected {count}, got {len(found)})")
    return found


class Proxy(fx.Proxy):
    def __getattr__(self, name: str) -> Any:
        """Read where the forward reads it, not where it is used, which may be after a change."""
        if name in ATTRIBUTES:
            return self.tracer.create_proxy("call_function", getattr, (self, name), {})
        return super().__getattr__(name)

    def __iter__(self) -> Iterator[Any]:
        """torch's record takes items by their index, however many there are."""
        caller = sys._getframe(1)
        for instruction in dis.get_instructions(caller.f_code):
            is_here = instruction.offset == caller.f_lasti
            if is_here and instruction.opname == "UNPACK_SEQUENCE":
                count = instruction.argval
                args = (self, count)
                values: Any = self.tracer.create_proxy("call_function", unpack, args, {})
                return iter([values[i] for i in range(count)])
        return super().__iter__()


def _in_place(name: str) -> Callable[[Any, Any], Any]:
    """`x += y`, which torch records as `x = x + y`, and writes so that x changes where it is a
    number that has other names."""
    operate = getattr(operator, f"i{name}")

    def function(left: Any, right: Any) -> Any:
        return operate(left, right)

    def record(self: fx.Proxy, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    function.__name__ = function.__qualname__ = f"in_place_{name}"  # in the code of graphs
    setattr(Proxy, f"__i{name}__", record)
    return function


_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")
_BITS = ("and", "or", "xor", "lshift", "rshift")
in_place_add, *_others = (_in_place(name) for name in (*_OPERATORS, *_BITS))


def can_be_written(graph: fx.Graph) -> bool:
    """Whether Python reads the names of all parts as they are: not `x.global` or ligatures."""
    paths = [str(node.target) for node in graph.nodes if node.op in ("call_module", "get_attr")]
    names = {name for path in paths for name in path.split(".")}
    return not any(
        not name.isascii() or keyword.iskeyword(name) or re.search(r"[^\w $@:/<>+*()-]", name)
        for name in names
    )


def hides_names(graph: fx.Graph, code: PythonCode) -> bool:
    """Whether an argument has the name of something else in the code of the graph."""
    names = [str(node.target) for node in graph.nodes if node.op == "placeholder"]
    taken = {"self", "Ellipsis", *_custom_builtins, *code.globals}
    return any(name in taken or re.search(rf"\b{name}\(", code.src) for name in names)
