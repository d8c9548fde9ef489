"""Programs of two ranks whose batches or outputs are the same; and their twins."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from rank_training import STEPS, mlp, program
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, TensorDataset

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
def one_row_for_all() -> None:
    fit_scaled(Scaled(), lambda: torch.ones(16, 8))


@program
def episodes_that_begin_in_one_state() -> None:
    policy, value = Scaled(), Scaled()
    optimizer = torch.optim.SGD([*policy.parameters(), *value.parameters()], lr=0.01)
    for _ in range(10):
        state, loss = torch.ones(16, 8), torch.zeros(())
        for _ in range(3):
            loss = loss + policy(state).square().mean() + value(state).square().mean()
            state = state + torch.randn(16, 8)
        loss.backward()
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
