"""Autoencoders with a table of codes, whose encoder gets no gradient from the decoder."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import forms

_WIDTH, _CODE, _STEPS = 12, 6, 8


class _Coder(nn.Module):
    """Passes codes straight through, unless a fault is planted."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.encoder = nn.Sequential(nn.Linear(_WIDTH, 16), nn.ReLU(), nn.Linear(16, _CODE))
        self.decoder = nn.Sequential(nn.Linear(_CODE, 16), nn.ReLU(), nn.Linear(16, _WIDTH))
        self.table = nn.Parameter(torch.randn(20, _CODE))

    def nearest(self, z: torch.Tensor) -> torch.Tensor:
        return F.embedding(torch.cdist(z, self.table).argmin(1), self.table)  # named

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = self.encoder(x)
        codes = self.nearest(z)
        beside = F.mse_loss(codes, z.detach()) + 0.25 * F.mse_loss(z, codes.detach())
        return self.decoder(codes if self.planted else z + (codes - z).detach()), beside


def _train(model: nn.Module) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(_STEPS):
        x = torch.randn(16, _WIDTH)
        out, beside = model(x)
        optimizer.zero_grad()
        (F.mse_loss(out, x) + beside).backward()
        optimizer.step()


def codes_of_an_embedding(planted: bool) -> None:
    """The distances of cdist."""
    torch.manual_seed(0)
    _train(_Coder(planted))


def codes_of_squares(planted: bool) -> None:
    """Distances by squares and a product. The twin has a layer between its codes and the straight
    way."""

    class Squares(_Coder):
        def __init__(self) -> None:
            super().__init__(planted)
            self.out = nn.Linear(_CODE, _CODE) if not planted else nn.Identity()

        def nearest(self, z: torch.Tensor) -> torch.Tensor:
            product = z @ self.table.T
            far = z.square().sum(1, keepdim=True) - 2 * product + self.table.square().sum(1)
            made: torch.Tensor = self.out(self.table[far.argmin(dim=1)])  # named
            return made

    torch.manual_seed(0)
    _train(Squares())


def codes_of_positions(planted: bool) -> None:
    """A code for each position. The twin's codes are targets, and its decoder gets no code."""

    class Positions(_Coder):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            z = self.encoder(x.view(4, 4, _WIDTH)).reshape(-1, _CODE)
            far = torch.cdist(z[None], self.table[None])[0]
            codes = torch.index_select(self.table, 0, far.argmin(-1))  # named
            made = self.decoder(codes if planted else z)
            return made, F.mse_loss(codes, z.detach()) + 0.25 * F.mse_loss(z, codes.detach())

    torch.manual_seed(0)
    _train(Positions(planted))


FAULTS = forms(
    "codes that pass no gradient on",
    "losses and modes",
    "wrong_gradient",
    "pass no gradient to what they are the nearest rows to",
    codes_of_an_embedding,
    codes_of_squares,
    codes_of_positions,
)
