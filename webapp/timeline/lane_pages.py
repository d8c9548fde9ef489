"""Lists lanes for the page: all of them, or of many first one for each rank, and others by rank.

A run of a thousand ranks has 14,000 lanes, whose description is 6 MB. The page groups such a run by
host, draws of a closed host the main thread of each rank, and asks for the lanes of the ranks that
are opened.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lanescope.webapp.runs.rank_groups import HOST, MAX_SPANS, Dimension, dimensions
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.run_warnings import rank_spans, ranks_named
from lanescope.webapp.timeline.arguments import BadRequest
from lanescope.webapp.timeline.lanes import THREAD_LANE, Lane, drawn_order
from lanescope.webapp.timeline.timeline import Timeline

_Json = dict[str, Any]

LISTED = 2_000
"""Lanes that are listed at once, in 600 KB; more come in pages."""

RANKS_AT_ONCE = 64
"""Ranks whose lanes one request may ask for."""

_COLUMNS = (
    *("id", "key", "rank", "kind", "label", "title", "rows", "phase_rows", "first_ns", "last_ns"),
    *("pid", "thread", "process_group", "series", "unit", "min", "max", "baseline", "above"),
    *("group", "process"),
)
"""Fields of a lane in a page, in their order there; as `Lane` has them."""

_FIRST = ("id", "key", "rank", "kind", "label", "title", "rows", "phase_rows", "group", "process")
"""Fields of the lanes that come first."""


def in_pages(timeline: Timeline) -> bool:
    """Returns whether the lanes come in pages."""
    return len(timeline.index.lanes) > LISTED


def all_lanes(timeline: Timeline) -> list[_Json]:
    """Returns all lanes in the order in which they are drawn, grouped by rank, and by process
    within."""
    run = timeline.run
    return [
        {
            **asdict(lane),
            "group": f"rank {lane.rank}",
            "process": None if pid is None else _process(run, lane.rank, pid),
        }
        for lane, pid in drawn_order(run, timeline.index.lanes)
    ]


def first_lanes(timeline: Timeline) -> _Json:
    """Returns the first thread of each rank, grouped by host: {"columns", "rows", "count" of all
    lanes}."""
    firsts: dict[int, Lane] = {}
    for lane in timeline.index.lanes:
        known = firsts.setdefault(lane.rank, lane)
        if known.kind != THREAD_LANE and lane.kind == THREAD_LANE:
            firsts[lane.rank] = lane
    return {"count": len(timeline.index.lanes), **_page(timeline, [*firsts.values()], _FIRST)}


def lanes_of_ranks(timeline: Timeline, ranks: Sequence[int], lanes: Sequence[int]) -> _Json:
    """Returns all lanes of some ranks, and of the ranks of some lanes: {"columns", "rows"}.

    Raises BadRequest for more than RANKS_AT_ONCE ranks, NoSuch for a lane that does not exist.
    """
    wanted = {*ranks, *(timeline.lane(lane).rank for lane in lanes)}
    if len(wanted) > RANKS_AT_ONCE:
        raise BadRequest(f"more than {RANKS_AT_ONCE} ranks in one request, ask for them in parts")
    found = [lane for lane in timeline.index.lanes if lane.rank in wanted]
    return _page(timeline, found, _COLUMNS)


def groupings(timeline: Timeline) -> list[_Json]:
    """What ranks can be grouped by: {"name", "word" of a group, "titles" of the groups, "of"}.

    `of` is the position of the group of each rank of the run, None where it has none. Lanes in
    pages come by host, which is then left out.
    """
    run, found = timeline.run, []
    for one in dimensions(run):
        if one.kind == HOST and in_pages(timeline):
            continue
        place = {rank: at for at, ranks in enumerate(one.groups.values()) for rank in ranks}
        found.append(
            {
                "name": one.name,
                "word": one.word,
                "titles": [_title(one, name) for name in one.groups],
                "of": [place.get(rank) for rank in run.ranks],
            }
        )
    return found


def _title(dimension: Dimension, name: str) -> str:
    """What a group is called, and its ranks where they are neighbours: the page counts others."""
    title = name if dimension.kind == HOST else f"{dimension.word} {name}"
    ranks = dimension.groups[name]
    return f"{title} · {ranks_named(ranks)}" if len(rank_spans(ranks)) <= MAX_SPANS else title


def _page(timeline: Timeline, lanes: list[Lane], columns: Sequence[str]) -> _Json:
    run = timeline.run
    hosts = _hosts(run)
    rows = []
    for lane, _ in drawn_order(run, lanes):
        known = {
            **vars(lane),
            "group": hosts.get(lane.rank, f"rank {lane.rank}"),
            "process": {"name": f"rank {lane.rank}", "about": ""},
        }
        rows.append([known[name] for name in columns])
    return {"columns": list(columns), "rows": rows}


def _hosts(run: Run) -> dict[int, str]:
    """What the group of each rank is called: its host, and the ranks there."""
    names = {host: f"{host} · {ranks_named(there)}" for host, there in run.ranks_by_host.items()}
    return {rank: names[host] for rank, host in run.hosts.items()}


def _process(run: Run, rank: int, pid: int) -> _Json:
    """What stands above the lanes of one of a rank's processes."""
    known = run.process(rank, pid)
    thread = next(one for one in run.threads_of(rank) if one.pid == pid)
    about = [thread.process_name] if thread.process_name else []
    if known is not None and known["role"] != "rank":
        about.append(f"started by {known['parent_pid']}")
    return {"name": f"process {pid}", "about": " · ".join(about)}
