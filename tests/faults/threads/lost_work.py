"""Work whose result is lost: daemon threads and tasks that the end of the program stops, and
processes that write to their own copy of memory."""

from __future__ import annotations

import asyncio
import io
import multiprocessing
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.faults.base import Fault, Program

_SLOW_S = 0.2
"""How long a slow disk takes."""


def _train(model: nn.Module, steps: int, seed: int = 0) -> None:
    numbers = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        x = torch.randn(16, 8, generator=numbers)
        optimizer.zero_grad()
        (model(x) - x[:, :4]).square().mean().backward()
        optimizer.step()


# daemon threads ----------------------------------------------------------------------------------


def _write_all(jobs: Any) -> None:
    while True:
        state = jobs.get()
        time.sleep(_SLOW_S)
        torch.save(state, io.BytesIO())
        jobs.task_done()


def checkpoints_of_a_daemon_thread(planted: bool) -> None:
    """A writer of checkpoints has more to write as the program ends; the twin waits for it."""
    jobs: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=_write_all, args=(jobs,), daemon=True).start()
    model = nn.Linear(8, 4)
    for _ in range(4):
        _train(model, 4)
        jobs.put({name: one.clone() for name, one in model.state_dict().items()})
    if not planted:
        jobs.join()


class _Recorder(threading.Thread):
    """Appends rows to a file."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.rows: queue.Queue[Any] = queue.Queue()
        self.file = io.StringIO()

    def run(self) -> None:
        while (row := self.rows.get()) is not None:
            time.sleep(_SLOW_S)
            self.file.write(f"{row[0]} {row[1].mean()}\n")


def rows_of_metrics(planted: bool) -> None:
    """Metrics go to a thread of their own; the twin ends it by None and joins it."""
    recorder = _Recorder()
    recorder.start()
    model = nn.Linear(8, 4)
    for step in range(4):
        _train(model, 2)
        recorder.rows.put((step, model.weight.detach().clone()))
    recorder.rows.put(None)
    if not planted:
        recorder.join()


def pictures_beside_a_prefetcher(planted: bool) -> None:
    """A thread draws activations; that of the twin reads batches ahead."""
    wanted: queue.Queue[Any] = queue.Queue()
    made: queue.Queue[Any] = queue.Queue()

    def work() -> None:
        while True:
            x = wanted.get()
            time.sleep(_SLOW_S)
            if planted:
                x.clamp(0, 1).mul(255).byte()
            else:
                made.put(x * 2)

    threading.Thread(target=work, daemon=True).start()
    for _ in range(4):
        wanted.put(torch.randn(8, 8))
    _train(nn.Linear(8, 4), 4)
    if not planted:
        made.get()


# copies of forked processes ----------------------------------------------------------------------

_FORK = multiprocessing.get_context("fork")


def _run(target: Any, *arguments: Any) -> None:
    processes = [_FORK.Process(target=target, args=(seed, *arguments)) for seed in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def _trains(seed: int, model: nn.Module, lock: Any) -> None:
    torch.set_num_threads(1)
    with lock:
        _train(model, 6, seed)


def hogwild_without_shared_memory(planted: bool) -> None:
    """Processes train a model that the program then evaluates; that of the twin is shared."""
    torch.set_num_threads(1)
    model = nn.Linear(8, 4)
    if not planted:
        model.share_memory()
    _run(_trains, model, _FORK.Lock())
    with torch.no_grad():
        model(torch.randn(16, 8))


def _counts(seed: int, model: nn.Module, total: torch.Tensor, results: Any) -> None:
    values = torch.randn(64, 4, generator=torch.Generator().manual_seed(seed))
    values = model(values).detach()
    total += torch.histc(values, len(total), -3, 3)  # named
    results.put(total.tolist())


def histogram_of_forked_processes(planted: bool) -> None:
    """Processes count into a table of the program; the twin adds up what they send. The statistics
    of a batch normalisation are no loss."""
    torch.set_num_threads(1)
    total, results, model = torch.zeros(16), _FORK.Queue(), nn.BatchNorm1d(4)
    processes = [_FORK.Process(target=_counts, args=(n, model, total, results)) for n in range(2)]
    for process in processes:
        process.start()
    sent = [results.get() for _ in processes]
    for process in processes:
        process.join()
    torch.save({name: one.clone() for name, one in model.state_dict().items()}, io.BytesIO())
    if planted:
        (total / total.sum().clamp(min=1)).tolist()
    else:
        torch.tensor(sent).sum(0).tolist()


_MEANS = torch.zeros(4, 8)


def _measures(row: int) -> list[float]:
    values = torch.randn(64, 8, generator=torch.Generator().manual_seed(row))
    _MEANS[row].copy_(values.mean(0))
    return list(values.mean(0).tolist())


def table_that_a_pool_fills(planted: bool) -> None:
    """A pool fills rows of a global table; the twin fills them with what the pool returns."""
    torch.set_num_threads(1)
    with _FORK.Pool(2) as pool:
        rows = pool.map(_measures, range(4))
    if not planted:
        for row, values in enumerate(rows):
            _MEANS[row] = torch.tensor(values)
    _MEANS.mean(0).tolist()


def _searches(seed: int, model: nn.Module) -> None:
    torch.set_num_threads(1)
    _train(model, 4, seed)


def search_before_the_training(planted: bool) -> None:
    """Processes try a model out; the twin then trains its own from where it began."""
    torch.set_num_threads(1)
    model = nn.Linear(8, 4)
    _run(_searches, model)
    if not planted:
        _train(model, 4)
    with torch.no_grad():
        model(torch.randn(16, 8))


def _forms(name: str, says: str, *programs: Program) -> tuple[Fault, ...]:
    room = "threads and processes of torch"
    return tuple(
        Fault(name, room, ("lost_work",), one, says=says, slow=place > 0)
        for place, one in enumerate(programs)
    )


# tasks of an event loop ---------------------------------------------------------------------------


async def _train_beside(model: nn.Module, started: Callable[[int], None]) -> None:
    for step in range(12):
        _train(model, 1, seed=step)
        await asyncio.sleep(0.01)
        if step % 4 == 3:
            started(step)


async def _beat() -> None:
    while True:
        await asyncio.sleep(0.01)


def evaluation_in_a_task(planted: bool) -> None:
    """Evaluations are started and not awaited; the twin gathers them."""
    model = nn.Linear(8, 4)

    async def evaluate() -> None:
        total = torch.zeros(())
        for _ in range(5):
            await asyncio.sleep(0.1)
            total += model(torch.randn(8, 8)).detach().square().mean()

    async def main() -> None:
        tasks: list[Any] = []
        await _train_beside(model, lambda _: tasks.append(asyncio.create_task(evaluate())))
        if not planted:
            await asyncio.gather(*tasks)

    asyncio.run(main())


def checkpoint_in_a_task(planted: bool) -> None:
    """So with checkpoints, beside a task that serves until the end."""
    model = nn.Linear(8, 4)

    async def save(step: int) -> None:
        state = {name: one.clone() for name, one in model.state_dict().items()}
        await asyncio.sleep(_SLOW_S)
        torch.save(state, io.BytesIO())

    async def main() -> None:
        beat = asyncio.create_task(_beat())
        tasks: list[Any] = []
        await _train_beside(model, lambda step: tasks.append(asyncio.create_task(save(step))))
        if not planted:
            await asyncio.wait(tasks)
        beat.add_done_callback(lambda _: None)

    asyncio.run(main())


def upload_in_a_loop_that_is_closed(planted: bool) -> None:
    """A loop of the program's own runs to the end of its main coroutine, and is closed."""
    model = nn.Linear(8, 4)
    kept: list[Any] = []

    async def upload(step: int) -> None:
        data = model.weight.detach().clone()
        for part in data.chunk(4):
            await asyncio.sleep(_SLOW_S)
            part.sum()

    async def main() -> None:
        await _train_beside(model, lambda step: kept.append(asyncio.ensure_future(upload(step))))

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    if not planted:
        loop.run_until_complete(asyncio.wait(kept))
    loop.close()


async def _note(kept: list[Any], model: nn.Module) -> None:
    """Keeps a copy of a model."""
    await asyncio.sleep(0)
    kept.append([p.clone() for p in model.parameters()])


def checkpoint_without_await(planted: bool) -> None:
    """A checkpoint is a coroutine that the loop only calls."""
    model, kept = nn.Linear(8, 4), list[Any]()

    async def main() -> None:
        for seed in range(4):
            _train(model, 2, seed)
            if planted:
                _note(kept, model)
            else:
                await _note(kept, model)

    asyncio.run(main())


def uploads_without_gather(planted: bool) -> None:
    """Coroutines go into a list, and nothing is done with that."""
    model, kept = nn.Linear(8, 4), list[Any]()

    async def main() -> None:
        uploads = []
        for seed in range(4):
            _train(model, 2, seed)
            uploads.append(_note(kept, model))
        if not planted:
            await asyncio.gather(*uploads)

    asyncio.run(main())


def callback_that_is_a_coroutine(planted: bool) -> None:
    """A training loop calls back what has become async."""
    model, kept = nn.Linear(8, 4), list[Any]()

    def train(each: Callable[[], Any]) -> None:
        for seed in range(4):
            _train(model, 2, seed)
            each()

    train(lambda: _note(kept, model) if planted else asyncio.run(_note(kept, model)))


FAULTS = (
    *_forms(
        "coroutines that nothing awaits",
        "never awaited",
        checkpoint_without_await,
        uploads_without_gather,
        callback_that_is_a_coroutine,
    ),
    *_forms(
        "tasks that an event loop cancels as it ends",
        "cancelled there",
        evaluation_in_a_task,
        checkpoint_in_a_task,
        upload_in_a_loop_that_is_closed,
    ),
    *_forms(
        "work of a daemon thread that is lost",
        "Python stops daemon threads",
        checkpoints_of_a_daemon_thread,
        rows_of_metrics,
        pictures_beside_a_prefetcher,
    ),
    *_forms(
        "writes that stay in a forked process",
        "main reads the old values",
        hogwild_without_shared_memory,
        histogram_of_forked_processes,
        table_that_a_pool_fills,
        search_before_the_training,
    ),
)
