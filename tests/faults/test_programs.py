"""Programs from strangers: exported ones whose attributes were changed, and the sources of models
that `convert(fuse=True)` reads."""

import io
import json
import zipfile

import pytest
import torch

import torch_dnnl
import torch_dnnl.functional as D

REFUSED = (ValueError, TypeError, RuntimeError, NotImplementedError, AssertionError, KeyError)


class Program(torch.nn.Module):
    """An operator of each kind."""

    def __init__(self):
        super().__init__()
        self.conv = torch_dnnl.nn.Conv2d(4, 4, 3, stride=2, padding=1)
        self.grow = torch_dnnl.nn.ConvTranspose2d(4, 4, 2, stride=2)

    def forward(self, x):
        y = self.grow(self.conv(x))
        y = D.resample(y, size=(7, 6), mode="cubic", antialias=True)
        return D.reorder(y, "nChw4c", scale=0.5)


X = torch.linspace(-1, 1, 2 * 4 * 9 * 8).view(2, 4, 9, 8)


@pytest.fixture(scope="module")
def saved():
    file = io.BytesIO()
    torch.export.save(torch.export.export(Program(), (X,)), file)
    return file.getvalue()


def changed(saved, change):
    """The file with a change of its graph, which is JSON."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved)) as old, zipfile.ZipFile(file, "w") as new:
        for entry in old.infolist():
            content = old.read(entry)
            if entry.filename.endswith(".json") and b"torch_dnnl" in content:
                model = json.loads(content)
                change(model)
                content = json.dumps(model).encode()
            new.writestr(entry.filename, content)
    file.seek(0)
    return file


INTEGERS = [-1, 0, 2**31, 2**62, -(2**63)]
INSTEAD = {
    "as_int": INTEGERS,
    "as_ints": [[n] * 2 for n in INTEGERS] + [[], [1] * 9],
    "as_float": ["NaN", "Infinity", 0.0, -1e300],
    "as_floats": [[0.0, -1.0], ["NaN", "NaN"], [1e-300] * 2, []],
    "as_string": ["", "nchw\0", "a" * 10**5, "aBcd2147483647b", "XIO"],
    "as_bool": [True, False],
}


def attributes(saved):
    """Each attribute of our operators, as a path into the graph, with its kind."""
    found = []

    def look(model):
        for i, node in enumerate(model["graph_module"]["graph"]["nodes"]):
            if "torch_dnnl" in node["target"]:
                for j, entry in enumerate(node["inputs"]):
                    found.extend((i, j, kind) for kind in entry["arg"] if kind in INSTEAD)

    changed(saved, look)
    return found


def test_changed_programs(saved):
    """What was checked when the program was made is checked again where it runs."""
    expected = torch.export.load(io.BytesIO(saved)).module()(X)
    places = attributes(saved)
    assert len({i for i, *_ in places}) == 4 and len(places) > 12
    outcomes = {"refused": 0, "computed": 0}
    for i, j, kind in places:
        # One of the values for each place keeps this short; all of them come in turn.
        for value in INSTEAD[kind][(i + j) % 2 :: 2]:

            def change(model, i=i, j=j, kind=kind, value=value):
                node = model["graph_module"]["graph"]["nodes"][i]
                node["inputs"][j]["arg"][kind] = value

            try:
                result = torch.export.load(changed(saved, change)).module()(X)
            except REFUSED:
                outcomes["refused"] += 1
            else:
                outcomes["computed"] += 1
                assert result.dim() == expected.dim() or result.numel() < 10**6
    assert min(outcomes.values()) > 0, outcomes


SEEN = []


def seen(x):
    SEEN.append(x)
    return x


class Model(torch.nn.Module):
    """Whose methods do something that can be seen."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(4, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)

    @property
    def secret(self):
        return seen("property")

    def forward(self, x, unused=None):
        y = self.norm(self.conv(x))
        if unused is not None:
            y = y + seen("branch")
        return seen(y).relu()

    def method(self, x):
        return seen(self.conv(x))


def test_sources_are_read_and_not_run():
    model = Model().eval()
    SEEN.clear()
    fused = torch_dnnl.convert(model, fuse=True)
    assert SEEN == []
    torch.testing.assert_close(fused(X), model(X))
    assert len(SEEN) == 2


class Known(Model):
    """A forward that the parser knows, beside what it does not."""

    def forward(self, x):
        return self.norm(self.conv(x)).relu()


class WithProperty(Known):
    def forward(self, x):
        return self.norm(self.conv(x)) + self.secret


class WithOtherLayer(Known):
    def __init__(self):
        super().__init__()

        class Other(torch.nn.Conv2d):
            def forward(self, x):
                return seen(super().forward(x))

        self.conv = Other(4, 4, 3)


class WithNumber(Known):
    def __init__(self):
        super().__init__()

        class Number(float):
            def __rmul__(self, other):
                return seen(other)

        self.number = Number(3)

    def forward(self, x):
        return self.norm(self.conv(x)) * self.number


class WithHook(Known):
    def __init__(self):
        super().__init__()
        self.conv.register_forward_hook(lambda *_: SEEN.append("hook"))


@pytest.mark.parametrize("cls", [Known, WithProperty, WithOtherLayer, WithNumber, WithHook])
def test_no_other_code_of_a_model_is_run(cls):
    model = cls().eval()
    SEEN.clear()
    torch_dnnl.convert(model, fuse=True)
    assert SEEN == []


def test_sources_that_are_no_sources(monkeypatch):
    """A function whose file says something else, or nothing that can be parsed."""
    import linecache

    model = Model().eval()
    for source in (
        "",
        "\0",
        "def forward(self, x):\n    " + "(" * 10_000,
        "raise SystemExit\n" * 50,
    ):
        lines = source.splitlines(keepends=True)
        monkeypatch.setattr(linecache, "getlines", lambda *_, lines=lines: lines)
        fused = torch_dnnl.convert(model, fuse=True)
        torch.testing.assert_close(fused(X), model(X))
