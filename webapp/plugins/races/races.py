"""Finds data races: unordered accesses of two threads to one storage, at least one a write.

Two accesses race where they touch a common byte, at least one of them writes, they are of different
threads, and neither happened before the other (`vector_clocks`): then nothing that was recorded
keeps them from happening at once, or in the other order the next time.

A race is reported once per pair of places in the program, with the tensors and the number of pairs.

A storage cannot be touched before it is made: a thread that reads one that another thread made got
it from there, if only by a variable. At most it is chance which one is there, and such a race is
marked as `published`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from lanescope.webapp.analysis.access_site import (
    CallSite,
    CallSites,
    MemoryAccess,
)
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.stack_frames import innermost_line
from lanescope.webapp.plugins.races.access_table import (
    AccessColumns,
    Accesses,
    Reader,
    joined_accesses,
    shared_storages,
)
from lanescope.webapp.plugins.races.racing_pairs import RacingPair, racing_pairs
from lanescope.webapp.plugins.races.tensor_names import TensorNames
from lanescope.webapp.plugins.races.vector_clocks import Order, order_of
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array, Window

ACCESSES_AT_ONCE = 2_000_000
"""Accesses that are examined together; of those before, only the last of each kind is kept."""


@dataclass(frozen=True)
class Race:
    """Two accesses that nothing orders; `first` began first, this time."""

    rank: int
    first: MemoryAccess
    second: MemoryAccess
    threads: tuple[str, ...]  # all that race at these two places
    low: int  # bytes of the storage that both touch
    high: int
    overlapped: bool  # they were under way at the same instant
    pairs: int  # of segments of the two threads at these two places; of a long run, roughly
    tensors: tuple[str, ...]  # those touched at these two places, named as well as can be
    published: bool = False  # `first` made the storages, and all that `second` does comes after

    @property
    def of_streams(self) -> bool:
        """Whether a stream of a device made one of the accesses."""
        return bool(self.first.stream or self.second.stream)

    @property
    def named_tensors(self) -> str:
        """The first of its tensors, and how many more there are."""
        more = len(self.tensors) - 1
        return self.tensors[0] + (f" and {more} more" if more else "")

    @property
    def gap_ns(self) -> int:
        """From the end of one to the start of the other; below zero: they overlapped."""
        return max(self.first.start_ns, self.second.start_ns) - min(
            self.first.end_ns, self.second.end_ns
        )


CAST = "aten::_to_copy"

_MIN_FILLED = 8
"""So many storages that a thread filled before another one read them are no chance."""


@lru_cache(maxsize=4)
def find_races(run: Run) -> tuple[Race, ...]:
    """Returns all races of the run, one per pair of places, by instant."""
    found = [race for rank in run.ranks for race in _of_rank(run, rank)]
    return tuple(sorted(found, key=lambda race: race.first.start_ns))


@per_rank
def _of_rank(run: Run, rank: int) -> list[Race]:
    found: list[Race] = []
    python = {t.thread for t in run.threads_of(rank) if t.kind != "native"}
    for threads in processes_of(run, rank):
        own = [thread for thread in threads if thread in python]
        if len(own) > 1:
            found += _of_process(run, rank, threads, own)
    return found


def processes_of(run: Run, rank: int) -> list[list[str]]:
    """Returns the threads of each process of a rank."""
    processes: dict[int, list[str]] = {}
    for thread in run.threads_of(rank):
        processes.setdefault(thread.pid, []).append(thread.thread)
    return list(processes.values())


def _of_process(run: Run, rank: int, process: Sequence[str], own: Sequence[str]) -> list[Race]:
    windows = windows_of(run, rank, process)
    storages = shared_storages(run, rank, own, windows)
    if not len(storages):
        return []
    order, sites = order_of(run, rank, process, own), CallSites()

    def placed(thread: int, columns: AccessColumns) -> tuple[Int64Array, Int64Array]:
        start = columns["start_ns"]
        return np.full(len(start), thread, np.int64), order.segments(thread, start)

    reader = Reader(run, rank, own, storages, sites, placed)
    return races_read(run, rank, order, reader, sites, windows)


def races_read(
    run: Run,
    rank: int,
    order: Order,
    reader: Reader,
    sites: CallSites,
    windows: Sequence[Window | None],
    *,
    empty: bool = True,
) -> list[Race]:
    """Returns the races among what `reader` reads of a process, window by window, by `order`."""
    names = TensorNames(run, rank, reader.threads, sites)
    found: dict[tuple[object, object], list[Race]] = {}
    before: Accesses | None = None
    for window in windows:
        accesses = reader.read(window)
        if before is not None:
            accesses = joined_accesses(before, accesses)
        groups: dict[tuple[object, object], list[RacingPair]] = {}
        places = [_place(site, names) for site in sites.known]
        for pair in racing_pairs(order, accesses, sites.known, names.optimizer, empty=empty):
            ends = (places[int(accesses.site[pair.a])], places[int(accesses.site[pair.b])])
            key = ends if str(ends[0]) <= str(ends[1]) else (ends[1], ends[0])
            groups.setdefault(key, []).append(pair)
        for key, group in groups.items():
            race = _race(rank, order, reader.threads, accesses, sites, names, group)
            found.setdefault(key, []).append(race)
        before = accesses.summary() if len(windows) > 1 else None
    return [_merged(races) for races in found.values()]


def windows_of(run: Run, rank: int, process: Sequence[str]) -> list[Window | None]:
    """Stretches of time of about `ACCESSES_AT_ONCE` accesses; [None]: all at once.

    While a process records, they end where all of its threads are known: later on, what orders an
    access may be missing, and what it touches may be other memory by then.
    """
    return _windows_until(run, run.read_at_ns.get((rank, int(process[0].partition("-")[0]))))


@lru_cache(maxsize=4)  # asked for each process, and data loaders may start hundreds
def _windows_until(run: Run, until: int | None) -> list[Window | None]:
    """Returns the stretches up to an instant, in ns; None: to the end."""
    count = -(-run.counts["access"] // ACCESSES_AT_ONCE)
    if count <= 1 and until is None:
        return [None]
    first, last = -(2**62), 2**62 if until is None else until
    bounds = [first]
    for i in range(1, count):
        low, high = 0, run.duration_ns + 1
        while low < high:  # the instant before which there are so many
            middle = (low + high) // 2
            if run.rows_about("access", (first, middle)) < i * ACCESSES_AT_ONCE:
                low = middle + 1
            else:
                high = middle
        if bounds[-1] < low < last:
            bounds.append(low)
    return list(pairwise([*bounds, last]))


def _merged(races: Sequence[Race]) -> Race:
    """One race of all those at its two places, as it was where the two were nearest in time."""
    races = [race for race in races if not race.published] or races
    nearest = min(races, key=lambda race: race.gap_ns)
    published = all(race.published for race in races)
    return replace(
        nearest,
        published=published and len({_touch_place(race.first) for race in races}) == 1,
        threads=tuple(sorted({thread for race in races for thread in race.threads})),
        pairs=sum(race.pairs for race in races),
        tensors=tuple(dict.fromkeys(tensor for race in races for tensor in race.tensors)),
    )


def _place(site: CallSite, names: TensorNames) -> object:
    """Returns what two accesses must share to be one race: the line, with any caller."""
    return innermost_line(names.frames(site)) or (site.op, site.module, site.phase)


def _touch_place(touch: MemoryAccess) -> object:
    return innermost_line(touch.stack) or (touch.op, touch.module, touch.phase)


def _race(
    rank: int,
    order: Order,
    threads: Sequence[str],
    accesses: Accesses,
    sites: CallSites,
    names: TensorNames,
    group: list[RacingPair],
) -> Race:
    def gap(pair: RacingPair) -> int:
        starts = max(int(accesses.start[pair.a]), int(accesses.start[pair.b]))
        return starts - min(int(accesses.end[pair.a]), int(accesses.end[pair.b]))

    published = _published(sites, accesses, names, group)
    if not published:
        group = [pair for pair in group if pair.maker is None] or group
    chosen = min(group, key=gap)
    a, b = sorted((chosen.a, chosen.b), key=lambda row: int(accesses.start[row]))
    touches = []
    for row in (a, b):
        site = sites.known[int(accesses.site[row])]
        thread, place = threads[int(accesses.by[row])], order.threads[int(accesses.thread[row])]
        touches.append(
            MemoryAccess(
                thread=thread,
                stream="" if place == thread else place,
                op=site.op,
                module=site.module,
                phase=site.phase,
                start_ns=int(accesses.start[row]),
                end_ns=int(accesses.end[row]),
                write=bool(accesses.write[row]),
                step=int(accesses.step[row]),
                stack=names.frames(site),
            )
        )
    racing = {int(accesses.by[row]) for pair in group for row in (pair.a, pair.b)}
    return Race(
        rank=rank,
        first=touches[0],
        second=touches[1],
        threads=tuple(threads[i] for i in sorted(racing)),
        low=max(int(accesses.low[a]), int(accesses.low[b])),
        high=min(int(accesses.high[a]), int(accesses.high[b])),
        overlapped=gap(chosen) < 0,
        pairs=sum(pair.pairs for pair in group),
        tensors=_tensors(accesses, names, group),
        published=published,
    )


def _published(
    sites: CallSites, accesses: Accesses, names: TensorNames, group: list[RacingPair]
) -> bool:
    """Whether of two places one makes storages, and the other is where they are used.

    Where each makes what the other uses, or one line does both, threads put something in place of
    what they found (`total = total + x`), and what one of them put there may be lost. The line
    shows it also where one thread found what the other made and not, this time, the reverse. A cast
    puts nothing in place of another tensor: threads in autocast share casts of parameters, which
    torch keeps under a lock of its own.
    """
    ends = [sites.known[int(accesses.site[row])] for row in (group[0].a, group[0].b)]
    if all(pair.maker is not None and pair.maker.op == CAST for pair in group):
        return True
    filled = [pair for pair in group if pair.maker not in ends]
    if 0 < len(filled) < _MIN_FILLED:
        return False
    lines = {_place(one, names) for one in ends}
    makers = {None if pair.maker is None else _place(pair.maker, names) for pair in group}
    return len(lines) == 2 and len(makers) == 1 and None not in makers


def _tensors(accesses: Accesses, names: TensorNames, group: list[RacingPair]) -> tuple[str, ...]:
    """The racing tensors, by name."""
    touched = {(int(accesses.storage[p.a]), int(accesses.generation[p.a])) for p in group}
    return tuple(dict.fromkeys(names.of(accesses, *one) for one in sorted(touched)))
