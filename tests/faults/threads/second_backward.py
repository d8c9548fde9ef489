"""Graphs that a backward has freed, and another one goes through: the program catches the error."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import forms

_STEPS = 6


def _back(loss: torch.Tensor, failed: list[str]) -> None:
    try:
        loss.backward()  # the fault
    except RuntimeError as error:
        failed.append(str(error))


def heads_of_one_graph(planted: bool) -> None:
    """Each head has a thread of its own; in the twin they begin at a copy of the features."""
    encoder, heads = nn.Sequential(nn.Linear(8, 16), nn.Tanh()), [nn.Linear(16, 1) for _ in "ab"]
    parameters = [*encoder.parameters(), *(p for head in heads for p in head.parameters())]
    optimizer, failed = torch.optim.SGD(parameters, 0.05), []
    for _ in range(_STEPS):
        optimizer.zero_grad()
        features = encoder(torch.randn(16, 8))
        cut = [features if planted else features.detach().requires_grad_() for _ in heads]
        losses = [head(one).square().mean() for head, one in zip(heads, cut, strict=True)]
        for loss in losses:
            thread = threading.Thread(target=_back, args=(loss, failed))
            thread.start()
            thread.join()
        if not planted:
            features.backward(sum(one.grad for one in cut))
        optimizer.step()
    assert bool(failed) == planted


def state_of_the_last_window(planted: bool) -> None:
    """A recurrent net goes on with its state, and skips what fails; the twin detaches the state."""
    cell = nn.GRUCell(4, 8)
    optimizer, failed = torch.optim.SGD(cell.parameters(), 0.05), []
    state = torch.zeros(2, 8)
    for _ in range(_STEPS):
        optimizer.zero_grad()
        state = cell(torch.randn(2, 4), state if planted else state.detach())
        _back(state.square().mean(), failed)
        optimizer.step()
    assert bool(failed) == planted


def critic_and_generator(planted: bool) -> None:
    """Both losses have the made samples in their graph; the critic of the twin gets a copy."""
    maker, critic = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizers: list[Any] = [torch.optim.SGD(one.parameters(), 0.02) for one in (maker, critic)]
    failed: list[str] = []
    for _ in range(_STEPS):
        made = maker(torch.randn(16, 4)).tanh()
        for sign in (-1, 1):
            for optimizer in optimizers:
                optimizer.zero_grad()
            seen = made if planted or sign == 1 else made.detach()
            _back(F.softplus(sign * critic(seen)).mean(), failed)
            optimizers[sign == -1].step()
    assert bool(failed) == planted


FAULTS = forms(
    "an error of backward that is caught",
    "threads and processes of torch",
    "lost_error",
    "another backward has freed the graph",
    heads_of_one_graph,
    state_of_the_last_window,
    critic_and_generator,
)
