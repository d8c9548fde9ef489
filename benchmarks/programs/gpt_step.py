"""The work whose cost is compared: a training step of the example's GPT, at the default sizes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional as F

BATCH = 4  # windows of 128 tokens that a rank sees in a step


def training_step(batch: int = BATCH) -> Callable[[], None]:
    """Makes model, optimizer and `batch` windows; returns what takes one step with them."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
    import train_gpt

    torch.manual_seed(0)
    model = train_gpt.GPT(layers=4, dim=256, heads=4, seq=128, dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, 256, (batch, 129))

    def step() -> None:
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step
