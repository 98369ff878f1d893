"""convert(fuse=True): what happens to a fused model later, and copies of it."""

import copy
import io
import pickle

import pytest
import torch
from test_fuse import (
    Block,
    Inverted,
    OwnActivation,
    Residual,
    block_with_downsample,
    operators,
    ready,
)
from torch import nn
from torch.nn import functional as F

import torch_dnnl


def test_needs_eval_mode():
    with pytest.raises(ValueError, match="convert: expected module to be in eval mode for fuse"):
        torch_dnnl.convert(nn.Sequential(nn.Conv2d(1, 1, 1)), fuse=True)


@pytest.mark.parametrize("inplace", [False, True])
def test_way_back(inplace):
    model = ready(block_with_downsample())
    fused, x = torch_dnnl.convert(model, fuse=True), torch.randn(1, 4, 5, 5)
    back = torch_dnnl.revert(fused, inplace=inplace)
    assert [type(m) for m in back.modules()] == [type(m) for m in model.modules()]
    torch.testing.assert_close(back(x), model(x), rtol=0, atol=0)
    if not inplace:
        assert operators(fused, x).count("convolution_fused") == 2


def test_verbose(capsys):
    torch_dnnl.convert(ready(Block(None)), fuse=True, verbose=True)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fused")]
    assert sorted(lines) == [
        "fused      conv1: batch norm, relu",
        "fused      conv2: batch norm, residual and relu",
    ]


def test_again_changes_nothing():
    fused = torch_dnnl.convert(ready(block_with_downsample()), fuse=True)
    x = torch.randn(1, 4, 5, 5)
    again = torch_dnnl.convert(fused, fuse=True)
    torch.testing.assert_close(again(x), fused(x), rtol=0, atol=0)
    assert operators(again, x) == operators(fused, x)


def test_copies():
    fused = torch_dnnl.convert(ready(block_with_downsample()), fuse=True)
    x, buffer = torch.randn(1, 4, 5, 5), io.BytesIO()
    torch.save(fused, buffer)
    buffer.seek(0)
    copies = [copy.deepcopy(fused), pickle.loads(pickle.dumps(fused)), torch_dnnl.convert(fused)]
    for other in (*copies, torch.load(buffer, weights_only=False)):
        assert isinstance(other, Block)
        assert operators(other, x) == operators(fused, x)
        torch.testing.assert_close(other(x), fused(x), rtol=0, atol=0)
    copies[0].conv1.weight.data.zero_()
    assert (copies[0](x) != fused(x)).any()


def test_training_mode_and_changes_take_the_forward_of_the_class():
    model = ready(block_with_downsample())
    fused, x = torch_dnnl.convert(model, fuse=True), torch.randn(1, 4, 5, 5)
    expected = fused(x)
    torch.testing.assert_close(fused.train()(x), model.train()(x), rtol=1e-4, atol=1e-5)
    fused.load_state_dict(model.state_dict())
    torch.testing.assert_close(fused.eval()(x), model.eval()(x), rtol=1e-4, atol=1e-5)
    assert "relu" not in operators(fused, x)
    assert not torch.allclose(fused(x), expected)
    fused.relu = nn.Tanh()
    changed = copy.deepcopy(model)
    changed.relu = nn.Tanh()
    torch.testing.assert_close(fused(x), changed(x), rtol=1e-4, atol=1e-5)


class Chosen(nn.Module):
    """An activation by an attribute, which may change."""

    is_smooth = False

    def forward(self, x):
        return F.silu(x) if self.is_smooth else F.relu(x)


def test_activations_that_change_are_called():
    for activation, name, value in [
        (Chosen(), "is_smooth", True),
        (OwnActivation(), "function", torch.tanh),
        (nn.GELU(), "approximate", "tanh"),
    ]:
        model, x = nn.Sequential(nn.Conv2d(4, 6, 3), activation).eval(), torch.randn(1, 4, 5, 5)
        fused = torch_dnnl.convert(model, fuse=True)
        assert operators(fused, x) == ["convolution_fused"]
        for changed in (model, fused):
            setattr(changed[1], name, value)
        torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)


def test_hooks_of_blocks_run():
    model, calls = nn.Sequential(ready(Block(None)), nn.ReLU()).eval(), []
    model[0].register_forward_hook(lambda module, args, out: calls.append(out) or out + 1)
    fused, x = torch_dnnl.convert(model, fuse=True), torch.randn(1, 4, 5, 5)
    torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)
    assert len(calls) == 2


CHANGES = {
    "append": lambda model: model.append(nn.Tanh()),
    "insert": lambda model: model.insert(2, nn.Tanh()),
    "delete": lambda model: model.__delitem__(2),
    "replace": lambda model: model.__setitem__(2, nn.Tanh()),
    "dict": lambda model: model._modules.update({"2": nn.Tanh()}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_submodules_are_called(change):
    model = ready(nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4), nn.ReLU()))
    fused, x = torch_dnnl.convert(model, fuse=True), torch.randn(1, 4, 5, 5)
    block = ready(Inverted())
    fused_block = torch_dnnl.convert(block, fuse=True)
    for sequential in (model, fused):
        CHANGES[change](sequential)
    for sequential in (block.conv, fused_block.conv):
        sequential.append(nn.Tanh())
    torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fused[:3](x), model[:3](x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fused_block(x), block(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["conv", "conv.0", "conv.0.2", "conv.1"])
def test_hooks_that_come_later_run(name):
    model, calls = ready(Inverted()), []
    fused, x = torch_dnnl.convert(model, fuse=True), torch.randn(1, 4, 5, 5)
    expected = fused(x)
    layer = fused.get_submodule(name)
    handle = layer.register_forward_hook(lambda module, args, out: calls.append(out))
    copied = torch_dnnl.convert(fused)
    for network in (fused, copied):
        torch.testing.assert_close(network(x), expected, rtol=1e-4, atol=1e-5)
    assert len(calls) == 2
    seen = []
    model.get_submodule(name).register_forward_hook(lambda module, args, out: seen.append(out))
    model(x)
    torch.testing.assert_close(calls[0], seen[0], rtol=1e-4, atol=1e-5)
    handle.remove()
    assert operators(fused, x) == ["convolution_fused"] * 2


def test_changed_lists_are_called():
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([nn.Conv2d(4, 4, 1), nn.ReLU()])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    model = Layers().eval()
    fused, x = torch_dnnl.convert(model, fuse=True), torch.randn(1, 4, 5, 5)
    assert operators(fused, x) == ["convolution_fused"]
    fused.layers.append(nn.Tanh())
    torch.testing.assert_close(fused(x), model(x).tanh(), rtol=1e-4, atol=1e-5)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.scale = nn.Conv2d(4, 4, 1), 2.0

    def forward(self, x):
        return self.conv(x * self.scale)


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.scale = Scaled(), 3.0

    def forward(self, x):
        return F.relu(self.inner(x)) * self.inner.scale


class Loop(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Scaled()])

    def forward(self, x):
        for layer in self.layers:
            x = F.relu(layer(x)) * layer.scale
        return x


def test_attributes_are_not_taken_for_good():
    x = torch.randn(1, 4, 5, 5)
    for model in (
        Residual(Scaled()),
        Outer(),
        Loop(),
        Residual(nn.Conv2d(4, 4, 1), other=Scaled()),
    ):
        model = model.eval()
        fused = torch_dnnl.convert(model, fuse=True)
        for network in (model, fused):
            for part in network.modules():
                if isinstance(part, Scaled):
                    part.scale = 5.0
        torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [lambda: Block(None), block_with_downsample, Inverted])
def test_gradients(make):
    model = ready(make())
    fused, x = torch_dnnl.convert(model, fuse=True), torch.randn(2, 4, 5, 6, requires_grad=True)
    torch.testing.assert_close(
        torch.autograd.grad(fused(x).square().sum(), x),
        torch.autograd.grad(model(x).square().sum(), x),
        rtol=1e-3,
        atol=1e-4,
    )
    for network in (fused, model):
        network.zero_grad()
        network(x).square().sum().backward()
    for ours, theirs in zip(fused.parameters(), model.parameters(), strict=True):
        scale = theirs.grad.abs().max().item()
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4 * scale)


def test_memory_format_and_types():
    model = ready(block_with_downsample()).to(memory_format=torch.channels_last)
    fused = torch_dnnl.convert(model, fuse=True)
    assert fused.conv1.weight.is_contiguous(memory_format=torch.channels_last)
    x = torch.randn(2, 4, 5, 6).to(memory_format=torch.channels_last)
    assert fused(x).is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)
    for dtype in (torch.float64, torch.bfloat16):
        other = torch_dnnl.convert(copy.deepcopy(model).to(dtype), fuse=True)
        assert other(x.to(dtype)).dtype == dtype
        tolerance = 1e-4 if dtype == torch.float64 else 0.1
        torch.testing.assert_close(
            other(x.to(dtype)).float(), model(x), rtol=tolerance, atol=tolerance
        )


def test_compile_and_export():
    fused, x = (
        torch_dnnl.convert(ready(block_with_downsample()), fuse=True),
        torch.randn(2, 4, 5, 6),
    )
    compiled = torch.compile(fused, backend="aot_eager", fullgraph=True, dynamic=True)
    torch.testing.assert_close(compiled(x), fused(x), rtol=1e-4, atol=1e-5)
    for sizes in (None, {"x": {0: torch.export.Dim("batch", max=99)}}):  # by the forward's own name
        exported = torch.export.export(fused, (x,), dynamic_shapes=sizes).module()
        torch.testing.assert_close(exported(x), fused(x), rtol=1e-4, atol=1e-5)


def test_traced_models():
    """A GraphModule stays as it is, and so do the parts of one that is made of a fused model."""
    model, x = ready(block_with_downsample()), torch.randn(2, 4, 5, 6)
    for fused in (
        torch_dnnl.convert(torch.fx.symbolic_trace(model), fuse=True),
        torch.fx.symbolic_trace(torch_dnnl.convert(model, fuse=True)),
    ):
        torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-5)
        assert operators(fused, x).count("native_batch_norm") == 3


class Pooled(nn.Module):
    """A branch of one pixel that is made large again, beside another one."""

    def __init__(self, *layers):
        super().__init__()
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), *layers)
        self.branch = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU())

    def forward(self, x):
        pooled = F.interpolate(self.pool(x), x.shape[2:], mode="bilinear")
        return torch.cat([self.branch(x), pooled], 1)


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(4, 4, 1), nn.ReLU()],
        [nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4), nn.ReLU()],
        [nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)],
        [nn.Conv2d(4, 1, 3, padding=1), nn.BatchNorm2d(1), nn.SiLU()],
    ],
    ids=["act", "norm-act", "norm", "one-channel"],
)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_layouts_of_images_with_dimensions_of_one(layers, memory_format):
    model = ready(Pooled(*copy.deepcopy(layers)))
    fused = torch_dnnl.convert(model, fuse=True)
    x = torch.randn(2, 4, 6, 5).contiguous(memory_format=memory_format)
    with torch.no_grad():
        for part, y in (("pool", x), ("pool.1", torch.randn(2, 4, 1, 1)), ("", x)):
            ours, theirs = (m.get_submodule(part)(y) for m in (fused, model))
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
            assert ours.stride() == theirs.stride()
