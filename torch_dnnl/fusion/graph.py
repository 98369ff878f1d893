"""The forward of one module as a graph, with residuals and activations moved into convolutions."""

from __future__ import annotations

import copy
import functools
import operator
import types
from typing import Any

import torch
from torch import fx
from torch.fx import Node

from torch_dnnl import _classes
from torch_dnnl.fusion import source
from torch_dnnl.fusion.layers import can_fuse, has_hooks, make_fused

_functional = torch.nn.functional
_ACTIVATIONS: dict[Any, str] = {  # by module, function or method
    torch.nn.ReLU: "relu",
    torch.nn.ReLU6: "relu6",
    torch.nn.SiLU: "silu",
    torch.nn.GELU: "gelu",
    torch.nn.Sigmoid: "sigmoid",
    torch.nn.Tanh: "tanh",
    torch.nn.Hardswish: "hardswish",
    **dict.fromkeys((torch.relu, torch.relu_, _functional.relu, _functional.relu_), "relu"),
    _functional.relu6: "relu6",
    _functional.silu: "silu",
    _functional.gelu: "gelu",
    _functional.hardswish: "hardswish",
    **dict.fromkeys((torch.sigmoid, torch.sigmoid_, _functional.sigmoid), "sigmoid"),
    **dict.fromkeys((torch.tanh, torch.tanh_, _functional.tanh), "tanh"),
    **{name: name.removesuffix("_") for name in ("relu", "relu_", "sigmoid", "sigmoid_")},
    **{"tanh": "tanh", "tanh_": "tanh"},
}
_ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")
_IN_PLACE = (operator.iadd, "add_")
_NORMS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
_INPUT, _OUTPUT, _CALLS = "placeholder", "output", ("call_function", "call_method")
_ATTRIBUTES = ("shape", "dtype", "device", "ndim", "T", "mT")


class _Proxy(fx.Proxy):
    """torch's records `x += y` as `x = x + y`, which leaves the other names of x as they were."""


def _record(function: Any) -> Any:
    def in_place(self: fx.Proxy, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    return in_place


for _name in ("iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow"):
    setattr(_Proxy, f"__{_name}__", _record(getattr(operator, _name)))


class _Tracer(fx.Tracer):
    """Calls of submodules are calls in the graph, but for those of `inlined`."""

    proxy_buffer_attributes = True

    def __init__(self, inlined: list[torch.nn.Module]) -> None:
        super().__init__()
        self._inlined = {id(module) for module in inlined}

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return id(m) not in self._inlined

    def proxy(self, node: Node) -> fx.Proxy:
        return _Proxy(node, self)


def as_written(module: torch.nn.Module) -> torch.nn.Module:
    """The module with the forward of its own class, to be looked at."""
    view: torch.nn.Module = object.__new__(_class_as_written(module))
    vars(view).update(vars(module))
    return view


def _class_as_written(module: torch.nn.Module) -> _classes.Class:
    old: _classes.Class = vars(type(module)).get("_class_as_written", type(module))
    return old


def trace(module: torch.nn.Module, inlined: list[torch.nn.Module] | None = None) -> fx.Graph | None:
    """The graph of a forward; None if it may be more than what a graph can say."""
    if isinstance(module, fx.GraphModule):
        return copy.deepcopy(module.graph)
    view = as_written(module)
    if isinstance(view, torch.jit.ScriptModule) or not source.is_plain(view):
        return None
    if type(view).__call__ is not torch.nn.Module.__call__:
        return None
    try:
        graph = _Tracer(inlined or []).trace(view)
    except Exception:  # whatever the code of others raises when it sees no tensors
        return None
    for node in graph.nodes:
        layer = called(module, node)
        if layer is not None and type(layer).__call__ is not torch.nn.Module.__call__:
            return None  # what else it does is recorded too
        if node.op == "get_attr" and "_tensor_constant" in node.target:
            return None  # made by the forward
        if node.target is getattr and node.args[1] not in _ATTRIBUTES:
            return None
    return graph


def called(module: torch.nn.Module, node: Any) -> torch.nn.Module | None:
    """The submodule that a node calls."""
    if not isinstance(node, Node) or node.op != "call_module":
        return None
    return module.get_submodule(str(node.target))


def only_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _activation(module: torch.nn.Module, node: Node) -> str | None:
    layer = called(module, node)
    if layer is not None and has_hooks(layer):
        return None
    if layer is not None and type(layer) not in _ACTIVATIONS:
        return _whole_activation(layer)
    key = node.target if layer is None else type(layer)
    name = _ACTIVATIONS.get(key)
    bounds = (getattr(layer, "min_val", 0), getattr(layer, "max_val", 6))  # of ReLU6
    if bounds != (0, 6):
        return None
    approximate = node.kwargs.get("approximate", getattr(layer, "approximate", "none"))
    # Only `inplace` may come after the tensor, and nothing can see whether it is so.
    takes_inplace = name in ("relu", "relu6", "silu", "hardswish")
    if approximate != "none" or (len(node.args) > 1 and not takes_inplace):
        return None
    return name


def _names_in_forward(module: torch.nn.Module) -> tuple[str, ...]:
    code = getattr(_class_as_written(module).forward, "__code__", None)
    return () if code is None else code.co_names


def _read_by_forward(module: torch.nn.Module) -> list[tuple[torch.nn.Module, str, Any]]:
    """The attributes of a module that its forward names, and what they are."""
    names = _names_in_forward(module)
    return [(module, name, getattr(module, name)) for name in names if hasattr(module, name)]


def _whole_activation(module: torch.nn.Module) -> str | None:
    """The activation that is all that a module of other people's does."""
    if module._modules or module._parameters or module._buffers:
        return None
    if "getattr" in _names_in_forward(module):  # of a name that nobody watches
        return None
    if any(isinstance(value, types.MethodType) for _, _, value in _read_by_forward(module)):
        return None
    graph = trace(module)
    nodes = [] if graph is None else list(graph.nodes)
    if [node.op for node in nodes] not in ([_INPUT, kind, _OUTPUT] for kind in _CALLS):
        return None
    first, call, last = nodes
    is_whole = call.args[:1] == (first,) and last.args == (call,)
    return _activation(module, call) if is_whole else None


def _is_conv(module: torch.nn.Module, node: Any) -> bool:
    layer = called(module, node)
    return layer is not None and can_fuse(layer) and len(node.args) == 1 and not node.kwargs


def _is_pure(module: torch.nn.Module, node: Node) -> bool:
    """Whether a node changes no tensor."""
    layer = called(module, node)
    if layer is None:
        return node.op == "get_attr"
    is_norm = type(layer) in _NORMS and not layer.training
    return _is_conv(module, node) or (is_norm and not has_hooks(layer))


class _Epilogue:
    """A convolution of a graph, the sum and the activation after it."""

    def __init__(self, module: torch.nn.Module, conv: Node) -> None:
        self.conv, self.nodes = conv, [conv]
        self.residual: Node | None = None
        self.activation: str | None = None
        user = only_user(conv)
        if user is not None and self._takes_sum(module, user):
            self.nodes.append(user)
            user = only_user(user)
        activation = None if user is None else _activation(module, user)
        if user is not None and activation is not None:
            self.activation = activation
            self.nodes.append(user)

    def _takes_sum(self, module: torch.nn.Module, node: Node) -> bool:
        if node.target not in _ADDITIONS or node.kwargs or len(node.args) != 2:
            return False
        left, right = node.args
        other = right if left is self.conv else left
        if not isinstance(other, Node) or other is self.conv:
            return False
        # A sum in place is seen by nobody if what it changes is a result that nobody else has.
        if node.target in _IN_PLACE and not (
            isinstance(left, Node) and _is_conv(module, left) and only_user(left) is node
        ):
            return False
        # The convolution moves to the place of the sum; its input must still be the same there.
        between = self.conv.next
        while between is not node:
            if not _is_pure(module, between):
                return False
            between = between.next
        self.residual = other
        return True

    @property
    def name(self) -> str:
        parts = ["residual"] if self.residual is not None else []
        parts += [self.activation] if self.activation is not None else []
        return " and ".join(parts)

    def rewrite(self, graph: fx.Graph) -> None:
        last = self.nodes[-1]
        with graph.inserting_before(self.nodes[1]):
            fused = graph.call_module(
                str(self.conv.target),
                self.conv.args,
                {"residual": self.residual, "activation": self.activation},
            )
        last.replace_all_uses_with(fused)
        for node in reversed(self.nodes):
            graph.erase_node(node)


def _tail(module: torch.nn.Module) -> list[torch.nn.Module] | None:
    """The modules to look into, from this one on, to find the convolution that is called last."""
    if can_fuse(module):
        return []
    if has_hooks(module) or not source.is_plain(as_written(module), whatever_its_attributes=True):
        return None
    graph = trace(module)
    last = None if graph is None else next(iter(reversed(graph.nodes))).args[0]
    while type(called(module, last)) is torch.nn.Identity:
        last = last.args[0]  # type: ignore[union-attr]
    layer = called(module, last)
    rest = _tail(layer) if layer is not None and len(last.users) == 1 else None  # type: ignore[union-attr]
    return None if rest is None else [module, *rest]


def _to_look_into(module: torch.nn.Module, graph: fx.Graph) -> list[torch.nn.Module]:
    """The modules whose last convolution may take in what follows the module."""
    found: list[torch.nn.Module] = []
    for node in graph.nodes:
        layer, user = called(module, node), only_user(node)
        if layer is None or user is None or can_fuse(layer):
            continue
        if user.target in _ADDITIONS or _activation(module, user) is not None:
            found += _tail(layer) or []
    return found


def _holders(module: torch.nn.Module, graph: fx.Graph) -> list[torch.nn.Module]:
    """The modules that a graph goes through to those that it calls."""
    names = [str(node.target).split(".") for node in graph.nodes if node.op == "call_module"]
    prefixes = {".".join(name[:i]) for name in names for i in range(len(name))}
    return [module.get_submodule(prefix) for prefix in sorted(prefixes)]


def _lists(module: torch.nn.Module) -> list[torch.nn.Module]:
    """The containers of a module, which a forward may loop over or test though they are empty."""
    found: list[torch.nn.Module] = []
    for child in module.children():
        if isinstance(child, source.CONTAINERS):
            found += [child, *_lists(child)]
    return found


def install(module: torch.nn.Module) -> list[tuple[torch.nn.Module, str]]:
    """Lets a module call its convolutions with their epilogues; what they got, layer by layer."""
    if not module._modules or module.training:
        return []
    cls = fused_calls_class(_class_as_written(module))
    graph = trace(module)
    if graph is None or cls is None:
        return []
    watched = _to_look_into(module, graph)
    graph = trace(module, watched)
    assert graph is not None
    looked_into = [module, *watched]
    opened = [*_holders(module, graph), *(part for m in looked_into for part in _lists(m))]
    for node in list(graph.nodes):
        layer = called(module, node)
        if type(layer) is torch.nn.Identity and not has_hooks(layer) and len(node.args) == 1:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
            watched.append(layer)
    done, attributes = [], []
    for node in reversed(list(graph.nodes)):  # of two convolutions, the later one takes the sum
        epilogue = _Epilogue(module, node) if _is_conv(module, node) else None
        if epilogue is not None and len(epilogue.nodes) > 1:
            layers = [layer for part in epilogue.nodes if (layer := called(module, part))]
            epilogue.rewrite(graph)
            make_fused(layers[0])
            watched += layers
            attributes += [read for layer in layers[1:] for read in _read_by_forward(layer)]
            done.append((layers[0], epilogue.name))
    if done:
        forward = type(fx.GraphModule(as_written(module), graph)).forward
        module.__class__ = cls
        vars(module).update(
            _fused_forward=forward,
            _fused_parts=tuple((part, tuple(part._modules.values())) for part in opened),
            _fused_attributes=tuple(attributes),
            _fused_layers=tuple(watched),
        )
    return done[::-1]


_NOTHING = {
    "_fused_forward": None,
    "_fused_parts": (),
    "_fused_attributes": (),
    "_fused_layers": (),
}


def _has_hooks_of_all() -> bool:
    module = torch.nn.modules.module
    return bool(
        module._global_forward_hooks
        or module._global_forward_pre_hooks
        or module._global_backward_hooks
        or module._global_backward_pre_hooks
    )


class FusedCalls(torch.nn.Module):
    """The forward of a module that calls its convolutions with their epilogues.

    It comes before the module's class among the bases. The forward of that class goes on giving the
    same results. It takes over in training mode, when an attribute of the module or a submodule has
    been set, while there are hooks on a submodule that the graph calls otherwise or not at all, or
    a forward has been set there, and where what an activation was is no longer so.
    """

    _fused_forward: Any = None
    _fused_parts: tuple[tuple[torch.nn.Module, tuple[torch.nn.Module | None, ...]], ...] = ()
    _fused_attributes: tuple[tuple[torch.nn.Module, str, Any], ...] = ()
    _fused_layers: tuple[torch.nn.Module, ...] = ()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.training or self._fused_forward is None or _has_hooks_of_all():
            return super().forward(*args, **kwargs)
        for module, children in self._fused_parts:
            if tuple(module._modules.values()) != children:
                return super().forward(*args, **kwargs)
        for module in self._fused_layers:
            if has_hooks(module):
                return super().forward(*args, **kwargs)
        for module, name, value in self._fused_attributes:
            if getattr(module, name) is not value:
                return super().forward(*args, **kwargs)
        return self._fused_forward(self, *args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name != "training":
            vars(self)["_fused_forward"] = None

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        vars(self)["_fused_forward"] = None

    def register_buffer(self, *args: Any, **kwargs: Any) -> None:
        super().register_buffer(*args, **kwargs)
        vars(self)["_fused_forward"] = None

    def register_parameter(self, *args: Any, **kwargs: Any) -> None:
        super().register_parameter(*args, **kwargs)
        vars(self)["_fused_forward"] = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), **_NOTHING}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        install(self)


def fused_calls_class(old: _classes.Class) -> _classes.Class | None:
    for method in ("__reduce_ex__", "__reduce__", "__getstate__"):
        if getattr(old, method, None) is not getattr(torch.nn.Module, method, None):
            return None  # it has a pickle of its own, as a GraphModule does
    # With the signature of the class's own, by which torch.export names the inputs.
    ours: Any = FusedCalls.forward
    forward = types.FunctionType(ours.__code__, ours.__globals__, "forward", None, ours.__closure__)
    members = {"_class_as_written": old, "forward": functools.update_wrapper(forward, old.forward)}
    return _classes.make((FusedCalls, old), members, fused_calls_class, old)
