"""Two ranks with one model, where one changes parameters, or each adds to gradients, on its own."""

from __future__ import annotations

import copy
import io
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.faults.ranks.one_model import STEPS, batch, begin, net, rank_faults, sgd, train

_STEPS = 24


@torch.no_grad()
def _mix(into: nn.Module, from_: nn.Module, share: float) -> None:
    for one, other in zip(into.parameters(), from_.parameters(), strict=True):
        one.copy_(one.lerp(other, share))


def average_taken_back(planted: bool) -> None:
    """The average of the weights replaces them now and then, on the first rank or on both."""
    rank = begin()
    model = net(rank)
    wrapped, average = DDP(model), copy.deepcopy(model)

    def each(step: int) -> None:
        if planted and rank:
            return
        _mix(average, model, 0.1)
        if step % 10 == 9:
            _mix(model, average, 1.0)

    train(wrapped, sgd(wrapped), _STEPS, each)


def weights_loaded_by_one_rank(planted: bool) -> None:
    """A state is loaded after the model was wrapped, on the first rank or on both."""
    rank = begin()
    model, file = net(rank), io.BytesIO()
    torch.save({name: 0.9 * one for name, one in model.state_dict().items()}, file)
    wrapped = DDP(model)
    file.seek(0)
    if rank == 0 or not planted:
        model.load_state_dict(torch.load(file))
    train(wrapped, sgd(wrapped))


def head_kept_small_by_one_rank(planted: bool) -> None:
    """Gradients are summed by hand. The rank that logs keeps the head's weights in bounds; both
    do in the twin."""
    rank = begin()
    model = net(rank)
    optimizer = sgd(model, 0.02)
    for step in range(_STEPS):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        if step > 5 and (rank == 1 or not planted):
            model.head.weight.data.clamp_(-0.1, 0.1)


def weights_decayed_by_one_rank(planted: bool) -> None:
    """By hand. The twin's ranks train apart, and take a part of each other's weights each time."""
    rank = begin()
    model = net(rank)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)

    def each(step: int) -> None:
        if planted and rank:
            model.head.weight.data.mul_(0.99)
        if planted:
            return
        weights = nn.utils.parameters_to_vector(model.parameters()).detach()
        others = torch.empty_like(weights)
        sent = dist.isend(weights, 1 - rank)
        dist.recv(others, 1 - rank)
        sent.wait()
        nn.utils.vector_to_parameters(weights.lerp(others, 0.3), model.parameters())

    train(DDP(model) if planted else model, sgd(model), each=each)


def first_pass_reduces(planted: bool) -> None:
    """The condition of no_sync() is off by one."""
    model = DDP(net(begin()))
    optimizer = sgd(model, 0.1)
    for number in range(4 * STEPS):
        x, y = batch()
        reduces = number % 4 == (0 if planted else 3)
        with nullcontext() if reduces else model.no_sync():
            F.cross_entropy(model(x), y).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


def penalty_without_reduction(planted: bool) -> None:
    """A second loss is added without synchronisation, or before the one with it."""
    model = DDP(net(begin()))
    optimizer = sgd(model, 0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for reduces in (planted, not planted):
            x, y = batch()
            with nullcontext() if reduces else model.no_sync():
                F.cross_entropy(model(x), y, label_smoothing=0.1 * reduces).backward()
        optimizer.step()


def short_last_window(planted: bool) -> None:
    """The last micro-batches of an epoch make a step of their own, whose first one reduces."""
    model = DDP(net(begin()))
    optimizer = sgd(model, 0.1)
    for _ in range(STEPS):
        for number in range(6):
            last = number == 5
            reduces = number % 4 == 3 or (number == 4 if planted else last)
            x, y = batch()
            with nullcontext() if reduces else model.no_sync():
                F.cross_entropy(model(x), y).backward()
            if number % 4 == 3 or last:
                optimizer.step()
                optimizer.zero_grad()


def head_gradient_bounded_by_one_rank(planted: bool) -> None:
    """The elements of the head's gradient are kept in bounds after backward, where a rank logs."""
    rank = begin()
    model = net(rank)
    wrapped = DDP(model)
    optimizer = sgd(wrapped, 0.1)
    for _ in range(STEPS):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(wrapped(x), y).backward()
        if rank == 1 or not planted:
            model.head.weight.grad.clamp_(-0.001, 0.001)
        optimizer.step()


def noise_of_one_rank(planted: bool) -> None:
    """Noise is added to gradients that were averaged by hand, on one rank or the same on both."""
    rank = begin()
    model = net(rank)
    optimizer = sgd(model, 0.1)
    noise = torch.Generator().manual_seed(3)
    for _ in range(STEPS):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad.div_(2)
        for parameter in model.parameters():
            if rank == 0 or not planted:
                parameter.grad.add_(torch.randn(parameter.shape, generator=noise), alpha=1e-3)
        optimizer.step()


def head_gradient_replaced_by_one_rank(planted: bool) -> None:
    """One rank puts another tensor in the place of the head's gradient: its sign."""
    rank = begin()
    model = net(rank)
    wrapped = DDP(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)
    for _ in range(STEPS):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(wrapped(x), y).backward()
        if rank == 0 or not planted:
            model.head.weight.grad = model.head.weight.grad.sign()
        optimizer.step()


FAULTS = (
    *rank_faults(
        "gradients that one rank alone changes",
        "rank_divergence",
        "after they were reduced",
        head_gradient_bounded_by_one_rank,
        noise_of_one_rank,
        head_gradient_replaced_by_one_rank,
    ),
    *rank_faults(
        "parameters that one rank alone writes",
        "rank_divergence",
        "alone writes",
        average_taken_back,
        weights_loaded_by_one_rank,
        head_kept_small_by_one_rank,
        weights_decayed_by_one_rank,
    ),
    *rank_faults(
        "backward passes after the one that reduces",
        "rank_divergence",
        "those after it add to them",
        first_pass_reduces,
        penalty_without_reduction,
        short_last_window,
    ),
)
