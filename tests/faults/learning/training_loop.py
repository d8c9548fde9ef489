"""Calls that are allowed and do not do what they are for: scalers, states, datasets."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Subset

from tests.faults.base import forms
from tests.faults.learning.cut_off import STEPS, mlp, rows

_EPOCHS = 4


def _samples() -> tuple[torch.Tensor, torch.Tensor]:
    """64 rows of 10 numbers, with their classes."""
    x = torch.randn(64, 10)
    return x, x[:, :3].argmax(1)


def _scaled(
    steps: Callable[[Any, Any, Any], None], optimizer: Any, passes: int = 1, **settings: Any
) -> None:
    """Trains with a scaled loss; `steps` gets scaler, optimizer and model."""
    model = mlp()
    own = optimizer(model.parameters(), **settings)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(STEPS):
        own.zero_grad()
        for _ in range(passes):
            x, y = rows()
            with torch.autocast("cpu", torch.bfloat16):
                loss = F.cross_entropy(model(x), y) / passes
            scaler.scale(loss).backward()
        steps(scaler, own, model)


def optimizer_steps_beside_the_scaler(planted: bool) -> None:
    """The scaler scales the loss, and the optimizer steps by itself; the twin unscales before."""

    def steps(scaler: Any, optimizer: Any, model: nn.Module) -> None:
        if planted:
            optimizer.step()  # named
            return
        scaler.unscale_(optimizer)
        optimizer.step()
        scaler.update()

    _scaled(steps, torch.optim.SGD, lr=1e-4)


def fused_optimizer_beside_the_scaler(planted: bool) -> None:
    """A fused optimizer steps by itself; in the twin the scaler has it unscale the gradients."""

    def steps(scaler: Any, optimizer: Any, model: nn.Module) -> None:
        if planted:
            optimizer.step()  # named
        else:
            scaler.step(optimizer)
            scaler.update()

    _scaled(steps, torch.optim.AdamW, lr=1e-3, fused=True)


def accumulates_and_steps_beside_the_scaler(planted: bool) -> None:
    """The same after two passes; the twin divides the gradients by the scale itself."""

    def steps(scaler: Any, optimizer: Any, model: nn.Module) -> None:
        if not planted:
            for one in model.parameters():
                assert one.grad is not None
                one.grad.div_(scaler.get_scale())
        optimizer.step()  # named

    _scaled(steps, torch.optim.SGD, passes=2, lr=1e-4)


def _best(keep: Callable[[nn.Module], Any], restore: Callable[[nn.Module, Any], None]) -> None:
    """Trains for some epochs, keeps the state of the best and restores it in the end."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    best, kept = float("inf"), None
    for _ in range(_EPOCHS):
        for _ in range(2):
            x, y = rows()
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        if best == float("inf"):
            best, kept = 0.0, keep(model)
    restore(model, kept)


def best_state_without_a_copy(planted: bool) -> None:
    """`best = model.state_dict()`."""

    def keep(model: nn.Module) -> Any:
        state = model.state_dict()  # named
        return state if planted else copy.deepcopy(state)

    _best(keep, lambda model, state: model.load_state_dict(state))


def best_state_in_a_checkpoint(planted: bool) -> None:
    """It is one entry of a dictionary; the twin loads it into another model."""

    def keep(model: nn.Module) -> Any:
        return {"model": model.state_dict(), "score": 0.5}  # named

    def restore(model: nn.Module, kept: Any) -> None:
        (model if planted else mlp()).load_state_dict(kept["model"])

    _best(keep, restore)


def best_state_copied_as_a_dictionary(planted: bool) -> None:
    """`dict(...)` copies names and no values; the twin clones them."""

    def keep(model: nn.Module) -> Any:
        state = dict(model.state_dict())  # named
        return state if planted else {name: one.clone() for name, one in state.items()}

    _best(keep, lambda model, state: model.load_state_dict(state))


def _epochs(dataset: Dataset[Any], workers: int = 0) -> None:
    """Trains for some epochs on a dataset of pairs."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(
        dataset, batch_size=16, num_workers=workers, persistent_workers=bool(workers)
    )
    for _ in range(_EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()


class _Noisy(Dataset[Any]):
    """Adds noise to each row of a tensor; the twin also keeps what it handed out last."""

    def __init__(self, planted: bool) -> None:
        self.planted = planted
        self.x, self.y = _samples()
        self.last = torch.zeros_like(self.x)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        x = self.x[index] if self.planted else self.x[index].clone()
        x += 0.1 * torch.randn(x.shape)
        self.last[index] = x
        return x, self.y[index]


class _Rolled(Dataset[Any]):
    """Turns an array's rows round."""

    def __init__(self, planted: bool) -> None:
        self.planted = planted
        x, self.y = _samples()
        self.images = x.numpy()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        image = self.images[index]
        turned = np.roll(image, 1)
        if self.planted:
            image[:] = turned
        return torch.from_numpy(turned), self.y[index]


class _Cached(Dataset[Any]):
    """Keeps samples that it has made in a dictionary."""

    def __init__(self, planted: bool) -> None:
        self.planted = planted
        self.raw, self.y = _samples()
        self.cache: dict[int, torch.Tensor] = {}

    def __len__(self) -> int:
        return len(self.raw)

    def __getitem__(self, index: int) -> Any:
        if index not in self.cache:
            self.cache[index] = self.raw[index] * 2
        x = self.cache[index]
        return (x.mul_(0.9) if self.planted else x.mul(0.9)), self.y[index]


def noise_written_into_the_dataset(planted: bool) -> None:
    """Noise is added in place to a row of the stored tensor."""
    _epochs(_Noisy(planted))


def augmented_array_behind_a_subset(planted: bool) -> None:
    """An array is changed, of a part of a dataset."""
    _epochs(Subset(_Rolled(planted), range(20, 52)))


def cached_sample_scaled_in_a_worker(planted: bool) -> None:
    """What a worker keeps is changed each time."""
    _epochs(_Cached(planted), workers=1)


def _stepped(after: Callable[[Any, nn.Module, int], None]) -> None:
    """Trains; `after` is called after each backward with optimizer, model and number."""
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for number in range(STEPS):
        x, y = rows()
        (20 * F.cross_entropy(model(x), y)).backward()
        after(optimizer, model, number)


def clipped_after_the_step(planted: bool) -> None:
    """step() and then clip_grad_norm_()."""

    def after(optimizer: Any, model: nn.Module, number: int) -> None:
        if planted:
            optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not planted:
            optimizer.step()
        optimizer.zero_grad()

    _stepped(after)


def clipped_in_a_hook(planted: bool) -> None:
    """A hook of the optimizer clips before its step; it is called after the step where planted."""

    def after(optimizer: Any, model: nn.Module, number: int) -> None:
        def clip(*_: Any) -> None:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)

        handle = None if planted else optimizer.register_step_pre_hook(clip)
        optimizer.step()
        if handle is None:
            clip()
        else:
            handle.remove()
        optimizer.zero_grad()

    _stepped(after)


def clipped_at_the_begin_of_the_next(planted: bool) -> None:
    """It comes between forward and backward; the twin accumulates and clips what it has."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for number in range(STEPS):
        x, y = rows()
        loss = 20 * F.cross_entropy(model(x), y)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if planted or number % 4 == 0:
            optimizer.zero_grad()
        loss.backward()
        if planted or number % 4 == 3:
            optimizer.step()


def clipped_by_a_function_of_the_end(planted: bool) -> None:
    """A function at the end of the loop clips; the twin's measures the norm only."""

    def after(optimizer: Any, model: nn.Module, number: int) -> None:
        optimizer.step()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0 if planted else float("inf"))
        optimizer.zero_grad()

    _stepped(after)


def _zeroed(every: int, steps: int) -> None:
    """Zeroes and steps each after so many passes."""

    def after(optimizer: Any, model: nn.Module, number: int) -> None:
        if number % steps == steps - 1:
            optimizer.step()
        if number % every == every - 1:
            optimizer.zero_grad(set_to_none=False)

    _stepped(after)


def zeroed_after_four_steps(planted: bool) -> None:
    """step() is in the inner loop of an accumulation of four passes."""
    _zeroed(4, 1 if planted else 4)


def zeroed_after_two_steps(planted: bool) -> None:
    """Of two."""
    _zeroed(2, 1 if planted else 2)


def zeroed_at_the_end_of_an_epoch(planted: bool) -> None:
    """Of ten, with a step after each second one."""
    _zeroed(10 if planted else 2, 2)


def clipped_while_it_is_scaled(planted: bool) -> None:
    """Clipping changes gradients, and they are still scaled; the twin unscales before."""

    def steps(scaler: Any, optimizer: Any, model: nn.Module) -> None:
        if not planted:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if planted:
            optimizer.step()  # named
        else:
            scaler.step(optimizer)
            scaler.update()

    _scaled(steps, torch.optim.AdamW, lr=1e-3)


_CALLS, _STEPS = "scalers, states and datasets", "gradients"

FAULTS = (
    *forms(
        "steps on scaled gradients",
        _CALLS,
        "exploding_gradient",
        "still scaled",
        optimizer_steps_beside_the_scaler,
        fused_optimizer_beside_the_scaler,
        accumulates_and_steps_beside_the_scaler,
        clipped_while_it_is_scaled,
    ),
    *forms(
        "a kept state without a copy",
        _CALLS,
        "shared_parameter",
        "restores nothing",
        best_state_without_a_copy,
        best_state_in_a_checkpoint,
        best_state_copied_as_a_dictionary,
    ),
    *forms(
        "a dataset that changes its samples",
        _CALLS,
        "inplace_modification",
        "stored sample",
        noise_written_into_the_dataset,
        augmented_array_behind_a_subset,
        cached_sample_scaled_in_a_worker,
    ),
    *forms(
        "gradients clipped after the step",
        _STEPS,
        "exploding_gradient",
        "after the optimizer has used them",
        clipped_after_the_step,
        clipped_at_the_begin_of_the_next,
        clipped_in_a_hook,
        clipped_by_a_function_of_the_end,
    ),
    *forms(
        "gradients zeroed for some steps only",
        _STEPS,
        "exploding_gradient",
        "zeroed for some steps only",
        zeroed_after_four_steps,
        zeroed_after_two_steps,
        zeroed_at_the_end_of_an_epoch,
    ),
)
