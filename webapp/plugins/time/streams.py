"""Kernels of the streams of a rank, what each waited for, and the host's waits for them.

A kernel begins once it has been launched, the kernel before it on its stream has ended, and what
its stream waits for on another stream is done. Traces do not state the last: it is taken to be so
where the launching thread made a stream wait for an event since the launch before, and a kernel of
another stream ended after the kernel before and no later than this one begins.

A kernel of a collective waits for the same kernel of the other ranks: it belongs to the call within
which it was launched.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa

from lanescope.collector.format import schema
from lanescope.collector.format.names import COMMUNICATION_KERNEL, SYNCHRONISING
from lanescope.webapp.analysis.arrow_columns import ends_ns, having, texts_of
from lanescope.webapp.analysis.collective_calls import calls, group_members
from lanescope.webapp.plugins.time.breakdown import phases_of, training_thread
from lanescope.webapp.runs.intervals import enclosing
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Int64Array, Window

_CallKey = tuple[str, int]

_KERNEL = schema.OpScope.kernel.name
_COPY = re.compile(r"Memcpy|Memset|^dma")
_HOST_WAITS = re.compile(
    r"(cuda|hip)(Device|Stream|Event)Synchronize|(cuda|hip)Mem(cpy|set)(2D|3D)?(Async)?$"
    r"|cu(Ctx|Stream|Event)Synchronize|cuMemcpy"
)
"""Calls in which a thread may wait for a device."""
_LAUNCHES = re.compile(
    r"(cuda|hip)(LaunchKernel|MemcpyAsync|MemsetAsync|GraphLaunch)|cuLaunchKernel"
)
FULL_QUEUE = 1000
"""Launched kernels of a stream that have not ended: CUDA takes no more than 1024, and a launch then
lasts until one has ended."""
_STREAM_WAITS = re.compile(r"(cuda|hip)StreamWaitEvent|cuStreamWaitEvent")
_WAITED = (
    schema.SyncKind.device_event_synchronize.name,
    schema.SyncKind.stream_synchronize.name,
    schema.SyncKind.device_synchronize.name,
)


@dataclass(frozen=True, eq=False)
class Stream:
    """Kernels, copies and fills of a stream, by start. Times are ns from the start of the run; of
    those without a known launch it is -1. `after` is the stream and kernel that a kernel waited
    for, None: none. `calls` has the collective of a kernel, None: none."""

    rank: int
    thread: str
    start: Int64Array
    end: Int64Array
    launched: Int64Array
    launchers: list[str]
    names: list[str]
    categories: list[str]
    calls: list[_CallKey | None]


@lru_cache(maxsize=64)
def rank_streams(run: Run, rank: int) -> Mapping[str, Stream]:
    """Returns the streams of a rank by the id of their lane; none where no kernel was recorded."""
    if _KERNEL not in texts_of(run, "op", "scope", rank):
        return {}
    phases = phases_of(run, training_thread(run, rank))
    found = {}
    for one in run.threads:
        if one.rank != rank:
            continue
        columns = ["start_ns", "duration_ns", "name", "scope", "launch_ns", "launch_thread"]
        rows = run.events("op", rank, one.thread, columns)
        rows = rows.filter(pa.array(having(rows["scope"], _KERNEL.__eq__)))
        if not len(rows):
            continue
        rows = rows.append_column("end_ns", [ends_ns(rows, run)]).sort_by("start_ns")
        launched = rows["launch_ns"].fill_null(-1).to_numpy()
        names = rows["name"].cast(pa.string()).to_pylist()
        launchers = rows["launch_thread"].cast(pa.string()).to_pylist()
        start = rows["start_ns"].to_numpy()
        end = rows["end_ns"].to_numpy().copy()
        # A stream runs one kernel after the other; rounding may make them overlap.
        end[:-1] = np.minimum(end[:-1], np.maximum(start[1:], start[:-1]))
        phase = np.full(len(names), "compute", dtype=object)
        for kind in ("forward", "backward", "optimizer"):
            if kind in phases:
                inside = enclosing(phases[kind].start, phases[kind].end, launched) >= 0
                phase[inside] = kind
        categories = [_category(*each) for each in zip(names, phase, strict=True)]
        own = _calls_of(run, rank, names, launched, launchers)
        found[one.thread] = Stream(
            rank, one.thread, start, end, launched, launchers, names, categories, own
        )
    return found


def _category(name: str, phase: str) -> str:
    if COMMUNICATION_KERNEL.search(name):
        return "exposed_communication"
    return "copy" if _COPY.search(name) else phase


def _calls_of(
    run: Run, rank: int, names: list[str], launched: Int64Array, launchers: list[str]
) -> list[_CallKey | None]:
    """The collective within whose call each communication kernel was launched."""
    frame = calls(run)
    frame = frame[(frame["rank"] == rank) & frame["name"].isin(SYNCHRONISING)]
    found: list[_CallKey | None] = [None] * len(names)
    talks = np.array([bool(COMMUNICATION_KERNEL.search(name)) for name in names])
    for thread, own in frame.groupby("thread", observed=True):
        start, end = own["start_ns"].to_numpy(), own["returned_ns"].to_numpy()
        mine = np.flatnonzero(talks & (np.array(launchers) == thread))
        place = enclosing(start, end + 1, launched[mine])
        for i, row in zip(mine[place >= 0].tolist(), place[place >= 0].tolist(), strict=True):
            found[i] = str(own["group"].iloc[row]), int(own["sequence"].iloc[row])
    return found


def kernel_time(run: Run, rank: int, thread: str, start: Int64Array, end: Int64Array) -> Int64Array:
    """Returns the time of the kernels that a thread launched in each [start, end), ns."""
    launched, length = _launches(run, rank, thread)
    total = np.concatenate([[0], np.cumsum(length)])
    low, high = np.searchsorted(launched, [start, end])
    found: Int64Array = total[high] - total[low]
    return found


def _launches(run: Run, rank: int, thread: str) -> tuple[Int64Array, Int64Array]:
    """Launches by a thread, ascending, and the length of each kernel, ns."""
    none = np.zeros(0, np.int64)
    launched, length = [none], [none]
    for stream in rank_streams(run, rank).values():
        mine = (np.array(stream.launchers, dtype=object) == thread) & (stream.launched >= 0)
        launched.append(stream.launched[mine])
        length.append((stream.end - stream.start)[mine])
    instants = np.concatenate(launched)
    order = np.argsort(instants, kind="stable")
    return instants[order], np.concatenate(length)[order]


@lru_cache(maxsize=4)
def last_kernels(run: Run) -> Mapping[_CallKey, tuple[int, str, int]]:
    """Returns for each collective whose kernels all ranks of its group recorded the rank, stream
    and start of the last of them to begin. Empty where clocks were not compared."""
    begun: dict[_CallKey, dict[int, tuple[int, str]]] = defaultdict(dict)
    for rank in run.ranks if run.clock_calibrated else ():
        for thread, stream in rank_streams(run, rank).items():
            for key, start in zip(stream.calls, stream.start.tolist(), strict=True):
                if key is not None and start >= begun[key].get(rank, (start, ""))[0]:
                    begun[key][rank] = start, thread
    found = {}
    for key, own in begun.items():
        expected = {rank for rank in group_members(run).get(key[0], ()) if rank in run.ranks}
        if expected and set(own) == expected:
            rank = max(own, key=lambda one: own[one][0])
            found[key] = rank, own[rank][1], own[rank][0]
    return found


@lru_cache(maxsize=64)
def stream_waits(run: Run, rank: int) -> Mapping[str, Int64Array]:
    """Returns instants at which each thread made a stream wait for an event, ascending, ns."""
    found: dict[str, list[Int64Array]] = defaultdict(list)
    for one in run.threads:
        if one.rank != rank:
            continue
        ops = run.events("op", rank, one.thread, ["start_ns", "name"])
        found[one.thread].append(
            ops["start_ns"].to_numpy()[having(ops["name"], _STREAM_WAITS.match)]
        )
        sync = run.events("sync", rank, one.thread, ["start_ns", "kind"])
        waits = having(sync["kind"], schema.SyncKind.device_event_wait.name.__eq__)
        found[one.thread].append(sync["start_ns"].to_numpy()[waits])
    return {thread: np.sort(np.concatenate(parts)) for thread, parts in found.items()}


def dependency(run: Run, stream: Stream, i: int) -> tuple[str, int] | None:
    """Returns the stream and kernel whose end a kernel waited for, by an event; None: none is
    known."""
    launched = int(stream.launched[i])
    if launched < 0:
        return None
    before = int(stream.launched[i - 1]) if i else -1
    waits = stream_waits(run, stream.rank).get(stream.launchers[i])
    if waits is None or not np.searchsorted(waits, launched) > np.searchsorted(waits, before):
        return None
    ready = max(launched, int(stream.end[i - 1]) if i else -1)
    start = int(stream.start[i])
    best: tuple[int, str, int] | None = None
    for thread, other in rank_streams(run, stream.rank).items():
        j = int(np.searchsorted(other.end, start, side="right")) - 1
        if thread != stream.thread and j >= 0 and other.end[j] > ready:
            best = max(best or (0, "", 0), (int(other.end[j]), thread, j))
    return None if best is None else best[1:]


@dataclass(frozen=True)
class HostWait:
    """[start_ns, end_ns) in which a thread waited for kernels, and the streams it may have waited
    for, each with the last kernel that had been launched and has ended."""

    start_ns: int
    end_ns: int
    name: str
    kernels: Mapping[str, int]


@lru_cache(maxsize=64)
def host_waits(run: Run, rank: int, thread: str, window: Window) -> tuple[HostWait, ...]:
    """Returns when a thread waited for a device: within a call in which a kernel ended, and that
    synchronises or launches on a stream whose queue is full. A recorded synchronisation lasts to
    the end of the operator that made it."""
    own = rank_streams(run, rank)
    if thread in own or not own:
        return ()
    ops = run.events("op", rank, thread, ["start_ns", "duration_ns", "name"], window=window)
    ends = ends_ns(ops, run)
    names = ops["name"].cast(pa.string()).to_pylist()
    start = ops["start_ns"].to_numpy()
    chosen = np.flatnonzero(having(ops["name"], _HOST_WAITS.match))
    spans = [(int(start[i]), int(ends[i]), names[i]) for i in chosen.tolist()]
    sync = run.events("sync", rank, thread, ["start_ns", "kind"], window=window)
    for at, kind in zip(sync["start_ns"].to_pylist(), sync["kind"].to_pylist(), strict=True):
        if kind in _WAITED:
            around = (start <= at) & (ends > at)
            later = start[start > at]
            until = int(later.min()) if len(later) else window[1]
            until = min(until, int(ends[around].min())) if around.any() else until
            spans.append((at, until, kind.replace("_", " ")))
    found = _full_queues(run, rank, ops, ends)
    for begin, end, name in spans:
        last = {
            lane: j
            for lane, stream in own.items()
            if (j := _last_ended(stream, begin, end, "Async" in name)) is not None
        }
        if last:
            found.append(HostWait(begin, end, name, last))
    return tuple(sorted(found, key=lambda one: (one.start_ns, one.end_ns)))


def _full_queues(run: Run, rank: int, ops: pa.Table, ends: Int64Array) -> list[HostWait]:
    """Launches by a thread that a full queue held up."""
    chosen = np.flatnonzero(having(ops["name"], _LAUNCHES.match))
    start, end = ops["start_ns"].to_numpy()[chosen], ends[chosen]
    found = []
    for lane, stream in rank_streams(run, rank).items():
        queued = np.searchsorted(np.sort(stream.launched), start) - np.searchsorted(
            stream.end, start, side="right"
        )
        last = np.searchsorted(stream.end, end, side="right") - 1
        ended = stream.end[np.maximum(last, 0)] > start
        for i in np.flatnonzero((queued >= FULL_QUEUE) & ended).tolist():
            name = str(ops["name"][int(chosen[i])])
            found.append(HostWait(int(start[i]), int(end[i]), name, {lane: int(last[i])}))
    return found


def _last_ended(stream: Stream, begin: int, end: int, copies: bool) -> int | None:
    """The last kernel to end within [begin, end], if it had been launched by then: before it began,
    or, where the call copies, by the call."""
    j = int(np.searchsorted(stream.end, end, side="right")) - 1
    if j < 0 or stream.end[j] <= begin:
        return None
    if copies and stream.launched[j] < begin:
        return None
    return j if stream.launched[j] <= end else None
