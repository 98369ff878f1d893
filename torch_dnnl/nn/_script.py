"""What the modules of the package say to TorchScript's compiler."""

from __future__ import annotations

from typing import NoReturn

import torch


def _refuse(module: torch.nn.Module) -> NoReturn:
    raise NotImplementedError(
        f"torch.jit.script: expected no module of torch_dnnl.nn, got {type(module).__name__}: "
        "use torch.jit.trace or torch.export, or, of a converted model, script what "
        "torch_dnnl.revert(model) returns"
    )


def refuse_scripting(*classes: type[torch.nn.Module]) -> None:
    """Has `torch.jit.script` raise one sentence instead of what its compiler finds in our code."""
    for cls in classes:
        cls.__prepare_scriptable__ = _refuse  # type: ignore[attr-defined]
