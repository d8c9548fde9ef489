"""Models that one thread evaluates while another one trains them: both share the mode."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext

import torch
from torch import nn

from tests.faults.base import forms
from tests.faults.threads.torch_threads import ROOM

_MOST, _SPOILED = 4000, 4
"""Steps, and how often a planted program waits to see the mode of another thread begin."""


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 64), nn.BatchNorm1d(64), nn.Dropout(0.2), nn.Linear(64, 3))


def _evaluate(net: nn.Module, batches: int = 20) -> None:
    net.eval()
    with torch.no_grad():
        for _ in range(batches):
            net(torch.randn(64, 10))
    net.train()


def _steps(net: nn.Module, planted: bool) -> Iterator[None]:
    """Trains before each item; until evaluation mode began some times, or for 60 steps."""
    optimizer, spoiled, trained = torch.optim.SGD(net.parameters(), 0.01), 0, True
    for step in range(_MOST):
        optimizer.zero_grad()
        before, trained = trained, net.training
        spoiled += before and not trained
        net(torch.randn(16, 10)).square().mean().backward()
        optimizer.step()
        yield
        if spoiled >= _SPOILED if planted else step >= 60:
            return


def evaluator_beside_the_trainer(planted: bool) -> None:
    """A thread evaluates now and then; the twin's takes a lock, and so does each step."""
    net, stop = _model(), threading.Event()
    lock = nullcontext() if planted else threading.Lock()

    def watch() -> None:
        while not stop.wait(0.005):
            with lock:
                _evaluate(net)

    thread = threading.Thread(target=watch)
    thread.start()
    steps = _steps(net, planted)
    going = True
    while going:
        with lock:
            going = next(steps, 0) is None
    stop.set()
    thread.join()


def evaluation_of_each_epoch_in_a_pool(planted: bool) -> None:
    """A pool scores the model while the next epoch begins; the twin gives it a copy."""
    net, scores = _model(), list[Future[None]]()
    with ThreadPoolExecutor(1) as pool:
        for step, _ in enumerate(_steps(net, planted)):
            if step % 10 == 0:
                scores.append(pool.submit(_evaluate, net if planted else copy.deepcopy(net)))
        for one in scores:
            one.result()


def evaluation_of_a_service(planted: bool) -> None:
    """A service evaluates in a thread, and trains on meanwhile; the twin awaits the result."""
    net = _model()

    async def serve() -> None:
        tasks = list[asyncio.Task[None]]()
        for step, _ in enumerate(_steps(net, planted)):
            if step % 10 == 0:
                tasks.append(asyncio.create_task(asyncio.to_thread(_evaluate, net)))
            if not planted:
                await tasks[-1]
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)

    asyncio.run(serve())


def evaluation_of_each_epoch_in_a_thread(planted: bool) -> None:
    """Each epoch starts a thread that evaluates and never calls train(); the twin gives it a
    copy."""
    net, threads = _model(), list[threading.Thread]()

    def watch(own: nn.Module) -> None:
        own.eval()
        with torch.no_grad():
            for _ in range(20):
                own(torch.randn(64, 10))

    for step, _ in enumerate(_steps(net, planted)):
        if step % 10 == 0:
            net.train()
        if step % 10 == 4:
            own = net if planted else copy.deepcopy(net)
            threads.append(threading.Thread(target=watch, args=(own,)))
            threads[-1].start()
    for one in threads:
        one.join()


FAULTS = forms(
    "training in the evaluation mode of another thread",
    ROOM,
    "evaluation_mode",
    "in evaluation mode in",
    evaluator_beside_the_trainer,
    evaluation_of_each_epoch_in_a_pool,
    evaluation_of_a_service,
    evaluation_of_each_epoch_in_a_thread,
)
