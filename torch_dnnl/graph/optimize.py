"""`torch_dnnl.optimize`: a model for inference, whose graph is rewritten once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from torch_dnnl.graph.activations import join_hardsigmoids
from torch_dnnl.graph.calls import quicken, quicken_attributes
from torch_dnnl.graph.channels import fold_channels, fold_into_next
from torch_dnnl.graph.constants import Constants, escapes
from torch_dnnl.graph.epilogues import fuse_epilogues
from torch_dnnl.graph.guards import NAME, Guards
from torch_dnnl.graph.layers import (
    CONVOLUTIONS,
    replace_convolutions,
    replace_linears,
    restore_linears,
)
from torch_dnnl.graph.layouts import (
    allow_any_layout,
    convert_pools,
    have_same_strides,
    layouts_of,
    memory_order,
    refresh,
    use_channels_last,
)
from torch_dnnl.graph.nodes import arguments_of, aten, erase_unused, value
from torch_dnnl.graph.packing import pack_weights
from torch_dnnl.graph.pickling import Optimized
from torch_dnnl.graph.quantized import has_quantized, lower_quantized
from torch_dnnl.graph.report import Report
from torch_dnnl.graph.resizes import decompositions

__all__ = ["optimize"]


def optimize(
    model: torch.nn.Module,
    example_inputs: Any,
    *,
    example_kwargs: dict[str, Any] | None = None,
    dynamic_shapes: Any = None,
    verbose: bool = False,
) -> torch.nn.Module:
    """Returns a model for inference whose graph was rewritten once.

    `torch.export` captures the model in eval mode. Its contract and its errors hold: a graph of
    operators, for the inputs that `dynamic_shapes` allows. Then:

    - Batch norms in eval mode, and other sums and products with a number for each channel, go into
      the weights and the bias of the convolution or linear layer before them, or of the convolution
      behind them. Where neither is possible, they and the activation behind them are one pass over
      the image.
    - A residual and an activation (relu, relu6, silu, exact gelu, sigmoid, tanh, hardswish, also
      spelled out) are computed in the kernel of the convolution before them. Linear layers are
      convolutions with one tap, where that is the faster.
    - `torch.nn.functional.interpolate` is torch_dnnl's, and so are average pools whose areas
      overlap.
    - Images are channels_last inside, where that saves more than their conversion costs. Results
      lie in memory as those of the model for the examples.
    - What depends on parameters alone is computed once, and weights are packed once. glibc's malloc
      keeps up to 256 MB of freed memory for the next call.
    - Of a model that torchao's `convert_pt2e` returns, convolutions are quantized ones, as
      `torch_dnnl.quantization.lower` has it.

    Args:
        model: stays as it is, in its mode. Float64, float32, bfloat16 and float16.
        example_inputs: the model's positional arguments, as a tuple; a single tensor stands for a
            tuple of one.
        example_kwargs: the model's keyword arguments.
        dynamic_shapes: as of `torch.export.export`. Without it the result takes tensors of the
            sizes of the examples alone.
        verbose: print what became of each convolution, linear layer, norm and resize, or why it
            stayed.

    Returns:
        A `torch.fx.GraphModule` with weights of its own. It has the model's results up to rounding,
        for all inputs that the export allows, and gradients for its inputs (through what the model
        computes within `torch.no_grad` too). Many threads may call it. It can be copied, pickled,
        exported, compiled and packaged.

    Raises:
        TypeError: `model` is not a `torch.nn.Module`, `example_inputs` is not a tuple.
        Exception: torch.export's, where it cannot capture the model.
        AssertionError: the result is called with inputs that the export does not allow.

    Example:
        >>> model = torch.nn.Sequential(
        ...     torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()
        ... )
        >>> fast = optimize(model, (torch.rand(1, 3, 9, 9),), verbose=True)
        convolution 0: torch_dnnl::convolution with relu
        norm 1: part of the weights of another layer, or of a constant
        >>> fast(torch.rand(1, 3, 9, 9)).shape
        torch.Size([1, 8, 7, 7])

    Definition: the model, in eval mode.
    """
    # The caller's autocast would become part of the graph.
    with torch.inference_mode(False), torch._C._DisableAutocast():
        return _optimized(model, example_inputs, example_kwargs or {}, dynamic_shapes, verbose)


def _optimized(
    model: torch.nn.Module, args: Any, kwargs: dict[str, Any], dynamic_shapes: Any, verbose: bool
) -> torch.nn.Module:
    program = _captured(model, args, kwargs, dynamic_shapes)
    _remove_dropout(program.graph)
    try:
        module: Any = program.run_decompositions(_decompositions()).module()
    except (AssertionError, RuntimeError) as error:  # writes to tensors that share memory
        module = program.module()
        report = Report(module.graph)
        report.failure = str(error).partition("\n")[0]
    else:
        report = Report(module.graph)
        _rewrite(module)
    if verbose:
        print(report.text(module.graph))
    return _separate(module)


def _captured(
    model: torch.nn.Module, args: Any, kwargs: dict[str, Any], dynamic_shapes: Any
) -> ExportedProgram:
    """The program of a model in eval mode. The model stays in its own mode."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"optimize: expected model to be a torch.nn.Module, got {type(model).__name__}"
        )
    if isinstance(args, Tensor):
        args = (args,)
    if not isinstance(args, (tuple, list)):
        raise TypeError(
            "optimize: expected example_inputs to be a tuple of the model's arguments, got "
            f"{type(args).__name__}"
        )
    modes = [(module, module.training) for module in model.modules()]

    def export(strict: bool) -> ExportedProgram:
        options: dict[str, Any] = {"dynamic_shapes": dynamic_shapes, "strict": strict}
        return torch.export.export(model, tuple(args), kwargs, **options)

    try:
        _set_training(model, False)
        try:
            return export(strict=False)
        except Exception as error:
            try:
                return export(strict=True)
            except Exception:
                raise _explained(error) from None
    finally:
        for module, training in modes:  # a module comes before its parts
            if module.training != training:
                _set_training(module, training)


def _set_training(model: torch.nn.Module, training: bool) -> None:
    """As train() and eval(), which modules that torch.export made refuse."""
    with suppress(NotImplementedError):
        model.train(training)
        return
    for module in model.modules():
        module.training = training


def _explained(error: Exception) -> Exception:
    note = (
        "torch_dnnl.optimize: torch.export cannot capture this model for these inputs. "
        "torch_dnnl.convert takes any model."
    )
    if hasattr(error, "add_note"):  # since Python 3.11
        error.add_note(note)
    return error


def _decompositions() -> dict[Any, Callable[..., Any]]:
    table: dict[Any, Callable[..., Any]] = {
        aten.relu6.default: lambda x: aten.clamp.default(x, 0, 6),
        aten.copy.default: _copied,  # which has no derivative
        # These may return their argument. torch's functionalization takes the result for a copy.
        aten.type_as.default: lambda x, other: x.to(other.dtype),
        aten.broadcast_tensors.default: _broadcast,
    }
    return decompositions() | table


def _broadcast(tensors: list[Tensor]) -> list[Tensor]:
    shape = torch.broadcast_shapes(*(t.shape for t in tensors))  # type: ignore[no-untyped-call]
    return [tensor.expand(shape) for tensor in tensors]


def _copied(to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    """The result of `to.copy_(source)`, as a new tensor with the strides of `to`."""
    order = memory_order(to)
    dense = source.to(to.dtype).expand(to.shape).permute(order)
    back = [order.index(d) for d in range(len(order))]
    return dense.clone(memory_format=torch.contiguous_format).permute(back)


def _remove_dropout(graph: Graph) -> None:
    """Dropout in eval mode returns its input itself, so a write to the result is a write to the
    input. Functionalization would return a copy."""
    names = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
    targets = [getattr(aten, name + end).default for name in names for end in ("", "_")]
    results = graph.output_node().all_input_nodes  # the signature of the program names these
    for node in list(graph.nodes):
        arguments = arguments_of(node) if node.target in targets else {"train": True}
        if not arguments["train"] and node not in results:
            node.replace_all_uses_with(arguments.get("input", arguments.get("self")))
            graph.erase_node(node)


def _rewrite(module: GraphModule) -> None:
    graph = module.graph
    layouts = layouts_of(graph)
    is_quantized = has_quantized(graph)
    if is_quantized:
        lower_quantized(module)
    _remove_identities(graph)
    replace_convolutions(graph)
    if not is_quantized:  # torch_dnnl's convolutions say the strides that torch's have
        refresh(graph)
        layouts = layouts_of(graph)
    constants = Constants(module)

    def make(
        like: Node, function: Callable[..., Any], nodes: Sequence[Node]
    ) -> tuple[Node, Node | None] | None:
        """New weights and a new bias as constants."""
        tensors = [constants.value(node) for node in nodes]
        if any(tensor is None for tensor in tensors):
            return None
        with torch.no_grad():
            weights, bias = function(*tensors)
        groups = arguments_of(like).get("groups", 1) if like.target in CONVOLUTIONS else 1
        if not all(tensor is None or _are_numbers(tensor, groups) for tensor in (weights, bias)):
            return None
        made = constants.add(f"{like.name}_weight", weights)
        return made, None if bias is None else constants.add(f"{like.name}_bias", bias)

    join_hardsigmoids(graph)
    fold_channels(graph, make, torch.float64)
    fold_into_next(graph, make)
    replace_linears(graph, constants)
    fuse_epilogues(graph, broadcasts=True)
    restore_linears(graph)
    constants.fold()
    allow_any_layout(graph)
    use_channels_last(graph, layouts)
    convert_pools(graph)
    pack_weights(graph, constants)
    quicken(graph)
    graph.eliminate_dead_code(lambda node: node.op == "call_module" or node.is_impure())
    graph.lint()


def _remove_identities(graph: Graph) -> None:
    """Copies and arithmetic that change nothing. What the caller gets stays a tensor of its own.

    A sum with 0 stays, because it changes the sign of -0. All copies stay in graphs with operators
    that see where a tensor begins in its memory.
    """
    of_memory = (aten.as_strided.default, aten.view.dtype, aten.view_as_complex.default)
    if any(node.target in of_memory for node in graph.nodes):
        return
    numbers = {aten.mul.Tensor: 1, aten.div.Tensor: 1, aten.sub.Tensor: 0}
    for node in list(graph.nodes):
        source: Any = node.args[0] if node.args else None
        is_copy = node.target is aten.clone.default and len(node.args) == 1
        is_neutral = node.target in numbers and node.args[1] == numbers[node.target]
        if not (is_copy or is_neutral) or node.kwargs or not isinstance(source, Node):
            continue
        before, after = value(source), value(node)
        if before is None or after is None or escapes(node):
            continue
        if before.is_complex():  # a copy of a conjugate view is no view
            continue
        if before.dtype == after.dtype and have_same_strides(before, after):
            node.replace_all_uses_with(source)
            erase_unused(node)


def _are_numbers(tensor: Tensor, groups: int) -> bool:
    """Whether all are finite, and no row or column of a group's weights is so small that digits are
    lost."""
    if not bool(tensor.isfinite().all()):
        return False
    if tensor.dim() < 2:
        return True
    least = 8 * torch.finfo(tensor.dtype).tiny
    rows, columns = tensor.shape[:2]
    of_groups = tensor.abs().reshape(groups, rows // groups, columns, -1).amax(3)
    largest = torch.cat([of_groups.amax(axis).flatten() for axis in (1, 2)])
    return bool(((largest == 0) | (largest >= least)).all())


def _separate(module: GraphModule) -> GraphModule:
    """A module with the tensors that the graph still uses, and memory of its own."""
    result = Optimized(module, module.graph)
    for name, part in reversed(list(result.named_modules())):  # branches of torch.cond
        if name and isinstance(part, GraphModule):
            result.set_submodule(name, Optimized(part, part.graph))
    memo: dict[int, Any] = {}  # tensors that share memory go on to share it
    for part in result.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                tensor = copy.deepcopy(parameter.detach(), memo)
                part._parameters[name] = torch.nn.Parameter(tensor, requires_grad=False)
        for name, buffer in part._buffers.items():
            part._buffers[name] = None if buffer is None else copy.deepcopy(buffer.detach(), memo)
    if hasattr(result, NAME):
        setattr(result, NAME, Guards(getattr(result, NAME)))
    quicken_attributes(result.graph, result)
    result.recompile()
    return result
