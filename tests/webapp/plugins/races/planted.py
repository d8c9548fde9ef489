"""Threads that share tensors and lack what should order them. Pairs of lines that race are marked
with a name and a side: "# race: NAME a" and "# race: NAME b"."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from typing import ClassVar

import torch
from torch import nn

from tests.webapp.plugins.races.common import together


def shared_gradient() -> None:
    model = nn.Linear(4, 4, bias=False)
    model.weight.grad = torch.zeros(4, 4)

    def one() -> None:
        model(torch.ones(2, 4)).sum().backward()  # race: shared_gradient a

    def other() -> None:
        model(torch.ones(2, 4)).sum().backward()  # race: shared_gradient b

    together(one, other)


def step_against_backward() -> None:
    model = nn.Linear(4, 4, bias=False)
    model.weight.grad = torch.zeros(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    def steps() -> None:
        for _ in range(3):
            optimizer.step()  # race: step_against_backward a

    loss = model(torch.ones(2, 4)).sum()

    def backward() -> None:
        loss.backward()  # race: step_against_backward b

    together(steps, backward)


def zeroed_against_backward() -> None:
    model = nn.Linear(4, 4, bias=False)
    model.weight.grad = torch.zeros(4, 4)

    def zero() -> None:
        model.zero_grad(set_to_none=False)  # race: zeroed_against_backward a

    def backward() -> None:
        model(torch.ones(2, 4)).sum().backward()  # race: zeroed_against_backward b

    together(zero, backward)


def released_against_backward() -> None:
    model, computed = nn.Linear(4, 4, bias=False), []

    def release() -> None:
        while not computed:
            time.sleep(0.001)
        model.zero_grad()  # race: released_against_backward a

    def backward() -> None:
        model(torch.ones(2, 4)).sum().backward()  # race: released_against_backward b
        computed.append(True)

    together(release, backward)


def removed_against_backward() -> None:
    model, computed = nn.Linear(4, 4, bias=False), []

    def remove() -> None:
        while not computed:
            time.sleep(0.001)
        model.weight.grad = None  # race: removed_against_backward a

    def backward() -> None:
        model(torch.ones(2, 4)).sum().backward()  # race: removed_against_backward b
        computed.append(True)

    together(remove, backward)


def replaced_against_step() -> None:
    model, stepped = nn.Linear(4, 4, bias=False), []
    model.weight.grad = torch.ones(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def replace() -> None:
        while not stepped:
            time.sleep(0.001)
        model.weight.grad = torch.zeros(4, 4)  # race: replaced_against_step a

    def step() -> None:
        optimizer.step()  # race: replaced_against_step b
        stepped.append(True)

    together(replace, step)


def updated_during_forward() -> None:
    weight = torch.zeros(4, 4)

    def update() -> None:
        weight.mul_(0.5)  # race: updated_during_forward a

    def forward() -> None:
        torch.ones(2, 4).mm(weight)  # race: updated_during_forward b

    together(update, forward)


def running_statistics() -> None:
    mean, variance = torch.zeros(3), torch.ones(3)

    def train() -> None:
        batch = torch.randn(5, 3)
        nn.functional.batch_norm(batch, mean, variance, None, None, True)  # race: statistics a

    def evaluate() -> None:
        batch = torch.randn(5, 3)
        nn.functional.batch_norm(batch, mean, variance)  # race: statistics b

    together(train, evaluate)


def overlapping_views() -> None:
    whole = torch.zeros(10)
    left, right = whole[:6], whole[4:]

    def one() -> None:
        left.add_(1)  # race: overlapping_views a

    def other() -> None:
        right.add_(1)  # race: overlapping_views b

    together(one, other)


def lock_on_one_side() -> None:
    total, lock = torch.zeros(3), threading.Lock()

    def careful() -> None:
        for _ in range(3):
            with lock:
                total.add_(1)  # race: lock_on_one_side a

    def careless() -> None:
        for _ in range(3):
            total.add_(1)  # race: lock_on_one_side b

    together(careful, careless)


def missing_join() -> None:
    result = torch.zeros(3)

    def work() -> None:
        result.fill_(2)  # race: missing_join a

    thread = threading.Thread(target=work)
    thread.start()
    result.sum()  # race: missing_join b
    thread.join()


def event_set_too_early() -> None:
    batch, ready = torch.zeros(3), threading.Event()

    def produce() -> None:
        ready.set()
        batch.fill_(1)  # race: event_set_too_early a

    def consume() -> None:
        ready.wait()
        batch.sum()  # race: event_set_too_early b

    together(consume, produce)


class SlowBarrier(threading.Barrier):
    """One of its threads comes out only when the other is about to go in again."""

    again: ClassVar[list[bool]] = []

    def _exit(self) -> None:
        while threading.current_thread().name == "slow" and not self.again:
            time.sleep(0.001)
        time.sleep(0.02)
        super()._exit()


def barrier_entered_again() -> None:
    total, barrier = torch.zeros(3), SlowBarrier(2)

    def quick() -> None:
        barrier.wait()
        total.add_(1)  # race: barrier_entered_again a
        barrier.again.append(True)
        barrier.wait()

    def slow() -> None:
        threading.current_thread().name = "slow"
        barrier.wait()
        total.add_(1)  # race: barrier_entered_again b
        barrier.wait()

    together(quick, slow)


def tasks_share() -> None:
    total = torch.zeros(3)

    def task(number: int) -> None:
        total.add_(number)  # race: tasks_share a b
        both.wait()

    both = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(task, range(2)))


def changed_after_put() -> None:
    items: queue.Queue[torch.Tensor] = queue.Queue()

    def produce() -> None:
        item = torch.zeros(3)
        items.put(item)
        item.add_(1)  # race: changed_after_put a

    def consume() -> None:
        items.get().sum()  # race: changed_after_put b

    together(consume, produce)


def average_during_training() -> None:
    weight, average = torch.zeros(3), torch.zeros(3)

    def train() -> None:
        for _ in range(3):
            weight.add_(0.1)  # race: average_during_training a

    def follow() -> None:
        for _ in range(3):
            average.lerp_(weight, 0.5)  # race: average_during_training b

    together(train, follow)


def checkpoint_during_step() -> None:
    model = nn.Linear(3, 3, bias=False)
    model.weight.grad = torch.ones(3, 3)
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        optimizer.step()  # race: checkpoint_during_step a

    def save() -> None:
        saved = dict(model.state_dict())
        saved["weight"].clone()  # race: checkpoint_during_step b

    together(train, save)


def swapped_during_evaluation() -> None:
    model = nn.Linear(3, 3, bias=False)
    better = torch.ones(3, 3)

    def swap() -> None:
        model.weight.data.copy_(better)  # race: swapped_during_evaluation a

    def evaluate() -> None:
        with torch.no_grad():
            model(torch.ones(1, 3))  # race: swapped_during_evaluation b

    together(swap, evaluate)


def refilled_batch() -> None:
    batch = torch.zeros(4)
    full: queue.Queue[torch.Tensor] = queue.Queue()

    def load() -> None:
        for number in range(3):
            batch.fill_(number)  # race: refilled_batch a
            full.put(batch)

    def train() -> None:
        for _ in range(3):
            full.get().sum()  # race: refilled_batch b

    together(train, load)


def added_up_in_hooks() -> None:
    total, both = torch.zeros(4), threading.Barrier(2)

    def work() -> None:
        weight = torch.ones(4, requires_grad=True)

        def add(gradient: torch.Tensor) -> None:
            total.add_(gradient)  # race: added_up_in_hooks a b
            both.wait()

        weight.register_hook(add)
        weight.sum().backward()

    together(work, work)


def inferred_by_the_model_itself() -> None:
    model = nn.Linear(3, 3, bias=False)
    model.weight.grad = torch.ones(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)

    def train() -> None:
        optimizer.step()  # race: inferred_by_the_model_itself a

    def infer() -> None:
        with torch.inference_mode():
            model(torch.ones(1, 3))  # race: inferred_by_the_model_itself b

    together(train, infer)


def used_before_it_was_waited_for() -> None:
    part = torch.zeros(3)

    def task() -> None:
        part.add_(1)  # race: used_before_it_was_waited_for a

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(task)
        part.sum()  # race: used_before_it_was_waited_for b
        wait([future])


def semaphore_for_two() -> None:
    total, some, both = torch.zeros(3), threading.Semaphore(2), threading.Barrier(2)

    def work() -> None:
        with some:
            total.add_(1)  # race: semaphore_for_two a b
            both.wait()

    together(work, work)


def two_conditions() -> None:
    total = torch.zeros(3)
    one, other = threading.Lock(), threading.Lock()

    def first() -> None:
        with one:
            total.add_(1)  # race: two_conditions a

    def second() -> None:
        with other:
            total.add_(1)  # race: two_conditions b

    together(first, second)


def run() -> None:
    for planted in (
        shared_gradient,
        step_against_backward,
        zeroed_against_backward,
        updated_during_forward,
        released_against_backward,
        removed_against_backward,
        replaced_against_step,
        running_statistics,
        overlapping_views,
        lock_on_one_side,
        barrier_entered_again,
        missing_join,
        event_set_too_early,
        tasks_share,
        changed_after_put,
        average_during_training,
        checkpoint_during_step,
        swapped_during_evaluation,
        refilled_batch,
        two_conditions,
        added_up_in_hooks,
        inferred_by_the_model_itself,
        used_before_it_was_waited_for,
        semaphore_for_two,
    ):
        planted()
