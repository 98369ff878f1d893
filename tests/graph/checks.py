"""How the tests of `optimize` compare a model with its optimized form."""

import copy
from collections import Counter

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from torch_dnnl.graph.calls import convolution
from torch_dnnl.graph.nodes import arguments_of
from torch_dnnl.graph.optimize import optimize

AUTO = torch.export.Dim.AUTO
# Errors relative to float64, in multiples of eager's own; below `NOISE` either may be the larger.
FACTOR = 2
NOISE = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}
OPERATORS = (
    torch.ops.torch_dnnl.convolution_fused.default,
    torch.ops.torch_dnnl.convolution_packed.default,
    torch.ops.torch_dnnl.convolution_transpose.default,
)


def randomized(module: nn.Module) -> nn.Module:
    """Statistics and scales with which every norm matters; in eval mode."""
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.running_mean is not None:
            nn.init.uniform_(part.running_mean, -0.3, 0.3)
            nn.init.uniform_(part.running_var, 0.5, 2)
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.affine:
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.uniform_(part.bias, -0.3, 0.3)
    return module.eval()


def error(results, exact) -> float:
    pairs = zip(tree_leaves(results), tree_leaves(exact), strict=True)
    tensors = [(y.double(), x.double()) for y, x in pairs if isinstance(x, torch.Tensor)]
    return max((((y - x).norm() / x.norm().clamp(min=1e-30)).item() for y, x in tensors), default=0)


def strides(x):
    """Those that say where an element lies: not those of sizes of 1."""
    if not x.numel():
        return None
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size != 1]


@torch.no_grad()
def check_values(optimized, module, *inputs):
    """Results are the module's: in shape, type and strides, and no further from float64."""
    exact = copy.deepcopy(module).double()(*(x.double() for x in inputs))
    eager, results = module(*inputs), optimized(*inputs)
    for x, y in zip(tree_leaves(eager), tree_leaves(results), strict=True):
        assert (y.shape, y.dtype) == (x.shape, x.dtype)
        assert strides(x) == strides(y)
    dtype = inputs[0].dtype
    assert error(results, exact) <= max(NOISE[dtype], FACTOR * error(eager, exact))


def check(module, *inputs, **options):
    """The optimized form of a module, whose values were compared."""
    module = randomized(module)
    optimized = optimize(module, inputs, **options)
    check_values(optimized, module, *inputs)
    return optimized


def calls(optimized) -> Counter:
    """How often each operator is called, without its namespace and overload."""
    targets = [node.target for node in optimized.graph.nodes if node.op == "call_function"]
    names = [
        target._schema.name.split("::")[1] if hasattr(target, "_schema") else target.__name__
        for target in targets
    ]
    return Counter(names)


def convolutions(optimized) -> list[dict]:
    """The arguments of each convolution of torch_dnnl."""
    names = [a.name for a in torch.ops.torch_dnnl.convolution_packed.default._schema.arguments]
    found = []
    for node in optimized.graph.nodes:
        if node.target is convolution:
            found.append(dict(zip(names, node.args, strict=True)))
        elif node.target in OPERATORS:
            found.append(arguments_of(node))
    return found
