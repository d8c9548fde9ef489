"""Faulty programs on a GPU and their clean twins: python tests/gpu/cases.py NAME

What `lanescope check` finds in each is in EXPECTED. `tests/fixtures/gpu` holds some of them as they
were recorded on an H100.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator

import torch
from torch.nn import functional as F

WIDTH = 256


def network() -> torch.nn.Module:
    parts: list[torch.nn.Module] = []
    for _ in range(4):
        parts += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()]
    return torch.nn.Sequential(*parts, torch.nn.Linear(WIDTH, 10)).cuda()


def batches(count: int, seed: int = 0) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    drawn = torch.Generator().manual_seed(seed)
    truth = torch.randn(WIDTH, 10, generator=drawn)
    for _ in range(count):
        batch = torch.randn(64, WIDTH, generator=drawn)
        yield batch, (batch @ truth).argmax(1)


def in_two_threads(work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def read_before_copied() -> None:
    large = torch.randn(4096, 4096, device="cuda")
    here = torch.empty(4096, 4096, pin_memory=True)
    for _ in range(8):
        here.copy_(large @ large @ large, non_blocking=True)
        here.sum()


def read_before_moved() -> None:
    large = torch.randn(4096, 4096, device="cuda")
    for _ in range(6):
        (large @ large @ large).to("cpu", non_blocking=True).abs()


def refilled_before_sent() -> None:
    model, here = network().eval(), torch.empty(64, WIDTH, pin_memory=True)
    with torch.no_grad():
        for batch, _ in batches(10):
            here.copy_(batch)
            model(here.to("cuda", non_blocking=True)).sum()


def side_stream_unwaited() -> None:
    model, side = network(), torch.cuda.Stream()
    with torch.no_grad():
        for batch, _ in batches(6):
            there = batch.cuda()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                found = model(there)
            found.sum()


def two_threads_one_model() -> None:
    model = network()

    def work(number: int) -> None:
        for batch, target in batches(4, number):
            F.cross_entropy(model(batch.cuda()), target.cuda()).backward()

    in_two_threads(work)


# What follows is right. ------------------------------------------------------------------------


def two_models_two_threads() -> None:
    def work(number: int) -> None:
        torch.cuda.set_stream(torch.cuda.Stream())
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for batch, target in batches(10, number):
            F.cross_entropy(model(batch.cuda()), target.cuda()).backward()
            optimizer.step()
            optimizer.zero_grad()

    in_two_threads(work)


def query_until_done() -> None:
    large = torch.randn(2048, 2048, device="cuda")
    here = torch.empty(2048, 2048, pin_memory=True)
    for _ in range(6):
        here.copy_(large @ large, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        while not event.query():
            time.sleep(0.001)
        here.sum()


def two_buffers_in_turn() -> None:
    model = network().eval()
    buffers = [torch.empty(64, WIDTH, pin_memory=True) for _ in range(2)]
    sent: list[torch.cuda.Event] = []
    with torch.no_grad():
        for number, (batch, _) in enumerate(batches(12)):
            here = buffers[number % 2]
            if number > 1:
                sent[number - 2].synchronize()
            here.copy_(batch)
            there = here.to("cuda", non_blocking=True)
            sent.append(torch.cuda.Event())
            sent[-1].record()
            model(there).sum()


def prefetch_on_a_stream() -> None:
    model, side = network(), torch.cuda.Stream()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for batch, target in batches(20):
        with torch.cuda.stream(side):
            pair = [one.pin_memory().to("cuda", non_blocking=True) for one in (batch, target)]
        torch.cuda.current_stream().wait_stream(side)
        for one in pair:
            one.record_stream(torch.cuda.current_stream())
        F.cross_entropy(model(pair[0]), pair[1]).backward()
        optimizer.step()
        optimizer.zero_grad()


def whole_step_graph() -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=True)
    several = list(batches(20))
    batch, target = (one.cuda() for one in several[0])

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(batch), target)
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    for one, wanted in several:
        batch.copy_(one)
        target.copy_(wanted)
        graph.replay()
    loss.item()


RACE, OVERLAP = {"race"}, {"overlap"}
EXPECTED: dict[Callable[[], None], set[str]] = {
    read_before_copied: RACE,
    read_before_moved: RACE,
    refilled_before_sent: RACE,
    side_stream_unwaited: RACE,
    two_threads_one_model: OVERLAP,
    two_models_two_threads: set(),
    query_until_done: set(),
    two_buffers_in_turn: set(),
    prefetch_on_a_stream: set(),
    whole_step_graph: set(),
}
"""Program -> kinds of the errors and warnings that are found in it."""

if __name__ == "__main__":
    torch.manual_seed(0)
    {one.__name__: one for one in EXPECTED}[sys.argv[1]]()
    torch.cuda.synchronize()
