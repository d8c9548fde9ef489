"""Contrastive losses whose targets are the pairs of each sample with itself."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import forms

_PAIRS, _WIDTH, _STEPS = 16, 12, 8


def _train(loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    """Trains an encoder; `loss_of` gets two views of some samples."""
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(_WIDTH, 32), nn.ReLU(), nn.Linear(32, 16))
    optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
    for _ in range(_STEPS):
        x = torch.randn(_PAIRS, _WIDTH)
        first, second = (
            F.normalize(encoder(x + 0.1 * torch.randn_like(x)), dim=1) for _ in range(2)
        )
        optimizer.zero_grad()
        loss_of(first, second).backward()
        optimizer.step()


def labels_of_all_views(planted: bool) -> None:
    """SimCLR: all views are compared with all; the twin hides the diagonal."""

    def loss_of(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        views = torch.cat([first, second])
        scores = views @ views.T / 0.2
        if planted:
            return F.cross_entropy(scores, torch.arange(2 * _PAIRS))  # named
        scores = scores.masked_fill(torch.eye(2 * _PAIRS, dtype=torch.bool), -1e9)
        return F.cross_entropy(scores, torch.arange(2 * _PAIRS).roll(_PAIRS))

    _train(loss_of)


def one_view_twice(planted: bool) -> None:
    """The second view is not used."""

    def loss_of(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        other = first if planted else second
        return F.cross_entropy(first @ other.mT * 10, torch.arange(_PAIRS))  # named

    _train(loss_of)


def both_directions_of_one_view(planted: bool) -> None:
    """Rows and columns, as for pictures and texts."""

    def loss_of(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        scores = second @ (second if planted else first).T / 0.1
        labels = torch.arange(_PAIRS)
        return (F.cross_entropy(scores, labels) + F.cross_entropy(scores.T, labels)) / 2

    _train(loss_of)


FAULTS = forms(
    "samples that are their own partners",
    "losses and modes",
    "wrong_loss",
    "each sample is its own partner",
    labels_of_all_views,
    one_view_twice,
    both_directions_of_one_view,
)
