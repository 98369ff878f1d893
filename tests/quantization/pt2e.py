"""Quantizes networks by torchao, as the tests of `torch_dnnl.quantization` need them."""

import torch
from torchao.quantization.pt2e import (
    HistogramObserver,
    MinMaxObserver,
    PerChannelMinMaxObserver,
    move_exported_model_to_eval,
)
from torchao.quantization.pt2e.quantize_pt2e import (
    convert_pt2e,
    prepare_pt2e,
    prepare_qat_pt2e,
)
from torchao.quantization.pt2e.quantizer import (
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
    x86_inductor_quantizer,
)

ATEN = torch.ops.aten
CONVOLUTIONS = (
    *(ATEN.conv1d.default, ATEN.conv2d.default, ATEN.conv3d.default),
    *(ATEN.conv1d.padding, ATEN.conv2d.padding, ATEN.conv3d.padding),
)
KEY = "quantization_annotation"


def x86(**options):
    config = x86_inductor_quantizer.get_default_x86_inductor_quantization_config(**options)
    return x86_inductor_quantizer.X86InductorQuantizer().set_global(config)


class EveryConvolution(Quantizer):
    """Sources, weights and the second operands of additions; and the result of the network."""

    def __init__(
        self, dtype=torch.uint8, per_channel=True, bounds=None, weights=(-128, 127), additions=True
    ):
        self.additions = additions
        limits = torch.iinfo(dtype)
        low, high = bounds or (limits.min, limits.max)
        self.values = QuantizationSpec(
            dtype=dtype,
            observer_or_fake_quant_ctr=HistogramObserver,
            quant_min=low,
            quant_max=high,
            qscheme=torch.per_tensor_affine,
        )
        self.weights = QuantizationSpec(
            dtype=torch.int8 if weights[0] < 0 else torch.uint8,
            observer_or_fake_quant_ctr=PerChannelMinMaxObserver if per_channel else MinMaxObserver,
            quant_min=weights[0],
            quant_max=weights[1],
            qscheme=torch.per_channel_symmetric if per_channel else torch.per_tensor_symmetric,
            ch_axis=0 if per_channel else None,
        )

    def annotate(self, model):
        last = next(iter(model.graph.output_node().all_input_nodes), None)
        for node in model.graph.nodes:
            inputs = {}
            if node.target in CONVOLUTIONS:
                inputs = {node.args[0]: self.values, node.args[1]: self.weights}
            elif node.target in (ATEN.add.Tensor, ATEN.add_.Tensor) and self.additions:
                inputs = {node.args[1]: self.values}
            elif node is not last:
                continue
            node.meta[KEY] = QuantizationAnnotation(
                input_qspec_map=inputs,
                output_qspec=self.values if node is last else None,
                _annotated=True,
            )
        return model

    def validate(self, model):
        pass


def quantize(network, x, quantizer, dynamic=False):
    """The network in q/dq operators, calibrated on `x`."""
    shapes = ({0: torch.export.Dim("batch", min=1, max=64)},) if dynamic else None
    exported = torch.export.export(network.eval(), (x,), dynamic_shapes=shapes).module()
    prepared = prepare_pt2e(exported, quantizer)
    prepared(x)
    return convert_pt2e(prepared)


def quantize_in_training(network, x):
    """The network in q/dq operators, after a few steps of training."""
    exported = torch.export.export(network.train(), (x,)).module()
    prepared = prepare_qat_pt2e(exported, x86(is_qat=True))
    optimizer = torch.optim.SGD(prepared.parameters(), lr=0.01)
    for _ in range(3):
        prepared(x).square().mean().backward()
        optimizer.step()
    move_exported_model_to_eval(prepared)
    return convert_pt2e(prepared)
