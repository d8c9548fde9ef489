"""The lanes of a run beside a baseline: above each thread its like there, and where they differ.

A baseline's thread is drawn on the run's axis: each of its steps begins where the run's step of the
same number begins, in true lengths, and is compressed where it would reach into the next one. Ops
of both are coloured by what became of them; phases keep their colours.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lanescope.collector.format.steps import Steps
from lanescope.webapp.analysis.sequence_alignment import pools, thread_pairs
from lanescope.webapp.analysis.tensor_fingerprints import Words
from lanescope.webapp.bundles.comparable import comparable
from lanescope.webapp.plugins.diff.differences import PAIRS, PLACE_COLUMNS, Differences, Partners
from lanescope.webapp.plugins.diff.pairing.renaming import renamed
from lanescope.webapp.plugins.diff.values.compared_ops import (
    DIFFERENT,
    IDENTICAL,
    UNKNOWN,
    WITHIN,
    ComparedOps,
    States,
    compared_ops,
    tensor_floor,
    with_inner,
)
from lanescope.webapp.runs.run import Run, Thread
from lanescope.webapp.runs.types import BoolArray, Int64Array, Progress
from lanescope.webapp.timeline import index as indexes
from lanescope.webapp.timeline.array_store import ArrayStore, load_arrays
from lanescope.webapp.timeline.index import (
    DTYPES,
    INDEX_VERSION,
    Index,
    built,
    events_of,
    kept,
    restored,
)
from lanescope.webapp.timeline.lanes import BASELINE, THREAD_LANE, Lane, LaneSamples, lanes_of
from lanescope.webapp.timeline.spans import (
    AXIS_END,
    SPAN_TABLES,
    LaneSlices,
    SpanNames,
    thread_slices,
)
from lanescope.webapp.timeline.styles import BESIDE, STYLES, phase_styles
from lanescope.webapp.timeline.tile_columns import STYLE_UNFINISHED

ADDED, REMOVED, SLOWER, FASTER = 3, 4, 5, 6
"""States of an op beside those of its values."""

_STYLE = np.array([STYLES.index(name) for name in BESIDE], np.uint8)
_STOPS = (WITHIN, DIFFERENT, ADDED, REMOVED)
_Content = LaneSlices | LaneSamples


class _Made(NamedTuple):
    """A lane and its slices; of each row of its op table the state and whether N leads there."""

    lane: Lane
    content: _Content
    state: States | None = None
    stops: BoolArray | None = None
    pairs: tuple[Int64Array, Int64Array] = (np.empty(0, np.int64), np.empty(0, np.int64))
    """Rows of the op tables of the baseline and of the run that belong together."""


class Beside:
    """Lays out the lanes of `run` beside `base`. `lanes` first, then `differences`.

    `noise` is another recording of the baseline: what these two are apart is within tolerance.
    """

    def __init__(self, base: Run, run: Run, noise: Run | None = None) -> None:
        self._floor = None if noise is None else tensor_floor(base, noise)
        self._base = base
        self._run = run
        plain = comparable(base, run)
        self._alike = renamed(*plain).run, plain[1]
        self._places: list[Int64Array] = []
        self._pairs: list[tuple[Int64Array, Int64Array]] = []

    def lanes(self, names: SpanNames) -> Iterator[tuple[Lane, _Content]]:
        """Yields lanes as `lanes.lanes_of`, with the same numbers; those of kind BASELINE come
        last."""
        pairs = thread_pairs(*self._alike)
        partner = {(b.rank, b.thread): a for a, b in pairs if b is not None}
        alone = [a for a, b in pairs if a is not None and b is None]
        self._pools = pools(self._base) | pools(self._run)
        words = Words()
        number = 0
        ghosts: list[tuple[int | None, _Made]] = []
        for rank, found in groupby(lanes_of(self._run, names), key=lambda one: one[0].rank):
            warp = Warp(self._steps(self._base, rank), self._steps(self._run, rank))
            for ghost, own in self._of_rank(rank, found, partner, alone, warp, names, words):
                if ghost is not None:
                    ghosts.append((None if own is None else number, ghost))
                if own is not None:
                    self._pairs.append(own.pairs)
                    yield self._numbered(number, own)
                    number += 1
        for above, ghost in ghosts:
            yield self._numbered(number, ghost, above)
            number += 1

    def _numbered(
        self, number: int, made: _Made, above: int | None = None
    ) -> tuple[Lane, _Content]:
        content, state, stops = made.content, made.state, made.stops
        if isinstance(content, LaneSlices) and state is not None and stops is not None:
            self._places.append(_places(number, content, state, stops))
        return replace(made.lane, id=number, above=above), content

    def differences(self) -> Differences:
        """Returns what `lanes` came by."""
        empty = np.empty((5, 0), np.int64)
        columns = np.concatenate([empty, *self._places], axis=1)
        wanted = np.isin(columns[4], _STOPS)
        columns = columns[:, wanted if wanted.any() else columns[4] == SLOWER]
        start, lane, row, ref, state = columns[:, np.lexsort((columns[2], columns[1], columns[0]))]
        return Differences(start, lane, row, ref, state, self._partners())

    def _partners(self) -> Partners:
        at = np.cumsum([0, *(len(right) for _, right in self._pairs)])
        none = np.empty(0, np.int64)
        base, run = (
            np.concatenate([none, *(pair[side] for pair in self._pairs)]) for side in (0, 1)
        )
        return Partners(at.astype(np.int64), base.astype(np.int32), run.astype(np.int32))

    def _steps(self, run: Run, rank: int) -> Steps:
        empty = np.empty(0, np.int64)
        return run.steps(rank) if rank in run.ranks else Steps(empty, empty, empty)

    def _of_rank(
        self,
        rank: int,
        found: Iterator[tuple[Lane, _Content]],
        partner: dict[tuple[int, str], Thread | None],
        alone: list[Thread],
        warp: Warp,
        names: SpanNames,
        words: Words,
    ) -> Iterator[tuple[_Made | None, _Made | None]]:
        """A thread of the baseline and the lane of the run that it belongs above."""
        threads = {t.thread: t for t in self._run.threads_of(rank)}
        for lane, content in found:
            theirs = threads.get(lane.thread or "")
            mine = partner.get((rank, lane.thread or ""))
            if lane.kind != THREAD_LANE or theirs is None or not isinstance(content, LaneSlices):
                yield None, _Made(lane, content)
            elif (rank, theirs.kind, theirs.name) in self._pools:
                there = None if mine is None else self._slices(mine, names)
                ghost = None
                if mine is not None and there is not None:
                    ghost = self._ghost(mine, there, np.full(_ops_of(there), UNKNOWN), warp)
                yield ghost, _Made(lane, content)
            elif mine is None:
                state = np.full(_ops_of(content), ADDED, np.int8)
                stops = _outermost(content, state, ADDED)
                yield None, _Made(lane, _styled(content, state), state, stops)
            else:
                pairs = compared_ops(*self._alike, mine, theirs, words, "tolerance", self._floor)
                yield self._pair(lane, content, mine, pairs, warp, names)
        for mine in alone:
            if mine.rank == rank:
                content_there = self._slices(mine, names)
                if content_there is not None:
                    pooled = (rank, mine.kind, mine.name) in self._pools
                    became = UNKNOWN if pooled else REMOVED
                    state = np.full(_ops_of(content_there), became, np.int8)
                    yield self._ghost(mine, content_there, state, warp), None

    def _pair(
        self,
        lane: Lane,
        content: LaneSlices,
        mine: Thread,
        pairs: ComparedOps,
        warp: Warp,
        names: SpanNames,
    ) -> tuple[_Made | None, _Made]:
        values = pairs.op_states()
        slower, faster = pairs.slower()
        own = np.full(len(pairs.new), UNKNOWN, np.int8)
        own[pairs.right] = values
        shown = {}
        for side, ops, rows in (("base", pairs.old, pairs.left), ("run", pairs.new, pairs.right)):
            state = np.full(len(ops), UNKNOWN, np.int8)
            state[rows] = values
            state = with_inner(ops, state)
            worse = state[rows] <= IDENTICAL
            state[rows[worse & slower]] = SLOWER
            state[rows[worse & faster]] = FASTER
            single = np.ones(len(ops), bool)
            single[rows] = False
            state[single] = ADDED if side == "run" else REMOVED
            shown[side] = state
        there = self._slices(mine, names)
        ghost = None if there is None else self._ghost(mine, there, shown["base"], warp)
        stops = (own >= WITHIN) | (shown["run"] == SLOWER)
        stops |= _outermost(content, shown["run"], ADDED)
        state = np.where(own >= WITHIN, own, shown["run"]).astype(np.int8)
        paired = pairs.left, pairs.right
        return ghost, _Made(lane, _styled(content, shown["run"]), state, stops, paired)

    def _slices(self, thread: Thread, names: SpanNames) -> LaneSlices | None:
        by_name = cache(partial(phase_styles, self._base, thread.rank))
        return thread_slices(self._base, thread, names, by_name)

    def _ghost(self, thread: Thread, slices: LaneSlices, state: States, warp: Warp) -> _Made:
        start, end = warp(slices.start), warp(slices.end)
        placed = replace(_styled(slices, state), start=start, end=end)
        lane = Lane(
            key=f"baseline/{thread.key}",
            rank=thread.rank,
            kind=BASELINE,
            label=f"baseline {thread.name}",
            title=f"the same thread in the baseline {self._base.title}, its steps beside the run's",
            rows=len(slices.row_table),
            phase_rows=slices.phase_rows,
            first_ns=int(start.min()),
            last_ns=int(end.max()),
            baseline=thread.thread,
        )
        return _Made(lane, placed, state, _outermost(slices, state, REMOVED))


class Warp:
    """From instants of the baseline to the run's axis; monotonic, so that nesting stays."""

    def __init__(self, base: Steps, run: Steps) -> None:
        _, one, two = np.intersect1d(base.index, run.index, return_indices=True)
        low, high = base.start_ns[one], run.start_ns[two]
        # A step's end begins the stretch up to the next one, which either side may have or not.
        self._from = np.stack([low, base.end_ns[one]], 1).ravel()
        self._to = np.stack([high, run.end_ns[two]], 1).ravel()
        lengths = np.diff(self._from, append=AXIS_END)
        room = np.diff(self._to, append=AXIS_END).clip(min=0)
        self._scale = np.minimum(1.0, room / lengths.clip(min=1))
        if len(self._scale):
            self._scale[-1] = 1.0

    def __call__(self, instants: Int64Array) -> Int64Array:
        """Before the first shared step and after the last one true distances are kept."""
        if not len(self._from):
            return instants
        at = np.searchsorted(self._from, instants, side="right") - 1
        first = at < 0
        at = at.clip(min=0)
        away = instants - self._from[at]
        moved = self._to[at] + np.where(first, away, np.rint(away * self._scale[at])).astype(
            np.int64
        )
        result: Int64Array = np.clip(moved, 0, AXIS_END)
        return result


def _ops_of(slices: LaneSlices) -> int:
    """How many of the slices are ops: the rows of the thread's op table."""
    return int(_is_op(slices).sum())


def _is_op(slices: LaneSlices) -> BoolArray:
    return np.repeat(slices.row_table == SPAN_TABLES.index("op"), np.diff(slices.row_at))


def _styled(slices: LaneSlices, state: States) -> LaneSlices:
    """The slices with ops coloured by state; those of UNKNOWN keep their colour."""
    ops = np.flatnonzero(_is_op(slices))
    of_slice = state[slices.source[ops]]
    known = of_slice != UNKNOWN
    style = slices.style.copy()
    at = ops[known]
    style[at] = (style[at] & np.uint8(STYLE_UNFINISHED)) | _STYLE[of_slice[known]]
    return replace(slices, style=style)


def _outermost(slices: LaneSlices, state: States, wanted: int) -> BoolArray:
    """Of each op whether it has the state and is not right below one that has it too."""
    found: BoolArray = state == wanted
    ops = np.flatnonzero(_is_op(slices))
    rows = np.unique(np.searchsorted(slices.row_at, ops, side="right") - 1)
    covered = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for row in rows.tolist():
        part = slice(slices.row_at[row], slices.row_at[row + 1])
        start, end, source = slices.start[part], slices.end[part], slices.source[part]
        mine = np.flatnonzero(found[source])
        above = np.searchsorted(covered[0], start[mine], side="right") - 1
        inside = above >= 0
        inside[inside] = covered[1][above[inside]] >= end[mine[inside]]
        found[source[mine[inside]]] = False
        kept = mine[~inside]
        low = np.concatenate([covered[0], start[kept]])
        high = np.concatenate([covered[1], end[kept]])
        order = np.argsort(low, kind="stable")
        covered = low[order], np.maximum.accumulate(high[order])
    return found


def _places(lane: int, slices: LaneSlices, state: States, stops: BoolArray) -> Int64Array:
    """Columns of `Differences`, unsorted."""
    at = np.flatnonzero(_is_op(slices))
    at = at[stops[slices.source[at]]]
    row = np.searchsorted(slices.row_at, at, side="right") - 1
    of_op = state[slices.source[at]].astype(np.int64)
    columns: Int64Array = np.stack([slices.start[at], np.full(len(at), lane), row, at, of_op])
    return columns


COMPARED = 6
"""Version of the pairing, and of the rule for same, slower and faster ops."""

_PLACES = {f"place_{name}": "<i8" for name in PLACE_COLUMNS}
_PAIRS = {f"pair_{name}": dtype for name, dtype in PAIRS.items()}
_DTYPES = {**DTYPES, **_PLACES, **_PAIRS}


def open_beside(
    run: Run, base: Run, noise: Run | None, cache: Path | None, progress: Progress | None = None
) -> tuple[Index, Differences]:
    """Returns the index with the baseline's lanes, and where the runs differ: stored, or built now.

    Its folder is named after the states of all its runs, and the title of the baseline, which its
    lanes show.
    """
    events = events_of(run)
    folder = None
    if cache is not None and events + events_of(base) >= indexes.SMALL:
        about = [run.etag, base.etag, base.title, None if noise is None else noise.etag]
        digest = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]
        folder = cache / f"beside-{digest}-{INDEX_VERSION}.{COMPARED}"
        stored = load_arrays(folder, _DTYPES)
        index = None if stored is None else restored(*stored)
        if index is not None and _fits(index):
            return index, _differences(index)

    def build(store: ArrayStore) -> Index:
        beside = Beside(base, run, noise)

        def last() -> None:
            found = beside.differences()
            for name in PLACE_COLUMNS:
                store.append(f"place_{name}", getattr(found, name))
            for name in PAIRS:
                store.append(f"pair_{name}", getattr(found.partners, name))

        return built(run, store, events, progress, beside.lanes, last)

    index = kept(folder, _DTYPES, build)
    return index, _differences(index)


def _differences(index: Index) -> Differences:
    partners = Partners(*(index.arrays[name] for name in _PAIRS))
    places = {name: index.arrays[f"place_{name}"] for name in PLACE_COLUMNS}
    return Differences(**places, partners=partners)


def _fits(index: Index) -> bool:
    """Returns True if the stored differences are places of the index."""
    found = _differences(index)
    if any(len(getattr(found, name)) != len(found) for name in PLACE_COLUMNS):
        return False
    if not found.partners.fit(index.lanes):
        return False
    rows = np.array([*(lane.rows for lane in index.lanes), 0], np.int64)
    lane = found.lane.clip(-1, len(rows) - 1)
    return bool(
        np.all((found.row >= 0) & (found.row < rows[lane]))
        and np.all((found.ref >= 0) & (found.ref < len(index.slices.start)))
        and np.all((found.state >= 0) & (found.state < len(BESIDE)))
    )
