"""The quick way to an operator: that of torch.ops takes longer than kernels do on small tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import torch_dnnl._python as _python
except ImportError:  # built for another version of Python
    _python = None


def quick(operator: str) -> Callable[..., Any]:
    """A function that calls an operator with plain arguments; it is not for graphs.

    It returns the first result of the operator, or NotImplemented where the call is one for
    torch.ops: subclasses of Tensor, numbers of other types than Python's, modes and tracers. For a
    list it also takes one number, which stands for one per spatial dimension. A list with a default
    must have one entry per spatial dimension.
    """
    if _python is None:
        return lambda *args, **kwargs: NotImplemented
    function: Callable[..., Any] = _python.Operator(f"torch_dnnl::{operator}")
    return function
