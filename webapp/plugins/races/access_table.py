"""Reads and writes of storages that several threads of a process touch, in few numbers per row.

A storage is known by its address, and an address is used again. Each storage that is born at one
begins another generation of it, so that a tensor is not taken for the one that lay there before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lanescope.webapp.analysis.access_site import CallSites
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import BoolArray, Int64Array, Window

AccessColumns = dict[str, NDArray[Any]]

_COLUMNS = (
    "start_ns",
    "duration_ns",
    "depth",
    "storage",
    "offset",
    "bytes",
    "run",
    "stride",
    "stream",
    "write",
    "birth",
)

_PLACED = ("start_ns", "duration_ns", "depth")

_MAX_COMBINED = 2**62


@dataclass(frozen=True)
class Accesses:
    """One row per distinct (storage, generation, thread, segment, range, kind, site): the first.

    Sorted by these. A kind: reading, writing, or making the storage.
    """

    storage: Int64Array  # address
    generation: Int64Array  # of the address, from 0; 0: what was there before the first birth seen
    thread: (
        Int64Array  # position in `Order.threads`: of a thread, or of a stream that it was given to
    )
    by: Int64Array  # position in `Reader.threads` of the thread that made it
    segment: Int64Array  # row of `Order`
    start: Int64Array  # ns
    end: Int64Array
    low: Int64Array  # bytes from the storage's first, low <= byte < high
    high: Int64Array
    run: Int64Array  # bytes that follow one another,
    stride: Int64Array  # and from one such run to the next; 0: no gaps, -1: not evenly spaced
    write: BoolArray
    site: Int64Array  # position in the list of sites: which operator, and where it was called
    step: Int64Array
    birth: BoolArray  # the storage was made by it
    old: BoolArray  # represents all of its kind before the examined stretch of time

    def __len__(self) -> int:
        return len(self.storage)

    @cached_property
    def kind(self) -> NDArray[np.int8]:
        """0: reads, 1: writes, 3: makes the storage, by which it writes."""
        return _kind(self.write, self.birth)

    def take(self, rows: NDArray[Any]) -> Accesses:
        """Returns some of them, by position or flag."""
        return Accesses(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def summary(self) -> Accesses:
        """Returns what later accesses need to be compared with: of each kind, the last.

        Whatever does not know of an earlier one of the same thread does not know of that either.
        Of an address that was used again, only the storage that is there now; where each was
        made, for its name.
        """
        alike: list[NDArray[Any]] = [
            self.storage,
            self.generation,
            self.thread,
            self.low,
            self.high,
            self.run,
            self.stride,
            self.kind,
            self.site,
        ]
        by, new = sorted_apart([self.segment], alike)
        last = np.ones(len(by), bool)
        last[:-1] = new[1:]
        kept = np.zeros(len(self), bool)
        kept[by[last]] = True
        latest = np.ones(len(self), bool)  # sorted by storage, then by generation
        if len(self):
            ends = np.append(np.flatnonzero(np.diff(self.storage)), len(self) - 1)
            latest = self.generation == np.repeat(
                self.generation[ends], np.diff(np.append(-1, ends))
            )
        chosen = self.take((kept | self.birth) & latest)
        return replace(chosen, old=np.ones(len(chosen), bool))


def joined_accesses(before: Accesses, after: Accesses) -> Accesses:
    """Returns both, sorted by storage and generation."""
    both = {
        f.name: np.concatenate([getattr(before, f.name), getattr(after, f.name)])
        for f in fields(Accesses)
    }
    return Accesses(**both).take(np.lexsort((both["generation"], both["storage"])))


def shared_storages(
    run: Run, rank: int, threads: Sequence[str], windows: Sequence[Window | None]
) -> Int64Array:
    """Returns addresses that two or more of the threads touched, and one wrote to."""
    touched, written = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for thread in threads:
        own = [np.zeros(0, np.int64)]
        for window in windows:
            rows = run.events("access", rank, thread, ["storage", "write"], window)
            own.append(pc.unique(rows["storage"]).to_numpy())
            written.append(pc.unique(rows["storage"].filter(rows["write"])).to_numpy())
        touched.append(np.unique(np.concatenate(own)))
    addresses, count = np.unique(np.concatenate(touched), return_counts=True)
    return np.intersect1d(addresses[count > 1], np.concatenate(written))


class Reader:
    """Reads accesses of some threads to some addresses, stretch after stretch of time.

    `placed` returns the place of accesses in a happens-before order, by the position of their
    thread: which of its threads (-1: none), and which of its rows.
    """

    def __init__(
        self,
        run: Run,
        rank: int,
        threads: Sequence[str],
        storages: Int64Array,
        sites: CallSites,
        placed: Callable[[int, AccessColumns], tuple[Int64Array, Int64Array]],
    ) -> None:
        self._run = run
        self._rank = rank
        self.threads = threads
        self._placed = placed
        self._storages = storages  # sorted
        self._sites = sites
        self._born = np.zeros(len(storages), np.int64)  # so far, at each address

    def read(self, window: Window | None) -> Accesses:
        """Returns those that begin in the next stretch; their operators go to the sites."""
        parts: list[AccessColumns] = []
        for position, thread in enumerate(self.threads):
            table = self._run.events("access", self._rank, thread, list(_COLUMNS), window)
            wanted = pc.is_in(table["storage"], pa.array(self._storages))
            if window is not None:  # what began before was in the stretch before
                wanted = pc.and_(wanted, pc.greater_equal(table["start_ns"], window[0]))
            table = table.set_column(  # null: from before it was recorded
                table.column_names.index("stream"), "stream", table["stream"].fill_null(0)
            )
            columns = outermost_accesses(
                {name: table[name].filter(wanted).to_numpy() for name in _COLUMNS}
            )
            start = columns["start_ns"]
            if columns["depth"].any():
                every = {name: table[name].to_numpy() for name in _PLACED}
                first = first_of_scratch(every, columns, partial(self._names, thread, window))
                columns["birth"] = columns["birth"] | (first & columns["write"].astype(bool))
                kept = ~first | columns["birth"].astype(bool)
                columns = {name: column[kept] for name, column in columns.items()}
                start = columns["start_ns"]
            columns["by"] = np.full(len(start), position, np.int64)
            columns["thread"], columns["segment"] = self._placed(position, columns)
            columns["site"], columns["step"] = self._sites.of(
                self._run, self._rank, thread, start, columns["depth"], window
            )
            parts.append(columns)
        rows = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        at = np.searchsorted(self._storages, rows["storage"])
        rows["generation"] = generations(rows) + self._born[at]
        np.add.at(self._born, at[rows["birth"].astype(bool)], 1)
        placed = rows["thread"] >= 0
        return _folded(rows if placed.all() else {name: c[placed] for name, c in rows.items()})

    def _names(
        self, thread: str, window: Window | None, start: Int64Array, depth: Int64Array
    ) -> list[str]:
        numbers, _ = self._sites.of(self._run, self._rank, thread, start, depth, window)
        return [self._sites.known[number].op for number in numbers.tolist()]


def outermost_accesses(columns: AccessColumns) -> AccessColumns:
    """Returns rows of one thread that are not within another's access to the same storage.

    An operator that calls another reads and writes what that one does: it counts once. What was
    born in the inner one was born in the outer one. On one thread operators nest, so what starts
    before an earlier one's end is within it.
    """
    start, depth = columns["start_ns"].astype(np.int64), columns["depth"].astype(np.int64)
    storage = columns["storage"].astype(np.int64)
    by = np.lexsort((depth, start, storage))
    if not len(by):
        return columns
    start, depth, storage = start[by], depth[by], storage[by]
    end = start + columns["duration_ns"].astype(np.int64)[by]
    other = np.ones(len(by), bool)  # another operator than the row before
    other[1:] = (start[1:] != start[:-1]) | (depth[1:] != depth[:-1])
    other[1:] |= storage[1:] != storage[:-1]
    group = np.cumsum(np.concatenate([[False], storage[1:] != storage[:-1]]))
    # One running maximum serves all storages one after another: each has a range of its own.
    span = int(end.max() - start.min()) + 1
    if span * (int(group[-1]) + 1) < _MAX_COMBINED:
        starts, ends = start - start.min() + group * span, end - start.min() + group * span
    else:  # as ranks, which are few
        instants, ranks = np.unique(np.concatenate([start, end]), return_inverse=True)
        starts = group * len(instants) + ranks[: len(by)]
        ends = group * len(instants) + ranks[len(by) :]
    units = np.flatnonzero(other)
    reach = np.maximum.accumulate(np.maximum.reduceat(ends, units))
    inside = np.zeros(len(units), bool)
    inside[1:] = reach[:-1] > starts[units[1:]]
    unit = np.cumsum(other) - 1
    outer = np.maximum.accumulate(np.where(inside, 0, np.arange(len(units))))  # unit around it
    birth = columns["birth"][by].astype(bool)
    born = np.zeros(len(units), bool)
    np.logical_or.at(born, outer[unit], birth)
    kept = ~inside[unit]
    rows = {name: values[by[kept]] for name, values in columns.items()}
    rows["birth"] = born[unit[kept]] & rows["write"].astype(bool)
    return rows


def generations(rows: AccessColumns) -> Int64Array:
    """Returns how many storages were born at each row's address up to it, its own birth included.

    A birth counts from the end of its operator: until then only that operator knows the storage.
    """
    storage = rows["storage"].astype(np.int64)
    start = rows["start_ns"].astype(np.int64)
    end = start + rows["duration_ns"].astype(np.int64)
    birth = rows["birth"].astype(bool)
    born = np.flatnonzero(birth)
    born = born[np.lexsort((end[born], storage[born]))]
    if not len(born):
        return np.zeros(len(storage), np.int64)
    addresses, first, counts = np.unique(storage[born], return_index=True, return_counts=True)
    result = np.zeros(len(storage), np.int64)
    at = np.searchsorted(addresses, storage)
    at_safe = np.minimum(at, len(addresses) - 1)
    has = addresses[at_safe] == storage
    # Both sorted by (address, instant): one search over pairs, as positions in one merged order.
    key_order = np.lexsort(
        (
            np.concatenate([np.zeros(len(born)), np.ones(len(storage))]),
            np.concatenate([end[born], start]),
            np.concatenate([storage[born], storage]),
        )
    )
    is_birth = key_order < len(born)
    births_before = np.cumsum(is_birth)
    position = np.empty(len(storage), np.int64)
    rows_at = np.flatnonzero(~is_birth)
    position[key_order[rows_at] - len(born)] = births_before[rows_at]
    result[has] = position[has] - first[at_safe[has]]
    # A birth's own row begins its generation, though it starts before the operator's end.
    rank_of = np.arange(len(born)) - np.repeat(first, counts) + 1
    result[born] = rank_of
    return result


def sorted_apart(
    within: Sequence[Int64Array], columns: Sequence[NDArray[Any]]
) -> tuple[Int64Array, BoolArray]:
    """Returns positions sorted by `columns`, rows alike in them by `within`; and which differ from
    the one before. A column that is the same everywhere, as most ranges are, costs nothing."""
    varying = [column for column in columns if (column[1:] != column[:-1]).any()]
    by = np.lexsort((*within, *reversed(varying)))
    new = np.zeros(len(by), bool)
    new[:1] = True
    for column in varying:
        ordered = column[by]
        new[1:] |= ordered[1:] != ordered[:-1]
    return by, new


def _kind(write: BoolArray, birth: BoolArray) -> NDArray[np.int8]:
    return write.astype(np.int8) + 2 * birth.astype(np.int8)


def _folded(rows: AccessColumns) -> Accesses:
    start = rows["start_ns"].astype(np.int64)
    low = rows["offset"].astype(np.int64)
    write, birth = rows["write"].astype(bool), rows["birth"].astype(bool)
    kinds = {
        "storage": rows["storage"],
        "generation": rows["generation"],
        "thread": rows["thread"],
        "by": rows["by"],
        "segment": rows["segment"],
        "low": low,
        "high": low + rows["bytes"],
        "run": rows["run"],
        "stride": rows["stride"],
        "site": rows["site"],
    }
    by, different = sorted_apart([start], [*kinds.values(), _kind(write, birth)])
    chosen = by[different]
    return Accesses(
        **{name: column[chosen].astype(np.int64) for name, column in kinds.items()},
        write=write[chosen],
        start=start[chosen],
        end=start[chosen] + rows["duration_ns"][chosen].astype(np.int64),
        step=rows["step"][chosen],
        birth=birth[chosen],
        old=np.zeros(len(chosen), bool),
    )


_KERNELS = "aten::"
"""What torch itself brings is written in C++ and touches nothing that it is not given."""


def first_of_scratch(
    every: AccessColumns, rows: AccessColumns, name: Callable[[Int64Array, Int64Array], list[str]]
) -> BoolArray:
    """Returns which of `rows` are the first to touch memory that an operator around them has made
    for itself. One that writes begins a storage there. One that reads does so after a write that
    is not recorded, and nothing but this operator knows that memory.

    `every`: all accesses of a thread (start_ns, duration_ns, depth); `rows`: those not
    within another's to the same storage (`outermost_accesses`). `name` returns the operators of a
    thread by start and depth. An operator made of others has no accesses of its own, and is not
    looked for.
    """
    found = np.zeros(len(rows["start_ns"]), bool)
    nested = np.flatnonzero((rows["depth"] > 0) & ~rows["birth"].astype(bool))
    if not len(nested):
        return found
    depth, start = rows["depth"][nested].astype(np.int64), rows["start_ns"][nested]
    around = np.full(len(nested), -1, np.int64)  # start of the outermost operator that is one
    for level in np.unique(every["depth"][every["depth"] < depth.max()]).tolist():
        of_level = every["depth"] == level
        begins = every["start_ns"][of_level]
        ends = begins + every["duration_ns"][of_level]
        order = np.lexsort((ends, begins))
        begins, ends = begins[order], ends[order]
        at = np.searchsorted(begins, start, side="right") - 1
        inside = (at >= 0) & (depth > level) & (around < 0)
        inside[inside] = ends[at[inside]] >= start[inside]
        chosen = np.flatnonzero(inside)
        if not len(chosen):
            continue
        starts = begins[at[chosen]]
        kernels = [one.startswith(_KERNELS) for one in name(starts, np.full(len(starts), level))]
        around[chosen[kernels]] = starts[kernels]
    births: dict[int, list[int]] = {}
    for row in np.flatnonzero(rows["birth"]).tolist():
        births.setdefault(int(rows["storage"][row]), []).append(int(rows["start_ns"][row]))
    for i in np.flatnonzero(around >= 0).tolist():
        known = births.setdefault(int(rows["storage"][nested[i]]), [])
        # Made by a call within it, or written before by another one.
        if not any(around[i] <= born <= start[i] for born in known):
            found[nested[i]] = True
            if rows["write"][nested[i]]:
                known.append(int(start[i]))
    return found
