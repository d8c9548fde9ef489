"""Measures how much communication overlaps with computation, and how much is exposed.

Per rank, over the whole run or within each of its steps,

    communication = union of its collectives, each from its call to its completion
    computation   = union over threads of its ops, without the time in which the same thread is in
                    a communication op or call
    overlap       = |computation & communication| / |communication|
    exposed       = |communication - computation|
    idle          = |window - (computation | communication)|

`overlap` is what Holistic Trace Analysis calls communication computation overlap
(https://hta.readthedocs.io, "Communication Computation Overlap"). There both are GPU kernels, and
so they are here where a rank communicates by kernels on a device of its own (`devices`): then
nothing of the host counts. Elsewhere threads of the host count where they compute.
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.names import COMMUNICATION_KERNEL
from lanescope.webapp.analysis.arrow_columns import ends_ns, having
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.collective_calls import calls_alone
from lanescope.webapp.plugins.collectives.devices import device_time, talks_on_device
from lanescope.webapp.runs.intervals import Intervals, union
from lanescope.webapp.runs.run import Run

_TALK = re.compile(
    r"(?:c10d::|_c10d_functional|symm_mem::|gloo:|nccl:|record_param_comms)"
    rf"|.*(?:{COMMUNICATION_KERNEL.pattern})"
)
_NO_WORK = (schema.OpScope.user.name,)
"""Ranges that the program named do not count as computation; operators in them do."""


@lru_cache(maxsize=2048)  # several parts of a page ask it of every rank
def busy(run: Run, rank: int) -> tuple[Intervals, Intervals]:
    """Returns (computation, communication) of a rank, ns from the start of the run."""
    on_device = device_time(run, rank)
    if on_device is not None and talks_on_device(run, rank):
        return on_device.compute, on_device.communication
    frame = calls_alone(run, rank)
    end = np.where(frame["done_ns"] >= 0, frame["done_ns"], frame["returned_ns"])
    talk = Intervals.of(frame["start_ns"], np.where(end >= 0, end, run.duration_ns))
    computes = Intervals.of([], [])
    within = {
        str(thread): in_calls(own, run.duration_ns) for thread, own in frame.groupby("thread")
    }
    for thread in (one.thread for one in run.threads_of(rank)):
        work, talks = operators(run, rank, thread)
        blocked = talks.union(within[thread]) if thread in within else talks
        # One after another: together they have far fewer gaps than each has for itself.
        computes = computes.union(work.subtraction(blocked))
    return computes, talk


def operators(run: Run, rank: int, thread: str) -> tuple[Intervals, Intervals]:
    """Returns when a thread is in operators that compute, and when in those that communicate."""
    work, talk = [], []
    for ops in run.pieces("op", rank, thread, ["start_ns", "duration_ns", "name", "scope"]):
        start = ops["start_ns"].to_numpy()
        end = ends_ns(ops, run)
        talks = having(ops["name"], _TALK.match)
        works = ~(talks | having(ops["scope"], _NO_WORK.__contains__))
        work.append(Intervals.of(start[works], end[works]))
        talk.append(Intervals.of(start[talks], end[talks]))
    return union(work), union(talk)


def in_calls(frame: pd.DataFrame, run_end: int) -> Intervals:
    """Returns when a thread is within the calls of `frame`; one that never returned lasts to the
    end."""
    end = np.where(frame["returned_ns"] >= 0, frame["returned_ns"], run_end)
    return Intervals.of(frame["start_ns"], end)


def communication(run: Run) -> pd.DataFrame:
    """Returns one row per rank and step: rank, step, length_ns, communication_ns, computation_ns,
    overlap_ns, exposed_ns, idle_ns, overlap (NaN where nothing was communicated).
    """
    rows = []
    for rank in run.ranks:
        work, talk = busy(run, rank)
        steps = run.steps(rank)
        for step, start, end in zip(steps.index, steps.start_ns, steps.end_ns, strict=True):
            low, high = int(start), int(end)
            measured = _measured(work.clip(low, high), talk.clip(low, high), high - low)
            rows.append((rank, int(step), *measured))
    names = [
        "rank",
        "step",
        "length_ns",
        "communication_ns",
        "computation_ns",
        "overlap_ns",
        "exposed_ns",
        "idle_ns",
        "overlap",
    ]
    return pd.DataFrame(rows, columns=names).astype({"overlap": "float64"})


@per_rank
def comm_compute_overlap(run: Run, rank: int) -> float | None:
    """Returns the share of a rank's communication, over the whole run, in which it also computes.

    None where it never communicated.
    """
    work, talk = busy(run, rank)
    return work.intersection(talk).total / talk.total if len(talk) else None


def overlaps_by_rank(run: Run) -> dict[str, float | None]:
    """Returns `comm_compute_overlap` of each rank."""
    return {str(rank): comm_compute_overlap(run, rank) for rank in run.ranks}


def _measured(work: Intervals, talk: Intervals, length: int) -> tuple[float, ...]:
    both = work.intersection(talk).total
    share = both / talk.total if len(talk) else float("nan")
    idle = length - work.union(talk).total
    return length, talk.total, work.total, both, talk.total - both, idle, share
