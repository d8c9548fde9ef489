"""Programs of two ranks that add gradients up or clip them; and their twins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from rank_training import STEPS, loss_of, mlp, program, train, train_parts
from torch import nn
from torch.distributed.nn import functional as distributed
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

# reductions of gradients that add up ----------------------------------------------------------


@program
def adds_up_and_reduces_each_time() -> None:
    model = DDP(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number in range(4 * STEPS):
        (loss_of(model) / 4).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()


@program
def reduces_two_losses_apart() -> None:
    model = DDP(mlp(24))
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model).backward()
        F.l1_loss(model(torch.randn(4, 8)), torch.ones(4, 1)).backward()
        optimizer.step()


@program
def reduces_real_and_fake_apart() -> None:
    critic, maker = DDP(mlp()), DDP(nn.Linear(4, 8))
    of_critic = torch.optim.Adam(critic.parameters())
    of_maker = torch.optim.Adam(maker.parameters())
    for _ in range(STEPS):
        of_critic.zero_grad()
        critic(torch.randn(8, 8)).mean().backward()
        critic(maker(torch.randn(8, 4)).detach()).mean().neg().backward()
        of_critic.step()
        of_maker.zero_grad()
        critic.module(maker(torch.randn(8, 4))).mean().backward()
        of_maker.step()


@program
def adds_up_without_reducing() -> None:
    model = DDP(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        with model.no_sync():
            loss_of(model).backward()
            loss_of(model).backward()
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def two_models_of_one_shape() -> None:
    first, second = DDP(mlp()), DDP(mlp())
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.01)
    for _ in range(STEPS):
        loss_of(first).backward()
        loss_of(second).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def many_buckets_of_one_shape() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)), nn.Linear(8, 1))
    torch.manual_seed(1 + dist.get_rank())
    train(DDP(model, bucket_cap_mb=1e-5), lambda step: None)


# parts of one model ----------------------------------------------------------------------------


def columns() -> tuple[Callable[[torch.Tensor], torch.Tensor], list[Any]]:
    """Returns a layer split by columns and the next by rows, and this rank's parameters."""
    torch.manual_seed(1 + dist.get_rank())
    into, out = nn.Parameter(torch.randn(8, 4)), nn.Parameter(torch.randn(4, 1))
    return lambda x: distributed.all_reduce(torch.relu(x @ into) @ out), [into, out]


def clip_alone(own: list[Any]) -> None:
    """Clips by the norm of this rank's parameters."""
    nn.utils.clip_grad_norm_(own, 1.0)


@program
def columns_clipped_alone() -> None:
    train_parts(*columns(), clip_alone)


@program
def rows_clipped_alone() -> None:
    torch.manual_seed(1 + dist.get_rank())
    weight = nn.Linear(4, 1)
    take = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)
    gather = distributed.all_gather
    train_parts(lambda x: sum(gather(weight(x[:, take]))), [*weight.parameters()], clip_alone)


@program
def experts_clipped_alone() -> None:
    torch.manual_seed(1 + dist.get_rank())
    expert = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1))

    def out_of(x: torch.Tensor) -> torch.Tensor:
        mine = distributed.all_to_all_single(torch.empty_like(x), x)
        return distributed.all_to_all_single(torch.empty(16, 1), expert(mine))

    train_parts(out_of, [*expert.parameters()], clip_alone)


@program
def columns_clipped_together() -> None:
    def clip(own: list[Any]) -> None:
        squares = torch.stack([one.grad.square().sum() for one in own]).sum()
        dist.all_reduce(squares)
        nn.utils.clip_grads_with_norm_(own, 1.0, squares.sqrt())

    train_parts(*columns(), clip)


@program
def replicas_clipped() -> None:
    model = DDP(mlp())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (100 * loss_of(model)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


@program
def models_of_their_own_clipped() -> None:
    torch.manual_seed(1 + dist.get_rank())
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = 100 * loss_of(model)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        dist.all_reduce(loss.detach())


@program
def broadcast_and_averaged_in_rounds() -> None:
    model = mlp()
    for _ in range(4):
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
        train(model, lambda step: None, 3)
        for parameter in model.parameters():
            dist.reduce(parameter.data, 0)
            parameter.data /= 2


@program
def models_of_their_own_and_a_common_metric() -> None:
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    train(model, lambda step: dist.all_reduce(torch.ones(1)))
