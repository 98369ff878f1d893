"""The public surface: `__all__` of each module, and the names that arguments may have as a str."""

import importlib
import pkgutil
import re
from importlib.util import find_spec
from types import ModuleType
from typing import get_args

import pytest
import torch

import torch_dnnl
import torch_dnnl._literals as L
import torch_dnnl.functional as D

# onnx needs a package that the tests do not.
NOT_HERE = () if find_spec("onnxscript") else ("onnx",)
MODULES = [
    "torch_dnnl",
    *(
        f"torch_dnnl.{module.name}"
        for module in pkgutil.iter_modules(torch_dnnl.__path__)
        if not module.name.startswith("_") and module.name not in NOT_HERE
    ),
]
COLLECTIONS = ("torch_dnnl.functional", "torch_dnnl.nn")  # of what their files define


def is_public(module: ModuleType, name: str) -> bool:
    """Whether a name of the module without an underscore is the module's own."""
    value = getattr(module, name)
    if isinstance(value, ModuleType):
        return module is torch_dnnl and name in ("formats", "functional", "nn", "quantization")
    home = getattr(value, "__module__", "")
    if module is torch_dnnl:
        return isinstance(value, str) or home.startswith("torch_dnnl")
    if module.__name__ in COLLECTIONS:
        return home.startswith(module.__name__)
    return home == module.__name__ or home.startswith(f"{module.__name__}._")


@pytest.mark.parametrize("name", MODULES)
def test_all_is_complete(name):
    module = importlib.import_module(name)
    found = {*vars(module), *module.__all__}  # some are loaded when they are asked for
    names = [n for n in found if not n.startswith("_") and is_public(module, n)]
    assert sorted(module.__all__) == sorted(names)


X = torch.rand(1, 5, 5, 3)
W = torch.rand(3, 3, 3, 3)
BYTES = (torch.ones(1, 5, 5, 3, dtype=torch.uint8), torch.ones(3, 3, 3, 3, dtype=torch.int8))

LISTS = [
    ("resample", (X, 3), "mode", L.Mode),
    ("resample", (X, 3), "coordinates", L.Coordinates),
    ("resample", (X, 3), "nearest_mode", L.NearestMode),
    ("resample", (X, 3), "data_format", L.DataFormat),
    ("conv2d", (X, W), "padding", L.TorchPadding),
    *(
        (function, args, argument, names)
        for function, args in (
            ("convolution", (X, W)),
            ("convolution_transpose", (X, W)),
            ("quantized_convolution", BYTES),
        )
        for argument, names in (
            ("auto_pad", L.AutoPad),
            ("data_format", L.DataFormat),
            (
                "weights_format",
                L.TransposedWeightsFormat if "transpose" in function else L.WeightsFormat,
            ),
            ("activation", L.Activation),
        )
    ),
    ("reorder", (X,), "compensation", L.Compensation),
]


@pytest.mark.parametrize(
    "function, args, argument, names", LISTS, ids=[f"{f}-{a}" for f, _, a, _ in LISTS]
)
def test_types_name_what_operators_take(function, args, argument, names):
    """The message about a name that does not exist lists those that do."""
    with pytest.raises((ValueError, RuntimeError)) as raised:
        getattr(D, function)(*args, **{argument: "other"})
    listed = str(raised.value).split(" to be ")[1].split(", got ")[0]
    words = set(re.findall(r"[\w-]+", listed)) - {"one", "of", "or", "None"}
    assert words == set(get_args(names))


def test_modes_of_interpolate():
    """Each of them resizes some image, and no other name is in the table of its arguments."""
    from torch_dnnl.functional._resample import _INTERPOLATE

    assert {mode for mode, *_ in _INTERPOLATE} == set(get_args(L.TorchMode))
