"""Threads that take locks, or call collectives, in an order that is left to chance."""

from __future__ import annotations

import asyncio
import queue
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.faults.base import Fault, ctrl_c_at_rest
from tests.faults.ranks.one_model import STEPS, begin, rank_faults
from tests.faults.threads.waiting import deadlocks, work

ROUNDS = 20


def _after(thread: Callable[[], None], then: Callable[[], None], apart: Callable[[], Any]) -> None:
    """Runs one function on a thread and, in the same seconds, another one on this thread. What is
    `apart` in time, so that they do not meet, is chance."""
    other = threading.Thread(target=thread, name="other", daemon=True)
    other.start()
    apart()
    then()
    other.join()


def learner_and_actor(planted: bool) -> None:
    """One locks the model and then the buffer, the other the buffer and then the model."""
    model, buffer = nn.Linear(8, 2), [torch.randn(8)]
    model_lock, buffer_lock = threading.RLock(), threading.Condition()

    def act() -> None:
        for _ in range(ROUNDS):
            if planted:
                with buffer_lock, model_lock:
                    buffer.append(torch.randn(8) + model(buffer[-1]).detach().sum())
            else:
                with model_lock, buffer_lock:
                    buffer.append(torch.randn(8) + model(buffer[-1]).detach().sum())

    def learn() -> None:
        for _ in range(ROUNDS):
            with model_lock, buffer_lock:
                model(torch.stack(buffer[-4:])).sum().item()

    _after(act, learn, lambda: time.sleep(0.5))


class _Shard:
    """A part of a table under a lock; `number` is its place in the order."""

    def __init__(self, number: int) -> None:
        self.number, self.lock, self.rows = number, threading.Lock(), torch.zeros(8)

    def move_to(self, other: _Shard, *, in_order: bool) -> None:
        """Moves what it holds to another part."""
        one, two = self, other
        if in_order and other.number < self.number:
            one, two = other, self
        with one.lock, two.lock:
            other.rows += self.rows
            self.rows.zero_()


def rows_moved_between_shards(planted: bool) -> None:
    """Each move locks its source first; the twin locks in the order of their numbers."""
    shards = [_Shard(number) for number in range(3)]

    def there() -> None:
        for _ in range(ROUNDS):
            shards[0].move_to(shards[2], in_order=not planted)

    def back() -> None:
        for _ in range(ROUNDS):
            shards[2].move_to(shards[0], in_order=not planted)

    _after(there, back, lambda: time.sleep(0.5))


def saver_and_trainer(planted: bool) -> None:
    """A saver locks the file and then the model; the trainer logs into the file with the model
    locked. The twin's saver has ended before."""
    model, lines = nn.Linear(8, 2), list[float]()
    weights, file = threading.Lock(), threading.Lock()
    saved = threading.Event()

    def save() -> None:
        with file, weights:
            lines.extend(one.detach().norm().item() for one in model.parameters())
        saved.set()

    def train() -> None:
        with weights:
            loss = model(torch.randn(4, 8)).sum()
            with file:
                lines.append(loss.item())

    _after(save, train, (lambda: time.sleep(0.5)) if planted else saved.wait)


def orders_under_a_third_lock(planted: bool) -> None:
    """A lock around both keeps the two orders apart in the twin."""
    one, two, both = threading.Lock(), threading.Lock(), threading.Lock()
    total = torch.zeros(4)

    def add(first: Any, second: Any, outer: Any) -> None:
        for _ in range(ROUNDS):
            with outer, first, second:
                total.add_(1)

    def apart() -> None:
        add(two, one, threading.Lock() if planted else both)

    _after(lambda: add(one, two, both), apart, lambda: time.sleep(0.5))


# locks that their own thread holds ---------------------------------------------------------------


def callback_of_a_future_that_is_done(planted: bool) -> None:
    """A callback takes the lock under which it is added: where the task is done it runs at once."""
    lock, done = threading.Lock(), list[float]()
    pool = ThreadPoolExecutor(2)

    def store(future: Future[torch.Tensor]) -> None:
        with lock:
            done.append(float(future.result()))

    ctrl_c_at_rest()
    for _ in range(4):
        future = pool.submit(work)
        future.exception()
        if planted:
            with lock:
                future.add_done_callback(store)
        else:
            future.add_done_callback(store)
    pool.shutdown()


def handler_that_saves(planted: bool) -> None:
    """A signal comes while the lock is held that its handler takes."""
    lock = threading.RLock() if not planted else threading.Lock()
    threading.Thread(target=work).start()

    def save(*_: Any) -> None:
        with lock:
            work()

    signal.signal(signal.SIGUSR1, save)
    ctrl_c_at_rest()
    with lock:
        work()
        signal.raise_signal(signal.SIGUSR1)


def listener_that_answers(planted: bool) -> None:
    """A listener is called with the lock held, and asks for a value under the same lock."""
    lock, values, listeners = threading.Lock(), [torch.ones(3)], list[Callable[[], Any]]()
    idle: queue.Queue[None] = queue.Queue()
    threading.Thread(target=idle.get, daemon=True).start()

    def read() -> float:
        with lock:
            return float(values[-1].sum())

    listeners.append(read)
    ctrl_c_at_rest()
    with lock:
        values.append(work())
        for listener in listeners if planted else ():
            listener()
    for listener in listeners:
        listener()


# loops of asyncio that a thread does not wake ----------------------------------------------------


def _on_a_thread(planted: bool, make: Callable[[], Any], leave: Callable[[Any], Any]) -> None:
    """A thread leaves its result with a loop; the twin's asks the loop to take it."""

    async def main() -> None:
        loop, one = asyncio.get_running_loop(), make()

        def compute() -> None:
            work()
            time.sleep(0.2)  # by then the loop rests
            leave(one) if planted else loop.call_soon_threadsafe(leave, one)

        threading.Thread(target=compute).start()
        await (one if isinstance(one, asyncio.Future) else _next(one))

    work()
    ctrl_c_at_rest()
    asyncio.run(main())


async def _next(one: Any) -> None:
    await (one.wait() if isinstance(one, asyncio.Event) else one.get())


def event_set_by_a_thread(planted: bool) -> None:
    """An event says that a result is there."""
    _on_a_thread(planted, asyncio.Event, lambda event: event.set())


def item_put_by_a_thread(planted: bool) -> None:
    """A queue takes results."""
    _on_a_thread(planted, asyncio.Queue, lambda items: items.put_nowait(1))


def future_set_by_a_thread(planted: bool) -> None:
    """A future takes the result."""
    _on_a_thread(
        planted,
        lambda: asyncio.get_running_loop().create_future(),
        lambda future: future.set_result(1),
    )


# groups that two threads share -------------------------------------------------------------------


def metrics_beside_gradients(planted: bool) -> None:
    """A thread adds up metrics in the group of the gradients; the twin's has its own."""
    begin()
    group = None if planted else dist.new_group([0, 1])

    def report() -> None:
        for _ in range(STEPS):
            dist.all_reduce(torch.ones(4), group=group)

    def train() -> None:
        for _ in range(STEPS):
            dist.all_reduce(torch.randn(4))  # of one size: whichever meets, nothing fails

    _after(report, train, lambda: None)


def barrier_of_a_saver(planted: bool) -> None:
    """A saver's thread waits for the other ranks while training goes on; the twin joins it."""
    begin()
    lock = threading.Lock()

    def save() -> None:
        with lock:
            dist.all_reduce(torch.ones(1))

    thread = threading.Thread(target=save)
    thread.start()
    if not planted:
        thread.join()
    for _ in range(STEPS):
        with lock:
            dist.all_reduce(torch.ones(1))
    thread.join()


def sizes_gathered_in_a_pool(planted: bool) -> None:
    """A task of a pool gathers while gradients are added up; the twin asks for its result first."""
    begin()
    pool = ThreadPoolExecutor(1)

    def gather() -> None:
        dist.all_reduce(torch.ones(1))

    for _ in range(STEPS):
        task = pool.submit(gather)
        if not planted:
            task.result()
        dist.all_reduce(torch.ones(1))
        task.result()
    pool.shutdown()


FAULTS = (
    *(
        Fault("locks in opposite orders", "waiting", ("deadlock",), form, says="opposite orders")
        for form in (
            learner_and_actor,
            rows_moved_between_shards,
            saver_and_trainer,
            orders_under_a_third_lock,
        )
    ),
    *deadlocks(
        "a lock that its own thread holds",
        callback_of_a_future_that_is_done,
        handler_that_saves,
        listener_that_answers,
        says="holds itself",
    ),
    *deadlocks(
        "a loop of asyncio that a thread does not wake",
        event_set_by_a_thread,
        item_put_by_a_thread,
        future_set_by_a_thread,
        says="call_soon_threadsafe",
    ),
    *rank_faults(
        "threads that share a process group",
        "collective_mismatch",
        "in no fixed order",
        metrics_beside_gradients,
        barrier_of_a_saver,
        sizes_gathered_in_a_pool,
    ),
)
