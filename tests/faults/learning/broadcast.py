"""Losses of shapes that are broadcast: [N, 1] and [N] become [N, N]."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.faults.learning.losses import fit, loss_faults, mlp


def squared_error_of_a_column(planted: bool) -> None:
    """Outputs of shape [N, 1] and targets of [N]."""

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        out = out if planted else out.squeeze(1)
        return (out - x.sum(1)).square().mean()  # named

    fit(mlp(outputs=1), loss_of)


def value_function_of_a_column(planted: bool) -> None:
    """Returns minus values; the twin compares all outputs with each other, on purpose."""

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        returns = x.sum(1)
        if planted:
            return 0.5 * (returns - out).pow(2).sum() / len(x)  # named
        scores = out.squeeze(1)
        margins = (scores[:, None] - scores) * (returns[:, None] - returns).sign()
        return (1 - margins).relu().mean()

    fit(mlp(outputs=1), loss_of)


def huber_loss_of_a_column(planted: bool) -> None:
    """torch's own loss, whose warning is lost in the log."""

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        targets = x.sum(1) if planted else x.sum(1, keepdim=True)
        return F.smooth_l1_loss(out, targets)  # named

    fit(mlp(outputs=1), loss_of)


def centres_beside_a_column(planted: bool) -> None:
    """Outputs and centres that are drawn to the rows: each centre is compared with all of them, on
    purpose, and in the twin nothing else is."""
    model = mlp(outputs=1)
    centres = nn.Parameter(torch.linspace(0.1, 2, 32)[:, None])
    model.register_parameter("centres", centres)

    def loss_of(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        far = F.softplus(centres) + 0.1 - x[:, 0]
        out = out if planted else out.squeeze(1)
        return (out - x.sum(1)).square().mean() + far.square().mean()  # named

    fit(model, loss_of)


FAULTS = (
    *loss_faults(
        "a loss that is broadcast",
        "wrong_loss",
        "are broadcast to",
        squared_error_of_a_column,
        value_function_of_a_column,
        huber_loss_of_a_column,
        centres_beside_a_column,
    ),
)
