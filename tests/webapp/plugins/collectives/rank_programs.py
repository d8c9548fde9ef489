"""Programs of two ranks with a fault, and their twins without; one run of each.

python rank_programs.py FOLDER [NAME ...]
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn import functional as distributed
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

import lanescope.collector as ls

STEPS = 8
PAUSE_S = 0.15
PROGRAMS: dict[str, Callable[[], None]] = {}


def program(function: Callable[[], None]) -> Callable[[], None]:
    """Adds a program under its name."""
    PROGRAMS[function.__name__] = function
    return function


def mlp(width: int = 16) -> nn.Sequential:
    """Returns two layers, the same on all ranks."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 1))
    torch.manual_seed(1 + dist.get_rank())
    return model


def loss_of(model: nn.Module) -> torch.Tensor:
    """Returns the loss of a batch of this rank's own."""
    x = torch.randn(16, 8)
    return F.mse_loss(model(x), x.sum(1, keepdim=True))


def train(model: nn.Module, each: Callable[[int], Any], steps: int = STEPS) -> None:
    """Trains with one backward per step, and calls `each` after every step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        each(step)


class Slow(nn.Module):
    """A model whose evaluation takes long."""

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            time.sleep(PAUSE_S)
        return self.body(x)


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


def train_parts(out_of: Callable[[torch.Tensor], torch.Tensor], own: list[Any], clip: Any) -> None:
    """Trains the parameters of each rank on the same batches."""
    same = torch.Generator().manual_seed(3)
    optimizer = torch.optim.SGD(own, lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(16, 8, generator=same)
        F.mse_loss(out_of(x), 5 * x.sum(1, keepdim=True)).backward()
        clip(own)
        optimizer.step()


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


# running statistics ---------------------------------------------------------------------------


def normalised(*layers: nn.Module) -> nn.Sequential:
    """Returns a model with these layers in it, the same on all ranks."""
    return nn.Sequential(*mlp()[:1], *layers, nn.Linear(16, 1).requires_grad_(False))


@program
def statistics_of_each_rank() -> None:
    train(DDP(normalised(nn.BatchNorm1d(16)), broadcast_buffers=False), lambda step: None)


@program
def statistics_not_averaged() -> None:
    model = normalised(nn.BatchNorm1d(16), nn.ReLU(), nn.BatchNorm1d(16))
    optimizer = torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.01)
    model = DDP(model, broadcast_buffers=False, gradient_as_bucket_view=True)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        model(torch.randn(8, 8))


@program
def statistics_of_each_rank_in_a_convolution() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.ReLU())
            self.head = nn.Linear(24, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(x[:, None]).flatten(1))

    train(DDP(Net(), broadcast_buffers=False), lambda step: None)


@program
def statistics_broadcast() -> None:
    train(DDP(normalised(nn.BatchNorm1d(16))), lambda step: None)


@program
def statistics_averaged_before_evaluation() -> None:
    model = DDP(normalised(nn.BatchNorm1d(16)), broadcast_buffers=False)
    train(model, lambda step: None)
    for buffer in model.module[1].buffers():
        if buffer.is_floating_point():
            dist.all_reduce(buffer)


@program
def statistics_that_are_fixed() -> None:
    train(DDP(normalised(nn.BatchNorm1d(16).eval()), broadcast_buffers=False), lambda step: None)


# evaluation that others wait for --------------------------------------------------------------


@program
def first_rank_evaluates() -> None:
    model = DDP(mlp())

    def evaluate(step: int) -> None:
        if dist.get_rank() == 0 and step % 3 == 2:
            with torch.no_grad():
                model(torch.randn(8, 8))
            time.sleep(PAUSE_S)  # metrics, pictures

    train(model, evaluate)


@program
def last_rank_evaluates_a_copy() -> None:
    model, copy = DDP(mlp()), Slow().eval()

    @torch.inference_mode()
    def evaluate(step: int) -> None:
        if dist.get_rank() == 1 and step % 2:
            copy(torch.randn(8, 8))

    train(model, evaluate)


@program
def first_rank_evaluates_once() -> None:
    model = DDP(Slow())

    def evaluate(step: int) -> None:
        if dist.get_rank() == 0 and step == 4:
            model.eval()
            with torch.no_grad():
                for _ in range(4):
                    model.module(torch.randn(8, 8))
            model.train()

    train(model, evaluate, 12)


@program
def both_ranks_evaluate() -> None:
    model = DDP(Slow())

    def evaluate(step: int) -> None:
        if step % 3 == 2:
            model.eval()
            with torch.no_grad():
                model(torch.randn(8, 8))
            model.train()

    train(model, evaluate)


@program
def first_rank_evaluates_at_the_end() -> None:
    model = DDP(Slow())
    train(model, lambda step: None)
    if dist.get_rank() == 0:
        model.eval()
        with torch.no_grad():
            model.module(torch.randn(8, 8))


@program
def first_rank_writes() -> None:
    def write(step: int) -> None:
        if dist.get_rank() == 0 and step % 3 == 2:
            time.sleep(PAUSE_S)

    train(DDP(mlp()), write)


# batches of ranks and epochs -------------------------------------------------------------------


def fit(model: nn.Module, batches: Iterable[Any], epochs: int = 1) -> None:
    """Trains on (input, target) pairs."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()


def dataset() -> TensorDataset:
    """Returns 64 samples, the same on all ranks."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(64, 8, generator=generator)
    return TensorDataset(x, x.sum(1, keepdim=True))


@program
def one_seed_for_all_ranks() -> None:
    model = DDP(mlp())
    torch.manual_seed(7)
    fit(model, ((torch.randn(8, 8), torch.randn(8, 1)) for _ in range(STEPS)))


@program
def loader_without_a_sampler() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp()

        def forward(self, *, features: torch.Tensor) -> torch.Tensor:
            return self.body(features)

    model, shuffled = DDP(Named()), torch.Generator().manual_seed(3)
    optimizer = torch.optim.AdamW(model.parameters())
    for x, y in DataLoader(dataset(), 8, shuffle=True, generator=shuffled):
        F.mse_loss(model(features=x), y).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def averaged_by_hand_over_the_same_batches() -> None:
    model = nn.Sequential(mlp(), nn.Dropout(0.5))
    same = torch.Generator().manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(16, 8, generator=same)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()


@program
def one_seed_per_rank() -> None:
    fit(DDP(mlp()), ((torch.randn(8, 8), torch.randn(8, 1)) for _ in range(STEPS)))


@program
def each_rank_takes_its_part() -> None:
    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = mlp()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x.chunk(2)[dist.get_rank()])

    model = DDP(Part())
    torch.manual_seed(7)
    train_parts = ((torch.randn(16, 8), torch.randn(8, 1)) for _ in range(STEPS))
    fit(model, train_parts)


@program
def whole_data_at_each_step() -> None:
    x = dataset().tensors[0]
    fit(DDP(mlp()), ((x, x.sum(1, keepdim=True)) for _ in range(STEPS)))


@program
def epoch_never_set() -> None:
    data = dataset()
    fit(DDP(mlp()), DataLoader(data, 8, sampler=DistributedSampler(data)), 3)


@program
def epoch_set_on_another_sampler() -> None:
    data, model = dataset(), DDP(mlp())
    used, kept = DistributedSampler(data, seed=1), DistributedSampler(data)
    loader = DataLoader(data, 8, sampler=used)
    for epoch in range(2):
        kept.set_epoch(epoch)
        fit(model, loader)


@program
def epoch_set_to_the_same() -> None:
    data, model = dataset(), DDP(mlp())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_sampler=BatchSampler(sampler, 8, drop_last=True))
    for _ in range(2):
        sampler.set_epoch(1)
        fit(model, loader)


@program
def epoch_set() -> None:
    data, model = dataset(), DDP(mlp())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 8, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        fit(model, loader)


@program
def in_order_on_purpose() -> None:
    data = dataset()
    sampler = DistributedSampler(data, shuffle=False)
    fit(DDP(mlp()), DataLoader(data, 8, sampler=sampler), 2)


@program
def evaluated_in_the_same_order() -> None:
    data, model = dataset(), DDP(mlp())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 8, sampler=sampler)
    kept = DataLoader(data, 16, sampler=DistributedSampler(data))
    for epoch in range(3):
        sampler.set_epoch(epoch)
        fit(model, loader)
        with torch.no_grad():
            for x, _ in kept:
                model.module(x)


@program
def looked_at_and_then_one_epoch() -> None:
    data = dataset()
    loader = DataLoader(data, 8, sampler=DistributedSampler(data))
    assert next(iter(loader))[0].shape == (8, 8)
    fit(DDP(mlp()), loader)
    with torch.no_grad():
        for x, y in loader:
            F.mse_loss(x.sum(1, keepdim=True), y)


# outputs and inputs that do not vary -----------------------------------------------------------


class Scaled(nn.Module):
    """A model with something done to its input, and to what its layers return."""

    def __init__(self, of_input: Any = lambda x: x, of_hidden: Any = lambda x: x) -> None:
        super().__init__()
        self.first, self.last = mlp(8)[0], nn.Linear(8, 1)
        self.of_input, self.of_hidden = of_input, of_hidden

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.of_hidden(self.first(self.of_input(x))))


def fit_scaled(model: nn.Module, x_of: Callable[[], torch.Tensor]) -> None:
    """Trains on batches of 16."""
    fit(model, ((x_of(), torch.randn(16, 1)) for _ in range(10)))


@program
def input_times_zero() -> None:
    fit_scaled(Scaled(lambda x: x * 0), lambda: torch.randn(16, 8))


@program
def mean_over_the_batch() -> None:
    fit_scaled(Scaled(lambda x: x.mean(0, True).expand_as(x)), lambda: torch.randn(16, 8))


@program
def dead_units() -> None:
    fit_scaled(Scaled(of_hidden=lambda x: F.relu(x - 100)), lambda: torch.rand(16, 8))


@program
def loaded_and_not_used() -> None:
    optimizer = torch.optim.SGD((model := mlp()).parameters(), lr=0.01)
    buffer = torch.zeros(4, 8)
    for _, y in DataLoader(dataset(), 4):
        F.mse_loss(model(buffer), y).backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def output_varies() -> None:
    fit_scaled(Scaled(F.normalize, F.relu), lambda: torch.randn(16, 8))


@program
def last_layer_begins_as_zero() -> None:
    model = Scaled(of_hidden=torch.tanh)
    nn.init.zeros_(model.last.weight)
    fit_scaled(model, lambda: torch.randn(16, 8))


@program
def table_of_positions() -> None:
    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(8, 1).requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.table(torch.arange(8)).T.expand(len(x), 8)

    positions = Positions()
    body = Scaled()
    optimizer = torch.optim.SGD(body.parameters(), lr=0.01)
    for _ in range(10):
        x = torch.randn(16, 8)
        body(x + positions(x)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


@program
def one_output_for_a_batch_of_one() -> None:
    fit(Scaled(), ((torch.randn(1, 8), torch.randn(1, 1)) for _ in range(10)))


@program
def one_seed_and_a_dropout_of_nothing() -> None:
    data = TensorDataset(torch.randn(128, 8, generator=torch.Generator().manual_seed(1)))
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.0), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sampler = DistributedSampler(data)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (x,) in DataLoader(data, 8, sampler=sampler):
            optimizer.zero_grad()
            F.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
            optimizer.step()


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


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    for name in sys.argv[2:] or PROGRAMS:
        with ls.record(folder / name):
            store = dist.FileStore(str(folder / f"{name}.store"), 2)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
            PROGRAMS[name]()
            dist.barrier()
            dist.destroy_process_group()
