"""Packed weights that are kept between calls: none is taken for other weights, whatever door those
changed through; bounded, shared by threads, left alone by tracing.

Results are compared with those of calls for which nothing is kept, to the bit.
"""

import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_dnnl

LIMIT = 64 << 20
SHAPE = (48, 32, 3, 3)
ALGORITHMS = ("winograd", "direct")
ops = torch.ops.torch_dnnl


def kept(limit=None):
    """Bytes that are kept, with another limit from now on."""
    return torch.ops.torch_dnnl_cpu.packed_weights(limit)


@pytest.fixture(autouse=True)
def nothing_is_kept():
    kept(0)
    kept(LIMIT)
    torch.manual_seed(0)
    yield
    kept(0)
    kept(LIMIT)


def both_passes(w, algorithm="direct", formats=("NCX", "OIX"), groups=1):
    """The forward and the data gradient of an image of ones, of 8x8 pixels."""
    attributes = ([1, 1], [1, 1], [1, 1], [1, 1], "none", groups, *formats, algorithm)
    ic, oc = (w.shape[1], w.shape[0]) if formats[1] == "OIX" else (w.shape[2], w.shape[3])
    sizes = [(2, 8, 8, c) if formats[0] == "NXC" else (2, c, 8, 8) for c in (ic * groups, oc)]
    with torch.no_grad():
        y = ops.convolution(torch.ones(sizes[0], dtype=w.dtype), w, None, *attributes)
        x = ops.convolution_backward_data(
            torch.ones(sizes[1], dtype=w.dtype), w, [8, 8], *attributes
        )
    return y, x


def without_keeping(w, *args, **kwargs):
    kept(0)
    results = both_passes(w.detach().clone(memory_format=torch.preserve_format), *args, **kwargs)
    kept(LIMIT)
    return results


def assert_equal(results, expected):
    for result, reference in zip(results, expected, strict=True):
        assert torch.equal(result, reference)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("formats", [(d, w) for d in ("NCX", "NXC") for w in ("OIX", "XIO")])
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_results_are_the_same_bits(algorithm, formats, groups, dtype):
    w = torch.randn(SHAPE).to(dtype)
    if formats[1] == "XIO":
        w = w.permute(2, 3, 1, 0).contiguous()
    calls, sizes = [], []
    for _ in range(4):
        calls.append(both_passes(w, algorithm, formats, groups))
        sizes.append(kept())
    assert sizes[0] == 0  # first they are only seen
    assert sizes[1] > 2 * w.nbytes and sizes[1] == sizes[2] == sizes[3]
    expected = without_keeping(w, algorithm, formats, groups)
    for results in calls:
        assert_equal(results, expected)


def test_tiles_of_both_sizes():
    """What Winograd makes of the same weights depends on the image."""
    w = torch.randn(SHAPE)
    attributes = ([1, 1], [1, 1], [1, 1], [1, 1], "none", 1, "NCX", "OIX", "winograd")
    images = [torch.randn(1, SHAPE[1], size, size) for size in (6, 16)]
    results = [[ops.convolution(x, w, None, *attributes) for x in images] for _ in range(4)]
    assert kept() > w.nbytes * (2 + (16 + 36) / 9)  # copies, and both packed forms
    kept(0)
    expected = [ops.convolution(x, w.clone(), None, *attributes) for x in images]
    for result in results:
        assert_equal(result, expected)


# Each changes a weight that is not the first, so that other weights look much the same.
AT = 5


def in_place(w):
    with torch.no_grad():
        w.view(-1)[AT] += 1
    return w


def through_data(w):
    w.data.view(-1)[AT] += 1
    return w


def through_detach(w):
    w.detach().view(-1)[AT] += 1
    return w


def through_numpy(w):
    w.detach().numpy().reshape(-1)[AT] += 1
    return w


def through_dlpack(w):
    torch.from_dlpack(w.detach()).view(-1)[AT] += 1
    return w


def changed(w):
    other = w.detach().clone()
    other.view(-1)[AT] += 1
    return other


def other_data(w):
    w.data = changed(w)
    return w


def other_storage(w):
    with torch.no_grad():
        return w.set_(changed(w))


def swapped(w):
    other = torch.nn.Parameter(changed(w))
    torch.utils.swap_tensors(w, other)
    return w


def optimizer(w):
    w.grad = torch.zeros_like(w)
    w.grad.view(-1)[AT] = 1
    torch.optim.SGD([w], lr=0.5).step()
    return w


def resharded(w):
    """As FSDP frees and gathers parameters: the same tensor and storage, no new version."""
    other, storage = changed(w), w.untyped_storage()
    size, version = storage.nbytes(), w._version
    storage.resize_(0)
    both_passes(torch.randn(SHAPE))  # which may take its place
    storage.resize_(size)
    with torch.autograd._unsafe_preserve_version_counter(w), torch.no_grad():
        w.copy_(other)
    assert w._version == version
    return w


DOORS = (
    in_place,
    through_data,
    through_detach,
    through_numpy,
    through_dlpack,
    other_data,
    other_storage,
    swapped,
    optimizer,
    resharded,
)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("change", DOORS, ids=[door.__name__ for door in DOORS])
def test_every_change_is_seen(change, algorithm):
    w = torch.nn.Parameter(torch.randn(SHAPE))
    before = [both_passes(w, algorithm) for _ in range(3)][-1]
    assert kept() > 0
    w = change(w)
    after = both_passes(w, algorithm)
    assert not any(map(torch.equal, before, after))
    again = [both_passes(w, algorithm) for _ in range(3)]
    expected = without_keeping(w, algorithm)
    for results in (after, *again):
        assert_equal(results, expected)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_view_of_what_changed(algorithm):
    base = torch.randn(2, *SHAPE)
    w = base[1]
    for _ in range(3):
        both_passes(w, algorithm)
    assert kept() > 0
    base.view(-1)[w.numel() + AT] += 1
    after = both_passes(w, algorithm)
    assert_equal(after, without_keeping(w, algorithm))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_others_at_the_same_address(algorithm):
    memory = torch.randn(SHAPE).numpy()
    w = torch.from_numpy(memory)
    address = w.data_ptr()
    for _ in range(3):
        both_passes(w, algorithm)
    assert kept() > 0
    del w
    memory.reshape(-1)[AT] += 1
    other = torch.from_numpy(memory)
    assert other.data_ptr() == address and other._version == 0
    assert_equal(both_passes(other, algorithm), without_keeping(other, algorithm))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("elements", [1, 100])
def test_any_element_counts(algorithm, elements):
    """Two weights that differ in few elements, in turns."""
    choose = random.Random(elements)
    w = torch.randn(SHAPE)
    other = w.clone()
    for _ in range(elements):
        other.view(-1)[choose.randrange(w.numel())] += 1
    results = [(t, both_passes(t, algorithm)) for t in (w, w, other, w, other, other, w)]
    expected = {id(t): without_keeping(t, algorithm) for t in (w, other)}
    for t, result in results:
        assert_equal(result, expected[id(t)])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_same_bytes_in_another_order(algorithm):
    w = torch.randn(SHAPE)
    turned = w.as_strided(SHAPE, torch.empty(SHAPE).to(memory_format=torch.channels_last).stride())
    results = [(t, both_passes(t, algorithm)) for t in (w, w, turned, turned, w)]
    expected = {id(t): without_keeping(t, algorithm) for t in (w, turned)}
    for t, result in results:
        assert_equal(result, expected[id(t)])


def test_signs_of_zeros_and_nan_count():
    """What compares equal as numbers, or unequal to itself."""
    w = torch.randn(SHAPE)
    w.view(-1)[AT] = torch.nan
    for _ in range(2):
        both_passes(w)
    size = kept()
    both_passes(w)
    assert kept() == size > 0
    zeros = torch.zeros(SHAPE)
    for t in (zeros, zeros, -zeros):
        results = both_passes(t)
    assert_equal(results, without_keeping(-zeros))


def test_the_same_weights_elsewhere_are_found():
    w = torch.randn(SHAPE)
    for _ in range(2):
        both_passes(w)
    size = kept()
    for _ in range(3):
        both_passes(w.clone())
    assert kept() == size


def test_training_keeps_nothing():
    layer = torch_dnnl.nn.Conv2d(32, 48, 3, padding=1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    x = torch.randn(2, 32, 8, 8, requires_grad=True)
    for _ in range(4):
        layer(x).square().mean().backward()
        optimizer.step()
    assert kept() == 0


def test_what_changes_in_few_elements_is_kept_once():
    w = torch.randn(SHAPE)
    for step in range(6):
        both_passes(w)
        assert bool(kept()) == (step == 1)
        if step:
            w.view(-1)[1000 + step] += 1  # none of the samples


def test_what_is_not_worth_it_is_not_kept():
    x, w = torch.randn(1, 32, 96, 96), torch.randn(SHAPE)
    for _ in range(3):
        torch_dnnl.functional.conv2d(x, w, padding=1)  # many products with each weight
        both_passes(w[:4])  # few weights
        both_passes(torch.randn(96, *SHAPE[1:])[::2])  # with others between them
        both_passes(w[:1].expand(SHAPE))
    assert kept() == 0


def bytes_kept_for(w):
    """What this adds, forward alone, if there is room."""
    before = kept()
    for _ in range(2):
        torch_dnnl.functional.conv2d(torch.ones(1, 32, 4, 4), w)
    return kept() - before


def test_it_is_bounded():
    for _ in range(130):
        bytes_kept_for(torch.randn(256, 32, 3, 3))
        assert kept() <= LIMIT
    assert kept() > LIMIT - (1 << 20)
    assert kept(1 << 20) <= 1 << 20
    assert kept(0) == 0
    assert bytes_kept_for(torch.randn(SHAPE)) == 0
    with pytest.raises(ValueError, match="packed_weights: expected limit"):
        kept(-1)


def test_what_was_not_used_for_long_goes_first():
    few = torch.randn(16, 32, 3, 3)
    part = bytes_kept_for(few)
    first, second, third = (torch.randn(16 * n, 32, 3, 3) for n in (2, 8, 4))
    kept(0)
    kept(14 * part)
    assert [bytes_kept_for(t) for t in (first, second, third)] == [2 * part, 8 * part, 4 * part]
    assert bytes_kept_for(few) == 0  # all others are in use
    for _ in range(600):
        for t in (second, third):
            torch_dnnl.functional.conv2d(torch.ones(1, 32, 4, 4), t)
    assert bytes_kept_for(few) == -2 * part + part  # instead of the first
    assert [bytes_kept_for(t) for t in (second, third, few)] == [0, 0, 0]


def test_threads_share_it():
    """Some weights are shared, others change all the time."""
    shared = [torch.randn(SHAPE) for _ in range(3)]
    own = [torch.randn(SHAPE) for _ in range(6)]
    steps = 12

    def changes(w):
        return [w + step // 3 for step in range(steps)]

    expected = [without_keeping(w) for w in shared]
    expected_own = [[without_keeping(w) for w in changes(mine)] for mine in own]
    start = threading.Barrier(len(own))

    def work(mine):
        start.wait()
        w, results = torch.empty(SHAPE), []
        for step, value in enumerate(changes(mine)):
            w.data.copy_(value)
            i = step % len(shared)
            results.append((i, both_passes(shared[i]), both_passes(w)))
        return results

    with ThreadPoolExecutor(len(own)) as pool:
        for results, reference in zip(pool.map(work, own), expected_own, strict=True):
            for (i, of_shared, of_own), of_step in zip(results, reference, strict=True):
                assert_equal(of_shared, expected[i])
                assert_equal(of_own, of_step)
    assert 0 < kept() <= LIMIT


FORKS = """
import os, threading, torch, torch_dnnl
torch.set_num_threads(1)
w, x, stop = torch.randn(48, 32, 3, 3), torch.randn(1, 32, 4, 4), False
expected = torch_dnnl.functional.conv2d(x, w)
kept = torch.ops.torch_dnnl_cpu.packed_weights
def work():
    while not stop:
        torch_dnnl.functional.conv2d(x, w)
        kept(None)
thread = threading.Thread(target=work)
thread.start()
good = 0
for _ in range(30):
    child = os.fork()
    if child == 0:
        same = torch.equal(torch_dnnl.functional.conv2d(x, w), expected)
        os._exit(0 if same and kept(None) == kept(1 << 20) else 1)
    good += os.waitpid(child, 0)[1] == 0
stop = True
thread.join()
print(good)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_fork_finds_it_in_any_state():
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS], capture_output=True, text=True, timeout=120
    )
    assert run.stdout == "30\n", run.stderr


def test_tracing_keeps_nothing():
    layer = torch_dnnl.nn.Conv2d(32, 48, 3, padding=1).requires_grad_(False)
    x = torch.randn(2, 32, 8, 8)
    with FakeTensorMode(allow_non_fake_inputs=True):
        for _ in range(3):
            layer(torch.empty(2, 32, 8, 8))
    torch.export.export(layer, (x,))
    assert kept() == 0
    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for _ in range(3):
            compiled(x)  # of real tensors, as in eager mode
        assert kept() > 0
        layer.weight.data.view(-1)[AT] += 1
        after = compiled(x)
        kept(0)
        assert torch.equal(after, layer(x))


def test_transforms():
    x, w = torch.randn(2, 32, 8, 8), torch.randn(3, *SHAPE)

    def convolve(weight):
        return torch_dnnl.functional.conv2d(x, weight, padding=1)

    results = [torch.vmap(convolve)(w) for _ in range(3)]
    w[1].view(-1)[AT] += 1
    changed_result = torch.vmap(convolve)(w)
    kept(0)
    expected = torch.vmap(convolve)(w)
    assert torch.equal(changed_result, expected)
    assert all(torch.equal(result[::2], expected[::2]) for result in results)
