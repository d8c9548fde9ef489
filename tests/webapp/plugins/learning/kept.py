"""Gradients that are never zeroed, and those that are, or that are added up on purpose."""

from __future__ import annotations

from typing import Any

import torch
from common import layers, program
from torch import nn
from torch.nn import functional as F


def _steps(optimizer: Any, model: nn.Module, passes: int = 1, before: Any = lambda: None) -> Any:
    """Eight steps; yields after each."""
    for _ in range(8):
        before()
        for _ in range(passes):
            model(torch.randn(4, 8)).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield


def _adversaries(forgets: bool, to_none: bool) -> None:
    """The loss of the generator reaches the discriminator too."""
    generator, critic = layers(2, 8, nn.ReLU), layers(2, 8, nn.ReLU)
    optimizers = [torch.optim.Adam(one.parameters()) for one in (generator, critic)]
    for _ in range(8):
        made = generator(torch.randn(4, 8))
        optimizers[0].zero_grad(to_none)
        F.softplus(-critic(made)).mean().backward()
        optimizers[0].step()
        if not forgets:
            optimizers[1].zero_grad(to_none)
        F.softplus(critic(made.detach())).mean().backward()
        optimizers[1].step()


@program
def never_zeroed() -> None:
    model = layers(2, 8, nn.Tanh)
    list(_steps(torch.optim.AdamW(model.parameters(), fused=True), model, passes=2))


@program
def one_never_zeroed() -> None:
    _adversaries(forgets=True, to_none=True)


@program
def zeroed_late() -> None:
    """What the critic got from the generator's loss is zeroed before its own."""
    _adversaries(forgets=False, to_none=False)


@program
def let_go_late() -> None:
    _adversaries(forgets=False, to_none=True)


@program
def added_up() -> None:
    """Over three passes, on purpose."""
    model = layers(2, 8, nn.Tanh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in _steps(optimizer, model, passes=3):
        optimizer.zero_grad()


@program
def zeroed_by_hand() -> None:
    model = layers(2, 8, nn.Tanh)
    for _ in _steps(torch.optim.SGD(model.parameters(), lr=0.01), model):
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.data.zero_()


@program
def zeroed_now_and_then() -> None:
    model = layers(2, 8, nn.Tanh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for number, _ in enumerate(_steps(optimizer, model)):
        if number == 3:
            optimizer.zero_grad()


@program
def faded() -> None:
    """Gradients that lose a tenth from step to step, on purpose."""
    model = layers(2, 8, nn.Tanh)

    def fade() -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.9)

    list(_steps(torch.optim.SGD(model.parameters(), lr=0.01), model, before=fade))
