"""Process groups that some ranks make and others do not, or in another order."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.faults.base import Fault
from tests.faults.ranks import limited, net, sgd, train

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


FAULTS = tuple(
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
)
