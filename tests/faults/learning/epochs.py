"""Trainings whose epochs shuffle alike, as a seed is set again, whose rates are for epochs, or
whose states are those of another batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import (
    ExponentialLR,
    LambdaLR,
    LRScheduler,
    MultiStepLR,
    OneCycleLR,
    StepLR,
)
from torch.utils.data import DataLoader, TensorDataset

from tests.faults.base import Fault, Program, forms

EPOCHS, ROWS = 4, 64


def data() -> TensorDataset:
    """Rows and their classes."""
    x = torch.randn(ROWS, 12, generator=torch.Generator().manual_seed(1))
    return TensorDataset(x, x[:, :3].argmax(1))


def net() -> nn.Module:
    """A small classifier."""
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))


def epoch(model: nn.Module, optimizer: torch.optim.Optimizer, loader: DataLoader[object]) -> None:
    """One epoch of training."""
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def seeded_before_each_epoch(planted: bool) -> None:
    """For results that repeat."""
    model, loader = net(), DataLoader(data(), batch_size=8, shuffle=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for number in range(EPOCHS):
        torch.manual_seed(42 if planted else 42 + number)
        epoch(model, optimizer, loader)


def loader_made_for_each_epoch(planted: bool) -> None:
    """A generator of its own is made with the DataLoader."""
    model, numbers = net(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(EPOCHS):
        if planted:
            numbers = torch.Generator().manual_seed(0)
        epoch(model, optimizer, DataLoader(data(), 8, shuffle=True, generator=numbers))


def seeded_by_the_evaluation(planted: bool) -> None:
    """The evaluation draws the same noise each time, and leaves the seed for the next epoch."""
    torch.manual_seed(3)
    model, loader = net(), DataLoader(data(), batch_size=16, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = data().tensors
    for _ in range(EPOCHS + 1):
        with torch.random.fork_rng(enabled=not planted), torch.no_grad():
            torch.manual_seed(5)
            F.cross_entropy(model(x + 0.1 * torch.randn_like(x)), y)
        epoch(model, optimizer, loader)


def trials_of_one_seed() -> None:
    """The twin of that: each trial trains a model of its own, by the same seed."""
    for rate in (1e-2, 1e-3, 1e-4, 1e-5):
        torch.manual_seed(0)
        model = net()
        loader = DataLoader(data(), batch_size=16, shuffle=True)
        epoch(model, torch.optim.Adam(model.parameters(), lr=rate), loader)


def _scheduled(
    schedule: Callable[[torch.optim.Optimizer], LRScheduler], *, each: int = 1, batches: int = 60
) -> None:
    """Trains, and steps with the schedule after each so many batches."""
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rates = schedule(optimizer)
    x, y = data().tensors
    for batch in range(batches):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if (batch + 1) % each == 0:
            rates.step()  # named


def warm_up_of_whole_epochs(planted: bool) -> None:
    """The rate of the first of two epochs is 0 / 2, as epochs are counted from 0."""
    _scheduled(lambda one: LambdaLR(one, lambda epoch: (epoch + (not planted)) / 2), each=30)


def warm_up_of_whole_numbers(planted: bool) -> None:
    """A warm-up over half of the batches; // makes it 0 up to its end."""
    of = (lambda step: step // 30) if planted else (lambda step: step / 30)
    _scheduled(lambda one: LambdaLR(one, of))


def restarts_of_epochs(planted: bool) -> None:
    """A rate that falls within 10 of 20 steps and then starts again: the lengths do not agree."""
    length = 10 if planted else 20

    def of(step: int) -> float:
        return max(0.0, 1 - (step % 20) / length)

    _scheduled(lambda one: LambdaLR(one, of), batches=90)


def _cycle(optimizer: torch.optim.Optimizer, **steps: int) -> LRScheduler:
    return OneCycleLR(optimizer, max_lr=0.5, cycle_momentum=False, **steps)


def cycle_of_all_batches(planted: bool) -> None:
    """It steps once in 15 of its 60 batches."""
    _scheduled(lambda one: _cycle(one, total_steps=60), each=15 if planted else 1)


def cycle_of_the_batches_of_epochs(planted: bool) -> None:
    """A run that ends early; the cycle of the twin is one of epochs."""
    each = 10 if planted else 1
    _scheduled(lambda one: _cycle(one, epochs=8, steps_per_epoch=each), each=10, batches=40)


def cycle_that_steps_with_evaluations(planted: bool) -> None:
    """Evaluations take place after each sixth batch."""
    _scheduled(lambda one: _cycle(one, epochs=6, steps_per_epoch=10), each=6 if planted else 1)


def _stepped_down(
    schedule: Callable[[torch.optim.Optimizer], LRScheduler], *, batches: int, epochs: int = 12
) -> None:
    """Trains by a DataLoader; the schedule steps after each epoch, or so many batches."""
    torch.manual_seed(0)
    model, loader = net(), DataLoader(data(), batch_size=8, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rates, count = schedule(optimizer), 0
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            count += 1
            if count % batches == 0:
                rates.step()


def steps_of_epochs() -> None:
    """A tenth after each 10 epochs."""
    _stepped_down(lambda one: StepLR(one, 10), batches=1)


def steps_of_whole_datasets() -> None:
    """The twin of that: each batch is the dataset, so each step is an epoch."""
    _scheduled(lambda one: StepLR(one, 10, gamma=0.1))


def decay_of_epochs(planted: bool) -> None:
    """Four fifths of the rate before it."""
    _stepped_down(lambda one: ExponentialLR(one, 0.8), batches=1 if planted else 8)


def milestones_of_epochs(planted: bool) -> None:
    """Three of them; those of the twin are batches."""
    at = [10, 20, 30] if planted else [48, 72, 88]
    _stepped_down(lambda one: MultiStepLR(one, at), batches=1)


# loops that return in their first round ----------------------------------------------------------


def _run_epochs(train: Callable[[Any, Any, Any], float]) -> None:
    torch.manual_seed(0)
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(EPOCHS):
        train(model, optimizer, DataLoader(data(), batch_size=8, shuffle=True))


def _mean_of_an_epoch(model: nn.Module, optimizer: Any, loader: Any) -> float:
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
        return total / len(loader)
    return total


def return_within_the_loop(planted: bool) -> None:
    """The mean is returned one level too deep; the twin looks at the time first."""

    def until_it_is_good(model: nn.Module, optimizer: Any, loader: Any) -> float:
        last = 0.0
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            last = loss.item()
            if last < 0.01:
                return last
        return last

    _run_epochs(_mean_of_an_epoch if planted else until_it_is_good)


def return_after_a_closure(planted: bool) -> None:
    """The optimizer gets a closure; the twin asks for one batch per step, on purpose."""

    def first(loader: Any) -> Any:
        for one in loader:
            return one
        return None

    def by_closure(model: nn.Module, optimizer: Any, loader: Any) -> float:
        for number, (x, y) in enumerate(loader):

            def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            return float(optimizer.step(closure)) + number
        return 0.0

    def by_one_batch(model: nn.Module, optimizer: Any, loader: Any) -> float:
        x, y = first(loader)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    _run_epochs(by_closure if planted else by_one_batch)


def return_of_a_generator(planted: bool) -> None:
    """Losses are yielded; the loop of the twin goes on after some of its batches."""

    def losses(model: nn.Module, optimizer: Any, loader: Any) -> Any:
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            yield loss.item()
            if not planted and loss.item() > 0:
                continue
            return

    def first_losses(model: nn.Module, optimizer: Any, loader: Any) -> Any:
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            yield loss.item()
            return

    _run_epochs(lambda *of: sum((first_losses if planted else losses)(*of)))


# states of other samples -------------------------------------------------------------------------


class _Reads(nn.Module):
    """A recurrence, and a class for each position."""

    def __init__(self, recurrence: nn.Module) -> None:
        super().__init__()
        self.inner, self.out = recurrence, nn.Linear(16, 3)

    def forward(self, x: torch.Tensor, state: Any) -> Any:
        made, state = self.inner(x, state)
        return self.out(made), state


def _goes_on(
    recurrence: nn.Module, shuffle: bool, kept: Callable[[Any], Any], chunks: int = 1
) -> None:
    torch.manual_seed(0)
    model = _Reads(recurrence)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    state: Any = None
    for x, y in DataLoader(data(), batch_size=8, shuffle=shuffle):
        for rows, classes in zip(x.view(8, 6, 2).chunk(chunks, 1), y.chunk(chunks), strict=False):
            optimizer.zero_grad()
            scores, state = model(rows, state)
            F.cross_entropy(scores[: len(classes), -1], classes).backward()
            optimizer.step()
            state = tuple(one.detach() for one in state) if type(state) is tuple else state.detach()
        state = kept(state)


def state_of_the_last_batch(planted: bool) -> None:
    """The twin goes through the data in their order."""
    _goes_on(nn.LSTM(2, 16, batch_first=True), planted, lambda state: state)


def state_that_is_kept_over_parts(planted: bool) -> None:
    """Sequences are cut in two; the twin begins each batch without a state."""
    kept: Callable[[Any], Any] = (lambda state: state) if planted else (lambda state: None)
    _goes_on(nn.GRU(2, 16, batch_first=True), True, kept, chunks=2)


def state_of_two_layers(planted: bool) -> None:
    """Of a plain recurrence with two layers."""
    kept: Callable[[Any], Any] = (lambda state: state) if planted else torch.zeros_like
    _goes_on(nn.RNN(2, 16, num_layers=2, batch_first=True), True, kept)


def _fault(program: Program, twin: Program | None = None) -> Fault:
    name, says = "epochs that shuffle alike", "in the same order"
    return Fault(name, "losses and modes", ("repeated_data",), program, twin, says=says)


FAULTS = (
    _fault(seeded_before_each_epoch),
    _fault(loader_made_for_each_epoch),
    _fault(seeded_by_the_evaluation, trials_of_one_seed),
    *forms(
        "a rate that is next to zero",
        "learning",
        "dead_parameter",
        "next to zero",
        warm_up_of_whole_numbers,
        warm_up_of_whole_epochs,
        restarts_of_epochs,
    ),
    *forms(
        "cycle of batches that steps with epochs",
        "learning",
        "dead_parameter",
        "OneCycleLR",
        cycle_of_all_batches,
        cycle_of_the_batches_of_epochs,
        cycle_that_steps_with_evaluations,
    ),
    *(
        Fault(
            "schedule of epochs that steps with batches",
            "learning",
            ("dead_parameter",),
            program,
            twin,
            "hardly anything",
            slow=twin is None,
        )
        for program, twin in (
            (steps_of_epochs, steps_of_whole_datasets),
            (decay_of_epochs, None),
            (milestones_of_epochs, None),
        )
    ),
    *forms(
        "loop that returns in its first round",
        "losses and modes",
        "repeated_data",
        "at the end of its first round",
        return_within_the_loop,
        return_after_a_closure,
        return_of_a_generator,
    ),
    *forms(
        "states of other samples",
        "losses and modes",
        "mixed_samples",
        "that of other samples",
        state_of_the_last_batch,
        state_that_is_kept_over_parts,
        state_of_two_layers,
    ),
)
