"""Programs from strangers: exported ones whose attributes were changed."""

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
