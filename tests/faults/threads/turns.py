"""Tasks that train one model in turns, and give way within an update."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import torch
from torch import nn

from tests.faults.base import forms
from tests.faults.threads.loader_workers import ROOM

_ROUNDS = 12


class _Online:
    """A model that is updated with each piece of data as it comes."""

    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
        self.optimizer = torch.optim.SGD(self.net.parameters(), 0.05)

    def backward(self) -> None:
        x = torch.randn(8, 6)
        self.optimizer.zero_grad()
        (self.net(x).squeeze(1) - x.sum(1)).square().mean().backward()


def streams_that_log_in_between(planted: bool) -> None:
    """Two streams await a server between backward() and step(); the twin's hold a lock."""
    model = _Online()

    async def stream(lock: asyncio.Lock) -> None:
        for _ in range(_ROUNDS):
            if planted:
                await update()
            else:
                async with lock:
                    await update()
            await asyncio.sleep(0)

    async def update() -> None:
        model.backward()
        await asyncio.sleep(0)  # a turn of the loop: they mix however long a pass takes
        model.optimizer.step()

    async def main() -> None:
        lock = asyncio.Lock()
        await asyncio.gather(stream(lock), stream(lock))

    asyncio.run(main())


def generators_in_turns(planted: bool) -> None:
    """Trainers are generators, which one loop goes through; the twin's yield after updates."""
    model = _Online()

    def trainer() -> Iterator[None]:
        while True:
            model.backward()
            if planted:
                yield
            model.optimizer.step()
            yield

    trainers = [trainer() for _ in range(3)]
    for _ in range(2 * _ROUNDS):
        for one in trainers:
            next(one)


def callbacks_after_a_reply(planted: bool) -> None:
    """The step waits for a reply, by a callback; the twin's callback asks for the next one.

    A reply takes a turn of the loop, not a time: so they mix however long a pass takes.
    """
    model = _Online()
    left = [_ROUNDS, _ROUNDS]

    def begin(loop: asyncio.AbstractEventLoop, number: int) -> None:
        model.backward()
        if planted:
            loop.call_soon(replied, loop, number)
        else:
            model.optimizer.step()
            loop.call_soon(again, loop, number)

    def replied(loop: asyncio.AbstractEventLoop, number: int) -> None:
        model.optimizer.step()
        again(loop, number)

    def again(loop: asyncio.AbstractEventLoop, number: int) -> None:
        left[number] -= 1
        if left[number]:
            loop.call_soon(begin, loop, number)
        elif not any(left):
            loop.stop()

    loop = asyncio.new_event_loop()
    for number in range(2):
        loop.call_soon(begin, loop, number)
    loop.run_forever()
    loop.close()


def streams_that_await_their_data(planted: bool) -> None:
    """Two streams zero the gradients before they await a batch, and log before they step: their
    gradients add up, and the second step finds none. The twin awaits only outside of updates."""
    net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    optimizer = torch.optim.SGD(net.parameters(), 0.05)

    async def stream() -> None:
        for _ in range(_ROUNDS):
            if planted:
                optimizer.zero_grad()
            await asyncio.sleep(0)
            if not planted:
                optimizer.zero_grad()
            x = torch.randn(8, 6)
            (net(x).squeeze(1) - x.sum(1)).square().mean().backward()
            if planted:
                await asyncio.sleep(0)
            optimizer.step()

    async def main() -> None:
        await asyncio.gather(stream(), stream())

    asyncio.run(main())


def generators_that_zero_at_last(planted: bool) -> None:
    """Three trainers zero the gradients after the step, and give way before it; the twin's give
    way after updates of three passes."""
    net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1))
    optimizer = torch.optim.Adam(net.parameters(), 0.01)

    def trainer() -> Iterator[None]:
        while True:
            for _ in range(1 if planted else 3):
                x = torch.randn(8, 6)
                (net(x).squeeze(1) - x.sum(1)).square().mean().backward()
            if planted:
                yield
            optimizer.step()
            optimizer.zero_grad()
            yield

    trainers = [trainer() for _ in range(3)]
    for _ in range(2 * _ROUNDS):
        for one in trainers:
            next(one)


FAULTS = forms(
    "updates of one model that mix",
    ROOM,
    "wrong_gradient",
    "Updates of one model mix",
    streams_that_log_in_between,
    generators_in_turns,
    callbacks_after_a_reply,
    streams_that_await_their_data,
    generators_that_zero_at_last,
)
