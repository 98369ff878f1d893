"""The modules: torch's contract where they are torch's, their own arguments where they are not."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F

import torch_dnnl.functional as D
from torch_dnnl import nn

CONVS = {
    1: (nn.Conv1d, torch.nn.Conv1d),
    2: (nn.Conv2d, torch.nn.Conv2d),
    3: (nn.Conv3d, torch.nn.Conv3d),
}
TRANSPOSED = {
    1: (nn.ConvTranspose1d, torch.nn.ConvTranspose1d),
    2: (nn.ConvTranspose2d, torch.nn.ConvTranspose2d),
    3: (nn.ConvTranspose3d, torch.nn.ConvTranspose3d),
}
SIZES = (9, 8, 7)


def same_result(ours, theirs, *inputs):
    torch.testing.assert_close(ours(*inputs), theirs(*inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dims", CONVS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 2, "padding": 1, "bias": False},
        {"padding": "same", "dilation": 2, "groups": 2},
        {"padding": "valid"},
        {"padding": 1, "padding_mode": "reflect"},
        {"padding": "same", "padding_mode": "circular"},
    ],
    ids=str,
)
def test_conv_is_torch_conv(dims, options):
    same_layers(*CONVS[dims], dims, options)


@pytest.mark.parametrize("dims", TRANSPOSED)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stride": 3, "padding": 1, "output_padding": 2, "bias": False},
        {"groups": 2, "dilation": 2},
    ],
    ids=str,
)
def test_conv_transpose_is_torch_conv_transpose(dims, options):
    same_layers(*TRANSPOSED[dims], dims, options)


def same_layers(ours_type, torch_type, dims, options):
    torch.manual_seed(1)
    ours = ours_type(4, 6, 3, **options)
    torch.manual_seed(1)
    theirs = torch_type(4, 6, 3, **options)
    assert isinstance(ours, torch_type)
    assert repr(ours) == f"torch_dnnl.{theirs!r}"
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value)
    same_result(ours, theirs, torch.randn(2, 4, *SIZES[:dims]))
    same_result(ours, theirs, torch.randn(4, *SIZES[:dims]))


@pytest.mark.parametrize("dims", TRANSPOSED)
def test_conv_transpose_takes_an_output_size(dims):
    ours_type, torch_type = TRANSPOSED[dims]
    ours, theirs = ours_type(4, 3, 3, stride=2), torch_type(4, 3, 3, stride=2)
    theirs.load_state_dict(ours.state_dict())
    input = torch.randn(2, 4, *SIZES[:dims])
    sizes = [2 * size + 2 for size in SIZES[:dims]]
    same_result(ours, theirs, input, sizes)
    same_result(ours, theirs, input, torch.Size([2, 3, *sizes]))
    with pytest.raises(ValueError, match="requested an output size"):
        ours(input, [1] * dims)
    with pytest.raises(ValueError, match='Only "zeros" padding mode'):
        ours_type(4, 3, 3, padding_mode="reflect")


@pytest.mark.parametrize("dims", CONVS)
@pytest.mark.parametrize("padding_mode", ["zeros", "replicate", "circular"])
def test_conv_pads_each_side_apart(dims, padding_mode):
    pads = ((2, 0), (1, 2), (0, 1))[:dims]
    layer = CONVS[dims][0](3, 5, 3, stride=2, padding=pads, padding_mode=padding_mode)
    assert layer.padding == pads
    assert str(pads) in repr(layer)
    input = torch.randn(2, 3, *SIZES[:dims])
    mode = "constant" if padding_mode == "zeros" else padding_mode
    padded = F.pad(input, [pad for pair in reversed(pads) for pad in pair], mode=mode)
    expected = CONVS[dims][1](3, 5, 3, stride=2)
    expected.load_state_dict(layer.state_dict())
    same_result(lambda x: layer(input), expected, padded)


# A kernel of 4 at stride 3 over 10 pixels: 4 outputs span 3 * 3 + 4 = 13, so 3 pads; over 9: 3
# outputs span 10, 1 pad.
@pytest.mark.parametrize("padding_mode", ["zeros", "replicate"])
@pytest.mark.parametrize(
    ("padding", "pads"), [("same_upper", [0, 1, 1, 2]), ("same_lower", [1, 0, 2, 1])]
)
def test_conv_same_with_stride(padding, pads, padding_mode):
    layer = nn.Conv2d(2, 3, 4, stride=3, padding=padding, padding_mode=padding_mode)
    assert f"padding={padding}" in repr(layer)
    input = torch.randn(1, 2, 10, 9)
    mode = "constant" if padding_mode == "zeros" else padding_mode
    expected = F.conv2d(F.pad(input, pads, mode=mode), layer.weight, layer.bias, 3)
    assert expected.shape[2:] == (4, 3)
    torch.testing.assert_close(layer(input), expected, rtol=1e-4, atol=1e-5)


def test_conv_bad_padding():
    with pytest.raises(ValueError, match="Conv2d: expected padding to be one of"):
        nn.Conv2d(1, 1, 3, padding="full")
    with pytest.raises(ValueError, match="strided"):
        nn.Conv2d(1, 1, 3, stride=2, padding="same")
    with pytest.raises(ValueError, match="2 \\(begin, end\\) pairs"):
        nn.Conv2d(1, 1, 3, padding=((1, 2),))
    for padding in (((1, 1), 1), ((1.0, 1), (1, 1)), ((True, 1), (1, 1)), ((1, 1, 1), (1, 1))):
        with pytest.raises(ValueError, match="Conv2d: expected padding to be 2 \\(begin, end\\)"):
            nn.Conv2d(1, 1, 3, padding=padding)
    with pytest.raises(ValueError, match="groups"):
        nn.Conv2d(3, 4, 3, groups=2)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("weights_format", ["XIO", "OIX"])
@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
def test_conv_layer_in_all_formats(dims, weights_format, data_format):
    torch.manual_seed(1)
    layer = nn.Conv(
        dims,
        4,
        6,
        3,
        strides=2,
        pads_begin=1,
        groups=2,
        data_format=data_format,
        weights_format=weights_format,
        activation="relu",
    )
    torch.manual_seed(1)
    expected = CONVS[dims][1](4, 6, 3, stride=2, groups=2)
    weight = layer.weight
    if weights_format == "XIO":
        assert weight.shape == (3,) * dims + (2, 6)
        weight = weight.permute(-1, -2, *range(dims))
    assert weight.shape == (6, 2) + (3,) * dims
    assert torch.equal(weight, expected.weight)
    assert torch.equal(layer.bias, expected.bias)

    input = torch.randn(2, 4, *SIZES[:dims])
    result = layer(input if data_format == "NCX" else input.movedim(1, -1))
    result = result if data_format == "NCX" else result.movedim(-1, 1)
    same_result(lambda x: result, lambda x: expected(F.pad(x, [1, 0] * dims)).relu(), input)


def test_conv_layer_residual_and_repr():
    layer = nn.Conv(2, 3, 3, (1, 3), auto_pad="same_lower", bias=False, activation="tanh")
    src = torch.randn(1, 5, 5, 3)
    torch.testing.assert_close(
        layer(src, src), D.convolution(src, layer.weight, auto_pad="same_lower").add(src).tanh()
    )
    assert repr(layer) == (
        "Conv(spatial_dims=2, in_channels=3, out_channels=3, kernel_size=(1, 3), "
        "auto_pad='same_lower', activation='tanh', bias=False)"
    )
    assert layer.bias is None
    assert list(layer.state_dict()) == ["weight"]


@pytest.mark.parametrize(
    ("args", "options", "error", "words"),
    [
        ((4, 1, 1, 3), {}, ValueError, "spatial_dims"),
        ((True, 1, 1, 3), {}, TypeError, "spatial_dims"),
        ((2, 1, 1, (3,)), {}, ValueError, "kernel_size"),
        ((2, 1, 1, 1.5), {}, TypeError, "kernel_size"),
        ((2, 1, 1, 0), {}, ValueError, "kernel_size"),
        ((2, 1, 1, (3, -1)), {}, ValueError, "kernel_size"),
        ((2, 3, 4, 3), {"groups": 2}, ValueError, "groups"),
        ((2, 3, 4, 3), {"groups": True}, TypeError, "groups"),
        ((2, 3, 4, 3), {"groups": 0}, ValueError, "groups"),
        ((2, -4, 4, 3), {}, ValueError, "in_channels"),
        ((2, 3.0, 4, 3), {}, TypeError, "in_channels"),
        ((2, 2**31, 4, 3), {}, ValueError, "in_channels"),
        ((2, 3, 0, 3), {}, ValueError, "out_channels"),
        ((2, 3, 2**61, 3), {}, ValueError, "out_channels"),
        ((2, 3, 4, 3), {"bias": "no"}, TypeError, "bias"),
        ((2, 3, 4, 3), {"bias": torch.ones(2)}, TypeError, "bias"),
        ((2, 3, 4, 3), {"dtype": "float32"}, TypeError, "dtype"),
        ((2, 3, 4, 3), {"dtype": torch.complex64}, TypeError, "dtype"),
        ((2, 3, 4, 3), {"weights_format": "IOX"}, ValueError, "weights_format"),
        ((2, 3, 4, 3), {"data_format": "NHWC"}, ValueError, "data_format"),
        ((2, 3, 4, 3), {"dilations": (1, 2, 3)}, ValueError, "dilations"),
        ((2, 3, 4, 3), {"dilations": ()}, ValueError, "dilations"),
        ((2, 3, 4, 3), {"dilations": "2"}, TypeError, "dilations"),
        ((2, 3, 4, 3), {"dilations": 2**62}, ValueError, "sizes and dilations"),
        ((2, 3, 2**30, 2**16), {}, ValueError, "sizes and dilations"),
        ((2, 3, 4, 3), {"strides": 0}, ValueError, "strides"),
        ((2, 3, 4, 3), {"pads_end": -1}, ValueError, "pads_end"),
        ((2, 3, 4, 3), {"auto_pad": "same"}, ValueError, "auto_pad"),
        ((2, 3, 4, 3), {"activation": "softmax"}, ValueError, "activation"),
        ((2, 3, 4, 3), {"activation": b"relu"}, TypeError, "activation"),
    ],
)
def test_conv_layer_bad_arguments(args, options, error, words):
    with pytest.raises(error, match=f"Conv: expected (every entry of )?{words}"):
        nn.Conv(*args, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"scale_factor": 2},
        {"scale_factor": (0.5, 1.5), "mode": "bilinear"},
        {"size": (5, 6), "mode": "bicubic", "align_corners": True},
        {"scale_factor": 1.3, "mode": "bilinear", "recompute_scale_factor": True},
    ],
    ids=str,
)
def test_upsample(options):
    ours, theirs = nn.Upsample(**options), torch.nn.Upsample(**options)
    assert isinstance(ours, torch.nn.Upsample)
    assert repr(ours) == f"torch_dnnl.{theirs!r}"
    same_result(ours, theirs, torch.randn(1, 2, 7, 8))


def test_resample():
    options = {"mode": "cubic", "coordinates": "asymmetric", "data_format": "NXC"}
    layer = nn.Resample(scale_factor=0.6, recompute_scale_factor=False, **options)
    src = torch.randn(1, 9, 8, 2)
    expected = D.resample(src, scale_factor=0.6, recompute_scale_factor=False, **options)
    assert torch.equal(layer(src), expected)
    assert repr(layer) == (
        "Resample(scale_factor=0.6, mode='cubic', coordinates='asymmetric', "
        "recompute_scale_factor=False, data_format='NXC')"
    )


def test_reorder():
    layer = nn.Reorder("nhwc", dtype=torch.int8, dst_scale=0.02)
    src, accumulate = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 4, 5)
    result = layer(src)
    assert result.dtype == torch.int8
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(result, D.reorder(src, "nhwc", dtype=torch.int8, dst_scale=0.02))
    assert torch.equal(nn.Reorder(beta=0.5)(src, accumulate), src + 0.5 * accumulate)
    assert repr(layer) == "Reorder(dst_format='nhwc', dtype=torch.int8, dst_scale=0.02)"


def test_reorder_learns_its_parameters():
    scale = torch.nn.Parameter(torch.full((1, 3, 1, 1), 0.1))
    layer = nn.Reorder(
        dtype=torch.int8, dst_scale=scale, dst_zero_point=torch.zeros(1, 3, 1, 1), fake=True
    )
    assert dict(layer.named_parameters()) == {"dst_scale": scale}
    assert list(dict(layer.named_buffers())) == ["dst_zero_point"]
    assert "dst_scale=Parameter[1, 3, 1, 1]" in repr(layer)
    assert "fake=True" in repr(layer)
    src = torch.randn(2, 3, 4, 5, requires_grad=True)
    layer(src).square().sum().backward()
    assert src.grad.abs().sum() > 0
    assert scale.grad.abs().min() > 0
    assert layer.to(torch.float64).dst_scale.dtype == torch.float64


def test_reorder_keeps_what_lies_along_an_axis():
    """As a parameter or a buffer of one dimension, in the state too."""
    steps, zeros = torch.nn.Parameter(torch.tensor([0.1, 0.2, 0.3])), torch.tensor([1.0])
    options = {"dtype": torch.int8, "axis": 1, "fake": True}
    layer = nn.Reorder(dst_scale=steps, dst_zero_point=zeros, **options)
    assert {name: t.shape for name, t in layer.state_dict().items()} == {
        "dst_scale": (3,),
        "dst_zero_point": (1,),
    }
    assert repr(layer) == (
        "Reorder(dtype=torch.int8, dst_scale=Parameter[3], dst_zero_point=Tensor[1], axis=1, "
        "fake=True)"
    )
    src = torch.randn(2, 3, 4, 5)
    spread = nn.Reorder(
        dtype=torch.int8,
        dst_scale=torch.nn.Parameter(steps.detach().reshape(1, 3, 1, 1)),
        dst_zero_point=1,
        fake=True,
    )
    assert torch.equal(layer(src), spread(src))
    for module in (layer, spread):
        module(src).square().sum().backward()
    assert steps.grad.shape == (3,) and steps.grad.abs().min() > 0
    assert torch.equal(steps.grad, spread.dst_scale.grad.flatten())
    other = nn.Reorder(
        dst_scale=torch.nn.Parameter(torch.ones(3)), dst_zero_point=torch.zeros(1), **options
    )
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(src), layer(src))


MODULES = [
    nn.Conv1d(2, 4, 3, padding=((2, 0),)),
    nn.Conv2d(2, 4, 3, stride=2, padding="same_lower"),
    nn.Conv3d(2, 4, 3, padding="same"),
    nn.Conv(2, 3, 4, 3, auto_pad="same_upper"),
    nn.ConvTranspose1d(2, 4, 3),
    nn.ConvTranspose2d(2, 4, 3, stride=2, output_padding=1),
    nn.ConvTranspose3d(2, 4, 3, groups=2),
    nn.Upsample(scale_factor=2, mode="bilinear"),
    nn.Resample(scale_factor=2),
    nn.Reorder("nhwc", dtype=torch.int8, dst_scale=torch.nn.Parameter(torch.tensor(0.1))),
    nn.Reorder(dtype=torch.int8, dst_scale=torch.nn.Parameter(torch.ones(3)), axis=-3),
]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: type(module).__name__)
def test_pickle_and_deepcopy(module):
    for copied in (pickle.loads(pickle.dumps(module)), copy.deepcopy(module)):
        assert repr(copied) == repr(module)
        assert type(copied) is type(module)
        assert list(copied.state_dict()) == list(module.state_dict())
        for name, value in module.state_dict().items():
            assert torch.equal(copied.state_dict()[name], value)
            assert copied.state_dict()[name].data_ptr() != value.data_ptr()
