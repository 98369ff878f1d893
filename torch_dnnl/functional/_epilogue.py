"""The epilogue of a convolution: residual and activation, as arguments of an operator."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def epilogue(
    residual: Tensor | None,
    activation: str | None,
    alpha: float | Tensor | None,
    beta: float | None,
) -> dict[str, Any]:
    """The arguments of an operator. A tensor for alpha is the slope of prelu."""
    # The schema takes bytes for a str, and bools for numbers.
    if isinstance(activation, bytes) or isinstance(alpha, bool) or isinstance(beta, bool):
        raise TypeError
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
