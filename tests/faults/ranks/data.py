"""Programs of two ranks: data and random numbers that are not shared out as they are meant to be,
process groups that some ranks make and others do not, and tensors that are used too early."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tests.faults.base import Fault
from tests.faults.ranks.one_model import (
    STEPS,
    Net,
    batch,
    begin,
    epochs,
    limited,
    net,
    rank_faults,
    sgd,
    train,
)


def shards_of_unequal_length(planted: bool) -> None:
    """Each rank reads a file of its own, and one is shorter."""
    rank = limited()
    rows = 96 if rank == 1 or not planted else 144
    model = DDP(net(rank))
    data = TensorDataset(*batch(rows))
    optimizer = sgd(model)
    for x, y in DataLoader(data, 16):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def stream_that_ends_early(planted: bool) -> None:
    """A stream is dealt out to the ranks, and its end is not even; a barrier follows."""
    rank = limited()

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            for number in range(96 if rank or not planted else 64):
                yield torch.randn(8), number % 4

    model = DDP(net(rank))
    optimizer = sgd(model)
    for x, y in DataLoader(Stream(), 8):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    dist.barrier()


def metric_after_the_last_batch(planted: bool) -> None:
    """Gradients are reduced by hand; one rank goes on to reduce a metric."""
    rank = limited()
    model = net(rank)
    data = TensorDataset(*batch(48 if rank or not planted else 80))
    optimizer = sgd(model)
    for x, y in DataLoader(data, 8):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
    dist.all_reduce(torch.zeros(2))


def sampler_seeded_by_rank(planted: bool) -> None:
    """Everything is seeded by rank, the sampler with it."""
    rank = begin()
    epochs(DDP(net(rank)), seed=rank if planted else 7)


def sampler_set_to_an_epoch_of_each_rank(planted: bool) -> None:
    """The epoch is counted over all ranks."""
    rank = begin()
    epochs(DDP(net(rank)), number=lambda epoch: 2 * epoch + rank * planted)


def sampler_set_to_the_epoch_on_the_first_rank(planted: bool) -> None:
    """What belongs to all ranks stands in the branch of the first."""
    rank = begin()
    epochs(DDP(net(rank)), number=lambda epoch: epoch if rank == 0 or not planted else None)


# random numbers ----------------------------------------------------------------------------------


def dropout_seeded_alike(planted: bool) -> None:
    """One seed for all ranks, set once."""
    rank = begin()
    torch.manual_seed(0)
    model = Net(dropout=0.3)
    torch.manual_seed(0 if planted else rank)
    epochs(DDP(model))


def noise_seeded_by_step(planted: bool) -> None:
    """The seed is set again in each step, to the number of the step."""
    rank = begin()
    model = DDP(net(rank))
    optimizer = sgd(model)
    own = torch.Generator().manual_seed(rank)
    for step in range(STEPS):
        torch.manual_seed(step + (0 if planted else 100 * rank))
        x = torch.randn(16, 8, generator=own)
        optimizer.zero_grad()
        model(x + 0.1 * torch.randn(16, 8)).square().mean().backward()
        optimizer.step()


def denoiser_seeded_alike(planted: bool) -> None:
    """A model learns to take noise away; both ranks make the same noise."""
    rank = begin()
    torch.manual_seed(0)
    model = DDP(Net(classes=8))
    torch.manual_seed(1 if planted else rank + 1)
    own, optimizer = torch.Generator().manual_seed(rank), sgd(model)
    for _ in range(STEPS):
        x, noise = torch.randn(16, 8, generator=own), torch.randn(16, 8)
        optimizer.zero_grad()
        F.mse_loss(model(0.5 * x + 0.5 * noise), noise).backward()
        optimizer.step()


def noise_beside_shared_orders(planted: bool) -> None:
    """Orders and compressed gradients are drawn alike; the twin's noise is of each rank's own."""
    rank = begin()
    torch.manual_seed(0)
    model = DDP(Net(classes=8))
    state = PowerSGDState(None, start_powerSGD_iter=2, warm_start=False)
    model.register_comm_hook(state, powerSGD_hook)
    own, optimizer = torch.Generator().manual_seed(rank), sgd(model)
    for _ in range(STEPS):
        x = torch.randn(16, 8, generator=own)[torch.randperm(16)]
        noise = torch.randn(16, 8, generator=None if planted else own)  # named
        optimizer.zero_grad()
        F.mse_loss(model(x + 0.1 * noise), x).backward()
        optimizer.step()


_LIMIT = timedelta(seconds=3)


def begun() -> int:
    """Trains two steps; returns the rank."""
    rank = limited()
    model = DDP(net(rank))
    train(model, sgd(model), 2)
    return rank


def group(ranks: list[int]) -> Any:
    """A group that gives up soon."""
    return dist.new_group(ranks, timeout=_LIMIT)


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


# tensors that are used while they are reduced ---------------------------------------------------


def stepped_before_gradients_are_reduced(planted: bool) -> None:
    """Gradients are reduced by hand, all at once; the waits come after the step, or before it."""
    model = net(begin())
    optimizer = sgd(model)
    for _ in range(STEPS):
        x, y = batch()
        optimizer.zero_grad()
        (F.cross_entropy(model(x), y) / 2).backward()  # the sum over ranks is their mean
        grads = [one.grad for one in model.parameters() if one.grad is not None]
        works = [dist.all_reduce(one, async_op=True) for one in grads]
        if planted:
            optimizer.step()  # named
        for work in works:
            work.wait()
        if not planted:
            optimizer.step()


def statistics_read_while_they_are_reduced(planted: bool) -> None:
    """A mean over ranks is used at once; the twin computes something else meanwhile."""
    model = DDP(net(begin()))

    def normalised(step: int) -> None:
        means = torch.randn(50_000)
        work = dist.all_reduce(means, async_op=True)
        assert work is not None
        if planted:
            means.div(2).sum()  # named
            work.wait()
        else:
            torch.randn(64).div(2)
            work.get_future().wait()
            means.div(2).sum()

    train(model, sgd(model), each=normalised)


def counter_cleared_while_it_is_reduced(planted: bool) -> None:
    """Sums of an epoch are reduced and cleared for the next one; the twin's wait is a barrier."""
    model = DDP(net(begin()))
    sums = torch.zeros(50_000)

    def reported(step: int) -> None:
        sums.add_(1.0)
        dist.all_reduce(sums, async_op=True)
        if planted:
            sums.zero_()  # named
            dist.barrier()
        else:
            dist.barrier()
            sums.zero_()

    train(model, sgd(model), each=reported)


def buffer_of_a_send_is_filled_again(planted: bool) -> None:
    """One buffer for all sends of a pipeline; the twin waits before it fills it."""
    rank, works, buffer = begin(), list[Any](), torch.empty(1 << 16)
    for _ in range(STEPS):
        if rank:
            dist.recv(buffer, 0)
            continue
        while works and not planted:
            works.pop().wait()
        buffer.copy_(torch.randn(1 << 16))  # named
        works.append(dist.isend(buffer, 1))
    for work in works:
        work.wait()


def received_and_read_at_once(planted: bool) -> None:
    """Neighbours exchange their edges, and one reads before the other's has come."""
    rank = begin()
    for _ in range(STEPS):
        mine, other = torch.randn(1 << 16), torch.zeros(1 << 16)
        works = [dist.irecv(other, 1 - rank), dist.isend(mine, 1 - rank)]
        if planted:
            other.add(mine).sum()  # named
        for work in works:
            assert work is not None
            work.wait()
        other.add(mine).sum()


def gradient_scaled_while_it_is_sent(planted: bool) -> None:
    """What was sent is changed before the receiver has it; the twin's receiver has answered."""
    rank, works, answer = begin(), list[Any](), torch.zeros(1)
    total = torch.zeros(1 << 16)
    for _ in range(STEPS):
        if rank:
            dist.recv(total, 0)
            dist.send(answer, 0)
            continue
        total.add_(1.0)
        works.append(dist.isend(total, 1))
        if not planted:
            dist.recv(answer, 1)
        total.mul_(0.5)  # named
        if planted:
            dist.recv(answer, 1)
    for work in works:
        work.wait()


FAULTS = (
    *rank_faults(
        "tensors used before they are sent or have come",
        "race",
        "before that has ended",
        buffer_of_a_send_is_filled_again,
        received_and_read_at_once,
        gradient_scaled_while_it_is_sent,
    ),
    *rank_faults(
        "tensors used before their reduction ends",
        "race",
        "before that has ended",
        stepped_before_gradients_are_reduced,
        statistics_read_while_they_are_reduced,
        counter_cleared_while_it_is_reduced,
    ),
    *rank_faults(
        "a rank with fewer batches",
        "collective_mismatch",
        "ran out of data after step",
        stream_that_ends_early,
        shards_of_unequal_length,
        metric_after_the_last_batch,
    ),
    *rank_faults(
        "random numbers that are the same on all ranks",
        "repeated_data",
        "draw the same random numbers",
        dropout_seeded_alike,
        noise_seeded_by_step,
        denoiser_seeded_alike,
        noise_beside_shared_orders,
    ),
    *rank_faults(
        "samplers that shuffle differently",
        "repeated_data",
        "shuffle differently",
        sampler_seeded_by_rank,
        sampler_set_to_an_epoch_of_each_rank,
        sampler_set_to_the_epoch_on_the_first_rank,
    ),
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
