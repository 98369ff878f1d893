"""`torch.compile(model, backend="torch_dnnl")`: Inductor, with operators of torch_dnnl.

torch finds the backend by the entry point in pyproject.toml, without an import of torch_dnnl.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_origin

from torch._dynamo import list_backends, register_backend
from torch._inductor import config, list_mode_options
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph, GraphModule

import torch_dnnl
from torch_dnnl.graph.epilogues import fuse_epilogues
from torch_dnnl.inductor.compiling import compile_graph
from torch_dnnl.inductor.convolutions import (
    fold,
    relax_layouts,
    replace_convolutions,
    restore_convolutions,
)
from torch_dnnl.inductor.resampling import replace_interpolations

__all__ = ["backend"]


class _Pass(CustomGraphPass):
    """Passes over a graph. Inductor's cache of compiled graphs tells them by the files here, and by
    the library that says how results lie in memory."""

    def __init__(self, *passes: Callable[[Graph], None]) -> None:
        self._passes = passes

    def __call__(self, graph: Graph) -> None:
        for run in self._passes:
            run(graph)

    def uuid(self) -> bytes:
        package = Path(torch_dnnl.__file__).parent
        rooms = [package / "inductor", package / "graph"]
        sources = [file for room in rooms for file in room.glob("*.py")]
        files = sorted(map(str, [*sources, *package.glob("_C*.so")]))
        return get_hash_for_files(tuple(files), torch_dnnl.__version__)


_PASSES = {
    "pre_grad_custom_pass": _Pass(replace_interpolations),
    "joint_custom_pre_pass": _Pass(
        *(replace_convolutions, fold, fuse_epilogues),
        *(restore_convolutions, relax_layouts),
    ),
}


def backend(
    model: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Any:
    """Compiles a graph of Dynamo's: what `torch.compile(model, backend="torch_dnnl")` calls.

    Inductor compiles it, with its modes and options. Convolutions and `F.interpolate`, forward and
    backward, are torch_dnnl's operators wherever these were measured to be faster.

    Args:
        model: the graph.
        example_inputs: its inputs, as fake tensors.
        mode: of `torch.compile`: "default", "reduce-overhead", "max-autotune", ...
        options: of `torch.compile`: Inductor's configuration.

    Returns:
        What computes the outputs of the graph.

    Raises:
        RuntimeError: an option or a mode that Inductor does not have, or an option of another type.

    Example:
        >>> model = torch.compile(torch.nn.Conv2d(3, 8, 3), backend="torch_dnnl")
        >>> model(torch.rand(1, 3, 9, 9)).shape
        torch.Size([1, 8, 7, 7])
    """
    from torch._inductor.compile_fx import compile_fx

    patches = {} if mode in (None, "default") else dict(list_mode_options(mode))
    patches |= {name.replace("-", "_"): item for name, item in (options or {}).items()}
    known = config.get_config_copy()
    for name, item in patches.items():
        if name not in known:
            raise RuntimeError(f"torch_dnnl: expected options to be Inductor's, got {name!r}")
        expected = config.get_type(name)  # type: ignore[attr-defined]
        if get_origin(expected) is None and not isinstance(item, expected):
            raise RuntimeError(
                f"torch_dnnl: expected option {name!r} to be {expected.__name__}, got {item!r}"
            )
    for name, own in _PASSES.items():
        others = patches.get(name, known[name])
        patches[name] = own if others is None else _together(own, others)
    return compile_fx(model, example_inputs, compile_graph, config_patches=patches)


def _together(own: _Pass, others: Any) -> list[Any]:
    return [own, *(others if isinstance(others, (list, tuple)) else [others])]


# Without an entry point, as in a source tree that is not installed, an import makes it known.
if "torch_dnnl" not in list_backends(None):
    register_backend(backend, name="torch_dnnl")
