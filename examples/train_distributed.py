"""Trains a small U-Net that takes noise out of images, on several processes, in one of three ways.

    ddp       every process has the network and a part of the batch; gradients are summed
    fsdp      the same with FSDP2: every process has a part of each parameter, too
    spatial   every process has some rows of each image, for images that are too large for one: the
              network's tensors are DTensors, whose convolutions and resizing exchange the rows that
              kernels reach. With --rows below the number of processes, the batch is cut as well

The losses are those of one process in all of them. Checkpoints are torch.distributed.checkpoint's;
a run that is started again, by hand or by torchrun after a process died, goes on from the last one.

    torchrun --nproc-per-node 2 examples/train_distributed.py --parallel spatial
    torchrun --nproc-per-node 4 examples/train_distributed.py --parallel spatial --rows 2
    torchrun --nproc-per-node 2 --max-restarts 1 examples/train_distributed.py --kill 1:13
    torchrun --nproc-per-node 4 examples/train_distributed.py --bytes    # what the exchange takes
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import (
    DTensor,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
    init_device_mesh,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from torch_dnnl.functional import conv_transpose2d, convolution, resample
from torch_dnnl.nn import Conv2d, Resample

WIDTH = 8  # channels at the full resolution
LEARNING_RATE = 3e-3
NOISE = 0.3


class UNet(nn.Module):
    """[N, 3, H, W] -> [N, 3, H, W]: one level down and up; H and W are even."""

    def __init__(self) -> None:
        super().__init__()

        def conv(inputs: int, outputs: int, **options) -> nn.Module:
            return Conv2d(inputs, outputs, 3, padding="same_upper", **options)

        self.stem = nn.Sequential(conv(3, WIDTH), nn.SiLU())
        self.down = nn.Sequential(
            conv(WIDTH, 2 * WIDTH, stride=2),
            nn.SiLU(),
            Conv2d(2 * WIDTH, 2 * WIDTH, 3, padding=3, dilation=3),
            nn.SiLU(),
            Resample(scale_factor=2),
        )
        self.head = nn.Sequential(conv(3 * WIDTH, WIDTH), nn.SiLU(), conv(WIDTH, 3))

    def forward(self, image: Tensor) -> Tensor:
        x = self.stem(image)
        return image + self.head(torch.cat([x, self.down(x)], 1))


def draw_images(args: argparse.Namespace, step: int) -> tuple[Tensor, Tensor]:
    """Smooth images with noise, and without: those of a step are the same in every process."""
    rng = torch.Generator().manual_seed(args.seed * 1_000_003 + step)
    coarse = torch.rand(args.batch, 3, args.size // 8, args.size // 8, generator=rng)
    clean = resample(coarse, (args.size, args.size), mode="cubic")
    return clean + NOISE * torch.randn(clean.shape, generator=rng), clean


class Training:
    """A network in training: what the ways differ in is how it and the images are spread."""

    def __init__(self, args: argparse.Namespace) -> None:
        world = dist.get_world_size()
        torch.manual_seed(args.seed)
        self.args, self.network = args, UNet()
        self.is_spatial = args.parallel == "spatial"
        self.forward: Callable[[Tensor], Tensor] = self.network
        if self.is_spatial:
            rows = args.rows or world
            self.mesh = init_device_mesh(
                "cpu", (world // rows, rows), mesh_dim_names=("batch", "rows")
            )
            self.mesh._flatten()  # so that a sum over both dimensions is one sum
            distribute_module(self.network, self.mesh)
            for parameter in self.network.parameters():
                parameter.register_post_accumulate_grad_hook(complete_sum)
        elif args.parallel == "fsdp":
            fully_shard(self.network, mesh=init_device_mesh("cpu", (world,)))
        elif args.parallel == "ddp":
            self.forward = DistributedDataParallel(self.network)
        self.optimizer = torch.optim.AdamW(self.network.parameters(), lr=LEARNING_RATE)

    def spread(self, images: Tensor) -> Tensor:
        """This process's part of what all processes have."""
        if self.is_spatial:
            # Nothing is sent: every process has the images.
            return distribute_tensor(images, self.mesh, [Shard(0), Shard(2)], src_data_rank=None)
        return images.chunk(dist.get_world_size())[dist.get_rank()]

    def step(self, images: Tensor, clean: Tensor) -> float:
        difference = self.forward(self.spread(images)) - self.spread(clean)
        loss = difference.square().sum() / clean.numel()
        self.optimizer.zero_grad()
        if self.is_spatial:
            loss.backward()
            loss = loss.full_tensor()
        else:
            # DDP and FSDP give the mean of the gradients, ours are parts of a sum.
            (loss * dist.get_world_size()).backward()
            dist.all_reduce(loss.detach_())
        self.optimizer.step()
        return loss.item()


def complete_sum(parameter: Tensor) -> None:
    """Sums a gradient over the processes once, not in every use that the optimizer makes of it."""
    assert isinstance(parameter.grad, DTensor)
    parameter.grad = parameter.grad.redistribute(
        placements=[Replicate()] * parameter.grad.device_mesh.ndim
    )


class Checkpoints:
    """Folders named by the number of steps that were done."""

    def __init__(self, folder: str, training: Training) -> None:
        self.folder, self.training = Path(folder), training

    def state(self) -> dict[str, Any]:
        network, optimizer = get_state_dict(self.training.network, self.training.optimizer)
        return {"network": network, "optimizer": optimizer}

    def save(self, steps: int) -> None:
        dcp.save(self.state(), checkpoint_id=self.folder / f"{steps:06}")

    def load(self) -> int:
        """Goes on from the last complete one; how many steps were done."""
        # What a checkpoint consists of is written last.
        complete = sorted(self.folder.glob("*/.metadata"))
        if not complete:
            return 0
        state = self.state()
        dcp.load(state, checkpoint_id=complete[-1].parent)
        set_state_dict(
            self.training.network,
            self.training.optimizer,
            model_state_dict=state["network"],
            optim_state_dict=state["optimizer"],
        )
        return int(complete[-1].parent.name)


def train(args: argparse.Namespace) -> None:
    training = Training(args)
    checkpoints = Checkpoints(args.checkpoints, training) if args.checkpoints else None
    done = checkpoints.load() if checkpoints else 0
    is_first, is_first_start = dist.get_rank() == 0, restarts() == "0"
    if is_first and done:
        print(f"going on after {done} steps", flush=True)
    for step in range(done, args.steps):
        if is_first_start and args.kill == f"{dist.get_rank()}:{step}":
            os.kill(os.getpid(), signal.SIGKILL)
        loss = training.step(*draw_images(args, step))
        if is_first:
            print(f"step {step:3}  loss {loss:.6f}", flush=True)
        if checkpoints and (step + 1) % args.every == 0:
            checkpoints.save(step + 1)


class ExchangedBytes(TorchDispatchMode):
    """Counts what this process sends to others for rows that they need."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented  # this comes again, as what DTensor makes of it
        if func is torch.ops._c10d_functional.all_to_all_single.default:
            self.sent += args[0].numel() * args[0].element_size()
        return func(*args, **(kwargs or {}))


def exchanged_by_all(mode: ExchangedBytes) -> int:
    total = torch.tensor(mode.sent)
    dist.all_reduce(total)
    return int(total)


def rows_of_gradient(reach: int, stride: int, pad: int) -> int:
    """Rows of a result on both sides of a border that read rows of the source beyond it."""
    return (pad - 1) // stride + (reach - 1 - pad) // stride + 1


def print_bytes(args: argparse.Namespace) -> None:
    """What the exchange sends for single layers, counted and as docs/distributed.md has it."""
    processes = dist.get_world_size()
    mesh = init_device_mesh("cpu", (processes,))
    batch, channels, size = args.batch, WIDTH, args.size

    def layer(kernel: int, stride: int, dilation: int = 1) -> Callable[[Tensor], Tensor]:
        weights = torch.rand(channels, channels, kernel, kernel)
        weights = distribute_tensor(weights, mesh, [Replicate()]).requires_grad_()
        formats = {"data_format": "NCX", "weights_format": "OIX", "auto_pad": "same_upper"}
        return lambda x: convolution(x, weights, strides=stride, dilations=dilation, **formats)

    # The layer; and how many rows go over each border between two processes: in the forward pass,
    # and in the backward pass of the source and of the result's gradient.
    cases: dict[str, tuple[Callable[[Tensor], Tensor], int, int, int]] = {}
    for kernel, stride, dilation in ((1, 1, 1), (3, 1, 1), (3, 2, 1), (5, 2, 1), (3, 1, 4)):
        name = f"convolution {kernel}x{kernel}, stride {stride}, dilation {dilation}"
        reach = (kernel - 1) * dilation + 1
        rows = reach - stride
        call = layer(kernel, stride, dilation)
        cases[name] = (call, rows, rows, rows_of_gradient(reach, stride, rows // 2))
    weights = distribute_tensor(torch.rand(channels, channels, 4, 4), mesh, [Replicate()])
    weights.requires_grad_()
    name = "transposed convolution 4x4, stride 2"
    call = partial(conv_transpose2d, weight=weights, stride=2, padding=1)
    cases[name] = (call, rows_of_gradient(4, 2, 1), 0, 2 * (4 - 2))
    cases["resample to twice the size, linear"] = (lambda x: resample(x, scale_factor=2), 2, 0, 2)

    if dist.get_rank() == 0:
        print(f"{'bytes, all processes together':44}{'forward':>9}{'formula':>9}", end="")
        print(f"{'backward':>10}{'formula':>9}")
    for name, (call, rows, rows_again, grad_rows) in cases.items():
        image = torch.rand(batch, channels, size, size)
        src = distribute_tensor(image, mesh, [Shard(2)], src_data_rank=None).requires_grad_()
        with ExchangedBytes() as forward:
            result = call(src)
        with ExchangedBytes() as backward:
            result.backward(torch.ones_like(result))
        per_pixel = (processes - 1) * batch * channels * 4
        expected = per_pixel * size * rows
        expected_backward = per_pixel * (size * rows_again + result.shape[3] * grad_rows)
        counted = exchanged_by_all(forward), exchanged_by_all(backward)
        if dist.get_rank() == 0:
            print(f"{name:44}{counted[0]:9}{expected:9}{counted[1]:10}{expected_backward:9}")


def restarts() -> str:
    """How often torchrun has started this process again."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def start_process_group() -> None:
    """Of the processes that torchrun started."""
    timeout = timedelta(seconds=60)
    # The store outlives them: what those of the last start wrote there is not for these.
    store, rank, world = next(rendezvous("env://", timeout=timeout))
    store = dist.PrefixStore(f"start {restarts()}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timeout)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train a U-Net on several processes.")
    parser.add_argument("--parallel", choices=("ddp", "fsdp", "spatial"), default="spatial")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--size", type=int, default=64, help="of the images, a multiple of 8")
    parser.add_argument(
        "--rows", type=int, help="processes that an image is cut among; all of them"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--checkpoints", help="a folder for them")
    parser.add_argument("--every", type=int, default=5, help="steps from a checkpoint to the next")
    parser.add_argument("--kill", help="RANK:STEP, to see that training goes on after a restart")
    parser.add_argument("--bytes", action="store_true", help="count what is exchanged, and stop")
    args = parser.parse_args(arguments)
    start_process_group()
    torch.set_num_threads(1)
    if args.bytes:
        print_bytes(args)
    else:
        train(args)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    # Without Python's end: torch's caches keep meshes, and these Gloo's threads. One that lets go
    # of its last tensor while Python ends aborts the process (pytorch/pytorch#179291).
    sys.stdout.flush()
    os._exit(0)
