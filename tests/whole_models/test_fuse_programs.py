"""convert(fuse=True): programs of which the record of torch.fx, or the code that it writes, would
be another program, and changes that nothing would notice."""

import copy
import functools

import numpy as np
import pytest
import torch
from test_fuse import operators, ready
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

import torch_dnnl

X, Y, Z = torch.randn(2, 4, 6, 5), torch.randn(2, 4, 6, 5), torch.randn(2, 4, 6, 5)


class Block(nn.Module):
    def __init__(self, **others):
        super().__init__()
        self.conv, self.norm, self.act = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()
        for name, value in others.items():
            setattr(self, name, value)

    def body(self, x):
        return self.act(self.norm(self.conv(x)))


class Same(Block):
    def forward(self, x, a=None, b=None):
        y = self.norm(self.conv(x))
        if a is not None and a is not b:
            y = y + a
        return self.act(y)


class Among(Block):
    def forward(self, x, a=None, b=None):
        y = self.norm(self.conv(x))
        if a is not None and a in (b,):
            y = y + a
        return self.act(y)


class Function(Block):
    def forward(self, x):
        return self.fn(self.norm(self.conv(x)))


class Default(Block):
    def forward(self, x, act=True):
        y = self.norm(self.conv(x))
        return self.act(y) if act else y


class Size(Block):
    def forward(self, x):
        height = x.shape[2]
        before = height
        height += 1
        return self.act(self.norm(self.conv(x))) * before + height


class Tuples(Block):
    def forward(self, x, others):
        given = others
        others += (x,)
        return self.act(self.norm(self.conv(x))), given, others


class Transposed(Block):
    def forward(self, x):
        view = x.mT
        view *= 2
        return self.act(self.norm(self.conv(x)))


class Shape(Block):
    def forward(self, x):
        shape = x.shape
        x = x.squeeze_(0)
        return self.act(self.norm(self.conv(x))).view(shape)


class Unpacked(Block):
    def forward(self, inputs):
        x, y = inputs
        return self.act(self.norm(self.conv(x)) + y)


class Chunks(Block):
    def forward(self, x):
        a, b = torch.cat([x, x * 2], 1).chunk(2, 1)
        n, c, h, w = a.shape
        return self.act(self.norm(self.conv(a)) + b).view(n * c, h, w)


class Sum(Block):
    def forward(self, x, skip=None):
        return self.act(self.norm(self.conv(x)) + skip)


class SumFunction(Block):
    def forward(self, x, skip):
        return self.act(torch.add(self.norm(self.conv(x)), skip))


class SumMethod(Block):
    def forward(self, x, skip):
        return self.act(self.norm(self.conv(x)).add_(skip))


class Doubled(torch.Tensor):
    """Its sums are twice those of others."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        result = super().__torch_function__(function, types, args, kwargs or {})
        return result * 2 if function in (torch.Tensor.add, torch.Tensor.__radd__) else result


class Between(nn.Module):
    """A convolution stands between another one and its sum."""

    def __init__(self):
        super().__init__()
        self.conv, self.conv2 = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x):
        y = self.conv(x)
        z = self.conv2(x)
        return F.relu(y + x), z


class Plain(Block):
    def forward(self, x):
        return self.act(self.norm(self.conv(x))) * self.t.shape[0]


class PlainItem(Block):
    def forward(self, x):
        return self.act(self.norm(self.conv(x))) * torch.sum(self.t).item()


class Written(Block):
    def forward(self, x, level):
        return {"out%s" % level: self.act(self.norm(self.conv(x)))}  # noqa: UP031


class Shared(nn.Module):
    """One convolution by two names."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Module(), nn.Module()
        self.a.conv = self.b.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        return F.relu(self.b.conv(x))


class Equal(nn.ReLU):
    def __eq__(self, other):
        return isinstance(other, nn.Module)

    __hash__ = nn.Module.__hash__


class Body(Block):
    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


class Device(Block):
    to = torch.device("cpu")

    def forward(self, x, device=None):
        return self.act(self.norm(self.conv(x))).type_as(x).new_zeros(3, device=self.to)


class Infinite(Block):
    def forward(self, x, inf=2.0):
        return self.act(self.norm(self.conv(x))).clamp(self.least, inf)


class Scalar(Block):
    k = np.float64(0.5)

    def forward(self, x):
        return self.act(self.norm(self.conv(x))) * self.k


class ScalarDefault(Block):
    def forward(self, x, k=np.float64(0.5)):  # noqa: B008
        return self.act(self.norm(self.conv(x))) * k


class ArrayDefault(Block):
    def forward(self, x, mean=np.ones(2)):  # noqa: B008
        if mean is not None:
            x = x + 1
        return self.act(self.norm(self.conv(x)))


class ListDefault(Block):
    def forward(self, x, kept=[]):  # noqa: B006
        return self.act(self.norm(self.conv(x))), kept


class NoSuchLayer(Block):
    def forward(self, x):
        x = self.layers[0](x)
        if self.n == 1:
            return self.act(x)
        return self.layers[1](x)


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.drop = nn.Conv2d(4, 4, 1), nn.Dropout()

    def forward(self, x):
        return self.drop(input=self.conv(x))


class Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.conv, self.scale = nn.Conv2d(4, 4, 1), scale

    def forward(self, x):
        return self.conv(x * self.scale)


def tied():
    scale = nn.Parameter(torch.rand(4, 1, 1))
    return nn.Sequential(Scaled(scale), nn.ReLU(), Scaled(scale))


class Child(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x, skip):
        return self.conv(x + skip.relu())


class Parent(nn.Module):
    def __init__(self):
        super().__init__()
        self.child = Child()

    def forward(self, x, skip=None):
        if skip is None:
            x = x * 2
        return F.relu(self.child(x, skip))


class Again(Block):
    def forward(self, x, again=None):
        y = self.act(self.norm(self.conv(x)))
        return y if again is None else self(y)


def other_forward(self, x, b=None):
    return self.act(self.norm(self.conv(x)) if b is None else x)


class Wrapped(Block):
    forward = functools.wraps(Same.forward)(other_forward)


class Dropped(Block):
    def forward(self, x):
        return self.drop(self.act(self.norm(self.conv(x))))


class DroppedNone(Block):
    def forward(self, x, skip=None):
        y = self.norm(self.conv(x))
        if skip is not None:
            y = y + skip
        return self.act(y), self.drop(skip)


class Flat(Block):
    def forward(self, x):
        return self.drop(self.act(self.norm(self.conv(x))).mean((2, 3)))


class Positional(Block):
    def forward(self, x, /):
        return self.act(self.norm(self.conv(x)))


class SecondArgument(nn.Module):
    """The result says whether the activation is in place."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 1, (6, 5))

    def forward(self, x):
        return F.relu(x, self.conv(x))


def with_attribute(path, value):
    *way, name = path.split(".")

    def change(model):
        for part in way:
            model = getattr(model, part)
        setattr(model, name, copy.deepcopy(value))

    return change


def double_inputs(model):
    model.conv2.register_forward_pre_hook(lambda module, inputs: (inputs[0].mul_(2), None)[1])


ARRAY = np.ones((2, 4, 6, 5), np.float32)
# The model, its arguments, and what is changed after the conversion.
CASES = {
    "two arguments are one": (Same(), (X, Y, Y), None),
    "two arguments": (Same(), (X, Y, Z), None),
    "an argument among others": (Among(), (X, torch.ones(1), torch.ones(1)), None),
    "a function of the module": (Function(fn=F.relu), (X,), with_attribute("fn", F.silu)),
    "a size that grows": (Size(), (X,), None),
    "a tuple that grows": (Tuples(), (X, (Y,)), None),
    "a view that is changed": (Transposed(), (X,), None),
    "a shape before a change": (Shape(), (X[None],), None),
    "three instead of two": (Unpacked(), ((X, Y, Z),), None),
    "one instead of two": (Unpacked(), ((X,),), None),
    "values of a dict": (Unpacked(), ({"a": X, "b": Y}.values(),), None),
    "chunks": (Chunks(), (X,), None),
    "None is no tensor": (Sum(), (X,), None),
    "an array": (Sum(), (X, ARRAY), None),
    "torch.add of an array": (SumFunction(), (X, ARRAY), None),
    "add_ of an array": (SumMethod(), (X, ARRAY), None),
    "add_": (SumMethod(), (X, Y), None),
    "sparse": (Sum(), (X, Y.to_sparse()), None),
    "a tensor's own sum": (Sum(), (X, Y.as_subclass(Doubled)), None),
    "a hook in between": (Between(), (X,), double_inputs),
    "plain tensors": (Plain(t=torch.ones(3)), (X,), with_attribute("t", torch.ones(5))),
    "items of tensors": (PlainItem(t=torch.ones(3)), (X,), lambda model: model.t.add_(1)),
    "text of an argument": (Written(), (X, 3), None),
    "two names": (Shared(), (X,), with_attribute("b.conv", nn.Conv2d(4, 4, 1))),
    "a layer equal to all": (Body(act=Equal()), (X,), with_attribute("act", nn.SiLU())),
    "an argument named device": (Device(), (X,), None),
    "an argument named inf": (Infinite(least=-float("inf")), (X,), None),
    "a scalar of NumPy": (Scalar(), (X,), None),
    "a default of NumPy": (ScalarDefault(), (X,), None),
    "a default array": (ArrayDefault(), (X,), None),
    "no such layer": (NoSuchLayer(layers=nn.ModuleList([nn.Conv2d(4, 4, 1)]), n=1), (X,), None),
    "a named input": (nn.Sequential(Named(), nn.ReLU()), (X,), None),
    "tied": (tied(), (X,), None),
    "a child that takes no None": (Parent(), (X, Y), None),
    "itself again": (Again(), (X, Y), None),
    "wrapped": (Wrapped(), (X,), None),
    "an impossible probability": (Dropped(drop=nn.Dropout()), (X,), with_attribute("drop.p", 1.5)),
    "None to a dropout": (DroppedNone(drop=nn.Dropout()), (X,), None),
    "a result in the second place": (SecondArgument(), (X[:1],), None),
    "no tensor": (Body(), (None,), None),
    "a list": (Body(), ([X],), None),
    "other channels": (Body(), (X[:, :3],), None),
    "another type": (Body(), (X.double(),), None),
}


def outcome(model, args):
    """The result, or the kind of the exception; and the arguments afterwards."""
    clones = {}

    def clone(x):
        return clones.setdefault(id(x), x.clone()) if isinstance(x, torch.Tensor) else x

    args = tree_map(clone, args)
    try:
        return model(*args), args
    except Exception as error:
        return type(error), args


@pytest.mark.parametrize("name", CASES)
def test_programs_are_what_they_were(name):
    model, args, change = CASES[name]
    model = ready(copy.deepcopy(model))
    fused = torch_dnnl.convert(copy.deepcopy(model), fuse=True)
    torch.testing.assert_close(vars(fused).get("t"), vars(model).get("t"))
    for network in (model, fused):
        torch.manual_seed(0)
        if change is not None:
            change(network)
    expected, actual = outcome(model, args), outcome(fused, args)
    if isinstance(expected[0], type):
        assert actual[0] is expected[0]
    elif name == "values of a dict":
        torch.testing.assert_close(actual[0], expected[0], rtol=1e-4, atol=1e-5)
    else:
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_defaults_that_are_replaced():
    model = ready(Default())
    fused = torch_dnnl.convert(model, fuse=True)
    assert operators(fused, X) == ["convolution_fused"]
    before = Default.forward.__defaults__
    try:
        Default.forward.__defaults__ = (False,)
        torch.testing.assert_close(fused(X), model(X), rtol=1e-4, atol=1e-5)
    finally:
        Default.forward.__defaults__ = before


def test_code_that_is_replaced():
    def forward(self, x):
        return self.norm(self.conv(x))

    model = ready(Body())
    fused, before = torch_dnnl.convert(model, fuse=True), Body.forward.__code__
    try:
        Body.forward.__code__ = forward.__code__
        torch.testing.assert_close(fused(X), model(X), rtol=1e-4, atol=1e-5)
    finally:
        Body.forward.__code__ = before


def test_a_list_by_default_is_the_forwards_own():
    fused = torch_dnnl.convert(ready(ListDefault()), fuse=True)
    assert fused(X)[1] is ListDefault.forward.__defaults__[0]


def test_arguments_by_position_alone():
    with pytest.raises(TypeError, match="positional"):
        torch_dnnl.convert(ready(Positional()), fuse=True)(x=X)


def test_warnings_of_dropouts():
    fused = torch_dnnl.convert(ready(Flat(drop=nn.Dropout2d())), fuse=True)
    with pytest.warns(UserWarning, match="dropout2d"):
        fused(X)


@pytest.mark.parametrize("kind", [Unpacked, Chunks, Size, SumMethod, Default])
def test_these_are_fused(kind):
    args = {Unpacked: ((X, Y),), SumMethod: (X, Y)}.get(kind, (X,))
    assert "convolution_fused" in operators(torch_dnnl.convert(ready(kind()), fuse=True), *args)


def test_copies_made_in_training_mode():
    fused = torch_dnnl.convert(ready(Body()), fuse=True)
    copied = copy.deepcopy(fused.train())
    assert operators(copied.eval(), X) == ["convolution_fused"]
    assert operators(fused.eval(), X) == ["convolution_fused"]


def test_modes_of_torchs_functions_see_the_models_calls():
    fused, seen = torch_dnnl.convert(ready(Body()), fuse=True), []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    with Mode():
        fused(X)
    assert F.relu in seen
    with torch_dnnl.accelerate(), torch.device("cpu"):
        assert operators(fused, X) == ["convolution_fused"]
