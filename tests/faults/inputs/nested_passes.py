"""Backward passes that go through the graphs of those before them once more."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import forms

_WIDTH, _WINDOWS, _SEQUENCES = 8, 8, 3

Window = Callable[[nn.Module, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""From cell, state and data of a window to state and loss."""


def _windows(
    cell: nn.Module, window: Window, carry: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """Trains on sequences, with a backward for each window, and a step for each sequence. `carry`
    makes of a state that of the next window."""
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.01)
    for _ in range(_SEQUENCES):
        state = torch.zeros(4, _WIDTH)
        optimizer.zero_grad()
        for _ in range(_WINDOWS):
            state, loss = window(cell, carry(state), torch.randn(4, 5, _WIDTH))
            (loss / _WINDOWS).backward(retain_graph=True)  # named
        optimizer.step()


def state_of_windows(planted: bool) -> None:
    """Each window begins with the state of the last one; the twin detaches it."""
    torch.manual_seed(0)

    def window(
        cell: nn.Module, state: torch.Tensor, x: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        for part in x.unbind(1):
            state = cell(part, state)
        return state, F.mse_loss(state, x.mean(1))

    _windows(nn.GRUCell(_WIDTH, _WIDTH), window, lambda h: h if planted else h.detach())


def backward_at_each_position(planted: bool) -> None:
    """Each position has a backward. The twin's history is as long as two positions, as is meant."""
    torch.manual_seed(0)
    cell = nn.GRUCell(_WIDTH, _WIDTH)
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.01)
    for _ in range(_SEQUENCES):
        states, x = [torch.zeros(4, _WIDTH)], torch.randn(4, 10, _WIDTH)
        optimizer.zero_grad()
        for number, part in enumerate(x.unbind(1)):
            if planted:
                states.append(cell(part, states[-1]))
            else:
                begin = max(0, number - 2)
                state = states[begin].detach()
                for again in range(begin, number + 1):
                    state = cell(x[:, again], state)
                states.append(state)
            F.mse_loss(states[-1], part).backward(retain_graph=True)
        optimizer.step()


def average_with_its_graph(planted: bool) -> None:
    """A running mean of features is a part of each loss. The twin's losses share a forward."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(_WIDTH, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(_SEQUENCES):
        mean, shared = torch.zeros(4), model(torch.randn(16, _WIDTH))
        optimizer.zero_grad()
        for number in range(_WINDOWS):
            if planted:
                out = model(torch.randn(16, _WIDTH))
                mean = 0.9 * mean + 0.1 * out.mean(0)
                loss = (out - mean).square().mean()
            else:
                loss = (shared - number).abs().mean()
            loss.backward(retain_graph=True)
        optimizer.step()


FAULTS = forms(
    "passes that go through all before them",
    "memory and checkpoints",
    "growth",
    "goes through the graphs of those before it again",
    state_of_windows,
    backward_at_each_position,
    average_with_its_graph,
)
