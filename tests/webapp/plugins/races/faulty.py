"""Backward that runs into trouble with other threads. Lines that findings must name are marked
with a name and a side: "# fault: NAME a"."""

from __future__ import annotations

import contextlib
import threading

import torch
from torch import nn

from tests.webapp.plugins.races.common import together

MODELS: list[nn.Module] = []
"""Kept: memory that another model gets has the names of both."""


def changed_before_backward() -> None:
    weight = torch.randn(4, 4, requires_grad=True)
    hidden = (torch.randn(2, 4) @ weight).exp()  # fault: changed saved
    loss = (hidden * 2).sum()

    def spoil() -> None:
        hidden.detach().add_(1)  # fault: changed culprit
        hidden.detach().mul_(2)

    thread = threading.Thread(target=spoil, name="spoiler")
    thread.start()
    thread.join()
    with contextlib.suppress(RuntimeError):
        loss.backward()  # fault: changed raised


def stepped_before_backward() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    MODELS.append(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = model(torch.randn(3, 4)).sum()
    second = model(torch.randn(3, 4)).sum()  # fault: stepped saved
    first.backward()
    optimizer.step()  # fault: stepped culprit
    with contextlib.suppress(RuntimeError):
        second.backward()  # fault: stepped raised


def backward_at_once() -> None:
    model = nn.Linear(64, 64, bias=False)
    begun = threading.Barrier(2)
    hidden = model(torch.randn(8, 64))

    def meet(gradient: torch.Tensor) -> torch.Tensor:
        begun.wait()  # both are in backward now
        return gradient

    def work() -> None:
        own = hidden * 2
        own.register_hook(meet)
        own.sum().backward(retain_graph=True)  # fault: at_once both

    together(work, work)


def hogwild() -> None:
    model = nn.Linear(8, 1)
    turns = [threading.Barrier(3) for _ in range(3)]

    def train() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for turn in turns:
            model(torch.ones(2, 8)).square().mean().backward()
            turn.wait()  # or one of them might be through before the next begins
            # Without zero_grad(): gradients set to None would be freed while another thread steps,
            # which crashes such a program now and then, also where it is not recorded.
            optimizer.step()  # fault: hogwild step

    together(train, train, train)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for fault in (changed_before_backward, stepped_before_backward, backward_at_once, hogwild):
        fault()
