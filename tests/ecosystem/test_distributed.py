"""The operators on DTensors: a mesh of processes against one; and the example's training."""

import functools
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp
from distributed_cases import cases, run
from paths import ROOT

pytestmark = pytest.mark.ecosystem

EXAMPLE = str(ROOT / "examples" / "train_distributed.py")
MESHES = ((2,), (4,), (2, 2))


@functools.cache
def errors_on(mesh_shape):
    """Of every case, from one start of the processes."""
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(
            run, (mesh_shape, folder), nprocs=math.prod(mesh_shape), start_method="spawn"
        )
        with open(f"{folder}/errors.json") as file:
            return json.load(file)


@pytest.mark.parametrize(
    "mesh_shape, case",
    [
        pytest.param(shape, case.name, id=f"{'x'.join(map(str, shape))}-{case.name}")
        for shape in MESHES
        for case in cases(shape)
    ],
)
def test_a_mesh_computes_what_one_process_does(mesh_shape, case):
    assert errors_on(mesh_shape)[case] is None


def python(*command, **environment):
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize("order", ["torch.distributed.tensor, torch_dnnl", "torch_dnnl"])
def test_rules_are_there_in_any_order_of_imports(order):
    program = f"""
    import sys
    import {order}
    import torch_dnnl.functional
    if {order!r} == "torch_dnnl":
        assert "torch.distributed.tensor" not in sys.modules
        watching = len(sys.meta_path)
    from torch.distributed.tensor import DTensor
    if {order!r} == "torch_dnnl":
        assert len(sys.meta_path) == watching - 1
    import torch
    assert torch.ops.torch_dnnl.reorder.default in DTensor._op_dispatcher._custom_op_handlers
    """
    result = python("-c", textwrap.dedent(program))
    assert result.returncode == 0, result.stderr


def train(processes, *options, **environment):
    """What the first process prints. Only where one is killed, they are started again."""
    result = python(
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)),
        *("--max-restarts", str(int("--kill" in options)), EXAMPLE),
        *("--batch", "4", "--size", "48", *options),
        **environment,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def losses(output):
    """Of the steps, those that were repeated after a restart too."""
    found = re.findall(r"^step +(\d+)  loss ([\d.]+)$", output, re.MULTILINE)
    return [(int(step), float(loss)) for step, loss in found]


def test_ways_to_train_agree():
    """All have the losses of one process."""
    one = losses(train(1, "--parallel", "ddp", "--steps", "4"))
    assert [step for step, _ in one] == [0, 1, 2, 3]
    assert one[-1][1] < one[0][1]
    for processes, options in ((2, ("fsdp",)), (2, ("spatial",)), (4, ("spatial", "--rows", "2"))):
        other = losses(train(processes, "--steps", "4", "--parallel", *options))
        assert other == [(step, pytest.approx(loss, abs=2e-5)) for step, loss in one], options


def test_training_goes_on_after_a_process_died(tmp_path):
    options = ("--parallel", "spatial", "--steps", "7", "--every", "3")
    through = losses(train(2, *options))
    output = train(2, *options, "--checkpoints", str(tmp_path), "--kill", "1:5")
    before, after = (losses(part) for part in output.split("going on after 3 steps"))
    # The first process may end before it prints the last step that both made.
    assert len(before) in (4, 5) and before == through[: len(before)]
    assert after == through[3:]
    # By hand, from the last checkpoint.
    output = train(2, *options, "--checkpoints", str(tmp_path))
    assert "going on after 6 steps" in output
    assert losses(output) == through[6:]


def test_late_threads_end_no_process(tmp_path):
    """Where the example ends as Python does, about every other run fails here."""
    library = str(tmp_path / "late_threads.so")
    source = str(Path(__file__).parent / "late_threads.cpp")
    compiler = os.environ.get("CXX", "g++")
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True)
    output = train(2, "--parallel", "fsdp", "--steps", "1", LD_PRELOAD=library)
    assert [step for step, _ in losses(output)] == [0]


def test_exchanged_bytes_are_those_of_the_formula():
    output = train(4, "--bytes")
    rows = re.findall(r"^(.*\S) +(\d+) +(\d+) +(\d+) +(\d+)$", output, re.MULTILINE)
    assert len(rows) == 7
    for name, forward, expected, backward, expected_backward in rows:
        assert (forward, backward) == (expected, expected_backward), name
        assert (forward == "0") == ("1x1" in name), name


def test_tensors_that_do_not_fit_together_are_refused(tmp_path):
    """In one process: what is no rule of sharding, but a bad call."""
    program = f"""
    import torch, torch.distributed as dist
    import torch_dnnl.functional as D
    from torch.distributed.tensor import Replicate, distribute_tensor, init_device_mesh
    dist.init_process_group(
        "gloo", init_method="file://{tmp_path}/rendezvous", rank=0, world_size=1
    )
    mesh = init_device_mesh("cpu", (1,))
    image = distribute_tensor(torch.rand(1, 3, 5, 5), mesh, [Replicate()])
    weight = torch.rand(4, 3, 3, 3)
    narrow = distribute_tensor(weight[:, :2], mesh, [Replicate()])
    for other in (weight, narrow):
        try:
            D.conv2d(image, other)
        except RuntimeError as error:
            print(error)
    """
    result = python("-c", textwrap.dedent(program))
    assert result.returncode == 0, result.stderr
    mixed, channels = result.stdout.splitlines()
    assert "conv2d: expected weight to be a DTensor" in mixed
    assert "conv2d: expected" in channels


def test_cases_are_those_of_every_mesh():
    """Names, which the processes report by, are unique."""
    for shape in MESHES:
        names = [case.name for case in cases(shape)]
        assert len(names) == len(set(names)) > 70
    assert not torch.distributed.is_initialized()
