"""Export to ONNX: `torch.onnx.export` with translations of our operators.

Importing this module needs onnxscript, which torch.onnx needs too (`pip install onnx onnxscript`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.onnx import OnnxExporterError

from torch_dnnl.onnx import _convolution, _quantized, _reorder, _resample  # noqa: F401
from torch_dnnl.onnx._graph import TABLE, UnsupportedError

__all__ = ["UnsupportedError", "export", "translations"]


def translations() -> dict[Any, Callable[..., Any]]:
    """How our operators are written in ONNX, for `torch.onnx.export(..., dynamo=True)`.

    Returns:
        A `custom_translation_table`: for each operator (`torch.ops.torch_dnnl.<name>.default`) a
        function that adds nodes of ONNX to the graph. They are of the operator set that
        `opset_version` says, 18 or more.

    Example:
        >>> program = torch.onnx.export(
        ...     model, (image,), dynamo=True, custom_translation_table=translations())

    Definition: `docs/onnx.md` says which nodes; what these compute, the operator schemas of ONNX.
    """
    return dict(TABLE)


def export(
    model: torch.nn.Module | torch.export.ExportedProgram,
    args: tuple[Any, ...] = (),
    path: str | os.PathLike[str] | None = None,
    **options: Any,
) -> torch.onnx.ONNXProgram:
    """Exports a model to ONNX, with our operators in it or without.

    Args:
        model: a module, in eval mode for inference, or what `torch.export.export` returns.
        args: the inputs of an example call.
        path: the file to write, or None.
        options: those of `torch.onnx.export`, such as `dynamic_shapes` and `opset_version` (18 or
            more). A `custom_translation_table` is added to `translations()`.

    Returns:
        What `torch.onnx.export(..., dynamo=True)` returns: `.model_proto` is the model of ONNX,
        `.save(path)` writes it.

    Raises:
        UnsupportedError: a call of one of our operators that ONNX cannot say, such as a filter of
            Lanczos or a blocked layout. It is a NotImplementedError.
        torch.onnx.OnnxExporterError: everything else that torch.onnx cannot export.

    Example:
        >>> model = torch_dnnl.nn.Conv2d(3, 8, 3, stride=2, padding="same_upper").eval()
        >>> program = export(model, (torch.rand(1, 3, 32, 32),), "layer.onnx", verbose=False)
        >>> [node.op_type for node in program.model_proto.graph.node]
        ['Conv']

    Definition: `torch.onnx.export`.
    """
    table = translations() | (options.pop("custom_translation_table", None) or {})
    try:
        program = torch.onnx.export(
            model, args, path, dynamo=True, custom_translation_table=table, **options
        )
    except OnnxExporterError as error:
        # torch.onnx reports its own stages; what is not supported is at the end of the chain.
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, UnsupportedError):
            cause = cause.__cause__
        if cause is None:
            raise
        raise UnsupportedError(str(cause)) from error
    assert program is not None  # as it is for dynamo=True
    return program
