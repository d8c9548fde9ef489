"""Programs of two ranks with running statistics, or with an evaluation; and their twins."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from rank_training import PAUSE_S, STEPS, loss_of, mlp, program, train
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Slow(nn.Module):
    """A model whose evaluation takes long."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            time.sleep(PAUSE_S)
        return self.body(x)


# running statistics ---------------------------------------------------------------------------


def normalised(*layers: nn.Module) -> nn.Sequential:
    """Returns a model with these layers in it, the same on all ranks."""
    return nn.Sequential(*mlp()[:1], *layers, nn.Linear(16, 1).requires_grad_(False))


@program
def statistics_of_each_rank() -> None:
    train(DDP(normalised(nn.BatchNorm1d(16)), broadcast_buffers=False), lambda step: None)


@program
def statistics_not_averaged() -> None:
    model = normalised(nn.BatchNorm1d(16), nn.ReLU(), nn.BatchNorm1d(16))
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.01)
    model = DDP(model, broadcast_buffers=False, gradient_as_bucket_view=True)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        model(torch.randn(8, 8))


@program
def statistics_of_each_rank_in_a_convolution() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.ReLU())
            self.head = nn.Linear(24, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x[:, None]).flatten(1))

    train(DDP(Net(), broadcast_buffers=False), lambda step: None)


@program
def statistics_broadcast() -> None:
    train(DDP(normalised(nn.BatchNorm1d(16))), lambda step: None)


@program
def statistics_averaged_before_evaluation() -> None:
    model = DDP(normalised(nn.BatchNorm1d(16)), broadcast_buffers=False)
    train(model, lambda step: None)
    for buffer in model.module[1].buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer)


@program
def statistics_that_are_fixed() -> None:
    train(DDP(normalised(nn.BatchNorm1d(16).eval()), broadcast_buffers=False), lambda step: None)


# evaluation that others wait for --------------------------------------------------------------


@program
def first_rank_evaluates() -> None:
    model = DDP(mlp())

    def evaluate(step: int) -> None:
        if dist.get_rank() == 0 and step % 3 == 2:
            with torch.no_grad():
                model(torch.randn(8, 8))
            time.sleep(PAUSE_S)  # metrics, pictures

    train(model, evaluate)


@program
def last_rank_evaluates_a_copy() -> None:
    model, copy = DDP(mlp()), Slow().eval()

    @torch.inference_mode()
    def evaluate(step: int) -> None:
        if dist.get_rank() == 1 and step % 2:
            copy(torch.randn(8, 8))

    train(model, evaluate)


@program
def first_rank_evaluates_once() -> None:
    model = DDP(Slow())

    def evaluate(step: int) -> None:
        if dist.get_rank() == 0 and step == 4:
            model.eval()
            with torch.no_grad():
                for _ in range(4):
                    model.module(torch.randn(8, 8))
            model.train()

    train(model, evaluate, 12)


@program
def both_ranks_evaluate() -> None:
    model = DDP(Slow())

    def evaluate(step: int) -> None:
        if step % 3 == 2:
            model.eval()
            with torch.no_grad():
                model(torch.randn(8, 8))
            model.train()

    train(model, evaluate)


@program
def first_rank_evaluates_at_the_end() -> None:
    model = DDP(Slow())
    train(model, lambda step: None)
    if dist.get_rank() == 0:
        model.eval()
        with torch.no_grad():
            model.module(torch.randn(8, 8))


@program
def first_rank_writes() -> None:
    def write(step: int) -> None:
        if dist.get_rank() == 0 and step % 3 == 2:
            time.sleep(PAUSE_S)

    train(DDP(mlp()), write)
