"""Why each stream is idle, how long its launches wait, and how long its queue is.

A gap between two kernels of a stream is divided by what the second one waited for, in this order:

    host            until it was launched: the host had not come to it
    communication, copy, other_stream   until the kernel of another stream that its stream waits for
                    had ended, by what that kernel is
    start           from then, or from its launch, to its begin, at most START_NS
    unknown         the rest: it waited for something that was not recorded, or its launch was not
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pandas as pd

from lanescope.webapp.plugins.devices.kernels import COMMUNICATION, COPY, kernel_type
from lanescope.webapp.plugins.time.streams import Stream, dependency
from lanescope.webapp.plugins.time.streams import rank_streams as streams_of
from lanescope.webapp.runs.run import Run

IDLE_CAUSES = {
    "host": "nothing was launched",
    "communication": "waits for communication",
    "copy": "waits for a copy",
    "other_stream": "waits for another stream",
    "start": "starts a kernel",
    "unknown": "reason not recorded",
}
"""Name -> what people read."""

START_NS = 10_000
"""A device begins a kernel within some microseconds once it may."""

_COLUMNS = [
    "rank",
    "stream",
    "kernels",
    "window_ns",
    "busy_ns",
    *(f"idle_{name}_ns" for name in IDLE_CAUSES),
    "launch_delay_p50_ns",
    "launch_delay_p99_ns",
    "queue_p50",
    "queue_max",
]


@lru_cache(maxsize=4)
def streams(run: Run) -> pd.DataFrame:
    """Returns one row per rank and stream: COLUMNS. Callers must not change it.

    window_ns is from the first kernel's start to the last one's end; busy_ns and the idle times add
    up to it. launch_delay: from the start of the launching call to the kernel's start. queue: how
    many kernels of the stream were launched and had not ended, when each was launched, itself
    included; NaN where no launch is known.
    """
    names = {(one.rank, one.thread): one.name for one in run.threads}
    rows = [
        (rank, names[rank, thread], *_row(run, stream))
        for rank in run.ranks
        for thread, stream in streams_of(run, rank).items()
    ]
    return pd.DataFrame(rows, columns=_COLUMNS)


def _row(run: Run, stream: Stream) -> list[float]:
    idle = dict.fromkeys(IDLE_CAUSES, 0)
    gaps = np.flatnonzero(stream.start[1:] > stream.end[:-1]) + 1
    for i in gaps.tolist():
        for cause, length in _divided(run, stream, i):
            idle[cause] += length
    known = stream.launched >= 0
    delay = (stream.start - stream.launched)[known]
    launched = np.sort(stream.launched[known])
    ended = np.sort(stream.end[known])
    queue = np.arange(1, len(launched) + 1) - np.searchsorted(ended, launched, side="right")
    return [
        len(stream.start),
        int(stream.end[-1] - stream.start[0]),
        int((stream.end - stream.start).sum()),
        *idle.values(),
        *(np.percentile(delay, [50, 99]) if known.any() else (np.nan, np.nan)),
        *((np.median(queue), queue.max()) if known.any() else (np.nan, np.nan)),
    ]


def _divided(run: Run, stream: Stream, i: int) -> list[tuple[str, int]]:
    """The gap before a kernel, by cause, ns."""
    begin, end = int(stream.end[i - 1]), int(stream.start[i])
    launched = int(stream.launched[i])
    if launched < 0:
        return [("unknown", end - begin)]
    ready = min(max(launched, begin), end)
    found = [("host", ready - begin)]
    waited = dependency(run, stream, i)
    if waited is not None:
        other = streams_of(run, stream.rank)[waited[0]]
        done = min(max(int(other.end[waited[1]]), ready), end)
        kind = kernel_type(other.names[waited[1]])
        found.append((kind if kind in (COMMUNICATION, COPY) else "other_stream", done - ready))
        ready = done
    start = min(end - ready, START_NS)
    return [*found, ("start", start), ("unknown", end - ready - start)]
