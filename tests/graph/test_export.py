"""What can be done with the result of optimize: copies, files, exports, compilers, threads."""

import copy
import io
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from checks import AUTO, check_values, randomized
from torch import nn

import torch_dnnl
from torch_dnnl.graph.optimize import optimize


class Network(nn.Module):
    """Two inputs, nested results, a residual, a resize and a linear layer."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.block = nn.Conv2d(8, 8, 3, padding=1)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.head = nn.Linear(8, 5)

    def forward(self, x, scale=None):
        y = self.stem(x)
        y = F.silu(self.block(y) + y)
        y = F.interpolate(self.up(y), scale_factor=2.0, mode="bilinear")
        y = y if scale is None else y * scale
        return {"image": y, "scores": (self.head(y.mean((2, 3))),)}


def network():
    return randomized(Network())


def images(*sizes):
    return torch.rand(sizes or (2, 3, 10, 12))


@pytest.fixture(scope="module")
def pair():
    torch.manual_seed(0)
    model = network()
    dynamic = ({0: AUTO, 2: AUTO, 3: AUTO},)
    return model, optimize(model, (images(),), dynamic_shapes=dynamic)


def saved(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, saved, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies(pair, copied):
    model, optimized = pair
    other = copied(optimized)
    for name, tensor in other.state_dict().items():
        assert tensor.data_ptr() != optimized.state_dict()[name].data_ptr()
    assert "self._modules['block']._parameters['weight']" in other.code  # the quick way
    check_values(other, model, images(3, 3, 14, 9))


class Stateful(nn.Module):
    """What a call computes from no input: a counter, random numbers, a result; and branches."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.weight = nn.Parameter(torch.rand(3))
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x):
        self.count.add_(1)
        y = torch.cond(x.sum() > 0, lambda x: x.relu(), lambda x: x - 1, (self.conv(x),))
        y = y.contiguous(memory_format=torch.channels_last)
        return y, self.count + 0, self.weight.softmax(0), torch.rand(3)


@torch.no_grad()
@pytest.mark.parametrize("times", [1, 2])
def test_saved_state(times):
    model, x = randomized(Stateful()), torch.randn(2, 3, 5, 7)
    optimized = optimize(model, (x,))
    for _ in range(times):
        optimized = saved(optimized)
    before = torch.rand(3)
    for call, image in enumerate((x.abs(), -x.abs(), x), 1):
        y, count, weight, random = optimized(image)
        torch.testing.assert_close(y, model(image)[0])
        torch.testing.assert_close(weight, model.weight.softmax(0))
        assert count == optimized.count == call and not torch.equal(random, before)
        before = random
        weight.zero_()


def test_has_no_tie_to_the_model():
    model, x = network(), images()
    optimized = optimize(model, (x,))
    expected = optimized(x)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.zero_()
    assert torch.equal(optimized(x)["image"], expected["image"])
    for result in expected.values():
        (result if isinstance(result, torch.Tensor) else result[0]).zero_()
    assert optimized(x)["image"].any()


def test_model_stays_as_it_is():
    model = network().train()
    model.block.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimize(model, (images(),))
    assert model.training and not model.block.training and model.stem.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("strict", [False, True])
def test_exported_again(pair, strict):
    model, optimized = pair
    dynamic = ({0: AUTO, 2: AUTO, 3: AUTO},)
    program = torch.export.export(optimized, (images(),), dynamic_shapes=dynamic, strict=strict)
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    check_values(torch.export.load(file).module(), model, images(3, 3, 14, 9))


@pytest.mark.parametrize("backend", ["inductor", "torch_dnnl", "aot_eager"])
def test_compiled(pair, backend):
    model, optimized = pair
    torch._dynamo.reset()
    check_values(torch.compile(optimized, backend=backend, fullgraph=True), model, images())


def test_threads(pair):
    model, optimized = pair
    inputs = [images(2, 3, 8 + i, 9) for i in range(8)]
    with ThreadPoolExecutor(4) as pool, torch.no_grad():
        results = list(pool.map(optimized, inputs))
        for x, result in zip(inputs, results, strict=True):
            assert torch.equal(result["image"], optimized(x)["image"])
    check_values(optimized, model, inputs[0])


def test_gradient_of_the_input(pair):
    model, optimized = pair
    gradients = []
    for module in (model, optimized):
        x = images().requires_grad_()
        torch.manual_seed(0)
        (gradient,) = torch.autograd.grad(module(x)["scores"][0].sum(), x)
        gradients.append((x, gradient))
    (a, expected), (b, gradient) = gradients
    assert a.shape == b.shape and gradient.isfinite().all() and expected.isfinite().all()
    assert not any(parameter.requires_grad for parameter in optimized.parameters())


def test_keyword_arguments():
    model, x, scale = network(), images(), torch.rand(8, 1, 1)
    optimized = optimize(model, (x,), example_kwargs={"scale": scale})
    with torch.no_grad():
        torch.testing.assert_close(optimized(x, scale=scale), model(x, scale=scale))
    with pytest.raises(AssertionError, match="Guard failed: scale"):
        optimized(x, scale=torch.rand(8, 1, 2))


def test_channels_last(pair):
    model, optimized = pair
    check_values(optimized, model, images().to(memory_format=torch.channels_last))


def test_optimized_twice(pair):
    model, optimized = pair
    check_values(optimize(optimized, (images(),)), model, images())


def test_sizes_that_the_export_does_not_allow():
    optimized = optimize(network(), (images(),))
    dynamic = optimize(network(), (images(2, 3, 8, 8),), dynamic_shapes=({2: AUTO, 3: AUTO},))
    for module, x in [
        (optimized, images(2, 3, 11, 12)),
        (optimized, images(3, 3, 10, 12)),
        (dynamic, images(3, 3, 9, 9)),
    ]:
        with pytest.raises(AssertionError, match="Guard failed: x"):
            module(x)


def test_branches_by_size():
    class Branches(nn.Module):
        def forward(self, x):
            return x * 2 if x.shape[2] > x.shape[3] else x * 3

    optimized = optimize(Branches(), (images(2, 3, 7, 5),), dynamic_shapes=({2: AUTO, 3: AUTO},))
    for module in (optimized, saved(optimized)):
        assert module(images(2, 3, 9, 6)).shape == (2, 3, 9, 6)
        with pytest.raises(AssertionError, match="Guard failed"):
            module(images(2, 3, 5, 7))


def test_bad_calls():
    with pytest.raises(
        TypeError, match=r"optimize: expected model to be a torch.nn.Module, got int"
    ):
        torch_dnnl.optimize(3, ())
    with pytest.raises(TypeError, match=r"optimize: expected example_inputs to be a tuple"):
        torch_dnnl.optimize(network(), 3)


def test_control_flow_by_data():
    class Choice(nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x

    error = torch.fx.experimental.symbolic_shapes.GuardOnDataDependentSymNode
    with pytest.raises(error, match="data-dependent") as caught:
        torch_dnnl.optimize(Choice(), (images(),))
    notes = getattr(caught.value, "__notes__", ["torch.export cannot capture"])
    assert "torch.export cannot capture" in notes[-1]


def test_modes_of_modules():
    """eval() and train() are called, as they may do more than set a flag."""

    class Merged(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.is_merged = nn.Conv2d(3, 4, 3), False

        def train(self, mode=True):
            self.is_merged = not mode
            return super().train(mode)

        def forward(self, x):
            return self.conv(x) * (2 if self.is_merged else 3)

    model, x = Merged().train(), images()
    optimized = optimize(model, (x,))
    assert model.training and not model.is_merged
    check_values(optimized, model.eval(), x)
    traced = torch.fx.symbolic_trace(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).train())
    check_values(optimize(traced, (x,)), traced.eval(), x)
    exported = torch.export.export(randomized(nn.Sequential(nn.Conv2d(3, 4, 3))), (x,)).module()
    part = nn.Sequential(exported, nn.Sigmoid())
    with torch.no_grad():
        torch.testing.assert_close(optimize(part, (x,))(x), part(x))


def test_results_share_no_memory_with_constants():
    class Constants(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4, 4))
            self.register_buffer("made", self.weight * 2)

        def forward(self, x):
            k = self.weight * 2
            return torch.einsum("ij->ji", k), k.type_as(x), *torch.meshgrid(k[0], k[1]), x * k

    x = torch.rand(4, 4)
    with torch.inference_mode():
        optimized = optimize(Constants().eval(), (x,))
    expected = [result.clone() for result in optimized(x)]
    for result in optimized(x):
        if result.is_contiguous():
            result.zero_()
    assert all(map(torch.equal, optimized(x), expected))
    optimized(x.requires_grad_())[-1].sum().backward()


def test_nothing_of_torch_dnnl():
    model = nn.Sequential(nn.Flatten(), nn.Softmax(1))
    check_values(torch_dnnl.optimize(model, (images(),)), model, images())


def test_autocast_of_the_caller():
    """The context in which optimize is called is none of the model's."""
    model = network()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        optimized = optimize(model, (images(),))
    check_values(optimized, model, images())


def test_sizes_from_data():
    class Masked(nn.Module):
        def forward(self, x, mask):
            y = x[:, mask]
            torch._check(y.shape[1] >= 3)
            return y[:, :3].clone() * 2

    x, mask = torch.randn(8, 40), torch.arange(40) % 5 > 0
    torch.testing.assert_close(optimize(Masked(), (x, mask))(x, mask), Masked()(x, mask))


def test_buffers_that_share_memory():
    """torch's decompositions fail where a model writes to one of them."""

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)
            self.register_buffer("all", torch.ones(8))
            self.register_buffer("part", self.all[:4])

        def forward(self, x):
            self.part.add_(1)
            return self.conv(x) * self.all.view(8, 1, 1)

    model = Shared().eval()
    optimized, expected = optimize(model, (images(),)), copy.deepcopy(model)
    for _ in range(2):
        x = images()
        torch.testing.assert_close(optimized(x), expected(x))


def test_gradients_of_written_parts():
    """aten.copy, which export makes of an assignment, has no derivative."""

    class Written(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3)

        def forward(self, x):
            y = self.conv(x)
            y[:, :1] = y[:, 1:2] * 3
            y.diagonal(0, 2, 3).copy_(y[:, :, 0])
            return y

    model, x = Written().eval(), torch.randn(2, 3, 8, 8, requires_grad=True)
    optimized = optimize(model, (x.detach(),))
    check_values(optimized, model, x.detach())
    gradients = [torch.autograd.grad(each(x).square().sum(), x)[0] for each in (optimized, model)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("first", [nn.Conv2d(4, 4, 3), nn.ConvTranspose2d(4, 4, 3)])
def test_called_within_autocast(first):
    model = nn.Sequential(first, nn.Conv2d(4, 4, 3), nn.ReLU()).eval()
    x = torch.randn(2, 4, 9, 11)
    optimized = optimize(model, (x,))
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        result, expected = optimized(x), model(x)
    assert result.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(result, expected, rtol=2**-6, atol=2**-6)


def test_parametrization_of_the_result():
    class Zero(nn.Module):
        def forward(self, x):
            return x * 0

    model, x = nn.Sequential(nn.Conv2d(4, 4, 3)).eval(), torch.randn(2, 4, 9, 11)
    optimized = optimize(model, (x,))
    expected = F.conv2d(x, model[0].weight)
    nn.utils.parametrize.register_parametrization(optimized.get_submodule("0"), "bias", Zero())
    torch.testing.assert_close(optimized(x), expected)
