"""The races that an operator's slice is one side of, with the other side's place."""

from __future__ import annotations

from typing import Any

from lanescope.webapp.analysis.access_site import MemoryAccess
from lanescope.webapp.analysis.links import thread_lane
from lanescope.webapp.analysis.source_lines import Excerpt, stack_excerpts
from lanescope.webapp.analysis.stack_frames import line_and_function
from lanescope.webapp.plugins.races.locksets import held_at
from lanescope.webapp.plugins.races.stream_races import all_races
from lanescope.webapp.runs.run import Run
from lanescope.webapp.timeline.flows import end, flow
from lanescope.webapp.timeline.lanes import BASELINE, Lane
from lanescope.webapp.timeline.search.lookup import slice_at
from lanescope.webapp.timeline.timeline import Timeline

_MAX_ACCESSES = 20_000_000
"""Above this many accesses, selecting a slice does not look for races."""


def race_facts(timeline: Timeline, lane: Lane, table: str, span: dict[str, Any]) -> dict[str, Any]:
    """Returns `races` of an operator's slice (as `span_details` describes it), and an arrow to
    each."""
    if table != "op" or lane.kind == BASELINE:
        return {}
    races = _races(timeline, lane, span)
    here = end(span, span["drawn"][0])
    return {
        "races": races,
        "flows": [
            flow("race", "races", here, end(one, one["start_ns"]), outgoing=one["outgoing"])
            for one in races
        ],
    }


def _races(timeline: Timeline, lane: Lane, span: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns races with one side an operator of a thread's lane.

    Each race is reported once per pair of source lines; only that representative pair has it.
    """
    if not 0 < timeline.run.counts["access"] <= _MAX_ACCESSES:
        return []
    found = []
    for race in all_races(timeline.run):
        for own, other in ((race.first, race.second), (race.second, race.first)):
            if race.rank == lane.rank and _is(own, lane, span):
                at = slice_at(timeline, thread_lane(race.rank, other.thread), other.start_ns)
                if at is None:
                    continue
                found.append(
                    {
                        "lane": at[0],
                        "row": at[1],
                        "ref": at[2],
                        "name": other.op,
                        "label": timeline.lane(at[0]).label,
                        "start_ns": other.start_ns,
                        "outgoing": own is race.first,
                        "tensor": race.tensors[0],
                        "access": "writes" if own.write else "reads",
                        "other": "writes" if other.write else "reads",
                        "where": other.where,
                        "stack": list(other.stack),
                        "source": _source(timeline.run, race.rank, other),
                        "locks": _locks(timeline, own, race.rank),
                        "other_locks": _locks(timeline, other, race.rank),
                    }
                )
    return found


def _source(run: Run, rank: int, other: MemoryAccess) -> list[Excerpt | None]:
    """Returns the lines of the program at the frames of an access's stack."""
    places = (line_and_function(frame)[0].rpartition(":") for frame in other.stack)
    frames = [{"file": file, "line": int(line)} for file, _, line in places if line.isdecimal()]
    return stack_excerpts(run, rank, frames) if len(frames) == len(other.stack) else []


def _locks(timeline: Timeline, touch: MemoryAccess, rank: int) -> int:
    return len(held_at(timeline.run, rank, touch.thread, touch.start_ns))


def _is(touch: MemoryAccess, lane: Lane, span: dict[str, Any]) -> bool:
    place = (touch.thread, touch.start_ns, touch.op)
    return place == (lane.thread, int(span["start_ns"]), span["name"])
