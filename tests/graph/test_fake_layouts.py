"""optimize relies on the strides that torch's fake tensors say for channels_last images.

Operators whose kernels give others get images as they lie in the model (`_PARTICULAR` in
graph/layouts.py).
"""

import itertools
from contextlib import suppress

import pytest
import torch
from checks import strides
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from torch_dnnl.graph.layouts import _PARTICULAR

with torch.backends.__allow_nonbracketed_mutation():  # torch's tests take it from all others
    from torch.testing._internal.common_methods_invocations import op_db

SAMPLES = 8  # of an operator, with images
OPERATORS = {op.full_name: op for op in op_db if torch.float32 in op.dtypes}


class Compare(TorchDispatchMode):
    """Runs operators and their fakes. `wrong` has the operators whose fakes have other strides."""

    def __init__(self):
        super().__init__()
        self.wrong = set()
        self.fake_mode = FakeTensorMode()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        real = fakes = None
        with suppress(Exception):  # fakes know no values
            fake_args, fake_kwargs = tree_map_only(
                torch.Tensor, self.fake_mode.from_tensor, (args, kwargs)
            )
            with self.fake_mode:
                fakes = operator(*fake_args, **fake_kwargs)
        real = operator(*args, **kwargs)
        if fakes is not None:
            for x, y in zip(tree_leaves(real), tree_leaves(fakes), strict=True):
                if isinstance(x, torch.Tensor) and strides(x) != strides(y):
                    self.wrong.add(operator._schema.name)
        return real


def images(op):
    """The sample calls of an operator whose input is a 4-D image, which becomes channels_last."""
    for sample in op.sample_inputs("cpu", torch.float32):
        x = sample.input
        if isinstance(x, torch.Tensor) and x.dim() == 4 and x.numel() > 1:
            yield x.contiguous(memory_format=torch.channels_last), sample


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
def test_strides_of_fakes(name):
    op, compare = OPERATORS[name], Compare()
    for x, sample in itertools.islice(images(op), SAMPLES):
        with compare, suppress(RuntimeError):  # an operator without channels_last
            op(x, *sample.args, **sample.kwargs)
    wrong = [each for each in compare.wrong if not each.startswith(_PARTICULAR)]
    assert not wrong
