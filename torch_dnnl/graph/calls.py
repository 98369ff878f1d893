"""The calls of convolutions in a graph of `optimize`, without the overhead of torch.ops."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling, is_exporting
from torch.fx import Graph
from torch.fx.experimental.symbolic_shapes import statically_known_true

from torch_dnnl.functional._quick import quick
from torch_dnnl.graph.nodes import arguments_of, aten, call, dnnl, replace, value

_norm = aten.linalg_vector_norm.default
_convolution = dnnl.convolution_packed.default
_FORMAT = [each.name for each in _convolution._schema.arguments].index("data_format")
_quick_convolution = quick("convolution_packed", prepares=True)
_FUSED = (dnnl.convolution_fused.default, _convolution)
_quantized = dnnl.quantized_convolution_packed.default
_quick_quantized = quick("quantized_convolution_packed", prepares=True)


def convolution(*args: Any) -> Any:
    """The first result of `torch_dnnl::convolution_packed`, given all of its arguments.

    A convolution with one tap also takes an image without pixels, as linear layers and norms do.
    """
    try:
        result = NotImplemented if is_dynamo_compiling() else _quick_convolution(*args)
        if result is not NotImplemented:
            return result
        if is_exporting():  # programs and ONNX models are for any CPU
            return dnnl.convolution_fused.default(*args[:-1])[0]
        return _convolution(*args)[0]
    except ValueError:
        src, weights = args[0], args[1]
        if src.numel() or weights.shape[2:].numel() != 1:
            raise
        axis = -1 if args[_FORMAT] == "NXC" else 1
        channels = src.sum(axis, keepdim=True)  # has a gradient
        return channels.expand(
            [n if d != axis % src.dim() else weights.shape[0] for d, n in enumerate(src.shape)]
        )


def quantized_convolution(*args: Any) -> Any:
    """`torch_dnnl::quantized_convolution_packed`, given all of its arguments."""
    result = NotImplemented if is_dynamo_compiling() else _quick_quantized(*args)
    if result is not NotImplemented:
        return result
    if is_exporting():
        return dnnl.quantized_convolution.default(*args[:-1])
    return _quantized(*args)


def vector_norm(image: Tensor, order: Any, dims: Any, keepdim: Any, dtype: Any) -> Tensor:
    """`aten::linalg_vector_norm` of order 2, in a sixth of the time where the vectors lie across
    the memory. Torch's derivative for a vector of zeros is 0.
    """
    is_traced = is_dynamo_compiling() or is_exporting() or forward_ad._current_level >= 0
    if is_traced or image.requires_grad:
        norm: Tensor = _norm(image, order, dims, keepdim, dtype=dtype)
        return norm
    result: Tensor = (image * image).sum(dims, keepdim).sqrt_()
    return result


# Each function, and the operator whose arguments it takes.
QUICK: dict[Any, torch._ops.OpOverload] = {
    convolution: _convolution,
    quantized_convolution: _quantized,
}


def quicken_attributes(graph: Graph, module: torch.nn.Module) -> None:
    """Has the code of the graph read tensors from the dicts of the modules: an attribute of a
    module takes Python a microsecond."""
    lines = {}
    for node in graph.find_nodes(op="get_attr"):
        *path, name = str(node.target).split(".")
        holder = module.get_submodule(".".join(path))
        tensors = next((d for d in ("_parameters", "_buffers") if name in getattr(holder, d)), None)
        if tensors is not None:
            owner = "self" + "".join(f"._modules[{part!r}]" for part in path)
            found = f"{owner}.{tensors}"
            # A parametrization makes a property of a parameter.
            lines[f"{node} "] = (
                f"{node} = {found}[{name!r}] if {name!r} in {found} else getattr({owner}, {name!r})"
            )

    def transform(body: list[str]) -> list[str]:
        return [lines.get(line.partition("=")[0], line) for line in body]

    graph.on_generate_code(lambda _: transform)


def _quicken_norms(graph: Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=_norm):
        found = arguments_of(node)
        names = ("self", "ord", "dim", "keepdim", "dtype")
        image, order, dims, keepdim, dtype = (found[name] for name in names)
        x = value(image)
        if order != 2 or not dims or dtype is not None or not x.is_cpu:
            continue
        lies_across = all(not statically_known_true(x.stride(d) == 1) for d in dims)
        if x.dtype in (torch.float32, torch.float64) and lies_across:
            with graph.inserting_before(node):
                new = call(node, vector_norm, image, order, dims, keepdim, dtype, val=value(node))
            replace(node, new)


def quicken(graph: Graph) -> None:
    """Replaces convolutions by calls of `convolution` and `quantized_convolution`, and norms by
    calls of `vector_norm`."""
    _quicken_norms(graph)
    names = ("residual", "activation", "alpha", "beta", "slope", "packed")
    defaults: dict[str, Any] = dict.fromkeys(names) | {"keep_preactivation": False}
    for node in list(graph.nodes):
        is_quantized = node.target in (dnnl.quantized_convolution.default, _quantized)
        if not is_quantized and node.target not in (dnnl.convolution.default, *_FUSED):
            continue
        arguments = defaults | arguments_of(node)
        if arguments["keep_preactivation"]:  # there are two results
            continue
        function = quantized_convolution if is_quantized else convolution
        with graph.inserting_before(node):
            values = (arguments[each.name] for each in QUICK[function]._schema.arguments)
            # A tuple is one object in every call, a list is made in every call.
            args = tuple(tuple(each) if isinstance(each, list) else each for each in values)
            new = graph.call_function(function, args)
        result = value(node)
        new.meta = node.meta | {"val": result if isinstance(result, Tensor) else result[0]}
        if is_quantized or node.target is dnnl.convolution.default:
            replace(node, new)
            continue
        for user in list(node.users):
            replace(user, new)
        graph.erase_node(node)
