"""How long each thread waited for other threads, in a window of time."""

from __future__ import annotations

from functools import lru_cache

import pandas as pd

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
