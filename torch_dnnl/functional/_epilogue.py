"""What follows the sums of a convolution: residual and activation."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def epilogue(
    residual: Tensor | None,
    activation: str | None,
    alpha: float | Tensor | None,
    beta: float | None,
) -> dict[str, Any]:
    """The arguments of an operator for what follows the sums."""
    if any(isinstance(each, (bytes, bool)) for each in (activation, alpha, beta)):
        raise TypeError  # the schema takes bytes for a str, and bools for numbers
    options = {"residual": residual, "activation": activation, "alpha": alpha, "beta": beta}
    if isinstance(alpha, Tensor):
        options |= {"alpha": None, "slope": alpha}
    return options


def epilogue_kinds(
    residual: object, activation: object, alpha: object, beta: object
) -> dict[str, tuple[object, str]]:
    """What `check_types` takes."""
    return {
        "residual": (residual, "a Tensor or None"),
        "activation": (activation, "a str or None"),
        "alpha": (alpha, "a number or a Tensor or None"),
        "beta": (beta, "a number or None"),
    }
