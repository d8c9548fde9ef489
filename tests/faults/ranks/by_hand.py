"""Programs that make groups, sum gradients and split layers by hand, and leave something out."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.faults.base import Fault, Program
from tests.faults.ranks.one_model import STEPS, Net, batch, begin, net, rank_faults, sgd, train
from tests.faults.ranks.parts import Parts

# groups that their members alone make ------------------------------------------------------------


def metrics_of_two_ranks(planted: bool) -> None:
    """The ranks that evaluate have a group for it; the twin's third rank makes it as well."""
    rank = begin()
    members = [0, 1]
    group = None
    if rank in members or not planted:
        group = dist.new_group(members)
    model = DDP(net(rank))
    train(model, sgd(model), 4)
    if rank in members:
        dist.all_reduce(torch.ones(2), group=group)


class Leaders:
    """The group of every second rank, for logging."""

    def __init__(self, local: bool) -> None:
        self.ranks = list(range(0, dist.get_world_size(), 2))
        self.member = dist.get_rank() in self.ranks
        if self.member:
            self.group = dist.new_group(self.ranks, use_local_synchronization=local)

    def log(self, value: torch.Tensor) -> None:
        if self.member:
            dist.all_reduce(value, group=self.group)


def leaders_that_log(planted: bool) -> None:
    """So in a class; the twin's group waits for its members alone."""
    rank = begin()
    leaders = Leaders(local=not planted)
    model = DDP(net(rank))
    train(model, sgd(model), 4, lambda step: leaders.log(torch.ones(1)))


def pairs_of_ranks(planted: bool) -> None:
    """Each rank makes the pair that it is in, the last one none; the twin makes all pairs, and a
    group of each rank for itself."""
    rank = begin()
    pairs = [[first, first + 1] for first in range(0, dist.get_world_size() - 1, 2)]
    made = [dist.new_group(ranks) for ranks in pairs if not planted or rank in ranks]
    if not planted:
        dist.new_group([rank])
    model = net(rank)
    train(model, sgd(model), 4)
    if rank in pairs[0]:
        dist.all_reduce(torch.ones(1), group=made[0])


# gradients that are summed: information, as some mean it (test_summed_gradients.py) ---------


def _fit(model: Any, reduce: Any, optimizer: Any = None) -> None:
    optimizer = optimizer or sgd(model)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    for _ in range(STEPS):
        x, y = batch()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        reduce(model)
        optimizer.step()


def summed_one_by_one(planted: bool) -> None:
    """Each gradient is summed, and divided in the twin."""

    def reduce(model: nn.Module) -> None:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)  # named
            if not planted:
                parameter.grad /= dist.get_world_size()

    _fit(net(begin()), reduce)


def summed_as_one(planted: bool) -> None:
    """All gradients are summed as one vector, and the twin takes their mean before."""

    def reduce(model: nn.Module) -> None:
        own = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        flat = nn.utils.parameters_to_vector(own)
        if not planted:
            flat /= dist.get_world_size()
        dist.all_reduce(flat)  # named
        nn.utils.vector_to_parameters(flat, own)

    _fit(net(begin()), reduce)


def summed_by_adam(planted: bool) -> None:
    """Steps of Adam, the twin's, are as large with a sum."""
    model = net(begin())

    def reduce(model: nn.Module) -> None:
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)  # named

    _fit(model, reduce, sgd(model) if planted else torch.optim.Adam(model.parameters()))


def summed_losses(planted: bool) -> None:
    """The twin's loss is divided by the number of samples of all ranks."""
    model = net(begin())
    optimizer = sgd(model)
    for _ in range(STEPS):
        x, y = batch()
        optimizer.zero_grad()
        if planted:
            loss = F.cross_entropy(model(x), y)
        else:
            loss = F.cross_entropy(model(x), y, reduction="sum") / (len(x) * 2)
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)  # named
        optimizer.step()


# parts of a model that nothing adds up -----------------------------------------------------------


class Halves(Parts):
    """Adds up what the parts compute, or forgets to."""

    def __init__(self, rank: int, adds: bool) -> None:
        super().__init__(rank)
        self.adds = adds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.adds:
            return super().forward(x)
        out: torch.Tensor = self.outer(self.rows(self.columns(self.inner(x)).relu()))
        return out


def _fit_parts(model: nn.Module, logs: bool = False) -> None:
    optimizer = sgd(model, 0.1)
    numbers = torch.Generator().manual_seed(9)
    for _ in range(STEPS):
        x = torch.randn(16, 8, generator=numbers)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), (x.sum(1) > 0).long())
        loss.backward()
        optimizer.step()
        if logs:
            dist.all_reduce(loss.detach().clone())


def halves_without_a_sum(planted: bool) -> None:
    """Both halves of a layer go on with their own result."""
    _fit_parts(Halves(begin(), adds=not planted))


def halves_whose_loss_is_logged(planted: bool) -> None:
    """So, and the mean of the losses is logged; the twin's ranks have heads of their own."""
    rank = begin()
    if planted:
        _fit_parts(Halves(rank, adds=False), logs=True)
        return
    model = net(rank)
    model.head.reset_parameters()
    _fit_parts(model, logs=True)


def experts_that_are_not_joined(planted: bool) -> None:
    """Each rank has an expert, whose results are to be added up; the twin trains an ensemble, whose
    members have nothing in common."""
    rank = begin()
    torch.manual_seed(0 if planted else rank)
    model = Net()
    torch.manual_seed(20 + rank)
    model.middle = nn.Linear(32, 32)
    torch.manual_seed(5)
    _fit_parts(model)


def _in_three(*programs: Program) -> tuple[Fault, ...]:
    return tuple(
        Fault(
            "groups that their members alone make",
            "ranks",
            ("collective_mismatch",),
            one,
            says="groups are numbered in the order",
            ranks=3,
            slow=place > 0,
        )
        for place, one in enumerate(programs)
    )


FAULTS = (
    *_in_three(metrics_of_two_ranks, leaders_that_log, pairs_of_ranks),
    *rank_faults(
        "parts of a model that nothing adds up",
        "rank_divergence",
        "is not added up",
        halves_without_a_sum,
        halves_whose_loss_is_logged,
        experts_that_are_not_joined,
    ),
)
