"""What the programs of bench_explosions are made of: a training, and what several of them share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Loss = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Training:
    """What one step does, how many steps there are, and the figure that is to fall.

    `loss` draws a batch of its own whenever it is called, from torch's random numbers.
    """

    step: Callable[[], object]
    loss: Loss
    steps: int = 60


Program = Callable[[], Training]


def into(programs: dict[str, Program]) -> Callable[[Program], Program]:
    """A decorator that puts a program into `programs`, under its function's name."""

    def add(program: Program) -> Program:
        programs[program.__name__] = program
        return program

    return add


def fit(optimizer: torch.optim.Optimizer, loss: Loss, steps: int = 60) -> Training:
    """The usual loop: the optimizer follows the gradient of the loss, a batch a step."""

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return Training(step, loss, steps)


def adam(model: nn.Module, lr: float = 1e-3) -> torch.optim.Optimizer:
    """Adam for all parameters."""
    return torch.optim.Adam(model.parameters(), lr=lr)


def adam_apart(model: nn.Module, lr: float, part: str, rate: float) -> torch.optim.Optimizer:
    """Adam with a rate of their own for parameters whose names begin with `part`."""
    named = list(model.named_parameters())
    groups: list[dict[str, Any]] = [
        {"params": [one for name, one in named if not name.startswith(part)]},
        {"params": [one for name, one in named if name.startswith(part)], "lr": rate},
    ]
    return torch.optim.Adam(groups, lr=lr)


def mlp(
    depth: int,
    width: int,
    activation: Callable[[], nn.Module] = nn.ReLU,
    *,
    inputs: int = 8,
    outputs: int = 1,
    std: float | None = None,
    norm: bool = False,
    bias: bool = True,
) -> nn.Sequential:
    """`depth` linear layers, all but the last with a norm, if wanted, and an activation.

    `std`: of the normal distribution that the hidden layers' weights are drawn from; None: torch's
    own initialisation.
    """
    layers: list[nn.Module] = []
    for before in [inputs] + [width] * (depth - 2):
        linear = nn.Linear(before, width, bias=bias)
        if std is not None:
            nn.init.normal_(linear.weight, std=std)
        layers += [linear, *([nn.LayerNorm(width)] if norm else []), activation()]
    return nn.Sequential(*layers, nn.Linear(width, outputs, bias=bias))


class Heads(nn.Module):
    """Several heads on one body, whose output has 64 elements: each by name with its outputs."""

    def __init__(self, body: nn.Module, **outputs: int) -> None:
        super().__init__()
        self.body = body
        self.heads = nn.ModuleDict({name: nn.Linear(64, one) for name, one in outputs.items()})

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """What each head returns, in the order in which they were given."""
        hidden = self.body(x)
        return [head(hidden) for head in self.heads.values()]


def regression(
    model: nn.Module,
    *,
    size: int = 64,
    width: int = 8,
    inputs: float = 1.0,
    targets: float = 1.0,
    offset: float = 0.0,
    reduction: str = "mean",
) -> Loss:
    """The squared error of a model that is to add `width` numbers, in batches of `size`.

    `inputs` and `targets` are the widths of its inputs and targets.
    """

    def loss() -> torch.Tensor:
        x = torch.randn(size, width)
        wanted = offset + targets * x.sum(1)
        return F.mse_loss(model(inputs * x)[:, 0], wanted, reduction=reduction)

    return loss
