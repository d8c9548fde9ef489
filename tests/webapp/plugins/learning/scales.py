"""Loss scales that collapse, or settle; gradients that are clipped while scaled."""

from __future__ import annotations

from collections.abc import Callable

import torch
from common import layers, program
from torch import nn


def scaled(overflows: Callable[[int], bool], steps: int, scale: float = 2.0**16) -> None:
    """Trains with a scaler; at steps that `overflows` names, a gradient is infinite."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=8)
    for step in range(steps):
        x = torch.ones(2, 4) * (float("inf") if overflows(step) else 1.0)
        scaler.scale(model(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@program
def scale_collapses() -> None:
    """As of the tenth step all gradients overflow."""
    scaled(lambda step: step >= 10, 40)


@program
def scale_settles() -> None:
    """A few skips at the start, one now and then later."""
    scaled(lambda step: step < 8 or step % 11 == 0, 60)


@program
def scale_begins_too_high() -> None:
    """It is halved forty times before the first step is taken."""
    scaled(lambda step: step < 40, 80, scale=2.0**60)


def clipped(*, unscaled: bool) -> None:
    """Clips at each step."""
    model, data = layers(2, 8, nn.Tanh), torch.randn(16, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu")
    for _ in range(12):
        scaler.scale((model(data) - 1).square().mean()).backward()
        if unscaled:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@program
def clipped_while_scaled() -> None:
    """unscale_ is missing."""
    clipped(unscaled=False)


@program
def clipped_when_unscaled() -> None:
    """It is not."""
    clipped(unscaled=True)
