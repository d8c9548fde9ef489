"""Losses that weigh outputs of the shape [N, 1] by numbers of the shape [N]."""

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


FAULTS = forms(
    "weights that are broadcast",
    "losses and modes",
    "wrong_loss",
    "are broadcast to",
    advantages_of_log_probabilities,
    advantages_of_ratios,
    weights_of_squares,
)
