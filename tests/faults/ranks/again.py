"""Programs that sum a sum over ranks again, and replicas with parameters in different orders."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.faults.ranks.one_model import STEPS, batch, begin, net, rank_faults, sgd, train

# sums that are summed again ----------------------------------------------------------------------


def _accumulate(passes: int, each: Callable[[Any], Any], last: Callable[[Any], Any]) -> None:
    """Trains with several passes per step; `each` gets the model after a pass, `last` after all."""
    model = net(begin())
    optimizer = sgd(model)
    for _ in range(STEPS):
        for _ in range(passes):
            x, y = batch()
            (F.cross_entropy(model(x), y) / passes).backward()
            each(model)
        last(model)
        optimizer.step()
        optimizer.zero_grad()


def _sum(model: Any) -> None:
    for one in model.parameters():
        dist.all_reduce(one.grad)


def _divide(model: Any) -> None:
    for one in model.parameters():
        one.grad /= dist.get_world_size()


def sums_after_each_pass(planted: bool) -> None:
    """Gradients are summed after each pass and divided after the last; the twin sums once."""
    _accumulate(
        3,
        _sum if planted else lambda model: None,
        _divide if planted else lambda model: (_sum(model), _divide(model)),
    )


def sums_of_their_data(planted: bool) -> None:
    """Two passes, by .grad.data; the twin makes a mean of each pass, which stays one."""

    def mean(model: Any) -> None:
        for one in model.parameters():
            dist.all_reduce(one.grad.data, op=dist.ReduceOp.SUM)
            if not planted:
                one.grad.data /= dist.get_world_size()

    _accumulate(2, mean, _divide if planted else lambda model: None)


def running_totals(planted: bool) -> None:
    """A total of correct answers is summed in place after each batch. The twin sums a copy of it,
    and a total of each batch, and rank 0 alone keeps one sum that the others zero."""
    model = DDP(net(begin()))
    total, kept = torch.zeros(1), torch.zeros(1)

    def count(step: int) -> None:
        x, y = batch()
        with torch.no_grad():
            right = (model.module(x).argmax(1) == y).sum()
        total.add_(right)
        dist.all_reduce(total if planted else total.clone())
        if not planted:
            kept.add_(right)
            dist.all_reduce(kept)
            if dist.get_rank():
                kept.zero_()
            loss = torch.tensor(0.0)
            loss += float(step)
            dist.all_reduce(loss)

    train(model, sgd(model), STEPS, count)


# parameters in an order of each rank -------------------------------------------------------------

_TASKS = ("tag", "parse", "link", "date")


class _Tasks(nn.Module):
    """A trunk, and a head for each task, which are made in the order of their names."""

    def __init__(self, names: list[str], bias: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU())
        self.heads = nn.ModuleDict({name: nn.Linear(24, 3, bias=bias) for name in names})
        torch.manual_seed(10 + dist.get_rank())

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        h = self.trunk(x)
        return {name: self.heads[name](h) for name in _TASKS}


def _names(planted: bool) -> list[str]:
    """As a set has them, which has another order in each process; the twin sorts it."""
    turn = dist.get_rank() * planted
    return [*_TASKS[turn:], *_TASKS[:turn]]


def _learn(model: Any, reduce: Callable[[], None] = lambda: None) -> None:
    optimizer = sgd(model)
    for _ in range(STEPS):
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        losses = [
            F.cross_entropy(out, (x[:, place] > 0).long() + place % 2)
            for place, out in enumerate(model(x).values())
        ]
        torch.stack(losses).sum().backward()
        reduce()
        optimizer.step()


def heads_of_a_set(planted: bool) -> None:
    """Heads are made in the order of a set, and wrapped."""
    begin()
    _learn(DDP(_Tasks(_names(planted))))


def heads_that_are_broadcast(planted: bool) -> None:
    """Without a wrapper: parameters are broadcast and gradients averaged one after the other."""
    begin()
    model = _Tasks(_names(planted), bias=False)
    for one in model.parameters():
        dist.broadcast(one.data, 0)

    def reduce() -> None:
        for one in model.parameters():
            dist.all_reduce(one.grad)
            one.grad /= dist.get_world_size()

    _learn(model, reduce)


def heads_added_as_they_are_found(planted: bool) -> None:
    """Heads are added one by one, and their order is that of the seed; the twin's ranks name them
    alike, but call them in other orders."""
    begin()
    model = _Tasks([])
    torch.manual_seed(3)
    for name in _names(planted):
        model.heads[name] = nn.Linear(24, 3)
    torch.manual_seed(10 + dist.get_rank())

    def forward(x: torch.Tensor) -> dict[str, torch.Tensor]:
        h = model.trunk(x)
        order = _TASKS if dist.get_rank() else _TASKS[::-1]
        outs = {name: model.heads[name](h) for name in order}
        return {name: outs[name] for name in _TASKS}

    model.forward = forward
    _learn(DDP(model))


FAULTS = (
    *rank_faults(
        "sums over ranks that are summed again",
        "wrong_gradient",
        "again",
        sums_after_each_pass,
        sums_of_their_data,
        running_totals,
    ),
    *rank_faults(
        "replicas with their parameters in different orders",
        "rank_divergence",
        "the same parameters in different orders",
        heads_of_a_set,
        heads_that_are_broadcast,
        heads_added_as_they_are_found,
    ),
)
