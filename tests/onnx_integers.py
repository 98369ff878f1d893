"""ONNX's ConvInteger and QLinearConv by quantized_convolution and reorder, as docs/quantization.md
says.
"""

import torch

from torch_dnnl.functional import quantized_convolution, reorder


def int8_parts(difference):
    """Tensors of int8 that add up to weights less their zero points, in -255 to 255."""
    while True:
        part = difference.clamp(-128, 127)
        yield part.to(torch.int8)
        difference = difference - part
        if not difference.any():
            return


def differences(w, w_zero_point):
    """As ONNX has them, a zero point is one for all weights or one for each output channel."""
    return w.int() - torch.as_tensor(w_zero_point).int().reshape(-1, *[1] * (w.dim() - 1))


def attributes_of(pads=0, strides=1, dilations=1, group=1):
    """Those of ONNX's nodes, by our names."""
    begin = end = pads
    if pads != 0:
        begin, end = pads[: len(pads) // 2], pads[len(pads) // 2 :]
    return {
        "pads_begin": begin,
        "pads_end": end,
        "strides": strides,
        "dilations": dilations,
        "groups": group,
        "data_format": "NCX",
        "weights_format": "OIX",
    }


def conv_integer(x, w, x_zero_point=0, w_zero_point=0, **attributes):
    options = {
        "src_zero_point": x_zero_point,
        "dtype": torch.int32,
        **attributes_of(**attributes),
    }
    parts = int8_parts(differences(w, w_zero_point))
    return sum(quantized_convolution(x, part, **options) for part in parts)


def qlinear_conv(
    x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, b=None, **attributes
):
    """One call where the differences are int8, else sums and a reorder."""
    weights, *others = int8_parts(differences(w, w_zero_point))
    if others:
        sums = conv_integer(x, w, x_zero_point, w_zero_point, **attributes)
        return reorder(
            sums if b is None else sums + b.reshape(-1, *[1] * (x.dim() - 2)),
            dtype=y_zero_point.dtype,
            scale=x_scale * w_scale,
            dst_scale=y_scale,
            dst_zero_point=y_zero_point,
            axis=1,
        )
    return quantized_convolution(
        x,
        weights,
        None if b is None else b * (x_scale * w_scale),
        src_scale=x_scale,
        src_zero_point=x_zero_point,
        weights_scale=w_scale,
        dst_scale=y_scale,
        dst_zero_point=y_zero_point,
        dtype=y_zero_point.dtype,
        **attributes_of(**attributes),
    )
