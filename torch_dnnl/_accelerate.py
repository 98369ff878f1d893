"""`accelerate`: a context in which torch's convolutions and resizes run torch_dnnl's, in any code.

A TorchFunctionMode sees every call of torch's functions, however the caller got hold of them, and
torch.compile traces it. The mode replaces the calls for which torch_dnnl has an operator.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import _make_grads, _tensor_or_tensors_to_tuple
from torch.overrides import TorchFunctionMode
from torch.utils._contextlib import context_decorator
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from torch_dnnl._literals import TorchMode
from torch_dnnl.functional import interpolate
from torch_dnnl.functional._algorithm import has_kernels
from torch_dnnl.functional._conv import _conv, conv_quickly
from torch_dnnl.functional._conv_transpose import _conv_transpose

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Replacement = Callable[..., Tensor | None]

# Any other class of tensors may have its own idea of a convolution, so it keeps torch's functions.
# Fake and functional tensors stand for plain ones while a program is exported. The checks here
# leave torch every call that torch_dnnl refuses: a traced graph cannot hold a refusal.
_PLAIN = frozenset(
    {Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor, FunctionalTensor, type(None)}
)
_WIDE = frozenset({torch.float64, torch.float32})
_FLOATING = _WIDE | {torch.bfloat16, torch.float16}
_saving_hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks


def _are_plain(input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return (
        type(input) in _PLAIN
        and type(weight) in _PLAIN
        and type(bias) in _PLAIN
        and input.dtype in _FLOATING
    )


def _saves_others(input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether hooks see the tensors saved for the backward pass, and torch saves more of them than
    torch_dnnl: outside the context a checkpoint would save other tensors."""
    if torch.compiler.is_compiling() or not torch.is_grad_enabled() or _saving_hooks(True) is None:
        return False
    is_any = input.requires_grad or weight.requires_grad or getattr(bias, "requires_grad", False)
    return is_any and not (input.requires_grad and weight.requires_grad)


def _is_in_selective_checkpoint() -> bool:
    """Whether a policy decides which of torch's operators are saved for the backward pass."""
    if torch.compiler.is_compiling() or not torch._C._len_torch_dispatch_stack():
        return False
    modes = _get_current_dispatch_mode_stack()
    return any(type(mode).__module__ == "torch.utils.checkpoint" for mode in modes)


def _convolution(n: int) -> _Replacement:
    def convolution(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor | None:
        if not has_kernels(input):
            return None
        if _saves_others(input, weight, bias):
            return None
        dst = conv_quickly(n, input, weight, bias, stride, padding, dilation, groups)
        if dst is not NotImplemented:
            return dst  # type: ignore[no-any-return]
        if not _are_plain(input, weight, bias):
            return None
        # torch has neither torch_dnnl's other names of paddings nor pairs of pads.
        if isinstance(padding, str):
            if padding not in ("same", "valid"):
                return None
        elif isinstance(padding, (list, tuple)) and isinstance(padding[0], (list, tuple)):
            return None
        return _conv(n, input, weight, bias, stride, padding, dilation, groups)

    return convolution


def _convolution_transpose(n: int) -> _Replacement:
    def convolution_transpose(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Tensor | None:
        if not (has_kernels(input) and _are_plain(input, weight, bias)) or _saves_others(
            input, weight, bias
        ):
            return None
        args = (stride, padding, output_padding, groups, dilation)
        return _conv_transpose(n, input, weight, bias, *args)

    return convolution_transpose


def _interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: TorchMode = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor | None:
    if type(input) not in _PLAIN or not has_kernels(input):
        return None
    # Autocast has torch average volumes in float32.
    if mode == "area" and input.dim() == 5 and input.is_cpu and torch.is_autocast_enabled("cpu"):
        return None
    # torch has fewer types and ranks than torch_dnnl.
    if input.dtype == torch.uint8:
        if not (mode in ("bilinear", "bicubic") and input.dim() == 4 and input.is_cpu):
            return None
    elif antialias:
        if not (input.dtype in _WIDE and input.dim() == 4):
            return None
    elif input.dtype not in _FLOATING:
        return None
    return interpolate(
        input, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias
    )


_REPLACEMENTS: dict[Callable[..., Any], _Replacement] = {
    torch.conv1d: _convolution(1),
    torch.conv2d: _convolution(2),
    torch.conv3d: _convolution(3),
    torch.conv_transpose1d: _convolution_transpose(1),
    torch.conv_transpose2d: _convolution_transpose(2),
    torch.conv_transpose3d: _convolution_transpose(3),
    torch.nn.functional.interpolate: _interpolate,
}

# A mode is off while it handles a call. The backward pass may compute a checkpoint's forward pass
# again, so it has to run within the mode. There, torch's own functions would ask the mode again.
# What follows is what these functions do after they have asked.


def _run_engine(
    outputs: Sequence[Any],
    gradients: Any,
    retain_graph: bool | None,
    create_graph: bool,
    inputs: Sequence[Any],
    **options: bool,
) -> tuple[Tensor, ...]:
    gradients = _tensor_or_tensors_to_tuple(gradients, len(outputs))
    gradients = _make_grads(outputs, gradients, is_grads_batched=False)
    retain_graph = create_graph if retain_graph is None else retain_graph
    run = torch.autograd.graph._engine_run_backward
    return run(outputs, gradients, retain_graph, create_graph, inputs, **options)


def _backward(
    tensors: Sequence[Any],
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    inputs: Sequence[Any] | None = None,
) -> None:
    args = (tensors, grad_tensors, retain_graph, create_graph, inputs or ())
    _run_engine(*args, allow_unreachable=True, accumulate_grad=True)


def _grad(
    outputs: Sequence[Any],
    inputs: Sequence[Any],
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    allow_unused: bool | None = None,
    **_: object,
) -> tuple[Tensor, ...]:
    args = (outputs, grad_outputs, retain_graph, create_graph, inputs)
    return _run_engine(*args, allow_unreachable=bool(allow_unused), accumulate_grad=False)


_BACKWARD: dict[Callable[..., Any], Callable[..., Any]] = {
    Tensor.backward: lambda tensor, gradient=None, **options: torch.autograd.backward(
        tensor, gradient, **options
    ),
    torch.autograd.backward: _backward,
    torch.autograd.grad: _grad,
}


def _needs_more(options: dict[str, Any]) -> bool:
    """Whether `torch.autograd.grad` does more than to run the engine."""
    names = ("is_grads_batched", "materialize_grads")
    return any(options.get(name) for name in names) or not options.get("only_inputs", True)


# What our functions raise. Others come from hooks of autograd, and may be signals to their owner.
_REFUSALS = (RuntimeError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError)


def _is_refusal(error: BaseException) -> bool:
    """Whether the code of torch_dnnl or torch raised an error, and no hook of a user."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    module = "" if at is None else str(at.tb_frame.f_globals.get("__name__"))
    return module.partition(".")[0] in ("torch", "torch_dnnl")


class _Accelerate(TorchFunctionMode):
    """What `accelerate()` returns."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Runs torch_dnnl's function in place of `func` if there is one, else `func`."""
        kwargs = kwargs or {}
        replacement = _REPLACEMENTS.get(func)
        if replacement is not None and not _is_in_selective_checkpoint():
            try:
                result = replacement(*args, **kwargs)
            except _REFUSALS as error:  # torch has its own, or takes what we do not take
                if not torch.compiler.is_compiling() and not _is_refusal(error):
                    raise
                result = None
            return func(*args, **kwargs) if result is None else result
        backward = _BACKWARD.get(func)
        if backward is None or torch.compiler.is_compiling() or _needs_more(kwargs):
            return func(*args, **kwargs)
        if not _PLAIN.issuperset(types):
            return func(*args, **kwargs)
        with self:
            return backward(*args, **kwargs)

    def __call__(self, function: _Function, /) -> _Function:
        """`function`, each call of which is a context."""
        _check_function(function)
        decorate: Callable[..., _Function] = context_decorator
        return decorate(lambda: self, function)


def _check_function(function: object) -> None:
    got = None
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        got = f"the async function {function}, in whose context other tasks would run"
    elif inspect.isclass(function):
        got = f"the class {function.__qualname__}"
    elif not callable(function):
        got = type(function).__name__
    if got is not None:
        raise TypeError(f"accelerate: expected function to be a function, got {got}")


_NONE: Any = object()


@overload
def accelerate() -> _Accelerate: ...


@overload
def accelerate(function: _Function, /) -> _Function: ...


def accelerate(function: Any = _NONE, /) -> Any:
    """A context in which torch's convolutions and resizes run torch_dnnl's. Also a decorator.

    Within the context, calls of `torch.nn.functional.interpolate`, `upsample`, `conv1d` to
    `conv3d`, `conv_transpose1d` to `conv_transpose3d` and torch's functions of the same names
    compute what `torch_dnnl.functional` computes for the same arguments. It does not matter who
    calls: a layer of `torch.nn`, a function that was imported before, a model that torch.compile
    traces. Autograd, forward mode, torch.func, vmap, autocast, torch.compile and torch.export work
    as they do without the context, and so does the backward pass outside the context. A checkpoint
    computes its forward pass again by torch's functions there, and by torch_dnnl's within (by
    torch's in `torch.autograd.grad` with `is_grads_batched` or `materialize_grads`). A selective
    checkpoint runs torch's functions, whose operators its policy names.

    Calls that torch_dnnl does not take run torch's function, with its results and its errors:
    complex, integer, sparse, quantized and nested tensors, subclasses of Tensor, devices other than
    CPU and CUDA, bad calls.

    The context holds in this thread, as `torch.no_grad` does, and in the threads of the backward
    passes that begin in it. A thread that is started within the context begins without it, so
    decorate the function that runs there. Contexts may be nested. A decorated generator runs
    within the context and what is between its steps without it. An `async` function cannot be
    decorated: other tasks would run in its context.

    It costs every call of torch's functions and methods on tensors a call of a Python function,
    also of those that are not replaced: about a microsecond, or four for functions that are written
    in Python, such as `torch.nn.functional.batch_norm`. `torch_dnnl.convert` and compiled graphs do
    not have that cost. TorchScript's programs and C++ do not ask and run torch's own.

    Args:
        function: what is decorated, without brackets. `accelerate()`, with brackets, is the context
            and decorates as well.

    Returns:
        The context, or the decorated function.

    Raises:
        TypeError: `function` is an `async` function, a class, or cannot be called.

    Example:
        >>> layer = torch.nn.Conv2d(3, 8, 3)
        >>> with accelerate():
        ...     y = layer(torch.rand(1, 3, 9, 9))
        >>> @accelerate
        ... def double(x):
        ...     return torch.nn.functional.interpolate(x, scale_factor=2, mode="bilinear")

    Definition: `torch.nn.functional`, for every call.
    """
    context = _Accelerate()
    return context if function is _NONE else context(function)
