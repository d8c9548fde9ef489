"""Programs whose threads, tasks or processes wait for each other until somebody presses Ctrl-C."""

from __future__ import annotations

import asyncio
import queue
import subprocess
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from tests.faults.base import Fault, ctrl_c_at_rest


def work() -> torch.Tensor:
    """A little of it."""
    return torch.randn(16, 16).tanh().sum()


def start(function: Any, *arguments: Any) -> threading.Thread:
    """A daemon thread, as they are in most programs."""
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def prefetcher_and_trainer_with_full_queues(planted: bool) -> None:
    """A prefetcher hands on batches and takes back buffers; both queues are bounded and full."""
    batches: queue.Queue[Any] = queue.Queue(maxsize=2)
    buffers: queue.Queue[Any] = queue.Queue(maxsize=2 if planted else 0)

    def prefetch() -> None:
        for _ in range(8):
            batches.put(work())
            if planted:
                batches.put(work())
                batches.put(work())
            buffers.get()

    thread = start(prefetch)
    ctrl_c_at_rest()
    for _ in range(8):
        buffers.put(work())
        if planted:
            buffers.put(work())
            buffers.put(work())
        batches.get()
    thread.join()


def pipeline_of_three_stages(planted: bool) -> None:
    """Stages hand results to the next and reports to the first, which takes none while it puts."""
    first: queue.Queue[Any] = queue.Queue(1)
    second: queue.Queue[Any] = queue.Queue(1)
    reports: queue.Queue[Any] = queue.Queue(1 if planted else 100)

    def stage(source: Any, target: Any) -> None:
        while (item := source.get()) is not None:
            reports.put(float(work()))
            target.put(item + 1)

    results: queue.Queue[Any] = queue.Queue(1 if planted else 100)
    threads = [start(stage, first, second), start(stage, second, results)]
    ctrl_c_at_rest()
    for number in range(10):
        first.put(number)
    for _ in range(10):
        results.get()
    first.put(None)
    threads[0].join()


def writer_with_two_semaphores(planted: bool) -> None:
    """A ring of slots: the reader frees them in pairs, the writer waits for one more."""
    free, full = threading.Semaphore(3), threading.Semaphore(0)

    def write() -> None:
        for _ in range(9):
            free.acquire()
            work()
            full.release()

    thread = start(write)
    ctrl_c_at_rest()
    for _ in range(9 if not planted else 2):
        for _ in range(4 if planted else 1):
            full.acquire()
        for _ in range(4 if planted else 1):
            free.release()
    thread.join()


def task_waits_in_its_own_pool(planted: bool) -> None:
    """A task submits another to the pool of one thread that runs it, and waits."""
    pool = ThreadPoolExecutor(1 if planted else 2)

    def outer() -> float:
        return float(work()) + float(pool.submit(work).result())

    task = pool.submit(outer)
    ctrl_c_at_rest()
    task.result()
    pool.shutdown()


def recursion_through_a_pool(planted: bool) -> None:
    """A tree is reduced by tasks that wait for their children, on as many threads as the tree is
    wide."""
    pool = ThreadPoolExecutor(2 if planted else 8)
    work()

    def reduce(depth: int) -> torch.Tensor:
        if depth == 0:
            return work()
        left, right = (pool.submit(reduce, depth - 1) for _ in range(2))
        return left.result() + right.result()

    root = pool.submit(reduce, 2)
    ctrl_c_at_rest()
    root.result()
    pool.shutdown()


def map_within_a_map(planted: bool) -> None:
    """Each of three datasets is mapped over by the pool that maps over the datasets."""
    pool = ThreadPoolExecutor(3)
    inner = pool if planted else ThreadPoolExecutor(3)
    gate = threading.Barrier(3)
    work()

    def dataset(index: int) -> float:
        gate.wait()
        return sum(float(one) for one in inner.map(lambda _: work(), range(4)))

    results = pool.map(dataset, range(3))
    ctrl_c_at_rest()
    list(results)


def event_of_a_worker_that_has_ended(planted: bool) -> None:
    """A worker returns early, and never sets the event that says it is done."""
    done = threading.Event()

    def worker() -> None:
        if float(work()) > 1e9 or not planted:
            done.set()

    start(worker)
    ctrl_c_at_rest()
    done.wait()


def worker_died_before_it_notified(planted: bool) -> None:
    """A thread raises, and main waits on its condition."""
    ready, box = threading.Condition(), list[torch.Tensor]()

    def worker() -> None:
        if planted:
            torch.randn(3, 4) @ torch.randn(3, 4)
        with ready:
            box.append(work())
            ready.notify()

    start(worker)
    ctrl_c_at_rest()
    with ready:
        while not box:
            ready.wait()


def tasks_of_a_worker_that_raised(planted: bool) -> None:
    """Ctrl-C ends the wait long after the watchdog has reported it."""
    jobs: queue.Queue[int] = queue.Queue()

    def worker() -> None:
        while True:
            torch.randn(4, jobs.get()) @ torch.randn(4, 4)
            jobs.task_done()

    start(worker)
    for number in range(4):
        jobs.put(3 if planted and number == 2 else 4)
    if planted:
        subprocess.run(["sh", "-c", "(sleep 10; kill -INT $PPID) >/dev/null 2>&1 &"], check=True)
    jobs.join()


def barrier_for_one_too_many(planted: bool) -> None:
    """Three threads and main meet at a barrier that is for five."""
    barrier = threading.Barrier(5 if planted else 4)

    def worker() -> None:
        work()
        barrier.wait()

    for _ in range(3):
        start(worker)
    ctrl_c_at_rest()
    barrier.wait()


def future_that_is_never_set(planted: bool) -> None:
    """A callback sets the future of the first result only."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in range(2)]
        for future in futures[: 1 if planted else 2]:
            loop.call_soon(future.set_result, float(work()))
        for future in futures:
            await future

    ctrl_c_at_rest()
    asyncio.run(main())


def asyncio_queue_without_sentinel(planted: bool) -> None:
    """Two consumers, and one sentinel at the end of the items."""

    async def main() -> None:
        items: asyncio.Queue[Any] = asyncio.Queue()

        async def consume() -> None:
            while (await items.get()) is not None:
                work()

        for item in [1, 2, 3, None, *([] if planted else [None])]:
            items.put_nowait(item)
        await asyncio.gather(consume(), consume())

    ctrl_c_at_rest()
    asyncio.run(main())


def result_awaited_without_await(planted: bool) -> None:
    """A coroutine blocks its loop on the result of another coroutine of the same loop."""

    work()

    async def fetch() -> float:
        await asyncio.sleep(0)
        return float(work())

    async def main() -> None:
        if planted:
            asyncio.run_coroutine_threadsafe(fetch(), asyncio.get_running_loop()).result()
        else:
            await fetch()

    ctrl_c_at_rest()
    asyncio.run(main())


def returned_with_the_lock(planted: bool) -> None:
    """A worker returns early between acquire() and release()."""
    lock, total = threading.Lock(), torch.zeros(4)

    def load() -> None:
        lock.acquire()
        total.add_(work())
        if planted:
            return
        lock.release()

    start(load).join()
    ctrl_c_at_rest()
    with lock:  # named
        total.mul_(2)


def raised_with_the_lock(planted: bool) -> None:
    """The second of three workers raises with a reentrant lock held; the next one waits for it."""
    lock, total, turns = threading.RLock(), torch.zeros(4), [threading.Event() for _ in range(3)]

    def load(number: int) -> None:
        turns[number].wait()
        lock.acquire()
        total.add_(work())
        if planted and number == 1:
            raise ValueError("no such sample")
        lock.release()

    threads = [start(load, n) for n in range(3)]  # later, one might get the ended one's number
    ctrl_c_at_rest()
    for number in range(3):
        turns[number].set()
        threads[number].join()  # named


def left_by_a_worker_of_a_pool(planted: bool) -> None:
    """Threads that take a batch each; one ends without giving back the lock of a device."""
    device, ready = threading.Lock(), threading.Event()

    def infer(last: bool) -> None:
        device.acquire()
        work()
        if not last:
            device.release()
        ready.set()

    threads = [start(infer, planted and number == 3) for number in range(4)]
    ready.wait()
    for thread in threads[:3]:
        thread.join(5)
    threads[3].join(5)
    ctrl_c_at_rest()
    device.acquire()  # named
    device.release()


def loader_died_of_a_missing_key(planted: bool) -> None:
    """A thread that reads the configuration raises, and main waits for what it puts."""
    found: queue.Queue[str] = queue.Queue()
    configuration = {} if planted else {"data": "rows.csv"}
    start(lambda: found.put(configuration["data"]))
    ctrl_c_at_rest()
    found.get()
    torch.zeros(3).sum()


def reader_waits_to_be_started(planted: bool) -> None:
    """main joins a thread that waits for an event that main sets afterwards."""
    begin = threading.Event()
    thread = threading.Thread(target=begin.wait, name="reader")
    thread.start()
    if not planted:
        begin.set()
    ctrl_c_at_rest()
    thread.join()
    begin.set()
    torch.zeros(3).sum()


def connection_never_made(planted: bool) -> None:
    """A thread that connects ends without a result where it finds no host."""
    connection: Future[str] = Future()

    def connect() -> None:
        hosts = [] if planted else ["localhost"]
        for host in hosts:
            connection.set_result(host)

    start(connect)
    ctrl_c_at_rest()
    connection.result()
    torch.zeros(3).sum()


QUEUES, POOL, EVENT = (
    "two bounded queues",
    "a task waits for its own pool",
    "an event never set",
)
ASYNCIO = "asyncio futures never set"


def deadlocks(name: str, *forms: Any, says: str = "waits for", **more: Any) -> tuple[Fault, ...]:
    """Forms of a fault that leave every thread waiting; `says`: what the finding says."""
    return tuple(
        Fault(name, "waiting", ("deadlock",), form, says=says, slow=True, **more) for form in forms
    )


FAULTS = (
    *deadlocks(
        QUEUES,
        prefetcher_and_trainer_with_full_queues,
        pipeline_of_three_stages,
        writer_with_two_semaphores,
    ),
    *deadlocks(POOL, task_waits_in_its_own_pool, recursion_through_a_pool, map_within_a_map),
    *deadlocks(
        EVENT,
        event_of_a_worker_that_has_ended,
        worker_died_before_it_notified,
        barrier_for_one_too_many,
    ),
    *deadlocks(EVENT, tasks_of_a_worker_that_raised, options=("--hang-timeout", "3")),
    *deadlocks(
        "a lock of a thread that has ended",
        returned_with_the_lock,
        raised_with_the_lock,
        left_by_a_worker_of_a_pool,
        says="took that lock, and ended without releasing it",
    ),
    *deadlocks(
        ASYNCIO,
        future_that_is_never_set,
        asyncio_queue_without_sentinel,
        result_awaited_without_await,
    ),
    *deadlocks(
        "a hang before the first operator",
        loader_died_of_a_missing_key,
        reader_waits_to_be_started,
        connection_never_made,
    ),
)
