"""Where the timeline shows a training step."""

from __future__ import annotations

from lanescope.webapp.analysis.links import timeline_address
from lanescope.webapp.runs.run import Run


def step_bounds(run: Run, rank: int, step: int) -> tuple[int, int] | None:
    """[start, end) of a step of a rank, ns from the start of the run; None: it has no such step."""
    steps = run.steps(rank)
    for index, low, high in zip(steps.index, steps.start_ns, steps.end_ns, strict=True):
        if index == step:
            return int(low), int(high)
    return None


def step_link(run: Run, rank: int, step: int) -> str:
    """Address of a step of a rank; of the whole timeline where the run does not hold the step."""
    bounds = step_bounds(run, rank, step)
    return "/timeline" if bounds is None else timeline_address(*bounds, run.duration_ns)
