"""Measures how long threads are in the same phase at the same time.

Threads of one rank are looked at together, over the whole run. Threads of different ranks are in
different processes and share no autograd graph, so their overlap is the normal case and says
nothing; it is not counted.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import ends_ns, having
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.runs.errors import RunError
from lanescope.webapp.runs.intervals import Intervals, at_least, union
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import BoolArray, Int64Array
from lanescope.webapp.timeline.index import Index
from lanescope.webapp.timeline.lanes import THREAD_LANE
from lanescope.webapp.timeline.spans import SPAN_TABLES
from lanescope.webapp.timeline.styles import STYLE
from lanescope.webapp.timeline.tile_columns import STYLE_UNFINISHED

_COLUMNS: Mapping[str, str] = {
    "rank": "int64",
    "a": "str",
    "b": "str",
    "name_a": "str",
    "name_b": "str",
    "a_ns": "int64",
    "b_ns": "int64",
    "overlap_ns": "int64",
    "rate": "float64",
}


@dataclass(frozen=True)
class Region:
    """A maximal interval in which two or more threads of a rank are in the phase at once."""

    rank: int
    start_ns: int
    end_ns: int
    threads: tuple[str, ...]  # those in the phase at any instant of it


def phase_lanes(
    run: Run, rank: int, phase: str = "backward", window: tuple[int, int] | None = None
) -> dict[str, Intervals]:
    """Returns per thread of a rank the time it spends in a phase; without threads that never do.

    `phase` is one of schema.PhaseKind, or /a regular expression/ for the names of ops and phases,
    in any case; what had not ended lasts to the end of the run. RunError for any other text.
    `window` = (t0, t1), ns from the start of the run, cuts the intervals to [t0, t1).
    """
    kinds = [kind.name for kind in schema.PhaseKind if kind is not schema.PhaseKind.mark]
    expression = name_pattern(phase)
    if expression is None and phase not in kinds:
        known = ", ".join(kinds)
        raise RunError(f"no phase {phase!r}, expected one of {known}, or /part of a name/")
    lanes = _in_phase(run, rank, phase) if expression is None else _named(run, rank, expression)
    if window is None:
        return dict(lanes)
    cut = {thread: lane.clip(*window) for thread, lane in lanes.items()}
    return {thread: lane for thread, lane in cut.items() if len(lane)}


def name_pattern(text: str) -> re.Pattern[str] | None:
    """Returns the expression of `/.../`; None where the text is not of that form.

    RunError where it is, but cannot be read.
    """
    found = re.fullmatch(r"/(.+?)/?", text)
    if found is None:
        return None
    try:
        return re.compile(found[1], re.IGNORECASE)
    except re.error as error:
        raise RunError(f"{text!r} is not a regular expression: {error}") from None


@lru_cache(maxsize=1024)
def _named(run: Run, rank: int, expression: re.Pattern[str]) -> Mapping[str, Intervals]:
    found: dict[str, Intervals] = {}
    for thread in (one.thread for one in run.threads_of(rank)):
        parts = []
        for table in ("phase", "op"):
            for piece in run.pieces(table, rank, thread, ["start_ns", "duration_ns", "name"]):
                meant = having(piece["name"], lambda name: name and expression.search(name))
                parts.append(_intervals(run, piece.filter(pa.array(meant))))
        lane = union(parts)
        if len(lane):
            found[thread] = lane
    return found


def _intervals(run: Run, rows: pa.Table) -> Intervals:
    return Intervals.of(rows["start_ns"].to_numpy(), ends_ns(rows, run))


_LANES: WeakKeyDictionary[Run, dict[tuple[int, str], Mapping[str, Intervals]]]
_LANES = WeakKeyDictionary()  # a page asks for one window after another


def take_phases(run: Run, index: Index, phase: str) -> None:
    """Takes what `phase_lanes` returns of a kind of phase from the timeline's index of the run: to
    open the files of a thousand ranks takes seconds. Does nothing for other texts."""
    known = _LANES.setdefault(run, {})
    if phase not in schema.PhaseKind.__members__ or all((r, phase) in known for r in run.ranks):
        return
    styles = np.array(index.paints.styles or [0]) & ~STYLE_UNFINISHED
    of_phases = index.arrays["row_table"] == SPAN_TABLES.index("phase")
    found: dict[int, dict[str, Intervals]] = {rank: {} for rank in run.ranks}
    for lane, rows in zip(index.lanes, index.lane_rows, strict=True):
        if lane.kind != THREAD_LANE or lane.thread is None:
            continue
        none = np.zeros(0, np.int64)
        starts, ends = [none], [none]
        for low, high in ((index.row_begin[r], index.row_end[r]) for r in rows if of_phases[r]):
            mine = styles.take(index.slices.paint[low:high], mode="clip") == STYLE[phase]
            starts.append(index.slices.start[low:high][mine])
            ends.append(index.slices.end[low:high][mine])
        own = Intervals.of(np.concatenate(starts), np.concatenate(ends))
        if len(own):
            found[lane.rank][lane.thread] = own
    known.update({(rank, phase): lanes for rank, lanes in found.items()})


def _in_phase(run: Run, rank: int, phase: str) -> Mapping[str, Intervals]:
    known = _LANES.setdefault(run, {})
    if (rank, phase) not in known:
        rows = run.events("phase", rank, columns=["start_ns", "duration_ns", "kind", "thread"])
        mine = rows.filter(pc.equal(rows["kind"].cast(pa.string()), phase))
        known[rank, phase] = _by_thread(run, mine)
    return known[rank, phase]


def _by_thread(run: Run, rows: pa.Table) -> Mapping[str, Intervals]:
    codes = pc.dictionary_encode(rows["thread"].cast(pa.string())).combine_chunks()
    lanes: dict[str, Intervals] = {}
    low, high = rows["start_ns"].to_numpy(), ends_ns(rows, run)
    code = codes.indices.to_numpy()
    for position, thread in enumerate(codes.dictionary.to_pylist()):
        mine = code == position
        lane = Intervals.of(low[mine], high[mine])
        if len(lane):
            lanes[thread] = lane
    return lanes


def overlap(
    run: Run, phase: str = "backward", window: tuple[int, int] | None = None
) -> pd.DataFrame:
    """Returns overlap per pair of threads of a rank in a phase, highest rate first.

    With A and B the unions of the phase's intervals on the two threads,
        rate = |A & B| / min(|A|, |B|)
    so 1 means that the one with less of the phase is never in it alone. One row per pair of
    threads that enter the phase at all (in the window, see `phase_lanes`): rank, a, b (thread
    ids), name_a, name_b, a_ns = |A|, b_ns = |B|, overlap_ns = |A & B| (ns), rate (0..1).
    """
    names = {(thread.rank, thread.thread): thread.name for thread in run.threads}
    rows = []
    for rank in run.ranks:
        lanes = phase_lanes(run, rank, phase, window)
        for (a, left), (b, right) in itertools.combinations(lanes.items(), 2):
            shared = left.intersection(right).total
            rate = shared / min(left.total, right.total)
            name_a, name_b = names[rank, a], names[rank, b]
            rows.append((rank, a, b, name_a, name_b, left.total, right.total, shared, rate))
    frame = pd.DataFrame(rows, columns=list(_COLUMNS)).astype(dict(_COLUMNS))
    return frame.sort_values("rate", ascending=False, kind="stable", ignore_index=True)


def overlap_rate(
    run: Run, phase: str = "backward", window: tuple[int, int] | None = None
) -> float | None:
    """Returns overlap rate of the run: time with two or more threads in the phase / time with one
    or more.

    The times are taken per rank, over the threads of that rank, and summed over ranks. None where
    no thread is ever in the phase. This is the metric `thread_overlap_rate`.
    """
    if (phase, window) == ("backward", None):
        times = [_backward_times(run, rank) for rank in run.ranks]
    else:
        times = [_times(phase_lanes(run, rank, phase, window)) for rank in run.ranks]
    several, one = (sum(of) for of in zip(*times, strict=True))
    return several / one if one else None


@per_rank
def _backward_times(run: Run, rank: int) -> tuple[int, int]:
    return _times(phase_lanes(run, rank))


def _times(lanes: Mapping[str, Intervals]) -> tuple[int, int]:
    """Time with two or more threads in the phase, and with one or more, ns."""
    several, one = (at_least([*lanes.values()], count).total for count in (2, 1))
    return several, one


def overlap_over_time(run: Run, phase: str = "backward", parts: int = 200) -> pd.DataFrame:
    """Returns the overlap rate of each rank in `parts` equal stretches, from the first start of the
    phase on any rank to its last end.

    rank, start_ns, end_ns, rate (as `overlap_rate` of that stretch and rank; NaN where no thread of
    the rank is in the phase).
    """
    of_ranks = {rank: list(phase_lanes(run, rank, phase).values()) for rank in run.ranks}
    known = [lane for lanes in of_ranks.values() for lane in lanes]
    low = min((int(lane.start[0]) for lane in known), default=0)
    high = max((int(lane.end[-1]) for lane in known), default=run.duration_ns)
    edges = np.linspace(low, max(high, low + parts), parts + 1).astype(np.int64)
    rows = []
    for rank, lanes in of_ranks.items():
        one, several = (_covered(at_least(lanes, k), edges) for k in (1, 2))
        rate = np.divide(several, one, out=np.full(parts, np.nan), where=one > 0)
        rows.append(
            pd.DataFrame({"rank": rank, "start_ns": edges[:-1], "end_ns": edges[1:], "rate": rate})
        )
    return pd.concat(rows, ignore_index=True)


def _covered(times: Intervals, edges: Int64Array) -> Int64Array:
    """How much of [edges[i], edges[i + 1]) the intervals cover, for each i."""
    if not len(times):
        return np.zeros(len(edges) - 1, np.int64)
    before = np.concatenate([[0], np.cumsum(times.end - times.start)])
    at = np.searchsorted(times.start, edges, side="right")
    inside = (
        np.minimum(edges, times.end[np.maximum(at - 1, 0)]) - times.start[np.maximum(at - 1, 0)]
    )
    until = np.where(at > 0, before[np.maximum(at - 1, 0)] + inside, 0)
    covered: Int64Array = np.diff(until)
    return covered


def overlap_regions(
    run: Run, phase: str = "backward", window: tuple[int, int] | None = None
) -> list[Region]:
    """Returns where two or more threads of a rank are in the phase at once, longest first."""
    found = []
    for rank in run.ranks:
        lanes = phase_lanes(run, rank, phase, window)
        regions = at_least(list(lanes.values()), 2)
        inside = {thread: _meets(lane, regions) for thread, lane in lanes.items()}
        for i in range(len(regions)):
            threads = tuple(thread for thread in lanes if inside[thread][i])
            found.append(Region(rank, int(regions.start[i]), int(regions.end[i]), threads))
    return sorted(found, key=lambda r: (r.start_ns - r.end_ns, r.start_ns, r.rank))


def _meets(lane: Intervals, regions: Intervals) -> BoolArray:
    """For each region, whether the lane has an instant in it."""
    begun = np.searchsorted(lane.start, regions.end, side="left")
    over = np.searchsorted(lane.end, regions.start, side="right")
    meets: BoolArray = begun > over
    return meets
