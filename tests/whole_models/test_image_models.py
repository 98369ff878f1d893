"""torch.compile(backend="torch_dnnl") over models of other libraries that take images.

One compiled function takes images of three sizes, alone and two at a time, as torch makes them and
as decoders do. Its results are those of the model in float64, or else in float32. A library that is
not installed has no tests.
`pytest tests/whole_models/test_image_models.py --backend inductor` does the same with torch's own
backend: what fails there too is no fault of torch_dnnl.
"""

import copy

import models_of_diffusers
import models_of_timm
import models_of_transformers
import pytest
import torch
from image_models import double_precision, images, installed
from torch._dynamo import config
from torch._inductor import config as inductor

MODELS = installed(models_of_transformers, models_of_diffusers, models_of_timm)
__test__ = bool(MODELS)  # without a library, pytest would call tests without models skipped

# The layout, the number of images, and their sizes in multiples of the model's.
CALLS = [
    ("planes", 1, (3, 5)),
    ("planes", 1, (5, 7)),
    ("planes", 2, (7, 5)),
    ("decoded", 1, (3, 5)),
    ("decoded", 1, (7, 5)),
    ("decoded", 2, (5, 7)),
]
CPU = torch.profiler.ProfilerActivity.CPU  # operators are called on the CPU
# Kernels of Inductor without vectors and optimization are compiled in half the time.
OPTIONS = {"cpp.simdlen": 1, "aot_inductor.debug_compile": True, "fx_graph_cache": False}
# Relative to the norm, as in test_models.py. Some gradients are zero except for rounding.
# Their errors are relative to a hundredth of the norm of all gradients.
BOUND, GRADIENT_BOUND = 1e-4, 1e-2


def outcome(model, module, function, x, mode):
    """The results by name; of training the gradients too, of parameters alone."""
    module.zero_grad(set_to_none=True)
    with torch.set_grad_enabled(mode == "training"):
        results = model.run(function, x)
    found = {f"result {i}": result.detach() for i, result in enumerate(results)}
    if mode == "training":
        # The gradient of a sum of squares would vanish behind the last norm.
        weights = [torch.arange(y.numel()).view(y.shape).cos() for y in results]
        sum((y * w).mean() for y, w in zip(results, weights)).backward()
        found |= {name: parameter.grad for name, parameter in module.named_parameters()}
    return found


def differences(actual, expected):
    gradients = [x for name, x in expected.items() if "result" not in name and x is not None]
    norm = torch.stack([x.norm() for x in gradients]).norm() if gradients else 0
    for name, x in expected.items():
        y = actual[name]
        if x is None or y is None:  # a result that is not used may have gradients that are zero
            if any(gradient is not None and gradient.any() for gradient in (x, y)):
                yield f"{name}: expected {'no' if x is None else 'a'} gradient"
            continue
        if (x.shape, torch.float32) != (y.shape, y.dtype):
            yield f"{name}: expected float32 of {x.shape}, got {y.dtype} of {y.shape}"
            continue
        is_result = name.startswith("result ")
        least = 0 if is_result else norm / 100
        error = ((y - x).norm() / max(x.norm(), least)).item()
        if not error <= (BOUND if is_result else GRADIENT_BOUND):
            yield f"{name}: off by {error:.2g} of its norm"


def failures(model, mode, backend):
    """What goes wrong in each of the calls of one compiled function, and who was called."""
    module = model.make()
    double = copy.deepcopy(module).double()
    function = torch.compile(module, backend=backend)
    found, called = [], set()
    for layout, batch, size in CALLS:
        rows, columns = (n * model.multiple for n in size)
        x = images(layout, batch, model.channels, rows, columns)
        with double_precision():
            exact = outcome(model, double, double, x.double(), mode)
        try:
            actual = outcome(model, module, function, x, mode)
            wrong = list(differences(actual, exact))
            if wrong:  # A pool may choose another pixel than in float64, as BEiT's do.
                wrong = list(differences(actual, outcome(model, module, module, x, mode)))
            if not called:
                with torch.profiler.profile(activities=[CPU]) as profile:
                    outcome(model, module, function, x, mode)
                called = {event.key for event in profile.key_averages()}
        except Exception as error:  # of the compiler, or of a kernel
            wrong = [f"{type(error).__name__}: {error}"]
        if wrong:
            call = f"{layout} {batch}x{model.channels}x{rows}x{columns}"
            found.append(f"{call}: {wrong[0]}" + (f" and {len(wrong) - 1} more" * (len(wrong) > 1)))
    return found, called


# Training uses the stored statistics of norms. The statistics of one or two small images would turn
# float32 errors into percents.
@pytest.mark.slow
@pytest.mark.parametrize("mode", ["inference", "training"])
@pytest.mark.parametrize("name", MODELS)
def test_image_model(name, mode, request):
    backend = request.config.getoption("backend")
    torch._dynamo.reset()
    # Past the limit of compilations the model itself would run.
    with config.patch(fail_on_recompile_limit_hit=True), inductor.patch(OPTIONS):
        found, called = failures(MODELS[name], mode, backend)
    assert found == []
    if backend == "torch_dnnl":
        assert any(operator.startswith("torch_dnnl::") for operator in called)
