"""What programs of two ranks train, and the list of these programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

STEPS = 8
PAUSE_S = 0.15
PROGRAMS: dict[str, Callable[[], None]] = {}


def program(function: Callable[[], None]) -> Callable[[], None]:
    """Adds a program under its name."""
    PROGRAMS[function.__name__] = function
    return function


def mlp(width: int = 16) -> nn.Sequential:
    """Returns two layers, the same on all ranks."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 1))
    torch.manual_seed(1 + dist.get_rank())
    return model


def loss_of(model: nn.Module) -> torch.Tensor:
    """Returns the loss of a batch of this rank's own."""
    x = torch.randn(16, 8)
    return F.mse_loss(model(x), x.sum(1, keepdim=True))


def train(model: nn.Module, each: Callable[[int], Any], steps: int = STEPS) -> None:
    """Trains with one backward per step, and calls `each` after every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        each(step)


def train_parts(out_of: Callable[[torch.Tensor], torch.Tensor], own: list[Any], clip: Any) -> None:
    """Trains the parameters of each rank on the same batches."""
    same = torch.Generator().manual_seed(3)
    optimizer = torch.optim.SGD(own, lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(16, 8, generator=same)
        F.mse_loss(out_of(x), 5 * x.sum(1, keepdim=True)).backward()
        clip(own)
        optimizer.step()
