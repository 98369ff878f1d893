"""The transforms of test_transforms.py, on a GPU."""

import pytest
import torch
from op_db import MATRIX, assert_matches, by_name
from torch import nn

import torch_dnnl
import torch_dnnl.functional as D

pytestmark = pytest.mark.cuda


def on_gpu(case, dtype=torch.float32):
    return [x.detach().requires_grad_() for x in case.inputs(dtype, device="cuda")]


def cubes(function):
    return lambda *inputs: function(*inputs).pow(3).sum()


@pytest.mark.parametrize("case", MATRIX, ids=by_name)
def test_second_derivatives(case):
    assert torch.autograd.gradgradcheck(case.call, on_gpu(case, torch.float64), fast_mode=True)


@pytest.mark.parametrize("case", MATRIX, ids=by_name)
def test_vmap(case):
    x, *rest = on_gpu(case, torch.float64)
    batch = torch.stack([x, x * 0.5, x + 1])
    for function in (case.call, torch.func.grad(cubes(case.call))):
        results = torch.func.vmap(lambda x, f=function: f(x, *rest))(batch)
        for result, one in zip(results, batch):
            assert_matches(result, function(one, *rest).cpu(), 1e-11)


@pytest.mark.parametrize("case", MATRIX, ids=by_name)
def test_compile(case):
    torch.compiler.reset()  # or the cases, which are one function's, would be too many for it
    inputs = on_gpu(case)
    expected = torch.autograd.grad(cubes(case.call)(*inputs), inputs)
    compiled = torch.compile(cubes(case.call), fullgraph=True)
    for a, b in zip(torch.autograd.grad(compiled(*inputs), inputs), expected):
        assert_matches(a, b.cpu(), 1e-5)  # Inductor's products are fused


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype):
    x, w = torch.randn(2, 8, 9, 9, device="cuda"), torch.randn(8, 8, 3, 3, device="cuda")
    with torch.autocast("cuda", dtype=dtype):
        result = D.conv2d(x, w)
        image = D.interpolate(x, scale_factor=2, mode="bilinear")
    assert result.dtype == dtype and image.dtype == torch.float32
    assert torch.equal(result, D.conv2d(x.to(dtype), w.to(dtype)))


class Network(nn.Module):
    """A layer of each kind, as users have them."""

    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16))
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.wide = nn.Conv2d(16, 24, 1)
        self.up = nn.ConvTranspose2d(24, 8, 4, 2, 1)
        self.resize = nn.Upsample(scale_factor=2, mode="bilinear")
        self.last = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x):
        y = torch.relu(self.down(x))
        y = nn.functional.silu(self.wide(y + self.depthwise(y)))
        return self.last(self.resize(self.up(y)))


def step(network, x):
    """The loss, and the gradients of all parameters."""
    network.zero_grad()
    loss = network(x).square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in network.parameters())]


@pytest.mark.parametrize("way", ["convert", "compiled", "backend"])
def test_training_step_of_a_network(way):
    network = Network()
    x = torch.randn(4, 3, 33, 35)
    expected = step(network, x)
    network = network.cuda()
    if way != "backend":
        network = torch_dnnl.convert(network)
    options = {"compiled": {}, "backend": {"backend": "torch_dnnl"}}
    called = torch.compile(network, **options[way]) if way in options else network
    network.zero_grad()
    loss = called(x.cuda()).square().mean()
    loss.backward()
    results = [loss.detach(), *(p.grad for p in network.parameters())]
    for a, b in zip(results, expected):
        assert_matches(a, b, 1e-4)  # through batch norm and four layers of float32


def test_inference_of_a_network():
    network = Network().eval()
    x = torch.randn(4, 3, 33, 35)
    expected = network(x)
    converted = torch_dnnl.convert(network.cuda())
    assert_matches(converted(x.cuda()), expected, 1e-5)


def test_package_of_aot_inductor(tmp_path):
    network = torch_dnnl.convert(Network().cuda().eval())
    x = torch.randn(4, 3, 33, 35, device="cuda")
    program = torch.export.export(network, (x,))
    path = torch._inductor.aoti_compile_and_package(
        program, package_path=str(tmp_path / "network.pt2")
    )
    loaded = torch._inductor.aoti_load_package(path)
    with torch.no_grad():
        assert_matches(loaded(x), network(x).cpu(), 1e-5)
