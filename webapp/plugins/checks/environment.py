"""Was a run set up well? Finds settings in a recording that cost time.

The same questions that `lanescope doctor` asks of a machine, as far as a run answers them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import ends_ns, having, texts_of
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.collective_calls import collective_calls
from lanescope.webapp.analysis.findings import Finding, NotRecorded
from lanescope.webapp.analysis.links import timeline_address
from lanescope.webapp.analysis.stack_frames import phase_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.intervals import Intervals
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run

WAITING = 0.2
"""Share of a step spent waiting for data from which workers are advised."""

_MIN_WAIT_NS = 2_000_000_000
"""Least wait of a run. Waits in which workers start, once or in each epoch, do not count."""

_MIN_STEPS = 5

ACCUMULATES = re.compile("(^|::)AccumulateGrad$")
"""The autograd node that a parameter has in each backward that reaches it."""


class EnvironmentEvidence(TypedDict):
    """A setting, and what to set it to."""

    name: str
    set: str


def environment(run: Run) -> list[Finding]:
    """Returns findings of kind `environment`. Raises NotApplicable for a run without steps."""
    if not any(len(run.steps(rank)) for rank in run.ranks):
        raise NotRecorded("record a training step: the run has no steps")
    return [*_backend(run), *_unused_parameters(run), *_loading(run)]


def _backend(run: Run) -> list[Finding]:
    devices = run.events("gradient", columns=["device"])["device"].cast(pa.string())
    if not pc.any(pc.starts_with(devices, "cuda")).as_py():
        return []
    names = texts_of(run, "op", "name")
    # Beside NCCL, Gloo is for tensors of the processor: objects, barriers, checkpoints.
    if not any(one.startswith("gloo:") for one in names) or any(
        one.startswith("nccl:") for one in names
    ):
        return []
    return [
        _finding(
            run,
            "Parameters are on GPUs, but collectives run over Gloo, through the host's memory",
            'init_process_group("nccl")',
            "backend",
        )
    ]


def _unused_parameters(run: Run) -> list[Finding]:
    """DDP reduces a map of used parameters, int32, one element each, in every step."""
    rows = collective_calls(run)
    parameters = run.events("gradient", columns=["rank", "parameter"])
    found = []
    for rank in run.ranks[:1]:
        own = parameters.filter(pc.equal(parameters["rank"], rank))
        count = len(pc.unique(own["parameter"].cast(pa.string())))
        mine = rows[
            (rows["rank"] == rank)
            & (rows["name"] == "all_reduce")
            & (rows["dtypes"] == "int32")
            & (rows["shapes"] == f"[{count}]")
        ]
        unused = run.events("gradient", rank, columns=["norm"])["norm"].null_count
        # One that this rank did not use may have a gradient all the same, from others.
        ops = run.pieces("op", rank, columns=["name"]) if len(mine) else ()
        reached = sum(int(having(piece["name"], ACCUMULATES.search).sum()) for piece in ops)
        unused += reached < count * len(mine)
        steps = len(run.steps(rank))
        if count and steps >= _MIN_STEPS and mine["step"].nunique() >= steps // 2 and not unused:
            title = (
                "DDP looks for unused parameters in every step, and every parameter was used in "
                "every step"
            )
            setting = "DistributedDataParallel(find_unused_parameters=False)"
            start = int(mine["start_ns"].iloc[0])
            found.append(_finding(run, title, setting, "find_unused_parameters", start))
    return found


def _on_device(run: Run, rank: int) -> bool:
    """Whether a rank computed on anything else than its processor."""
    kinds = {device.partition(":")[0] for device in texts_of(run, "op", "device", rank)}
    return bool(kinds - {"", "cpu", "meta"})


@per_rank
def _waiting(run: Run, rank: int) -> tuple[float, int] | None:
    """Share of its steps that a rank waits for data, and the start of the longest wait; None: it
    does not wait long."""
    steps = run.steps(rank)
    whole = int((steps.end_ns - steps.start_ns).sum())
    process = next((p for p in run.manifest["processes"] if p["rank"] == rank), None)
    if len(steps) < _MIN_STEPS or not whole or process is None:
        return None
    main = next(t.thread for t in run.threads_of(rank))
    rows = run.events("phase", rank, main, ["start_ns", "duration_ns", "kind"])
    rows = rows.filter(pc.equal(rows["kind"].cast(pa.string()), schema.PhaseKind.data.name))
    waiting = Intervals.of(rows["start_ns"].to_numpy(), ends_ns(rows, run))
    waiting = waiting.clip(int(steps.start_ns[1]), int(steps.end_ns[-1]))
    begun = np.sort([one.start_ns for one in run.threads_of(rank) if one.role == "child"])
    starts = np.searchsorted(begun, waiting.end) > np.searchsorted(begun, waiting.start)
    waiting = Intervals.of(waiting.start[~starts], waiting.end[~starts])
    share = waiting.total / max(1, int(steps.end_ns[-1] - steps.start_ns[1]))
    if share < WAITING or waiting.total < _MIN_WAIT_NS:
        return None
    return share, int(waiting.start[int((waiting.end - waiting.start).argmax())])


def _at_once(processes: Sequence[schema.Process]) -> int:
    """How many processes ran at once, at most: each epoch may start its own workers."""
    starts = np.sort([p["start_ns"] for p in processes])
    ends = np.sort([p["end_ns"] for p in processes])
    begun = np.arange(1, len(starts) + 1)
    return int((begun - np.searchsorted(ends, starts, side="right")).max(initial=0))


def _loading(run: Run) -> list[Finding]:
    found = []
    for rank in run.ranks:
        waits = _waiting(run, rank)
        if waits is None:
            continue
        share, place = waits
        workers = _at_once(
            [p for p in run.manifest["processes"] if p["rank"] == rank and p["role"] == "child"]
        )
        more = "more of them" if workers else "num_workers above 0"
        title = (
            f"{units.sentence(ranks_in(run, (rank,)))} waits for data in "
            f"{units.share(share)} of its time, with {units.counted(workers, 'worker')}"
        )
        # Memory that is pinned speeds up copies to a device alone.
        pinned = "pin_memory, " if _on_device(run, rank) else ""
        setting = f"DataLoader: {more}, {pinned}persistent_workers"
        where = phase_place(run, rank, schema.PhaseKind.data.name, None)
        found.append(_finding(run, title, setting, "DataLoader workers", place, rank, where))
    return found


def _finding(
    run: Run,
    title: str,
    setting: str,
    name: str,
    start: int | None = None,
    rank: int | None = None,
    where: str | None = None,
) -> Finding:
    link = "/timeline" if start is None else timeline_address(start, start + 1, run.duration_ns)
    return Finding(
        kind="environment",
        severity="warning",
        confidence="likely",
        title=f"{title}. Set {setting}.",
        rank=rank,
        time_ns=start,
        where=where,
        evidence={"name": name, "set": setting},
        link=link,
    )
