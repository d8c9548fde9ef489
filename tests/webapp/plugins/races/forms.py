"""Races in forms that hide them: of code that torch calls again, of files, of code put in place of
something else. Marked as in planted.py, whose races it runs as well."""

from __future__ import annotations

import _thread
import io
import queue
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint

from tests.webapp.plugins.races import planted
from tests.webapp.plugins.races.common import together


def stage_reused() -> None:
    """A stage of a pipeline writes where the next one still reads."""
    hidden = torch.zeros(4)
    forth: queue.Queue[torch.Tensor | None] = queue.Queue()

    def begin() -> None:
        for number in range(3):
            torch.add(torch.ones(4), number, out=hidden)  # race: stage_reused a
            forth.put(hidden)
        forth.put(None)

    def end() -> None:
        while (stage := forth.get()) is not None:
            stage.mul(2)  # race: stage_reused b

    together(end, begin)


def functions_of_changed_weights() -> None:
    model = nn.Linear(4, 1, bias=False)
    weights = {name: value.detach() for name, value in model.named_parameters()}

    def loss(own: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = functional_call(model, own, (x,)).sum()  # race: functions a
        return made

    def change() -> None:
        weights["weight"].mul_(0.5)  # race: functions b

    together(lambda: vmap(grad(loss), in_dims=(None, 0))(weights, torch.randn(5, 4)), change)


def recomputed_while_stepped() -> None:
    model, x = nn.Linear(4, 4, bias=False), torch.randn(2, 4)
    weight = model.weight.detach()

    def layer(y: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = model(y)  # race: recomputed_while_stepped a
        return made

    loss = checkpoint(layer, x, use_reentrant=False).sum()

    def step() -> None:
        weight.sub_(0.1)  # race: recomputed_while_stepped b

    together(loss.backward, step)


def saved_while_stepped() -> None:
    model = nn.Linear(4, 4, bias=False)
    model.weight.grad = torch.ones(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    def train() -> None:
        optimizer.step()  # race: saved_while_stepped a

    def save() -> None:
        torch.save(model.state_dict(), io.BytesIO())  # race: saved_while_stepped b

    together(train, save)


def exchanged_while_read() -> None:
    model, better, read = nn.Linear(4, 4, bias=False), torch.ones(4, 4), []

    def exchange() -> None:
        while not read:
            time.sleep(0.001)
        model.weight.data = better  # race: exchanged_while_read a

    def evaluate() -> None:
        with torch.no_grad():
            model(torch.ones(1, 4))  # race: exchanged_while_read b
        read.append(True)

    together(exchange, evaluate)


def counted_in_a_callback() -> None:
    """Whoever sets a result calls the callbacks, after who waits for it may go on."""
    total, waiting = torch.zeros(3), threading.Event()

    def count(_: Future[bool]) -> None:
        total.add_(1)  # race: counted_in_a_callback a

    with ThreadPoolExecutor(1) as pool:
        task = pool.submit(waiting.wait)
        task.add_done_callback(count)
        waiting.set()
        task.result()
        total.sum()  # race: counted_in_a_callback b


def released_before_the_write() -> None:
    """A thread that `threading` knows nothing of."""
    part, lock = torch.zeros(3), _thread.allocate_lock()
    lock.acquire()
    written: list[bool] = []

    def work() -> None:
        lock.release()
        part.add_(1)  # race: released_before_the_write a
        written.append(True)

    _thread.start_new_thread(work, ())
    lock.acquire()
    part.sum()  # race: released_before_the_write b
    while not written:
        time.sleep(0.001)


def first_of_two_futures() -> None:
    """The first is there before the function called with it has ended."""
    total, first = torch.zeros(3), torch.futures.Future[int]()

    def count(_: torch.futures.Future[int]) -> None:
        time.sleep(0.01)
        total.add_(1)  # race: first_of_two_futures a

    first.then(count)

    def wait() -> None:
        first.wait()
        total.sum()  # race: first_of_two_futures b

    together(wait, lambda: first.set_result(1))


def lost_updates() -> None:
    """Each puts a tensor of its own in place of the one that it found."""
    total, done = [torch.zeros(3)], []

    def work() -> None:
        total[0] = total[0] + 1  # race: lost_updates a b
        done.append(True)

    def later() -> None:
        while not done:
            time.sleep(0.001)
        work()  # finds what the other made; the other found nothing of this one

    together(work, later)


def published_by_a_variable() -> None:
    """Which of them the other finds is up to chance, but it finds a whole one."""
    snapshot: list[torch.Tensor] = []

    def train() -> None:
        for number in range(3):
            snapshot[:] = [torch.ones(3).mul(number)]  # race: published a
            time.sleep(0.001)

    def evaluate() -> None:
        while not snapshot:
            time.sleep(0.001)
        snapshot[0].sum()  # race: published b

    together(train, evaluate)


def one_barrier_a_step() -> None:
    """Each reads what the other writes again in its next step: two ways, at the same two lines."""
    parts, barrier = torch.zeros(2, 3), threading.Barrier(2)

    def work(own: int) -> None:
        for number in range(3):
            parts[own].fill_(number)  # race: one_barrier_a_step a
            barrier.wait()
            parts.sum(0)  # race: one_barrier_a_step b

    together(lambda: work(0), lambda: work(1))


def refilled_from_nothing() -> None:
    """No operator that is recorded makes the buffer."""
    buffer = torch.empty(2, 3)
    full: queue.SimpleQueue[torch.Tensor | None] = queue.SimpleQueue()

    def load() -> None:
        for _ in range(3):
            torch.randn(2, 3, out=buffer)  # race: refilled_from_nothing a
            full.put(buffer)
        full.put(None)

    thread = threading.Thread(target=load)
    thread.start()
    torch.ones(3).mul(2)
    while (batch := full.get()) is not None:
        batch.sum()  # race: refilled_from_nothing b
    thread.join()


def read_by_generated_code() -> None:
    """The line is that of the program which calls what torch.fx wrote."""
    model = torch.fx.symbolic_trace(nn.Linear(3, 3, bias=False))
    weight = next(model.parameters()).detach()

    def change() -> None:
        weight.mul_(0.5)  # race: read_by_generated_code a

    together(lambda: model(torch.ones(1, 3)), change)  # race: read_by_generated_code b


def submitted_as_it_is() -> None:
    """The thread runs nothing but torch's own: its place is where it was given that to do."""
    model = nn.Linear(3, 3, bias=False)
    average = torch.optim.swa_utils.AveragedModel(model)
    weight = model.weight.detach()
    with ThreadPoolExecutor(1) as pool:
        for _ in range(3):
            weight.mul_(0.5)  # race: submitted_as_it_is a
            pool.submit(average.update_parameters, model)  # race: submitted_as_it_is b


if __name__ == "__main__":
    torch.set_num_threads(1)
    planted.run()
    for form in (
        stage_reused,
        functions_of_changed_weights,
        recomputed_while_stepped,
        saved_while_stepped,
        exchanged_while_read,
        counted_in_a_callback,
        released_before_the_write,
        first_of_two_futures,
        lost_updates,
        published_by_a_variable,
        one_barrier_a_step,
        refilled_from_nothing,
        submitted_as_it_is,
        read_by_generated_code,
    ):
        form()
