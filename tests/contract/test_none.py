"""None for an argument without that default: torch's exception, else a TypeError."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torch_dnnl
import torch_dnnl.functional as D

T = torch.rand
CODES, CODE_WEIGHTS = torch.uint8, torch.ones(3, 3, 2, 4, dtype=torch.int8)
FUNCTIONS = {
    "convolution": {"src": T(1, 5, 5, 2), "weights": T(3, 3, 2, 4)},
    "convolution_transpose": {"src": T(1, 5, 5, 2), "weights": T(3, 3, 4, 2)},
    "quantized_convolution": {"src": torch.ones(1, 5, 5, 2, dtype=CODES), "weights": CODE_WEIGHTS},
    "interpolate": {"input": T(1, 2, 5, 5), "size": 7},
    "resample": {"src": T(1, 2, 5, 5), "size": 7},
    "reorder": {"src": T(1, 2, 5, 5)},
    "fake_reorder": {"src": T(1, 2, 5, 5), "dtype": torch.int8, "dst_scale": 0.1},
}
for n in (1, 2, 3):
    image, kernel = (5,) * n, (3,) * n
    FUNCTIONS[f"conv{n}d"] = {"input": T(1, 2, *image), "weight": T(3, 2, *kernel)}
    FUNCTIONS[f"conv_transpose{n}d"] = {"input": T(1, 2, *image), "weight": T(2, 3, *kernel)}
# None means something there.
ALLOWED = {("resample", "size"), ("fake_reorder", "dst_scale")}


def calls():
    for name, given in FUNCTIONS.items():
        for parameter in inspect.signature(getattr(D, name)).parameters.values():
            is_given = parameter.name in given
            if (name, parameter.name) in ALLOWED or (parameter.default is None and not is_given):
                continue
            yield pytest.param(name, parameter.name, id=f"{name}-{parameter.name}")


def outcome(function, *args, **kwargs):
    """The exception, or what is not one."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return error


@pytest.mark.parametrize("name, argument", list(calls()))
def test_functions(name, argument):
    given = FUNCTIONS[name]
    n = given[next(iter(given))].dim() - 2
    takes_lists = argument not in given and not isinstance(
        inspect.signature(getattr(D, name)).parameters[argument].default, (str, bool)
    )
    for value in (None, (None,) * n) if takes_lists else (None,):
        call = given | {argument: value}
        torchs = outcome(getattr(F, name), **call) if hasattr(F, name) else TypeError()
        for device in ("cpu", "meta"):
            on_device = {
                key: item.to(device) if isinstance(item, torch.Tensor) else item
                for key, item in call.items()
            }
            result = outcome(getattr(D, name), **on_device)
            if isinstance(torchs, Exception):
                assert type(result) is type(torchs), (value, result)
                assert name in str(result) and argument in str(result)
            else:
                assert isinstance(result, torch.Tensor)


LAYERS = {f"{kind}{n}d": (3, 4, 3) for kind in ("Conv", "ConvTranspose") for n in (1, 2, 3)} | {
    **{f"QuantizedConv{n}d": (3, 4, 3) for n in (1, 2, 3)},
    **{"Conv": (2, 3, 4, 3), "Upsample": (7,), "Resample": (7,), "Reorder": ()},
}


def image_of(name):
    n = int(name[-2]) if name[-1] == "d" else 2
    dtype = torch.uint8 if name.startswith("Quantized") else torch.float32
    return torch.ones(1, *((5,) * n), 3, dtype=dtype).movedim(
        *(1, 1) if name == "Conv" else (-1, 1)
    )


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    """The constructor or the call raises."""
    given, image = LAYERS[name], image_of(name)

    def run(cls, argument, place):
        if place < len(given):
            return cls(*given[:place], None, *given[place + 1 :])(image)
        return cls(*given, **{argument: None})(image)

    cls = getattr(torch_dnnl.nn, name)
    assert isinstance(cls(*given)(image), torch.Tensor)
    for place, parameter in enumerate(inspect.signature(cls).parameters.values()):
        is_variadic = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        if (
            parameter.default is None
            or is_variadic
            or (name, parameter.name) == ("Resample", "size")
        ):
            continue
        result = outcome(run, cls, parameter.name, place)
        torchs = (
            outcome(run, getattr(nn, name), parameter.name, place)
            if hasattr(nn, name)
            else TypeError()
        )
        if isinstance(torchs, Exception):
            assert type(result) is type(torchs), (parameter.name, result)
        else:
            assert isinstance(result, torch.Tensor), (parameter.name, result)
