"""What the programs of this folder have in common."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import nn


def together(*functions: Callable[[], object]) -> None:
    """Runs all but the first in threads of their own, and waits for them."""
    threads = [threading.Thread(target=function) for function in functions[1:]]
    for thread in threads:
        thread.start()
    functions[0]()
    for thread in threads:
        thread.join()


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
