"""Bad calls: one argument of a good call is replaced by a value that is wrong, or may be.

The call must raise one of Python's exceptions for bad arguments, within a second, with a message
that names the operator and an argument; or be a call that is defined, and give what that gives.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from fuzz.problems import Operator, Problem, Tape

SECONDS = 1.0
# Of a result that is defined, and too large for this process.
TOO_LARGE = ("allocate memory", "Storage size calculation overflowed")
MOST_BYTES = 1 << 30
ALLOWED = (ValueError, TypeError, NotImplementedError, IndexError, RuntimeError)
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
OTHERS = ["None", "'abc'", "b'abc'", "''", "()", "{}", "object()", "1.5", "True", "1j", "torch"]
# Words of messages for what several arguments say together.
WORDS = ("kernel", "sizes", "dilation", "scale_factor", "tag")
TEXTS = ["'none'", "'NCX'", "'x' * 10000", "'auto\\0'", "'\\ud800'", "'ab0c'", "'aBcd16b'", "'é'"]
TEXTS += ["'abcdefghijklmnopqrstuvwxyz'", "'aB99999999999999999999b'", "'AB-4a'", "'reference'"]
LISTS = ["[]", "[1]", "[1] * 100", "[-1] * {n}", "[0] * {n}", "[2**31] * {n}", "[2**62] * {n}"]
LISTS += ["[-2**63] * {n}", "[1.5] * {n}", "['a'] * {n}", "[None] * {n}", "[True] * {n}", "[[1]]"]
FLOAT_LISTS = [f"[{number}] * {{n}}" for number in NUMBERS]
TENSORS = ["t[..., :-1]", "t[:0]", "t[None]", "t.flatten()", "t[0]", "t.to('meta')", "t.bool()"]
TENSORS += ["t.double()", "t.int()", "t.long()", "t.cfloat()", "t.to_sparse()", "t.half()"]
TENSORS += ["t.to(torch.float8_e5m2)", "t.unsqueeze(-1)", "torch.empty(0)", "torch.tensor(1.0)"]
TENSORS += ["t.expand(2**20, *t.shape)", "t[:1].expand(2**40, *t.shape[1:])", "t.to_mkldnn()"]
TENSORS += [
    "torch.nested.nested_tensor([t])",
    "torch.quantize_per_tensor(t.float(), 1, 0, torch.qint8)",
]
DTYPES = ["torch.int64", "torch.bool", "torch.complex64", "torch.quint8", "torch.float8_e4m3fn"]
DTYPES += ["torch.int16", "torch.uint16", "torch.float64", "'float32'", "None"]


@functools.cache
def schema(operator: str) -> dict[str, str]:
    """The arguments and their types, as the schema has them."""
    (found,) = [s for s in torch._C._jit_get_all_schemas() if s.name == f"torch_dnnl::{operator}"]
    return {a.name: str(a.type) for a in found.arguments}


def _replacements(kind: str) -> list[str]:
    if "Tensor" in kind:
        return TENSORS + OTHERS
    if "List" in kind or "[]" in kind:
        return LISTS + (FLOAT_LISTS if "float" in kind else []) + OTHERS
    if "str" in kind:
        return TEXTS + OTHERS
    if "float" in kind:
        return NUMBERS + INTEGERS + OTHERS
    if "bool" in kind:
        return [*OTHERS, "2", "torch.tensor(True)"]
    return INTEGERS + NUMBERS[:3] + OTHERS


def spoil(operator: Operator, problem: Problem, tape: Tape) -> Problem:
    """With something wrong; takes a few bytes."""
    arguments = schema(operator.name)
    name = tape.pick(list(arguments))
    options = DTYPES if name == "dtype" else _replacements(arguments[name])
    spatial = len(problem.attributes.get("strides", [1, 1]))
    return dataclasses.replace(
        problem, wrong=(name, tape.pick(options).replace("{n}", str(spatial)))
    )


def _spoilt(problem: Problem) -> dict[str, Any] | None:
    """The call; None where the argument has no such neighbour, as it is not there."""
    call = problem.call()
    name, text = problem.wrong
    try:
        value = eval(text, {"torch": torch, "t": call.get(name)})
    except Exception:
        return None
    return call | {name: value}


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
    kinds = schema(operator.name)
    for name, value in call.items():
        if "[]" in kinds[name] or "List" in kinds[name]:
            sequence = isinstance(value, (list, tuple, bytes, str, dict))
            entries = [int(x) if isinstance(x, bool) else x for x in value] if sequence else value
            call[name] = entries if entries or "Optional" not in kinds[name] else None
        elif isinstance(value, bytes):
            call[name] = value.decode()
        elif isinstance(value, bool) and "bool" not in kinds[name]:
            call[name] = int(value)
    return call


def check(operator: Operator, problem: Problem) -> None:
    call = _spoilt(problem)
    if call is None:
        return
    with little_memory():
        _check(operator, call, call[problem.wrong[0]])


def _check(operator: Operator, call: dict[str, Any], value: Any) -> None:
    start = time.perf_counter()
    try:
        actual = operator.run(call)
    except ALLOWED as error:
        seconds, message = time.perf_counter() - start, str(error)
        assert seconds < SECONDS, f"raised after {seconds:.1f} s: {message[:200]}"
        if any(text in message for text in TOO_LARGE):
            return
        what = f"{type(error).__name__}: {message[:300]}"
        # What computes a part of an operator speaks for itself.
        family = operator.name.split("_")[0]
        assert re.search(rf"\b{family}(_\w+)?\b", message), f"no operator is named: {what}"
        is_dispatched = (
            f"Could not run 'torch_dnnl::{operator.name}' with arguments from" in message
        )
        names = [*schema(operator.name), *WORDS]
        assert is_dispatched or re.search("|".join(rf"\b{n}\b" for n in names), message), (
            f"no argument is named: {what}"
        )
        return
    seconds = time.perf_counter() - start
    assert seconds < SECONDS, f"returned after {seconds:.1f} s"
    if any(torch.is_tensor(v) and v.device.type == "meta" for v in call.values()):
        return
    if _is_huge(value):  # what it gives is a matter of roundings
        return
    try:
        call = _as_taken(operator, call)
        wanted = operator.expected(call)
    except MemoryError:  # of the oracle, which has whole matrices
        return
    except Exception as error:
        raise AssertionError(
            f"the call returned, and the oracle refuses it: {type(error).__name__} {error}"
        ) from None
    operator.compare(call, actual, wanted)
