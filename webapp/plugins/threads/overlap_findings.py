"""Do threads of a rank run backward at the same time for more than the limit allows?

It exceeds a limit, which is no proof of harm yet: whether they share gradients is told by
`concurrent_backwards`, and of tensors by `race_findings`.
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from lanescope.webapp.analysis.findings import Finding, Unanswered
from lanescope.webapp.analysis.links import timeline_address
from lanescope.webapp.analysis.plugin import metric
from lanescope.webapp.plugins.threads.overlap import Region, overlap, overlap_rate, overlap_regions
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.run_warnings import ranks_named

PAIRS = 10  # in the evidence, those with the highest rates


class OverlapEvidence(TypedDict):
    """Threads in backward at the same time: a higher limit in the settings lets it pass."""

    rate: float


def overlapping_backwards(run: Run) -> list[Finding]:
    """One finding of kind `overlap` where `overlap_rate` is at the default limit or above it.

    Raises Unanswered where no thread was in backward.
    """
    rate, limit = overlap_rate(run), metric("thread_overlap_rate").limit
    if rate is None:
        raise Unanswered("no thread was in backward")
    if rate < limit:
        return []
    regions = overlap_regions(run)
    longest = regions[0]
    names = {t.thread: t.name for t in run.threads if t.rank == longest.rank}
    ranks = tuple(sorted({region.rank for region in regions}))
    pairs = overlap(run)
    pairs = pairs[pairs["overlap_ns"] > 0].head(PAIRS)
    length = longest.end_ns - longest.start_ns
    who = " and ".join(dict.fromkeys(names[thread] for thread in longest.threads[:3]))
    return [
        Finding(
            kind="overlap",
            severity="error",  # as the check is that it exceeds
            title=f"threads run backward at the same time for {units.share(rate)} of the time in "
            f"backward, on {ranks_named(ranks)}; the longest: {who}, {units.duration(length)}",
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
                "pairs": pairs[["rank", "a", "b", "rate", "overlap_ns"]].to_dict("records"),
            },
            link=timeline_address(longest.start_ns, longest.end_ns, run.duration_ns)
            + "&overlaps=1",
        )
    ]


def _step(run: Run, region: Region) -> int | None:
    steps = run.steps(region.rank)
    at = int(np.searchsorted(steps.start_ns, region.start_ns, "right")) - 1
    inside = at >= 0 and region.start_ns < steps.end_ns[at]
    return int(steps.index[at]) if inside else None
