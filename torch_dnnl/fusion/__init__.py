"""`torch_dnnl.convert(fuse=True)`: convolutions take in what follows them."""

from torch_dnnl.fusion.calls import fuse, fuse_copies, unfuse

__all__ = ["fuse", "fuse_copies", "unfuse"]
