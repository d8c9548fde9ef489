"""Finds training that waits for its data in each step.

A data stall is the time of a step in which the training thread fetches a batch, the category
`data_loading` of the breakdown: "Analyzing and Mitigating Data Stalls in DNN Training" (Mohan et
al., VLDB 2021) calls the part that workers cannot hide a fetch or prep stall.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import texts_of
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.findings import Finding, NotApplicable
from lanescope.webapp.analysis.links import step_link
from lanescope.webapp.analysis.stack_frames import phase_place
from lanescope.webapp.plugins.collectives.devices import talks_on_device
from lanescope.webapp.plugins.time.breakdown import phases_of, rank_step_time, training_thread
from lanescope.webapp.runs import units
from lanescope.webapp.runs.intervals import Intervals
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run

_MIN_STEPS, _MIN_REPEATED = 9, 4
_MIN_SHARE = 0.3
_MIN_STALL_NS = 5_000_000
"""Less per step is what small programs take to hand out a batch."""

_DATA = schema.PhaseKind.data.name
_WORKER = "loader worker "


def data_stalls(run: Run) -> list[Finding]:
    """Returns findings of kind `data_stall`, at most one. Raises NotApplicable."""
    if _DATA not in texts_of(run, "phase", "kind"):
        raise NotApplicable("record an iteration over a DataLoader")
    found = {rank: _stalls(run, rank) for rank in run.ranks}
    if all(len(stalls) < _MIN_STEPS for stalls in found.values()):
        raise NotApplicable(f"record {_MIN_STEPS + 1} steps of training")
    # The mean: of several workers each brings a batch at once, and every so many steps wait.
    usual = pd.DataFrame({rank: one.mean() for rank, one in found.items()}).T
    usual["share"] = usual["stall_ns"] / usual["duration_ns"]
    enough = np.array([len(one) >= _MIN_STEPS and _repeats(one) for one in found.values()])
    much = (usual["share"] >= _MIN_SHARE) & (usual["stall_ns"] >= _MIN_STALL_NS)
    stalled = usual[enough & much]
    return [_finding(run, stalled, found)] if len(stalled) else []


@per_rank
def _stalls(run: Run, rank: int) -> pd.DataFrame:
    """stall_ns and duration_ns of each step of a rank but the first, which also starts workers."""
    steps = run.steps(rank)
    data = phases_of(run, training_thread(run, rank)).get(_DATA, Intervals.of([], []))
    length = steps.end_ns - steps.start_ns
    stall = data.covered(steps.end_ns) - data.covered(steps.start_ns)
    if talks_on_device(run, rank):  # what it does meanwhile is no stall
        stall = rank_step_time(run, rank)["data_loading_ns"].to_numpy()
    found = pd.DataFrame({"stall_ns": stall, "duration_ns": length, "step": steps.index}).iloc[1:]
    return found[found["duration_ns"] > 0]


def _repeats(stalls: pd.DataFrame) -> bool:
    """Whether more than a few steps had to wait, which chance makes on a busy machine."""
    long = (stalls["stall_ns"] >= _MIN_STALL_NS).sum()
    return bool(long >= max(_MIN_REPEATED, len(stalls) // 20))


def _finding(run: Run, stalled: pd.DataFrame, found: dict[int, pd.DataFrame]) -> Finding:
    ranks = tuple(int(str(rank)) for rank in stalled.index)
    worst = int(str(stalled["share"].idxmax()))
    stall, share = stalled.loc[worst, ["stall_ns", "share"]]
    step = int(found[worst].loc[found[worst]["stall_ns"].idxmax(), "step"])
    where = phase_place(run, worst, _DATA, None)
    workers = len({one.name for one in run.threads_of(worst) if one.name.startswith(_WORKER)})
    who = "Training" if len(run.ranks) == 1 else units.sentence(ranks_in(run, ranks))
    verb = "waits" if len(ranks) == 1 else "wait"
    known = f"Its {units.counted(workers, 'worker')} cannot keep up: give the DataLoader more"
    none = "No worker loads it during the step before: give the DataLoader num_workers"
    return Finding(
        kind="data_stall",
        severity="info",
        title=f"{who} {verb} for data for {units.duration(stall)} of a step "
        f"({units.share(share)}){f' at {where}' if where else ''}. "
        f"{known if workers else none}, or make a sample cheaper.",
        rank=worst if len(ranks) == 1 else None,
        ranks=ranks,
        step=step,
        where=where,
        evidence={"share": float(share), "stall_ns": int(stall), "workers": workers},
        link=step_link(run, worst, step),
    )
