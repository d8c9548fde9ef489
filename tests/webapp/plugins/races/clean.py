"""The same programs with what orders their threads: none of them races."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Condition, Event, Lock, RLock

import torch
from torch import nn

from tests.webapp.plugins.races import handed, memory, twins
from tests.webapp.plugins.races.common import together


def shared_gradient() -> None:
    model, lock = nn.Linear(4, 4, bias=False), Lock()
    model.weight.grad = torch.zeros(4, 4)

    def work() -> None:
        loss = model(torch.ones(2, 4)).sum()
        with lock:
            loss.backward()

    together(work, work)


def step_after_backward() -> None:
    model, done = nn.Linear(4, 4, bias=False), Event()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        done.wait()
        optimizer.step()
        optimizer.zero_grad()

    def backward() -> None:
        model(torch.ones(2, 4)).sum().backward()
        done.set()

    together(step, backward)


def released_while_read() -> None:
    model = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients: queue.Queue[torch.Tensor | None] = queue.Queue()

    def log() -> None:
        while (gradient := gradients.get()) is not None:
            gradient.norm()  # its own by now, whatever becomes of .grad

    def train() -> None:
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            gradients.put(model.weight.grad)
            optimizer.zero_grad()
        gradients.put(None)

    together(train, log)


def updated_between_forwards() -> None:
    weight, lock = torch.zeros(4, 4), RLock()

    def update() -> None:
        for _ in range(3):
            with lock, lock:
                weight.mul_(0.5)

    def forward() -> None:
        for _ in range(3):
            lock.acquire()
            torch.ones(2, 4).mm(weight)
            lock.release()

    together(update, forward)


def statistics_of_evaluation() -> None:
    norm = nn.BatchNorm1d(3).eval()

    def evaluate() -> None:
        with torch.no_grad():
            norm(torch.randn(5, 3))

    together(evaluate, evaluate)


def views_side_by_side() -> None:
    whole = torch.zeros(10)
    table = torch.zeros(6, 4)

    def left() -> None:
        whole[:5].add_(1)
        table[:, :2].add_(1)

    def right() -> None:
        whole[5:].add_(1)
        table[:, 2:].add_(1)

    together(left, right)


def waited_for() -> None:
    result = torch.zeros(3)
    thread = threading.Thread(target=lambda: result.fill_(2))
    thread.start()
    while thread.is_alive():
        pass
    result.sum()


def event_set_after() -> None:
    batch, ready = torch.zeros(3), Event()

    def produce() -> None:
        batch.fill_(1)
        ready.set()

    def consume() -> None:
        while not ready.is_set():
            pass
        batch.sum()

    together(consume, produce)


def tasks_in_turn() -> None:
    total = torch.zeros(3)
    with ThreadPoolExecutor(2) as pool:
        for number in range(3):
            pool.submit(total.add_, number).result()
        futures: list[Future[torch.Tensor]] = [pool.submit(torch.ones(3).mul, 2) for _ in range(3)]
        for future in futures:
            total.add_(future.result())


def handed_over() -> None:
    items: queue.Queue[torch.Tensor | None] = queue.Queue()
    back: queue.SimpleQueue[torch.Tensor] = queue.SimpleQueue()

    def produce() -> None:
        for number in range(3):
            item = torch.zeros(3)
            item.add_(number)
            items.put(item)
            back.get().sum()
        items.put(None)

    def consume() -> None:
        while (item := items.get()) is not None:
            item.mul_(2)
            back.put(item)

    together(consume, produce)


def two_buffers() -> None:
    free: queue.Queue[torch.Tensor] = queue.Queue()
    full: queue.Queue[torch.Tensor] = queue.Queue(maxsize=1)
    for _ in range(2):
        free.put(torch.zeros(4))

    def load() -> None:
        for number in range(6):
            batch = free.get()
            batch.fill_(number)
            full.put(batch)

    def train() -> None:
        for _ in range(6):
            batch = full.get()
            batch.sum()
            free.put(batch)

    together(train, load)


def done_before_join() -> None:
    work: queue.Queue[torch.Tensor] = queue.Queue()
    tensors = [torch.zeros(3) for _ in range(4)]

    def worker() -> None:
        for _ in range(2):
            work.get().add_(1)
            work.task_done()

    threads = [threading.Thread(target=worker) for _ in range(2)]
    for thread in threads:
        thread.start()
    for tensor in tensors:
        work.put(tensor)
    work.join()
    torch.stack(tensors).sum()
    for thread in threads:
        thread.join()


def in_steps() -> None:
    parts, barrier = torch.zeros(2, 3), threading.Barrier(2)

    def work(mine: int) -> None:
        for _ in range(3):
            parts[mine].add_(1)
            barrier.wait()
            parts.sum()
            barrier.wait()

    together(lambda: work(0), lambda: work(1))


def rounds_of_some() -> None:
    """More threads than parties, and one that finds the barrier broken."""
    total, barrier, lock = torch.zeros(3), threading.Barrier(2), Lock()

    def work() -> None:
        with lock:
            total.add_(1)
        barrier.wait()  # once: of four threads that came twice each, three could leave one alone

    for _ in range(2):
        together(work, work, work, work)
    pair, parts = threading.Barrier(2), torch.zeros(2, 3)
    with contextlib.suppress(threading.BrokenBarrierError):
        pair.wait(0.001)
    pair.reset()

    def in_turn(mine: int) -> None:
        for _ in range(2):
            parts[mine].add_(1)
            pair.wait()
            parts.sum()
            pair.wait()

    together(lambda: in_turn(0), lambda: in_turn(1))


def waiting_for_a_condition() -> None:
    state, condition, turns = torch.zeros(3), Condition(), [0]

    def work(mine: int) -> None:
        for _ in range(3):
            with condition:
                while turns[0] % 2 != mine:
                    condition.wait(1)
                state.add_(1)
                turns[0] += 1
                condition.notify_all()

    together(lambda: work(0), lambda: work(1))


def counted() -> None:
    filled, empty = threading.Semaphore(0), threading.Semaphore(1)
    slot = torch.zeros(3)

    def produce() -> None:
        for number in range(3):
            with_room = empty.acquire()
            slot.fill_(number if with_room else -1)
            filled.release()

    def consume() -> None:
        for _ in range(3):
            filled.acquire()
            slot.sum()
            empty.release()

    together(consume, produce)


def from_a_loop() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        tensor = torch.zeros(3)
        await loop.run_in_executor(None, tensor.add_, 1)
        tensor.mul_(2)
        done = asyncio.Event()

        def report() -> None:
            tensor.add_(1)
            loop.call_soon_threadsafe(done.set)

        thread = threading.Thread(target=report)
        thread.start()
        await done.wait()
        tensor.sum()
        thread.join()

    asyncio.run(main())


def each_its_own() -> None:
    data = torch.randn(8, 4)

    def train() -> None:
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()

    together(train, train, train)


def training_in_turn() -> None:
    model, lock = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)), Lock()

    def train() -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            with lock:
                model(torch.randn(2, 4)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()

    together(train, train, train)


def changed_after_backward() -> None:
    weight = torch.randn(4, 4, requires_grad=True)
    hidden = (torch.randn(2, 4) @ weight).exp()
    hidden.sum().backward()
    hidden.detach().add_(1)
    with contextlib.suppress(RuntimeError):
        hidden.sum().backward()  # a second time: what it raises is about something else


def gradients_apart() -> None:
    begun = threading.Barrier(2)
    data = torch.randn(8, 16)

    def meet(_: torch.Tensor) -> None:
        begun.wait()  # both are in backward now

    def work() -> None:
        model = nn.Linear(16, 16)
        out = model(data)
        out.register_hook(meet)
        out.sum().backward()

    together(work, work)


def read_by_all() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 1)).eval()

    def infer() -> None:
        with torch.no_grad():
            for _ in range(3):
                model(torch.randn(2, 4))

    together(infer, infer, infer)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for clean in (
        shared_gradient,
        step_after_backward,
        released_while_read,
        updated_between_forwards,
        statistics_of_evaluation,
        views_side_by_side,
        waited_for,
        event_set_after,
        tasks_in_turn,
        handed_over,
        two_buffers,
        done_before_join,
        in_steps,
        rounds_of_some,
        waiting_for_a_condition,
        counted,
        from_a_loop,
        each_its_own,
        read_by_all,
        training_in_turn,
        changed_after_backward,
        gradients_apart,
    ):
        clean()
    twins.run()
    handed.run()
    memory.run()
