"""What findings share: addresses within the page, and turns of phrase.

An address names the window in ns from the start of the run, and may name one slice by its lane's
key and its start: `/timeline?t=1200-3400&at=0%2F4120-0@1500`. The page turns that into a selection
(`timeline.search.lookup`), so an analysis need not know how lanes are drawn.
"""

from __future__ import annotations

import re
from urllib.parse import quote, urlencode

import pyarrow as pa
import pyarrow.compute as pc

from lanescope.webapp.runs.run import Run

MARGIN = 2
"""On each side, the window shows one part in this many of what it is about."""

MIN_MARGIN_NS = 50

AROUND_NS = 100_000
"""Shown behind the start of an operator of unknown length, and around an instant."""

_OPS = ["thread", "start_ns", "duration_ns", "scope", "module", "sequence", "step"]


def timeline_address(
    start_ns: int, end_ns: int, duration_ns: int, at: tuple[str, int] | None = None
) -> str:
    """Returns the address of [start_ns, end_ns), or of an instant, in a run of `duration_ns`, with
    some of its surroundings.

    `at` = (key of a lane, start in ns of a slice on it) also selects that slice.
    """
    length = end_ns - start_ns
    margin = max(length // MARGIN, MIN_MARGIN_NS) if length else AROUND_NS
    low, high = max(0, start_ns - margin), min(max(duration_ns, end_ns), end_ns + margin)
    address = f"/timeline?t={low}-{high}"
    return address if at is None else f"{address}&at={quote(at[0], safe='')}@{at[1]}"


def calls_address(name: str, rank: int | None = None, thread: str = "", step: int = -1) -> str:
    """Returns the address that searches all calls of an operator, from a step of a rank on."""
    place = {"rank": rank, "thread": thread or None, "step": step if step >= 0 else None}
    known = {part: value for part, value in place.items() if value is not None}
    return f"/timeline?{urlencode({**known, 'q': f'/^{re.escape(name)}$/'})}"


def thread_lane(rank: int, thread: str) -> str:
    """Returns the key of the lane of a thread."""
    return f"{rank}/{thread}"


def group_lane(rank: int, group: str) -> str:
    """Returns the key of the lane of a process group's collectives on a rank."""
    return f"{rank}/collectives/{group}"


def step_bounds(run: Run, rank: int, step: int) -> tuple[int, int] | None:
    """Returns [start, end) of a step of a rank, ns from the run's start; None: no such step."""
    steps = run.steps(rank)
    for index, low, high in zip(steps.index, steps.start_ns, steps.end_ns, strict=True):
        if index == step:
            return int(low), int(high)
    return None


def step_link(run: Run, rank: int, step: int) -> str:
    """Returns the address of a step of a rank; where the run does not hold it, of the timeline."""
    bounds = step_bounds(run, rank, step) if rank in run.ranks else None
    return "/timeline" if bounds is None else timeline_address(*bounds, run.duration_ns)


def backward_link(run: Run, rank: int, layer: str, step: int) -> str:
    """Returns the address of a layer's backward at a step: of the nodes that its forward operators
    made.

    Of the whole step, where the run does not hold which they are.
    """
    bounds = step_bounds(run, rank, step)
    if bounds is None:
        return step_link(run, rank, step)
    ops = run.events("op", rank, columns=_OPS, window=bounds)
    modules = ops["module"].cast(pa.string())
    inside = pc.or_(pc.equal(modules, layer), pc.starts_with(modules, f"{layer}."))
    made = pc.drop_null(ops.filter(inside)["sequence"])
    nodes = ops.filter(
        pc.and_(
            pc.equal(ops["scope"].cast(pa.string()), "backward"),
            pc.and_(pc.equal(ops["step"], step), pc.is_in(ops["sequence"], made.combine_chunks())),
        )
    )
    if not nodes.num_rows:
        return step_link(run, rank, step)
    rows = nodes.to_pandas()
    longest = rows.loc[rows["duration_ns"].fillna(0).idxmax()]
    start = int(rows["start_ns"].min())
    end = int((rows["start_ns"] + rows["duration_ns"].fillna(0)).max())
    place = (thread_lane(rank, str(longest["thread"])), int(longest["start_ns"]))
    return timeline_address(start, end, run.duration_ns, place)


def at_place(where: str | None) -> str:
    """Returns ` at file.py:12` behind what was done there; nothing where the place is not known."""
    return f" at {where}" if where else ""


def and_more(count: int, noun: str) -> str:
    """Returns ` and 3 more layers` behind the first of `count`; nothing where it is the only
    one."""
    more = count - 1
    return f" and {more} more {noun}{'s' if more > 1 else ''}" if more > 0 else ""
