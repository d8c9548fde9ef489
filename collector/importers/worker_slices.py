"""Rewrites slices of a file of several workers, a part at a time: ranks, steps, phases, calls."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from ..format.names import ANY_TOOL
from ..format.record_kinds import PhaseKind
from . import kineto
from .import_limits import MAX_COLLECTIVES, MAX_STEPS, ImportRejected
from .spill import (
    FUNCTION_SLICE,
    NONE,
    PHASE_KIND,
    SLICE_ROW,
    USER_SLICE,
    ByLane,
    CollectiveCall,
    Spill,
    StructArray,
    Trace,
    field_of,
    new_slices,
    release_pages,
    rows_at,
)

LAST_NUMBER = re.compile(r"\D*(\d{1,9})")
_BATCH_ROWS = 1 << 16

_PHASES = (
    (PhaseKind.forward, re.compile(r"(forward|fwd|f(?=[-_ ]?\d))", re.IGNORECASE)),
    (PhaseKind.backward, re.compile(r"(backward|bwd|b(?=[-_ ]?\d))", re.IGNORECASE)),
    (PhaseKind.optimizer, re.compile(r"(optimizer|opt\b)", re.IGNORECASE)),
)
_CALL = re.compile(
    r"i?(send|recv)|(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier)",
    re.IGNORECASE,
)
_CALL_NAMES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
}


def move_by_argument(trace: Trace, field: str) -> int:
    """Puts each slice on a lane of the process that its argument names; returns the first one."""
    lanes, values = trace.lanes, _Values(trace, field)
    first = len(lanes.lanes)
    moved = _new_slices(trace, "slices by argument")
    for rows in _batches(trace.slices.rows()):
        for row, value in values.of(rows):
            lane = lanes.lanes[int(rows["lane"][row])]
            number = lanes[f"{field} {value}"[:200], lane.tid, lane.stream]
            lanes.lanes[number].name, lanes.lanes[number].device = lane.name, lane.device
            rows["lane"][row] = number
        moved.add(rows)
    values.check()
    trace.slices = moved
    return first


def by_rank(trace: Trace, lanes: Mapping[int, list[int]]) -> dict[int, StructArray]:
    """Returns the slices of each rank, after sorting them by rank on disk."""
    rows = trace.slices.rows()
    of_lanes = ByLane(rows)
    ordered = _new_slices(trace, "slices by rank")
    counts = {}
    for rank, mine in lanes.items():
        which = of_lanes.positions(mine)
        counts[rank] = len(which)
        for first in range(0, len(which), _BATCH_ROWS):
            ordered.add(rows_at(rows, which[first : first + _BATCH_ROWS]))
            release_pages(rows)
    every, end, found = ordered.rows(), 0, {}
    for rank, count in counts.items():
        found[rank] = every[end : end + count]
        end += count
    return found


def take_steps(trace: Trace, lanes: Mapping[int, list[int]], step: str | None) -> None:
    """Rewrites the slices of a trace of workers: steps, phases, and calls by their names.

    Slices count as work unless the file has operators of torch. Slices named forward, backward or
    optimizer are phases too, and each rank gets a phase per step.
    """
    slices = trace.slices.rows()
    operators = bool((field_of(slices, "kind") == FUNCTION_SLICE).any())
    values = None if step is None else _Values(trace, step)
    if not operators and trace.format == kineto.DIALECT.name:
        trace.format = ANY_TOOL  # its slices say nothing about Python
    extents = _Extents(trace, lanes)
    rank_of = {lane: rank for rank, mine in lanes.items() for lane in mine}
    taken = _new_slices(trace, "slices of workers")
    for rows in _batches(slices):
        if values is not None:
            _fill_steps(trace, rows, values)
            extents.add(rows)
        phases = rows[:0] if operators else _by_names(trace, rows, rank_of)
        taken.add(rows)
        taken.add(phases)
    if values is not None:
        values.check()
        taken.add(extents.phases())
    trace.slices = taken


def _new_slices(trace: Trace, name: str) -> Spill:
    return Spill(trace.slices.path.with_name(name), SLICE_ROW, trace.path)


def _batches(rows: StructArray) -> Iterator[StructArray]:
    """Yields copies of rows, some at a time."""
    for first in range(0, len(rows), _BATCH_ROWS):
        some = np.array(rows[first : first + _BATCH_ROWS])
        release_pages(rows)
        yield some


class _Values:
    """Reads one argument of the slices of a trace."""

    def __init__(self, trace: Trace, field: str) -> None:
        self._trace, self._field = trace, field
        self._keys = field.split(".")[1:]
        self._seen: set[str] = set()
        self._some = False

    def of(self, rows: StructArray) -> Iterator[tuple[int, Any]]:
        """Yields the position and value of each slice that has the argument."""
        for row, text in enumerate(self._trace.arguments.column(rows).to_pylist()):
            value: Any = _decoded(text)
            if len(self._seen) < 10 and isinstance(value, dict):
                self._seen |= set(value)
            for key in self._keys:
                value = value.get(key) if isinstance(value, dict) else None
            if value is not None:
                self._some = True
                yield row, value

    def check(self) -> None:
        """Raises ImportRejected if no slice had the argument."""
        if not self._some:
            names = ", ".join(f"args.{name}" for name in sorted(self._seen))
            raise ImportRejected(
                f"{self._trace.path}: no slice has {self._field}, found "
                f"{names or 'no arguments at all'}"
            )


def _decoded(text: str | None) -> Any:
    try:
        return msgspec.json.decode(text) if text else None
    except (ValueError, RecursionError):
        return None


def _fill_steps(trace: Trace, rows: StructArray, values: _Values) -> None:
    for row, value in values.of(rows):
        found = LAST_NUMBER.fullmatch(str(value))
        if found is not None and int(found[1]) < 1 << 31:
            rows["step"][row] = int(found[1])
        else:
            trace.counts["unread_steps"] += 1


def _by_names(trace: Trace, rows: StructArray, rank_of: Mapping[int, int]) -> StructArray:
    """Makes slices operators, keeps the calls among them, and returns the phases."""
    rows["kind"][rows["kind"] == USER_SLICE] = FUNCTION_SLICE
    names, which = np.unique(rows["name"], return_inverse=True)
    texts = [trace.text(number) for number in names.tolist()]
    kinds = np.array([_phase_kind(text) for text in texts])[which]
    slices = rows["kind"] == FUNCTION_SLICE
    phases: StructArray = rows[slices & (kinds > 0)]
    phases["kind"], phases["args_bytes"] = kinds[slices & (kinds > 0)], 0
    calls = rows[slices & np.array([_CALL.match(text) is not None for text in texts])[which]]
    left = MAX_COLLECTIVES - len(trace.named_calls)
    trace.named_calls += _calls(trace, calls[:left], rank_of)
    if len(calls) > left:
        trace.counts["unread_collectives"] += len(calls) - left
    return phases


def _phase_kind(name: str) -> int:
    return next((PHASE_KIND + kind for kind, pattern in _PHASES if pattern.match(name)), 0)


def _calls(trace: Trace, rows: StructArray, rank_of: Mapping[int, int]) -> Iterator[CollectiveCall]:
    for row in rows.tolist():
        start, duration, name, lane = row[:4]
        found = _CALL.match(trace.text(name))
        assert found is not None  # the rows were chosen by it
        bare = (found[1] or found[2]).lower()
        end = None if duration < 0 else start + duration
        group = f"unknown, of rank {rank_of[lane]}"
        known = _CALL_NAMES.get(bare.replace("_", ""), bare)
        yield CollectiveCall(known, lane, start, end, end, group, None, "", "", 0)


class _Extents:
    """First start and last end of the slices of each step and rank."""

    def __init__(self, trace: Trace, lanes: Mapping[int, list[int]]) -> None:
        self._trace = trace
        self._first_lane = np.full(len(trace.lanes.lanes), -1, np.int64)
        for mine in lanes.values():
            self._first_lane[mine] = mine[0]
        self._found: dict[tuple[int, int], tuple[int, int]] = {}

    def add(self, rows: StructArray) -> None:
        """Takes slices."""
        rows = rows[rows["step"] != NONE]
        keys = self._first_lane[rows["lane"]] << 32 | rows["step"]
        known, which = np.unique(keys, return_inverse=True)
        first = np.full(len(known), np.iinfo(np.int64).max)
        last = np.full(len(known), np.iinfo(np.int64).min)
        np.minimum.at(first, which, rows["start"])
        np.maximum.at(last, which, rows["start"] + np.maximum(rows["duration"], 0))
        for key, low, high in zip(known.tolist(), first.tolist(), last.tolist(), strict=True):
            place = key >> 32, key & 0xFFFFFFFF
            before = self._found.get(place, (low, high))
            self._found[place] = min(low, before[0]), max(high, before[1])
        if len(self._found) > MAX_STEPS:
            raise ImportRejected(
                f"{self._trace.path}: has more than {MAX_STEPS:,} steps, expected those of a "
                "training; does --step-from name the step?"
            )

    def phases(self) -> StructArray:
        """Returns a phase for each step of a rank, from its first slice to the end of the last."""
        found = new_slices(len(self._found))
        for row, ((lane, step), (low, high)) in zip(
            found, sorted(self._found.items()), strict=True
        ):
            row["start"], row["duration"], row["lane"], row["step"] = low, high - low, lane, step
            row["kind"] = PHASE_KIND + PhaseKind.user
            row["name"] = self._trace.texts[f"Step#{step}"]
        return found
