"""Threads and processes of torch that share what they should not, or miss what they should have."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from multiprocessing.pool import ThreadPool
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.faults.base import Fault

ROOM = "threads and processes of torch"


def model() -> nn.Sequential:
    """Two layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))


def evaluation_in_a_pool(planted: bool) -> None:
    """no_grad around a pool's map does not reach its threads."""
    net, batches = model(), [torch.randn(8, 10) for _ in range(6)]

    def one(x: torch.Tensor) -> float:
        with torch.set_grad_enabled(planted and torch.is_grad_enabled()):
            return float(net(x).sum())

    with torch.no_grad(), ThreadPoolExecutor(3) as pool:
        list(pool.map(one, batches))


def inference_in_a_thread(planted: bool) -> None:
    """A server enters inference_mode, and answers from a thread that it starts there."""
    net, x = model(), torch.randn(4, 10)

    def answer() -> None:
        if planted:
            net(x)
        else:
            with torch.inference_mode():
                net(x)

    with torch.inference_mode():
        thread = threading.Thread(target=answer)
        thread.start()
        thread.join()


def replicas_without_autocast(planted: bool) -> None:
    """autocast around replicas that threads of a pool run."""
    net, parts = model(), torch.randn(16, 10).chunk(4)

    def replica(x: torch.Tensor) -> torch.Tensor:
        if planted:
            return net(x)
        with torch.autocast("cpu", torch.bfloat16):
            return net(x)

    with ThreadPool(2) as pool, torch.autocast("cpu", torch.bfloat16):
        outputs = pool.map(replica, parts)
    torch.cat([one.float() for one in outputs]).sum().backward()


def default_device_of_main_alone(planted: bool) -> None:
    """torch.device("meta") in main; a thread builds its layer on the CPU."""
    made = list[torch.device]()

    def build() -> None:
        if planted:
            made.append(torch.zeros(3, 4).device)
        else:
            made.append(torch.zeros(3, 4, device="meta").device)
            torch.zeros(2, device="cpu").sin()

    if planted:
        with torch.device("meta"):
            thread = threading.Thread(target=build)
            thread.start()
            thread.join()
    else:
        thread = threading.Thread(target=build)
        thread.start()
        thread.join()


ROUNDS = 8
"""Calls of a scripted function; the first ones are profiled and compiled."""


@torch.jit.script
def _accumulate(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    for _ in range(400):
        total.add_(x.sin())
    return total


@torch.jit.script
def _branches(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    first = torch.jit.fork(_accumulate, a, x)
    second = torch.jit.fork(_accumulate, b, x + 1)
    return torch.jit.wait(first) + torch.jit.wait(second)


def forked_branches_share_an_accumulator(planted: bool) -> None:
    """Two forked branches add to one tensor."""
    a, b, x = torch.zeros(128, 128), torch.zeros(128, 128), torch.randn(128, 128)
    for _ in range(ROUNDS):
        _branches(a, a if planted else b, x)


@torch.jit.script
def _fill(out: torch.Tensor, x: torch.Tensor, row: int, rows: int) -> torch.Tensor:
    for _ in range(400):
        out[row : row + rows].copy_(x[row : row + rows].tanh())
    return out


@torch.jit.script
def _halves(out: torch.Tensor, x: torch.Tensor, rows: int) -> torch.Tensor:
    first = torch.jit.fork(_fill, out, x, 0, rows)
    second = torch.jit.fork(_fill, out, x, 32, 32)
    torch.jit.wait(first)
    torch.jit.wait(second)
    return out


def forked_parts_of_an_output_overlap(planted: bool) -> None:
    """Each branch fills its half of the output, and one goes a few rows too far."""
    out, x = torch.zeros(128, 128), torch.randn(128, 128)
    for _ in range(ROUNDS):
        _halves(out, x, 36 if planted else 32)


@torch.jit.script
def _normalise(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    for _ in range(400):
        count.mul_(0.9).add_(x.mean(), alpha=0.1)
        x = x - count
    return x


@torch.jit.script
def _towers(x: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    left = torch.jit.fork(_normalise, x, one)
    right = torch.jit.fork(_normalise, x * 2, other)
    return torch.cat([torch.jit.wait(left), torch.jit.wait(right)])


def forked_towers_share_a_running_mean(planted: bool) -> None:
    """Two towers update one running mean."""
    one, other, x = torch.zeros(1), torch.zeros(1), torch.randn(128, 128)
    for _ in range(ROUNDS):
        _towers(x, one, one if planted else other)


class Augment:
    """Adds noise to samples, by a generator of all calls or one of each."""

    def __init__(self, shared: bool) -> None:
        self.generator = torch.Generator().manual_seed(5) if shared else None

    def __call__(self, number: int) -> torch.Tensor:
        generator = self.generator or torch.Generator().manual_seed(number)
        x = torch.randn(64, 10, generator=generator)
        return x + 0.1 * torch.rand(64, 10, generator=generator)


def augmentation_in_a_pool(planted: bool) -> None:
    """Workers of a pool draw from the generator of the augmentation; the twin has one per task."""
    augment, net = Augment(planted), model()
    with ThreadPoolExecutor(3) as pool:
        for _ in range(4):
            net(torch.stack(list(pool.map(augment, range(9)))))


def actors_with_one_generator(planted: bool) -> None:
    """Two actors explore at the same time; the twin's take turns on purpose."""
    generator, net = torch.Generator().manual_seed(0), model()

    def act() -> None:
        for _ in range(20):
            with torch.no_grad():
                torch.multinomial(net(torch.ones(4, 10)).exp(), 1, generator=generator)

    threads = [threading.Thread(target=act) for _ in range(2)]
    for thread in threads:
        thread.start()
        if not planted:
            thread.join()
    for thread in threads:
        thread.join()


def prefetcher_that_shuffles(planted: bool) -> None:
    """A thread shuffles by the generator from which main makes noise."""
    own = torch.Generator().manual_seed(1)
    other = own if planted else torch.Generator().manual_seed(2)
    orders, net = queue.Queue[Any](2), model()

    def prefetch() -> None:
        for _ in range(12):
            orders.put(torch.randperm(64, generator=other))

    thread = threading.Thread(target=prefetch)
    thread.start()
    for _ in range(12):
        rows = orders.get()
        net(torch.empty(len(rows), 10).normal_(generator=own))
    thread.join()


def _saved(pool: ThreadPoolExecutor, save: Callable[[Any, int], object]) -> None:
    """Trains a model, and has a pool save its state now and then."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    for step in range(8):
        net(torch.randn(8, 10)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 4 == 3:
            save(pool, step)


def _write(step: int) -> None:
    """Saves into a folder that does not exist."""
    torch.save({"step": step}, f"/nowhere/at/all/{step}.pt")


def saved_in_vain(planted: bool) -> None:
    """Futures of a pool that saves checkpoints are dropped; the twin's are read."""

    def save(pool: ThreadPoolExecutor, step: int) -> None:
        future = pool.submit(_write, step)
        if not planted:
            assert future.exception() is not None

    with ThreadPoolExecutor(1) as pool:
        _saved(pool, save)


def mapped_and_not_iterated(planted: bool) -> None:
    """Nothing goes through the results of map(); the twin catches the error of the first task."""

    def save(pool: ThreadPoolExecutor, step: int) -> None:
        results = pool.map(_write, [step] * 4)
        if not planted:
            with contextlib.suppress(RuntimeError):
                list(results)

    with ThreadPoolExecutor(2) as pool:
        _saved(pool, save)


def waited_for_and_not_asked(planted: bool) -> None:
    """wait() raises nothing; the twin's futures have a callback that looks."""
    futures = []

    def save(pool: ThreadPoolExecutor, step: int) -> None:
        futures.append(pool.submit(_write, step))
        if not planted:
            futures[-1].add_done_callback(lambda future: future.exception())

    with ThreadPoolExecutor(2) as pool:
        _saved(pool, save)
    wait(futures)


class _Loop:
    """Trains, and has an evaluation for tasks of asyncio, which raises."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(8, 3)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.1)

    async def step(self) -> None:
        F.cross_entropy(self.model(torch.randn(16, 8)), torch.randint(3, (16,))).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        await asyncio.sleep(0)

    async def evaluate(self) -> torch.Tensor:
        await asyncio.sleep(0)
        with torch.no_grad():
            return self.model(torch.randn(16, 9))  # named


def evaluated_in_tasks_that_are_kept(planted: bool) -> None:
    """A set keeps tasks from going, and nothing awaits them; the twin gathers them at the end."""
    job, tasks = _Loop(), set()

    async def main() -> None:
        for _ in range(6):
            await job.step()
            tasks.add(asyncio.create_task(job.evaluate()))
        await asyncio.sleep(0.01)
        if not planted:
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(one, RuntimeError) for one in found)

    asyncio.run(main())


def task_started_and_forgotten(planted: bool) -> None:
    """What create_task returns is dropped; the twin's callback reads the error."""
    job = _Loop()

    async def main() -> None:
        for number in range(6):
            await job.step()
            task = asyncio.create_task(job.evaluate())
            if not planted:
                task.add_done_callback(lambda done: done.exception())
            del task
            await asyncio.sleep(0.001 * (number > 3))

    asyncio.run(main())


def waited_for_without_a_look_at_the_tasks(planted: bool) -> None:
    """asyncio.wait returns tasks that failed as done; the twin looks at them."""
    job = _Loop()

    async def main() -> None:
        for _ in range(6):
            await job.step()
            done, _ = await asyncio.wait([asyncio.create_task(job.evaluate()) for _ in range(2)])
            if not planted:
                assert all(one.exception() is not None for one in done)

    asyncio.run(main())


MODES, FORKED = "modes of torch that do not reach threads", "races of torch.jit.fork"
GENERATORS = "generators that threads share"

FAULTS = (
    *(
        Fault("an error of a pool that is lost", ROOM, ("lost_error",), form, slow=place > 0)
        for place, form in enumerate(
            (saved_in_vain, mapped_and_not_iterated, waited_for_and_not_asked)
        )
    ),
    *(
        Fault("an error of asyncio that is lost", ROOM, ("lost_error",), form, slow=place > 0)
        for place, form in enumerate(
            (
                evaluated_in_tasks_that_are_kept,
                task_started_and_forgotten,
                waited_for_without_a_look_at_the_tasks,
            )
        )
    ),
    *(
        Fault(FORKED, ROOM, ("race",), form, says="torch.jit.fork", slow=True)
        for form in (
            forked_branches_share_an_accumulator,
            forked_parts_of_an_output_overlap,
            forked_towers_share_a_running_mean,
        )
    ),
    *(
        Fault(GENERATORS, ROOM, ("race",), form, says="one torch.Generator", slow=place > 0)
        for place, form in enumerate(
            (augmentation_in_a_pool, actors_with_one_generator, prefetcher_that_shuffles)
        )
    ),
    *(
        Fault(MODES, ROOM, ("lost_context",), form, says="does not reach")
        for form in (
            evaluation_in_a_pool,
            inference_in_a_thread,
            replicas_without_autocast,
            default_device_of_main_alone,
        )
    ),
)
