"""What the timeline says in words: the run, one slice with everything known of it, its neighbours.

All answers are plain dictionaries for JSON. Instants and lengths that are shown to the nanosecond
are decimal text, since JSON numbers end up as float64; those that only place things are numbers.
"""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.webapp.analysis.plugin import load, span_facts
from lanescope.webapp.analysis.source_lines import stack_excerpts
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.typed_json import json_members
from lanescope.webapp.timeline.flows import flows_of, launches, sync_flows
from lanescope.webapp.timeline.lane_pages import all_lanes, first_lanes, groupings, in_pages
from lanescope.webapp.timeline.lanes import BASELINE, THREAD_LANE, Lane
from lanescope.webapp.timeline.span_links import (
    Place,
    autograd_partner,
    lane_of_thread,
    same_collective,
)
from lanescope.webapp.timeline.spans import SAMPLES, SPAN_TABLES
from lanescope.webapp.timeline.styles import BESIDE, STYLES
from lanescope.webapp.timeline.tile_columns import STYLE_UNFINISHED
from lanescope.webapp.timeline.timeline import NoSuch, Timeline

Json = dict[str, Any]

_EXACT = ("start_ns", "duration_ns", "self_ns", "complete_ns", "launch_ns")
"""Columns that travel as decimal text."""


def run_facts(timeline: Timeline) -> Json:
    """Returns the run as the page needs it to begin: its axis, steps, lanes and names.

    `lanes` are all of them, or none where they come in pages; `first_lanes` then are the first.
    """
    run = timeline.run
    first = run.ranks[0] if run.ranks else None
    steps: list[list[int]] = []
    if first is not None:
        own = run.steps(first)
        steps = np.stack([own.index, own.start_ns, own.end_ns], axis=1).tolist()
    return {
        "title": run.title,
        "etag": timeline.etag,
        "duration_ns": run.duration_ns,
        "origin_ns": str(run.origin_ns),
        "world_size": run.world_size,
        "ranks": list(run.ranks),
        "missing_ranks": list(run.missing_ranks),
        "steps": {"count": len(steps), "rank0": steps},
        "opening": opening(run),
        "events": dict(run.counts),
        "dropped": run.dropped,
        "clock": {"calibrated": run.clock_calibrated, "uncertainty_ns": run.clock_uncertainty_ns},
        "warnings": list(run.warnings),
        "names": list(timeline.index.names),
        "baseline": None if timeline.baseline is None else timeline.baseline.title,
        "differences": len(timeline.differences or ()),
        "paints": {"names": timeline.index.paints.names, "styles": timeline.index.paints.styles},
        "lanes": [] if in_pages(timeline) else all_lanes(timeline),
        "groupings": groupings(timeline),
        "first_lanes": first_lanes(timeline) if in_pages(timeline) else None,
    }


MIN_START_SHARE = 0.1
"""Share of the run before and after training from which the page opens without it."""


def opening(run: Run) -> list[int]:
    """Returns the window in which the timeline opens: from the first phase of training to the last
    step's end, ns from the start of the run; all of it where that is most of the run, or not known.
    """
    steps = [run.steps(rank) for rank in run.ranks]
    last = max((int(one.end_ns[-1]) for one in steps if len(one)), default=0)
    first = run.training_start
    if first is None or last <= first or last - first > (1 - MIN_START_SHARE) * run.duration_ns:
        return [0, run.duration_ns]
    margin = (last - first) // 50
    return [max(0, first - margin), min(run.duration_ns, last + margin)]


def slice_facts(timeline: Timeline, lane_id: int, ref: int) -> Json:
    """Returns everything known of one slice (or sample) of a lane. Raises NoSuch for an unknown
    one."""
    lane = timeline.lane(lane_id)
    index = timeline.index
    rows = index.lane_rows[lane_id]
    base, size = index.row_begin[rows[0]], index.row_end[rows[-1]] - index.row_begin[rows[0]]
    if not 0 <= ref < size:
        raise NoSuch(f"no slice {ref}, lane {lane_id} has {size} (0 to {size - 1})")
    flat = base + ref
    ends = np.array([index.row_end[row] for row in rows])
    row = rows[int(np.searchsorted(ends, flat, side="right"))]
    facts: Json = {"lane": lane_id, "row": row - rows[0], "ref": ref, "rank": lane.rank}
    if index.arrays["row_table"][row] == SAMPLES:
        return facts | _sample_facts(timeline, lane, flat)
    table = SPAN_TABLES[index.arrays["row_table"][row]]
    event = _event(timeline, lane, table, flat)
    style = int(index.slices.style[flat])
    facts |= {
        **{name: _shown(name, value) for name, value in event.items()},
        "name": index.names[int(index.slices.name[flat])],
        "args": _arguments(event["args"]) if event.get("args") else None,
        "table": table,
        "style": STYLES[style & ~STYLE_UNFINISHED],
        "unfinished": bool(style & STYLE_UNFINISHED),
        "drawn": [int(index.slices.start[flat]), int(index.slices.end[flat])],
    }
    facts |= _stack(timeline.run_of(lane), lane.rank, event.get("stack"))
    if timeline.baseline is not None and facts["style"] in BESIDE:
        facts["difference"] = facts["style"]
    if lane.kind != BASELINE:
        facts |= _belonging(timeline, lane, table, event, facts["drawn"])
    facts["flows"] = flows_of(facts)
    for provider in span_facts():
        own = load(provider)(timeline, lane, table, facts)
        facts["flows"] += own.pop("flows", [])
        facts |= own
    return facts


def _belonging(timeline: Timeline, lane: Lane, table: str, event: Json, drawn: list[int]) -> Json:
    """What else of the run belongs to a slice: its backward, kernels, ranks, other threads."""
    found: Json = {}
    if table == "op":
        partner = autograd_partner(timeline, lane.rank, event)
        found["partner"] = None if partner is None else _place(timeline, partner)
        found["launches"] = [
            {
                **_place(timeline, one.place),
                "label": timeline.lane(one.place.lane).label,
                "outgoing": one.outgoing,
                "launch_ns": one.launch_ns,
            }
            for one in launches(timeline, lane, event)
        ]
    if table == "collective":
        found["peers"] = [
            {**_place(timeline, place), "name": name, "rank": rank}
            for rank, name, place in same_collective(timeline, event)
            if rank != lane.rank
        ]
    if lane.kind == THREAD_LANE:
        found["threads"] = _handovers(timeline, lane, *drawn)
    return found


def _event(timeline: Timeline, lane: Lane, table: str, flat: int) -> Json:
    """The row of its table that a slice was made of.

    Of the op table, which may be far larger than memory, only the rows at the slice's instant are
    read; what was moved to the edge of the axis is found by its position instead.
    """
    index = timeline.index
    run = timeline.run_of(lane)
    thread = lane.baseline if lane.kind == BASELINE else lane.thread
    if table == "op" and lane.kind == THREAD_LANE:
        start, end = int(index.slices.start[flat]), int(index.slices.end[flat])
        rows = run.events(table, lane.rank, thread, window=(start, start + 1))
        rows = rows.filter(pc.equal(rows["start_ns"], pa.scalar(start, pa.int64())))
        name = index.names[int(index.slices.name[flat])]
        length = None if index.slices.style[flat] & STYLE_UNFINISHED else end - start
        found: list[Json] = rows.to_pylist()
        same = [row for row in found if (row["name"], row["duration_ns"]) == (name, length)]
        twins = _before(timeline, lane, flat)
        if twins < len(same):
            return same[twins]
    source = int(index.arrays["source"][flat])
    event: Json = run.events(table, lane.rank, thread).slice(source, 1).to_pylist()[0]
    return event


def _before(timeline: Timeline, lane: Lane, flat: int) -> int:
    """Slices of a lane's ops that look the same and come before: in a row above, or in its own."""
    index = timeline.index
    slices = index.slices
    count = 0
    for row in index.lane_rows[lane.id]:
        if index.arrays["row_table"][row] != SPAN_TABLES.index("op"):
            continue
        begin, end = index.row_begin[row], min(index.row_end[row], flat)
        if begin >= end:
            break
        starts = slices.start[begin:end]
        low = begin + int(starts.searchsorted(slices.start[flat], side="left"))
        high = begin + int(starts.searchsorted(slices.start[flat], side="right"))
        same = slices.end[low:high] == slices.end[flat]
        same &= slices.name[low:high] == slices.name[flat]
        count += int(np.count_nonzero(same & (slices.style[low:high] == slices.style[flat])))
    return count


def nearest(timeline: Timeline, lane_id: int, row: int, t: int, forward: bool) -> Json:
    """Returns the first slice of a row that starts after `t`, or the last one that starts before
    it.

    `ref` is null without one.
    """
    lane = timeline.lane(lane_id)
    if not 0 <= row < lane.rows:
        raise NoSuch(f"no row {row}, lane {lane_id} has {lane.rows} (0 to {lane.rows - 1})")
    index = timeline.index
    flat_row = index.lane_rows[lane_id][row]
    begin, end = index.row_begin[flat_row], index.row_end[flat_row]
    samples = index.arrays["row_table"][flat_row] == SAMPLES
    starts = index.arrays["time" if samples else "start"]
    if forward:
        flat = begin + int(starts[begin:end].searchsorted(t, side="right"))
    else:
        flat = begin + int(starts[begin:end].searchsorted(t)) - 1
    if not begin <= flat < end:
        return {"lane": lane_id, "row": row, "ref": None}
    start = int(starts[flat])
    found: Json = {
        "lane": lane_id,
        "row": row,
        "ref": flat - index.row_begin[index.lane_rows[lane_id][0]],
        "start_ns": start,
        "end_ns": start if samples else int(index.slices.end[flat]),
    }
    found["name"] = lane.label if samples else index.names[int(index.slices.name[flat])]
    return found


def _handovers(timeline: Timeline, lane: Lane, start_ns: int, end_ns: int) -> list[Json]:
    """Starts and joins of threads within a slice: the other end, and both instants."""
    found = []
    for one in sync_flows(timeline.run, lane, start_ns, end_ns):
        outgoing = one.source == lane.thread
        other = lane_of_thread(timeline, lane.rank, one.target if outgoing else one.source)
        if other is None:
            continue
        at = one.came_ns if outgoing else one.sent_ns
        slice_there = nearest(timeline, other.id, 0, at - 1, True)
        if slice_there["ref"] is None:
            slice_there = nearest(timeline, other.id, 0, at, False)
        if slice_there["ref"] is None:
            continue
        found.append(
            {
                **slice_there,
                "kind": one.kind,
                "outgoing": outgoing,
                "label": other.label,
                "sent_ns": one.sent_ns,
                "came_ns": one.came_ns,
            }
        )
    return found


def _sample_facts(timeline: Timeline, lane: Lane, flat: int) -> Json:
    arrays = timeline.index.arrays
    value = float(arrays["value"][flat])
    return {
        "table": "value" if lane.series else "gradient",
        "name": lane.label,
        "time_ns": str(int(arrays["time"][flat])),
        "value": _number(value),
        "step": int(arrays["step"][flat]),
    }


def _shown(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in _EXACT:
        return str(value)
    return _number(value) if isinstance(value, float) else value


def _arguments(text: str) -> list[tuple[str, str]]:
    """Names and values, as text, of the arguments of an imported event."""
    return [
        (name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for name, value in json_members(text, "").items()
    ]


def _number(value: float) -> float | str:
    """JSON has no NaN and no infinity: these travel as text."""
    return value if math.isfinite(value) else str(value)


def _stack(run: Run, rank: int, stack: int | None) -> Json:
    """The frames of a stack, and the line of the program at each where the run holds it."""
    frames = _frames(run, rank, stack)
    return {"stack": frames, "source": stack_excerpts(run, rank, frames)}


def _frames(run: Run, rank: int, stack: int | None) -> list[Json]:
    if stack is None:
        return []
    stacks = run.events("stack", rank, columns=["stack", "frames"])
    found = stacks.filter(pc.equal(stacks["stack"], pa.scalar(stack, pa.int32())))
    return list(found["frames"][0].as_py() or []) if found.num_rows else []


def _place(timeline: Timeline, place: Place) -> Json:
    flat = timeline.index.row_begin[timeline.index.lane_rows[place.lane][0]] + place.ref
    return {
        "lane": place.lane,
        "row": place.row,
        "ref": place.ref,
        "name": timeline.index.names[int(timeline.index.slices.name[flat])],
        "start_ns": place.start_ns,
        "end_ns": place.end_ns,
    }
