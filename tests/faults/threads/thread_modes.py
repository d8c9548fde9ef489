"""Threads that are started within a mode of torch, which does not reach them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from tests.faults.base import Fault
from tests.faults.threads.torch_threads import MODES, ROOM, model


def _within(mode: torch.no_grad | torch.device, work: Callable[[], object]) -> None:
    """Runs `work` in a thread that is started within a mode."""
    with mode:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()


def _train(net: nn.Module, steps: int = 4) -> None:
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(8, 10)).square().mean().backward()
        optimizer.step()


def layers_built_by_a_thread(planted: bool) -> None:
    """A thread builds layers, whose parameters torch.empty makes; the twin's has the mode too."""

    def build() -> None:
        if planted:
            nn.Linear(32, 32)
        else:
            with torch.device("meta"):
                nn.Linear(32, 32)

    _within(torch.device("meta"), build)


def layers_built_by_a_pool(planted: bool) -> None:
    """So in a pool, with noise that is filled in; the twin names the device."""
    device = None if planted else "meta"
    with torch.device("meta"), ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(torch.empty, 8, 8, device=device) for _ in range(4)]:
            one.result()
        list(pool.map(lambda width: nn.Linear(width, 4, device=device), [4, 8, 16]))


def trainer_started_within_no_grad(planted: bool) -> None:
    """The twin's thread trains: it wants the graph."""
    net = model()
    _within(torch.no_grad(), lambda: net(torch.randn(64, 10)) if planted else _train(net))


def fine_tuning_in_a_pool(planted: bool) -> None:
    """Models are compared in no_grad by a pool; the twin's tasks train each of them before."""
    nets = [model() for _ in range(3)]

    def score(net: nn.Module) -> float:
        if not planted:
            _train(net)
            with torch.no_grad():
                return float(net(torch.ones(4, 10)).sum())
        return float(net(torch.ones(4, 10)).sum().detach())

    with torch.no_grad(), ThreadPoolExecutor(2) as pool:
        list(pool.map(score, nets))


def scores_after_training(planted: bool) -> None:
    """The twin's thread takes gradients of its inputs."""
    net = model()

    def saliency() -> None:
        x = torch.ones(4, 10, requires_grad=True)
        y = net(x).sum()
        if not planted:
            torch.autograd.grad(y, x)

    _within(torch.no_grad(), saliency)


FAULTS = tuple(
    Fault(MODES, ROOM, ("lost_context",), form, says="does not reach", slow=True)
    for form in (
        layers_built_by_a_thread,
        layers_built_by_a_pool,
        trainer_started_within_no_grad,
        fine_tuning_in_a_pool,
        scores_after_training,
    )
)
