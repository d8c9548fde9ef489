"""Losses that weigh outputs of shape [N, 1] by numbers of shape [N], or divergences by 0."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.distributions import Normal

from tests.faults.base import forms

_ROWS, _STEPS = 32, 8

Loss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Of means, actions and advantages."""


def _train(loss_of: Loss, planted: bool) -> None:
    """Trains a policy with one action. The twin's outputs have no second dimension."""
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-3)
    for _ in range(_STEPS):
        state = torch.randn(_ROWS, 4)
        mean = policy(state) if planted else policy(state).squeeze(1)
        action = mean.detach() + torch.randn_like(mean)
        optimizer.zero_grad()
        loss_of(mean, action, state[:, 0] - state[:, 1]).backward()
        optimizer.step()


def advantages_of_log_probabilities(planted: bool) -> None:
    """REINFORCE."""

    def loss_of(mean: torch.Tensor, action: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
        return -(Normal(mean, 1.0).log_prob(action) * advantage).mean()  # named

    _train(loss_of, planted)


def advantages_of_ratios(planted: bool) -> None:
    """PPO: the lesser of two products."""

    def loss_of(mean: torch.Tensor, action: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
        now = Normal(mean, 1.0).log_prob(action)
        ratio = (now - now.detach() - 0.01).exp()
        least = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        return -least.mean()

    _train(loss_of, planted)


def weights_of_squares(planted: bool) -> None:
    """A regression whose samples have weights; the twin's outer product goes into a layer."""

    def loss_of(mean: torch.Tensor, action: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
        return ((mean - action).square() * advantage.abs()).sum() / _ROWS  # named

    if planted:
        _train(loss_of, planted)
        return
    torch.manual_seed(0)
    first, last = nn.Linear(4, 1), nn.Linear(_ROWS, 1)
    optimizer = torch.optim.Adam([*first.parameters(), *last.parameters()], lr=1e-3)
    for _ in range(_STEPS):
        wave = (first(torch.randn(_ROWS, 4)) * torch.arange(float(_ROWS))).sin()
        optimizer.zero_grad()
        last(wave).square().mean().backward()
        optimizer.step()


# divergences -------------------------------------------------------------------------------------


class _Coder(nn.Module):
    """A variational autoencoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(10, 8), nn.Linear(4, 10)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, logvar = self.encoder(x).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (0.5 * logvar).exp()
        return self.decoder(code), mean, logvar


def _anneals(weight: Callable[[int], float], *, samples: bool = True, steps: int = 40) -> None:
    torch.manual_seed(0)
    model = _Coder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(steps):
        x = torch.randn(16, 10)
        out, mean, logvar = model(x)
        error = (out - x).square().mean()
        apart = 1 + logvar - mean.square() - logvar.exp()  # named
        divergence = -0.5 * (apart.sum(1).mean() if samples else apart.mean())
        optimizer.zero_grad()
        (error + weight(step) * divergence).backward()
        optimizer.step()


def annealing_by_whole_numbers(planted: bool) -> None:
    """A ramp over 100 steps; 40 are trained."""
    _anneals(lambda step: step // 100 if planted else step / 100)


def annealing_that_is_not_counted(planted: bool) -> None:
    """A counter that stays. The twin begins late."""
    _anneals(lambda step: 0.0 if planted else float(step > 20), samples=False)


def annealing_of_an_epoch(planted: bool) -> None:
    """The ramp gets the epoch, and there is one. The twin weighs little."""
    _anneals(lambda step: 0.5 * (step // 70) if planted else 1e-4, steps=66)


FAULTS = (
    *forms(
        "a divergence of weight 0",
        "losses and modes",
        "wrong_loss",
        "has the weight 0",
        annealing_by_whole_numbers,
        annealing_that_is_not_counted,
        annealing_of_an_epoch,
    ),
    *forms(
        "weights that are broadcast",
        "losses and modes",
        "wrong_loss",
        "are broadcast to",
        advantages_of_log_probabilities,
        advantages_of_ratios,
        weights_of_squares,
    ),
)
