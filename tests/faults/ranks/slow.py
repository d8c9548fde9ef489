"""Programs in which a rank makes the other wait, or a coroutine the tasks beside it."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from tests.faults.base import Fault
from tests.faults.ranks.one_model import batch, begin, net, rank_faults, sgd, train

STEPS = 14
_WORK_S = 0.03


def buffers_are_broadcast(planted: bool) -> None:
    """Rank 1 reads its samples slowly; all meet first where batch normalization's buffers are
    broadcast. The twin's ranks read alike."""
    rank = begin()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4)))
    torch.manual_seed(10 + rank)
    optimizer = sgd(model)
    for _ in range(STEPS):
        if rank == 1 or not planted:
            time.sleep(_WORK_S)
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def first_rank_hands_out_samples(planted: bool) -> None:
    """Rank 0 prepares the samples of all ranks and scatters them. In the twin each rank prepares
    its own."""
    rank = begin()
    model = DDP(net(rank))
    optimizer = sgd(model)
    for _ in range(STEPS):
        x, y = batch()
        if planted:
            parts = [torch.empty_like(x) for _ in range(2)] if rank == 0 else None
            if parts is not None:
                time.sleep(_WORK_S)
                parts = [batch()[0] for _ in parts]
            dist.scatter(x, parts, src=0)
            y = (x.sum(1) > 0).long()
        else:
            time.sleep(_WORK_S)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def learner_writes_before_it_sends(planted: bool) -> None:
    """Gradients go to rank 0, which steps and broadcasts the weights, after it has written them to
    a slow disk; in the twin afterwards, and rank 1 samples meanwhile."""
    rank = begin()
    model = net(rank)
    optimizer = sgd(model)
    for _ in range(STEPS):
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        for one in model.parameters():
            dist.reduce(one.grad, dst=0)
        if rank == 0:
            optimizer.step()
            if planted:
                time.sleep(_WORK_S)
        for one in model.parameters():
            dist.broadcast(one.data, src=0)
        if not planted:
            time.sleep(_WORK_S)


def train_and(model: nn.Module, now_and_then: Callable[[int], Any]) -> None:
    """Trains, and calls a function after every fourth step."""
    train(model, sgd(model), 20, lambda step: now_and_then(step) if step % 4 == 3 else None)


def checkpoint_of_the_first_rank(planted: bool) -> None:
    """Rank 0 writes a checkpoint to a slow disk, and both meet at a barrier. The twin writes a
    copy from another thread."""
    rank = begin()
    model = DDP(net(rank))
    writers = []

    def write(state: dict[str, torch.Tensor]) -> None:
        torch.save(state, io.BytesIO())
        time.sleep(5 * _WORK_S)

    def save(step: int) -> None:
        if rank == 0 and planted:
            write(model.state_dict())
        elif rank == 0:
            copy = {name: one.clone() for name, one in model.state_dict().items()}
            writers.append(threading.Thread(target=write, args=(copy,)))
            writers[-1].start()
        dist.barrier()

    train_and(model, save)
    for writer in writers:
        writer.join()


def first_rank_logs_to_a_slow_server(planted: bool) -> None:
    """Rank 0 reports now and then; the next step's gradients wait for it. In the twin each rank
    reports for itself."""
    rank = begin()

    def report(step: int) -> None:
        if rank == 0 or not planted:
            time.sleep(5 * _WORK_S)

    train_and(DDP(net(rank)), report)


def last_rank_reads_the_next_part(planted: bool) -> None:
    """The last rank reads the next part of the data and broadcasts its size; in the twin all
    ranks read."""
    rank = begin()

    def read(step: int) -> None:
        size = torch.tensor([step])
        if rank == 1 or not planted:
            time.sleep(5 * _WORK_S)
        dist.broadcast(size, src=1)

    train_and(DDP(net(rank)), read)


def _busy(s: float = 0.3) -> None:
    ends = time.thread_time() + s
    while time.thread_time() < ends:
        torch.randn(64, 64).square().sum()


def _beside_a_beat(once: Callable[[], Awaitable[object]]) -> None:
    """Runs something five times in a loop that is to beat every 20 ms."""

    async def beat() -> None:
        while True:
            await asyncio.sleep(0.02)

    async def main() -> None:
        task = asyncio.create_task(beat())
        for _ in range(5):
            await once()
            await asyncio.sleep(0.05)
            torch.ones(1).add(1)
        task.cancel()

    asyncio.run(main())


def inference_in_a_coroutine(planted: bool) -> None:
    """A server answers within its loop; the twin in a thread."""

    async def once() -> None:
        if planted:
            _busy()
        else:
            await asyncio.to_thread(_busy)

    _beside_a_beat(once)


def sleeping_in_a_coroutine(planted: bool) -> None:
    """time.sleep() in place of asyncio.sleep()."""

    async def once() -> None:
        if planted:
            time.sleep(0.3)
        else:
            await asyncio.sleep(0.3)

    _beside_a_beat(once)


def result_awaited_in_a_coroutine(planted: bool) -> None:
    """result() of a pool's future blocks the loop; the twin awaits it."""
    with ThreadPoolExecutor(1) as pool:

        async def once() -> None:
            future = pool.submit(_busy)
            if planted:
                future.result()  # named
            else:
                await asyncio.wrap_future(future)

        _beside_a_beat(once)


FAULTS: tuple[Fault, ...] = (
    *(
        Fault("an event loop that is blocked", "waiting", ("blocked_loop",), form, says="blocked")
        for form in (
            inference_in_a_coroutine,
            sleeping_in_a_coroutine,
            result_awaited_in_a_coroutine,
        )
    ),
    *rank_faults(
        "a rank that the other waits for in each step",
        "straggler",
        "keeps the other ranks waiting",
        buffers_are_broadcast,
        first_rank_hands_out_samples,
        learner_writes_before_it_sends,
    ),
    *rank_faults(
        "a rank that the other waits for now and then",
        "straggler",
        "each time",
        checkpoint_of_the_first_rank,
        first_rank_logs_to_a_slow_server,
        last_rank_reads_the_next_part,
    ),
)
