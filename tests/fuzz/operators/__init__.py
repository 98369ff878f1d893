"""Every operator by name: how a problem is made, and what it should give."""

from fuzz.operators import conv, quantized, reorder, resample

OPERATORS = {
    operator.name: operator
    for module in (conv, resample, reorder, quantized)
    for operator in module.OPERATORS
}
