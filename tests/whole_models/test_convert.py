"""convert: the layers it replaces, and what it leaves alone."""

import copy

import pytest
import torch

import torch_dnnl

REPLACED = {
    torch.nn.Conv1d: torch_dnnl.nn.Conv1d,
    torch.nn.Conv2d: torch_dnnl.nn.Conv2d,
    torch.nn.Conv3d: torch_dnnl.nn.Conv3d,
    torch.nn.ConvTranspose1d: torch_dnnl.nn.ConvTranspose1d,
    torch.nn.ConvTranspose2d: torch_dnnl.nn.ConvTranspose2d,
    torch.nn.ConvTranspose3d: torch_dnnl.nn.ConvTranspose3d,
    torch.nn.Upsample: torch_dnnl.nn.Upsample,
}
LAYERS = [
    (torch.nn.Conv1d(3, 4, 3, padding="same"), (2, 3, 9)),
    (torch.nn.Conv2d(4, 4, 3, stride=2, groups=2, padding_mode="reflect", padding=1), (2, 4, 9, 8)),
    (torch.nn.Conv3d(2, 3, 2, dilation=2, bias=False), (2, 2, 6, 5, 4)),
    (torch.nn.ConvTranspose1d(3, 4, 3, dilation=2), (2, 3, 9)),
    (torch.nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=2), (2, 4, 9, 8)),
    (torch.nn.ConvTranspose3d(2, 3, 2, stride=2, bias=False), (2, 2, 3, 5, 4)),
    (torch.nn.Upsample(size=7, mode="linear"), (2, 3, 5)),
    (torch.nn.UpsamplingNearest2d(scale_factor=2), (2, 3, 5, 4)),
    (torch.nn.UpsamplingBilinear2d(size=(7, 9)), (2, 3, 5, 4)),
]


class Network(torch.nn.Module):
    """Layers in every kind of place, one of them used twice."""

    def __init__(self):
        super().__init__()
        self.head = torch.nn.Conv2d(3, 6, 3, padding=1)
        self.body = torch.nn.Sequential(torch.nn.BatchNorm2d(6), torch.nn.ReLU())
        self.body.append(torch.nn.ModuleList([torch.nn.Conv2d(6, 6, 3, padding=1)])[0])
        self.heads = torch.nn.ModuleDict({"a": self.head})
        self.listed = [self.head, ("name", self.body[2])]
        self.up = torch.nn.Upsample(scale_factor=2, mode="bilinear")
        self.note = "kept"

    def forward(self, x):
        return self.up(self.body(self.heads["a"](x)))


def gradients(model, x):
    model.zero_grad()
    model(x).square().sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(("layer", "shape"), LAYERS, ids=lambda value: type(value).__name__)
def test_layer_is_the_model(layer, shape, inplace):
    layer = copy.deepcopy(layer)
    old_type = type(layer)
    x = torch.randn(shape)
    expected = layer(x)
    converted = torch_dnnl.convert(layer, inplace=inplace)
    if old_type in REPLACED:
        assert type(converted) is REPLACED[old_type]
    else:  # UpsamplingNearest2d and UpsamplingBilinear2d are subclasses
        assert isinstance(converted, old_type) and isinstance(converted, torch_dnnl.nn.Upsample)
    assert (converted is layer) == inplace
    assert (type(layer) is old_type) != inplace
    torch.testing.assert_close(converted(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("inplace", [False, True])
def test_model(inplace):
    model, x = Network(), torch.randn(2, 3, 6, 5)
    expected, state = model(x), copy.deepcopy(model.state_dict())
    expected_gradients = gradients(copy.deepcopy(model).train(), x)
    parameters = list(model.parameters())
    converted = torch_dnnl.convert(model, inplace=inplace)

    assert all(type(layer) not in REPLACED for layer in converted.modules())
    assert converted.head is converted.heads["a"]
    assert converted.listed == [converted.head, ("name", converted.body[2])]
    assert converted.note == "kept"
    assert all((a is b) == inplace for a, b in zip(converted.parameters(), parameters, strict=True))
    torch.testing.assert_close(converted.state_dict(), state, rtol=0, atol=0)
    if not inplace:
        assert type(model.head) is torch.nn.Conv2d
        assert type(model.body[2]) is torch.nn.Conv2d
        assert type(model.listed[0]) is torch.nn.Conv2d
        assert not set(converted.modules()) & set(model.modules())
    converted.load_state_dict(state)
    torch.testing.assert_close(converted(x), expected, rtol=1e-4, atol=1e-5)
    converted.load_state_dict(state)
    torch.testing.assert_close(gradients(converted, x), expected_gradients, rtol=1e-3, atol=1e-4)


def test_an_optimizer_goes_on_after_a_conversion_in_place():
    model, x = Network(), torch.randn(2, 3, 6, 5)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = copy.deepcopy(model.state_dict())
    torch_dnnl.convert(model, inplace=True)(x).sum().backward()
    optimizer.step()
    assert all((value != before[name]).any() for name, value in model.named_parameters())


@pytest.mark.parametrize("inplace", [False, True])
def test_hooks(inplace):
    model, calls = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 3)), []

    def log(name, result=None):
        def hook(*args, **kwargs):
            calls.append(name)
            return result

        return hook

    layer = model[0]
    layer.register_forward_pre_hook(log("pre"))
    handle = layer.register_forward_hook(log("forward"))
    layer.register_forward_hook(lambda m, args, kwargs, out: out + 1, with_kwargs=True)
    layer.register_full_backward_pre_hook(log("backward_pre"))
    layer.register_full_backward_hook(log("backward"))
    layer.register_state_dict_post_hook(log("state_dict"))
    layer.register_state_dict_pre_hook(log("state_dict_pre"))
    layer.register_load_state_dict_pre_hook(log("load_pre"))
    layer.register_load_state_dict_post_hook(log("load_post"))

    x = torch.randn(1, 1, 4, 4, requires_grad=True)
    expected = model(x).detach()
    calls.clear()
    converted = torch_dnnl.convert(model, inplace=inplace)
    if not inplace:
        del model, layer
    out = converted(x)
    torch.testing.assert_close(out.detach(), expected)
    out.sum().backward()
    converted.load_state_dict(converted.state_dict())
    assert calls == [
        *("pre", "forward", "backward_pre", "backward"),
        *("state_dict_pre", "state_dict", "load_pre", "load_post"),
    ]
    handle.remove()
    calls.clear()
    converted(x)
    assert calls == (["pre"] if inplace else ["pre", "forward"])


class Recorder(torch.nn.Module):
    """A model whose hooks and whose forward are its own bound methods."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Conv1d(1, 1, 1)
        self.layer.register_forward_hook(self.record)
        self.register_load_state_dict_pre_hook(type(self).before_load)
        self.seen, self.loads = [], 0
        self.forward = self.run

    def record(self, module, args, output):
        self.seen.append(module)

    def before_load(self, *args):
        self.loads += 1

    def run(self, x):
        return self.layer(x)


def test_bound_methods_follow_the_copy():
    model = Recorder()
    converted = torch_dnnl.convert(model)
    converted(torch.randn(1, 1, 3))
    converted.load_state_dict(model.state_dict())
    assert converted.seen == [converted.layer]
    assert (model.seen, model.loads, converted.loads) == ([], 0, 1)
    assert type(converted.layer) is torch_dnnl.nn.Conv1d


def left_alone():
    class Own(torch.nn.Conv2d):
        def forward(self, input):
            return super().forward(input) * 2

    return {
        "Own": Own(2, 2, 1),
        "complex": torch.nn.Conv2d(2, 2, 1, dtype=torch.complex64),
        "RecursiveScriptModule": torch.jit.script(torch.nn.Conv2d(2, 2, 1)),
    }


@pytest.mark.parametrize("inplace", [False, True])
def test_left_alone(inplace, capsys):
    layers = left_alone()
    model = torch.nn.ModuleDict(layers)
    converted = torch_dnnl.convert(model, inplace=inplace, verbose=True)
    printed = capsys.readouterr().out
    for name, layer in layers.items():
        assert type(converted[name]) is type(layer)
        assert f"left alone {name}: " in printed
    x = torch.randn(1, 2, 3, 3)
    for name in ("Own", "RecursiveScriptModule"):
        torch.testing.assert_close(converted[name](x), layers[name](x))
    assert "complex64" in printed
    assert "replaced" not in printed


def test_old_weight_norm_is_a_hook():
    with pytest.warns(FutureWarning):
        layer = torch.nn.utils.weight_norm(torch.nn.Conv2d(2, 3, 3))
    other, x = torch.nn.Conv2d(2, 3, 3), torch.randn(1, 2, 5, 5)
    converted = torch_dnnl.convert(layer, inplace=True)
    assert type(converted) is torch_dnnl.nn.Conv2d
    with torch.no_grad():
        layer.weight_g.mul_(2)
        other.weight.copy_(torch._weight_norm(layer.weight_v, layer.weight_g))
        other.bias.copy_(layer.bias)
    torch.testing.assert_close(converted(x), other(x))
    converted(x).sum().backward()
    assert layer.weight_v.grad is not None


def test_verbose(capsys):
    torch_dnnl.convert(Network(), verbose=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "replaced   head: torch.nn.modules.conv.Conv2d"
    assert [line.split()[1] for line in lines] == ["head:", "body.2:", "up:"]
    torch_dnnl.convert(Network())
    assert capsys.readouterr().out == ""


def test_print_tells_the_layers_apart():
    layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Upsample(scale_factor=2)]
    layers += [torch.nn.ConvTranspose2d(8, 8, 2)]
    layers += [torch.nn.utils.parametrizations.weight_norm(torch.nn.Conv2d(8, 8, 3))]
    model = torch.nn.Sequential(*layers)
    lines = str(torch_dnnl.convert(model)).splitlines()
    assert lines[1] == "  (0): torch_dnnl.Conv2d(3, 8, kernel_size=(3, 3), stride=(1, 1))"
    assert lines[2] == "  (1): ReLU()"
    assert lines[3] == "  (2): torch_dnnl.Upsample(scale_factor=2.0, mode='nearest')"
    assert lines[4].startswith("  (3): torch_dnnl.ConvTranspose2d(")
    assert lines[5].startswith("  (4): torch_dnnl.ParametrizedConv2d(")
    assert "torch_dnnl" not in str(model)
    assert "torch_dnnl" not in str(torch_dnnl.revert(torch_dnnl.convert(model)))


def test_twice_changes_nothing(capsys):
    once = torch_dnnl.convert(Network())
    twice = torch_dnnl.convert(once, inplace=True, verbose=True)
    assert twice is once
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("inplace", [False, True])
def test_data_parallel(inplace):
    model = torch.nn.DataParallel(torch.nn.Sequential(torch.nn.Conv1d(1, 2, 3)))
    x = torch.randn(2, 1, 5)
    expected = model(x)
    converted = torch_dnnl.convert(model, inplace=inplace)
    assert type(converted.module[0]) is torch_dnnl.nn.Conv1d
    torch.testing.assert_close(converted(x), expected)


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("how", ["torch.compile", "Module.compile", "after"])
def test_compile(how, inplace):
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Upsample(scale_factor=2))
    x = torch.randn(1, 1, 5, 5)
    expected, graphs = model(x), []

    def backend(graph, inputs):
        graphs.append(graph.code)
        return graph

    if how == "torch.compile":
        model = torch.compile(model, backend=backend, fullgraph=True)
    if how == "Module.compile":
        model.compile(backend=backend, fullgraph=True)
    converted = torch_dnnl.convert(model, inplace=inplace)
    if how == "after":
        converted = torch.compile(converted, backend=backend, fullgraph=True)
    torch.testing.assert_close(converted(x), expected)
    if how != "Module.compile" or inplace:
        assert "torch_dnnl.convolution" in "".join(graphs)
        assert "torch_dnnl.resample" in "".join(graphs)


def test_symbolically_traced_model():
    traced = torch.fx.symbolic_trace(Network().eval())
    converted = torch_dnnl.convert(traced)
    assert type(converted.head) is torch_dnnl.nn.Conv2d
    x = torch.randn(1, 3, 5, 5)
    torch.testing.assert_close(converted(x), traced(x), rtol=1e-4, atol=1e-5)


def test_needs_a_module():
    with pytest.raises(TypeError, match="convert: expected module"):
        torch_dnnl.convert([torch.nn.Conv2d(1, 1, 1)])


def test_lazy_layers():
    model, x = torch.nn.Sequential(torch.nn.LazyConv2d(4, 3)), torch.randn(2, 3, 6, 5)
    converted = torch_dnnl.convert(model)
    assert type(converted[0]) is torch.nn.LazyConv2d
    for network in (converted, model):
        network(x)  # removes the hooks of its own layer
        assert type(network[0]) is torch.nn.Conv2d
    converted = torch_dnnl.convert(model)
    assert type(converted[0]) is torch_dnnl.nn.Conv2d
    torch.testing.assert_close(converted(x), model(x), rtol=1e-4, atol=1e-5)
    model = torch.nn.Sequential(torch.nn.LazyBatchNorm2d(), torch.nn.Conv2d(3, 4, 1))
    with pytest.raises(TypeError, match=r"\(inplace=True needs no copy\), .* uninitialized"):
        torch_dnnl.convert(model)
    assert torch_dnnl.convert(model, inplace=True)(x).shape == (2, 4, 6, 5)
