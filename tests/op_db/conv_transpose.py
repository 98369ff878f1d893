"""The rows of transposed convolution."""

import torch
import torch.nn.functional as F
from oracles import conv as conv_oracle

import torch_dnnl.functional as D
from op_db.case import Case
from op_db.conv import ACTIVATIONS


def _listed(value, n):
    return [value] * n if isinstance(value, int) else list(value)


def _oracle(
    x,
    w,
    b=None,
    residual=None,
    strides=1,
    pads_begin=0,
    pads_end=0,
    output_padding=0,
    dilations=1,
    groups=1,
    data_format="NCX",
    weights_format="IOX",
    activation=None,
):
    """What all products are added up to, with zeros at the end, and cut off at both ends."""
    n, first = x.dim() - 2, 1 if data_format == "NXC" else 2
    s, d, more = (_listed(value, n) for value in (strides, dilations, output_padding))
    begin, end = _listed(pads_begin, n), _listed(pads_end, n)
    kernel = w.shape[:-2] if weights_format == "XOI" else w.shape[2:]
    whole = [(x.shape[first + a] - 1) * s[a] + (kernel[a] - 1) * d[a] + 1 for a in range(n)]
    formats = (data_format, {"XOI": "XIO", "IOX": "OIX"}[weights_format])
    result = conv_oracle.convolution_backward_data(
        x, w, whole, s, [0] * n, [0] * n, d, "none", groups, *formats
    )
    for a in range(n):
        dim, shape = first + a, list(result.shape)
        shape[dim] = more[a]
        result = torch.cat([result, result.new_zeros(shape)], dim)
        result = result.narrow(dim, begin[a], whole[a] + more[a] - begin[a] - end[a])
    if b is not None:
        result = result + b.double().reshape(-1, *[1] * (n if data_format == "NCX" else 0))
    return ACTIVATIONS[activation](result if residual is None else result + residual)


def _torchs(name, shapes, in_matrix=False, batched=True, **kwargs):
    """A row for conv_transpose1d/2d/3d."""
    rank = len(shapes[1]) - 2
    ours, torchs = (getattr(where, f"conv_transpose{rank}d") for where in (D, F))
    names = {"stride": "strides", "dilation": "dilations"}
    attributes = {names.get(k, k): v for k, v in kwargs.items() if k != "padding"}
    pads = kwargs.get("padding", 0)

    def oracle(x, w, b=None):
        many = x if batched else x[None]
        result = _oracle(many, w, b, pads_begin=pads, pads_end=pads, **attributes)
        return result if batched else result[0]

    return Case(
        f"conv_transpose{rank}d-{name}",
        f"conv_transpose{rank}d",
        lambda x, w, b=None: ours(x, w, b, **kwargs),
        oracle,
        shapes,
        peer=lambda x, w, b=None: torchs(x, w, b, **kwargs),
        batched=batched,
        in_matrix=in_matrix,
    )


def _onednns(name, shapes, in_matrix=False, oracle=None, **kwargs):
    """A row for convolution_transpose; `oracle`: what takes the place of auto_pad."""
    expected = {k: v for k, v in kwargs.items() if k != "auto_pad"} | (oracle or {})
    expected = {"data_format": "NXC", "weights_format": "XOI"} | expected
    return Case(
        f"convolution_transpose-{name}",
        "convolution_transpose",
        lambda x, w, b=None, residual=None: D.convolution_transpose(
            x, w, b, residual=residual, **kwargs
        ),
        lambda x, w, b=None, residual=None: _oracle(x, w, b, residual, **expected),
        shapes,
        in_matrix=in_matrix,
    )


CASES = [
    # conv_transpose1d/2d/3d: the contract of torch.nn.functional.conv_transpose*
    _torchs("plain", ((2, 3, 7), (3, 4, 3), (4,)), padding=1, in_matrix=True),
    _torchs("strided", ((2, 3, 4, 5), (3, 4, 3, 2), (4,)), stride=2, output_padding=1),
    _torchs(
        "strided-dilated-grouped",
        ((2, 4, 3, 4), (4, 3, 3, 2), (6,)),
        stride=(2, 1),
        padding=(1, 2),
        output_padding=(1, 0),
        dilation=(1, 3),
        groups=2,
        in_matrix=True,
    ),
    _torchs(
        "far-padding",
        ((2, 3, 3, 4), (3, 2, 3, 2), (2,)),
        stride=(2, 1),
        padding=(1, 2),
        output_padding=(1, 2),
        dilation=(1, 3),
    ),
    _torchs("depthwise", ((2, 4, 5, 6), (4, 1, 3, 3), (4,)), padding=1, groups=4),
    _torchs("depthwise-strided", ((1, 5, 4, 9), (5, 1, 4, 4), (5,)), stride=2, groups=5),
    _torchs("gaps", ((1, 3, 4, 3), (3, 2, 1, 2), (2,)), stride=3),
    _torchs("unbatched", ((3, 5, 6), (3, 4, 3, 3), (4,)), padding=1, batched=False),
    _torchs("pointwise", ((2, 5, 3, 7), (5, 6, 1, 1), (6,))),
    _torchs("patches", ((1, 5, 3, 4), (5, 3, 3, 2), (3,)), stride=(3, 2)),
    _torchs("wide-patches", ((1, 20, 3, 5), (20, 18, 2, 2), (18,)), stride=2),
    _torchs("wide", ((1, 24, 3, 7), (24, 20, 2, 3), (20,)), padding=1),
    _torchs("wide-strided", ((1, 24, 4, 5), (24, 20, 4, 4), (20,)), stride=2, padding=1),
    _torchs("tiles", ((1, 16, 6, 9), (16, 17, 3, 3), (17,)), padding=1),
    _torchs("few-outputs", ((1, 18, 5, 8), (18, 3, 4, 4), (3,)), stride=2, padding=1),
    _torchs("plain", ((1, 2, 3, 4, 3), (2, 3, 2, 3, 2), (3,)), stride=2, in_matrix=True),
    # convolution_transpose: the oneDNN Graph operation
    _onednns(
        "nxc-xoi",
        ((2, 4, 3, 4), (3, 4, 3, 4), (3,)),
        strides=2,
        auto_pad="same_lower",
        oracle={"pads_begin": (1, 1), "pads_end": (0, 1)},
        in_matrix=True,
    ),
    _onednns(
        "nxc-iox-asymmetric",
        ((2, 5, 6), (6, 2, 3)),
        strides=2,
        pads_begin=2,
        pads_end=1,
        output_padding=3,
        dilations=2,
        groups=2,
        weights_format="IOX",
    ),
    _onednns(
        "ncx-xoi",
        ((1, 4, 3, 2, 3), (2, 3, 2, 3, 4), (3,)),
        auto_pad="same_upper",
        data_format="NCX",
        oracle={"pads_begin": (0, 1, 0), "pads_end": (1, 1, 1)},
    ),
    _onednns(
        "same-small-kernel",
        ((1, 3, 4), (2, 3, 4), (3,)),
        strides=4,
        auto_pad="same_upper",
        oracle={"output_padding": 2},
    ),
    _onednns("far-padding", ((1, 3, 4), (2, 3, 4), (3,)), strides=2, output_padding=5),
    _onednns(
        "fused",
        ((2, 3, 4, 3), (3, 3, 5, 3), (5,), (2, 5, 8, 5)),
        strides=2,
        pads_begin=1,
        pads_end=(1, 0),
        output_padding=(0, 0),
        activation="silu",
    ),
    _onednns(
        "fused-grouped",
        ((2, 6, 4), (6, 2, 3), (4,)),
        strides=2,
        groups=2,
        activation="tanh",
        data_format="NCX",
        weights_format="IOX",
        in_matrix=True,
    ),
    _onednns(
        "fused-wide",
        ((1, 3, 5, 24), (1, 1, 18, 24), (18,), (1, 3, 5, 18)),
        activation="tanh",
    ),
]
