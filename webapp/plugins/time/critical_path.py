"""The critical path of a step: one line back from its end, through all threads and ranks.

A step of the job lasts from the end of the step before, on the rank that ended it last, to its own
end on the rank that ends it last. From there the path goes back on the lane of that rank's training
thread. Within work it stays; it leaves a wait for the thread that ended it, at that instant:

    a collective         the last rank to arrive, at its arrival; from there on it is transfer
    a synchronisation    the thread that released the lock, put the item, set the event or result
    a join               the last event of the thread
    a thread's start     the thread that started it
    backward             the autograd thread that worked for it, and back
    a synchronisation with a device   the stream whose kernel ended last
    a microbatch         the pipeline stage that ended it, in traces without sends (`pipeline`)
    a kernel             what was last: its launch, the kernel before it on its stream, or the
                         kernel of another stream that its stream waits for
    a kernel of a collective   the last rank's kernel to begin; from there on it is transfer

Each instant of the step is on the path exactly once, so the path is as long as the step. A wait
whose end the recording does not explain stays on its lane as `unexplained`.

The walk is that of critical path analysis for message-passing programs (C.-Q. Yang and B. P.
Miller, "Critical Path Analysis for the Execution of Parallel and Distributed Programs", 1988).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.names import PAIRED
from lanescope.webapp.analysis.arrow_columns import ends_ns, to_frame
from lanescope.webapp.analysis.collective_calls import calls
from lanescope.webapp.analysis.stack_frames import where_of
from lanescope.webapp.plugins.collectives.communication import operators
from lanescope.webapp.plugins.collectives.devices import talks_on_device
from lanescope.webapp.plugins.collectives.skew import COLLECTIVE_KEYS, arrivals
from lanescope.webapp.plugins.time.breakdown import (
    CATEGORIES,
    autograd_threads,
    collective_waits,
    phases_of,
    pipeline_waits,
    training_thread,
)
from lanescope.webapp.plugins.time.job_steps import JobStep, job_step
from lanescope.webapp.plugins.time.lane_work import LaneWork, Row
from lanescope.webapp.plugins.time.partners import partners
from lanescope.webapp.plugins.time.stream_work import StreamWork
from lanescope.webapp.plugins.time.streams import dependency, host_waits, last_kernels, rank_streams
from lanescope.webapp.runs.intervals import Intervals
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array
from lanescope.webapp.timeline.flows import HANDED

TRANSFER = "exposed_communication"
WAKE = "waiting_for_threads"
LAUNCH = "launch"
UNEXPLAINED = "unexplained"

PATH_CATEGORIES: Mapping[str, str] = {**CATEGORIES, UNEXPLAINED: "unexplained wait"}
"""Name -> what people read."""

_EXTENT = ["rank", "thread", "start_ns", "end_ns", "duration_ns"]
PATH_COLUMNS = [*_EXTENT, "category", "name", "module", "where"]


class RankThread(NamedTuple):
    """A thread of a rank."""

    rank: int
    thread: str


class Wait(NamedTuple):
    """[start_ns, end_ns) on a lane. `waker` ended it at `woken_ns`; None: not known.

    `name` is what was waited for; `category` that of the time from then to the end of the wait;
    `where` the line (file.py:12) that waits.
    """

    start_ns: int
    end_ns: int
    waker: RankThread | None
    woken_ns: int
    name: str
    category: str
    where: str = ""


@lru_cache(maxsize=64)
def critical_path(run: Run, step: int | None = None) -> pd.DataFrame:
    """Returns the critical path of a step of the job (default: `median_step`), in order of time.

    One row per stretch of the same work: rank, thread, start_ns, end_ns (from the start of the
    run), duration_ns, category (of `breakdown.CATEGORIES`, or `unexplained`), name (of the
    operator, or of what was waited for), module, where (file.py:12; "" where no stack says). The
    durations add up to the step. Callers must not change it.

    Stretches on a stream have the operator that launched the kernel as module and place.

    Raises NotApplicable where the run has no such step.
    """
    window = job_step(run, step)
    walk = _Walk(run, window)
    rows = [row for stretch in reversed(list(walk.back())) for row in stretch]
    path = pd.DataFrame(rows, columns=[name for name in PATH_COLUMNS if name != "duration_ns"])
    path["duration_ns"] = path["end_ns"] - path["start_ns"]
    return _merged(path[PATH_COLUMNS])


def _merged(path: pd.DataFrame) -> pd.DataFrame:
    """Neighbours that differ in their instants only, as one row."""
    same = ["rank", "thread", "category", "name", "module", "where"]
    number = (path[same] != path[same].shift()).any(axis=1).cumsum()
    grouped = path.groupby(number, sort=False)
    merged = grouped.first()
    merged["end_ns"] = grouped["end_ns"].last()
    merged["duration_ns"] = merged["end_ns"] - merged["start_ns"]
    return merged[PATH_COLUMNS].reset_index(drop=True)


def summed(path: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Returns the path by some of its columns, longest first, with duration_ns and share."""
    table = path.groupby(by, sort=False)["duration_ns"].sum().reset_index()
    table["share"] = table["duration_ns"] / max(int(path["duration_ns"].sum()), 1)
    return table.sort_values("duration_ns", ascending=False, kind="stable", ignore_index=True)


class _Walk:
    """Goes back from the end of a step."""

    def __init__(self, run: Run, window: JobStep) -> None:
        self.run = run
        self.window = window
        self._lanes: dict[RankThread, LaneWork | StreamWork] = {}
        self._waits: dict[RankThread, list[Wait]] = {}
        self._begins: dict[RankThread, Int64Array] = {}
        self._sync: dict[int, pd.DataFrame] = {}

    def back(self) -> Iterator[list[Row]]:
        """Rows of each stretch of the path, the last stretch first."""
        rank = self.window.last_rank
        lane = RankThread(rank, training_thread(self.run, rank).thread)
        at, first = self.window.end_ns, self.window.start_ns
        visited: set[RankThread] = set()  # since `at` was earlier: two waits may name each other
        while at > first:
            wait = self._wait_before(lane, at)
            if wait is None or wait.end_ns <= first:
                yield self._work(lane, first, at)
                return
            if wait.end_ns < at:
                yield self._work(lane, wait.end_ns, at)
                at = wait.end_ns
                visited.clear()
            begin = max(wait.start_ns, first)
            waker = None if wait.waker in visited else wait.waker
            # Clocks of two hosts may differ: a wait ends after the event that ended it.
            woken = min(wait.woken_ns, at)
            if waker is None or woken <= begin:
                category = UNEXPLAINED if waker is None else wait.category
                yield [(*lane, begin, at, category, wait.name, "", wait.where)]
                at = begin
                visited.clear()
                continue
            if woken < at:
                yield [(*lane, woken, at, wait.category, wait.name, "", wait.where)]
                visited.clear()
            visited.add(lane)
            at, lane = woken, waker

    def _work(self, lane: RankThread, start: int, end: int) -> list[Row]:
        if lane not in self._lanes:
            stream = rank_streams(self.run, lane.rank).get(lane.thread)
            self._lanes[lane] = (
                LaneWork(self.run, lane, (self.window.start_ns, self.window.end_ns))
                if stream is None
                else StreamWork(self.run, stream)
            )
        return self._lanes[lane].rows(start, end)

    def _wait_before(self, lane: RankThread, at: int) -> Wait | None:
        """The last wait that began before an instant."""
        if lane not in self._waits:
            if lane.thread in rank_streams(self.run, lane.rank):
                found = sorted(self._stream_waits(lane))
            else:
                waits = (
                    self._collective_waits,
                    self._thread_waits,
                    self._device_waits,
                    self._stage_waits,
                )
                found = sorted({one for kind in waits for one in kind(lane)}, key=itemgetter(0, 1))
            self._waits[lane] = [one for one in found if one.end_ns > one.start_ns]
            self._begins[lane] = np.array([one.start_ns for one in self._waits[lane]], np.int64)
        place = int(np.searchsorted(self._begins[lane], at)) - 1
        if place < 0:
            return None
        last = self._waits[lane][place]
        return last._replace(end_ns=min(last.end_ns, at))

    # ---- collectives ----

    def _collective_waits(self, lane: RankThread) -> Iterator[Wait]:
        run, window = self.run, self.window
        if lane.thread != training_thread(run, lane.rank).thread or talks_on_device(run, lane.rank):
            return
        frame = calls(run)
        mine = frame[(frame["rank"] == lane.rank) & (frame["thread"] == lane.thread)]
        inside = mine[~mine["asynchronous"] & (mine["returned_ns"] >= 0)]
        spans = [
            *zip(inside["start_ns"], inside["returned_ns"], inside.index, strict=True),
            *collective_waits(run, lane.rank).itertuples(index=False, name=None),
        ]
        for start, end, label in spans:
            if end > window.start_ns and start < window.end_ns:
                call = frame.loc[label]
                came = (
                    self._partner(label)
                    if call["name"] in PAIRED
                    else self._last_arrival(str(call["group"]), int(call["sequence"]))
                )
                waker, instant = came if came is not None else (lane, int(start))
                where = where_of(run, lane.rank, int(call["stack"])) or ""
                yield Wait(int(start), int(end), waker, instant, str(call["name"]), TRANSFER, where)

    def _partner(self, label: int) -> tuple[RankThread, int] | None:
        """The call that a send or receive waited for."""
        known = partners(self.run)
        if label not in known.index:
            return None
        rank, thread, instant = known.loc[label]
        return RankThread(int(rank), str(thread)), int(instant)

    def _last_arrival(self, group: str, sequence: int) -> tuple[RankThread, int] | None:
        came = _arrivals(self.run)
        if (group, sequence) not in came.index:
            return None
        row = came.loc[(group, sequence)]
        frame = calls(self.run)
        own = frame[
            (frame["rank"] == row["last_rank"])
            & (frame["group"] == group)
            & (frame["sequence"] == sequence)
        ]
        return RankThread(int(row["last_rank"]), str(own["thread"].iloc[0])), int(row["last_ns"])

    def _stage_waits(self, lane: RankThread) -> Iterator[Wait]:
        """Waits for another stage of a pipeline."""
        training = training_thread(self.run, lane.rank)
        if lane.thread != training.thread:
            return
        for row in pipeline_waits(self.run, lane.rank).itertuples():
            waker = RankThread(row.waker, training_thread(self.run, row.waker).thread)
            name = f"microbatch {row.microbatch}"
            yield Wait(row.start_ns, row.end_ns, waker, row.woken_ns, name, "idle")

    # ---- devices ----

    def _device_waits(self, lane: RankThread) -> Iterator[Wait]:
        """The thread's waits for kernels, each for the last that ended."""
        own = rank_streams(self.run, lane.rank)
        window = self.window.start_ns, self.window.end_ns
        for wait in host_waits(self.run, *lane, window):
            ended = {thread: int(own[thread].end[j]) for thread, j in wait.kernels.items()}
            thread = max(ended, key=lambda one: ended[one])
            waker = RankThread(lane.rank, thread)
            yield Wait(wait.start_ns, wait.end_ns, waker, ended[thread], wait.name, LAUNCH)

    def _stream_waits(self, lane: RankThread) -> Iterator[Wait]:
        """What the kernels of a stream waited for before they began, and those of collectives
        within."""
        run, window = self.run, self.window
        stream = rank_streams(run, lane.rank)[lane.thread]
        low = int(np.searchsorted(stream.end, window.start_ns, side="right"))
        high = int(np.searchsorted(stream.start, window.end_ns))
        arrived = last_kernels(run)
        for i in range(low, high):
            start, end = int(stream.start[i]), int(stream.end[i])
            # Without a kernel before it, it waited since before the step.
            before = int(stream.end[i - 1]) if i else min(window.start_ns, start) - 1
            key = stream.calls[i]
            if key is not None and key in arrived and arrived[key][0] != lane.rank:
                rank, thread, came = arrived[key]
                yield Wait(start, end, RankThread(rank, thread), came, stream.names[i], TRANSFER)
            found = dependency(run, stream, i)
            if found is not None:
                other = rank_streams(run, lane.rank)[found[0]]
                ended = int(other.end[found[1]])
                yield Wait(
                    before, start, RankThread(lane.rank, found[0]), ended, "another stream", LAUNCH
                )
            elif stream.launched[i] > before:
                launcher = RankThread(lane.rank, stream.launchers[i])
                launched = int(stream.launched[i])
                yield Wait(before, start, launcher, launched, stream.names[i], LAUNCH)
            else:
                waker = lane if i and stream.launched[i] >= 0 else None
                yield Wait(before, start, waker, before, stream.names[i], LAUNCH)

    # ---- threads ----

    def _thread_waits(self, lane: RankThread) -> Iterator[Wait]:
        frame = self._sync_of(lane.rank)
        mine = frame[frame["thread"] == lane.thread]
        near = mine[
            (mine["end_ns"] > self.window.start_ns) & (mine["start_ns"] < self.window.end_ns)
        ]
        for row in near.itertuples():
            if row.kind == schema.SyncKind.thread_join.name:
                ends = frame[
                    (frame["kind"] == schema.SyncKind.thread_end.name)
                    & (frame["thread"] == row.peer)
                ]
                yield self._wait(lane, row, ends, "the end of a thread")
            elif row.kind == schema.SyncKind.thread_begin.name:
                starts = frame[
                    (frame["kind"] == schema.SyncKind.thread_start.name)
                    & (frame["peer"] == lane.thread)
                ]
                for start in starts.itertuples():
                    parent = RankThread(lane.rank, str(start.thread))
                    sent = int(start.start_ns)
                    yield Wait(sent - 1, int(row.start_ns), parent, sent, "a thread's start", WAKE)
            elif row.kind in _SENDERS and row.end_ns > row.start_ns:
                sent = frame[
                    (frame["kind"] == _SENDERS[row.kind])
                    & (frame["object"] == row.object)
                    & (frame["thread"] != lane.thread)
                ]
                yield self._wait(lane, row, sent, row.kind.replace("_", " "))
        yield from self._backward_waits(lane)

    def _wait(self, lane: RankThread, row: Any, senders: pd.DataFrame, name: str) -> Wait:
        """A wait that the last of `senders` before its end has ended."""
        start, end = int(row.start_ns), int(row.end_ns)
        where = where_of(self.run, lane.rank, int(row.stack)) or ""
        before = senders[senders["start_ns"] <= end]
        if before.empty:
            return Wait(start, end, None, start, name, WAKE, where)
        last = before.loc[before["start_ns"].idxmax()]
        waker = RankThread(lane.rank, str(last["thread"]))
        return Wait(start, end, waker, int(last["start_ns"]), name, WAKE, where)

    def _sync_of(self, rank: int) -> pd.DataFrame:
        """Synchronisation events of a rank, in order of time."""
        if rank not in self._sync:
            columns = ["start_ns", "duration_ns", "kind", "object", "peer", "thread", "stack"]
            frame = to_frame(self.run.events("sync", rank, columns=columns))
            frame["stack"] = frame["stack"].fillna(-1)
            frame["end_ns"] = frame["start_ns"] + frame["duration_ns"].fillna(0).astype("int64")
            self._sync[rank] = frame.sort_values("start_ns", kind="stable")
        return self._sync[rank]

    def _backward_waits(self, lane: RankThread) -> Iterator[Wait]:
        """backward() waits for the threads of autograd that do its work, and these for it."""
        training = training_thread(self.run, lane.rank)
        helpers = [
            RankThread(lane.rank, one.thread) for one in autograd_threads(self.run, training)
        ]
        spans = phases_of(self.run, training).get("backward")
        if spans is None:
            return
        spans = spans.clip(self.window.start_ns, self.window.end_ns)
        if lane in helpers:
            for start in spans.start.tolist():
                began = RankThread(lane.rank, training.thread)
                yield Wait(start - 1, start, began, start, "backward", WAKE)
        elif lane.thread == training.thread:
            own = self._ops(lane)
            for helper in helpers:
                work = operators(self.run, *helper)[0]
                busy = work.intersection(spans).subtraction(own)
                for start, end in zip(busy.start.tolist(), busy.end.tolist(), strict=True):
                    yield Wait(start, end, helper, end, "autograd thread", WAKE)

    def _ops(self, lane: RankThread) -> Intervals:
        window = self.window.start_ns, self.window.end_ns
        rows = self.run.events("op", *lane, ["start_ns", "duration_ns"], window=window)
        return Intervals.of(rows["start_ns"].to_numpy(), ends_ns(rows, self.run))


_SENDERS: Mapping[str, str] = {came.name: sent.name for came, sent in HANDED.items()}


@lru_cache(maxsize=4)
def _arrivals(run: Run) -> pd.DataFrame:
    """`skew.arrivals` by group and sequence number; empty where clocks were not compared."""
    came = arrivals(run)
    return (came if run.clock_calibrated else came.iloc[:0]).set_index(COLLECTIVE_KEYS)
