"""Reports threads that run backward at the same time.

Overlap is an error where the threads accumulate into the same gradients, or where it was not
recorded what they write. Where they were seen to share no gradient it is information: such
programs give the same results in any order.
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np
import pyarrow as pa

from lanescope.collector.format.names import ADDED_NORM_OF
from lanescope.webapp.analysis.arrow_columns import having
from lanescope.webapp.analysis.findings import Finding, NotRecorded
from lanescope.webapp.analysis.links import timeline_address
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.plugin import metric
from lanescope.webapp.plugins.threads.concurrent_backward import (
    backward_races,
    gradients_added_twice,
)
from lanescope.webapp.plugins.threads.overlap import (
    Region,
    overlap,
    overlap_rate,
    overlap_regions,
)
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run

_PAIRS = 10
"""Pairs of threads in the evidence, those with the highest rates."""

_ADDS = "AccumulateGrad"  # the node that adds to a parameter's gradient; autograd.grad() has none


class OverlapEvidence(TypedDict):
    """Threads in backward at the same time: a higher limit in the settings lets it pass."""

    rate: float


def overlapping_backwards(run: Run) -> list[Finding]:
    """Returns one finding of kind `overlap` where `overlap_rate` is at the default limit or above
    it.

    Raises NotApplicable where no thread was in backward.
    """
    rate, limit = overlap_rate(run), metric("thread_overlap_rate").limit
    if rate is None:
        raise NotRecorded("record a training step: no thread was in backward")
    if rate < limit:
        return []
    regions = overlap_regions(run)
    longest = regions[0]
    names = {t.thread: t.name for t in run.threads_of(longest.rank)}
    ranks = tuple(sorted({region.rank for region in regions}))
    pairs = overlap(run)
    pairs = pairs[pairs["overlap_ns"] > 0].head(_PAIRS)
    length = longest.end_ns - longest.start_ns
    who = " and ".join(dict.fromkeys(names[thread] for thread in longest.threads[:3]))
    shared = shared_gradients(run)
    harmless = shared == 0
    if harmless:
        advice = "They share no gradient, so their order changes none."
    else:
        advice = "Let one backward end before the next begins if the threads share parameters."
    return [
        Finding(
            kind="overlap",
            severity="info" if harmless else "error",
            title=f"Threads run backward at the same time for {units.share(rate)} of the time in "
            f"backward, on {ranks_in(run, ranks)}; the longest overlap is of {who}, "
            f"{units.duration(length)}. {advice}",
            rank=longest.rank,
            ranks=ranks,
            thread=longest.threads[0],
            step=_step(run, longest),
            time_ns=longest.start_ns,
            evidence={
                "rate": rate,
                "limit": limit,
                "regions": len(regions),
                "longest_ns": length,
                "shared_gradients": shared,
                "threads": list(longest.threads),
                "pairs": pairs[["rank", "a", "b", "rate", "overlap_ns"]].to_dict("records"),
            },
            link=timeline_address(longest.start_ns, longest.end_ns, run.duration_ns)
            + "&overlaps=1",
        )
    ]


def shared_gradients(run: Run) -> int | None:
    """Counts gradients that two threads' passes add to in no fixed order; None: not recorded."""
    if run.imported or not run.counts["op"]:
        return None
    if not run.counts["access"]:
        return _added_by_several(run)
    racing = {tensor for race in backward_races(run) for tensor in race.tensors}
    return len(racing) + gradients_added_twice(run)


def _added_by_several(run: Run) -> int | None:
    """Counts layers that several threads add gradients to, by the norms of what each added."""
    rows = logged(run, None, prefix=ADDED_NORM_OF)
    shared = 0
    for rank in run.ranks:
        own, ops = rows[rows["rank"] == rank], run.events("op", rank, columns=["name", "thread"])
        adds = ops.filter(pa.array(having(ops["name"], lambda name: name.endswith(_ADDS))))
        nodes = having(ops["name"], lambda name: "Backward" in name)
        if not nodes.any() or not set(adds["thread"].to_pylist()) <= set(own["thread"]):
            return None  # autograd's nodes were not recorded, or not what they added
        shared += int((own.groupby("name", observed=True)["thread"].nunique() > 1).sum())
    return shared


def _step(run: Run, region: Region) -> int | None:
    steps = run.steps(region.rank)
    at = int(np.searchsorted(steps.start_ns, region.start_ns, "right")) - 1
    inside = at >= 0 and region.start_ns < steps.end_ns[at]
    return int(steps.index[at]) if inside else None
