"""Bad calls: one argument of a good call is replaced by a value that is wrong, or may be.

The call, of the operator or of the public function that ends in it, must raise one of Python's
exceptions for bad arguments, within a second of computing, with a message that names it and an
argument; or be a call that is defined, and give what that gives. The campaign ends a process in
which nothing happens for a minute.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import resource
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import torch_dnnl.functional as D
from fuzz.functions import FUNCTIONS
from fuzz.problems import Operator, Problem, Tape, tensors_of

SECONDS = 1.0
MOST_BYTES = 1 << 30
MOST_ELEMENTS = 100_000
# Of a result that is defined, and too large for this process.
TOO_LARGE = ("allocate memory", "size calculation overflowed", "Stride calculation overflowed")
ALLOWED = (ValueError, TypeError, NotImplementedError, IndexError, RuntimeError)
# Words of messages for what several arguments say together.
WORDS = ("kernel", "sizes", "dilation", "scale_factor", "tag")

INTEGERS = ["-1", "0", "2**31 - 1", "2**31", "2**48 + 1", "2**62", "-2**63", "2**63 - 1", "10**30"]
NUMBERS = [
    "float('nan')",
    "float('inf')",
    "-float('inf')",
    "0.0",
    "-1.0",
    "1e308",
    "5e-324",
    "1e39",
]
# Without bytes and bytearrays, which are strings to torch's operators.
NEVER_RIGHT = ["object()", "1j", "torch", "lambda: 1", "{1: 2}"]
OTHERS = [*NEVER_RIGHT, "None", "'abc'", "''", "()", "1.5", "True"]
TEXTS = ["'none'", "'NCX'", "'x' * 10000", "'auto\\0'", "'\\ud800'", "'ab0c'", "'aBcd16b'", "'é'"]
TEXTS += ["'abcdefghijklmnopqrstuvwxyz'", "'aB99999999999999999999b'", "'AB-4a'", "'reference'"]
LISTS = ["[]", "[1]", "[1] * 100", "[-1] * {n}", "[0] * {n}", "[2**31] * {n}", "[2**62] * {n}"]
LISTS += ["[-2**63] * {n}", "[1.5] * {n}", "['a'] * {n}", "[None] * {n}", "[True] * {n}", "[[1]]"]
# Sizes of the image, where the part begins, and both of the resized image.
WINDOWS = [
    f"[{image}] * {{n}} + [{begin}] * {{n}} + [{resized}] * {{n}} + [0] * {{n}}"
    for image, begin, resized in [
        ("64", "0", "64"),
        ("64", "2**48", "64"),
        ("2**47", "0", "40"),
        ("2**47", "2**46", "2**47"),
        ("40", "0", "2**48"),
        ("-1", "0", "2**62"),
    ]
]
FLOAT_LISTS = [f"[{number}] * {{n}}" for number in NUMBERS]
TENSORS = ["t[..., :-1]", "t[:0]", "t[None]", "t.flatten()", "t[0]", "t.to('meta')", "t.bool()"]
TENSORS += ["t.double()", "t.int()", "t.long()", "t.cfloat()", "t.to_sparse()", "t.half()"]
TENSORS += ["t.to(torch.float8_e5m2)", "t.unsqueeze(-1)", "torch.empty(0)", "torch.tensor(1.0)"]
TENSORS += ["t.expand(2**20, *t.shape)", "t[:1].expand(2**40, *t.shape[1:])", "t.to_mkldnn()"]
TENSORS += ["torch.nested.nested_tensor([t])", "t.numpy()", "[t]"]
TENSORS += ["torch.quantize_per_tensor(t.float(), 1, 0, torch.qint8)"]
DTYPES = ["torch.int64", "torch.bool", "torch.complex64", "torch.quint8", "torch.float8_e4m3fn"]
DTYPES += ["torch.int16", "torch.uint16", "torch.float64", "'float32'", "float", "None"]


# Of the types of arguments: what names a string, of a schema or an annotation.
_OF_TEXTS = ("str", "Format", "Mode", "Coordinates", "AutoPad", "Activation", "Compensation")


@functools.cache
def schema(operator: str) -> dict[str, str]:
    """The arguments of an operator and their types, as the schema has them."""
    (found,) = [s for s in torch._C._jit_get_all_schemas() if s.name == f"torch_dnnl::{operator}"]
    return {a.name: str(a.type) for a in found.arguments}


@functools.cache
def arguments(operator: str, of_function: bool) -> dict[str, str]:
    """The same, or the arguments of its function and their annotations."""
    if not of_function:
        return schema(operator)
    parameters = inspect.signature(getattr(D, FUNCTIONS[operator][0])).parameters
    return {name: str(parameter.annotation) for name, parameter in parameters.items()}


def _replacements(name: str, kind: str) -> list[str]:
    if name == "dtype":
        return DTYPES + NEVER_RIGHT
    if name == "window":
        return WINDOWS + LISTS + NEVER_RIGHT
    if "Number" in kind:
        return TENSORS + NUMBERS + OTHERS
    if "Tensor" in kind:
        return TENSORS + OTHERS
    if any(word in kind for word in ("List", "Sequence", "Size")):
        return LISTS + FLOAT_LISTS + INTEGERS + OTHERS
    if any(word in kind for word in _OF_TEXTS):
        return TEXTS + OTHERS
    if "bool" in kind:
        return [*OTHERS, "2", "torch.tensor(True)"]
    return INTEGERS + NUMBERS + OTHERS


def spoil(operator: Operator, problem: Problem, tape: Tape) -> Problem:
    """With something wrong; takes a few bytes."""
    of_function = tape.chance(0.5) and operator.name in FUNCTIONS
    names = arguments(operator.name, of_function)
    name = tape.pick(list(names))
    text = tape.pick(_replacements(name, names[name]))
    ranks = [len(s.shape) for s in problem.tensors.values()]
    spatial = (
        ranks[0] - 2 if ranks and "data_format" in problem.attributes else max(ranks, default=2)
    )
    return dataclasses.replace(
        problem, wrong=(name, text.replace("{n}", str(spatial))), of_function=of_function
    )


def _is_huge(value: Any) -> bool:
    numbers = value if isinstance(value, list) else [value]
    return any(isinstance(n, (int, float)) and abs(n) > 1e6 for n in numbers)


@contextmanager
def little_memory() -> Iterator[None]:
    """What would take more than MOST_BYTES is refused by the system, as where there is no more."""
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (in_use + MOST_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _as_taken(operator: Operator, call: dict[str, Any]) -> dict[str, Any]:
    """The arguments as the dispatcher takes them: any sequence as a list, and one without entries
    as None, True as 1, bytes as text."""
    kinds, call = schema(operator.name), dict(call)
    for name, value in call.items():
        if "List" in kinds[name]:
            sequence = isinstance(value, (list, tuple, bytes, str, dict))
            entries = [int(x) if isinstance(x, bool) else x for x in value] if sequence else value
            call[name] = entries if entries or "Optional" not in kinds[name] else None
        elif isinstance(value, bytes):
            call[name] = value.decode()
        elif isinstance(value, bool) and "bool" not in kinds[name]:
            call[name] = int(value)
    return call


def check(operator: Operator, problem: Problem) -> None:
    call = problem.call()
    name, text = problem.wrong
    if problem.of_function:
        call = FUNCTIONS[operator.name][1](call)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of tensors of kinds that torch gives up
        try:
            value = eval(text, {"torch": torch, "t": call.get(name)})
        except Exception:
            return  # the argument is not there, or has no such neighbour
        with little_memory():
            _check(operator, problem, call | {name: value}, value)


def _check(operator: Operator, problem: Problem, call: dict[str, Any], value: Any) -> None:
    function = operator.run
    if problem.of_function:
        function = lambda call: getattr(D, FUNCTIONS[operator.name][0])(**call)  # noqa: E731
    start = time.process_time()  # of all threads; other processes do not count
    try:
        actual = function(call)
    except ALLOWED as error:
        seconds, message = time.process_time() - start, str(error)
        assert seconds < SECONDS, f"raised after {seconds:.1f} s: {message[:200]}"
        if not any(part in message for part in TOO_LARGE):
            _check_message(operator, problem, f"{type(error).__name__}: {message[:500]}")
        return
    if problem.of_function:
        assert problem.wrong[1] not in NEVER_RIGHT, "the function takes what is no argument"
        return
    if any(torch.is_tensor(v) and v.device.type == "meta" for v in call.values()):
        return
    if _is_huge(value):  # what it gives is a matter of roundings
        return
    if any(t.numel() > MOST_ELEMENTS for t in tensors_of(actual)):  # the oracle is slow
        return
    try:
        call = _as_taken(operator, call)
        wanted = operator.expected(call)
    except MemoryError:  # of the oracle, which has whole matrices
        return
    except Exception as error:
        if any(part in str(error) for part in TOO_LARGE):  # and copies of what is expanded
            return
        raise AssertionError(
            f"the call returned, and the oracle refuses it: {type(error).__name__} {error}"
        ) from None
    operator.compare(call, actual, wanted)


def _check_message(operator: Operator, problem: Problem, what: str) -> None:
    """Of an operator, that of the dispatcher will do, or of an operator that computes a part."""
    names = [*arguments(operator.name, problem.of_function), *WORDS]
    if problem.of_function:
        begins = f": {FUNCTIONS[operator.name][0]}: expected "
        assert begins in what, f"the function is not named: {what}"
    else:
        family = operator.name.split("_")[0]
        assert re.search(rf"\b{family}(_\w+)?\b", what), f"no operator is named: {what}"
    of_dispatcher = (
        f"Could not run 'torch_dnnl::{operator.name}'",
        "There were no tensor arguments",
    )
    is_dispatched = not problem.of_function and any(text in what for text in of_dispatcher)
    assert is_dispatched or re.search("|".join(rf"\b{n}\b" for n in names), what), (
        f"no argument is named: {what}"
    )
