"""Whether a process is at rest, and what can still wake it: on made-up looks at its threads, and
on real ones."""

from __future__ import annotations

import multiprocessing
import os
import platform
import queue
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lanescope.collector.journal.journal import PROCESS_FILE, json_bytes
from lanescope.collector.watchdog.peers import REST_FILE, Peers, RestNote, write_note
from lanescope.collector.watchdog.rest import (
    BUSY,
    Rest,
    RestState,
    ThreadWait,
    rest_state,
    share_of_core,
)
from lanescope.collector.watchdog.thread_dump import cause_of_wait
from lanescope.collector.watchdog.thread_states import ProcessSample, ThreadSample

S = 1_000_000_000
_FUTEX = {"x86_64": 202, "aarch64": 98}[platform.machine()]
_EPOLL = {"x86_64": 232, "aarch64": 22}[platform.machine()]
_WAIT_BITSET, _PRIVATE, _REALTIME = 9, 128, 256
MAIN, OTHER = 1, 2


def futex(*, timeout: int = 0, private: bool = True) -> tuple[int, ...]:
    command = _WAIT_BITSET | _REALTIME | (_PRIVATE if private else 0)
    return (_FUTEX, 0x7F00, command, 0, timeout, 0, 0)


ASLEEP = ThreadSample("python", call=futex())
TIMED = replace(ASLEEP, call=futex(timeout=0x7FFE))
SHARED = replace(ASLEEP, call=futex(private=False))
READS = ThreadSample("python", call=(0, 3, 0x7F00, 4096))
POLLS = ThreadSample("python", call=(_EPOLL, 5, 0x7F00, 16, 0xFFFF_FFFF))
GLOO = ThreadSample("python", call=(_EPOLL, 5, 0x7F00, 64, 10))
COMPUTES = ThreadSample("python", "R")

PASSED = 10
"""Seconds between two looks."""


def rested(now: ThreadSample, before: ThreadSample = ASLEEP, **all_threads: Any) -> Rest:
    """Two looks at a process whose main thread was like that and is like this."""
    rest = Rest()
    rest.look(ProcessSample(0, {MAIN: before}, **all_threads))
    rest.look(ProcessSample(PASSED * S, {MAIN: now}, **all_threads))
    return rest


@pytest.mark.parametrize(
    ("now", "share"),
    [
        (ASLEEP, 0),
        (replace(ASLEEP, used_ns=2 * S), 0.2),
        (replace(COMPUTES, used_ns=S // 10, ready_ns=9 * S), 0.91),
        # Starved, on a system that does not measure for how long.
        (replace(COMPUTES, used_ns=S // 10, preempted=5), BUSY),
        (replace(READS, used_ns=S // 10, moved_bytes=4096), BUSY),
        (replace(ASLEEP, faults=3, state="D"), BUSY),
        # Stuck in a disk, stopped, or polling: it goes no further.
        (replace(READS, state="D"), 0),
        (replace(ASLEEP, state="T"), 0),
        (replace(POLLS, yielded=1000, used_ns=S // 10), 0.01),
    ],
)
def test_who_reads_or_is_starved_is_at_work(now: ThreadSample, share: float) -> None:
    assert share_of_core(ASLEEP, now, PASSED * S) == pytest.approx(share)


@pytest.mark.parametrize(
    ("now", "seconds"),
    [
        (ASLEEP, PASSED),
        (replace(ASLEEP, used_ns=S // 10, yielded=400), PASSED),  # it polls
        (replace(ASLEEP, used_ns=2 * S, yielded=400), 0),  # it computes now and then
        (replace(COMPUTES, used_ns=PASSED * S), 0),
        (replace(COMPUTES, used_ns=S // 20, ready_ns=9 * S, preempted=30), 0),  # it is starved
        (COMPUTES, 0),  # so much that it never had its turn
        # One that polls waits long for its turn as well, and then gives it back.
        (replace(ASLEEP, used_ns=S // 20, ready_ns=9 * S, yielded=200, preempted=3), PASSED),
        (replace(ASLEEP, state="D"), 0),
        (replace(ASLEEP, state="T"), 0),  # stopped
        (replace(ASLEEP, faults=1), 0),  # swapped out
        (replace(ASLEEP, moved_bytes=4096), 0),  # it imports
    ],
)
def test_threads_at_rest(now: ThreadSample, seconds: int) -> None:
    assert rested(now).rested_ns == seconds * S


def test_threads_that_begin_and_end_are_no_rest() -> None:
    rest = Rest()
    looks = ({MAIN}, {MAIN}, {MAIN, OTHER}, {MAIN, OTHER}, {MAIN}, {MAIN})
    still = [
        rest.look(ProcessSample(number * S, dict.fromkeys(look, ASLEEP)))
        for number, look in enumerate(looks)
    ]
    assert still == [False, True, False, True, False, True]
    rest.forget()
    assert rest.rested_ns == 0


def stands(
    main: ThreadWait,
    threads: dict[int, ThreadSample],
    *others: ThreadWait,
    handlers: bool = False,
    traced: bool = False,
    known: bool = True,
) -> RestState:
    rest = Rest()
    for at in (0, 60 * S):
        rest.look(ProcessSample(at, threads, traced, known))
    return rest_state(rest, [main, *others], handlers=handlers)


def test_nothing_can_wake_threads_that_all_wait_for_each_other() -> None:
    main = ThreadWait(MAIN, main=True)
    assert stands(main, {MAIN: ASLEEP, OTHER: ASLEEP}) is RestState.closed
    assert stands(main, {MAIN: ASLEEP, OTHER: GLOO}) is RestState.closed
    assert stands(main, {MAIN: ASLEEP, OTHER: replace(TIMED, name="pt_nccl_watchdg")}) is (
        RestState.closed
    )
    assert stands(main, {MAIN: ASLEEP}, handlers=True) is RestState.unknown
    assert stands(main, {MAIN: ASLEEP}, traced=True) is RestState.unknown
    assert stands(main, {MAIN: ASLEEP}, known=False) is RestState.unknown
    # They serve a collective, or an unknown wait.
    calls, unknown = replace(main, collective=True, called=True), replace(main, known=False)
    assert stands(calls, {MAIN: ASLEEP, OTHER: GLOO}) is RestState.collective
    assert (
        stands(replace(calls, collective=False), {MAIN: ASLEEP, OTHER: GLOO}) is RestState.threads
    )
    assert stands(unknown, {MAIN: ASLEEP, OTHER: GLOO}) is RestState.unknown
    assert stands(unknown, {MAIN: ASLEEP, OTHER: ASLEEP}) is RestState.closed
    # A library's own threads, which may serve the wait.
    assert stands(main, {MAIN: ASLEEP, OTHER: POLLS}) is RestState.threads
    tqdm = ThreadWait(OTHER, service=True, harmless=True)
    assert stands(main, {MAIN: ASLEEP, OTHER: TIMED}, tqdm) is RestState.closed


@pytest.mark.parametrize("wait", [TIMED, SHARED, READS, POLLS])
def test_what_comes_from_outside_may_still_come(wait: ThreadSample) -> None:
    main, other = ThreadWait(MAIN, main=True), ThreadWait(OTHER)
    assert stands(main, {MAIN: wait}) is RestState.unknown
    assert stands(main, {MAIN: ASLEEP, OTHER: wait}, other) is RestState.unknown
    service = replace(other, service=True)
    assert stands(main, {MAIN: ASLEEP, OTHER: wait}, service) is RestState.unknown
    calls = replace(main, collective=True, called=True)
    assert stands(calls, {MAIN: TIMED, OTHER: wait}, other) is RestState.unknown
    assert stands(calls, {MAIN: TIMED, OTHER: wait}, service) is RestState.collective
    loads = replace(main, process=True)
    assert stands(loads, {MAIN: wait}) is RestState.process


def test_a_wait_that_ended_in_between_does_not_count() -> None:
    rest = rested(replace(ASLEEP, yielded=1))
    assert rest.rested_ns == PASSED * S
    assert rest_state(rest, [ThreadWait(MAIN, main=True)], handlers=False) is RestState.unknown


def test_what_moved_while_it_was_judged_is_not_at_rest() -> None:
    rest = rested(ASLEEP)
    assert rest.unmoved(ProcessSample(PASSED * S, {MAIN: ASLEEP}))
    assert not rest.unmoved(ProcessSample(PASSED * S, {MAIN: replace(ASLEEP, yielded=1)}))
    assert not rest.unmoved(ProcessSample(PASSED * S, {MAIN: ASLEEP, OTHER: ASLEEP}))
    assert not rest.unmoved(ProcessSample(PASSED * S, {}))


def test_a_circle_needs_no_other_thread_to_sleep() -> None:
    main = ThreadWait(MAIN, main=True, ordinal=0, owner=1)
    other = ThreadWait(OTHER, ordinal=1, owner=0)
    server = ThreadWait(3, ordinal=2)
    both = {MAIN: ASLEEP, OTHER: ASLEEP, 3: READS}
    assert stands(main, both, other, server, handlers=True) is RestState.closed
    assert stands(main, {**both, OTHER: TIMED}, other, server) is RestState.unknown
    itself = replace(main, owner=0)  # that another thread may end
    assert stands(itself, both, replace(other, owner=None), server) is RestState.unknown


class Job:
    """Other processes of a run, as described by their journals."""

    def __init__(self, run: Path) -> None:
        self.journal = run / "journal"
        self.own = self.add("1-1", rank=0)
        self.peers = Peers(self.own)

    def add(self, name: str, **process: object) -> Path:
        folder = self.journal / name
        folder.mkdir(parents=True)
        about = {
            "pid": os.getpid(),
            "parent_pid": 1,
            "role": "rank",
            "host": os.uname().nodename,
            "start_ns": 1,
            "closed": False,
            **process,
        }
        (folder / PROCESS_FILE).write_bytes(json_bytes(about))
        return folder

    def note(self, folder: Path, at: int, standing: RestState, rested: int = 100) -> None:
        write_note(folder, RestNote(at * S, rested * S, standing))

    def rests(self, own: RestState = RestState.collective) -> bool:
        return self.peers.ranks_rest(2, own, 60 * S)


def test_ranks_that_all_wait_and_one_in_a_collective(tmp_path: Path) -> None:
    job = Job(tmp_path)
    assert not job.rests()  # the other one has not begun
    other = job.add("2-1", rank=1)
    assert not job.rests()  # or not looked
    job.note(other, 1, RestState.threads)
    assert not job.rests()  # that may have been long ago
    assert not job.rests()
    job.note(other, 2, RestState.threads)
    assert job.rests()
    job.note(other, 3, RestState.threads)
    assert not job.rests(RestState.threads)  # two ranks that have nothing to do with each other
    job.note(other, 4, RestState.threads, rested=59)
    assert not job.rests()
    job.note(other, 5, RestState.unknown)
    assert not job.rests()
    job.note(other, 6, RestState.process)  # for one that may work
    assert not job.rests()


def test_a_rank_that_has_ended_will_not_come(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.add("2-1", rank=1, closed=True)
    assert job.rests()
    assert not job.rests(RestState.threads)


def test_a_rank_that_was_started_again_is_not_the_one_that_ended(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.add("2-1", rank=1, closed=True)
    job.add("3-2", rank=1, start_ns=2)
    assert not job.rests()


def test_children_that_one_waits_for(tmp_path: Path) -> None:
    job = Job(tmp_path)
    stuck = job.add("2-1", role="child", parent_pid=os.getpid())
    idle = job.add("3-1", role="child", parent_pid=os.getpid())
    for at in (1, 2):
        job.note(stuck, at, RestState.closed)
        job.note(idle, at, RestState.process)
        rests = job.peers.children_rest(60 * S)
    assert rests
    (idle / REST_FILE).unlink()  # it works
    job.note(stuck, 3, RestState.closed)
    assert not job.peers.children_rest(60 * S)


def test_samples_of_the_threads_of_this_process() -> None:
    locks, ends = (threading.Lock(), threading.Lock()), os.pipe()
    for lock in locks:
        lock.acquire()
    calls: dict[str, Callable[[], object]] = {
        "sleeps": locks[0].acquire,
        "limited": lambda: locks[1].acquire(timeout=60),
        "reads": lambda: os.read(ends[0], 1),
    }
    threads = {name: threading.Thread(target=call) for name, call in calls.items()}
    for thread in threads.values():
        thread.start()
    try:
        seen: dict[str, ThreadSample] = {}
        while not seen or not all(one.call and one.state == "S" for one in seen.values()):
            sample = ProcessSample.of(0)
            seen = {n: sample.threads[t.native_id or 0] for n, t in threads.items()}
        assert sample.known
        assert (seen["sleeps"].sleeps, seen["limited"].sleeps, seen["reads"].sleeps) == (
            True,
            False,
            False,
        )
        assert sample.threads[threading.get_native_id()].used_ns > 0
    finally:
        os.write(ends[1], b"x")
        for lock in locks:
            lock.release()
        for thread in threads.values():
            thread.join()


def test_waits_for_processes_differ_from_waits_for_threads() -> None:
    """By its stack: the journal has a data loader's wait for its workers as one in a queue."""
    from_process: multiprocessing.Queue[int] = multiprocessing.Queue()
    from_thread: queue.Queue[int] = queue.Queue()
    queues: dict[str, Any] = {"process": from_process, "thread": from_thread}
    threads = {
        name: threading.Thread(target=one.get, kwargs={"timeout": 60})
        for name, one in queues.items()
    }
    for thread in threads.values():
        thread.start()
    waits: dict[str, str] = {}
    try:
        end = time.monotonic() + 60
        while waits != {"process": "another process", "thread": "an item of a queue"}:
            assert time.monotonic() < end, waits
            for name, thread in threads.items():
                frames: list[list[object]] = []
                frame = sys._current_frames().get(thread.ident or 0)
                while frame is not None:
                    frames.append([frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name])
                    frame = frame.f_back
                waits[name] = cause_of_wait(frames)
    finally:
        for one in queues.values():
            one.put(1)
        for thread in threads.values():
            thread.join()
        from_process.close()


def test_a_system_that_does_not_say_what_threads_wait_in(tmp_path: Path) -> None:
    assert not ProcessSample.of(0, tmp_path).known
