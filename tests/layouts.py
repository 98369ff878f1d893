"""The memory layouts that a tensor may come in: each function returns a copy of its argument,
but for an expanded one, whose elements repeat the first."""

import torch


def poison(x):
    return float("nan") if x.is_floating_point() else torch.iinfo(x.dtype).max


def channels_last(x):
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats[x.dim()]) if x.dim() in formats else x


def transposed(x):
    return x.transpose(0, -1).contiguous().transpose(0, -1)


def sliced(x):
    wide = torch.full([2 * n + 1 for n in x.shape], poison(x), dtype=x.dtype)
    view = wide[tuple(slice(1, None, 2) for _ in x.shape)]
    return view.copy_(x)


def offset_by_one(x):
    flat = torch.full([x.numel() + 1], poison(x), dtype=x.dtype)
    return flat[1:].view(x.shape).copy_(x)


def expanded(x):
    return x[:1].expand(x.shape)


def negative_view(x):
    return torch.complex(torch.zeros_like(x), -x).conj().imag


LAYOUTS = [channels_last, transposed, sliced, offset_by_one, expanded, negative_view]
