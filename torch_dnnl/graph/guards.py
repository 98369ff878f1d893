"""The inputs that a graph of `optimize` takes: those that the export allows."""

from __future__ import annotations

import builtins
import marshal
import math
from types import FunctionType
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

NAME = "_guards_fn"  # torch.export gives the module that checks inputs this name


class Guards(torch.nn.Module):
    """torch.export's checks of inputs, in a form that can be pickled.

    Only the version of Python that made the pickle can load it.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        # torch.export wraps the function for Dynamo, which would not trace it otherwise.
        cells: Any = module.forward.__closure__
        contents = [cell.cell_contents for cell in cells]
        function: Any = next(item for item in contents if isinstance(item, FunctionType))
        self._is_impure = True  # the call has no users
        self.__setstate__(vars(self) | {"_code": marshal.dumps(function.__code__)})

    def __getstate__(self) -> dict[str, Any]:
        return {name: item for name, item in vars(self).items() if name != "_function"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        names = {**SYMPY_INTERP, "math": math, "inf": math.inf, "torch": torch}
        names["__builtins__"] = builtins
        function = FunctionType(marshal.loads(state["_code"]), names)
        self._function = torch._dynamo.dont_skip_tracing(function)

    def forward(self, *inputs: Any) -> None:
        self._function(*inputs)
