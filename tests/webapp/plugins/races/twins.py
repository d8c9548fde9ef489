"""What training programs do with threads, done rightly: none of them races."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import copy
import io
import multiprocessing
import queue
import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, as_completed, wait
from multiprocessing.pool import ThreadPool

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint

from tests.webapp.plugins.races.common import small, step, together


def saved_under_a_lock() -> None:
    model, lock = small(), threading.Lock()
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        for _ in range(3):
            with lock:
                step(model, optimizer)

    def save() -> None:
        for _ in range(2):
            with contextlib.ExitStack() as stack:
                stack.enter_context(lock)
                torch.save([model.state_dict(), optimizer.state_dict()], io.BytesIO())

    together(train, save)


def saved_from_a_copy() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            step(model, optimizer)
            state = {name: value.clone() for name, value in model.state_dict().items()}
            pool.submit(torch.save, state, io.BytesIO())


def swapped_in_turn() -> None:
    model, other, turn, condition = small(), small(), [0], threading.Condition()

    def swap() -> None:
        for _ in range(2):
            with condition:
                condition.wait_for(lambda: turn[0] == 1)
                for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
                    mine.data, theirs.data = theirs.data, mine.data
                    mine.data.mul_(0.5)
                turn[0] = 0
                condition.notify_all()

    def evaluate() -> None:
        for _ in range(2):
            with condition, torch.no_grad():
                condition.wait_for(lambda: turn[0] == 0)
                model(torch.randn(2, 4))
                turn[0] = 1
                condition.notify_all()

    together(evaluate, swap)


def average_when_released() -> None:
    model, average = small(), small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ready, done = [threading.Event() for _ in range(3)], [threading.Event() for _ in range(3)]

    def train() -> None:
        for one, two in zip(ready, done, strict=True):
            step(model, optimizer)
            one.set()
            two.wait()

    def follow() -> None:
        for one, two in zip(ready, done, strict=True):
            one.wait()
            with torch.no_grad():
                torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.1)
            two.set()

    together(train, follow)


def inferred_by_a_copy() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    copies: queue.Queue[nn.Module | None] = queue.Queue(1)

    def train() -> None:
        for _ in range(2):
            step(model, optimizer)
            copies.put(copy.deepcopy(model))
        copies.put(None)

    def infer() -> None:
        while (own := copies.get()) is not None:
            with torch.inference_mode():
                own(torch.randn(2, 4)).sum().item()

    together(train, infer)


def pipeline() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 1)
    forth: queue.Queue[torch.Tensor | None] = queue.Queue(1)
    back: queue.Queue[torch.Tensor | None] = queue.Queue(1)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (first, second)]

    def begin() -> None:
        for _ in range(2):
            hidden = first(torch.randn(2, 4))
            forth.put(hidden.detach())
            hidden.backward(back.get())
            optimizers[0].step()
            optimizers[0].zero_grad()
        forth.put(None)

    def end() -> None:
        while (hidden := forth.get()) is not None:
            second(hidden.requires_grad_()).sum().backward()
            back.put(hidden.grad)
            optimizers[1].step()
            optimizers[1].zero_grad()

    together(begin, end)


def waited_for_without_asking() -> None:
    """The results are looked at where they are, not through the futures."""
    parts = [torch.zeros(3) for _ in range(4)]
    with ThreadPoolExecutor(2) as pool:
        left = {pool.submit(part.add_, 1): part for part in parts}
        waiting = set(left)
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                left[future].mul_(2)
        again = {pool.submit(part.add_, 1): part for part in parts}
        for future in as_completed(again):
            again[future].mul_(2)


def pool_of_threads() -> None:
    parts = [torch.zeros(3) for _ in range(4)]
    with ThreadPool(2) as pool:
        for part in pool.imap_unordered(lambda one: one.add_(1), parts):
            part.mul_(2)
        mapped = pool.map_async(lambda one: one.add_(1), parts)
        while not mapped.ready():
            pass
        torch.stack(parts).sum()


def semaphore_as_a_lock() -> None:
    total, one = torch.zeros(3), threading.BoundedSemaphore(1)

    def work() -> None:
        for _ in range(3):
            with one:
                total.add_(1)

    together(work, work)


def readers_and_a_writer() -> None:
    model, condition, readers = small(), threading.Condition(), [0]

    def write() -> None:
        for _ in range(2):
            with condition, torch.no_grad():
                while readers[0]:
                    condition.wait()
                for parameter in model.parameters():
                    parameter.mul_(0.9)

    def read() -> None:
        for _ in range(2):
            with condition:
                readers[0] += 1
            with torch.no_grad():
                model(torch.randn(2, 4))
            with condition:
                readers[0] -= 1
                condition.notify_all()

    together(write, read, read)


def functions_of_shared_weights() -> None:
    model = small()
    weights = {name: value.detach() for name, value in model.named_parameters()}

    def loss(own: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = functional_call(model, own, (x,)).sum()
        return made

    together(*2 * [lambda: vmap(grad(loss), in_dims=(None, 0))(weights, torch.randn(5, 4))])


def recomputed() -> None:
    def work() -> None:
        model = small()
        for reentrant in (True, False):
            x = torch.randn(2, 4, requires_grad=True)
            checkpoint(model, x, use_reentrant=reentrant).sum().backward()

    together(work, work)


def gradients_asked_for_at_once() -> None:
    """Two graphs of one model: its weights are read, no gradient is accumulated."""
    model, begun = small(), threading.Barrier(2)

    def work() -> None:
        loss = model(torch.randn(2, 4)).sum()
        begun.wait()
        torch.autograd.grad(loss, list(model.parameters()))

    together(work, work)


def added_up_in_hooks() -> None:
    model, lock = small(), threading.Lock()
    totals = [torch.zeros_like(parameter) for parameter in model.parameters()]

    def work() -> None:
        own = copy.deepcopy(model)
        for parameter, total in zip(own.parameters(), totals, strict=True):

            def add(gradient: torch.Tensor, total: torch.Tensor = total) -> None:
                with lock:
                    total.add_(gradient)

            parameter.register_hook(add)
        own(torch.randn(2, 4)).sum().backward()

    together(work, work)


def gradients_handed_over() -> None:
    """One thread computes gradients and lets go of them, another steps a model with them."""
    model, master = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.SGD(master.parameters(), lr=0.1)
    gradients: queue.Queue[torch.Tensor | None] = queue.Queue()

    def step() -> None:
        while (gradient := gradients.get()) is not None:
            master.weight.grad = gradient
            optimizer.step()
            del master.weight.grad

    def compute() -> None:
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            gradients.put(model.weight.grad)
            model.weight.grad = None
        gradients.put(None)

    together(step, compute)


def let_go_in_turn() -> None:
    model, lock = nn.Linear(4, 4, bias=False), threading.Lock()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        with lock:
            model(torch.ones(2, 4)).sum().backward()
            model.weight.grad = model.weight.grad * 0.5 if model.weight.grad is not None else None
            optimizer.step()
            model.weight.grad = None

    together(train, train)


def stepped_in_backward() -> None:
    """Each gradient is used and let go of as soon as it is there."""

    def train() -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        for parameter in model.parameters():
            optimizer = torch.optim.SGD([parameter], lr=0.1)

            def step(own: torch.Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
                optimizer.step()
                own.grad = None

            parameter.register_post_accumulate_grad_hook(step)
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()

    together(train, train)


def reduced_at_a_barrier() -> None:
    """What the last to come does for all: after they have come, and before any goes on."""
    parts, mean = torch.zeros(2, 3), torch.zeros(3)

    def reduce() -> None:
        mean.copy_(parts.mean(0))
        parts.zero_()

    barrier = threading.Barrier(2, reduce)

    def work(mine: int) -> None:
        for _ in range(3):
            parts[mine].add_(1)
            barrier.wait()
            mean.sum()
            barrier.wait()

    together(lambda: work(0), lambda: work(1))


def locks_of_multiprocessing() -> None:
    total, lock, condition = torch.zeros(3), multiprocessing.Lock(), multiprocessing.Condition()
    part, ready, turn = torch.zeros(3), multiprocessing.Event(), [0]

    def work(mine: int) -> None:
        with lock:
            total.add_(1)
        with condition:
            condition.wait_for(lambda: turn[0] == mine)
            part.add_(1)
            turn[0] += 1
            condition.notify_all()

    def last() -> None:
        work(2)
        ready.set()

    together(lambda: work(0), lambda: work(1), last)
    ready.wait()
    part.sum()


def locked_by_old_names() -> None:
    total, lock = torch.zeros(3), _thread.allocate_lock()

    def work() -> None:
        lock.acquire_lock()
        total.add_(1)
        lock.release_lock()

    together(work, work)


def read_at_the_end() -> None:
    """The interpreter itself waits for threads that are never joined."""
    total, mine, main = torch.zeros(3), torch.zeros(3), threading.main_thread()
    threading.Thread(target=total.add_, args=(1,)).start()
    atexit.register(total.sum)

    def after() -> None:
        main.join()
        mine.add_(1)

    threading.Thread(target=after).start()
    mine.add_(1)


def run() -> None:
    for clean in (
        saved_under_a_lock,
        saved_from_a_copy,
        swapped_in_turn,
        average_when_released,
        inferred_by_a_copy,
        pipeline,
        waited_for_without_asking,
        pool_of_threads,
        semaphore_as_a_lock,
        readers_and_a_writer,
        functions_of_shared_weights,
        recomputed,
        gradients_asked_for_at_once,
        added_up_in_hooks,
        gradients_handed_over,
        let_go_in_turn,
        stepped_in_backward,
        reduced_at_a_barrier,
        locks_of_multiprocessing,
        locked_by_old_names,
        read_at_the_end,
    ):
        clean()
