"""optimize(verbose=True): a line for each layer, with what became of it."""

import torch
import torch.nn.functional as F
from checks import randomized
from torch import nn

import torch_dnnl


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.block = nn.Conv2d(8, 8, 3, padding=1)
        self.unbatched = nn.Conv2d(8, 8, 1)
        self.norm = nn.BatchNorm2d(16)
        self.group = nn.GroupNorm(2, 16)
        self.wide, self.head = nn.Linear(16, 24), nn.Linear(16, 4)

    def forward(self, x):
        y = self.stem(x)
        z = F.silu(self.block(y) + y)
        z = torch.cat([z, self.block(y)], 1)
        z = self.group(F.relu(self.norm(z)))
        z = F.interpolate(z, scale_factor=2)
        tokens = F.gelu(self.wide(z.flatten(2).transpose(1, 2)))
        return tokens, self.head(z.mean((2, 3))), self.unbatched(y[0])


def test_every_layer(capsys):
    torch_dnnl.optimize(randomized(Network()), (torch.rand(2, 3, 8, 10),), verbose=True)
    assert capsys.readouterr().out.splitlines() == [
        "convolution stem.0: torch_dnnl::convolution with relu",
        "norm stem.1: part of the weights of another layer, or of a constant",
        "convolution block: torch_dnnl::convolution with a residual and silu",
        "convolution block (conv2d_2): torch_dnnl::convolution",
        "norm norm: torch_dnnl::convolution with relu",
        "norm group: aten::group_norm, as torch_dnnl has none",
        "resize resample: torch_dnnl::resample",
        "linear wide: torch_dnnl::convolution with gelu",
        "linear head: aten::linear, which is as fast",
        "convolution unbatched: aten::conv2d, as it has no batch, or an output padding as large as "
        "the stride",
    ]


class Norms(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.batch, self.mean = nn.BatchNorm2d(8, track_running_stats=False), nn.RMSNorm(6)
        self.norm, self.conv, self.behind = nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)
        self.to(dtype)

    def forward(self, x):
        y = self.conv(self.mean(self.batch(x)))
        return F.relu(self.norm(x)) + x, self.behind(y) + y


def test_norms_that_stay(capsys):
    norm = "aten::_native_batch_norm_legit_no_training, as"
    expected = {
        torch.float32: ("convolution with relu", "convolution with a residual"),
        torch.bfloat16: (
            f"{norm} a pass of its own is for float32 and float64, not torch.bfloat16",
            f"{norm} others use the result of convolution too",
        ),
    }
    for dtype, (alone, behind) in expected.items():
        model = randomized(Norms(dtype))
        torch_dnnl.optimize(model, (torch.rand(2, 8, 6, 6).to(dtype),), verbose=True)
        lines = capsys.readouterr().out.replace("torch_dnnl::", "").splitlines()
        assert [line for line in lines if line.startswith("norm")] == [
            "norm batch: aten::_native_batch_norm_legit, as its statistics are those of the batch",
            "norm mean: aten::rms_norm, as torch_dnnl has none",
            f"norm norm: {alone}",
            f"norm behind: {behind}",
        ]


def test_graph_that_stays(capsys, monkeypatch):
    def fails(x):
        raise RuntimeError("no relu today\nmore of it")

    table = {torch.ops.aten.relu.default: fails}
    monkeypatch.setattr("torch_dnnl.graph.optimize._decompositions", lambda: table)
    model, x = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval(), torch.rand(1, 3, 9, 9)
    optimized = torch_dnnl.optimize(model, (x,), verbose=True)
    begin = "nothing is replaced, as torch.export has no functional graph: no relu today"
    assert capsys.readouterr().out.splitlines() == [begin]
    torch.testing.assert_close(optimized(x), model(x))
