"""Statements that compute something and throw it away, as a name is missing before them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import forms

Forward = Callable[["_Net", torch.Tensor], torch.Tensor]


class _Net(nn.Module):
    """Layers, and something between them."""

    def __init__(self, between: Forward) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(12, 24), nn.Linear(24, 3)
        self.drop = nn.Dropout(0.2)
        self.offsets = nn.Parameter(torch.randn(24) * 0.1)
        self.seen: list[torch.Tensor] = []
        self.between = between

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.between(self, self.first(x)))
        return out


def _train(between: Forward) -> None:
    torch.manual_seed(0)
    net = _Net(between)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    for _ in range(10):
        x = torch.randn(32, 12)
        loss = F.cross_entropy(net(x), x[:, :3].argmax(1)) + 1e-3 * net.offsets.square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def relu_without_a_name(planted: bool) -> None:
    """The function returns another tensor; that of the twin writes into its argument."""

    def between(_: _Net, x: torch.Tensor) -> torch.Tensor:
        if planted:
            F.relu(x)  # named
        else:
            F.relu(x, inplace=True)
        return x

    _train(between)


def dropout_without_a_name(planted: bool) -> None:
    """A module of torch; the twin keeps what it returns, as hooks would, and reads it later."""

    def between(self: _Net, x: torch.Tensor) -> torch.Tensor:
        if planted:
            self.drop(x)  # named
            return x
        self.seen.append(self.drop(x).relu())
        return x + self.seen.pop()

    _train(between)


def offsets_that_are_added_in_vain(planted: bool) -> None:
    """A sum; the twin looks at one, and prints it."""

    def between(self: _Net, x: torch.Tensor) -> torch.Tensor:
        if planted:
            x + self.offsets  # named
            return x
        print((x + self.offsets).mean())
        self.seen.append((x * self.offsets).mean())
        return x + self.offsets

    _train(between)


def masked_without_an_underscore(planted: bool) -> None:
    """masked_fill() for masked_fill_()."""

    def between(_: _Net, x: torch.Tensor) -> torch.Tensor:
        hidden = x < -1
        x = x * 1.0
        if planted:
            x.masked_fill(hidden, 0.0)  # named
        else:
            x.masked_fill_(hidden, 0.0)
        return x

    _train(between)


FAULTS = forms(
    "a result that is thrown away",
    "learning",
    "dead_parameter",
    "gives its result no name",
    relu_without_a_name,
    dropout_without_a_name,
    offsets_that_are_added_in_vain,
    masked_without_an_underscore,
)
