"""How long each thread waited for other threads, in a window of time, and for which ended one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.analysis.thread_waits import thread_waits
from lanescope.webapp.runs.intervals import Intervals
from lanescope.webapp.runs.run import Run

KEPT = 5_000_000
"""Synchronisation events of a run whose waits are kept for the next window; of a larger run those
of each window are read."""

_COLUMNS = ["rank", "thread", "kind", "waiting_ns", "share", "open"]


def waiting_threads(run: Run, window: tuple[int, int]) -> pd.DataFrame:
    """Returns one row per thread that waited in the window W = [t0, t1) ns, the longest first.

    waiting_ns: |union of the thread's waits & W|, int64; share: of W; kind: of
    `thread_waits.WAITS_FOR`, what it waited for longest; open: the last wait never ended. A wait
    that never ended lasts until its rank was last known to be there.
    """
    low, high = window
    waits = _waits(run) if run.counts["sync"] <= KEPT else thread_waits(run, window=window)
    waits = waits[(waits["start_ns"] < high) & (waits["end_ns"] > low)]
    waits = waits.assign(
        start_ns=waits["start_ns"].clip(lower=low), end_ns=waits["end_ns"].clip(upper=high)
    )
    rows = []
    for (rank, thread), own in waits.groupby(["rank", "thread"]):
        waited = Intervals.of(own["start_ns"], own["end_ns"]).total
        longest = (own["end_ns"] - own["start_ns"]).groupby(own["kind"]).sum().idxmax()
        rows.append((rank, thread, longest, waited, waited / (high - low), bool(own["open"].any())))
    table = pd.DataFrame(rows, columns=_COLUMNS)
    return table.sort_values("waiting_ns", ascending=False, kind="stable", ignore_index=True)


@lru_cache(maxsize=4)
def _waits(run: Run) -> pd.DataFrame:
    return thread_waits(run)


_BRINGS = pa.array([kind.name for kind in {*schema.PUBLISHING, schema.SyncKind.queue_room}])
"""Kinds of events that wake a thread which waits for the same object."""

_TAKES = schema.SyncKind.queue_get.name


def ended_bringer(run: Run, rank: int, row: Mapping[str, Any], names: Mapping[str, str]) -> str:
    """Says which thread brought what a thread waits for, and has ended; empty where one that
    brought it before may still be there, or none did. `row`: of the thread, at rest."""
    columns = ["thread", "kind", "object", "duration_ns", "stack"]
    rows = run.events("sync", rank, columns=columns)
    threads, kinds = (rows[name].cast(pa.string()) for name in ("thread", "kind"))
    mine = rows.filter(pc.equal(threads, row["thread"]))
    waited = mine.filter(pc.is_null(mine["duration_ns"])).to_pylist()
    # Ctrl-C leaves no event of the wait that it ended, but some of the same line before.
    taken = mine.filter(pc.equal(mine["kind"].cast(pa.string()), _TAKES)).to_pylist()[-1:]
    place = own_place(run, rank, row["stack"])
    waited = waited or [one for one in taken if own_place(run, rank, one["stack"]) == place]
    if not waited or waited[-1]["object"] is None:
        return ""
    same = pc.and_(pc.equal(rows["object"], waited[-1]["object"]), pc.is_in(kinds, _BRINGS))
    brought = threads.filter(pc.and_(same, pc.not_equal(threads, row["thread"]))).to_pylist()
    ended = threads.filter(pc.equal(kinds, schema.SyncKind.thread_end.name)).to_pylist()
    if not brought or not {*brought} <= {*ended}:
        return ""
    return f"; {names.get(brought[-1], brought[-1])}, which brought it before, has ended"
