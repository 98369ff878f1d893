"""The rows of reorder: float to float, with every operand."""

from oracles import reorder as reorder_oracle

import torch_dnnl.functional as D
from op_db.case import Case


def _reorder(name, shapes, names=(), scales=(), in_matrix=False, batched=True, **kwargs):
    """A row for reorder; `names`: which arguments the tensors after src are."""

    def bound(function):
        return lambda x, *rest: function(x, **kwargs, **dict(zip(names, rest)))

    return Case(
        f"reorder-{name}",
        "reorder",
        bound(D.reorder),
        bound(reorder_oracle.reorder),
        shapes,
        scales=scales,
        batched=batched,
        in_matrix=in_matrix,
    )


CASES = [
    _reorder("plain", ((2, 3, 4, 5),), dst_format="acdb", in_matrix=True),
    _reorder(
        "keep", ((2, 3, 4),), src_zero_point=0.5, scale=2.0, dst_scale=3.0, dst_zero_point=1.0
    ),
    _reorder("blocked", ((2, 5, 3, 2),), dst_format="nChw4c", in_matrix=True),
    _reorder(
        "unblocked", ((2, 2, 3, 2, 4),), src_format="nChw4c", dst_format="nhwc", size=(2, 7, 3, 2)
    ),
    _reorder("weights", ((5, 6, 3, 2),), dst_format="OIhw4i8o2i", batched=False),
    _reorder(
        "scale",
        ((2, 4, 3, 5), (1, 4, 1, 1), (2, 1, 3, 1)),
        ("scale", "dst_scale"),
        scales=(1, 2),
        dst_format="nhwc",
        in_matrix=True,
        batched=False,
    ),
    _reorder(
        "groups",
        ((4, 6), (2, 3), (4, 1), (1, 6), (1, 1)),
        ("scale", "dst_scale", "src_zero_point", "dst_zero_point"),
        scales=(1, 2, 3, 4),
        dst_format="ba",
        batched=False,
    ),
    _reorder(
        "axis",
        ((2, 3, 4), (3,), (1,), (3,), (1, 3, 1)),
        ("scale", "dst_scale", "src_zero_point", "dst_zero_point"),
        scales=(1, 2),
        axis=-2,
        dst_format="acb",
        in_matrix=True,
    ),
    _reorder(
        "axis-unblocked",
        ((2, 2, 3, 4), (7,)),
        ("scale",),
        scales=(1,),
        axis=1,
        src_format="nCw4c",
        dst_format="nwc",
        size=(2, 7, 3),
        batched=False,
    ),
    _reorder(
        "accumulate",
        ((2, 3, 4), (2, 3, 4), (1, 3, 1)),
        ("accumulate", "dst_scale"),
        scales=(2,),
        beta=0.5,
        in_matrix=True,
        batched=False,
    ),
    _reorder(
        "accumulate-blocked",
        ((2, 5, 3), (2, 2, 3, 4), (1, 5, 1)),
        ("accumulate", "scale"),
        scales=(2,),
        dst_format="nCw4c",
        beta=-1.5,
        batched=False,
    ),
]
