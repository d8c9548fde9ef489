"""Programs that are compared with a baseline whose optimizer goes on where it was, or whose layers
all drop out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.two_runs import two_run_faults

_STEPS, _RESUMED = 12, 8
"""Of a training, and the one before which it goes on with another optimizer."""


def _net() -> nn.Module:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))


def _train(model: nn.Module, optimizer: Any, steps: range) -> None:
    for step in steps:
        numbers = torch.Generator().manual_seed(step)
        x = torch.randn(16, 8, generator=numbers)
        optimizer.zero_grad()
        F.cross_entropy(model(x), (x.sum(1) > 0).long()).backward()
        optimizer.step()


def _resumed(kind: Callable[[Any], Any], keeps: bool) -> None:
    """Trains on with a new model and optimizer from the state of others; `keeps`: the optimizer's
    as well."""
    model = _net()
    optimizer = kind(model.parameters())
    _train(model, optimizer, range(_RESUMED))
    state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    model = _net()
    model.load_state_dict(state[0])
    optimizer = kind(model.parameters())
    if keeps:
        optimizer.load_state_dict(state[1])
    _train(model, optimizer, range(_RESUMED, _STEPS))


def _adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def _momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


def resumed_adam() -> None:
    """The baseline of what follows."""
    _resumed(_adam, keeps=True)


def resumed_momentum() -> None:
    """So with momentum."""
    _resumed(_momentum, keeps=True)


def adam_without_its_state(planted: bool) -> None:
    """The state of the optimizer is not loaded."""
    _resumed(_adam, keeps=not planted)


def momentum_without_its_state(planted: bool) -> None:
    """So with momentum."""
    _resumed(_momentum, keeps=not planted)


def plain_adam() -> None:
    """A training in one piece."""
    model = _net()
    _train(model, _adam(model.parameters()), range(_STEPS))


def moments_reset(planted: bool) -> None:
    """Something sets the moments to zero in the middle; in the twin a copy of them."""
    model = _net()
    optimizer = _adam(model.parameters())
    _train(model, optimizer, range(_RESUMED))
    state = optimizer.state if planted else copy.deepcopy(optimizer.state)
    for moments in state.values():
        moments["exp_avg"].zero_()
    _train(model, optimizer, range(_RESUMED, _STEPS))


class _Block(nn.Module):
    """A layer beside what it gets."""

    def __init__(self, drop: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.drop = nn.Linear(8, 8), drop

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(F.gelu(self.layer(x)))


def _dropping(*drops: Callable[[torch.Tensor], torch.Tensor]) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(*map(_Block, drops), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(_STEPS):
        x = torch.randn(16, 8)
        optimizer.zero_grad()
        F.cross_entropy(model(x), (x.sum(1) > 0).long()).backward()
        optimizer.step()


def _drop(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.1)


def _keep(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.0)


def _noise(x: torch.Tensor) -> torch.Tensor:
    return x + 0.1 * torch.randn_like(x)


def two_drop() -> None:
    """The baseline of what follows."""
    _dropping(_drop, _drop)


def noise_and_drop() -> None:
    """So with noise in the first block."""
    _dropping(_noise, _drop)


def last_block_keeps_all(planted: bool) -> None:
    """A rate of zero in the last block."""
    _dropping(_drop, _keep if planted else lambda x: _drop(x))


def first_block_keeps_all(planted: bool) -> None:
    """So in the first one."""
    _dropping(_keep if planted else lambda x: _drop(x), _drop)


def no_noise(planted: bool) -> None:
    """The noise is left out."""
    _dropping((lambda x: x) if planted else _noise, _drop)


class _Scaled(nn.Module):
    """Divides by running means; `kept`: they are part of the state."""

    def __init__(self, kept: bool) -> None:
        super().__init__()
        for name in ("mean", "size"):
            self.register_buffer(name, torch.ones(8), persistent=kept)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.mean.lerp_(x.mean(0), 0.1)
                self.size.lerp_(x.abs().mean(0), 0.1)
        return (x - self.mean) / self.size


def _saved(kept: bool, state_of: Callable[[nn.Module], Any], *first: nn.Module) -> None:
    """Trains, and goes on with a model that is built again."""

    def model() -> nn.Module:
        return nn.Sequential(*copy.deepcopy(first), _Scaled(kept), _net())

    now = model()
    _train(now, _momentum(now.parameters()), range(_RESUMED))
    state = state_of(now)
    now = model()
    now.load_state_dict(state, strict=False)
    _train(now, _momentum(now.parameters()), range(_RESUMED, _STEPS))


def _all(model: nn.Module) -> Any:
    return copy.deepcopy(model.state_dict())


def _clones(model: nn.Module) -> Any:
    return {name: one.clone() for name, one in model.state_dict().items()}


def saved_means() -> None:
    """The baseline of what follows."""
    _saved(True, _all)


def saved_means_behind_a_layer() -> None:
    """So with a layer before them."""
    _saved(True, _all, nn.Softsign())


def cloned_means() -> None:
    """So with tensors that are cloned one by one."""
    _saved(True, _clones)


def means_that_are_not_saved(planted: bool) -> None:
    """Buffers that are not persistent."""
    _saved(not planted, _all)


def means_behind_a_layer_that_are_not_saved(planted: bool) -> None:
    """So with a layer before them."""
    _saved(not planted, _all, nn.Softsign())


def means_that_are_not_cloned(planted: bool) -> None:
    """So with tensors that are cloned one by one."""
    _saved(not planted, _clones)


FAULTS = (
    *two_run_faults(
        "a lost state of an optimizer",
        "first update that differs is that of step 8",
        (adam_without_its_state, resumed_adam),
        (momentum_without_its_state, resumed_momentum),
        (moments_reset, plain_adam),
    ),
    *two_run_faults(
        "random numbers that one run leaves out in each step",
        "the baseline draws random numbers",
        (last_block_keeps_all, two_drop),
        (first_block_keeps_all, two_drop),
        (no_noise, noise_and_drop),
    ),
    *two_run_faults(
        "buffers that are not saved",
        " times, in the baseline ",
        (means_that_are_not_saved, saved_means),
        (means_behind_a_layer_that_are_not_saved, saved_means_behind_a_layer),
        (means_that_are_not_cloned, cloned_means),
    ),
)
