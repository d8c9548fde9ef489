"""What a stream does: its kernels, each with the operator that launched it."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pyarrow as pa

from lanescope.webapp.analysis.arrow_columns import ends_ns
from lanescope.webapp.analysis.stack_frames import where_of
from lanescope.webapp.plugins.time.lane_work import Row
from lanescope.webapp.plugins.time.streams import Stream
from lanescope.webapp.runs.run import Run

MAX_TITLE = 60


def short_title(name: str) -> str:
    """Returns a name as a line of a table has room for it: kernels' names hold all their types."""
    plain = name.removeprefix("void ")
    return plain if len(plain) <= MAX_TITLE else f"{plain[: MAX_TITLE - 1]}…"


class StreamWork:
    """The kernels of a stream, as `lane_work.LaneWork` has the operators of a thread."""

    def __init__(self, run: Run, stream: Stream) -> None:
        self._run, self._stream = run, stream

    def rows(self, start: int, end: int) -> list[Row]:
        """Returns the kernels within [start, end), cut at its ends; time between them is launch."""
        stream = self._stream
        low = int(np.searchsorted(stream.end, start, side="right"))
        high = int(np.searchsorted(stream.start, end))
        lane = stream.rank, stream.thread
        found: list[Row] = []
        at = start
        for i in range(low, high):
            begin, until = max(int(stream.start[i]), start), min(int(stream.end[i]), end)
            if begin > at:
                found.append((*lane, at, begin, "launch", stream.names[i], "", ""))
            _, module, where = launching(self._run, stream, i)
            row = (stream.categories[i], stream.names[i], module, where)
            found.append((*lane, begin, until, *row))
            at = until
        if at < end:
            found.append((*lane, at, end, "launch", "", "", ""))
        return [one for one in found if one[3] > one[2]]


class Launchers:
    """The operators of a thread, by the instants at which they launched kernels."""

    def __init__(self, run: Run, rank: int, thread: str) -> None:
        columns = ["start_ns", "duration_ns", "name", "module", "stack", "depth"]
        ops = run.events("op", rank, thread, columns)
        self._run, self._rank = run, rank
        self._start, self._end = ops["start_ns"].to_numpy(), ends_ns(ops, run)
        depth = ops["depth"].to_numpy()
        self._names = ops["name"].cast(pa.string()).to_pylist()
        self._modules = ops["module"].cast(pa.string()).to_pylist()
        self._stacks = ops["stack"].fill_null(-1).to_numpy()
        order = np.argsort(self._start, kind="stable")
        levels = [order[depth[order] == level] for level in np.unique(depth)]
        self._levels = [(rows, self._start[rows]) for rows in levels]

    def around(self, instant: int) -> tuple[tuple[str, ...], str, str]:
        """Returns names of the operators around an instant, the outermost first, the innermost's
        module, and the innermost known line."""
        names, module, where = [], "", ""
        for rows, begins in self._levels:
            place = int(np.searchsorted(begins, instant, side="right")) - 1
            if place < 0 or self._end[rows[place]] < instant:
                continue
            i = int(rows[place])
            names.append(self._names[i])
            module = self._modules[i] or module
            if self._stacks[i] >= 0:
                where = where_of(self._run, self._rank, int(self._stacks[i])) or where
        return tuple(names), module, where


@lru_cache(maxsize=64)
def _launchers(run: Run, rank: int, thread: str) -> Launchers:
    return Launchers(run, rank, thread)


def launching(run: Run, stream: Stream, i: int) -> tuple[tuple[str, ...], str, str]:
    """Returns `Launchers.around` of the launch of a kernel; empty where that is not known."""
    if stream.launched[i] < 0 or not stream.launchers[i]:
        return (), "", ""
    return _launchers(run, stream.rank, stream.launchers[i]).around(int(stream.launched[i]))
