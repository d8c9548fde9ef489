"""Breaks each step of each rank down into categories that add up to it exactly.

An instant of a step belongs to the first category that claims it, so nothing counts twice and
nothing is left over. On a rank whose device communicates by kernels of its own, the device decides:

    forward, backward, optimizer, evaluation, compute   a kernel computes, by the phase that
                            launched it
    exposed_communication                   a communication kernel runs and none that computes
    waiting_for_ranks                       of that, before the last rank of the group has arrived
    copy                                    only copies run
    launch                                  nothing runs; the next kernel has been launched already
    data_loading, host_bound                nothing runs and nothing was launched

Elsewhere the training thread decides, with the autograd threads that work for it:

    exposed_communication   it is blocked in a collective and no operator runs
    waiting_for_ranks       of that, before the last rank of the group has arrived; or nothing runs
                            until another pipeline stage has ended the microbatch (`pipeline`)
    data_loading            it fetches a batch
    waiting_for_threads     it is blocked in a lock, queue, event, future or join
    forward, backward, optimizer, evaluation   an operator runs in that phase
    other                   an operator runs in another phase or in none
    python                  no recorded operator runs: Python, or operators that were left out
    idle                    the same in traces of tools that do not record threads of Python

The categories of a device follow the temporal breakdown of Holistic Trace Analysis
(https://hta.readthedocs.io, "Temporal Breakdown", "Idle Time Breakdown").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd
import pyarrow as pa

from lanescope.collector.format import schema
from lanescope.collector.format.names import ANY_TOOL, PAIRED
from lanescope.webapp.analysis.arrow_columns import ends_ns, having
from lanescope.webapp.analysis.collective_calls import calls, rank_calls
from lanescope.webapp.analysis.thread_waits import thread_waits
from lanescope.webapp.plugins.collectives.communication import in_calls, operators
from lanescope.webapp.plugins.collectives.devices import DeviceTime, device_time, talks_on_device
from lanescope.webapp.plugins.collectives.skew import COLLECTIVE_KEYS, arrivals
from lanescope.webapp.plugins.time import pipeline
from lanescope.webapp.plugins.time.computed_once import computed_once
from lanescope.webapp.plugins.time.partners import partners
from lanescope.webapp.runs.intervals import Intervals, union
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.threads import Thread
from lanescope.webapp.runs.types import Int64Array

CATEGORIES: Mapping[str, str] = {
    "data_loading": "data loading",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "evaluation": "evaluation",
    "compute": "compute",
    "exposed_communication": "exposed communication",
    "waiting_for_ranks": "waiting for other ranks",
    "waiting_for_threads": "waiting for threads",
    "copy": "copies",
    "launch": "kernel launch",
    "host_bound": "host-bound idle",
    "python": "Python between operators",
    "idle": "idle",
    "other": "other operators",
}
"""Name -> what people read, in the order in which charts stack them."""

PHASE_CATEGORIES = ("forward", "backward", "optimizer", "evaluation")
"""Kinds of phases that are categories."""

_DATA = schema.PhaseKind.data.name
_NO_CATEGORY = (schema.PhaseKind.user.name, schema.PhaseKind.mark.name)
"""A range that the program named says nothing about what runs in it."""

_NOTHING = Intervals.of([], [])

WAKE_NS = 1_000_000
"""A thread without operators whose collective completes this shortly before its next operator was
waiting for it: a wait for the result of an asynchronous call leaves no span of its own."""

_MIN_GAP_NS = 1_000_000
"""Less between two operators of backward is autograd's own time."""


def step_time(run: Run) -> pd.DataFrame:
    """Returns one row per rank and step, by both: rank, step, start_ns, duration_ns, and
    `<category>_ns` for each of CATEGORIES. All are int64 ns, start_ns from the start of the run;
    the categories of a row add up to its duration_ns."""
    return _step_time(run).copy()


@computed_once(maxsize=4)  # a page of many ranks asks for it again with each choice
def _step_time(run: Run) -> pd.DataFrame:
    return pd.concat([rank_step_time(run, rank) for rank in run.ranks], ignore_index=True)


@lru_cache(maxsize=256)
def rank_step_time(run: Run, rank: int) -> pd.DataFrame:
    """Returns the rows of `step_time` of a rank. Callers must not change it."""
    steps = run.steps(rank)
    parts = categories(run, rank) if len(steps) else {}
    spent = {name: parts.get(name, _NOTHING) for name in CATEGORIES}
    return pd.DataFrame(
        {
            "rank": rank,
            "step": steps.index,
            "start_ns": steps.start_ns,
            "duration_ns": steps.end_ns - steps.start_ns,
            **{
                f"{name}_ns": found.covered(steps.end_ns) - found.covered(steps.start_ns)
                for name, found in spent.items()
            },
        }
    )


@lru_cache(maxsize=64)
def categories(run: Run, rank: int) -> dict[str, Intervals]:
    """Returns disjoint sets of instants that cover all steps of a rank."""
    rest = Intervals.of(run.steps(rank).start_ns, run.steps(rank).end_ns)
    claims = _device_claims(run, rank) if talks_on_device(run, rank) else _thread_claims(run, rank)
    found: dict[str, Intervals] = {}
    for name, claim in claims:
        mine = rest.intersection(claim)
        found[name] = found[name].union(mine) if name in found else mine
        rest = rest.subtraction(mine)
    found["host_bound" if talks_on_device(run, rank) else between_operators(run, rank)] = rest
    return found


def between_operators(run: Run, rank: int) -> str:
    """Returns the category of time in which a rank's training thread runs nothing that was
    recorded.

    A slice of Chrome's trace format may be any work of any worker, so gaps between slices are idle.
    """
    pid = training_thread(run, rank).pid
    engines = {
        one["engine"]
        for one in run.manifest["processes"]
        if (one["rank"], one["pid"]) == (rank, pid)
    }
    return "idle" if engines == {ANY_TOOL} else "python"


def _thread_claims(run: Run, rank: int) -> list[tuple[str, Intervals]]:
    """Categories of a rank that computes on the host, in the order in which they claim."""
    thread = training_thread(run, rank)
    phases = phases_of(run, thread)
    work, called = _work_and_calls(run, thread)
    pending, transfer = _collectives(run, rank)
    waits = collective_waits(run, rank)
    blocked = called.union(Intervals.of(waits["start_ns"], waits["end_ns"]))
    exposed = pending.union(called).intersection(blocked).subtraction(work)
    arrived = transfer.union(exposed.subtraction(pending))
    stages = pipeline_waits(run, rank)
    return [
        ("exposed_communication", exposed.intersection(arrived)),
        ("waiting_for_ranks", exposed.union(Intervals.of(stages["start_ns"], stages["woken_ns"]))),
        ("data_loading", phases.get(_DATA, _NOTHING)),
        ("waiting_for_threads", _waits(run, thread).subtraction(work)),
        *((name, phases[name].intersection(work)) for name in PHASE_CATEGORIES if name in phases),
        ("other", work),
    ]


def pipeline_waits(run: Run, rank: int) -> pd.DataFrame:
    """Returns `pipeline.stage_waits` of a rank; no rows in runs that record threads of Python."""
    if between_operators(run, rank) != "idle":
        return pd.DataFrame(columns=pipeline.PIPELINE_COLUMNS, dtype="int64")
    lanes = tuple((one, training_thread(run, one).thread) for one in run.ranks)
    return pipeline.stage_waits(run, lanes)[rank]


@lru_cache(maxsize=256)
def _work_and_calls(run: Run, thread: Thread) -> tuple[Intervals, Intervals]:
    """When operators compute for the training thread, and when it is in calls of collectives."""
    work, talk = operators(run, thread.rank, thread.thread)
    for helper in autograd_threads(run, thread):
        work = work.union(operators(run, thread.rank, helper.thread)[0])
    mine = rank_calls(run, thread.rank)
    called = in_calls(mine[mine["thread"] == thread.thread], run.duration_ns).union(talk)
    return work.subtraction(called), called


@lru_cache(maxsize=64)
def collective_waits(run: Run, rank: int) -> pd.DataFrame:
    """Returns when the training thread, without an operator, waits for a collective that was called
    before.

    Columns start_ns, end_ns, call (label of the row of `calls`). A gap ends the wait where a
    collective completes within it: in backward, where no Python runs, anywhere; elsewhere only just
    before the next operator. A long gap of backward with a collective under way is a wait as well:
    its completion may be noted late, by a thread that had no processor. Callers must not change it.
    """
    thread = training_thread(run, rank)
    work, called = _work_and_calls(run, thread)
    frame = rank_calls(run, rank)
    gaps = Intervals.of([0], [run.duration_ns]).subtraction(work.union(called))
    if frame.empty or not len(gaps):
        return pd.DataFrame({"start_ns": [], "end_ns": [], "call": []}, dtype="int64")
    begun, done = frame["start_ns"].to_numpy(), _completed(frame, run.duration_ns)
    came = _last_arrivals(run)[frame.index]
    backward = phases_of(run, thread).get(schema.PhaseKind.backward.name, _NOTHING)
    in_backward = backward.covered(gaps.start + 1) > backward.covered(gaps.start)
    # A completion is noted by another thread, a little before or after the waiting one goes on.
    gap = np.maximum(np.searchsorted(gaps.start, done) - 1, 0)
    until = np.minimum(done, gaps.end[gap])
    ended = (done - gaps.end[gap] <= WAKE_NS) & (begun <= gaps.start[gap])
    ended &= in_backward[gap] | (gaps.end[gap] - until <= WAKE_NS)
    rows = {
        int(g): (int(end), int(i))
        for g, end, i in sorted(zip(gap[ended], until[ended], np.flatnonzero(ended), strict=True))
    }
    for g in np.flatnonzero(in_backward & (gaps.end - gaps.start >= _MIN_GAP_NS)).tolist():
        low, high = gaps.start[g], gaps.end[g]
        if high - rows.get(g, (low, 0))[0] >= _MIN_GAP_NS:
            pending = np.flatnonzero((begun <= low) & (done > high) & (came <= high))
            if len(pending):
                rows[g] = int(high), int(pending[np.argmax(came[pending])])
    chosen = np.array(sorted(rows), np.int64)
    ends, which = np.array([rows[g] for g in chosen.tolist()], np.int64).reshape(-1, 2).T
    return pd.DataFrame(
        {
            "start_ns": gaps.start[chosen],
            "end_ns": ends,
            "call": frame.index.to_numpy()[which],
        }
    )


@lru_cache(maxsize=256)
def training_thread(run: Run, rank: int) -> Thread:
    """Returns the thread whose optimizer ends the steps of a rank; without optimizer phases the one
    with the most steps in its phases, else the first."""
    threads = {one.thread: one for one in run.threads_of(rank) if one.role == "rank"}
    if not threads:
        threads = {one.thread: one for one in run.threads_of(rank)}
    first = next(iter(threads.values()))
    phases = run.events("phase", rank, columns=["thread", "kind", "step"])
    phases = phases.filter(pa.array(having(phases["thread"], threads.__contains__)))
    closing = phases.filter(
        pa.array(having(phases["kind"], schema.PhaseKind.optimizer.name.__eq__))
    )
    chosen = (closing if len(closing) else phases).group_by("thread", use_threads=False)
    counts = chosen.aggregate([("step", "count_distinct")])
    if not len(counts):
        return first
    return threads[counts["thread"][int(np.argmax(counts["step_count_distinct"]))].as_py()]


def autograd_threads(run: Run, training: Thread) -> list[Thread]:
    """Returns threads of the training process that Python did not start: autograd's are among
    them."""
    native = schema.ThreadKind.native.name
    return [
        one
        for one in run.threads
        if (one.rank, one.pid, one.kind) == (training.rank, training.pid, native)
        and one.thread != training.thread
    ]


@lru_cache(maxsize=256)
def phases_of(run: Run, thread: Thread) -> Mapping[str, Intervals]:
    """Returns when a thread is in a phase of each kind; of nested phases the innermost counts."""
    columns = ["start_ns", "duration_ns", "kind", "depth"]
    rows = run.events("phase", thread.rank, thread.thread, columns)
    rows = rows.append_column("end_ns", [ends_ns(rows, run)]).to_pandas()
    rows = rows[~rows["kind"].isin(_NO_CATEGORY)]
    found: dict[str, Intervals] = {}
    for _, level in rows.groupby("depth"):
        inner = Intervals.of(level["start_ns"], level["end_ns"])
        found = {kind: outer.subtraction(inner) for kind, outer in found.items()}
        for kind, same in level.groupby("kind", observed=True):
            spans = Intervals.of(same["start_ns"], same["end_ns"])
            found[str(kind)] = found.get(str(kind), _NOTHING).union(spans)
    return found


def _collectives(run: Run, rank: int) -> tuple[Intervals, Intervals]:
    """When a rank has collectives that are not complete, and when some of these have all their
    ranks, or may have: who arrived last is known of calls in `arrivals` only."""
    frame = rank_calls(run, rank)
    start, arrived = frame["start_ns"].to_numpy(), _last_arrivals(run)[frame.index]
    end = _completed(frame, run.duration_ns)
    return Intervals.of(start, end), Intervals.of(np.maximum(start, arrived), end)


@computed_once(maxsize=4)
def _last_arrivals(run: Run) -> Int64Array:
    """When the last rank came to each of `calls`; where that is not known, its own start. Of a send
    or receive, when the partner came."""
    frame = calls(run)
    own: Int64Array = frame["start_ns"].to_numpy()
    if not run.clock_calibrated:
        return own
    came = arrivals(run)[[*COLLECTIVE_KEYS, "last_ns"]]
    merged = frame[COLLECTIVE_KEYS].merge(came, on=COLLECTIVE_KEYS, how="left")
    last = merged["last_ns"].to_numpy(float)
    paired = frame["name"].isin(PAIRED).to_numpy()
    partner = partners(run)["partner_ns"].reindex(frame.index).to_numpy(float)
    last = np.where(paired, np.maximum(partner, own), last)
    found: Int64Array = np.where(np.isnan(last), own, np.nan_to_num(last)).astype(np.int64)
    return found


def _completed(frame: pd.DataFrame, run_end: int) -> Int64Array:
    """When each call of `frame` was complete; one that never was, at the end of the run."""
    end = np.where(frame["done_ns"] >= 0, frame["done_ns"], frame["returned_ns"])
    found: Int64Array = np.where(end >= 0, end, run_end)
    return found


def _waits(run: Run, thread: Thread) -> Intervals:
    rows = thread_waits(run, thread.rank, thread.thread)
    return Intervals.of(rows["start_ns"], rows["end_ns"])


@dataclass(frozen=True)
class _Kernels:
    """All activities of a rank's device: int64 ns from the start of the run, by start."""

    start: Int64Array
    end: Int64Array
    launched: Int64Array  # -1: not known


def _device_claims(run: Run, rank: int) -> list[tuple[str, Intervals]]:
    """Categories of a rank that computes and communicates on a device."""
    device = device_time(run, rank)
    assert device is not None
    thread = training_thread(run, rank)
    phases = phases_of(run, thread)
    exposed = device.communication.subtraction(device.compute)
    pending, transfer = _collectives(run, rank)
    arrived = transfer.union(exposed.subtraction(pending))
    kernels = _kernels(run, rank)
    by_phase = _compute_by_phase(kernels, phases, device)
    return [
        *by_phase,
        ("compute", device.compute),
        ("exposed_communication", exposed.intersection(arrived)),
        ("waiting_for_ranks", exposed),
        ("copy", device.every),
        ("launch", _launched_gaps(kernels, device.every)),
        ("data_loading", phases.get(_DATA, _NOTHING)),
    ]


def _kernels(run: Run, rank: int) -> _Kernels:
    kernel = schema.OpScope.kernel.name
    columns = ["start_ns", "duration_ns", "scope", "launch_ns"]
    parts: list[tuple[Int64Array, Int64Array, Int64Array]] = []
    for piece in run.pieces("op", rank, columns=columns):
        chosen = having(piece["scope"], kernel.__eq__)
        start = piece["start_ns"].to_numpy()[chosen]
        launched = piece["launch_ns"].fill_null(-1).to_numpy()[chosen]
        parts.append((start, ends_ns(piece, run)[chosen], launched))
    start, end, launched = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(start, kind="stable")
    return _Kernels(start[order], end[order], launched[order])


def _compute_by_phase(
    kernels: _Kernels, phases: Mapping[str, Intervals], device: DeviceTime
) -> list[tuple[str, Intervals]]:
    """Computation by the phase of the training thread in which it was launched."""
    found = []
    for name in PHASE_CATEGORIES:
        spans = phases.get(name, _NOTHING)
        inside = spans.covered(kernels.launched + 1) > spans.covered(kernels.launched)
        mine = Intervals.of(kernels.start[inside], kernels.end[inside])
        found.append((name, mine.intersection(device.compute)))
    return found


def _launched_gaps(kernels: _Kernels, busy: Intervals) -> Intervals:
    """When nothing runs although the kernel that runs next has been launched."""
    gaps_start, gaps_end = busy.end[:-1], busy.start[1:]
    following = np.searchsorted(kernels.start, gaps_end, side="left")
    launched = kernels.launched[following]
    begins = np.where(launched >= 0, np.maximum(launched, gaps_start), gaps_end)
    return union([Intervals.of(begins, gaps_end)])


@computed_once(maxsize=4)
def mean_steps(run: Run) -> pd.DataFrame:
    """Returns one row per step, by step: the columns of `step_time` without rank, each the mean
    over the ranks that have the step, so they still add up. Callers must not change it."""
    return step_time(run).drop(columns="rank").groupby("step", sort=True).mean().reset_index()
