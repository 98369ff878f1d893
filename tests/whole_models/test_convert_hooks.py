"""convert and revert: whose methods the hooks of a copy call, and which hooks a handle removes."""

import copy
import functools

import pytest
import torch
from test_convert_copies import COPY, prepared
from torch import nn

import torch_dnnl

X = torch.randn(1, 1, 4, 4)
HOOKS = {
    "forward": lambda module, hook: module.register_forward_hook(hook),
    "forward_first": lambda module, hook: module.register_forward_hook(hook, prepend=True),
    "forward_with_kwargs": lambda module, hook: module.register_forward_hook(
        hook, with_kwargs=True
    ),
    "forward_always": lambda module, hook: module.register_forward_hook(hook, always_call=True),
    "forward_pre": lambda module, hook: module.register_forward_pre_hook(hook),
    "forward_pre_with_kwargs": lambda module, hook: module.register_forward_pre_hook(
        hook, with_kwargs=True
    ),
    "backward": lambda module, hook: module.register_full_backward_hook(hook),
    "backward_pre": lambda module, hook: module.register_full_backward_pre_hook(hook),
    "state_dict": lambda module, hook: module.register_state_dict_post_hook(hook),
    "state_dict_pre": lambda module, hook: module.register_state_dict_pre_hook(hook),
    "load_pre": lambda module, hook: module.register_load_state_dict_pre_hook(hook),
    "load_post": lambda module, hook: module.register_load_state_dict_post_hook(hook),
}


def see(model, *args, **kwargs):
    model.seen.append(len(args))


def see_by_keyword(*args, model, **kwargs):
    see(model, *args)


def call(function, *args, **kwargs):
    return function(*args, **kwargs)


class Seer:
    def __init__(self, model):
        self.model = model

    def __call__(self, *args, **kwargs):
        see(self.model, *args)


def wrapped(function):
    """As decorators make it."""
    return functools.update_wrapper(functools.partial(call, function), function)


WAYS = {
    "bound method": lambda model: model.see,
    "partial": lambda model: functools.partial(model.see),
    "partial of a function": lambda model: functools.partial(see, model),
    "nested partial": lambda model: functools.partial(call, functools.partial(model.see)),
    "partial with keyword": lambda model: functools.partial(see_by_keyword, model=model),
    "wrapped partial": lambda model: wrapped(model.see),
    "object": Seer,
    "method of an object": lambda model: Seer(model).__call__,
    "lambda": lambda model: lambda module, *args, **kwargs: module.seen.append(len(args)),
    "closure": lambda model: lambda *args, **kwargs: see(model, *args),
}
CASES = [
    (kind, way)
    for kind in HOOKS
    for way in WAYS
    if kind != "state_dict" or "method" not in way  # which torch does not take there
]


class Model(nn.Module):
    """A model and its layer, which have the same hook and may be told apart."""

    def __init__(self, kind, way):
        super().__init__()
        self.layer, self.seen = nn.Conv2d(1, 1, 1), []
        self.layer.seen = []
        hook = WAYS[way](self)
        self.handles = [HOOKS[kind](module, hook) for module in (self, self.layer)]

    def see(self, *args, **kwargs):
        see(self, *args)

    def forward(self, x):
        return self.layer(x)


def run(model):
    """Whatever calls hooks."""
    model(X.clone().requires_grad_()).sum().backward()
    model.load_state_dict(model.state_dict())


def seen_by(copied, model):
    """What hooks of a copy saw: the copy, its layer, the model that was copied, the layer of it."""
    run(copied)
    result = [list(each.seen) for each in (copied, copied.layer, model, model.layer)]
    for each in (copied, copied.layer, model, model.layer):
        each.seen.clear()
    return result


@pytest.mark.parametrize("how", COPY)
@pytest.mark.parametrize(("kind", "way"), CASES)
def test_hooks(kind, way, how):
    """The hooks of a copy call what those of the copy that `copy.deepcopy` makes call."""
    model = prepared(Model(kind, way), how)
    expected = seen_by(copy.deepcopy(model), model)
    result = COPY[how](model)
    seen = seen_by(result, model)
    assert seen == expected and any(seen)
    assert any(seen[2:]) == (way == "closure")  # functions have no copies
    for handle in result.handles:
        handle.remove()
    assert not any(seen_by(result, model)) and any(seen_by(model, result))


@pytest.mark.parametrize("function", [torch_dnnl.convert, torch_dnnl.revert])
@pytest.mark.parametrize(("kind", "way"), CASES)
def test_hooks_inplace(kind, way, function):
    model = Model(kind, way)
    expected = seen_by(model, model)
    assert function(model, inplace=True) is model
    assert seen_by(model, model) == expected and any(expected)


@pytest.mark.parametrize("how", COPY)
def test_hooks_share_an_object(how):
    """An object that two hooks hold is one object in the copy, too."""
    model = prepared(Model("forward", "object"), how)
    result = COPY[how](model)
    hooks = [*result._forward_hooks.values(), *result.layer._forward_hooks.values()]
    assert len({id(hook) for hook in hooks}) == 1 and hooks[0].model is result


@pytest.mark.parametrize("how", COPY)
def test_always_called_hooks_of_a_forward_that_raises(how):
    model = prepared(Model("forward_always", "partial"), how)
    result = COPY[how](model)
    with pytest.raises(RuntimeError):
        result(torch.randn(1, 2, 4, 4))
    assert result.seen and not model.seen
