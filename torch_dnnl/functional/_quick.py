"""The quick way to an operator: that of torch.ops takes longer than kernels do on small tensors."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch_dnnl._libraries import check_whole


def _load() -> Any:
    """The library; None where it was built for another version of Python, or is damaged."""
    spec = find_spec("torch_dnnl._python")
    try:
        if spec is None or spec.origin is None:
            return None
        check_whole(Path(spec.origin))
        return import_module("torch_dnnl._python")
    except (ImportError, OSError):
        return None


_python = _load()


def quick(operator: str, prepares: bool = False) -> Callable[..., Any]:
    """A function that calls an operator with plain arguments; it is not for graphs.

    It returns the first result of the operator, or NotImplemented where the call is one for
    torch.ops: subclasses of Tensor, numbers of other types than Python's, modes and tracers. For a
    list it also takes one number, which stands for one per spatial dimension. A list with a default
    must have one entry per spatial dimension.

    With `prepares`, a call with all arguments by position is checked once, as long as the weights,
    the attributes, and the sizes and strides of the images are the same.
    """
    if _python is None:
        return lambda *args, **kwargs: NotImplemented
    function: Callable[..., Any] = _python.Operator(f"torch_dnnl::{operator}", prepares)
    return function
