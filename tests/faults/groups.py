"""Process groups that some ranks make and others do not, and calls of groups of others."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.faults.base import Fault
from tests.faults.ranks import batch, begin, limited, net, sgd, train

LIMIT = timedelta(seconds=3)


def begun() -> int:
    """Trains two steps; returns the rank."""
    rank = limited()
    model = DDP(net(rank))
    train(model, sgd(model), 2)
    return rank


def group(ranks: list[int]) -> Any:
    """A group that gives up soon."""
    return dist.new_group(ranks, timeout=LIMIT)


def group_made_by_one_member(planted: bool) -> None:
    """Only the first rank makes the group in which losses are to be summed."""
    rank = begun()
    if rank == 0 or not planted:
        dist.all_reduce(torch.ones(1), group=group([0, 1]))
    dist.barrier()


def group_behind_a_flag(planted: bool) -> None:
    """A flag of the command line reaches one rank alone; the other waits at a reduction."""
    rank = begun()
    metrics = group([0, 1]) if rank == 1 or not planted else dist.group.WORLD
    dist.all_reduce(torch.ones(2), group=metrics)


def groups_in_another_order(planted: bool) -> None:
    """The ranks make the same groups, each its own one first."""
    rank = begun()
    order = [[rank], [0, 1]] if planted and rank else [[0, 1], [rank]]
    made = {len(ranks): group(ranks) for ranks in order}
    dist.all_reduce(torch.ones(3), group=made[2])


def averaged_outside_of_the_group(planted: bool) -> None:
    """Gradients are averaged within a group that the second rank is not in."""
    model = net(begin())
    ranks = dist.new_group([0] if planted else [0, 1])
    optimizer = sgd(model)
    for _ in range(4):
        x, y = batch()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, group=ranks)  # named
        optimizer.step()


def broadcast_outside_of_the_group(planted: bool) -> None:
    """Weights are sent to those that are not in the group; the twin asks who is."""
    rank = begin()
    first = dist.new_group([0])
    for parameter in net(rank).parameters():
        if planted or rank == 0:
            dist.broadcast(parameter.data, 0, group=first)  # named


def metrics_outside_of_the_group(planted: bool) -> None:
    """A metric is collected in the group of one rank; the twin's first rank is alone in it."""
    rank = begin()
    groups = [dist.new_group([one]) for one in range(2)]
    total = net(rank).head.weight.detach().sum().reshape(1)
    parts = [torch.zeros(1)]
    dist.all_gather(parts, total, group=groups[0 if planted else rank])  # named


FAULTS = (
    *(
        Fault(
            "groups that not all ranks make",
            "ranks",
            ("collective_mismatch",),
            form,
            says="was not made by all ranks",
            ranks=2,
            slow=True,
        )
        for form in (group_made_by_one_member, group_behind_a_flag, groups_in_another_order)
    ),
    *(
        Fault(
            "calls of a group that a rank is not in",
            "ranks",
            ("collective_mismatch",),
            form,
            says="the call does nothing there",
            ranks=2,
            slow=form is not broadcast_outside_of_the_group,
        )
        for form in (
            averaged_outside_of_the_group,
            broadcast_outside_of_the_group,
            metrics_outside_of_the_group,
        )
    ),
)
