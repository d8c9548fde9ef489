"""Trainings in float16 whose gradients are too small for it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import Fault

STEPS = 12


def fit(model: nn.Module, *, factor: float, scaled: bool, dtype: torch.dtype) -> None:
    """Learns the mean of rows of 16 numbers within autocast."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    for _ in range(STEPS):
        x = torch.randn(16, 16)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype):
            out = model(x).flatten()
        loss = factor * F.mse_loss(out.float(), x.mean(1))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


def net() -> nn.Module:
    """Two layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1))


def small_loss_without_a_scaler(planted: bool) -> None:
    """The weight of a loss is small; the twin has a scaler."""
    fit(net(), factor=1e-7, scaled=not planted, dtype=torch.float16)


def small_loss_in_another_half(planted: bool) -> None:
    """The twin takes bfloat16."""
    fit(net(), factor=1e-8, scaled=False, dtype=torch.float16 if planted else torch.bfloat16)


def convolution_of_a_small_loss(planted: bool) -> None:
    """Convolutions of images; the twin has a larger weight."""
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 1)
    model = nn.Sequential(nn.Unflatten(1, (1, 4, 4)), *layers)
    fit(model, factor=1e-8 if planted else 1.0, scaled=False, dtype=torch.float16)


FAULTS = tuple(
    Fault(
        "gradients below float16",
        "scalers, states and datasets",
        ("dead_parameter",),
        one,
        says="scale the loss",
    )
    for one in (
        small_loss_without_a_scaler,
        small_loss_in_another_half,
        convolution_of_a_small_loss,
    )
)
