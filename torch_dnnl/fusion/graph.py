"""The forward of one module as a graph, with what follows its convolutions moved into them."""

from __future__ import annotations

import functools
import operator
import re
import types
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torch.fx import Node

from torch_dnnl import _classes
from torch_dnnl.fusion import folds, lookup, recording, source, sums
from torch_dnnl.fusion.layers import FUSED_CALL, can_fuse, has_hooks

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
# Modules whose result in eval mode is what they got, by class or by name.
_PASSING = (torch.nn.Identity, torch.nn.Dropout)
_FORWARDS: dict[Any, Any] = {  # which others may replace
    cls: cls.forward  # type: ignore[attr-defined]
    for cls in (*_ACTIVATIONS, *_PASSING)
    if isinstance(cls, type)
}
_PASSING_NAMES = ("timm.layers.drop.DropPath", "torchvision.ops.stochastic_depth.StochasticDepth")
_INPUT, _OUTPUT, _CALLS = "placeholder", "output", ("call_function", "call_method")
_OPAQUE = (torch.jit.ScriptModule, fx.GraphModule)  # modules whose forward has no source
_MADE_BY_PYTHON = 1 << 9  # the flag of classes that are no types of C


class _Tracer(fx.Tracer):
    """Calls of submodules are calls in the graph, but for those of `inlined`. `arguments` are those
    that have a known value."""

    proxy_buffer_attributes = True

    def __init__(self, inlined: list[torch.nn.Module], arguments: dict[str, Any]) -> None:
        super().__init__()
        self._inlined = {id(module) for module in inlined}
        self._arguments = arguments

    def create_args_for_root(self, *args: Any, **kwargs: Any) -> tuple[Any, list[Any]]:
        """The graph takes these too, but does not ask what they are."""
        function, values = super().create_args_for_root(*args, **kwargs)
        names = [str(value.node.target) if isinstance(value, fx.Proxy) else "" for value in values]
        pairs = zip(names, values, strict=True)
        return function, [self._arguments.get(name, value) for name, value in pairs]

    def path_of_module(self, mod: torch.nn.Module) -> str:
        path = super().path_of_module(mod)
        if self.root.get_submodule(path) is not mod:  # but one that is equal
            raise NameError(path)
        return path

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return id(m) not in self._inlined

    def proxy(self, node: Node) -> fx.Proxy:
        return recording.Proxy(node, self)


def is_opaque(module: torch.nn.Module) -> bool:
    """Whether a module is not to be looked into: it has no source that says what it does, or is a
    dict or list, too."""
    bases = type(module).__mro__[:-1]
    return (
        isinstance(module, _OPAQUE)
        or hasattr(module, "__del__")  # which what as_written gives would call
        or not all(c.__flags__ & _MADE_BY_PYTHON for c in bases)
    )


def as_written(module: torch.nn.Module) -> torch.nn.Module:
    """The module with the forward of its own class, to be looked at."""
    view: torch.nn.Module = object.__new__(class_as_written(module))
    vars(view).update(vars(module))
    return view


def class_as_written(module: torch.nn.Module) -> _classes.Class:
    old: _classes.Class = vars(type(module)).get("_class_as_written", type(module))
    return old


def trace(
    module: torch.nn.Module,
    inlined: list[torch.nn.Module] | None = None,
    arguments: dict[str, Any] | None = None,
) -> fx.Graph | None:
    """The graph of a forward, with what is known of its arguments; None if it may be more than what
    a graph can say."""
    if is_opaque(module):
        return None
    view = as_written(module)
    arguments = arguments or {}
    if source.reads(view, arguments) is None or type(view).__call__ is not torch.nn.Module.__call__:
        return None
    try:
        values = {n: value for n, value in arguments.items() if value is not source.TENSOR}
        tracer = _Tracer(inlined or [], values)
        graph = tracer.trace(view)
    except Exception:  # whatever the code of others raises when it sees no tensors
        return None
    vars(tracer).clear()  # it is a part of a cycle, and has the submodules
    counts = Counter(map(id, _tensors_of(view)))
    for node in graph.nodes:
        if node.op == "get_attr" and counts[id(operator.attrgetter(node.target)(view))] > 1:
            return None  # by one of its names only
        layer = called(module, node)
        if layer is not None and type(layer).__call__ is not torch.nn.Module.__call__:
            return None  # what else it does is recorded too
        if node.op == "get_attr" and "_tensor_constant" in node.target:
            return None  # made by the forward
        if node.target is getattr and node.args[1] not in recording.ATTRIBUTES:
            return None
        if node.target is operator.pow and not _is_written_whole(node.args[0]):
            return None  # (-1) ** n is written without the brackets
    return graph


def _is_written_whole(value: Any) -> bool:
    return isinstance(value, Node) or (not isinstance(value, complex) and value >= 0)


def _tensors_of(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """By each of their names."""
    for part in module.modules():
        for scope in (part._parameters, part._buffers, vars(part)):
            yield from (value for value in scope.values() if isinstance(value, torch.Tensor))


def called(module: torch.nn.Module, node: Any) -> torch.nn.Module | None:
    """The submodule that a node calls."""
    if not isinstance(node, Node) or node.op != "call_module":
        return None
    return module.get_submodule(str(node.target))


def only_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _activation(module: torch.nn.Module, node: Node) -> str | None:
    layer = called(module, node)
    if layer is not None and (has_hooks(layer) or not _can_be_read(layer)):
        return None
    if layer is not None and (len(node.args) != 1 or node.kwargs):
        return None
    if layer is not None and type(layer) not in _ACTIVATIONS:
        return _whole_activation(layer)
    if layer is not None and type(layer).forward is not _FORWARDS[type(layer)]:
        return None
    key = node.target if layer is None else type(layer)
    name = _ACTIVATIONS.get(key)
    bounds = (getattr(layer, "min_val", 0), getattr(layer, "max_val", 6))  # of ReLU6
    if bounds != (0, 6):
        return None
    # Nothing can see whether `inplace` is so.
    takes_inplace = key in (getattr(_functional, n) for n in ("relu", "relu6", "silu", "hardswish"))
    known = {"inplace"} if takes_inplace else {"approximate"} if name == "gelu" else set()
    approximate = node.kwargs.get("approximate", getattr(layer, "approximate", "none"))
    if approximate != "none" or not known.issuperset(node.kwargs):
        return None  # or such as `out`
    if any(isinstance(value, Node) for value in (*node.args[1:], *node.kwargs.values())):
        return None
    return name if len(node.args) <= 1 + takes_inplace else None


def _names_in_forward(module: torch.nn.Module) -> tuple[str, ...]:
    code = getattr(class_as_written(module).forward, "__code__", None)
    return () if code is None else code.co_names


def read_by_forward(module: torch.nn.Module) -> list[tuple[Any, str, Any]]:
    """The attributes of a module that its forward names, and what they are; and its forward."""
    names = _names_in_forward(module)
    found: list[tuple[Any, str, Any]] = [
        (module, name, lookup.attribute(module, name)) for name in names if lookup.has(module, name)
    ]
    return [*found, *source.of_method(class_as_written(module), "forward")]


def _whole_activation(module: torch.nn.Module) -> str | None:
    """The activation that is all that a module of other people's does."""
    if module._modules or module._parameters or module._buffers:
        return None
    if not lookup.has_plain_attributes(type(module)):
        return None
    if "getattr" in _names_in_forward(module):  # of a name that nobody watches
        return None
    if any(isinstance(value, types.MethodType) for _, _, value in read_by_forward(module)):
        return None
    graph = trace(module)
    nodes = [] if graph is None else list(graph.nodes)
    if [node.op for node in nodes] not in ([_INPUT, kind, _OUTPUT] for kind in _CALLS):
        return None
    first, call, last = nodes
    is_whole = call.args[:1] == (first,) and last.args == (call,)
    return _activation(module, call) if is_whole else None


def _is_sum(node: Node) -> bool:
    return node.op in _CALLS and node.target in sums.NAMES  # a submodule may have such a name, too


def _is_conv(module: torch.nn.Module, node: Any) -> bool:
    layer = called(module, node)
    return layer is not None and can_fuse(layer) and len(node.args) == 1 and not node.kwargs


def _is_norm(module: torch.nn.Module, node: Any) -> bool:
    layer = called(module, node)
    return layer is not None and folds.is_norm(layer) and not has_hooks(layer)


def _is_pure(module: torch.nn.Module, node: Node) -> bool:
    """Whether a node changes no tensor."""
    layer = called(module, node)
    if layer is None:
        return node.op == "get_attr" or node.target == FUSED_CALL
    return can_fuse(layer) or (_is_norm(module, node) and not layer.training)


def separate_activations(module: torch.nn.Module, graph: fx.Graph) -> None:
    """Calls `drop` and `act` of the batch norms that have them and come after a convolution. The
    batch norm in the graph is without them from then on, and so has to become a part of the
    convolution."""
    for node in list(graph.nodes):
        norm, conv = called(module, node), node.args[0] if node.args else None
        if norm is None or not folds.is_norm(norm) or not folds.has_activation(norm):
            continue
        if not isinstance(conv, Node) or not _is_conv(module, conv):
            continue
        if _Epilogue(module, conv).norm != node:
            continue
        result, users = node, list(node.users)
        for name in ("drop", "act"):
            if name in norm._modules:
                with graph.inserting_after(result):
                    result = graph.call_module(f"{node.target}.{name}", (result,))
        for user in users:
            user.replace_input_with(node, result)


def passes(layer: torch.nn.Module | None) -> bool:
    """Whether the result of a module in eval mode is what it got."""
    if layer is None or layer.training or has_hooks(layer):
        return False
    if type(layer) in _PASSING and type(layer).forward is not _FORWARDS[type(layer)]:
        return False
    is_known = type(layer) in _PASSING or folds.name_of(layer) in _PASSING_NAMES
    return is_known and _can_be_read(layer)


def _can_be_read(layer: torch.nn.Module) -> bool:
    try:
        read_by_forward(layer)
    except lookup.Unclear:  # of a tensor, of a property
        return False
    return True


def drop_passing(module: torch.nn.Module, graph: fx.Graph, is_final: bool) -> list[torch.nn.Module]:
    """The modules that are no longer called; finally those alone that are known to get a tensor,
    or that take anything."""

    def is_tensor(node: Any) -> bool:
        layer = called(module, node)
        return layer is not None and (
            can_fuse(layer) or folds.is_norm(layer) or type(layer) in (*_ACTIVATIONS, *_PASSING)
        )

    found: list[torch.nn.Module] = []
    for node in list(graph.nodes):
        layer = called(module, node)
        is_one = len(node.args) == 1 and not node.kwargs
        if (
            layer is not None
            and passes(layer)
            and is_one
            and isinstance(node.args[0], Node)  # a list would be another one for each use
            and (not is_final or type(layer) is torch.nn.Identity or is_tensor(node.args[0]))
        ):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
            found.append(layer)
    return found


class _Epilogue:
    """A convolution of a graph; the batch norm, the sum and the activation after it."""

    def __init__(self, module: torch.nn.Module, conv: Node) -> None:
        self.module, self.conv, self.nodes = module, conv, [conv]
        self.norm: Node | None = None
        self.residual: Node | None = None
        self.addition: str | None = None
        self.passed: list[torch.nn.Module] = []  # between the convolution and its last part
        self.activation: str | None = None
        if (node := self._next()) is not None and self._takes_norm(node):
            self.norm = node
            self.nodes.append(node)
        if (node := self._next()) is not None and self._takes_sum(node):
            self.nodes.append(node)
        if (node := self._next()) is not None and self._is_first(node):
            self.activation = _activation(module, node)
            self.nodes += [node] if self.activation is not None else []

    def _next(self) -> Node | None:
        """What alone uses the result, if it takes it first and nothing is changed before: it is
        there that the convolution is called."""
        node = only_user(self.nodes[-1])
        if node is None:
            return None
        between, passed = self.conv.next, []
        while between is not node:
            if between not in self.nodes:
                if not _is_pure(self.module, between):
                    return None
                passed += [called(self.module, between)]
            between = between.next
        self.passed = [layer for layer in passed if layer is not None]
        return node

    def _is_first(self, node: Node) -> bool:
        """Whether the result is the first argument and no other one."""
        values = [*node.args, *node.kwargs.values()]
        return node.args[:1] == (self.nodes[-1],) and values.count(self.nodes[-1]) == 1

    def _takes_norm(self, node: Node) -> bool:
        norm, conv = called(self.module, node), called(self.module, self.conv)
        return (
            norm is not None
            and _is_norm(self.module, node)
            and node.args == (self.conv,)
            and not node.kwargs
            and folds.can_fold(conv, norm)
        )

    def _takes_sum(self, node: Node) -> bool:
        if not _is_sum(node) or node.kwargs or len(node.args) != 2:
            return False
        left, right = node.args
        result = self.nodes[-1]
        other = right if left is result else left
        if not isinstance(other, Node) or other is result:
            return False
        self.addition = sums.name(node.target, left is result)
        if self.addition is None:
            return False
        self.residual = other
        return True

    @property
    def parts(self) -> list[str]:
        """What they are called."""
        after = ["residual"] if self.residual is not None else []
        after += [self.activation] if self.activation is not None else []
        norms = ["batch norm"] if self.norm is not None else []
        return [*norms, *([" and ".join(after)] if after else [])]

    @property
    def layers(self) -> list[torch.nn.Module]:
        found = [called(self.module, node) for node in self.nodes]
        return [layer for layer in found if layer is not None]

    def rewrite(self, graph: fx.Graph) -> None:
        last = self.nodes[-1]
        options: dict[str, Any] = {}
        with graph.inserting_before(last):
            if self.norm is not None:
                options["norm"] = graph.get_attr(str(self.norm.target))
            if self.residual is not None:
                options |= {"residual": self.residual, "addition": self.addition}
            if self.activation is not None:
                options["activation"] = self.activation
            conv = graph.get_attr(str(self.conv.target))
            fused = graph.call_method(FUSED_CALL, (conv, *self.conv.args), options)
        last.replace_all_uses_with(fused)
        for node in reversed(self.nodes):
            graph.erase_node(node)


def epilogues(module: torch.nn.Module, graph: fx.Graph) -> Iterator[_Epilogue]:
    """Those of all convolutions, to be rewritten. Of two convolutions the later one takes a sum."""
    for node in reversed(list(graph.nodes)):
        epilogue = _Epilogue(module, node) if _is_conv(module, node) else None
        if epilogue is not None and len(epilogue.nodes) > 1:
            yield epilogue


def _tail(module: torch.nn.Module) -> list[torch.nn.Module] | None:
    """The modules to look into, from this one on, to find the convolution that is called last."""
    if can_fuse(module):
        return []
    is_plain = not has_hooks(module) and not is_opaque(module)
    reads = source.reads(as_written(module)) if is_plain else None
    if reads is None or reads.attributes:
        return None
    graph = trace(module)
    last: Any = None if graph is None else next(iter(reversed(graph.nodes))).args[0]
    while _is_passed(called(module, last)) and last.args:
        last = last.args[0]
    layer = called(module, last)
    rest = _tail(layer) if layer is not None and len(last.users) == 1 else None
    return None if rest is None else [module, *rest]


def _is_passed(layer: torch.nn.Module | None) -> bool:
    """Whether what comes after a layer may be a part of the convolution before it."""
    if layer is None or not folds.is_norm(layer):
        return passes(layer)
    return all(passes(part) for part in layer.children())


def to_look_into(module: torch.nn.Module, graph: fx.Graph) -> list[torch.nn.Module]:
    """The modules whose last convolution may take in what follows the module."""
    found: list[torch.nn.Module] = []
    looked_at = fx.Graph()
    looked_at.output(looked_at.graph_copy(graph, {}))
    drop_passing(module, looked_at, is_final=False)
    for node in looked_at.nodes:
        layer, user = called(module, node), only_user(node)
        if layer is None or user is None or can_fuse(layer):
            continue
        is_norm = _is_norm(module, user)
        if is_norm or _is_sum(user) or _activation(module, user) is not None:
            found += _tail(layer) or []
    return found


def holders(module: torch.nn.Module, graph: fx.Graph) -> list[torch.nn.Module]:
    """The modules by which the forward gets to those that the graph calls, by whatever name."""
    names = [str(node.target).split(".") for node in graph.nodes if node.op == "call_module"]
    paths = {".".join(name[:i]) for name in names for i in range(1, len(name) + 1)}
    on_the_way = {id(module.get_submodule(path)) for path in paths}
    return [
        part
        for part in module.modules()
        if any(id(child) in on_the_way for child in part._modules.values())
    ]


def function_of(graph: fx.Graph) -> Any:
    """The graph as a function of the module; None if its code would not say what it does. A
    GraphModule would leave its source behind for good."""
    if not recording.can_be_written(graph):
        return None
    code = graph.python_code("self")
    if recording.hides_names(graph, code):
        return None
    scope = dict(code.globals)
    # What it wraps, torch.fx would take for a global variable from then on.
    without = re.sub(r"^torch\.fx\._symbolic_trace\.wrap.*$", "", code.src, flags=re.MULTILINE)
    exec(_compiled(without), scope)
    return scope.pop("forward")


@functools.lru_cache(1000)
def _compiled(source: str) -> types.CodeType:
    return compile(source, "<fused forward>", "exec", dont_inherit=True)
