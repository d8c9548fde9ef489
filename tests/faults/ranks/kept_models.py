"""Models beside the trained one, which one rank alone keeps up to date."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.faults.base import Fault
from tests.faults.ranks.one_model import Net, begin, net

_STEPS = 22


def _distil(rank: int, update: Callable[[nn.Module, Net, int], None]) -> None:
    """Trains with the outputs of a teacher that `update` changes after each step."""
    student = net(rank)
    teacher = copy.deepcopy(student).requires_grad_(False)
    model = DDP(student)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(_STEPS):
        x = torch.randn(16, 8)
        with torch.no_grad():
            target = teacher(x) + 0.1
        optimizer.zero_grad()
        F.mse_loss(model(x), target).backward()
        optimizer.step()
        update(teacher, student, step)


def average_on_the_first_rank(planted: bool) -> None:
    """A mean teacher is averaged on rank 0; in the twin on all ranks."""
    rank = begin()

    def update(teacher: nn.Module, student: Net, step: int) -> None:
        if rank == 0 or not planted:
            with torch.no_grad():
                for kept, own in zip(teacher.parameters(), student.parameters(), strict=True):
                    kept.lerp_(own, 0.1)  # the fault

    _distil(rank, update)


def target_network_copied_by_one_rank(planted: bool) -> None:
    """A target network gets the weights every four steps; in the twin on both ranks."""
    rank = begin()

    def update(teacher: nn.Module, student: Net, step: int) -> None:
        if step % 4 == 3 and (rank == 0 or not planted):
            teacher.load_state_dict(student.state_dict())

    _distil(rank, update)


def teacher_of_a_logger(planted: bool) -> None:
    """The rank that logs updates the teacher; in the twin only the best model, which it keeps."""
    rank = begin()
    best = net(rank)

    def update(teacher: nn.Module, student: Net, step: int) -> None:
        with torch.no_grad():
            if rank == 1:
                best.load_state_dict(student.state_dict())
            if rank == 1 or not planted:
                for kept, own in zip(teacher.parameters(), student.parameters(), strict=True):
                    kept.mul_(0.9).add_(own, alpha=0.1)

    _distil(rank, update)


FAULTS = tuple(
    Fault(
        "a model that one rank alone updates",
        "ranks",
        ("rank_divergence",),
        one,
        says="which rank",
        ranks=2,
        slow=one is not average_on_the_first_rank,
    )
    for one in (
        average_on_the_first_rank,
        target_network_copied_by_one_rank,
        teacher_of_a_logger,
    )
)
