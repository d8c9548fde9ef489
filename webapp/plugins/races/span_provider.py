"""The races that an operator's slice is one side of, with the other side's place."""

from __future__ import annotations

from typing import Any

from lanescope.webapp.analysis.access_site import Touch
from lanescope.webapp.analysis.links import thread_lane
from lanescope.webapp.plugins.races.locksets import held_at
from lanescope.webapp.plugins.races.stream_races import all_races
from lanescope.webapp.timeline.deep_links import slice_at
from lanescope.webapp.timeline.lanes import Lane
from lanescope.webapp.timeline.timeline import Timeline

MOST_ACCESSES = 20_000_000
"""Of runs with more, races are not looked for because somebody selects a slice."""


def races_of(timeline: Timeline, lane: Lane, op: dict[str, Any]) -> list[dict[str, Any]]:
    """Races one side of which is an operator (a row of the op table) of a thread's lane.

    A race is told once per pair of places, so only the pair that it names has it.
    """
    if not 0 < timeline.run.counts["access"] <= MOST_ACCESSES:
        return []
    told = []
    for race in all_races(timeline.run):
        for own, other in ((race.first, race.second), (race.second, race.first)):
            if race.rank == lane.rank and _is(own, lane, op):
                at = slice_at(timeline, thread_lane(race.rank, other.thread), other.start_ns)
                if at is None:
                    continue
                told.append(
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
                        "locks": _locks(timeline, own, race.rank),
                        "other_locks": _locks(timeline, other, race.rank),
                    }
                )
    return told


def _locks(timeline: Timeline, touch: Touch, rank: int) -> int:
    return len(held_at(timeline.run, rank, touch.thread, touch.start_ns))


def _is(touch: Touch, lane: Lane, op: dict[str, Any]) -> bool:
    place = (touch.thread, touch.start_ns, touch.op)
    return place == (lane.thread, op["start_ns"], op["name"])
