"""A training on several ranks whose step one cause makes longer; `without` leaves the cause out.

    torchrun --nproc-per-node 2 planted_causes.py delay|operator|loader|bucket with|without

Work is mostly sleeps of tens of milliseconds, which a busy machine lengthens little.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEPS = 20
BATCH = 4

LARGE_BUCKET_MB = 1000
SMALL_BUCKET_MB = 4

_library = torch.library.Library("planted", "DEF")
_library.define("work(Tensor x, float seconds) -> Tensor")


def _work(x: torch.Tensor, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return x.clone()


_library.impl("work", _work, "CPU")


class Slow(torch.autograd.Function):
    """Hands its input on, and takes its time in forward and in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: float, backward: float) -> torch.Tensor:
        ctx.seconds = backward
        return torch.ops.planted.work(x, forward)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return torch.ops.planted.work(grads[0], ctx.seconds), None, None


class Layers(nn.Module):
    """Linear layers, each before an operator that takes given times (s)."""

    def __init__(self, width: int, layers: int, seconds: tuple[float, float]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = Slow.apply(layer(x), *self.seconds)
        return x


class Samples(Dataset[torch.Tensor]):
    """Rows of numbers; each takes `seconds` to fetch."""

    def __init__(self, width: int, seconds: float) -> None:
        self.width, self.seconds = width, seconds

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.seconds:
            time.sleep(self.seconds)
        return torch.full((self.width,), float(index))


def main(cause: str, planted: bool) -> None:
    """Trains for STEPS steps."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    width, layers, bucket = 32, 2, None
    if cause == "bucket":
        width, layers = 1024, 8  # 4 MiB of gradients a layer
        bucket = LARGE_BUCKET_MB if planted else SMALL_BUCKET_MB
    seconds = (0.0, 0.04) if cause == "bucket" else (0.01, 0.01)
    if cause == "operator" and planted:
        seconds = (0.02, 0.02)
    model = DistributedDataParallel(Layers(width, layers, seconds), bucket_cap_mb=bucket)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    samples = Samples(width, 0.015 if cause == "loader" and planted else 0.0)
    for x in DataLoader(samples, batch_size=BATCH):
        torch.ops.planted.work(x, 0.03 if cause != "operator" else 0.0)
        if cause == "delay" and planted and rank == 1:
            time.sleep(0.06)
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    # torch waits for ever, in one of 14 unrecorded runs, if the model frees the process group while
    # the group's own thread frees its last work: each needs what the other has (Python's lock).
    time.sleep(0.1)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] == "with")
