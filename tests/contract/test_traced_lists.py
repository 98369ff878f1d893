"""Optional lists of sizes: None and an empty list mean the same, and traced calls hold None.

AOTInductor loses lists without entries; programs that were exported before lists were optional have
them.
"""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import torch_dnnl  # noqa: F401
import torch_dnnl.functional as D

OPS = torch.ops.torch_dnnl
X, W = torch.randn(2, 3, 7, 6), torch.randn(4, 3, 3, 3)
NCX = {"data_format": "NCX", "weights_format": "OIX"}
CALLS = {
    "convolution": lambda lists: OPS.convolution(X, W, None, *lists, **NCX),
    "convolution_fused": lambda lists: OPS.convolution_fused(X, W, None, *lists, **NCX)[0],
    "convolution_transpose": lambda lists: OPS.convolution_transpose(
        X, W.transpose(0, 1), None, *lists, **NCX, dst_size=[9, 8]
    )[0],
    "convolution_backward_data": lambda lists: OPS.convolution_backward_data(
        torch.ones(2, 4, 5, 4), W, [7, 6], *lists, **NCX
    ),
    "convolution_backward_weights": lambda lists: OPS.convolution_backward_weights(
        torch.ones(2, 4, 5, 4), X, [3, 3], *lists, **NCX
    ),
    "quantized_convolution": lambda lists: OPS.quantized_convolution(
        X.to(torch.int8), W.to(torch.int8), None, *lists, **NCX
    ),
    "resample": lambda lists: OPS.resample(X, lists[0], [1.5, 2.0]),
    "reorder_backward": lambda lists: OPS.reorder_backward(X.sum(), lists[0], scale_value=2.0),
}


@pytest.mark.parametrize("name", CALLS)
def test_none_and_empty_lists_agree(name):
    call = CALLS[name]
    assert torch.equal(call([None] * 4), call([[]] * 4))


def sizes_of(function, *args):
    """The values of the optional lists of sizes in the calls that are traced."""
    graph = make_fx(function)(*args).graph
    for node in graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and "torch_dnnl" in str(node.target):
            for argument, value in zip(node.target._schema.arguments, node.args):
                if str(argument.type) in ("Optional[List[int]]", "Optional[List[SymInt]]"):
                    yield value


def test_traced_calls_have_no_empty_list():
    def step(x, w):
        weights = torch.nn.Parameter(w)
        y = D.interpolate(D.conv2d(x, weights), scale_factor=2.0)
        y = OPS.convolution(y, OPS.convolution(w, w.transpose(0, 1), None, [], [], **NCX), **NCX)
        y = y.sum() + D.conv_transpose2d(x, w.transpose(0, 1)).sum()
        D.reorder(y.clone(), scale=2.0).backward()
        return weights.grad

    found = list(sizes_of(step, X, torch.randn(3, 3, 3, 3)))
    assert len(found) > 10 and [] not in found
