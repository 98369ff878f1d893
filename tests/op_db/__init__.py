"""The table that drives the tests: one row per way of calling an operator.

A `Case` names a call of a public function, the tensors it takes, an independent
float64 oracle of the same call and, where torch has the operation, torch's own
spelling. Values, gradients, transforms, layouts, devices and the support table
of the README all come from here; to cover a new mode, add a row.
"""

from dataclasses import dataclass

import torch

from op_db import conv, conv_transpose, reorder, resample
from op_db.case import FLOATING, TOLERANCE, Case, assert_matches, by_name

CASES = [*resample.CASES, *reorder.CASES, *conv.CASES, *conv_transpose.CASES]

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


@dataclass(frozen=True)
class Support:
    """What a function takes; the README's support table."""

    dtypes: tuple[torch.dtype, ...]
    layouts: str
    ranks: str = "1, 2, 3"
    devices: str = "CPU, CUDA"


_ANY = "contiguous, channels_last, any strides"
_CONV = Support(FLOATING, _ANY)
SUPPORT = {
    "interpolate": Support((*FLOATING, *INTEGERS), _ANY),
    "resample": Support((*FLOATING, *INTEGERS), f"{_ANY}; NCX and NXC"),
    "reorder": Support(
        (*FLOATING, *FLOAT8, torch.int32, torch.int8, torch.uint8),
        "any strides; every oneDNN tag, plain or blocked",
        ranks="any (1 to 12 dimensions)",
    ),
    "fake_reorder": Support(FLOATING, "as reorder", ranks="any (1 to 12 dimensions)"),
    "conv1d": Support(FLOATING, _ANY, ranks="1"),
    "conv2d": Support(FLOATING, _ANY, ranks="2"),
    "conv3d": Support(FLOATING, _ANY, ranks="3"),
    "convolution": Support(FLOATING, f"{_ANY}; NCX and NXC, OIX and XIO"),
    "conv_transpose1d": Support(FLOATING, _ANY, ranks="1"),
    "conv_transpose2d": Support(FLOATING, _ANY, ranks="2"),
    "conv_transpose3d": Support(FLOATING, _ANY, ranks="3"),
    "convolution_transpose": Support(FLOATING, f"{_ANY}; NCX and NXC, IOX and XOI"),
    "quantized_convolution": Support(
        (torch.uint8, torch.int8), f"{_ANY}; NCX and NXC, OIX and XIO"
    ),
}

MATRIX = [case for case in CASES if case.in_matrix]

__all__ = [
    "CASES",
    "FLOAT8",
    "FLOATING",
    "INTEGERS",
    "MATRIX",
    "SUPPORT",
    "TOLERANCE",
    "Case",
    "Support",
    "assert_matches",
    "by_name",
]
