"""Models beside the trained one, which one rank alone keeps up to date, or that begin unequal."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.faults.base import Fault
from tests.faults.ranks.one_model import Net, begin, net, rank_faults

_STEPS = 22


def _train(model: DDP, teacher: nn.Module, update: Callable[[int], None]) -> None:
    """Trains with the outputs of a teacher that `update` changes after each step."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for step in range(_STEPS):
        x = torch.randn(16, 8)
        with torch.no_grad():
            target = teacher(x) + 0.1
        optimizer.zero_grad()
        F.mse_loss(model(x), target).backward()
        optimizer.step()
        update(step)


def _distil(rank: int, update: Callable[[nn.Module, Net, int], None]) -> None:
    student = net(rank)
    teacher = copy.deepcopy(student).requires_grad_(False)
    _train(DDP(student), teacher, lambda step: update(teacher, student, step))


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


def _average(kept: nn.Module, model: nn.Module) -> None:
    with torch.no_grad():
        for one, own in zip(kept.parameters(), model.parameters(), strict=True):
            one.lerp_(own, 0.1)


def _with_copy(rank: int, early: bool, update: Callable[[nn.Module, nn.Module], None]) -> None:
    """Trains a model that each rank draws for itself, and calls a copy of it. `early`: the copy is
    made before the wrapper makes the ranks equal."""
    torch.manual_seed(20 + rank)
    model = Net()
    kept = copy.deepcopy(model).requires_grad_(False)
    wrapped = DDP(model)
    if not early:
        kept.load_state_dict(model.state_dict())
    _train(wrapped, kept, lambda _: update(kept, model))


def average_copied_before_the_wrapper(planted: bool) -> None:
    """A moving average begins with the values that each rank has drawn."""
    _with_copy(begin(), planted, _average)


def average_of_the_state_copied_before(planted: bool) -> None:
    """So by the state, with buffers if there are any."""

    def update(kept: nn.Module, model: nn.Module) -> None:
        for one, own in zip(kept.state_dict().values(), model.state_dict().values(), strict=True):
            one.mul_(0.9).add_(own, alpha=0.1)

    _with_copy(begin(), planted, update)


def average_with_noise_of_a_rank(planted: bool) -> None:
    """The averages begin equal in both, and those of the fault get noise of each rank's own before
    the first step."""
    rank = begin()
    student = net(rank)
    teacher = copy.deepcopy(student).requires_grad_(False)
    if planted:
        for one in teacher.parameters():
            one.add_(torch.randn_like(one) * 0.01)
    _train(DDP(student), teacher, lambda _: _average(teacher, student))


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
) + rank_faults(
    "copies of one model that never were equal",
    "rank_divergence",
    "is not equal at any step",
    average_copied_before_the_wrapper,
    average_of_the_state_copied_before,
    average_with_noise_of_a_rank,
)
