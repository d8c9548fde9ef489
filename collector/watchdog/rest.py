"""Decides whether a process without records is at rest, and what it waits for.

A program that computes, waits for a processor, imports, reads a file or is swapped out records
nothing either. It is at rest if none of its threads did any of that between looks. Rest alone does
not prove a hang: that depends on what can still wake each thread, which `RestState` summarises.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from .thread_states import ProcessSample, ThreadSample

BUSY = 0.1
"""Share of a core from which on a thread counts as working. A waiting thread uses none, a polling
one little."""

MAX_GAP = 2
"""Number of pauses between looks that count as rest. A later look was delayed: the process was
stopped or starved, or the machine slept."""


def worked(before: ThreadSample | None, now: ThreadSample, passed_ns: int) -> bool:
    """Returns True if a thread did anything between two looks, or waited for a processor."""
    if before is None:  # it was started meanwhile
        return True
    if now.state in "DTt" or now.faults > before.faults or now.moved_bytes > before.moved_bytes:
        return True
    used = (now.used_ns - before.used_ns) / passed_ns
    if used >= BUSY:
        return True
    # Starved: a polling thread yields its processor, a computing one is preempted.
    ready = (now.ready_ns - before.ready_ns) / passed_ns
    if used + ready < BUSY and now.state != "R":
        return False
    return now.yielded - before.yielded <= now.preempted - before.preempted


def share_of_core(before: ThreadSample, now: ThreadSample, passed_ns: int) -> float:
    """Returns the share of a core that a thread used or waited for between two looks.

    At least `BUSY` if it worked in another way: it read a disk, or waited for a processor where
    the system does not measure that. A thread that is stuck in a disk or stopped did not work.
    """
    used = now.used_ns + now.ready_ns - before.used_ns - before.ready_ns
    share = used / passed_ns
    moved = now.faults > before.faults or now.moved_bytes > before.moved_bytes
    if moved or (now.state not in "DTt" and worked(before, now, passed_ns)):
        return max(share, BUSY)
    return share


class Rest:
    """Measures for how long no thread of a process did anything."""

    def __init__(self) -> None:
        self.first: ProcessSample | None = None  # start of the rest
        self.last: ProcessSample | None = None

    def forget(self) -> None:
        """Ends the rest, because something was recorded."""
        self.first = self.last = None

    def look(self, sample: ProcessSample) -> bool:
        """Adds a sample; returns True if the process has been at rest since the last one."""
        last, self.last = self.last, sample
        passed = 0 if last is None else sample.time_ns - last.time_ns
        if last is None or self.first is None or passed <= 0:
            self.first = sample
            return False
        gone = last.threads.keys() - sample.threads.keys()
        if gone or any(
            worked(last.threads.get(tid), thread, passed) for tid, thread in sample.threads.items()
        ):
            self.first = sample
            return False
        return True

    @property
    def rested_ns(self) -> int:
        """Duration of the rest, ns."""
        if self.first is None or self.last is None:
            return 0
        return self.last.time_ns - self.first.time_ns

    def slept_through(self, tid: int) -> bool:
        """Returns True if a thread never woke, in a wait that only a thread of its process ends."""
        if self.first is None or self.last is None:
            return False
        before, now = self.first.threads.get(tid), self.last.threads.get(tid)
        return (
            before is not None
            and now is not None
            and now.sleeps
            and before.call == now.call
            and (before.yielded, before.preempted) == (now.yielded, now.preempted)
        )

    def unmoved(self, sample: ProcessSample) -> bool:
        """Returns True if no thread has woken or started since the last look.

        The state of a process is determined thread by thread, while threads may continue.
        """
        if self.last is None or self.last.threads.keys() != sample.threads.keys():
            return False
        return all(
            (then.call, then.yielded, then.preempted) == (now.call, now.yielded, now.preempted)
            for tid, now in sample.threads.items()
            if (then := self.last.threads[tid]) and self.slept_through(tid)
        )


class RestState(enum.IntEnum):
    """State of a process at rest, which it shares with the processes that wait for it."""

    unknown = 0  # it works, or waits for something outside
    collective = 1  # it waits in a collective for other ranks
    threads = 2  # its threads wait for each other; threads of libraries may still wake them
    closed = 3  # nothing can wake any of its threads
    process = 4  # it waits for its parent or for a child


@dataclass(frozen=True)
class ThreadWait:
    """Wait of a Python thread, as described by the watchdog."""

    tid: int
    main: bool = False
    ordinal: int | None = None
    owner: int | None = None  # ordinal of the thread that it waits for
    collective: bool = False  # it waits inside a collective
    called: bool = False  # a collective that it called is incomplete, whether it waits or not
    known: bool = True  # the cause of the wait is known
    process: bool = False  # it waits for another process
    service: bool = False  # it belongs to a library and recorded nothing
    harmless: bool = False  # it belongs to a library and never wakes another thread


def rest_state(rest: Rest, waits: list[ThreadWait], *, handlers: bool) -> RestState:
    """Returns the state of a process at rest.

    `handlers`: the program has signal handlers, which may wake it.
    """
    sample = rest.last
    main = next((one for one in waits if one.main), None)
    if sample is None or not sample.known or sample.traced or main is None:
        return RestState.unknown
    by_tid = {one.tid: one for one in waits}
    # Threads of torch may complete a collective, or wake unknown C++ code.
    bystanders = main.known and not any(one.called for one in waits)
    asleep = {tid for tid in sample.threads if rest.slept_through(tid)}
    awake = {
        tid
        for tid, thread in sample.threads.items()
        if tid not in asleep
        and not (bystanders and thread.bystander)
        and not (tid in by_tid and by_tid[tid].harmless)
    }
    if _in_cycle(main, waits, asleep):
        return RestState.closed
    if not awake and not handlers:
        return RestState.closed
    others = awake & by_tid.keys() - {main.tid}
    if main.collective and not any(
        not by_tid[tid].service and not by_tid[tid].collective for tid in others
    ):
        return RestState.collective
    if main.process and not others:
        return RestState.process
    if main.known and main.tid in asleep and not others and not handlers:
        return RestState.threads
    return RestState.unknown


def _in_cycle(main: ThreadWait, waits: list[ThreadWait], asleep: set[int]) -> bool:
    """Returns True if the main thread's chain of waits contains a cycle of sleeping threads.

    A thread that waits for itself does not count: some programs signal that way, and another
    thread may release the lock.
    """
    by_ordinal = {one.ordinal: one for one in waits if one.ordinal is not None}
    path: list[ThreadWait] = []
    one: ThreadWait | None = main
    while one is not None and one not in path:
        if one.tid not in asleep:
            return False
        path.append(one)
        one = by_ordinal.get(one.owner) if one.owner is not None else None
    return one is not None and len(path) - path.index(one) > 1
