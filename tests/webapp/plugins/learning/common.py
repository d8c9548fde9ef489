"""What the programs of this folder have in common: their list, and a loop that trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

STEPS = 12
PROGRAMS: dict[str, Callable[[], None]] = {}


def program(function: Callable[[], None]) -> Callable[[], None]:
    """Adds a program under its name."""
    PROGRAMS[function.__name__] = function
    return function


def train(
    model: Any,
    optimizer: Any,
    data: torch.Tensor,
    steps: int = STEPS,
    clip: float | None = None,
    each: Callable[[int], Any] = lambda step: None,
    before: Callable[[], Any] = lambda: None,
) -> None:
    """Fits the outputs to 1."""
    for step in range(steps):
        each(step)
        (model(data) - 1).square().mean().backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        before()
        optimizer.step()
        optimizer.zero_grad()


def layers(depth: int, width: int, activation: type[nn.Module], **settings: Any) -> nn.Sequential:
    """Linear layers with an activation behind each but the last."""
    parts: list[nn.Module] = []
    for _ in range(depth):
        parts += [nn.Linear(width, width, **settings), activation()]
    return nn.Sequential(*parts[:-1])
