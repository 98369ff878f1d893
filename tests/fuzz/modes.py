"""What is checked of a problem. Each mode raises AssertionError, or whatever the call raised."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fuzz import guard, wrong
from fuzz.operators import OPERATORS
from fuzz.problems import Operator, Problem, Tape, like, tape_of, tensors_of

REFUSED = "expected algorithm to be a kernel that supports this call"
# Of <A x, y> - <x, A' y>, relative to the sum of the absolute products; and of gradients, relative
# to their largest.
ADJOINT = {torch.float64: 1e-12, torch.float32: 2e-5}
GRADIENT = {torch.float64: 1e-9, torch.float32: 1e-4}


def values(operator: Operator, problem: Problem) -> None:
    """Against the oracle; and the arguments stay as they are."""
    call = problem.call()
    before = {k: v.clone() for k, v in call.items() if torch.is_tensor(v)}
    actual = operator.run(call)
    operator.compare(call, actual, operator.expected(call))
    for name, value in before.items():
        assert _same(call[name], value), f"the call has changed {name}"


def _same(a: Tensor, b: Tensor) -> bool:
    """The same bits."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    dense = [t.reshape(-1).clone(memory_format=torch.contiguous_format) for t in (a, b)]
    return a.numel() == 0 or torch.equal(*(t.view(torch.uint8) for t in dense))


def gradients(operator: Operator, problem: Problem) -> None:
    """Of the first result that is not empty, by autograd, against the oracle's in float64."""
    call = problem.call()
    names = [n for n in operator.differentiable if torch.is_tensor(call.get(n))]
    names = [n for n in names if call[n].is_floating_point()]
    results = []
    upstream: Tensor | None = None
    for function, wide in ((operator.run, False), (operator.expected, True)):
        leaves = {n: call[n].double() if wide else call[n] for n in names}
        leaves = {n: leaf.detach() for n, leaf in leaves.items()}  # with their strides
        for leaf in leaves.values():
            leaf.requires_grad_()
        with torch.enable_grad():
            outputs = [t for t in tensors_of(function(call | leaves)) if t.numel() > 0]
        if not names or not outputs or not outputs[0].is_floating_point():
            return  # and nothing to differentiate
        result = outputs[0]
        assert result.requires_grad, "the result has no gradient"
        if upstream is None:
            upstream = like(result)
            upstream *= operator.smooth(call) if operator.smooth else 1
        found = torch.autograd.grad(
            result, list(leaves.values()), upstream.to(result.dtype), allow_unused=True
        )
        results.append(
            [torch.zeros_like(leaves[n]) if g is None else g for n, g in zip(names, found)]
        )
    for name, ours, theirs in zip(names, *results):
        assert ours.shape == call[name].shape, f"gradient of {name} with sizes {ours.shape}"
        assert ours.dtype == call[name].dtype, f"gradient of {name} in {ours.dtype}"
        types = [call[n].dtype for n in names] + [upstream.dtype]
        tolerance = max(GRADIENT[t] for t in types)
        if call.get("activation") not in (None, "relu") and "winograd" in call.get("algorithm", ""):
            tolerance *= 10  # of what Winograd rounds, a slope makes errors of the gradient
        largest = max(1.0, theirs.abs().max().item()) if theirs.numel() else 1.0
        error = (ours.double() - theirs).abs()
        assert (error <= tolerance * largest).all(), (
            f"gradient of {name}: error {error.max():.3g}, largest {largest:.3g}"
        )


def adjoint(operator: Operator, problem: Problem) -> None:
    """<A x, y> = <x, A' y>."""
    call = problem.call()
    left, right, size = operator.adjoint(call)
    types = {t.dtype for t in call.values() if torch.is_tensor(t)} | {call.get("dtype")}
    tolerance = max(ADJOINT.get(t, 0.0) for t in types)
    error = abs(left - right)
    assert error <= tolerance * size + 1e-30, f"error {error:.3g}, of products {size:.3g}"


def guarded(operator: Operator, problem: Problem) -> None:
    """The results of memory between guard pages, behind and before it, have the bits of others."""
    plain = problem.call()
    expected = tensors_of(operator.run(plain))
    for where in (guard.AT_END, guard.AT_BEGIN):
        memory = guard.Memory(where)
        call = problem.call(memory)
        with guard.guarding(where):
            actual = tensors_of(operator.run(call))
        for i, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
            assert ours.stride() == theirs.stride(), f"result {i} has other strides"
            assert _same(ours, theirs), f"result {i} has other bits between guard pages"
        for name, value in plain.items():
            if torch.is_tensor(value):
                assert _same(call[name], value), f"the call has changed {name}"
        del call, actual
        memory.free()


def bad(operator: Operator, problem: Problem) -> None:
    """A call with one wrong argument raises what names the operator and an argument, at once; or it
    is right, and gives what the oracle says."""
    wrong.check(operator, problem)


MODES: dict[str, Callable[[Operator, Problem], None]] = {
    "values": values,
    "gradients": gradients,
    "adjoint": adjoint,
    "guarded": guarded,
    "bad": bad,
}


def applies(operator: Operator, mode: str) -> bool:
    if mode == "gradients":
        return bool(operator.differentiable)
    return mode != "adjoint" or operator.adjoint is not None


def suits(problem: Problem, mode: str) -> bool:
    """Whether a mode can say something of a problem that was found in another one."""
    if (mode == "bad") != (problem.wrong is not None):
        return False
    if mode in ("gradients", "adjoint"):
        specs = problem.tensors.values()
        tame = all(spec.values not in ("corners", "finite", "wide") for spec in specs)
        floating = {spec.dtype for spec in specs} <= {"float64", "float32"}
        added = {"bias", "residual"} & problem.tensors.keys()
        is_linear = problem.attributes.get("activation") is None and not added
        if mode == "adjoint" and not is_linear:
            return False
        return tame and floating and applies(OPERATORS[problem.operator], mode)
    return True


def make(operator: Operator, mode: str, data: bytes) -> Problem:
    """The problem of these bytes."""
    tape = Tape(data)
    problem = operator.make(tape.part(240), mode)
    return wrong.spoil(operator, problem, tape) if mode == "bad" else problem


def number(operator: Operator, mode: str, seed: int, index: int) -> Problem:
    return make(operator, mode, tape_of(f"{operator.name} {mode}", seed, index))


def check(mode: str, problem: Problem) -> bool:
    """False if the kernel that the problem names does not take it, and says so. Raises if what the
    call gives is not right."""
    torch.set_num_threads(problem.threads)
    try:
        with torch.no_grad():
            MODES[mode](OPERATORS[problem.operator], problem)
    except NotImplementedError as error:
        if REFUSED in str(error) and problem.attributes.get("algorithm") != "auto":
            return False
        raise
    return True
