"""Is this process at rest, or does it only seem so because nothing is recorded?

A program that computes, is starved of processors, imports, reads a file or is swapped out records
nothing either. It is at rest only when none of its threads did any of that for as long as one
looks. That alone proves no hang: whether anything can still wake it depends on what each thread
waits for, which `Standing` puts together.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from .thread_states import Sample, ThreadState

BUSY = 0.1
"""Share of a core from which on a thread counts as working: one that waits uses none, and one that
polls uses little."""

LONGEST_GAP = 2
"""A look that comes later than so many pauses between looks was held up: the process was stopped
or starved, or the machine slept. That much of the gap counts as rest, and no more."""


def works(before: ThreadState | None, now: ThreadState, passed_ns: int) -> bool:
    """Returns whether a thread did anything between two looks, or would have with a processor."""
    if before is None:  # somebody has started it
        return True
    if now.state in "DTt" or now.faults > before.faults or now.moved_bytes > before.moved_bytes:
        return True
    used = (now.used_ns - before.used_ns) / passed_ns
    if used >= BUSY:
        return True
    # Starved: one that polls gives up its processor by itself, one that computes has it taken away.
    ready = (now.ready_ns - before.ready_ns) / passed_ns
    if used + ready < BUSY and now.state != "R":
        return False
    return now.yielded - before.yielded <= now.preempted - before.preempted


class Rest:
    """Since when no thread of a process did anything, by looks at it."""

    def __init__(self) -> None:
        self.first: Sample | None = None  # the look since which it rests
        self.last: Sample | None = None

    def forget(self) -> None:
        """Something was recorded."""
        self.first = self.last = None

    def look(self, sample: Sample) -> bool:
        """Takes a look; returns whether the process has been at rest since the look before."""
        last, self.last = self.last, sample
        passed = 0 if last is None else sample.time_ns - last.time_ns
        if last is None or self.first is None or passed <= 0:
            self.first = sample
            return False
        gone = last.threads.keys() - sample.threads.keys()
        if gone or any(
            works(last.threads.get(tid), thread, passed) for tid, thread in sample.threads.items()
        ):
            self.first = sample
            return False
        return True

    @property
    def rested_ns(self) -> int:
        """How long it has been at rest."""
        if self.first is None or self.last is None:
            return 0
        return self.last.time_ns - self.first.time_ns

    def slept_through(self, tid: int) -> bool:
        """Whether a thread has not woken once, in a wait that only a thread of it can end."""
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

    def unmoved(self, sample: Sample) -> bool:
        """Returns whether no thread has woken or begun since the last look that slept by then.

        How a process stands is put together one by one, while its threads may go on.
        """
        if self.last is None or self.last.threads.keys() != sample.threads.keys():
            return False
        return all(
            (then.call, then.yielded, then.preempted) == (now.call, now.yielded, now.preempted)
            for tid, now in sample.threads.items()
            if (then := self.last.threads[tid]) and self.slept_through(tid)
        )


class Standing(enum.IntEnum):
    """How a process at rest stands, as it tells the processes that wait for it."""

    unknown = 0  # it works, or waits for something from outside
    collective = 1  # waits in a collective for other ranks
    threads = 2  # its threads wait for each other; those of libraries might still wake them
    closed = 3  # nothing can wake any of its threads
    process = 4  # waits for a process that it started, or that started it


@dataclass(frozen=True)
class Actor:
    """A thread of Python's, as the watchdog describes it."""

    tid: int
    main: bool = False
    ordinal: int | None = None
    owner: int | None = None  # ordinal of the thread that has what it waits for
    collective: bool = False  # waits inside a collective
    called: bool = False  # a collective that it called is under way, whether it waits for it or not
    known: bool = True  # what it waits for is known in words
    process: bool = False  # waits for another process
    service: bool = False  # a library's, and recorded nothing
    harmless: bool = False  # a library's that is known to wake no other


def standing(rest: Rest, actors: list[Actor], *, handlers: bool) -> Standing:
    """Returns how a process stands that is at rest.

    `handlers`: it has handlers of its own for signals, which may wake it.
    """
    sample = rest.last
    main = next((one for one in actors if one.main), None)
    if sample is None or not sample.known or sample.traced or main is None:
        return Standing.unknown
    by_tid = {one.tid: one for one in actors}
    # What a collective needs, or C++ that nobody knows, those very threads may bring.
    bystanders = main.known and not any(one.called for one in actors)
    asleep = {tid for tid in sample.threads if rest.slept_through(tid)}
    awake = {
        tid
        for tid, thread in sample.threads.items()
        if tid not in asleep
        and not (bystanders and thread.bystander)
        and not (tid in by_tid and by_tid[tid].harmless)
    }
    if _in_a_circle(main, actors, asleep):
        return Standing.closed
    if not awake and not handlers:
        return Standing.closed
    others = awake & by_tid.keys() - {main.tid}
    if main.collective and not any(
        not by_tid[tid].service and not by_tid[tid].collective for tid in others
    ):
        return Standing.collective
    if main.process and not others:
        return Standing.process
    if main.known and main.tid in asleep and not others and not handlers:
        return Standing.threads
    return Standing.unknown


def _in_a_circle(main: Actor, actors: list[Actor], asleep: set[int]) -> bool:
    """Whether following who waits for whom from the main thread comes round in a circle.

    A thread that waits for itself may be woken by another: that is how some programs signal.
    """
    by_ordinal = {one.ordinal: one for one in actors if one.ordinal is not None}
    path: list[Actor] = []
    one: Actor | None = main
    while one is not None and one not in path:
        if one.tid not in asleep:
            return False
        path.append(one)
        one = by_ordinal.get(one.owner) if one.owner is not None else None
    return one is not None and len(path) - path.index(one) > 1
