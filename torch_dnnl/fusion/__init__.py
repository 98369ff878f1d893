"""`torch_dnnl.convert(fuse=True)`: convolutions take in what follows them."""

from torch_dnnl.fusion.fuse import fuse
from torch_dnnl.fusion.layers import is_fused

__all__ = ["fuse", "is_fused"]
