"""Finds training that waits for its data in each step.

A data stall is the time of a step in which the training thread fetches a batch, the category
`data_loading` of the breakdown: "Analyzing and Mitigating Data Stalls in DNN Training" (Mohan et
al., VLDB 2021) calls the part that workers cannot hide a fetch or prep stall.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lanescope.collector.format import schema
from lanescope.collector.format.names import LOADER_WORKER
from lanescope.webapp.analysis.arrow_columns import texts_of
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.findings import Finding, NotApplicable, NotRecorded
from lanescope.webapp.analysis.links import at_place, step_link
from lanescope.webapp.analysis.stack_frames import phase_place
from lanescope.webapp.plugins.collectives.devices import talks_on_device
from lanescope.webapp.plugins.collectives.slow_places import sampled_line
from lanescope.webapp.plugins.time.breakdown import phases_of, rank_step_time, training_thread
from lanescope.webapp.runs import units
from lanescope.webapp.runs.intervals import Intervals
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.threads import Thread

_MIN_STEPS, _MIN_REPEATED = 9, 4
_MIN_SHARE = 0.3
_MIN_STALL_NS = 5_000_000
"""Less per step is what small programs take to hand out a batch."""

_MIN_STARTS, _STARTS_EXPLAIN = 2, 0.5
"""Steps in which workers start, and their share of the waits: from there on it is these starts that
training waits for."""

_DATA = schema.PhaseKind.data.name


@dataclass(frozen=True)
class _Stalls:
    """How the steps of a rank but the first, which also starts workers, wait for data.

    Means, as of several workers each brings a batch at once, and every so many steps wait.
    """

    steps: int
    stall_ns: float
    share: float  # of the steps' time
    long: int  # steps that wait for `_MIN_STALL_NS` or more
    longest: int  # number of the step that waits longest
    starts: int  # steps in which workers start
    starting: float  # share of the waits that is in these

    @property
    def matter(self) -> bool:
        """Whether they are long, and more than a busy machine makes by chance."""
        repeated = self.long >= max(_MIN_REPEATED, self.steps // 20)
        much = self.share >= _MIN_SHARE and self.stall_ns >= _MIN_STALL_NS
        return self.steps >= _MIN_STEPS and repeated and much


def data_stalls(run: Run) -> list[Finding]:
    """Returns findings of kind `data_stall`, at most one. Raises NotApplicable."""
    if _DATA not in texts_of(run, "phase", "kind"):
        raise NotApplicable("no DataLoader is iterated")
    found = {rank: _stalls(run, rank) for rank in run.ranks}
    if all(one.steps < _MIN_STEPS for one in found.values()):
        raise NotRecorded(f"record {_MIN_STEPS + 1} steps of training")
    stalled = {rank: one for rank, one in found.items() if one.matter}
    return [_finding(run, stalled)] if stalled else []


@per_rank
def _stalls(run: Run, rank: int) -> _Stalls:
    steps = run.steps(rank)
    data = phases_of(run, training_thread(run, rank)).get(_DATA, Intervals.of([], []))
    length = steps.end_ns - steps.start_ns
    stall = data.covered(steps.end_ns) - data.covered(steps.start_ns)
    if talks_on_device(run, rank):  # a stall that it hides does not count
        stall = rank_step_time(run, rank)["data_loading_ns"].to_numpy()
    used = np.flatnonzero(length > 0)[1:]
    if not len(used):
        return _Stalls(0, 0.0, 0.0, 0, -1, 0, 0.0)
    stall, total = stall[used], int(length[used].sum())
    longest = int(steps.index[used[np.argmax(stall)]])
    long = int((stall >= _MIN_STALL_NS).sum())
    started = np.sort([one.start_ns for one in _workers(run, rank)])
    ends = np.searchsorted(started, steps.end_ns[used])
    starts = ends > np.searchsorted(started, steps.start_ns[used])
    starting = float(stall[starts].sum() / max(stall.sum(), 1))
    share = float(stall.sum()) / total
    return _Stalls(
        len(used), float(stall.mean()), share, long, longest, int(starts.sum()), starting
    )


def _workers(run: Run, rank: int) -> list[Thread]:
    return [one for one in run.threads_of(rank) if one.name.startswith(LOADER_WORKER)]


def _finding(run: Run, stalled: dict[int, _Stalls]) -> Finding:
    ranks = tuple(stalled)
    worst = max(ranks, key=lambda rank: stalled[rank].share)
    found = stalled[worst]
    training = training_thread(run, worst)
    fetches = phases_of(run, training)[_DATA]
    where = phase_place(run, worst, _DATA, None) or sampled_line(
        run, worst, training.thread, fetches
    )
    workers = len({one.name for one in _workers(run, worst)})
    who = "Training" if len(run.ranks) == 1 else units.sentence(ranks_in(run, ranks))
    verb = "waits" if len(ranks) == 1 else "wait"
    advice = "No worker loads it during the step before: give the DataLoader num_workers"
    if found.starts >= _MIN_STARTS and found.starting >= _STARTS_EXPLAIN:
        advice = (
            f"Of that {units.share(found.starting)} is in the {units.count(found.starts)} steps in "
            "which workers start, as they do in each epoch: set persistent_workers=True"
        )
    elif workers:
        advice = f"Its {units.counted(workers, 'worker')} cannot keep up: give the DataLoader more"
    return Finding(
        kind="data_stall",
        severity="info",
        title=f"{who} {verb} for data for {units.duration(found.stall_ns)} of a step "
        f"({units.share(found.share)}){at_place(where)}. "
        f"{advice}, or make a sample cheaper.",
        rank=worst if len(ranks) == 1 else None,
        ranks=ranks,
        step=found.longest,
        where=where,
        evidence={"share": found.share, "stall_ns": int(found.stall_ns), "workers": workers},
        link=step_link(run, worst, found.longest),
    )
