"""The source of a function, if it says what the function does."""

from __future__ import annotations
import __future__

import ast
import dis
import functools
import inspect
import operator
import textwrap
import types
from typing import Any

_FUTURES = functools.reduce(
    operator.or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)


@functools.lru_cache(1000)
def definition(code: types.CodeType) -> ast.FunctionDef | None:
    """The source of a function; None if it is not what the function was compiled from."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code))).body[0]
        if not isinstance(tree, ast.FunctionDef):
            return None
        tree.decorator_list = []  # this is the function that they got
        is_source = _instructions(_compiled(tree, code)) == _instructions(code)
    except Exception:  # whatever a file that was changed since makes of it
        return None
    return tree if is_source else None


@functools.lru_cache(1000)
def nodes(tree: ast.FunctionDef) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree))


def _compiled(tree: ast.FunctionDef, code: types.CodeType) -> types.CodeType:
    """The definition, within a function that has the variables which the code takes from there."""
    around = ast.parse("def around(): pass").body[0]
    assert isinstance(around, ast.FunctionDef)
    variables = "".join(f"{name} = None\n" for name in code.co_freevars)
    around.body = [*ast.parse(variables).body, tree]
    module = ast.fix_missing_locations(ast.Module([around], []))
    flags = code.co_flags & _FUTURES
    outer: Any = compile(module, code.co_filename, "exec", flags, dont_inherit=True)
    for name in ("around", tree.name):
        codes = [part for part in outer.co_consts if isinstance(part, types.CodeType)]
        outer = next(part for part in codes if part.co_name == name)
    return outer  # type: ignore[no-any-return]


def _instructions(code: types.CodeType) -> list[tuple[str, str]]:
    """What Python does, however it calls: that depends on whether the file imports a name."""
    jumps = {*dis.hasjrel, *dis.hasjabs}
    instructions = list(dis.get_instructions(code))
    kept = [each for each in instructions if each.opname not in ("PUSH_NULL", "EXTENDED_ARG")]
    # The numbers of instructions, as their places differ; of one that is left out, the next one's.
    numbers, number = {}, len(kept)
    for each in reversed(instructions):
        number -= any(each is one for one in kept[number - 1 : number])
        numbers[each.offset] = number
    return [
        (
            each.opname.replace("LOAD_METHOD", "LOAD_ATTR"),
            repr(numbers[each.argval] if each.opcode in jumps else each.argval),
        )
        for each in kept
    ]
