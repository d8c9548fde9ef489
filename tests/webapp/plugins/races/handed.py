"""What threads hand to each other by futures, callbacks and queues of multiprocessing: rightly, so
that none of it races."""

from __future__ import annotations

import asyncio
import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.futures import Future, collect_all, wait_all

from tests.webapp.plugins.races.common import together


def later() -> None:
    """Whoever waits for what follows has to wait."""
    time.sleep(0.01)


def called_after_it_was_added() -> None:
    """What lets the task go knows nothing of the write; the callback does."""
    total, go, added = torch.zeros(3), threading.Event(), []

    def let_go() -> None:
        while not added:
            time.sleep(0.001)
        go.set()

    def add() -> None:
        with ThreadPoolExecutor(1) as pool:
            task = pool.submit(go.wait)
            total.mul_(2)
            task.add_done_callback(lambda _: total.add_(1))
            added.append(True)

    together(add, let_go)


def then_waited_for() -> None:
    total, first = torch.zeros(3), Future[int]()
    last = first.then(lambda _: total.add_(1)).then(lambda one: one.value().mul_(2))

    def work() -> None:
        total.add_(3)
        later()
        first.set_result(1)

    def wait() -> None:
        last.wait()
        total.sum()

    together(wait, work)


def then_that_raised() -> None:
    total, first = torch.zeros(3), Future[int]()

    def spoil(_: Future[int]) -> None:
        total.add_(1)
        raise ValueError

    last = first.then(spoil)

    def work() -> None:
        later()
        first.set_result(1)

    def wait() -> None:
        try:
            last.wait()
        except (ValueError, RuntimeError):
            total.sum()

    together(wait, work)


def collected() -> None:
    parts, total = [torch.zeros(3) for _ in range(4)], torch.zeros(3)
    futures = [Future[torch.Tensor]() for _ in parts]

    def work() -> None:
        later()
        for part, future in zip(parts[:2], futures[:2], strict=True):
            part.add_(1)
            future.set_result(part)

    def more() -> None:
        later()
        for part, future in zip(parts[2:], futures[2:], strict=True):
            part.add_(1)
            future.set_result(part)

    def gather() -> None:
        added = collect_all(futures).then(
            lambda all_of: [total.add_(one.value()) for one in all_of.value()]
        )
        for part in wait_all(futures):
            part.sum()
        added.wait()
        total.sum()

    together(gather, work, more)


def called_when_done() -> None:
    total, first, done = torch.zeros(3), Future[int](), threading.Event()
    total.mul_(3)

    def finish(one: Future[int]) -> None:
        total.add_(one.value())
        done.set()

    first.add_done_callback(finish)

    def work() -> None:
        later()
        first.set_result(1)

    def wait() -> None:
        done.wait()
        total.sum()

    together(wait, work)


def a_loop_in_a_thread() -> None:
    total, loop = torch.zeros(3), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def add() -> None:
        await asyncio.to_thread(total.add_, 1)
        total.mul_(2)

    for _ in range(2):
        total.add_(1)
        asyncio.run_coroutine_threadsafe(add(), loop).result()
    done = threading.Event()
    asyncio.run_coroutine_threadsafe(add(), loop).add_done_callback(lambda _: done.set())
    done.wait()
    total.sum()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def copies_through_queues() -> None:
    total = torch.zeros(3)
    context = multiprocessing.get_context("spawn")
    for queue in (context.Queue(), context.SimpleQueue()):

        def put(send: Callable[[int], None] = queue.put) -> None:
            total.add_(1)
            send(1)

        def take(receive: Callable[[], int] = queue.get) -> None:
            receive()
            total.mul_(2)

        together(put, take)
    joined: multiprocessing.JoinableQueue[int] = context.JoinableQueue()

    def work() -> None:
        total.add_(joined.get())
        joined.task_done()

    def ask() -> None:
        joined.put(1)
        joined.join()
        total.mul_(2)

    together(ask, work)


def answered_by_another_process() -> None:
    total = torch.zeros(3)
    # Two pipes whose other ends a process holds: what it gets from one it sends into the other.
    asked, asking = multiprocessing.Pipe(duplex=False)
    answer, answering = multiprocessing.Pipe(duplex=False)
    relay = "import sys\nfrom multiprocessing.connection import Connection as End\n"
    relay += "End(int(sys.argv[2])).send(End(int(sys.argv[1])).recv())"
    ends = asked.fileno(), answering.fileno()
    command = [sys.executable, "-S", "-c", relay, *map(str, ends)]
    process = subprocess.Popen(command, pass_fds=ends)

    def ask() -> None:
        total.add_(1)
        asking.send(1)

    def take() -> None:
        answer.recv()
        total.mul_(2)

    together(ask, take)
    process.wait()


def run() -> None:
    for clean in (
        called_after_it_was_added,
        then_waited_for,
        then_that_raised,
        collected,
        called_when_done,
        a_loop_in_a_thread,
        copies_through_queues,
        answered_by_another_process,
    ):
        clean()
