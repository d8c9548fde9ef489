"""Ranks with parts of one model that sum what these return, and not the gradients before them; or
that scale gradients each by a number of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from tests.faults.ranks.one_model import begin, rank_faults, sgd

_STEPS, _WIDTH = 12, 16


class _SumForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return _all(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class _SumBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return _all(grad)


def _all(x: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    dist.all_reduce(x)
    return x


class _Split(nn.Module):
    """What all ranks hold, before and behind a part of this rank."""

    def __init__(self, part: nn.Module, planted: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.planted = planted
        self.before, self.head = nn.Linear(8, _WIDTH), nn.Linear(_WIDTH, 4)
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.before(x)
        own = h if self.planted else _SumBackward.apply(h)
        out: torch.Tensor = self.head(h + _SumForward.apply(self.part(own)))
        return out


def _train(part: nn.Module, planted: bool) -> None:
    model = _Split(part, planted)
    optimizer = sgd(model, 0.05)
    torch.manual_seed(7)
    for _ in range(_STEPS):
        x = torch.randn(64, 8)
        optimizer.zero_grad()
        F.cross_entropy(model(x), (x.sum(1) > 0).long()).backward()
        optimizer.step()


def columns_and_rows(planted: bool) -> None:
    """A feed-forward block is split by its columns, then by its rows."""
    torch.manual_seed(10 + begin())
    part = nn.Sequential(
        nn.Linear(_WIDTH, 2 * _WIDTH), nn.ReLU(), nn.Linear(2 * _WIDTH, _WIDTH, bias=False)
    )
    _train(part, planted)


class _Gated(nn.Module):
    """Each rank has some of the heads."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.value = nn.Linear(_WIDTH, 8), nn.Linear(_WIDTH, 8)
        self.out = nn.Linear(8, _WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.out(self.gate(x).sigmoid() * self.value(x))
        return made


def heads_of_each_rank(planted: bool) -> None:
    """Gated heads are shared out."""
    torch.manual_seed(20 + begin())
    _train(_Gated(), planted)


def experts_of_each_rank(planted: bool) -> None:
    """Each rank has an expert, and the results of all are added up."""
    torch.manual_seed(30 + begin())
    _train(nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.Tanh(), nn.Linear(_WIDTH, _WIDTH)), planted)


class _Normed(nn.Module):
    """A layer norm before the part of this rank is all that comes before it."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted, self.norm = planted, nn.LayerNorm(8)
        self.own = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm(x)
        out: torch.Tensor = x + _SumForward.apply(
            self.own(h if self.planted else _SumBackward.apply(h))
        )
        return out


def norms_before_a_part(planted: bool) -> None:
    """What all ranks hold begins with ones and zeros, as layer norms do."""
    torch.manual_seed(40 + begin())
    model = _Normed(planted)
    optimizer = sgd(model, 0.05)
    torch.manual_seed(7)
    for _ in range(_STEPS):
        x = torch.randn(64, 8)
        optimizer.zero_grad()
        F.mse_loss(model(x), x.flip(1)).backward()
        optimizer.step()


def _scaled(planted: bool, factor: Callable[[nn.Module, bool], torch.Tensor | float]) -> None:
    """Scales all gradients of a rank by one factor before each step."""
    torch.manual_seed(50 + begin())
    part = nn.Sequential(nn.Linear(_WIDTH, 8), nn.ReLU(), nn.Linear(8, _WIDTH, bias=False))
    model = _Split(part, planted=False)
    optimizer = sgd(model, 0.05)
    torch.manual_seed(7)
    for _ in range(_STEPS):
        x = torch.randn(64, 8)
        optimizer.zero_grad()
        F.cross_entropy(model(x), (x.sum(1) > 0).long()).backward()
        by = factor(model, planted)
        for p in model.parameters():
            assert p.grad is not None
            p.grad *= by
        optimizer.step()


def _squares(model: nn.Module, planted: bool) -> torch.Tensor:
    """Of the whole model, or of what this rank holds."""
    own, held = torch.zeros(()), torch.zeros(())
    for name, p in model.named_parameters():
        assert p.grad is not None
        (own if name.startswith("part") else held).add_(p.grad.square().sum())
    return held + (own if planted else _all(own))


def clipped_by_what_a_rank_holds(planted: bool) -> None:
    """The norm by which a rank clips lacks the parts of the other ranks."""
    _scaled(planted, lambda m, p: (0.05 / _squares(m, p).sqrt()).clamp(max=1.0))


def normalised_by_what_a_rank_holds(planted: bool) -> None:
    """Each step is of one length, by the norm of what a rank holds."""
    _scaled(planted, lambda m, p: _squares(m, p).rsqrt() * 0.1)


def divided_by_a_count_of_each_rank(planted: bool) -> None:
    """Gradients are divided by how many units of its own part a rank finds in use."""

    def used(model: nn.Module, planted: bool) -> torch.Tensor:
        weight = model.get_parameter("part.0.weight")
        assert weight.grad is not None
        count = (weight.abs() > 0.1).sum().float()
        return 10 / (count if planted else _all(count))

    _scaled(planted, used)


FAULTS = rank_faults(
    "parts that each rank scales by a number of its own",
    "rank_divergence",
    "scale",
    clipped_by_what_a_rank_holds,
    normalised_by_what_a_rank_holds,
    divided_by_a_count_of_each_rank,
) + rank_faults(
    "parts whose gradients are not summed before them",
    "rank_divergence",
    "and nothing in backward",
    columns_and_rows,
    heads_of_each_rank,
    experts_of_each_rank,
    norms_before_a_part,
)
