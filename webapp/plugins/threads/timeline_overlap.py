"""Where threads of a rank are in a phase at once, for the timeline to shade."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lanescope.collector.format import schema
from lanescope.webapp.plugins.threads.overlap import (
    name_pattern,
    overlap,
    overlap_rate,
    overlap_regions,
    take_phases,
)
from lanescope.webapp.runs.errors import RunError, shown
from lanescope.webapp.timeline.arguments import BadRequest, window_of
from lanescope.webapp.timeline.timeline import Timeline

_Json = dict[str, Any]

_PHASES = tuple(kind.name for kind in schema.PhaseKind if kind is not schema.PhaseKind.mark)

MAX_REGIONS = 2000
"""Overlap regions that one answer lists; it counts all."""


def overlap_answer(timeline: Timeline, arguments: Mapping[str, str]) -> _Json:
    """Returns the overlap of a phase, or of ops with a name, in the window asked for or the whole
    run."""
    phase = arguments.get("phase", "backward")
    try:
        known = name_pattern(phase) is not None or phase in _PHASES
    except RunError as error:
        raise BadRequest(str(error)) from None
    if not known:
        raise BadRequest(f"phase is {shown(phase)}, expected one of {', '.join(_PHASES)}")
    within = window_of(arguments) if "t0" in arguments or "t1" in arguments else None
    return overlap_facts(timeline, phase, within)


def overlap_facts(timeline: Timeline, phase: str, window: tuple[int, int] | None) -> _Json:
    """Returns where threads of a rank are in a phase at once, and how much of the time each pair
    is."""
    run = timeline.run
    lanes = {(lane.rank, lane.thread): lane.id for lane in timeline.index.lanes if lane.thread}
    take_phases(run, timeline.index, phase)
    pairs = overlap(run, phase, window)
    regions = overlap_regions(run, phase, window)
    return {
        "phase": phase,
        "rate": overlap_rate(run, phase, window),
        "pairs": [
            {
                "rank": pair["rank"],
                "a": lanes[pair["rank"], pair["a"]],
                "b": lanes[pair["rank"], pair["b"]],
                "a_ns": pair["a_ns"],
                "b_ns": pair["b_ns"],
                "overlap_ns": pair["overlap_ns"],
                "rate": pair["rate"],
            }
            for pair in pairs.to_dict("records")
        ],
        "regions": [
            [one.start_ns, one.end_ns, [lanes[one.rank, thread] for thread in one.threads]]
            for one in regions[:MAX_REGIONS]
        ],
        "total": len(regions),
    }
