"""Where on the axis, and in which lanes, slices of some names or modules begin: for marking all of
them at once, however far one is zoomed out. Exact; the names are gone through in parts.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from lanescope.webapp.runs.types import BoolArray, UInt32Array
from lanescope.webapp.timeline.lanes import THREAD_LANE
from lanescope.webapp.timeline.spans import SAMPLES, SPAN_TABLES
from lanescope.webapp.timeline.styles import coded
from lanescope.webapp.timeline.timeline import Timeline

MARKED_ROWS = 1 << 20
"""Slices looked at in one go: as many as fit the processor's cache."""

MAX_MODULES = 20_000_000
"""Ops up to which modules are searched: their codes are kept in memory, four bytes each."""

MAX_LISTED_HITS = 2_000
"""Hits in a window up to which each is listed, so that the page can outline exactly these."""

MAX_BUCKETS = 4_096


@dataclass(frozen=True, eq=False)
class _Modules:
    """Modules of all ops: the texts, and per lane the code of each row of its op table."""

    texts: tuple[str, ...]
    codes: dict[int, UInt32Array]


@lru_cache(maxsize=2)
def modules(timeline: Timeline) -> _Modules:
    """Returns the modules that ops ran in; none where the run has more than MAX_MODULES ops."""
    run = timeline.run
    if run.counts["op"] > MAX_MODULES:
        return _Modules((), {})
    known: dict[str, int] = {}
    codes = {}
    for lane in timeline.index.lanes:
        if lane.kind != THREAD_LANE:
            continue
        column = run.events("op", lane.rank, lane.thread, ["module"])["module"]
        if not len(column):
            continue
        own, texts = coded(column)
        ids = np.array([known.setdefault(text, len(known)) for text in texts], np.uint32)
        codes[lane.id] = ids[own]
    return _Modules(tuple(known), codes)


class SearchRequest:
    """Which slices are searched for: those with one of these names, or in one of these modules.

    Where given, they last at least `least` and at most `most` ns, are on one of `ranks`, and ran in
    one of the modules `within`.
    """

    def __init__(
        self,
        timeline: Timeline,
        names: Collection[int],
        in_modules: Collection[int] = (),
        *,
        least: int | None = None,
        most: int | None = None,
        ranks: Collection[int] | None = None,
        within: Collection[int] | None = None,
    ) -> None:
        self._least, self._most = least, most
        self._timeline = timeline
        self._names = _flags(names, len(timeline.index.names))
        read = in_modules or within is not None
        self._modules = modules(timeline) if read else _Modules((), {})
        self._in = _flags(in_modules, len(self._modules.texts))
        self._within = None if within is None else _flags(within, len(self._modules.texts))
        self._lanes = {
            lane.id for lane in timeline.index.lanes if ranks is None or lane.rank in ranks
        }

    def mask(self, lane: int, row: int, begin: int, end: int) -> BoolArray:
        """Returns for slices begin..end of the index, all in one row, whether they are meant."""
        index = self._timeline.index
        if lane not in self._lanes:
            return np.zeros(end - begin, np.bool_)
        found: BoolArray = self._names[index.slices.name[begin:end]]
        codes = self._modules.codes.get(lane)
        if codes is not None and SPAN_TABLES[index.arrays["row_table"][row]] == "op":
            own = codes[index.arrays["source"][begin:end]]
            found |= self._in[own]
            found &= True if self._within is None else self._within[own]
        elif self._within is not None:
            return np.zeros(end - begin, np.bool_)
        if self._least is None and self._most is None:
            return found
        lengths = index.slices.end[begin:end] - index.slices.start[begin:end]
        if self._least is not None:
            found = found & (lengths >= self._least)
        return found if self._most is None else found & (lengths <= self._most)


def hits(
    timeline: Timeline,
    wanted: SearchRequest,
    window: tuple[int, int],
    lanes: Collection[int],
    many: int,
) -> dict[str, Any]:
    """Returns what begins in [t0, t1) of that which is wanted.

    total: over all lanes; marks: a bit for each of `many` equal parts of the window in which one
    begins, base64 of little-endian bytes, first part first; lanes: the same for each of the lanes
    that were asked for; slices: [row, start, end] of each in these lanes, by lane, or null where
    more than MAX_SLICES begin in the window.
    """
    t0, t1 = window
    marks = np.zeros(many, np.bool_)
    by_lane = {lane: np.zeros(many, np.bool_) for lane in lanes}
    slices: dict[int, list[list[int]]] = {}
    total = 0
    starts, ends = timeline.index.slices.start, timeline.index.slices.end
    for lane, row, begin, end in _parts(timeline, window):
        at = np.flatnonzero(wanted.mask(lane, row, begin, end))
        if not len(at):
            continue
        total += len(at)
        part = ((starts[begin:end][at] - t0) * many) // (t1 - t0)
        marks[part] = True
        if lane not in by_lane:
            continue
        by_lane[lane][part] = True
        if total <= MAX_LISTED_HITS:
            number = row - timeline.index.lane_rows[lane][0]
            extents = np.stack([starts[begin:end][at], ends[begin:end][at]], axis=1).tolist()
            slices.setdefault(lane, []).extend([number, *extent] for extent in extents)
    return {
        "total": total,
        "marks": _bits(marks),
        "lanes": {str(lane): _bits(found) for lane, found in by_lane.items() if found.any()},
        "slices": slices if total <= MAX_LISTED_HITS else None,
    }


def place_among(
    timeline: Timeline, wanted: SearchRequest, key: tuple[int, int, int]
) -> tuple[int, int]:
    """Returns how many are not after (start, lane, row) in the order of `search_next`, and how many
    there are.
    """
    start, here_lane, here_row = key
    before = total = 0
    starts = timeline.index.slices.start
    for lane, row, begin, end in _parts(timeline, None):
        mask = wanted.mask(lane, row, begin, end)
        total += int(np.count_nonzero(mask))
        number = row - timeline.index.lane_rows[lane][0]
        side: Any = "right" if (lane, number) <= (here_lane, here_row) else "left"
        upto = int(np.searchsorted(starts[begin:end], start, side=side))
        before += int(np.count_nonzero(mask[:upto]))
    return before, total


def _parts(
    timeline: Timeline, window: tuple[int, int] | None
) -> Iterator[tuple[int, int, int, int]]:
    """(lane, row, begin, end) of all slices that begin in the window, a chunk at a time."""
    index = timeline.index
    for lane in index.lanes:
        for row in index.lane_rows[lane.id]:
            if index.arrays["row_table"][row] == SAMPLES:
                continue
            begin, end = index.row_begin[row], index.row_end[row]
            if window is not None:
                low, high = index.slices.start[begin:end].searchsorted(window)
                begin, end = begin + int(low), begin + int(high)
            for at in range(begin, end, MARKED_ROWS):
                yield lane.id, row, at, min(at + MARKED_ROWS, end)


def _flags(numbers: Collection[int], size: int) -> BoolArray:
    flags = np.zeros(max(size, 1), np.bool_)
    flags[[number for number in numbers if 0 <= number < size]] = True
    return flags


def _bits(flags: BoolArray) -> str:
    return base64.b64encode(np.packbits(flags, bitorder="little").tobytes()).decode()
