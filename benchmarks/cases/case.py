"""A case: our call, its peer, and tensors for both."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Case:
    name: str
    ours: Callable[..., Tensor]
    peer: Callable[..., object]
    tensors: tuple[Tensor, ...]
    operations: int = 0  # multiply-adds, where they are the limit
    exact: Callable[..., Tensor] | None = None  # of float64 tensors; default: peer
    graph: bool = False  # replayed as a CUDA graph
    is_comparable: bool = True  # whether the peer computes the same

    @property
    def differentiable(self) -> bool:
        """Whether both have gradients; those of an opaque tensor would have no layout to time."""
        if not all(t.is_floating_point() for t in self.tensors):
            return False
        leaves = [t.detach().requires_grad_() for t in self.tensors]
        results = [function(*leaves) for function in (self.ours, self.peer)]
        return all(isinstance(r, Tensor) and r.requires_grad and not r.is_mkldnn for r in results)


def randn(*shape: int, device: str, memory_format: torch.memory_format) -> Tensor:
    return torch.randn(shape, device=device).contiguous(memory_format=memory_format)


def randbytes(*shape: int, device: str, memory_format: torch.memory_format) -> Tensor:
    image = torch.randint(256, shape, dtype=torch.uint8, device=device)
    return image.contiguous(memory_format=memory_format)


LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
SHORT = {
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.float8_e4m3fn: "f8",
    torch.uint8: "u8",
}
