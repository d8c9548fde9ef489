"""Trainings that mix up two things: the weights of an average, rows and targets, a training that is
resumed and one that begins; and layers whose units never part, or are saturated."""

from __future__ import annotations

import copy
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import forms
from tests.faults.learning.cut_off import mlp, rows

STEPS = 40


def _fit(model: nn.Module, each: Callable[[], object] = lambda: None, rate: float = 1e-2) -> Any:
    """Classifies rows of ten numbers; `each` is called after each step. Returns the optimizer."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    for _ in range(STEPS):
        x, y = rows()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        each()
    return optimizer


# moving averages ---------------------------------------------------------------------------------


def average_takes_the_newest(planted: bool) -> None:
    """Decay and its rest are exchanged in place; the twin's lerp() begins at the parameter."""
    model = mlp()
    shadow, decay = copy.deepcopy(model).requires_grad_(False), 0.99

    def update() -> None:
        with torch.no_grad():
            for one, other in zip(shadow.parameters(), model.parameters(), strict=True):
                if not planted:
                    one.copy_(other.lerp(one, decay))
                    continue
                one.mul_(1 - decay).add_(other, alpha=decay)  # named

    _fit(model, update)


def target_follows_at_once(planted: bool) -> None:
    """The soft update of a target network, tau on the wrong side; the twin has a decay that grows,
    as a warm-up of an average does."""
    model = mlp()
    target, tau = copy.deepcopy(model), 0.005
    steps = iter(range(STEPS))

    def update() -> None:
        step = next(steps)
        kept = tau if planted else min(1 - tau, (1 + step) / (10 + step))
        for one, other in zip(target.parameters(), model.parameters(), strict=True):
            one.data.copy_(kept * one.data + (1.0 - kept) * other.data)  # named

    _fit(model, update)


def average_kept_by_name(planted: bool) -> None:
    """A dictionary of new tensors; the twin blends by lerp_."""
    model = mlp()
    shadow = {name: one.detach().clone() for name, one in model.named_parameters()}

    def update() -> None:
        for name, one in model.named_parameters():
            if planted:
                shadow[name] = 0.001 * shadow[name] + 0.999 * one.detach()  # named
            else:
                shadow[name].lerp_(one.detach(), 0.001)

    _fit(model, update)


def warmup_stored_as_the_decay(planted: bool) -> None:
    """The first number of a warm-up stays, as the decay is never larger again; the twin looks
    ahead: it takes 0.8 of what five steps have made."""
    model = mlp()
    shadow = copy.deepcopy(model).requires_grad_(False)
    decay, updates = 0.999, 0

    def update() -> None:
        nonlocal decay, updates
        updates += 1
        if planted:
            decay = min(decay, (1 + updates) / (10 + updates))
        elif updates % 5:
            return
        for one, other in zip(shadow.parameters(), model.parameters(), strict=True):
            one.lerp_(other.detach(), 1 - decay if planted else 0.8)  # named

    _fit(model, update)


# units that stay equal ---------------------------------------------------------------------------


def _constant(model: nn.Module, planted: bool, value: float = 0.05) -> nn.Module:
    for one in model.modules():
        if planted and isinstance(one, nn.Linear | nn.Conv2d):
            nn.init.constant_(one.weight, value)
    return model


def one_constant_for_all_weights(planted: bool) -> None:
    """nn.init.constant_; the twin begins its last layer with zeros."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))
    if not planted:
        nn.init.zeros_(model[2].weight)
    _fit(_constant(model, planted))


def ones_in_hidden_layers(planted: bool) -> None:
    """Three layers of ones, and tanh between them; the twin has one row in a layer whose units
    sees different parts of the input."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3)
    )
    if planted:
        _constant(model, planted, 0.1)
    else:
        nn.init.constant_(model[2].weight, 0.1)
    _fit(model)


class _Adapted(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.down, self.up = (
            nn.Parameter(torch.randn(4, inputs)),
            nn.Parameter(torch.ones(outputs, 4)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.down.T @ self.up.T


def filters_of_one_number(planted: bool) -> None:
    """Convolutions whose filters are all the same; in the twin one of a layer's two weights is."""
    torch.manual_seed(0)
    if not planted:
        _fit(nn.Sequential(_Adapted(10, 16), nn.Tanh(), _Adapted(16, 3)))
        return
    model = nn.Sequential(
        nn.Unflatten(1, (1, 2, 5)), nn.Conv2d(1, 8, 2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)
    )
    _fit(_constant(model, planted))


# rows and targets --------------------------------------------------------------------------------


def _epochs(batches: Callable[[], Iterator[tuple[Any, Any]]], loss: Any, outputs: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, outputs))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(30):
        for x, y in batches():
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()


def _data(classes: bool) -> tuple[Any, Any]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(128, 10)).astype(np.float32)
    return x, x[:, :3].argmax(1) if classes else x[:, :1] + x[:, 1:2]


def inputs_shuffled_by_numpy(planted: bool) -> None:
    """numpy shuffles the inputs alone; the twin shuffles both by one order."""
    x, y = _data(classes=True)
    draw = np.random.default_rng(1)

    def batches() -> Iterator[tuple[Any, Any]]:
        order = draw.permutation(len(x))
        own = y if planted else y[order]
        for low in range(0, len(x), 16):
            yield torch.from_numpy(x[order[low : low + 16]]), torch.from_numpy(own[low : low + 16])

    _epochs(batches, F.cross_entropy, 3)


def numbers_shuffled_apart(planted: bool) -> None:
    """random.shuffle of two lists; the twin adds other noise to the targets in each epoch."""
    x, y = _data(classes=False)
    inputs, targets = [*map(torch.from_numpy, x)], [*map(torch.from_numpy, y)]
    random.seed(0)

    def batches() -> Iterator[tuple[Any, Any]]:
        if planted:
            random.shuffle(inputs)
            random.shuffle(targets)
        noise = 0.0 if planted else 0.1 * torch.randn(16, 1)
        for low in range(0, len(x), 16):
            yield torch.stack(inputs[low : low + 16]), torch.stack(targets[low : low + 16]) + noise

    _epochs(batches, F.mse_loss, 1)


def labels_of_another_order(planted: bool) -> None:
    """Labels are kept sorted by class while samples are drawn; the twin has wrong labels for one
    sample in five, other ones each time."""
    x, y = _data(classes=True)
    draw = np.random.default_rng(1)

    def batches() -> Iterator[tuple[Any, Any]]:
        for _ in range(8):
            at = draw.choice(len(x), 16, replace=False)
            own = y[draw.choice(len(x), 16)] if planted else y[at]
            wrong = draw.random(16) < 0.2
            own = np.where(wrong, draw.integers(0, 3, 16), own)
            yield torch.from_numpy(x[at]), torch.from_numpy(own)

    _epochs(batches, F.cross_entropy, 3)


# trainings that are resumed ----------------------------------------------------------------------


def _resumed(
    save: Callable[[nn.Module, Any, Path], None], load: Callable[[nn.Module, Any, Path], None]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "epoch_1.pt"
        model = mlp()
        save(model, _fit(model), file)
        torch.manual_seed(1)
        other = mlp()
        optimizer = torch.optim.Adam(other.parameters(), lr=1e-2)
        load(other, optimizer, file)
        for _ in range(STEPS):
            x, y = rows()
            optimizer.zero_grad()
            F.cross_entropy(other(x), y).backward()
            optimizer.step()


def _save(model: nn.Module, optimizer: Any, file: Path) -> None:
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)


def resumed_without_the_optimizer(planted: bool) -> None:
    """The model alone is loaded."""

    def load(model: nn.Module, optimizer: Any, file: Path) -> None:
        content = torch.load(file)  # named
        model.load_state_dict(content["model"])
        if not planted:
            optimizer.load_state_dict(content["optimizer"])

    _resumed(_save, load)


def resumed_before_the_optimizer(planted: bool) -> None:
    """A list of states; the twin is fine-tuned with another rate."""

    def save(model: nn.Module, optimizer: Any, file: Path) -> None:
        states = {"step": 40, "states": {"net": model.state_dict(), "adam": optimizer.state_dict()}}
        torch.save(states, file)

    def load(model: nn.Module, optimizer: Any, file: Path) -> None:
        content = torch.load(file, weights_only=True)  # named
        model.load_state_dict(content["states"]["net"])
        if not planted:
            optimizer.param_groups[0]["lr"] = 1e-3

    _resumed(save, load)


def resumed_with_a_scheduler(planted: bool) -> None:
    """The state of the scheduler is loaded, that of the optimizer is not; the twin's last layer is
    a new one."""

    def save(model: nn.Module, optimizer: Any, file: Path) -> None:
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        states = {"schedule": schedule.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save({"model": model.state_dict(), **states}, file)

    def load(model: nn.Module, optimizer: Any, file: Path) -> None:
        content = torch.load(file)  # named
        model.load_state_dict(content["model"])
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        schedule.load_state_dict(content["schedule"])
        if not planted:
            for one in model.modules():
                if isinstance(one, nn.Linear):
                    last = one
            last.reset_parameters()

    _resumed(save, load)


# saturated functions -----------------------------------------------------------------------------


class _Squashed(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor], scale: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(10, 32), nn.Linear(32, 3)
        self.function, self.scale = function, scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.function(self.first(x * self.scale)))
        return out


def tanh_of_large_inputs(planted: bool) -> None:
    """torch.tanh of inputs that are not normalised."""
    _fit(_Squashed(torch.tanh, 200.0 if planted else 1.0))


def sigmoid_of_large_inputs(planted: bool) -> None:
    """A sigmoid of the same; the twin's input is large for a few units alone."""
    _fit(_Squashed(torch.sigmoid, 3000.0 if planted else 8.0))


def cell_of_large_inputs(planted: bool) -> None:
    """A recurrent cell written by hand; in the twin tanh is the last function."""
    torch.manual_seed(0)

    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.own, self.out = nn.Linear(2, 24), nn.Linear(24, 24), nn.Linear(24, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = x.new_zeros(len(x), 24)
            for part in (x * 500 if planted else x).split(2, 1):
                h = torch.tanh(self.inner(part) + self.own(h))
            out: torch.Tensor = self.out(h)
            return out if planted else torch.tanh(out * 20)

    _fit(Cell())


ROOM = "mixed up"

FAULTS = (
    *forms(
        "averages the wrong way round",
        ROOM,
        "wrong_average",
        "wrong way round",
        average_takes_the_newest,
        target_follows_at_once,
        average_kept_by_name,
        warmup_stored_as_the_decay,
    ),
    *forms(
        "units that stay equal",
        ROOM,
        "dead_parameter",
        "copies of each other",
        one_constant_for_all_weights,
        ones_in_hidden_layers,
        filters_of_one_number,
    ),
    *forms(
        "rows and targets that do not belong together",
        ROOM,
        "wrong_loss",
        "do not belong together",
        inputs_shuffled_by_numpy,
        numbers_shuffled_apart,
        labels_of_another_order,
    ),
    *forms(
        "resumed without the optimizer",
        ROOM,
        "not_loaded",
        "without the state of its optimizer",
        resumed_without_the_optimizer,
        resumed_before_the_optimizer,
        resumed_with_a_scheduler,
    ),
    *forms(
        "saturated functions",
        ROOM,
        "dead_parameter",
        "saturated from the first step",
        tanh_of_large_inputs,
        sigmoid_of_large_inputs,
        cell_of_large_inputs,
    ),
)
