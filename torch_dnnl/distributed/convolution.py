"""The rules of convolution, its gradients, transposed, fused and quantized.

All of these are one form, trilinear in a source, weights and a destination, of which an operator
gets two and computes the third. Its indices, and the dimensions in which the three have them:

    n   the batch             source, destination
    0.. spatial dimensions    source, destination
    g   groups                source (channels), weights (output channels), destination (channels)
    i   input channels        source, weights
    o   output channels       weights, destination

Along an index, a tensor that has it is sharded and a tensor that lacks it replicated; a result that
lacks it is a partial sum. A shard in a spatial dimension needs rows of others besides its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import Partial, Placement, Replicate, Shard

from torch_dnnl.distributed.dispatch import Call, Index, Rule, outputs_of
from torch_dnnl.distributed.exchange import exchange_rows
from torch_dnnl.distributed.windows import (
    are_in_step,
    gradient_window,
    shards,
    source_window,
)
from torch_dnnl.functional._conv import same_padding

# What a tensor of a call is. SAME_AS_DST: like the destination, but never a sum.
SRC, WEIGHTS, DST, SAME_AS_DST, PER_SRC_CHANNEL, PER_DST_CHANNEL = (
    "source",
    "weights",
    "destination",
    "same as destination",
    "per source channel",
    "per destination channel",
)


class Operator(NamedTuple):
    """What the tensors of an operator are: its arguments and its outputs."""

    inputs: dict[str, str]
    outputs: Sequence[str]


_FORWARD = {
    "src": SRC,
    "weights": WEIGHTS,
    "bias": PER_DST_CHANNEL,
    "residual": DST,
    "slope": PER_DST_CHANNEL,
}
OPERATORS = {
    "convolution": Operator(_FORWARD, [DST]),
    "convolution_fused": Operator(_FORWARD, [DST, DST]),
    "quantized_convolution": Operator(_FORWARD | {"weights_scale": PER_DST_CHANNEL}, [DST]),
    "convolution_transpose": Operator(
        {
            "src": DST,
            "weights": WEIGHTS,
            "bias": PER_SRC_CHANNEL,
            "residual": SRC,
            "slope": PER_SRC_CHANNEL,
        },
        [SRC, SRC],
    ),
    "convolution_backward_data": Operator({"grad": DST, "weights": WEIGHTS}, [SRC]),
    "convolution_backward_weights": Operator({"grad": DST, "src": SRC}, [WEIGHTS]),
    "convolution_fused_backward": Operator(
        {"grad": DST, "value": DST, "src": SRC, "weights": WEIGHTS},
        [SRC, WEIGHTS, PER_DST_CHANNEL, SAME_AS_DST],
    ),
}


class _Form:
    """A call as the trilinear form: its indices and its sizes."""

    def __init__(self, call: Call) -> None:
        self.name = call.op._schema.name.split("::")[1]
        self.operator = OPERATORS[self.name]
        self.call, self.arguments = call, call.arguments
        image = next(iter(call.tensors.values()))
        self.spatial = image.dim() - 2
        self.nxc = self.arguments["data_format"] == "NXC"
        self.groups = int(self.arguments["groups"])
        self.dims = {what: self._dims(what) for what in (SRC, WEIGHTS, DST)}
        self.dims[SAME_AS_DST] = self.dims[DST]
        channel = self.spatial + 1 if self.nxc else 1
        for vector, of in ((PER_SRC_CHANNEL, SRC), (PER_DST_CHANNEL, DST)):
            self.dims[vector] = {i: 0 for i, dim in self.dims[of].items() if dim == channel}
        # The shapes of the three whole tensors, as far as the call has them.
        given = [(what, call.tensors.get(n)) for n, what in self.operator.inputs.items()]
        made = zip(self.operator.outputs, call.outputs, strict=True)
        self.shapes = {
            what: list(tensor.shape)
            for what, tensor in [*made, *given]
            if what in (SRC, WEIGHTS, DST) and tensor is not None and tensor.dim() > 1
        }

    def _dims(self, what: str) -> dict[Index, int]:
        """The dimension that each index has in a tensor."""
        if what == WEIGHTS:
            xio = self.arguments["weights_format"] == "XIO"
            outer, inner = (self.spatial + 1, self.spatial) if xio else (0, 1)
            return {"g": outer} if self.groups > 1 else {"o": outer, "i": inner}
        first, channel = (1, self.spatial + 1) if self.nxc else (2, 1)
        own: Index = "g" if self.groups > 1 else "i" if what == SRC else "o"
        return {"n": 0, own: channel, **{axis: first + axis for axis in range(self.spatial)}}

    @property
    def is_elementwise(self) -> bool:
        """Whether the call has no gradient of data or weights to compute."""
        return self.operator.inputs.keys() >= {"grad", "value"} and (
            self.arguments["src"] is None and self.arguments["weights"] is None
        )

    def cuts_whole_groups(self, mesh_dim: int) -> bool:
        """Whether shards of channels, along this dimension of the mesh too, are whole groups."""
        parts = [*self.call.parts("g"), self.call.mesh.size(mesh_dim)]
        return all(
            are_in_step(self.shapes[what][self.dims[what]["g"]], self.groups, parts)
            for what in (SRC, DST)
            if what in self.shapes
        )

    def placement(self, what: str, index: Index | None, is_result: bool) -> Placement:
        if index in self.dims[what]:
            return Shard(self.dims[what][index])
        if not is_result or index is None or what == SAME_AS_DST:
            return Replicate()
        # The gradient of the bias is no sum over input channels.
        return Replicate() if what == PER_DST_CHANNEL and index == "i" else Partial()

    def rule(self, index: Index | None) -> Rule:
        inputs: dict[str, Placement] = {}
        for name, tensor in self.call.tensors.items():
            what = self.operator.inputs.get(name)
            if what is None or (tensor.numel() == 1 and tensor.dim() < 2):
                inputs[name] = Replicate()  # a number
            elif (
                name == "residual"
                and index in self.dims[what]
                and tensor.shape[self.dims[what][index]] == 1
            ):
                inputs[name] = Replicate()  # it is broadcast
            else:
                inputs[name] = self.placement(what, index, False)
        outputs = [
            self.placement(what, index, True) if output.shape != (0,) else Replicate()
            for what, output in zip(self.operator.outputs, self.call.outputs, strict=True)
        ]
        return Rule(index, inputs, outputs)

    def is_linear(self) -> bool:
        """Whether results may be left as sums: nothing follows the sum."""
        arguments = self.arguments
        return self.name in ("convolution", *_BACKWARD) or (
            self.name != "quantized_convolution"
            and arguments["activation"] is None
            and not arguments["keep_preactivation"]
        )

    def attribute(self, name: str, default: int) -> list[int]:
        """A list of numbers, one for each spatial dimension."""
        return [int(value) for value in self.arguments[name] or [default] * self.spatial]

    def pads(self) -> list[tuple[int, int]]:
        """Those of each spatial dimension of the whole image."""
        auto_pad = self.arguments["auto_pad"]
        if auto_pad == "valid":
            return [(0, 0)] * self.spatial
        if auto_pad == "none":
            begin = self.attribute("pads_begin", 0)
            end = self.arguments["pads_end"]
            return list(zip(begin, map(int, end) if end else begin, strict=True))
        sizes, strides = self.sizes(SRC), self.attribute("strides", 1)
        dilations = self.attribute("dilations", 1)
        return same_padding(sizes, self.kernel(), strides, dilations, auto_pad)

    def sizes(self, image: str) -> list[int]:
        """The spatial sizes of the whole source or destination."""
        first = self.dims[image][0]
        return [int(size) for size in self.shapes[image][first : first + self.spatial]]

    def kernel(self) -> list[int]:
        first = 0 if self.arguments["weights_format"] == "XIO" else 2
        return [int(size) for size in self.shapes[WEIGHTS][first : first + self.spatial]]


_BACKWARD = (
    "convolution_backward_data",
    "convolution_backward_weights",
    "convolution_fused_backward",
)


def rules(call: Call) -> list[Rule]:
    """What a call of any of the operators may have along the next dimension of the mesh."""
    form = _Form(call)
    taken = [rule.index for rule in call.rules]
    indices: list[Index | None] = [None, "n"]
    indices += [axis for axis in range(form.spatial) if axis not in taken]
    if form.groups == 1:
        indices += ["o", "i"]
    elif form.cuts_whole_groups(len(taken)):
        indices += ["g"]
    found = [form.rule(index) for index in indices]
    if form.is_linear():
        return found
    return [rule for rule in found if not isinstance(rule.outputs[0], Partial)]


def compute(call: Call) -> list[Tensor]:
    """This rank's outputs."""
    form = _Form(call)
    is_cut_in_space = bool(call.dims_of(*range(form.spatial)))
    if form.is_elementwise:
        return _elementwise(form)
    if form.name == "convolution_fused_backward" and is_cut_in_space:
        return _fused_backward_in_steps(form)
    changes = _exchanged(form) if is_cut_in_space else {}
    shapes = [call.local_shape(i) for i in range(len(call.outputs))]
    first = next(iter(call.local.values()))
    is_backward = form.name in _BACKWARD or form.name == "convolution_transpose"
    if all(0 in shape for shape in shapes) or (is_backward and first.numel() == 0):
        return [
            first.new_zeros(shape, dtype=output.dtype)
            for shape, output in zip(shapes, call.outputs, strict=True)
        ]
    if form.groups > 1 and call.dims_of("g"):
        what, channels = form.operator.inputs[next(iter(call.local))], form.dims
        dim = channels[what]["g"]
        changes["groups"] = first.shape[dim] * form.groups // form.shapes[what][dim]
    sums = [m for m, rule in enumerate(call.rules) if isinstance(rule.outputs[0], Partial)]
    if any(call.mesh.get_local_rank(m) != 0 for m in sums):
        # The first ranks of all sums add the bias and the residual.
        changes |= {n: None for n in ("bias", "residual") if n in call.local}
    return call.run(**changes)


def _exchanged(form: _Form) -> dict[str, Any]:
    """Gets the rows that this rank needs, and what they change in its call."""
    call = form.call
    is_gradient = form.operator.outputs[0] == SRC  # of rows of dst, that of rows of src
    made, read = (SRC, DST) if is_gradient else (DST, SRC)
    name = next(n for n, what in form.operator.inputs.items() if what == read)
    window_of = gradient_window if is_gradient else source_window
    strides, dilations = form.attribute("strides", 1), form.attribute("dilations", 1)
    kernel, pads, sizes = form.kernel(), form.pads(), form.sizes(made)
    for axis in range(form.spatial):
        for mesh_dim in call.dims_of(axis):
            size, reach = form.sizes(read)[axis], (kernel[axis] - 1) * dilations[axis] + 1
            parts = shards(sizes[axis], call.mesh.size(mesh_dim))
            windows = [window_of(rows, size, strides[axis], pads[axis][0], reach) for rows in parts]
            dim, rank = form.dims[read][axis], call.mesh.get_local_rank(mesh_dim)
            call.local[name] = exchange_rows(
                call.local[name], dim, size, [w.rows for w in windows], call.mesh, mesh_dim
            )
            pads[axis] = windows[rank].pads
            if is_gradient:
                sizes[axis] = parts[rank].length
            if windows[rank].rows.length == 0 and parts[rank].length > 0:
                missing = 1
                if is_gradient:
                    missing += (sizes[axis] + sum(pads[axis]) - reach) // strides[axis]
                call.local[name] = _rows_of_padding(form, call.local[name], dim, missing)
    begin, end = zip(*pads, strict=True)
    changes: dict[str, Any] = {"auto_pad": "none", "pads_begin": begin, "pads_end": end}
    for argument in {"src_size", "dst_size"} & form.arguments.keys() if is_gradient else ():
        changes[argument] = sizes
    return changes


def _rows_of_padding(form: _Form, like: Tensor, dim: int, count: int) -> Tensor:
    shape = list(like.shape)
    shape[dim] = count
    padding = like.new_zeros(shape)
    if form.name == "quantized_convolution":  # the value 0 is the zero point
        zero_point = form.call.local.get("src_zero_point")
        if zero_point is None:
            padding.fill_(form.arguments["src_zero_point_value"])
        else:
            padding.copy_(zero_point)
    return padding


def _elementwise(form: _Form) -> list[Tensor]:
    """The gradient of what the activation is applied to, and its sums, by a kernel of one tap."""
    call, ones = form.call, [1] * form.spatial
    grad, first = call.local["grad"], form.dims[DST][0]
    if grad.numel() == 0:
        return [grad.new_zeros(call.local_shape(i)) for i in range(len(call.outputs))]
    return call.run(
        src_size=grad.shape[first : first + form.spatial],
        kernel_size=ones,
        strides=ones,
        pads_begin=[0] * form.spatial,
        pads_end=[0] * form.spatial,
        dilations=ones,
        auto_pad="none",
        groups=1,
    )


def _fused_backward_in_steps(form: _Form) -> list[Tensor]:
    """The derivative of the activation first, whose rows the gradient of data needs of others."""
    call, arguments, ops = form.call, form.arguments, torch.ops.torch_dnnl
    alone = {"src": None, "weights": None, "bias": False, "residual": True}
    inner = outputs_of(call.op(**{**arguments, **alone}))[3]
    names = list(arguments)
    attributes = {
        n: arguments[n] for n in names[names.index("strides") : names.index("algorithm") + 1]
    }
    none = inner.new_empty([0])
    result = [none, none, none, inner if arguments["residual"] else none]
    if arguments["weights"] is not None:
        result[0] = ops.convolution_backward_data(
            inner, arguments["weights"], arguments["src_size"], **attributes
        )
    if arguments["src"] is not None:
        result[1] = ops.convolution_backward_weights(
            inner, arguments["src"], arguments["kernel_size"], **attributes
        )
    if arguments["bias"]:
        channel = inner.dim() - 1 if form.nxc else 1
        result[2] = inner.sum([d for d in range(inner.dim()) if d != channel])
    return result
