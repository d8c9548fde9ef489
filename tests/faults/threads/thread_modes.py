"""Modes of torch and threads: those that a mode does not reach, and that it holds for though
another function entered it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.pool import ThreadPool
from typing import Any

import torch
from torch import nn

from tests.faults.base import Fault, forms
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


# modes of functions that are suspended ------------------------------------------------------------


def _taught(teacher: nn.Module, planted: bool) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for _ in range(6):
        with torch.no_grad():
            x = torch.randn(16, 10)
            y = teacher(x)
            if planted:
                yield x, y
        if not planted:
            yield x, y


def batches_of_a_teacher(planted: bool) -> None:
    """A generator yields within no_grad, and all but the head is trained there; the twin's yields
    after it."""
    teacher, body, head = nn.Linear(10, 4), nn.Linear(10, 8), nn.Linear(8, 4)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], 0.1)
    for x, y in _taught(teacher, planted):
        hidden = body(x).relu()  # named
        with torch.enable_grad():
            loss = (head(hidden) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def evaluation_that_awaits(planted: bool) -> None:
    """A task awaits within no_grad, and the trainer's task goes on there; the twin's awaits others
    that it started for its evaluation, by the line that trains as well."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    async def error(x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(0.001)
        return net(x).square().mean()  # named

    async def train() -> None:
        for _ in range(12):
            loss = await error(torch.randn(16, 10))
            if loss.requires_grad:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    async def evaluate() -> None:
        for _ in range(4):
            with torch.no_grad():
                await asyncio.gather(*(error(torch.randn(64, 10)) for _ in range(2)))
            await asyncio.sleep(0.004)

    async def both() -> None:
        if planted:
            await asyncio.gather(train(), evaluate())
        else:
            await train()
            await evaluate()
            await train()

    asyncio.run(both())


class _Fakes:
    """What a generator makes of noise."""

    def __init__(self, planted: bool) -> None:
        self.make, self.planted = nn.Linear(4, 10), planted

    def __iter__(self) -> Iterator[torch.Tensor]:
        if self.planted:
            with torch.inference_mode():
                while True:
                    yield self.make(torch.randn(16, 4))
        while True:
            with _frozen(self.make):
                fake = self.make(torch.randn(16, 4))
            yield fake


@contextmanager
def _frozen(net: nn.Module) -> Iterator[nn.Module]:
    """A generator that is suspended on purpose."""
    with torch.no_grad():
        yield net


def critic_of_endless_fakes(planted: bool) -> None:
    """Fakes come from an iterator that stays in inference_mode, and the error of backward is
    silenced; the twin enters no_grad by a generator that is a context manager."""
    fakes, critic = iter(_Fakes(planted)), model()
    optimizer = torch.optim.SGD(critic.parameters(), 0.1)
    for _ in range(6):
        optimizer.zero_grad()
        loss = critic(next(fakes)).square().mean()  # named
        try:
            loss.backward()
        except RuntimeError as error:
            print(error)
        optimizer.step()
        with _frozen(critic) as frozen:
            frozen(torch.randn(8, 10))


# modes that a task leaves on ----------------------------------------------------------------------


Submit = Callable[..., Callable[[], Any]]
"""Gives a function and its arguments to a pool; returns what waits for the result."""


def _shares(submit: Submit, score: Callable[[nn.Module, torch.Tensor], object]) -> None:
    """Trains on the sum of two losses that a pool computes, and scores in a task of the pool."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    both = threading.Barrier(2)

    def error(x: torch.Tensor) -> torch.Tensor:
        both.wait()  # the other thread takes the next one
        with torch.no_grad():
            net(x)  # what a thread enters and leaves itself
        return net(x).square().mean()

    for step in range(16):
        losses = [submit(error, torch.randn(16, 10)) for _ in range(2)]
        loss = torch.stack([one() for one in losses]).sum()
        if loss.requires_grad:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step == 6:
            submit(score, net, torch.randn(64, 10))()


def scores_of_a_pool(planted: bool) -> None:
    """Scoring turns gradients off and does not turn them on; the twin's does."""

    def score(net: nn.Module, x: torch.Tensor) -> None:
        torch.set_grad_enabled(False)
        net(x).mean()
        torch.set_grad_enabled(not planted)

    with ThreadPool(2) as pool:
        _shares(lambda function, *args: pool.apply_async(function, args).get, score)


def scores_of_an_executor(planted: bool) -> None:
    """A function of the program turns gradients off; the twin's is a `with`."""

    def frozen() -> None:
        torch.set_grad_enabled(mode=False)

    def score(net: nn.Module, x: torch.Tensor) -> None:
        if planted:
            frozen()
            net(x).mean()
        else:
            with torch.set_grad_enabled(mode=False):
                net(x).mean()

    with ThreadPoolExecutor(2) as pool:
        _shares(lambda function, *args: pool.submit(function, *args).result, score)


def scores_that_raise(planted: bool) -> None:
    """An error keeps a task from turning gradients on again; the twin does so in any case."""

    def score(net: nn.Module, x: torch.Tensor) -> None:
        torch.set_grad_enabled(False)
        try:
            net(x).mean()
            if planted:
                raise ValueError("no labels")
        finally:
            if not planted:
                torch.set_grad_enabled(True)

    def caught(net: nn.Module, x: torch.Tensor) -> None:
        try:
            score(net, x)
        except ValueError as error:
            print(error)

    with ThreadPoolExecutor(2) as pool:
        _shares(lambda function, *args: pool.submit(function, *args).result, caught)


FAULTS = (
    tuple(
        Fault(MODES, ROOM, ("lost_context",), form, says="does not reach", slow=True)
        for form in (
            layers_built_by_a_thread,
            layers_built_by_a_pool,
            trainer_started_within_no_grad,
            fine_tuning_in_a_pool,
            scores_after_training,
        )
    )
    + forms(
        "training within no_grad of a suspended function",
        ROOM,
        "lost_context",
        "without gradients",
        batches_of_a_teacher,
        evaluation_that_awaits,
        critic_of_endless_fakes,
    )
    + forms(
        "gradients that a task of a pool leaves off",
        ROOM,
        "lost_context",
        "without gradients",
        scores_of_a_pool,
        scores_of_an_executor,
        scores_that_raise,
    )
)
