"""Pairs begin and end events into slices, in whichever order a file holds them."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from ...format.array_types import BoolArray, Int64Array
from ..arguments import joined_texts, merged
from ..events import TraceEvent
from ..import_limits import ImportRejected
from ..spill import (
    ARGS_FIELDS,
    UNFINISHED,
    USER_SLICE,
    Spill,
    StructArray,
    Trace,
    field_of,
    new_slices,
    rows_at,
)
from .arrows import add_bound_arrows
from .joined_parts import PartNumbers

_MAX_OPEN = 1 << 20
_MAX_SEARCHED = 64
"""Open slices among which the one is looked for that an end names."""

_BATCH_ROWS = 1 << 18
_EDGE_ROW = np.dtype(
    [
        ("key", "<i8"),
        ("start", "<i8"),
        ("name", "<u4"),
        ("lane", "<u4"),
        ("ends", "?"),
        *ARGS_FIELDS,
    ]
)
"""A begin or an end; those of one key belong together."""

_Begin = tuple[int, int, int, int, int]
"""Start in ns, name, lane, args_at, args_bytes."""

_Slice = tuple[int, int, int, int, int, int]
"""Start and duration in ns, name, lane, args_at, args_bytes."""


class BeginEndPairing:
    """Pairs begins with ends: per thread the innermost one, asynchronous ones by id.

    An end that names a slice further out ends that one.
    """

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._edges = Spill(trace.slices.path.with_name("begins and ends"), _EDGE_ROW, trace.path)

    def threads(self, group: list[TraceEvent], start: Int64Array, bad: BoolArray) -> None:
        """Takes events B and E; `start` in ns, `bad`: has no time."""
        lanes = [self._trace.lanes[event.pid, event.tid, False] for event in group]
        self._take(group, start, bad, lanes, lanes, "E")
        timed = [not wrong for wrong in bad.tolist()]
        bound = [event for event, good in zip(group, timed, strict=True) if good]
        add_bound_arrows(self._trace, bound, start[~bad], list(compress(lanes, timed)))

    def asynchronous(self, group: list[TraceEvent], start: Int64Array, bad: BoolArray) -> None:
        """Takes events b and e, or S and F, as `threads`; each category gets its own lane."""
        lanes = [
            self._trace.lanes[event.pid, f"{event.cat} (asynchronous)", False] for event in group
        ]
        self._take(group, start, bad, [_key(event) for event in group], lanes, "eF")

    def append(self, other: BeginEndPairing, numbers: PartNumbers) -> None:
        """Takes the begins and ends of the next part of the file."""
        for rows in numbers.renumbered(other._edges):
            of_thread = rows["key"] >= 0  # the others have numbers of their own
            rows["key"][of_thread] = rows["lane"][of_thread]
            self._edges.add(rows)

    def finish(self) -> None:
        """Adds the slices, after all events were taken."""
        rows, counts = self._edges.rows(), self._trace.counts
        order = np.lexsort((field_of(rows, "start"), field_of(rows, "key")))
        current, waiting = 0, list[_Begin]()
        for first in range(0, len(rows), _BATCH_ROWS):
            done: list[_Slice] = []
            merges: dict[int, bytes] = {}
            for key, at, name, lane, ends, args_at, args in _values(rows, order, first):
                if key != current:
                    done += _unfinished(waiting)
                    current, waiting = key, []
                if not ends:
                    waiting.append((at, name, lane, args_at, args))
                    self._check(len(waiting))
                elif waiting:
                    begin, name, lane, begin_at, begin_args = waiting.pop(_ended(waiting, name))
                    if args and begin_args:
                        merges[len(done)] = self._both((begin_at, begin_args), (args_at, args))
                    at_begin = begin_args > 0
                    place = (begin_at, begin_args) if at_begin else (args_at, args)
                    done.append((begin, at - begin, name, lane, *place))
                    counts["imported_ends"] += 1
                else:
                    counts["dropped_unmatched_ends"] += 1
            self._add(done, merges)
        self._add(_unfinished(waiting), {})

    def _take(
        self,
        group: list[TraceEvent],
        start: Int64Array,
        bad: BoolArray,
        keys: list[int],
        lanes: list[int],
        ends: str,
    ) -> None:
        rows = np.zeros(len(group), _EDGE_ROW)
        rows["start"], rows["key"], rows["lane"] = start, keys, lanes
        rows["name"] = [self._trace.texts[event.name] for event in group]
        rows["ends"] = [event.ph in ends for event in group]
        self._trace.arguments.add(rows, joined_texts([event.args for event in group]))
        self._edges.add(rows[~bad])

    def _check(self, waiting: int) -> None:
        if waiting > _MAX_OPEN:
            raise ImportRejected(
                f"{self._trace.path}: more than {_MAX_OPEN} slices begin and do not end, expected "
                "a trace"
            )

    def _both(self, begin: tuple[int, int], end: tuple[int, int]) -> bytes:
        read = self._trace.arguments.read
        return merged(read(*begin), read(*end))

    def _add(self, slices: list[_Slice], merges: dict[int, bytes]) -> None:
        rows = new_slices(len(slices))
        if slices:
            columns = np.array(slices, np.int64).T
            for name, values in zip(
                ("start", "duration", "name", "lane", "args_at", "args_bytes"), columns, strict=True
            ):
                rows[name] = values
        rows["kind"] = USER_SLICE
        if merges:
            chosen = list(merges)
            both = rows[chosen]
            self._trace.arguments.add(both, joined_texts(list(merges.values())))
            rows[chosen] = both
        self._trace.slices.add(rows)
        self._trace.counts["imported_slices"] += len(slices)


def _key(event: TraceEvent) -> int:
    """Returns a negative number that asynchronous events of one slice share."""
    parts = event.pid, event.cat, event.id if event.id2 is None else event.id2
    written = "\t".join(map(str, parts)).encode("utf-8", "replace")
    return -1 - int.from_bytes(blake2b(written, digest_size=7).digest(), "big")


def _values(rows: StructArray, order: NDArray[np.intp], first: int) -> Iterator[tuple[int, ...]]:
    some = rows_at(rows, order[first : first + _BATCH_ROWS])
    names = _EDGE_ROW.names or ()
    return zip(*(some[name].tolist() for name in names), strict=True)


def _ended(waiting: list[_Begin], name: int) -> int:
    """Returns the place, from the last, of the open slice that an end of a name belongs to."""
    for place in range(1, min(len(waiting), _MAX_SEARCHED) + 1 if name else 1):
        if waiting[-place][1] == name:
            return -place
    return -1


def _unfinished(waiting: list[_Begin]) -> list[_Slice]:
    return [(start, UNFINISHED, name, lane, at, args) for start, name, lane, at, args in waiting]
