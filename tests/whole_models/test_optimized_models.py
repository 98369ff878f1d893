"""torch_dnnl.optimize over models of other libraries that take images: values beside float64.

Images are planes or as decoders give them. Batches and sizes are dynamic where the export of a
model allows that. A library that is not installed has no tests.
"""

import copy
from contextlib import suppress

import models_of_diffusers
import models_of_timm
import models_of_torchvision
import models_of_transformers
import pytest
import torch
from image_models import double_precision, images, installed
from torch.export import Dim

from torch_dnnl.graph.calls import convolution
from torch_dnnl.graph.optimize import optimize

MODELS = installed(
    models_of_torchvision, models_of_transformers, models_of_diffusers, models_of_timm
)
__test__ = bool(MODELS)  # without a library, pytest would call tests without models skipped

# Relative to the norm. Below these errors, either of eager and optimized may be the larger.
NOISE = {torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float16: 3e-3}
FACTOR = 2  # errors of results in multiples of eager's
FACTORS = {
    # The linear attention divides by sums after relu, and a rounding may make a sum 0. Errors of
    # eager are 0.0015 for some images and 0.007 for others.
    "autoencoder_dc": 5,
    # A folded weight has one rounding for all pixels. Attention averages over pixels: the average
    # lessens the errors of eager, whose roundings differ, but keeps the error of a folded weight.
    "detr": 2.5,
}
SIZES = ((3, 5), (5, 4))  # in multiples of the model's


def captured(model, module, x):
    """The optimized module, and whether it takes other batches and sizes."""
    kwargs = model.arguments(len(x)) if model.arguments else {}
    auto = {0: Dim.AUTO, 2: Dim.AUTO, 3: Dim.AUTO}
    if not kwargs:
        with suppress(Exception):  # the export of some models fixes sizes
            return optimize(module, (x,), dynamic_shapes=(auto,)), True
    return optimize(module, (x,), example_kwargs=kwargs), False


def run(model, module, x):
    with torch.no_grad():
        return [result for result in model.run(module, x) if isinstance(result, torch.Tensor)]


def distance(results, exact):
    return max(
        ((y.double() - x).norm() / x.norm()).item() for y, x in zip(results, exact, strict=True)
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", NOISE, ids=["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", MODELS)
def test_optimized_model(name, dtype):
    model = MODELS[name]
    module = model.make().to(dtype)
    double = copy.deepcopy(module).double()
    sizes = [[n * model.multiple for n in size] for size in SIZES]
    example = images("planes", 2, model.channels, *sizes[0]).to(dtype)
    try:
        run(model, module, example)
    except RuntimeError:  # some models of diffusers compute a part in float32
        with pytest.raises(RuntimeError):
            captured(model, module, example)
        return
    optimized, is_dynamic = captured(model, module, example)
    assert any(node.target is convolution for node in optimized.graph.nodes)
    for layout in ("planes", "decoded"):
        for batch, size in [(2, sizes[0])] + [(3, sizes[1])] * is_dynamic:
            x = images(layout, batch, model.channels, *size).to(dtype)
            with double_precision():
                exact = run(model, double, x.double())
            try:
                results = run(model, optimized, x)
            except AssertionError as error:  # the export of a model may bound its sizes
                if size == sizes[0] or "Guard failed" not in str(error):
                    raise
                continue
            eager = run(model, module, x)
            for y, z in zip(results, eager, strict=True):
                assert (y.shape, y.dtype) == (z.shape, z.dtype)
            limit = max(NOISE[dtype], FACTORS.get(name, FACTOR) * distance(eager, exact))
            assert distance(results, exact) <= limit, (layout, batch, size)
