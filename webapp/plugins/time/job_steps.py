"""The steps of the job: from the end of the step before, on the last rank, to its own end."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from lanescope.webapp.analysis.findings import NotApplicable
from lanescope.webapp.runs.run import Run


@dataclass(frozen=True)
class JobStep:
    """A step of the job, ns from the start of the run, and the rank that ends it last."""

    step: int
    start_ns: int
    end_ns: int
    last_rank: int


@lru_cache(maxsize=4)
def job_steps(run: Run) -> tuple[JobStep, ...]:
    """Returns the steps of the job, one after another without gaps but for steps that were not
    recorded."""
    ends: dict[int, tuple[int, int]] = {}
    starts: dict[int, int] = {}
    for rank in run.ranks:
        steps = run.steps(rank)
        for step, start, end in zip(
            steps.index.tolist(), steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True
        ):
            ends[step] = max(ends.get(step, (end, rank)), (end, rank))
            starts[step] = min(starts.get(step, start), start)
    found = []
    for step in sorted(ends):
        end, rank = ends[step]
        start = ends[step - 1][0] if step - 1 in ends else starts[step]
        if start < end:
            found.append(JobStep(step, start, end, rank))
    return tuple(found)


def median_step(run: Run) -> int | None:
    """Returns the step of the job whose length is nearest to the median; None without any."""
    steps = job_steps(run)
    if not steps:
        return None
    length = np.array([one.end_ns - one.start_ns for one in steps])
    return steps[int(np.argmin(np.abs(length - np.median(length))))].step


def job_step(run: Run, step: int | None) -> JobStep:
    """Returns a step of the job, by default `median_step`. Raises NotApplicable without one."""
    chosen = median_step(run) if step is None else step
    found = next((one for one in job_steps(run) if one.step == chosen), None)
    if found is None:
        words = "no training step was recorded" if step is None else f"the run has no step {step}"
        raise NotApplicable(words)
    return found
