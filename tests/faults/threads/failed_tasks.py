"""Tasks of asyncio that fail, and that others then wait for until somebody presses Ctrl-C."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.faults.base import ctrl_c_at_rest
from tests.faults.threads.waiting import deadlocks, work

_KEPT: list[Any] = []
"""Tasks that nothing awaits."""


def _in_background(coroutine: Any) -> None:
    _KEPT.append(asyncio.get_running_loop().create_task(coroutine))


def producer_meets_a_record_without_label(planted: bool) -> None:
    """A task fills the queue of the trainer."""

    async def produce(items: Any) -> None:
        for number in range(6):
            record = {} if planted and number == 3 else {"label": number}
            await items.put(record["label"] * work())
        await items.put(None)

    async def main() -> None:
        items: asyncio.Queue[Any] = asyncio.Queue()
        _in_background(produce(items))
        while (await items.get()) is not None:
            work()

    ctrl_c_at_rest()
    asyncio.run(main())


def loading_fails_before_its_event(planted: bool) -> None:
    """A task sets an event once the model is loaded."""

    async def load(ready: Any) -> None:
        await asyncio.sleep(0.01)
        if planted:
            raise FileNotFoundError("model.pt")
        ready.set()

    async def main() -> None:
        ready = asyncio.Event()
        _in_background(load(ready))
        work()
        await ready.wait()

    ctrl_c_at_rest()
    asyncio.run(main())


def batcher_fails_with_a_request(planted: bool) -> None:
    """A task answers requests through futures; one has another shape."""

    async def serve(requests: Any) -> None:
        while True:
            x, answer = await requests.get()
            answer.set_result((x @ work().expand(16)).sum())

    async def main() -> None:
        requests: asyncio.Queue[Any] = asyncio.Queue()
        _in_background(serve(requests))
        for number in range(3):
            size = 15 if planted and number == 2 else 16
            answer = asyncio.get_running_loop().create_future()
            await requests.put((work().expand(size), answer))
            await answer

    ctrl_c_at_rest()
    asyncio.run(main())


FAULTS = deadlocks(
    "a task of asyncio that failed, and is waited for",
    producer_meets_a_record_without_label,
    loading_fails_before_its_event,
    batcher_fails_with_a_request,
    says="a task of asyncio raised",
)
