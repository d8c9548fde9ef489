"""The figure of the first page about threads: how long two of them are in backward at once."""

from __future__ import annotations

import numpy as np

from lanescope.webapp.analysis.headlines import Headline
from lanescope.webapp.plugins.threads.overlap import overlap_rate, phase_lanes
from lanescope.webapp.plugins.threads.overlap_findings import shared_gradients
from lanescope.webapp.runs import units
from lanescope.webapp.runs.intervals import at_least
from lanescope.webapp.runs.run import Run


def backward_overlap(run: Run, limit: float) -> Headline | None:
    """Returns the overlap rate of backward, by step: red at `limit` or above it, unless the threads
    share no gradient. None with at most one thread per rank in it."""
    rate = overlap_rate(run)
    if rate is None or all(len(phase_lanes(run, rank)) < 2 for rank in run.ranks):
        return None
    one: dict[int, int] = {}
    several: dict[int, int] = {}
    for rank in run.ranks:
        steps = run.steps(rank)
        lanes = list(phase_lanes(run, rank).values())
        for count, found in ((1, one), (2, several)):
            times = at_least(lanes, count)
            spent = times.covered(steps.end_ns) - times.covered(steps.start_ns)
            for step, length in zip(steps.index.tolist(), spent.tolist(), strict=True):
                found[step] = found.get(step, 0) + length
    course = [several[step] / one[step] if one[step] else np.nan for step in sorted(one)]
    note = f"limit {units.share(limit)}"
    if rate < limit:
        return Headline(units.share_cell(rate), note, course, "good")
    if shared_gradients(run) == 0:
        return Headline(units.share_cell(rate), f"{note}, harmless here", course)
    return Headline(units.share_cell(rate), note, course, "bad")
