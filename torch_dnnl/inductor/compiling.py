"""Inductor's compiler of one graph, with what images of changing sizes and layouts need of it.

Each change of Inductor holds while one graph is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from threading import RLock
from typing import Any
from unittest import mock

from torch import Tensor
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import GraphModule

from torch_dnnl.graph.constants import Constants
from torch_dnnl.graph.packing import pack_weights

_lock = RLock()  # another thread would restore what this one has changed


def compile_graph(module: GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Any:
    """Inductor's `compile_fx_inner`.

    - Output strides stay symbols if sizes are symbols. By default Inductor reports the strides of
      the first image as numbers, and the backward graph takes these for saved tensors of any image.
    - Results have the strides of eager mode. By default Inductor keeps the strides of the last
      operator, and an operator of torch_dnnl may choose other strides than torch's.
    - Constant weights, as frozen graphs have, are packed.
    - Symbolic strides can be sorted (https://github.com/pytorch/pytorch/issues/172204).
    """
    from torch._inductor import compile_fx, ir

    with unset_fake_temporarily():
        pack_weights(module.graph, Constants(module))
    context = TracingContext.try_get()
    with _lock, ExitStack() as changes:

        def change(of: Any, name: str, item: Any) -> None:
            changes.enter_context(mock.patch.object(of, name, item))

        if context is not None:
            change(context, "fakify_first_call", True)
        record = _recorder(compile_fx.record_original_output_strides, module)
        change(compile_fx, "record_original_output_strides", record)
        change(ir, "get_fill_order", _sorter(ir.get_fill_order))
        return compile_fx.compile_fx_inner(module, example_inputs, **kwargs)


def _recorder(plain: Callable[[Any], None], module: GraphModule) -> Callable[[Any], None]:
    results: Any = module.graph.output_node().args[0]
    results = results if isinstance(results, (list, tuple)) else [results]
    tensors = [getattr(result, "meta", {}).get("val") for result in results]

    def record(of: GraphModule) -> None:
        plain(of)
        if of is module:
            meta = of.graph.output_node().meta
            found = zip(tensors, meta["original_output_strides"], strict=True)
            meta["original_output_strides"] = [
                tensor.stride() if isinstance(tensor, Tensor) else strides
                for tensor, strides in found
            ]

    return record


def _sorter(plain: Callable[..., Any]) -> Callable[..., Any]:
    def get_fill_order(strides: Sequence[Any], shape_env: Any = None) -> Any:
        from torch._inductor.virtualized import V

        return plain(strides, shape_env or V.graph.sizevars.shape_env)

    return get_fill_order
