"""Which rule a call takes: on a mesh of four processes of which there is one, with a backend that
sends nothing, so that placements and sizes mean something and values do not."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)
from torch.testing._internal.distributed.fake_pg import FakeStore

import torch_dnnl.functional as D

R, SUM = Replicate(), Partial()


def S(dim):
    return Shard(dim)


@pytest.fixture(scope="module")
def processes():
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    yield
    dist.destroy_process_group()


@pytest.fixture
def mesh(processes):
    return init_device_mesh("cpu", (4,))


@pytest.fixture
def table(processes):
    """Two by two."""
    return init_device_mesh("cpu", (2, 2))


def on(mesh, shape, *placements, dtype=torch.float32):
    tensor = torch.ones(shape, dtype=dtype)
    return distribute_tensor(tensor, mesh, placements, src_data_rank=None).requires_grad_(
        dtype == torch.float32
    )


# Of the source, the weights and the bias; of the result; of the gradients.
RULES = {
    "replicated": ((R, R, R), R, (R, R, R)),
    "batch": ((S(0), R, R), S(0), (S(0), SUM, SUM)),
    "rows": ((S(2), R, R), S(2), (S(2), SUM, SUM)),
    "columns": ((S(3), R, R), S(3), (S(3), SUM, SUM)),
    "output channels": ((R, S(0), S(0)), S(1), (SUM, S(0), S(0))),
    "input channels": ((S(1), S(1), R), SUM, (S(1), S(1), R)),
}


@pytest.mark.parametrize("name", RULES)
def test_rules_of_convolution(name, mesh):
    inputs, output, gradients = RULES[name]
    shapes = ((8, 8, 12, 10), (16, 8, 3, 3), (16,))
    src, weight, bias = (on(mesh, shape, p) for shape, p in zip(shapes, inputs))
    dst = D.conv2d(src, weight, bias, padding=1)
    assert dst.placements == (output,)
    assert dst.shape == (8, 16, 12, 10)
    placement = R if output == SUM else output
    dst.backward(on(mesh, dst.shape, placement).detach())
    for tensor, expected in zip((src, weight, bias), gradients):
        assert tensor.grad.placements == (expected,)
        assert tensor.grad.shape == tensor.shape


@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_no_activation_of_a_sum(activation, mesh):
    src, weight = on(mesh, (8, 8, 12, 10), S(1)), on(mesh, (16, 8, 3, 3), S(1))
    formats = {"data_format": "NCX", "weights_format": "OIX"}
    assert D.convolution(src, weight, **formats).placements == (SUM,)
    dst = D.convolution(src, weight, activation=activation, **formats)
    assert not dst.placements[0].is_partial()
    inner = torch.ops.torch_dnnl.convolution_fused(src, weight, keep_preactivation=True, **formats)
    assert not any(t.placements[0].is_partial() for t in inner)


@pytest.mark.parametrize("src, weight, output", [(S(0), R, S(0)), (R, S(0), S(1))])
def test_prelu_and_broadcast_residual(src, weight, output, mesh):
    """Slopes are cut as the output channels are; a residual is whole where it is broadcast."""
    channels = weight
    x, w = on(mesh, (8, 8, 12, 10), src), on(mesh, (16, 8, 3, 3), weight)
    slopes, bias = on(mesh, (16,), channels), on(mesh, (16,), channels)
    residual = on(mesh, (1, 16, 1, 1), S(1) if output == S(1) else R)
    formats = {"data_format": "NCX", "weights_format": "OIX", "auto_pad": "same_upper"}
    with torch.no_grad():
        options = formats | {"activation": "prelu", "alpha": slopes, "residual": residual}
        dst = D.convolution(x, w, bias, **options)
    assert dst.placements == (output,)
    assert dst.shape == (8, 16, 12, 10)


@pytest.mark.parametrize(
    "groups, channels, outputs, fits",
    [
        (8, 8, 16, True),
        (6, 6, 6, True),  # 2, 2, 2 and 0 of both
        (6, 6, 12, False),  # 2, 2, 2 and 0; but 3 of each
        (4, 8, 16, True),
        (2, 8, 16, False),
        (6, 12, 12, False),
    ],
)
def test_groups_are_whole(groups, channels, outputs, fits, mesh):
    src = on(mesh, (2, channels, 12, 10), S(1))
    dst = D.conv2d(src, on(mesh, (outputs, channels // groups, 3, 3), S(0)), groups=groups)
    assert (dst.placements == (S(1),)) == fits
    if fits:
        assert dst.to_local().shape[1] * channels == src.to_local().shape[1] * outputs


def test_fewest_bytes_are_moved(mesh):
    """A large image stays where it is, and large weights do."""
    narrow = D.conv2d(on(mesh, (8, 4, 64, 64), S(0)), on(mesh, (8, 4, 3, 3), S(0)))
    assert narrow.placements == (S(0),)
    wide = D.conv2d(on(mesh, (4, 256, 4, 4), S(0)), on(mesh, (512, 256, 3, 3), S(0)))
    assert wide.placements == (S(1),)


def test_dimensions_of_the_mesh_have_rules_of_their_own(table):
    src, weight = on(table, (4, 8, 12, 10), S(0), S(2)), on(table, (16, 8, 3, 3), R, R)
    dst = D.conv2d(src, weight, padding=1)
    assert dst.placements == (S(0), S(2))
    assert dst.to_local().shape == (2, 16, 6, 10)
    rows_and_columns = D.conv2d(on(table, (4, 8, 12, 10), S(2), S(3)), weight, stride=2, padding=1)
    assert rows_and_columns.placements == (S(2), S(3))
    # A dimension of the image is cut by one dimension of the mesh.
    twice = D.conv2d(on(table, (4, 8, 12, 10), S(2), S(2)), weight, padding=1)
    assert twice.placements[0] == S(2) and twice.placements[1] != S(2)


@pytest.mark.parametrize("dim", range(4))
def test_resample_in_every_dimension(dim, mesh):
    src = on(mesh, (8, 8, 12, 10), S(dim))
    dst = D.interpolate(src, scale_factor=2.0, mode="bilinear")
    assert dst.placements == (S(dim),)
    dst.backward(on(mesh, dst.shape, S(dim)).detach())
    assert src.grad.placements == (S(dim),)


def test_reorder_keeps_blocks_together(mesh):
    src = [on(mesh, (8, 32, 12, 10), S(dim)) for dim in range(4)]
    assert [D.reorder(s, "nhwc").placements for s in src] == [(S(d),) for d in range(4)]
    blocked = [D.reorder(s, "nChw16c") for s in src]
    assert [blocked[d].placements for d in (0, 2, 3)] == [(S(0),), (S(2),), (S(3),)]
    assert blocked[1].placements != (S(1),)
    assert D.reorder(blocked[2], "nchw", src_format="nChw16c").placements == (S(2),)
    weights = D.reorder(on(mesh, (32, 16, 4, 4), S(2)), "OIhw4i16o4i")
    assert weights.placements == (S(2),) and weights.shape == (2, 1, 4, 4, 4, 16, 4)


def test_groups_of_scales_are_whole(mesh):
    src = on(mesh, (8, 32, 12, 10), S(1))
    eight, two = on(mesh, (1, 8, 1, 1), R), on(mesh, (1, 2, 1, 1), R)
    assert D.reorder(src, scale=eight).placements == (S(1),)
    assert D.reorder(src, scale=two).placements != (S(1),)


def test_numbers_may_be_plain_tensors(mesh):
    src = on(mesh, (8, 4), S(0)).detach()
    assert D.reorder(src, scale=torch.tensor(2.0)).placements == (S(0),)
    with pytest.raises(TypeError, match="reorder: expected scale to be a DTensor"):
        D.reorder(src, scale=torch.ones(1, 4))


def test_bad_calls_say_so(mesh, table):
    src = on(mesh, (8, 4, 6, 6), S(0))
    with pytest.raises(RuntimeError, match="conv2d: expected"):
        D.conv2d(src, on(mesh, (8, 3, 3, 3), R))
    elsewhere = on(table, (8, 4, 3, 3), R, R)
    with pytest.raises(ValueError, match="convolution: expected weights to be on the mesh"):
        D.convolution(src, elsewhere, data_format="NCX", weights_format="OIX")


def test_calls_can_be_traced(mesh):
    """With the exchange of rows in the graph."""

    def call(src, weight):
        return D.conv2d(src, weight, padding=1).relu()

    src, weight = on(mesh, (2, 4, 12, 10), S(2)), on(mesh, (8, 4, 3, 3), R)
    dst = torch.compile(call, backend="aot_eager", fullgraph=True)(src, weight)
    assert isinstance(dst, DTensor) and dst.placements == (S(2),)
    dst.sum().backward()
    assert src.grad.placements == (S(2),)
