"""Tensor parallelism by hand: what ranks share must begin equal, and their parts must not."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from tests.faults.base import Fault
from tests.faults.ranks import STEPS, begin


class Split(torch.autograd.Function):
    """The same on all ranks; sums gradients."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
        gradient = gradients[0].clone()
        dist.all_reduce(gradient)
        return gradient


class Joined(torch.autograd.Function):
    """Sums what the ranks have."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0]


class Block(nn.Module):
    """A layer whose inner part each rank has a half of, and one that all have."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(16), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 16), nn.Linear(16, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = self.up(Split.apply(self.norm(x))).relu()
        result: torch.Tensor = x + self.out(Joined.apply(self.down(inner)))
        return result


class Model(nn.Module):
    """Blocks between an embedding and a head."""

    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(8, 16), nn.Linear(16, 4)
        self.blocks = nn.Sequential(*(Block() for _ in range(blocks)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.blocks(self.first(x)))
        return result


def seed_parts(model: Model, seed: int) -> None:
    """Makes the parts that a rank alone has."""
    torch.manual_seed(seed)
    for block in model.blocks:
        for layer in (block.up, block.down):
            layer.reset_parameters()


def fit(model: nn.Module) -> None:
    """Trains on the same batches on all ranks."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    numbers = torch.Generator().manual_seed(5)
    for _ in range(STEPS):
        x = torch.randn(16, 8, generator=numbers)
        optimizer.zero_grad()
        F.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
        optimizer.step()


def seeds_of_ranks_before_the_model(planted: bool) -> None:
    """The seed of a rank is set once, before all layers; the twin sets it for the parts."""
    rank = begin()
    torch.manual_seed(7 + planted * rank)
    model = Model()
    seed_parts(model, 90 + rank)
    fit(model)


def one_seed_for_all_parts(planted: bool) -> None:
    """Halves of a layer that begin equal stay so: they learn one half."""
    rank = begin()
    torch.manual_seed(7)
    model = Model()
    seed_parts(model, 90 + (not planted) * rank)
    fit(model)


def first_rank_alone_loads_weights(planted: bool) -> None:
    """The first rank loads what all ranks hold, and nothing broadcasts it; the twin's ranks have
    heads for tasks of their own on one trunk."""
    rank = begin()
    torch.manual_seed(7)
    model = Model()
    seed_parts(model, 90 + rank)
    torch.manual_seed(3)
    shared = [model.first, model.head, *(block.out for block in model.blocks)]
    if rank == 0:
        for layer in shared if planted else [model.head]:
            layer.reset_parameters()
    fit(model)


FAULTS = tuple(
    Fault(
        "parts of a model that begin wrong",
        "ranks",
        ("rank_divergence",),
        one,
        says=says,
        ranks=2,
        slow=place > 0,
    )
    for place, (one, says) in enumerate(
        (
            (seeds_of_ranks_before_the_model, "differs from the start"),
            (one_seed_for_all_parts, "hold equal parameters"),
            (first_rank_alone_loads_weights, "differs from the start"),
        )
    )
)
