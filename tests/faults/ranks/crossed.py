"""Models of two ranks whose passes reach other parameters, and that reduce by hand what they have:
gradients of different parameters are added up."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from tests.faults.ranks.one_model import begin, rank_faults, sgd

_STEPS = 12


class _Branches(nn.Module):
    """Branches of one shape; each batch takes one."""

    def __init__(self, count: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.branches = nn.ModuleList(nn.Linear(8, 8) for _ in range(count))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, taken: int) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.relu(self.branches[taken](x)))
        return out


def _train(count: int, planted: bool, choose: Callable[[int, int], int]) -> None:
    rank = begin()
    model = _Branches(count)
    optimizer = sgd(model, 0.05)
    torch.manual_seed(10 + rank)
    for step in range(_STEPS):
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        F.cross_entropy(model(x, choose(step, rank)), x[:, :3].argmax(1)).backward()
        for one in model.parameters():
            if one.grad is None and not planted:
                one.grad = torch.zeros_like(one)
            if one.grad is not None:
                dist.all_reduce(one.grad)
                one.grad /= 2
        optimizer.step()


def experts_by_turns(planted: bool) -> None:
    """Each batch goes to an expert; that of the other rank to another one."""
    _train(3, planted, lambda step, rank: (step + rank) % 3)


def layers_dropped_at_random(planted: bool) -> None:
    """Each rank draws its path."""
    paths = [(0, 3), (2, 1), (1, 0), (3, 2), (0, 1), (1, 2)]
    _train(4, planted, lambda step, rank: paths[step % len(paths)][rank])


def tasks_of_each_rank(planted: bool) -> None:
    """The ranks take other tasks, each with a layer of its own."""
    _train(2, planted, lambda step, rank: rank)


FAULTS = rank_faults(
    "gradients of other parameters that are added up",
    "rank_divergence",
    "Each rank reduces the gradients that it has",
    experts_by_turns,
    layers_dropped_at_random,
    tasks_of_each_rank,
)
