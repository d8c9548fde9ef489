"""Trainings whose settings, or whose loss, teach a parameter nothing."""

from __future__ import annotations

import torch
from torch import nn

from tests.faults.base import Fault

ROOM = "optimizer settings"


def backbone_frozen_with_the_head() -> None:
    """All parameters are frozen for a warm-up, and only the backbone is let loose again."""
    torch.manual_seed(0)
    body, head = nn.Linear(12, 16), nn.Linear(16, 3)
    model = nn.Sequential(body, nn.ReLU(), head)
    model.requires_grad_(False)
    body.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(12):
        x, y = torch.randn(8, 12), torch.randint(3, (8,))
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def backbone_trained_with_the_head() -> None:
    """All of it is let loose."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(12):
        x, y = torch.randn(8, 12), torch.randint(3, (8,))
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


FAULTS = (
    Fault(
        "frozen parameters in an optimizer",
        ROOM,
        ("dead_parameter",),
        backbone_frozen_with_the_head,
        backbone_trained_with_the_head,
        says="2.weight",
    ),
)
