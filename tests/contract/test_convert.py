"""convert: the layers it replaces, what they share with the old ones, what it leaves alone."""

import copy
import io
import pickle
import typing

import pytest
import torch
from torch.nn.utils import parametrizations, parametrize

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
    assert all(a is b for a, b in zip(converted.parameters(), parameters, strict=True))
    assert list(converted.state_dict()) == list(state)
    if not inplace:
        assert type(model.head) is torch.nn.Conv2d
        assert type(model.body[2]) is torch.nn.Conv2d
        assert type(model.listed[0]) is torch.nn.Conv2d
        assert not set(converted.modules()) & set(model.modules())
    converted.load_state_dict(state)
    torch.testing.assert_close(converted(x), expected, rtol=1e-4, atol=1e-5)
    converted.load_state_dict(state)
    torch.testing.assert_close(gradients(converted, x), expected_gradients, rtol=1e-3, atol=1e-4)


def test_copy_is_apart_but_shares_parameters():
    model = Network().eval()
    converted = torch_dnnl.convert(model)
    assert not any(layer.training for layer in converted.modules())
    converted.train()
    converted.head.extra = 1
    converted.body.add_module("more", torch.nn.Identity())
    assert not any(layer.training for layer in model.modules())
    assert not hasattr(model.head, "extra")
    assert len(model.body) == 3
    with torch.no_grad():
        model.head.weight.zero_()
    assert converted.head.weight.abs().sum() == 0


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
        "LazyConv2d": torch.nn.LazyConv2d(2, 1),
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
    for name in ("Own", "LazyConv2d", "RecursiveScriptModule"):
        torch.testing.assert_close(converted[name](x), layers[name](x))
    assert "complex64" in printed
    assert "replaced" not in printed


def test_old_weight_norm_is_a_hook():
    with pytest.warns(FutureWarning):
        layer = torch.nn.utils.weight_norm(torch.nn.Conv2d(2, 3, 3))
    converted = torch_dnnl.convert(layer)
    assert type(converted) is torch_dnnl.nn.Conv2d
    x = torch.randn(1, 2, 5, 5)
    with torch.no_grad():
        layer.weight_g.mul_(2)
    torch.testing.assert_close(converted(x), layer(x))
    converted(x).sum().backward()
    assert layer.weight_v.grad is not None


def test_verbose(capsys):
    torch_dnnl.convert(Network(), verbose=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "replaced   head: torch.nn.modules.conv.Conv2d"
    assert [line.split()[1] for line in lines] == ["head:", "body.2:", "up:"]
    torch_dnnl.convert(Network())
    assert capsys.readouterr().out == ""


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


def test_lazy_layers_initialize_apart():
    """A lazy layer removes its own hooks when it has seen an input; a copy those of the copy."""
    model = torch.nn.Sequential(torch.nn.LazyConv2d(4, 3), torch.nn.LazyBatchNorm2d())
    converted, x = torch_dnnl.convert(model), torch.randn(2, 3, 6, 5)
    for network in (converted, model):
        network(x)
        assert type(network[0]) is torch.nn.Conv2d
        torch.testing.assert_close(network(x), converted(x))
    assert type(torch_dnnl.convert(converted)[0]) is torch_dnnl.nn.Conv2d


class Plus(torch.nn.Conv2d):
    """A layer with a constructor and attributes of its own, and torch's forward."""

    def __init__(self, channels, note="default"):
        super().__init__(channels, channels, 3, padding=1)
        self.note = note

    def doubled(self):
        return self.weight * 2


class PlusPlus(Plus):
    pass


class Twice(torch.nn.ConvTranspose1d):
    def _output_padding(self, *args, **kwargs):
        return [0]


class Up(torch.nn.Upsample):
    pass


SUBCLASSES = [
    (Plus(2, note="own"), torch_dnnl.nn.Conv2d, (1, 2, 5, 4)),
    (PlusPlus(2), torch_dnnl.nn.Conv2d, (1, 2, 5, 4)),
    (Twice(2, 3, 3, stride=2), torch_dnnl.nn.ConvTranspose1d, (1, 2, 5)),
    (Up(scale_factor=2), torch_dnnl.nn.Upsample, (1, 2, 5)),
]


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize(
    ("layer", "ours", "shape"), SUBCLASSES, ids=lambda value: type(value).__name__
)
def test_subclasses_keep_their_class(layer, ours, shape, inplace):
    layer, x = copy.deepcopy(layer), torch.randn(shape)
    old, expected = type(layer), layer(x)
    converted = torch_dnnl.convert(layer, inplace=inplace)
    assert isinstance(converted, old) and isinstance(converted, ours)
    assert type(converted).__name__ == old.__name__
    assert list(converted.parameters()) == list(layer.parameters())
    torch.testing.assert_close(converted(x), expected, rtol=1e-4, atol=1e-5)
    assert type(torch_dnnl.convert(torch_dnnl.revert(converted))) is type(converted)

    buffer = io.BytesIO()
    torch.save(converted, buffer)
    buffer.seek(0)
    copies = [pickle.loads(pickle.dumps(converted, protocol)) for protocol in (0, 2, 5)]
    copies += [copy.deepcopy(converted), copy.copy(converted)]
    for other in (*copies, torch.load(buffer, weights_only=False)):
        assert type(other) is type(converted)
        torch.testing.assert_close(other(x), converted(x), rtol=0, atol=0)
    reverted = torch_dnnl.revert(converted)
    assert type(reverted) is old
    torch.testing.assert_close(reverted(x), expected, rtol=0, atol=0)


def test_subclasses_can_be_constructed():
    converted = torch_dnnl.convert(Plus(2, note="own"))
    other = type(converted)(3, note="other")
    assert (converted.note, other.note, other.in_channels) == ("own", "other", 3)
    torch.testing.assert_close(converted.doubled(), converted.weight * 2)


class Strict(torch.nn.Conv1d):
    def __init_subclass__(cls, *, key):
        super().__init_subclass__()


class Forwarded(torch.nn.Conv1d):
    def _conv_forward(self, input, weight, bias):
        return super()._conv_forward(input, weight * 2, bias)


def test_subclasses_that_do_more_are_left_alone(capsys):
    model = torch.nn.Sequential(Strict(2, 2, 1), Forwarded(2, 2, 1))
    converted, x = torch_dnnl.convert(model, verbose=True), torch.randn(1, 2, 5)
    assert [type(layer) for layer in converted] == [Strict, Forwarded]
    assert "no subclass" in capsys.readouterr().out
    torch.testing.assert_close(converted(x), model(x))


def test_verbose_leaves_out_containers(capsys):
    class ConvBlock(torch.nn.Sequential):
        pass

    class SoftConv(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1, 1, 1, 1))

    torch_dnnl.convert(ConvBlock(torch.nn.Conv2d(1, 1, 1), SoftConv()), verbose=True)
    replaced, left = capsys.readouterr().out.splitlines()
    assert replaced.startswith("replaced   0:") and left.startswith("left alone 1:")


class Negative(torch.nn.Module):
    def forward(self, x):
        return -x


def weight_and_bias(layer):
    parametrize.register_parametrization(layer, "bias", Negative())
    return parametrizations.weight_norm(layer)


PARAMETRIZATIONS = {
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": lambda layer: parametrizations.spectral_norm(layer).eval(),
    "weight_and_bias": weight_and_bias,
}


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.parametrize("kind", PARAMETRIZATIONS)
@pytest.mark.parametrize("make", [lambda: torch.nn.Conv2d(2, 2, 3, padding=1), lambda: Plus(2)])
def test_parametrized_layers(make, kind, inplace):
    layer = PARAMETRIZATIONS[kind](make())
    old = type(layer).__bases__[0]
    x, state = torch.randn(1, 2, 5, 4), list(layer.state_dict())
    expected = layer(x)
    converted = torch_dnnl.convert(layer, inplace=inplace)
    assert isinstance(converted, old) and isinstance(converted, torch_dnnl.nn.Conv2d)
    assert list(converted.state_dict()) == state
    for other in (converted, copy.deepcopy(converted), torch_dnnl.revert(converted)):
        torch.testing.assert_close(other(x), expected, rtol=1e-4, atol=1e-5)
        other(x).sum().backward()
    assert type(torch_dnnl.revert(converted)).__bases__ == (old,)

    parametrize.remove_parametrizations(converted, "weight")
    assert isinstance(converted, old) and isinstance(converted, torch_dnnl.nn.Conv2d)
    assert parametrize.is_parametrized(converted) == (kind == "weight_and_bias")
    torch.testing.assert_close(converted(x), expected, rtol=1e-4, atol=1e-5)
    if not inplace:  # the original still has its own
        torch.testing.assert_close(layer(x), expected)


def test_parametrized_after_the_conversion():
    converted = parametrizations.weight_norm(torch_dnnl.convert(Plus(2)))
    x = torch.randn(1, 2, 5, 4)
    reverted = torch_dnnl.revert(converted)
    assert type(reverted).__bases__ == (Plus,)
    torch.testing.assert_close(reverted(x), converted(x), rtol=1e-4, atol=1e-5)


def test_same_padding_of_timm():
    def forward(self, x):
        size = [0, 0]
        for i in range(2):
            outputs = -(-x.shape[i + 2] // self.stride[i])
            reach = (
                (outputs - 1) * self.stride[i] + (self.kernel_size[i] - 1) * self.dilation[i] + 1
            )
            size[i] = max(0, reach - x.shape[i + 2])
        h, w = size
        x = torch.nn.functional.pad(x, (w // 2, w - w // 2, h // 2, h - h // 2))
        options = (self.stride, 0, self.dilation, self.groups)
        return torch.nn.functional.conv2d(x, self.weight, self.bias, *options)

    members = {"forward": forward, "__module__": "timm.layers.conv2d_same"}
    same = type("Conv2dSame", (torch.nn.Conv2d,), members)
    layers = [same(2, 3, 3, stride=2), same(2, 3, 4, stride=(1, 3)), same(2, 3, 3, dilation=2)]
    for layer in [*layers, type("More", (same,), {})(2, 3, 3, stride=2)]:
        converted = torch_dnnl.convert(layer)
        assert isinstance(converted, same) and isinstance(converted, torch_dnnl.nn.Conv2d)
        for shape in ((1, 2, 9, 8), (2, 2, 8, 11)):
            x = torch.randn(shape)
            torch.testing.assert_close(converted(x), layer(x), rtol=1e-4, atol=1e-5)
        assert type(torch_dnnl.revert(converted)) is type(layer)
    other = type("Conv2dSame", (torch.nn.Conv2d,), {"forward": forward})(2, 3, 3)
    assert type(torch_dnnl.convert(other)) is type(other)


@pytest.mark.parametrize("inplace", [False, True])
def test_revert(inplace):
    model, x = Network(), torch.randn(2, 3, 6, 5)
    expected = model.eval()(x)
    types = [type(layer) for layer in model.modules()]
    converted = torch_dnnl.convert(model, inplace=inplace)
    reverted = torch_dnnl.revert(converted, inplace=inplace)
    assert (reverted is converted) == inplace
    assert [type(layer) for layer in reverted.modules()] == types
    assert list(reverted.parameters()) == list(model.parameters())
    assert reverted.head is reverted.heads["a"]
    torch.testing.assert_close(reverted(x), expected, rtol=0, atol=0)
    if not inplace:
        assert type(converted.head) is torch_dnnl.nn.Conv2d


@pytest.mark.parametrize("mode", ["zeros", "circular"])
@pytest.mark.parametrize(
    ("padding", "expected"),
    [
        ("same_upper", "same"),
        ("same", "same"),
        (((1, 1), (2, 2)), (1, 2)),
        ("same_lower", None),
        (((1, 0), (2, 2)), None),
    ],
)
def test_revert_of_paddings(padding, expected, mode):
    layer = torch_dnnl.nn.Conv2d(2, 3, (2, 5), padding=padding, padding_mode=mode)
    model, x = torch.nn.Sequential(torch_dnnl.nn.Conv2d(2, 2, 1), layer), torch.randn(1, 2, 7, 8)
    if expected is None:
        with pytest.raises(ValueError, match=r"revert: expected module to have paddings .* 1 "):
            torch_dnnl.revert(model, inplace=True)
        assert type(model[0]) is torch_dnnl.nn.Conv2d
        return
    reverted = torch_dnnl.revert(model)
    assert type(reverted[1]) is torch.nn.Conv2d and reverted[1].padding == expected
    assert layer.padding == padding
    torch.testing.assert_close(reverted(x), model(x), rtol=1e-4, atol=1e-5)


def test_revert_with_a_stride():
    with pytest.raises(ValueError, match="the model got 'same_upper' with stride"):
        torch_dnnl.revert(torch_dnnl.nn.Conv2d(2, 2, 3, stride=2, padding="same_upper"))
    with pytest.raises(TypeError, match="revert: expected module"):
        torch_dnnl.revert(3)


def test_types():
    hints = typing.get_type_hints(torch_dnnl.convert)
    assert hints["return"] is hints["module"] and hints["return"].__bound__ is torch.nn.Module
