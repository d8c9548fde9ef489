"""Where a run differs from its baseline, and which operators of the two belong together.

Answers the timeline: the next difference, and for an operator's slice the other run's operator with
what both recorded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array
from lanescope.webapp.timeline.arguments import integer, is_forward
from lanescope.webapp.timeline.flows import end, flow
from lanescope.webapp.timeline.lanes import BASELINE, THREAD_LANE, Lane
from lanescope.webapp.timeline.span_links import slice_of
from lanescope.webapp.timeline.styles import BESIDE
from lanescope.webapp.timeline.timeline import NoSuch, Timeline

_Rows = NDArray[np.int32]
"""Positions in a thread's op table."""

PAIRS = {"at": "<i8", "base": "<i4", "run": "<i4"}
"""Columns of `Partners` and their dtypes."""

PLACE_COLUMNS = ("start", "lane", "row", "ref", "state")
"""Columns of `Differences` that hold the places."""

_MAX_TENSORS = 16
"""Tensors of an operator whose values are shown: one on all parameters has hundreds."""

_VALUES = ("mean", "l2", "nan", "inf")
_COLUMNS = ["start_ns", "depth", "position", "shape", "dtype", "hash", *_VALUES]


@dataclass(frozen=True, eq=False)
class Partners:
    """Paired operators, lane of the run by lane: those of lane k are at[k]:at[k + 1]."""

    at: Int64Array
    base: _Rows
    run: _Rows

    def of(self, lane: int, row: int, *, in_base: bool) -> int | None:
        """Returns the other run's row of an operator; `lane` is the run's, None: no partner."""
        if not 0 <= lane < len(self.at) - 1:
            return None
        mine = slice(int(self.at[lane]), int(self.at[lane + 1]))
        known, other = (self.base, self.run) if in_base else (self.run, self.base)
        found = np.flatnonzero(known[mine] == row)
        return int(other[mine][found[0]]) if len(found) else None

    def fit(self, lanes: Sequence[Lane]) -> bool:
        """Returns True if these are pairs of so many lanes; a stored file may be damaged."""
        at, pairs = self.at, len(self.run)
        return bool(
            len(at) == 1 + sum(lane.kind != BASELINE for lane in lanes)
            and len(self.base) == pairs
            and at[0] == 0
            and at[-1] == pairs
            and np.all(np.diff(at) >= 0)
        )


@dataclass(frozen=True, eq=False)
class Differences:
    """Places that N leads to, by (start, lane, row): ops whose own values differ, and ops, or the
    outermost of several, that one side alone has; else those that are slower.
    """

    start: Int64Array
    lane: Int64Array
    row: Int64Array
    ref: Int64Array
    state: Int64Array
    partners: Partners

    def __len__(self) -> int:
        return len(self.start)

    def next(self, place: tuple[int, int, int], *, forward: bool) -> dict[str, Any] | None:
        """Returns the first place after (start, lane, row), or the last before it; None: not
        found."""
        after = np.stack([self.start, self.lane, self.row])
        # Lexicographic comparison, the first key that is unequal decides.
        order = np.zeros(len(self), np.int64)
        for own, other in zip(after, place, strict=True):
            order = np.where(order == 0, np.sign(own - other), order)
        found = np.flatnonzero(order > 0 if forward else order < 0)
        if not len(found):
            return None
        at = int(found[0 if forward else -1])
        keys = ("lane", "row", "ref")
        found_at: dict[str, Any] = {key: int(getattr(self, key)[at]) for key in keys}
        kind = BESIDE[int(self.state[at])]
        return {**found_at, "kind": kind, "position": at + 1, "total": len(self)}


def next_difference(timeline: Timeline, arguments: Mapping[str, str]) -> dict[str, Any]:
    """Returns the next or previous place where the run differs from its baseline, from a place
    on."""
    place = integer("t", arguments.get("t", "")), integer("lane", arguments.get("lane", "-1"))
    key = *place, integer("row", arguments.get("row", "-1"))
    known = timeline.differences
    if known is None:
        raise NoSuch("this run is shown without a baseline; lanescope view RUN --baseline RUN0")
    found = known.next(key, forward=is_forward(arguments.get("dir", "next")))
    return found or {"ref": None, "total": len(known)}


def difference_facts(
    timeline: Timeline, lane: Lane, table: str, span: dict[str, Any]
) -> dict[str, Any]:
    """Returns `beside` of an operator's slice: its partner's place, and what both recorded.

    None where the other run has no such operator; nothing without a baseline.
    """
    known = timeline.differences
    if (
        table != "op"
        or not isinstance(known, Differences)
        or lane.kind not in (THREAD_LANE, BASELINE)
    ):
        return {}
    in_base = lane.kind == BASELINE
    own, other = lane, _other(timeline, lane)
    row = None if other is None else _row(timeline, lane, span)
    if other is None or row is None:
        return {"beside": None}
    partner = known.partners.of(other.id if in_base else own.id, row, in_base=in_base)
    place = None if partner is None else slice_of(timeline, other, "op", partner)
    if partner is None or place is None:
        return {"beside": None}
    sides = [_recorded(timeline, own, row), _recorded(timeline, other, partner)]
    base, run = sides if in_base else sides[::-1]
    named = {"name": span["name"], "label": other.label}
    beside = {**asdict(place), **named, "base": base, "run": run}
    here, there = end(span, span["drawn"][0]), end(beside, place.start_ns)
    return {"beside": beside, "flows": [flow("baseline", "ties", here, there, outgoing=True)]}


def _other(timeline: Timeline, lane: Lane) -> Lane | None:
    """The lane of the same thread in the other run."""
    if lane.kind == BASELINE:
        return None if lane.above is None else timeline.lane(lane.above)
    lanes = timeline.index.lanes
    return next((one for one in lanes if (one.kind, one.above) == (BASELINE, lane.id)), None)


def _row(timeline: Timeline, lane: Lane, span: dict[str, Any]) -> int:
    index = timeline.index
    first = index.row_begin[index.lane_rows[lane.id][0]]
    return int(index.arrays["source"][first + span["ref"]])


def _recorded(timeline: Timeline, lane: Lane, row: int) -> dict[str, Any]:
    """Returns how long an operator took, ns as text, and its tensors' contents by position."""
    run = timeline.run_of(lane)
    thread = lane.baseline if lane.kind == BASELINE else lane.thread
    columns = ["start_ns", "duration_ns", "self_ns", "depth"]
    [op] = run.events("op", lane.rank, thread, columns=columns).slice(row, 1).to_pylist()
    times = {name: _text(op[name]) for name in ("duration_ns", "self_ns")}
    return {**times, "tensors": _tensors(run, lane.rank, thread, op)}


def _text(number: int | None) -> str | None:
    return None if number is None else str(number)


def _tensors(run: Run, rank: int, thread: str | None, op: dict[str, Any]) -> dict[str, Any]:
    if not run.counts["tensor"]:
        return {}
    rows = run.events("tensor", rank, thread, columns=_COLUMNS)
    here = pc.and_(
        pc.equal(rows["start_ns"], pa.scalar(op["start_ns"], pa.int64())),
        pc.equal(rows["depth"], pa.scalar(min(op["depth"], 255), pa.int16())),
    )
    return {
        row["position"]: {
            "kind": f"{row['dtype']} {row['shape']}",
            "hash": f"{row['hash'] & (1 << 64) - 1:016x}",
            **{name: _plain(row[name]) for name in _VALUES},
        }
        for row in rows.filter(here).slice(0, _MAX_TENSORS).to_pylist()
    }


def _plain(number: float | None) -> float | str | None:
    """JSON has neither NaN nor infinity: these travel as text."""
    return number if number is None or math.isfinite(number) else str(number)
