"""Programs that build their model again in the same process, and go on from a checkpoint of it."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.two_runs import batches, net, two_run_faults

_RESUMED = 5
"""The step before which the model is built again."""


def _adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def _momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def _train(
    optimizer: Callable[[nn.Module], torch.optim.Optimizer],
    parts: tuple[str, ...] = (),
    make: Callable[[], nn.Module] = net,
) -> None:
    """Trains; with parts of a checkpoint, what they name is restored in the middle."""
    built = _build(optimizer, make)
    for step, (x, y) in enumerate(batches()):
        if parts and step == _RESUMED:
            file = io.BytesIO()
            torch.save({name: one.state_dict() for name, one in built.items()}, file)
            file.seek(0)
            states = torch.load(file)
            built = _build(optimizer, make)
            for name in parts:
                built[name].load_state_dict(states[name])
        built["optimizer"].zero_grad()
        F.cross_entropy(built["model"](x), y).backward()
        built["optimizer"].step()
        built["schedule"].step()


def _build(optimizer: Any, make: Any) -> dict[str, Any]:
    model = make()
    steps = optimizer(model)
    schedule = torch.optim.lr_scheduler.StepLR(steps, 2, 0.5)
    return {"model": model, "optimizer": steps, "schedule": schedule}


def plain_adam() -> None:
    """A baseline that trains without a stop."""
    _train(_adam)


def plain_momentum() -> None:
    """So with momentum."""
    _train(_momentum)


def _tanh() -> nn.Module:
    net()  # draws the same numbers as others
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def plain_sequence() -> None:
    """So with a model of modules in a row."""
    _train(_adam, make=_tanh)


def moments_that_are_lost(planted: bool) -> None:
    """The state of Adam is not loaded, nor that of the schedule."""
    _train(_adam, ("model",) if planted else ("model", "optimizer", "schedule"))


def momentum_that_is_lost(planted: bool) -> None:
    """The schedule is loaded, and sets the rate; the momentum is not."""
    _train(_momentum, ("model", "schedule") if planted else ("model", "optimizer", "schedule"))


def moments_of_a_sequence(planted: bool) -> None:
    """The layers have numbers as names."""
    _train(_adam, ("model",) if planted else ("model", "optimizer", "schedule"), _tanh)


FAULTS = two_run_faults(
    "a model built again without the optimizer's state",
    "does not restore all of the update",
    (moments_that_are_lost, plain_adam),
    (momentum_that_is_lost, plain_momentum),
    (moments_of_a_sequence, plain_sequence),
)
