"""The rows of convolution."""

import torch
import torch.nn.functional as F
from oracles import conv as conv_oracle

import torch_dnnl.functional as D
from op_db.case import Case

_NCX = {"data_format": "NCX", "weights_format": "OIX"}
ACTIVATIONS = {
    None: lambda x: x,
    "silu": lambda x: x * torch.sigmoid(x),
    "tanh": lambda x: 1 - 2 / ((2 * x).exp() + 1),
    "leaky_relu": lambda x: torch.where(x > 0, x, 0.25 * x),
    "mish": lambda x: x * (1 - 2 / ((1 + x.exp()) ** 2 + 1)),
}


def _convolution_oracle(
    x, w, b=None, residual=None, slope=None, activation=None, alpha=None, **attributes
):
    """The oracle with functional.convolution's spelling: single ints, activation, residual. `alpha`
    is that of the table of activations, `slope` that of prelu, of images in NXC."""
    rank = x.dim() - 2
    attributes = {"strides": 1, "pads_begin": 0, "pads_end": 0, "dilations": 1} | attributes
    for name in ("strides", "pads_begin", "pads_end", "dilations"):
        if isinstance(attributes[name], int):
            attributes[name] = [attributes[name]] * rank
    result = conv_oracle.convolution(x, w, b, **attributes)
    result = result if residual is None else result + residual
    if activation == "prelu":
        return torch.where(result > 0, result, slope * result)
    return ACTIVATIONS[activation](result)


def _conv(name, shapes, pads=None, in_matrix=False, peer=True, batched=True, **kwargs):
    """A row for conv1d/2d/3d; `pads`: (pads_begin, pads_end) for the oracle."""
    rank = len(shapes[1]) - 2
    ours, torchs = getattr(D, f"conv{rank}d"), getattr(F, f"conv{rank}d")
    begin, end = pads or ([0] * rank, [0] * rank)

    def oracle(x, w, b=None):
        many = x if batched else x[None]
        result = _convolution_oracle(
            many,
            w,
            b,
            strides=kwargs.get("stride", 1),
            dilations=kwargs.get("dilation", 1),
            groups=kwargs.get("groups", 1),
            pads_begin=begin,
            pads_end=end,
            **_NCX,
        )
        return result if batched else result[0]

    return Case(
        f"conv{rank}d-{name}",
        f"conv{rank}d",
        lambda x, w, b=None: ours(x, w, b, **kwargs),
        oracle,
        shapes,
        peer=(lambda x, w, b=None: torchs(x, w, b, **kwargs)) if peer else None,
        batched=batched,
        in_matrix=in_matrix,
    )


def _convolution(name, shapes, in_matrix=False, **kwargs):
    def oracle(x, w, b=None, residual=None, slope=None):
        return _convolution_oracle(x, w, b, residual, slope, **kwargs)

    def convolution(x, w, b=None, residual=None, slope=None):
        options = kwargs if slope is None else kwargs | {"alpha": slope}
        return D.convolution(x, w, b, residual=residual, **options)

    return Case(
        f"convolution-{name}",
        "convolution",
        convolution,
        oracle,
        shapes,
        in_matrix=in_matrix,
    )


CASES = [
    # conv1d/2d/3d: the contract of torch.nn.functional.conv*
    _conv("plain", ((2, 3, 9), (4, 3, 3), (4,)), padding=1, pads=([1], [1]), in_matrix=True),
    _conv("causal", ((2, 3, 9), (4, 3, 3)), padding=[(2, 0)], pads=([2], [0]), peer=False),
    _conv("plain", ((2, 3, 6, 5), (4, 3, 3, 2), (4,)), in_matrix=True),
    _conv(
        "strided-dilated-grouped",
        ((2, 4, 9, 8), (6, 2, 3, 2), (6,)),
        stride=(2, 1),
        padding=(1, 2),
        dilation=(1, 2),
        groups=2,
        pads=([1, 2], [1, 2]),
    ),
    _conv(
        "depthwise",
        ((2, 4, 5, 6), (8, 1, 3, 3), (8,)),
        padding="same",
        groups=4,
        pads=([1, 1], [1, 1]),
    ),
    _conv(
        "same-lower",
        ((2, 3, 6, 7), (4, 3, 3, 2)),
        stride=2,
        padding="same_lower",
        pads=([1, 1], [0, 0]),
        peer=False,
    ),
    _conv(
        "unbatched",
        ((3, 5, 6), (4, 3, 3, 3), (4,)),
        padding=1,
        pads=([1, 1], [1, 1]),
        batched=False,
    ),
    _conv("pointwise", ((2, 5, 3, 7), (6, 5, 1, 1), (6,))),
    _conv("patches", ((1, 3, 7, 9), (5, 3, 3, 2), (5,)), stride=(3, 2)),
    _conv("wide", ((1, 20, 4, 7), (24, 20, 2, 3), (24,)), padding=1, pads=([1, 1], [1, 1])),
    _conv(
        "plain",
        ((1, 2, 4, 5, 4), (3, 2, 2, 3, 2), (3,)),
        padding=1,
        pads=([1] * 3, [1] * 3),
        in_matrix=True,
    ),
    # convolution: the oneDNN Graph operation
    _convolution(
        "nxc-broadcast-residual-leaky",
        ((2, 6, 5, 3), (3, 2, 3, 4), (4,), (1, 1, 1, 4)),
        activation="leaky_relu",
        alpha=0.25,  # ONNX has float32 parameters
    ),
    _convolution(
        "nxc-row-residual-mish",
        ((2, 5, 6, 3), (4, 3, 3, 3), (4,), (2, 1, 4, 4)),
        activation="mish",
        weights_format="OIX",
    ),
    _convolution(
        "nxc-prelu",
        ((2, 6, 5, 3), (3, 2, 3, 4), (4,), (2, 4, 4, 4), (4,)),
        activation="prelu",
    ),
    _convolution(
        "nxc-xio",
        ((2, 6, 5, 3), (3, 2, 3, 4), (4,)),
        strides=2,
        auto_pad="same_lower",
        in_matrix=True,
    ),
    _convolution(
        "nxc-oix-asymmetric",
        ((2, 7, 4), (6, 2, 3)),
        pads_begin=2,
        pads_end=1,
        dilations=2,
        groups=2,
        weights_format="OIX",
    ),
    _convolution(
        "ncx-xio",
        ((1, 3, 4, 4, 3), (2, 2, 2, 3, 4), (4,)),
        auto_pad="same_upper",
        data_format="NCX",
    ),
    _convolution(
        "fused",
        ((2, 6, 5, 3), (3, 3, 3, 4), (4,), (2, 6, 5, 4)),
        pads_begin=1,
        pads_end=1,
        activation="silu",
    ),
    _convolution(
        "fused-grouped",
        ((2, 4, 7), (6, 2, 3), (6,)),
        strides=2,
        groups=2,
        activation="tanh",
        data_format="NCX",
        weights_format="OIX",
        in_matrix=True,
    ),
]
