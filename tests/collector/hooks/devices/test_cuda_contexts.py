"""CUDA devices: who uses another's, threads that chose none, forks; and what pins to a device."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import lanescope.collector as ls
from lanescope.collector.format.options import Options
from lanescope.collector.hooks.devices import cuda_contexts as source
from lanescope.collector.recorder.recorder import Recorder
from lanescope.webapp import open_run
from lanescope.webapp.plugins.threads.cuda_contexts import cuda_contexts
from tests.collector.hooks.devices.test_device import needs_gpu
from tests.support.recording import record_program
from tests.support.synthetic import START_NS, Builder


class Node:
    """A run of ranks that have chosen or used devices."""

    def __init__(self, path: Path, ranks: int = 2) -> None:
        self.builder = Builder(path, world_size=ranks)
        self.main = [self.builder.thread(rank) for rank in range(ranks)]
        self.now = START_NS

    def begun(self, rank: int, visible: str = "", count: int = 8, local: bool = True) -> None:
        reported = f", visible {visible}" if visible else ""
        own = f", local rank {rank}" if local else ""
        self.mark(rank, f"cuda: begun on cuda:0 at /train.py:1 of {count} devices{reported}{own}")

    def mark(self, rank: int, text: str, thread: str | None = None) -> None:
        self.now += 100
        thread = thread or self.main[rank]
        self.builder.phase(self.now, 0, "mark", rank=rank, thread=thread, name=text)

    def op(self, rank: int, device: int, thread: str | None = None, **columns: Any) -> None:
        self.now += 100
        columns |= {"thread": thread or self.main[rank], "device": f"cuda:{device}"}
        self.builder.op(self.now, 10, rank=rank, **columns)

    def titles(self) -> list[str]:
        return [finding.title for finding in cuda_contexts(open_run(self.builder.write()))]


def test_a_rank_on_anothers_device(tmp_path: Path) -> None:
    node = Node(tmp_path / "run")
    for rank in (0, 1):
        node.begun(rank)
        node.mark(rank, f"cuda: cuda:{rank} chosen at /train.py:3")
        node.op(rank, rank)
    node.op(1, 0, name="aten::empty")
    node.op(1, 0)
    (title,) = node.titles()
    assert title == (
        "Rank 1 runs aten::empty on cuda:0, the device of rank 0, in MainThread. Its own device is "
        "cuda:1. Choose the device in each thread (torch.cuda.set_device, ls.pin) before anything "
        "uses CUDA."
    )


def test_a_rank_that_chose_none(tmp_path: Path) -> None:
    node = Node(tmp_path / "run")
    for rank in (0, 1):
        node.begun(rank)
        node.op(rank, 0)
    (title,) = node.titles()
    assert "Its own device is cuda:1." in title


@pytest.mark.parametrize("case", ["own", "isolated", "two each", "alone", "unknown"])
def test_ranks_that_keep_apart_are_silent(tmp_path: Path, case: str) -> None:
    node = Node(tmp_path / "run")
    for rank in (0, 1):
        if case == "isolated":  # each sees one device, and calls it 0
            node.begun(rank, visible=str(rank), count=1)
            node.op(rank, 0)
        elif case == "two each":  # a model in two halves
            node.begun(rank)
            node.mark(rank, f"cuda: cuda:{2 * rank} chosen at /train.py:3")
            node.op(rank, 2 * rank)
            node.op(rank, 2 * rank + 1)
        elif case == "alone":  # of one rank more devices may be used
            node.begun(0, local=False)
            node.op(0, rank)
        elif case == "unknown":  # recorded from elsewhere: only operators
            node.op(rank, 0)
        else:
            node.begun(rank)
            node.mark(rank, f"cuda: cuda:{rank} chosen at /train.py:3")
            node.mark(rank, "cuda: cuda:3 in place of cuda:0 for a block at /train.py:4")
            node.op(rank, rank)
    assert node.titles() == []


def test_threads_that_chose_no_device(tmp_path: Path) -> None:
    node = Node(tmp_path / "run", ranks=1)
    careless, careful, blocked = (node.builder.thread(0, ordinal=n) for n in (1, 2, 3))
    node.begun(0, local=False)
    node.mark(0, "cuda: cuda:1 chosen at /train.py:3")
    node.op(0, 1)
    node.op(0, 0, careless, name="aten::mm")
    node.mark(0, "cuda: cuda:0 chosen at /train.py:9", careful)
    node.op(0, 0, careful)
    node.mark(0, "cuda: cuda:2 in place of cuda:0 for a block at /train.py:9", blocked)
    node.op(0, 0, blocked)
    (title,) = node.titles()
    assert title.startswith("Device cuda:0 runs aten::mm of Thread-1: that thread chose no device")


def test_use_after_a_fork(tmp_path: Path) -> None:
    node = Node(tmp_path / "run", ranks=1)
    node.begun(0)
    node.op(0, 0)
    node.mark(0, "cuda: forked in use at /train.py:5")
    node.builder.process(0, 2000, role="child")
    child = node.builder.thread(0, 2000)
    node.mark(0, "cuda: wanted at /data.py:7 in a child forked at /train.py:5", child)
    run = open_run(node.builder.write())
    (finding,) = cuda_contexts(run)
    assert (finding.severity, finding.where) == ("error", "data.py:7")
    assert finding.evidence["forked_at"] == "train.py:5"


class Device:
    """Stands for the current device of the calling thread, where there is no GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current = 0
        monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: self.current, raising=False)
        monkeypatch.setattr(torch._C, "_cuda_setDevice", self.set, raising=False)
        monkeypatch.setattr(torch.cuda, "_exchange_device", self.exchange)
        monkeypatch.setattr(torch.cuda, "_maybe_exchange_device", self.exchange)

    def set(self, device: int) -> None:
        self.current = device

    def exchange(self, device: int) -> int:
        before, self.current = self.current, device
        return before


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


class Marks(Recorder):
    """A recorder that keeps marks only."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, Options())
        self.marks: list[str] = []

    def mark(self, name: str) -> None:
        self.marks.append(name)


@pytest.fixture
def marks(tmp_path: Path, device: Device) -> Iterator[Marks]:
    recorder = Marks(tmp_path)
    queued = list(vars(torch.cuda)["_queued_calls"])
    contexts, undo = source.install(recorder)
    contexts.begun()
    yield recorder
    undo()
    vars(torch.cuda)["_queued_calls"][:] = queued
    recorder.closed = True
    assert contexts.forking() is None


def line() -> int:
    return sys._getframe(1).f_lineno


def test_choices_of_devices_are_marked_with_their_lines(
    marks: Marks, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = vars(torch.cuda)["set_device"].__wrapped__
    torch.cuda.set_device(2)
    chosen = line() - 1
    torch.cuda.set_device(2)
    with torch.cuda.device(3):
        inside = line() - 1
    with torch.cuda.device(2):
        torch.cuda.set_device(2)
    begun, first, block = marks.marks
    assert begun.startswith("cuda: begun on cuda:0 at ")
    assert first == f"cuda: cuda:2 chosen at {__file__}:{chosen}"
    assert block == f"cuda: cuda:3 in place of cuda:2 for a block at {__file__}:{inside}"
    assert original(2) is None

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    if not (pid := os.fork()):
        os._exit(0)
    os.waitpid(pid, 0)
    assert marks.marks[-1].startswith("cuda: forked in use at ")


def test_pinned_coroutines_and_threads_keep_their_devices(device: Device) -> None:
    seen: dict[int, list[int]] = {1: [], 2: []}

    async def serve(number: int) -> int:
        for _ in range(3):
            seen[number].append(device.current)
            await asyncio.sleep(0)
        return number

    async def fails() -> None:
        await asyncio.Event().wait()

    async def main() -> list[int]:
        served = [asyncio.create_task(ls.pin(number)(serve)(number)) for number in seen]
        cancelled = asyncio.create_task(ls.pin(3)(fails)())
        await asyncio.sleep(0)
        assert device.current == 0
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        return await asyncio.gather(*served)

    with ThreadPoolExecutor(1) as alone:  # the test's own thread may have a loop that runs
        assert alone.submit(asyncio.run, main()).result() == [1, 2]
    assert seen == {1: [1, 1, 1], 2: [2, 2, 2]}
    with ls.pin(1), ls.pin(2):
        assert device.current == 2
        assert ls.pin("cuda:3")(lambda: device.current)() == 3
    assert device.current == 0
    with pytest.raises(KeyError), ls.pin(1):
        raise KeyError
    assert device.current == 0


@needs_gpu
def test_a_forked_child_that_uses_the_device(tmp_path: Path) -> None:
    recorded = record_program(
        tmp_path,
        """
        import os, torch
        torch.cuda.set_device(0)
        torch.ones(2, device="cuda") + 1
        pid = os.fork()  # fork
        if not pid:
            try:
                torch.ones(2, device="cuda")
            except RuntimeError:
                os._exit(0)
        os.waitpid(pid, 0)
        """,
    )
    assert recorded.status == 0, recorded.stderr
    run = open_run(recorded.run)
    texts = [str(row["name"]) for row in recorded.rows("phase") if row["kind"] == "mark"]
    assert [text for text in texts if text.startswith("cuda: begun on cuda:0")]
    assert [text for text in texts if text.startswith("cuda: cuda:0 chosen")]
    (finding,) = cuda_contexts(run)
    # The first line of the program is empty.
    assert finding.where == "program.py:8"
    assert finding.evidence["forked_at"] == "program.py:5"
