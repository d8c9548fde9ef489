"""Trainings in which gradients end at a reentrant checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.faults.base import Fault

STEPS = 16


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(16, 16).requires_grad_(requires_grad=False)
        self.lora_A = nn.Linear(16, 2, bias=False)
        self.lora_B = nn.Linear(2, 16, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = x + torch.tanh(self.base(x) + self.lora_B(self.lora_A(x)))
        return out


def adapters_behind_a_frozen_embedding(planted: bool) -> None:
    """Each block runs in a checkpoint; the twin's embeddings require a gradient."""
    torch.manual_seed(0)
    embedding = nn.Embedding(20, 16).requires_grad_(requires_grad=False)
    blocks, head = nn.ModuleList([Adapted(), Adapted()]), nn.Linear(16, 20)
    optimizer = torch.optim.AdamW([*blocks.parameters(), *head.parameters()], lr=1e-3)
    for _ in range(STEPS):
        tokens = torch.randint(0, 20, (4, 6))
        hidden = embedding(tokens)
        if not planted:
            hidden.requires_grad_()
        for block in blocks:
            hidden = checkpoint(block.__call__, hidden, use_reentrant=True)  # named
        loss = F.cross_entropy(head(hidden).flatten(0, 1), tokens.roll(-1, 1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def images(model: nn.Module, classify: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Classifies by the channel of the greatest mean."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(STEPS):
        x = torch.randn(8, 3, 8, 8)
        loss = F.cross_entropy(classify(x), x.mean((2, 3)).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def stem_that_gets_the_images(planted: bool) -> None:
    """The data needs no gradient, so the first part of the network gets none."""
    torch.manual_seed(0)
    stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU())
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))

    def classify(x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(stem, x, use_reentrant=planted)  # named
        out: torch.Tensor = head(hidden)
        return out

    images(nn.ModuleList([stem, head]), classify)


def segments_by_closures(planted: bool) -> None:
    """A function made for each part; the twin runs the first part without a checkpoint."""
    torch.manual_seed(0)
    parts = nn.ModuleList(nn.Sequential(nn.Linear(192, 192), nn.ReLU()) for _ in range(2))
    head = nn.Linear(192, 3)

    def custom(part: nn.Module) -> Callable[..., Any]:
        def forward(*inputs: Any) -> Any:
            return part(*inputs)

        return forward

    def classify(x: torch.Tensor) -> torch.Tensor:
        hidden = x.flatten(1)
        for number, part in enumerate(parts):
            if number or planted:
                hidden = checkpoint(custom(part), hidden, use_reentrant=True)  # named
            else:
                hidden = part(hidden)
        out: torch.Tensor = head(hidden)
        return out

    images(nn.ModuleList([parts, head]), classify)


FAULTS = tuple(
    Fault(
        "gradients that end at a checkpoint",
        "losses and modes",
        ("dead_parameter",),
        program,
        says="use_reentrant=True",
    )
    for program in (
        adapters_behind_a_frozen_embedding,
        stem_that_gets_the_images,
        segments_by_closures,
    )
)
