"""Divides a device's time into computation, communication, copies and idle time.

Per rank, over the kernels and copies on all its streams, from the first one's start to the last
one's end,

    compute     = |union of computation kernels|
    non_compute = |union of all activities| - compute      communication and copies alone
    idle        = |window| - |union of all activities|
    overlap     = |computation & communication| / |communication|

as Holistic Trace Analysis defines its temporal breakdown and its communication computation overlap
(https://hta.readthedocs.io). Times are exact to the nanosecond.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd
import pyarrow as pa

from lanescope.collector.format import schema
from lanescope.collector.format.names import COMMUNICATION_KERNEL
from lanescope.webapp.analysis.arrow_columns import ends_ns, having, texts_of
from lanescope.webapp.runs.intervals import Intervals, union
from lanescope.webapp.runs.run import Run

_ON_HOST = ("gloo:", "mpi:")
_NO_WORK = re.compile(r"^(Memcpy|Memset|dma)|Memcpy|Sync")
"""Names of activities that compute nothing, besides communication."""


@dataclass(frozen=True)
class DeviceTime:
    """Activities of a rank's device by what they are, ns from the start of the run."""

    compute: Intervals
    communication: Intervals
    every: Intervals


def talks_on_device(run: Run, rank: int) -> bool:
    """Returns whether a rank with a device communicates by kernels: it does unless a host's backend
    works.

    Then its communication may be none at all, as in a job of a single rank.
    """
    if device_time(run, rank) is None:
        return False
    return not any(name.startswith(_ON_HOST) for name in texts_of(run, "op", "name", rank))


@lru_cache(maxsize=256)
def device_time(run: Run, rank: int) -> DeviceTime | None:
    """Returns when the streams of a rank are busy; None where no activity of a device was
    recorded."""
    kernel = schema.OpScope.kernel.name
    if kernel not in texts_of(run, "op", "scope", rank):
        return None
    computes: list[Intervals] = []
    communicates: list[Intervals] = []
    every: list[Intervals] = []
    for piece in run.pieces("op", rank, columns=["start_ns", "duration_ns", "name", "scope"]):
        rows = piece.filter(pa.array(having(piece["scope"], kernel.__eq__)))
        start = rows["start_ns"].to_numpy()
        end = ends_ns(rows, run)
        talks = having(rows["name"], COMMUNICATION_KERNEL.search)
        works = ~(talks | having(rows["name"], _NO_WORK.search))
        computes.append(Intervals.of(start[works], end[works]))
        communicates.append(Intervals.of(start[talks], end[talks]))
        every.append(Intervals.of(start, end))
    return DeviceTime(union(computes), union(communicates), union(every))


def temporal_breakdown(run: Run) -> pd.DataFrame:
    """Returns one row per rank with device activity: rank, kernel_time_ns (the window), idle_ns,
    compute_ns, non_compute_ns, communication_ns, overlap_ns, overlap (NaN: no communication).
    """
    rows = []
    for rank in run.ranks:
        found = device_time(run, rank)
        if found is None:
            continue
        window = int(found.every.end[-1] - found.every.start[0]) if len(found.every) else 0
        busy, compute = found.every.total, found.compute.total
        both = found.compute.intersection(found.communication).total
        talk = found.communication.total
        share = both / talk if talk else np.nan
        rows.append((rank, window, window - busy, compute, busy - compute, talk, both, share))
    names = [
        "rank",
        "kernel_time_ns",
        "idle_ns",
        "compute_ns",
        "non_compute_ns",
        "communication_ns",
        "overlap_ns",
        "overlap",
    ]
    return pd.DataFrame(rows, columns=names).astype({"overlap": "float64"})
