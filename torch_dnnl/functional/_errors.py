"""The error path of the functions: why a call that failed was a bad call.

Nothing here runs in a call that succeeds. The operators validate values; this adds what only
Python sees, the types of the arguments, and puts the names that the caller used into a message.
"""

from __future__ import annotations

import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def is_int(value: object) -> bool:
    """Whether it is an integer of any type; a traced one is a tensor."""
    if isinstance(value, Tensor):
        types = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
        return value.dim() == 0 and value.dtype in types
    return isinstance(value, (numbers.Integral, torch.SymInt)) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, (numbers.Real, torch.SymInt, torch.SymFloat)) and not isinstance(
        value, bool
    )


def _entries(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else [value]


def _sequence(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, (list, tuple)) and all(map(check, value))


def _or_sequence(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: all(map(check, _entries(value)))


def _is_tensor(value: object) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and not (value.is_quantized or value.is_nested)
    )


_KINDS: dict[str, Callable[[object], bool]] = {
    "a Tensor": _is_tensor,
    "a Tensor or PackedWeights": lambda value: _is_tensor(getattr(value, "weights", value)),
    "a bool": lambda value: isinstance(value, bool),
    "a number": _is_number,
    "a number or a Tensor": lambda value: _is_number(value) or _is_tensor(value),
    "a number or a sequence of numbers": _or_sequence(_is_number),
    "a sequence of ints": _sequence(is_int),
    "a sequence of numbers": _sequence(_is_number),
    "a str": lambda value: isinstance(value, str),
    "a torch.dtype": lambda value: isinstance(value, torch.dtype),
    "an int": is_int,
    "an int or a sequence of ints": _or_sequence(is_int),
}


def check_types(function: str, arguments: Mapping[str, tuple[object, str]]) -> None:
    """Raises a TypeError for the first argument that is not of its kind.

    `arguments` maps a name to its value and a key of `_KINDS`, which " or None" may follow.
    """
    for name, (value, kind) in arguments.items():
        if value is None and kind.endswith(" or None"):
            continue
        if not _KINDS[kind.removesuffix(" or None")](value):
            of_tensors = " (strided, neither quantized nor nested)" * isinstance(value, Tensor)
            expected = kind.replace("a Tensor", f"a Tensor{of_tensors}")
            raise TypeError(f"{function}: expected {name} to be {expected}, got {describe(value)}")
        if isinstance(value, str) and re.search("[\ud800-\udfff]", value):
            raise ValueError(
                f"{function}: expected {name} to have whole characters, got {describe(value)}"
            )
        limit = 2**63 if "int" in kind else 2**1023
        if any(isinstance(n, int) and not -limit <= n < limit for n in _entries(value)):
            raise ValueError(f"{function}: expected {name} to fit in 64 bits, got {_short(value)}")


def check_factors(
    function: str, scale_factor: object, sizes: Sequence[int], error: type[Exception]
) -> None:
    """Raises `error` unless every scale factor is positive and gives sizes that are integers."""
    largest = max(sizes, default=1)
    if not all(0 < factor * largest < 2**63 for factor in _entries(scale_factor)):
        raise error(
            f"{function}: expected scale_factor to be finite, positive and not too large for "
            f"sizes {list(sizes)}, got {_short(scale_factor)}"
        )


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def describe(value: object) -> str:
    if isinstance(value, Tensor) and value.is_nested:
        return f"a nested Tensor of type {value.dtype}"
    if isinstance(value, Tensor):
        layout = "quantized" if value.is_quantized else value.layout
        return f"a {layout} Tensor of shape {list(value.shape)} and type {value.dtype}"
    return f"{_short(value)} of type {type(value).__name__}"


def in_words_of(function: str, error: Exception, names: Mapping[str, str]) -> str:
    """An operator's message, `<operator>: ...`, with the caller's names in it."""
    message = re.sub(r"^\w+:", f"{function}:", str(error))
    for name, new in names.items():
        message = re.sub(rf"\b{name}\b", new, message)
    return message


def in_words_of_pads(error: Exception, pads: object) -> Exception:
    """A transposed convolution's error; of sizes that the caller did not give, another one."""
    if not isinstance(error, ValueError) or "dst_size" not in str(error):
        return error
    return ValueError(
        "convolution_transpose: expected pads to leave a result of 0 to 2^48 pixels in each "
        f"dimension, got {pads}, which leaves {str(error).rpartition('got ')[2]}"
    )
