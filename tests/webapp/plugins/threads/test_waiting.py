"""How long threads waited for each other, also where a wait never ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from lanescope.webapp.analysis.thread_waits import WAITS_FOR, thread_waits
from lanescope.webapp.plugins.threads import waiting as of_threads
from lanescope.webapp.plugins.threads.waiting import waiting_threads
from lanescope.webapp.runs.run import Run, open_run
from tests.support.recording import record_program
from tests.support.run_builder import START_NS, Builder

MS = 1_000_000


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Thread 0 works from 0 to 100 ms. Thread 1 waits for a lock from 10 to 20 and from 30 to 35
    ms, and for an item from 60 ms on; thread 2 sets an event at 5 ms."""
    builder = Builder(tmp_path / "run")
    for thread in range(3):
        builder.op(START_NS, 100 * MS, thread=f"1000-{thread}")
    for start, length, kind in ((10, 10, "lock_acquire"), (30, 5, "lock_acquire")):
        _sync(builder, 1, start, length * MS, kind)
    _sync(builder, 1, 60, None, "queue_get")
    _sync(builder, 2, 5, 0, "event_set")
    return open_run(builder.write())


def _sync(builder: Builder, thread: int, start: int, length: int | None, kind: str) -> None:
    builder.row(
        "sync",
        0,
        f"1000-{thread}",
        start_ns=START_NS + start * MS,
        duration_ns=length,
        kind=kind,
        object=-7,
    )


def rows(run: Run, low: int, high: int) -> list[tuple[object, ...]]:
    table = waiting_threads(run, (low * MS, high * MS))
    columns = ("thread", "kind", "waiting_ns", "share", "open")
    return [tuple(getattr(row, name) for name in columns) for row in table.itertuples()]


def test_a_wait_that_never_ended_lasts_to_the_end(run: Run) -> None:
    assert rows(run, 0, 100) == [("1000-1", "queue_get", 55 * MS, 0.55, True)]
    assert rows(run, 70, 80) == [("1000-1", "queue_get", 10 * MS, 1.0, True)]


def test_a_window_cuts_waits(run: Run) -> None:
    assert rows(run, 15, 40) == [("1000-1", "lock_acquire", 10 * MS, 0.4, False)]
    assert rows(run, 40, 60) == []


def test_a_large_run_is_read_window_by_window(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [rows(run, *window) for window in ((0, 100), (15, 40), (70, 80))]
    monkeypatch.setattr(of_threads, "KEPT", 0)
    assert [rows(run, *window) for window in ((0, 100), (15, 40), (70, 80))] == answers


@pytest.mark.parametrize("kind", WAITS_FOR)
def test_every_kind_of_wait_counts(tmp_path: Path, kind: str) -> None:
    builder = Builder(tmp_path / "run")
    builder.op(START_NS, 100 * MS)
    _sync(builder, 0, 90, None, kind)
    assert rows(open_run(builder.write()), 0, 100) == [("1000-0", kind, 10 * MS, 0.1, True)]


KILLED = """
    import os, queue, signal, sys, threading, time
    import torch

    torch.ones(1)
    items, event = queue.Queue(), threading.Event()
    held = threading.Lock()
    held.acquire()
    def take():
        with held:
            pass
    threads = [
        threading.Thread(target=block, name=name, daemon=True)
        for name, block in (("taker", items.get), ("waiter", event.wait), ("locker", take))
    ]
    for thread in threads:
        thread.start()
    def main_joins():
        frame = sys._current_frames()[threading.main_thread().ident]
        places = []
        while frame:
            places.append((frame.f_code.co_filename, frame.f_code.co_name))
            frame = frame.f_back
        # The innermost is not the recorder's, which notes the wait as join begins.
        return (threading.__file__, "join") in places and places[0][0] == threading.__file__
    def kill():
        while not (items.not_empty._waiters and event._cond._waiters and main_joins()):
            torch.ones(1)
        time.sleep(0.1)
        torch.ones(1)  # the run ends with it, after main has begun to wait
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Thread(target=kill, name="killer").start()
    threads[0].join()
"""


def test_a_killed_program_has_the_waits_it_was_in(tmp_path: Path) -> None:
    run = open_run(record_program(tmp_path, KILLED).run)
    waits = thread_waits(run, 0)
    names = {thread.thread: thread.name for thread in run.threads}
    open_waits = waits[waits["open"]]
    found = {
        names[row.thread]: (row.kind, row.end_ns > row.start_ns) for row in open_waits.itertuples()
    }
    assert found["taker"] == ("queue_get", True)
    assert found["waiter"] == ("event_wait", True)
    assert found["locker"] == ("lock_acquire", True)
    assert found["main"] == ("thread_join", True)
    table = waiting_threads(run, (0, run.duration_ns))
    assert set(table.loc[table["open"], "thread"].map(names)) >= set(found)
