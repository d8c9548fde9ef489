"""Converts rows of a trace to tables of the schema, a part at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..compaction.arrow_columns import codes_of, dictionary, numbers, to_table
from ..format.array_types import Int64Array
from ..format.names import PAIRED
from ..format.record_kinds import OpScope, PhaseKind, SyncKind
from ..format.schema import FLOAT64, INT32, INT64, TABLES, TEXT
from .import_limits import MAX_LAUNCHES, MAX_PHASES
from .kineto import PROFILER_STEP, ProfilerSteps
from .nesting import TimeChunk, batches_by_start, nesting_order, time_chunks_of
from .spill import (
    KERNEL_SLICE,
    LAUNCHING_SLICE,
    NONE,
    PHASE_KIND,
    UNFINISHED,
    CollectiveCall,
    StructArray,
    Trace,
    field_of,
    gather,
    release_pages,
    rows_at,
)

PART_ROWS = 1 << 19
"""Rows of one file."""

_SCOPE = {LAUNCHING_SLICE: int(OpScope.function)}
_CROWDED = 64


class Launches:
    """Finds the call that launched an activity, by correlation number."""

    def __init__(
        self, slices: StructArray, thread_of: Callable[[int], str], counts: Counter[str]
    ) -> None:
        mine = np.flatnonzero(field_of(slices, "kind") == LAUNCHING_SLICE).astype(np.uint32)
        if len(mine) > MAX_LAUNCHES:
            counts["unread_launches"] += len(mine) - MAX_LAUNCHES
            mine = mine[:MAX_LAUNCHES]
        correlation = gather(slices, "correlation", mine)
        mine, correlation = mine[correlation != NONE], correlation[correlation != NONE]
        order = np.argsort(correlation, kind="stable")
        self._correlation, mine = correlation[order], mine[order]
        self._start, self._lane = gather(slices, "start", mine), gather(slices, "lane", mine)
        self._thread_of = thread_of

    def of(self, correlation: Int64Array) -> tuple[Int64Array, NDArray[np.bool_], Int64Array]:
        """Returns the start in ns of each activity's call, whether it is known, and its lane."""
        if not len(self._correlation):
            empty = np.zeros(len(correlation), np.int64)
            return empty, np.zeros(len(correlation), bool), empty
        place = np.searchsorted(self._correlation, correlation)
        place = np.minimum(place, len(self._correlation) - 1)
        known = (self._correlation[place] == correlation) & (correlation != NONE)
        return self._start[place], known, self._lane[place].astype(np.int64)

    def columns(self, rows: StructArray) -> dict[str, Any]:
        """Returns the columns launch_ns and launch_thread of operators of one lane."""
        on_device = rows["kind"] == KERNEL_SLICE
        if not on_device.any():
            return {"launch_ns": pa.nulls(len(rows), INT64), "launch_thread": _empty(len(rows))}
        start, known, lane = self.of(np.where(on_device, rows["correlation"], NONE))
        numbered = np.where(known, lane + 1, 0).astype(np.uint32)
        codes, lanes = codes_of(numbered, int(numbered.max()) + 1)
        names = ["" if one == 0 else self._thread_of(one - 1) for one in lanes]
        return {
            "launch_ns": numbers(start, INT64, ~known),
            "launch_thread": dictionary(codes, names),
        }


def op_tables(
    trace: Trace,
    rows: StructArray,
    which: NDArray[np.uint32],
    phases: NDArray[np.uint32],
    steps: ProfilerSteps,
    launches: Launches,
    device: str,
) -> Iterator[pa.Table]:
    """Yields op tables of a lane: `rows[which]` are its operators, `rows[phases]` its phases."""
    lane_phases = _phases(trace, rows, phases)
    signatures = trace.signatures
    for chunk, part, some in _nested(trace, rows, which):
        unfinished = some["duration"] == UNFINISHED
        kind = some["kind"].astype(np.int64)
        scope = np.where(kind == LAUNCHING_SLICE, _SCOPE[LAUNCHING_SLICE], kind)
        codes, present = codes_of(some["signature"], len(signatures))
        columns: dict[str, Any] = {
            "start_ns": some["start"],
            "duration_ns": numbers(some["duration"], INT64, unfinished),
            "self_ns": numbers(chunk.own[part], INT64, unfinished),
            "name": _texts(trace, some["name"]),
            "scope": dictionary(scope.astype(np.int32), [one.name for one in OpScope]),
            "depth": chunk.depth[part],
            "step": steps.of(some),
            "phase": _texts(trace, _phase_of(some["start"], lane_phases)),
            "sequence": numbers(some["sequence"], INT64, some["sequence"] == NONE),
            "shapes": dictionary(codes, [signatures[i][0] for i in present]),
            "dtypes": dictionary(codes, [signatures[i][1] for i in present]),
            "device": _empty(len(some), device),
            **launches.columns(some),
            "args": trace.arguments.column(some),
        }
        yield _table("op", columns)


def phase_tables(
    trace: Trace, rows: StructArray, which: NDArray[np.uint32], steps: ProfilerSteps
) -> Iterator[pa.Table]:
    """Yields phase tables of a lane: `rows[which]` are its phases and marks."""
    for chunk, part, some in _nested(trace, rows, which):
        kinds = (some["kind"] - PHASE_KIND).astype(np.int32)
        yield _table(
            "phase",
            {
                "start_ns": some["start"],
                "duration_ns": numbers(some["duration"], INT64, some["duration"] == UNFINISHED),
                "name": _texts(trace, some["name"]),
                "kind": dictionary(kinds, [one.name for one in PhaseKind]),
                "depth": chunk.depth[part],
                "step": steps.of(some),
                "args": trace.arguments.column(some),
            },
        )


def value_tables(
    trace: Trace, rows: StructArray, which: NDArray[np.uint32], steps: ProfilerSteps
) -> Iterator[pa.Table]:
    """Yields value tables of a lane: `rows[which]` are its counters."""
    for some in _in_time(trace, rows, which):
        yield _table(
            "value",
            {
                "time_ns": some["start"],
                "name": _texts(trace, some["name"]),
                "value": numbers(some["value"], FLOAT64),
                "step": steps.at(some["start"]),
                "args": trace.arguments.column(some),
            },
        )


def sync_tables(
    trace: Trace, rows: StructArray, which: NDArray[np.uint32], steps: ProfilerSteps
) -> Iterator[pa.Table]:
    """Yields sync tables of a lane: `rows[which]` are begins and ends of arrows.

    An arrow is recorded like a future: set at its begin, got at its end.
    """
    for some in _in_time(trace, rows, which):
        kinds = np.where(some["begins"], SyncKind.future_set, SyncKind.future_get)
        yield _table(
            "sync",
            {
                "start_ns": some["start"],
                "duration_ns": np.zeros(len(some), np.int64),
                "kind": dictionary(kinds.astype(np.int32), [one.name for one in SyncKind]),
                "object": some["object"],
                "step": steps.at(some["start"]),
                "args": trace.arguments.column(some),
            },
        )


def collective_table(
    calls: Sequence[CollectiveCall], steps: ProfilerSteps, stacks: dict[str, int]
) -> pa.Table:
    """Returns the collectives of a lane; adds new stacks to `stacks` (text -> id)."""
    start = np.array([call.start for call in calls], np.int64)
    ends = [None if c.returned is None else c.returned - c.start for c in calls]
    stack = [stacks.setdefault(c.frames, len(stacks)) if c.frames else None for c in calls]
    return _table(
        "collective",
        {
            "start_ns": start,
            "duration_ns": _optional(ends, INT64),
            "complete_ns": _optional([call.complete for call in calls], INT64),
            "name": _coded([call.name for call in calls]),
            "group": _coded([call.group for call in calls]),
            "group_size": _optional([call.group_size for call in calls], INT32),
            "sequence": np.array([call.sequence for call in calls], np.int64),
            "peer": _optional([c.peer if c.name in PAIRED else None for c in calls], INT32),
            "shapes": _coded([call.shapes for call in calls]),
            "dtypes": _coded([call.dtypes for call in calls]),
            "bytes": np.array([call.bytes for call in calls], np.int64),
            "asynchronous": np.ones(len(calls), bool),
            "step": steps.at(start),
            "stack": _optional(stack, INT32),
        },
    )


def _table(name: str, columns: dict[str, Any]) -> pa.Table:
    """Returns a table of the schema; columns that a trace lacks are null, texts empty."""
    table = TABLES[name]
    count = len(columns["step"])
    unknown = {
        column.name: _empty(count) if column.type == TEXT else pa.nulls(count, column.type)
        for column in table.columns
        if column.name not in columns
    }
    return to_table(table, {**unknown, **columns})


def _nested(
    trace: Trace, rows: StructArray, which: NDArray[np.uint32]
) -> Iterator[tuple[TimeChunk, slice, StructArray]]:
    """Yields the slices `rows[which]` of a lane in parts: (chunk, positions in it, rows)."""
    for chunk in time_chunks_of(rows, which, trace.path):
        for first in range(0, len(chunk.where), PART_ROWS):
            some = rows_at(rows, chunk.where[first : first + PART_ROWS])
            release_pages(rows)
            for part in trace.arguments.parts(some):
                yield chunk, slice(first + part.start, first + part.stop), some[part]


def _in_time(trace: Trace, rows: StructArray, which: NDArray[np.uint32]) -> Iterator[StructArray]:
    """Yields the instants `rows[which]` of a lane in order, in parts."""
    for places in batches_by_start(rows, which):
        for first in range(0, len(places), PART_ROWS):
            some = rows_at(rows, places[first : first + PART_ROWS])
            release_pages(rows)
            for part in trace.arguments.parts(some):
                yield some[part]


@dataclass(frozen=True)
class _Phases:
    """Phases by start, outer ones first."""

    start: Int64Array
    duration: Int64Array
    name: NDArray[np.uint32]


def _phases(trace: Trace, rows: StructArray, which: NDArray[np.uint32]) -> _Phases:
    """Returns the phases that operators may be in, without torch's marks of steps."""
    which = which[gather(rows, "duration", which) > 0]
    name = gather(rows, "name", which)
    steps = [
        number for number in np.unique(name).tolist() if PROFILER_STEP.fullmatch(trace.text(number))
    ]
    kept = ~np.isin(name, steps)
    which, name = which[kept], name[kept]
    if len(which) > MAX_PHASES:
        trace.counts["unread_phases"] += len(which)
        which, name = which[:0], name[:0]
    start, duration = gather(rows, "start", which), gather(rows, "duration", which)
    order = nesting_order(start, duration)
    return _Phases(start[order], duration[order], name[order])


def _phase_of(starts: Int64Array, phases: _Phases) -> NDArray[np.uint32]:
    """Returns the number of the innermost phase's name at each instant; 0: none."""
    found = np.zeros(len(starts), np.uint32)
    first = np.searchsorted(starts, phases.start)
    last = np.searchsorted(starts, phases.start + phases.duration)
    if int((last - first).sum()) > _CROWDED * max(1, len(starts)):
        return found  # more phases per operator than a real program has
    some = np.flatnonzero(last > first)
    names = phases.name[some]
    for low, high, name in zip(first[some].tolist(), last[some].tolist(), names, strict=True):
        found[low:high] = name
    return found


def _texts(trace: Trace, ids: NDArray[np.uint32]) -> pa.DictionaryArray:
    codes, present = codes_of(ids, len(trace.texts.texts))
    return dictionary(codes, [trace.text(number) for number in present])


def _coded(values: list[str]) -> pa.DictionaryArray:
    return dictionary(np.arange(len(values), dtype=np.int32), values)


def _empty(count: int, text: str = "") -> pa.DictionaryArray:
    return dictionary(np.zeros(count, np.int32), [text])


def _optional(values: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    missing = np.array([one is None for one in values], bool)
    return numbers(np.array([one or 0 for one in values], np.int64), kind, missing)
