"""Which operators a function calls."""

from torch.utils._python_dispatch import TorchDispatchMode


class Recorder(TorchDispatchMode):
    """The calls of this library's operators that return within it."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if function.namespace == "torch_dnnl":
            self.calls.append((function, args, kwargs))
        return result

    @property
    def names(self):
        return [function.__name__.removesuffix(".default") for function, *_ in self.calls]
