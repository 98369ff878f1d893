"""The activations that the kernels compute, and their forms in graphs."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx

from torch_dnnl.graph.nodes import (
    arguments_of,
    aten,
    call,
    name_of,
    only_user,
    replace,
    value,
)

# The first function defines an activation. The others are ways in which models spell it.
DEFINITIONS: dict[str, tuple[Callable[[Tensor], Tensor], ...]] = {
    "relu": (F.relu, lambda x: x.clamp(min=0)),
    "relu6": (
        F.relu6,
        lambda x: x.clamp(0, 6),
        lambda x: F.relu(x).clamp(max=6),
        lambda x: x.clamp(min=0).clamp(max=6),
    ),
    "silu": (F.silu, lambda x: x * x.sigmoid()),
    "gelu": (
        F.gelu,
        lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2))),
        lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
    ),
    "gelu_tanh": (
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    "sigmoid": (torch.sigmoid,),
    "tanh": (torch.tanh,),
    "hardswish": (
        F.hardswish,
        lambda x: x * F.hardsigmoid(x),
        lambda x: x * (x + 3).clamp(0, 6) / 6,
        lambda x: x * ((x + 3).clamp(0, 6) / 6),
        lambda x: x * F.relu6(x + 3) / 6,
        lambda x: x * (F.relu6(x + 3) / 6),
        lambda x: x * (x + 3).clamp(0, 6) * (1 / 6),
        lambda x: x * ((x + 3).clamp(0, 6) * (1 / 6)),
        lambda x: x * F.relu6(x + 3) * (1 / 6),
        lambda x: x * (F.relu6(x + 3) * (1 / 6)),
    ),
    "hardsigmoid": (
        F.hardsigmoid,
        lambda x: (x + 3).clamp(0, 6) / 6,
        lambda x: F.relu6(x + 3) / 6,
        lambda x: (x + 3).clamp(0, 6) * (1 / 6),
        lambda x: F.relu6(x + 3) * (1 / 6),
    ),
    "mish": (F.mish, lambda x: x * torch.tanh(F.softplus(x))),
    "softplus": (F.softplus,),
}
# In a quantized convolution, a clamp becomes part of the rounding.
QUANTIZED = frozenset(DEFINITIONS) - {"relu6"} | {"leaky_relu", "elu"}

_SYMMETRIC = (aten.mul.Tensor, aten.add.Tensor)


@cache
def _patterns(dtype: torch.dtype) -> dict[Any, list[tuple[str, Graph]]]:
    """The graphs of each activation for this type, by the operator that they end with: as
    torch.export has them, and as Inductor's decompositions make them."""
    from torch._inductor.decomposition import select_decomp_table  # takes a second to import

    example = torch.empty(2, 2, 2, dtype=dtype, device="cpu")
    found: dict[Any, list[tuple[str, Graph]]] = {}

    def enter(name: str, function: Callable[[Tensor], Tensor], table: dict[Any, Any]) -> None:
        graph = make_fx(lambda x: function(x), decomposition_table=table)(example).graph
        end: Any = graph.output_node().args[0]
        found.setdefault(end.target, []).append((name, graph))

    with torch._C._DisableAutocast():
        for name, functions in DEFINITIONS.items():
            for function in functions:
                enter(name, function, {})
                enter(name, function, select_decomp_table())
    return found


class Activation(NamedTuple):
    name: str
    input: Node
    size: int  # how many nodes compute it
    parameters: dict[str, Any]  # arguments of the convolution: alpha, beta, slope


def activation_of(node: Node) -> Activation | None:
    """The activation that a node is the result of."""
    tensor = value(node)
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        return None
    for name, pattern in _patterns(tensor.dtype).get(node.target, ()):
        leaf = _leaf(pattern.output_node().args[0], node, None)
        if leaf is not None:
            return Activation(name, leaf, len(pattern.nodes), {})
    return _with_parameters(node)


def join_hardsigmoids(graph: Graph) -> None:
    """Replaces the spellings of hardsigmoid by the operator: a fold into the convolution before
    them would take their first sum."""
    for node in list(graph.nodes):
        found = activation_of(node) if node.op == "call_function" else None
        if found is not None and found.name == "hardsigmoid" and found.size > 3:
            with graph.inserting_before(node):
                new = call(node, aten.hardsigmoid.default, found.input, val=value(node))
            replace(node, new)


# Torch's prelu of an image has its slopes in a view.
_SLOPE_VIEWS = (aten.view.default, aten.reshape.default, aten.unsqueeze.default)


def _with_parameters(node: Node) -> Activation | None:
    """leaky_relu, elu, prelu and clamp, as torch.export has them."""
    name = name_of(node).removeprefix("aten::").lstrip("_")
    if name in ("leaky_relu", "elu", "prelu", "prelu_kernel"):
        call = arguments_of(node)
        if name in ("leaky_relu", "elu"):
            alpha = call["negative_slope" if name == "leaky_relu" else "alpha"]
            is_plain = name == "leaky_relu" or call["scale"] == call["input_scale"] == 1
            is_number = isinstance(alpha, (int, float)) and math.isfinite(alpha)
            found = Activation(name, call["self"], 1, {"alpha": alpha})
            return found if is_plain and is_number else None
        slope = call["weight"]
        while slope.target in _SLOPE_VIEWS:
            slope = slope.args[0]
        of_slope = value(slope)
        is_parameter = slope.op in ("get_attr", "placeholder") and of_slope.dim() == 1
        is_parameter &= of_slope.dtype == value(call["self"]).dtype
        return Activation("prelu", call["self"], 1, {"slope": slope}) if is_parameter else None
    bounds = bounds_of(node)
    if bounds is None:
        return None
    source, size = arguments_of(node)["self"], 3  # as that of a pattern with one operator
    while (before := _bounds_or_relu(source)) is not None and only_user(source) is not None:
        # The bounds before are values that this clamp may move.
        bounds = tuple(min(max(bound, bounds[0]), bounds[1]) for bound in before)  # type: ignore[assignment]
        source, size = arguments_of(source)["self"], size + 1
    if bounds[0] == math.inf or bounds[1] == -math.inf:
        return None
    low, high = (bound if math.isfinite(bound) else None for bound in bounds)
    return Activation("clamp", source, size, {"alpha": low, "beta": high})


def _bounds_or_relu(node: Node) -> tuple[float, float] | None:
    return (0.0, math.inf) if node.target is aten.relu.default else bounds_of(node)


def _leaf(pattern: Any, found: Node, leaf: Node | None) -> Node | None:
    """The node that stands where the pattern has its input, if the calls are the same. `leaf` is
    the node that has to stand there, if that is known."""
    if pattern.op == "placeholder":
        return found if leaf in (None, found) else None
    if pattern.target != found.target:
        return None
    wanted, given = arguments_of(pattern), arguments_of(found)
    pairs = [(wanted[name], given[name]) for name in wanted]
    orders = [pairs]
    if pattern.target in _SYMMETRIC:
        (a, x), (b, y), *rest = pairs
        orders.append([(a, y), (b, x), *rest])
    for order in orders:
        result = leaf
        for a, x in order:
            if isinstance(a, Node) and isinstance(x, Node):
                result = _leaf(a, x, result)
                if result is None:
                    break
            elif not _are_equal(a, x):
                result = None
                break
        if result is not None:
            return result
    return None


def _are_equal(a: Any, b: Any) -> bool:
    numbers = (int, float)  # the bounds of a clamp may be either
    is_alike = type(a) is type(b) or {type(a), type(b)} <= set(numbers)
    return is_alike and bool(a == b)


def bounds_of(node: Node) -> tuple[float, float] | None:
    """Between which an operator keeps the values."""
    name = name_of(node).removeprefix("aten::").removesuffix("_")
    if name == "relu6":
        return 0.0, 6.0
    names = {"hardtanh": ("min_val", "max_val"), "clamp": ("min", "max")}.get(name)
    if names is None:
        return None
    call = arguments_of(node)
    low, high = (call[name] for name in names)
    low, high = -math.inf if low is None else low, math.inf if high is None else high
    if isinstance(low, Node) or isinstance(high, Node) or not low <= high:
        return None
    return float(low), float(high)
