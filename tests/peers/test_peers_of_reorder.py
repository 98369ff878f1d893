"""Other libraries' conversions, spelled as docs/reorder.md says: each row of its tables, with those
of the libraries that are installed here."""

import re
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from paths import ROOT

from torch_dnnl.functional import fake_reorder, reorder

PAGE = (ROOT / "docs" / "reorder.md").read_text()


def rows():
    for library, table in re.findall(r"<!-- peers: (\w+) -->\n((?:\|.*\n)+)", PAGE):
        for line in table.splitlines()[2:] if find_spec(library) else ():
            theirs, ours = (cell.strip() for cell in line.strip("|").split("|"))
            call, note = re.fullmatch(r"`(.*?)`(.*)", theirs).groups()
            yield pytest.param(call, note, ours.strip("`"), id=call)


def names_in(call):
    """The variables that the tables use."""
    x = torch.randn(2, 32, 5, 7) * 90
    # Integers among them, but no ties in units of a scale: the page has notes on those.
    x = torch.where(torch.rand_like(x) < 0.3, x.round(), x)
    image = torch.randint(256, (5, 7, 3), dtype=torch.uint8)
    names = {
        "x": x,
        "a": x.numpy(),
        "y": torch.randn_like(x),
        "nhwc": x.contiguous(memory_format=torch.channels_last),
        "volume": torch.randn(2, 3, 4, 5, 6),
        "codes": reorder(x, dtype=torch.uint8, dst_scale=0.25, dst_zero_point=3),
        "s": 2.0 ** torch.randint(-4, 1, (32,)),
        "z": torch.randint(0, 100, (32,), dtype=torch.int32),
        "image": image,
        "chw": image.permute(2, 0, 1).contiguous(),
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
    }
    names |= {f"{n}3": torch.tensor(names[n]).reshape(-1, 1, 1) for n in ("mean", "std")}
    for name, path in {"v1": "transforms", "v2": "transforms.v2"}.items():
        if f"{name}." in call:
            names[name] = import_module(f"torchvision.{path}.functional")
    return {"torch": torch, "np": np, "reorder": reorder, "fake_reorder": fake_reorder, **names}


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's quantized tensors are deprecated
@pytest.mark.parametrize("call,note,arguments", list(rows()))
def test_row_of_the_page(call, note, arguments):
    names = names_in(call)
    theirs, ours = torch.as_tensor(eval(call, names)), eval(arguments, names)
    assert theirs.shape == ours.shape and theirs.dtype == ours.dtype
    if tolerance := re.search(r"within (\S+)", note):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=float(tolerance[1]))
    else:
        assert theirs.stride() == ours.stride() and torch.equal(ours.double(), theirs.double())


def test_rows_are_found():
    assert len(list(rows())) >= 19
