"""Trainings whose gradients are too large for float32, and whose loss is still finite."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import Fault

STEPS = 10


class Sums(nn.Module):
    """Adds up a sequence by a recurrence of relu."""

    def __init__(self, deviation: float) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.inner = nn.RNN(2, 48, nonlinearity="relu", batch_first=True)
        nn.init.normal_(self.inner.weight_hh_l0, std=deviation)
        self.head = nn.Linear(48, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.inner(x)[0][:, -1]).squeeze(1)
        return out


def fit(model: nn.Module, length: int, factor: float = 1.0) -> None:
    """Learns sums of sequences."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(STEPS):
        x = torch.rand(16, length, 2)
        optimizer.zero_grad()
        F.mse_loss(model(x * factor), x.sum((1, 2))).backward()
        optimizer.step()


def wide_recurrent_weights(planted: bool) -> None:
    """Weights between steps are drawn too wide for the length."""
    fit(Sums(0.35 if planted else 0.1), 60)


def moderate_weights_of_a_long_sequence(planted: bool) -> None:
    """The same weights are fine for short sequences."""
    fit(Sums(0.25), 100 if planted else 5)


def inputs_in_the_smallest_unit(planted: bool) -> None:
    """Inputs are counted in a tiny unit, and not scaled."""
    fit(Sums(0.1), 8, factor=1e12 if planted else 1.0)


FAULTS = tuple(
    Fault("gradients above float32", "gradients", ("exploding_gradient",), one, says="too large")
    for one in (
        wide_recurrent_weights,
        moderate_weights_of_a_long_sequence,
        inputs_in_the_smallest_unit,
    )
)
