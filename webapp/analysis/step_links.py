"""Where the timeline shows a training step."""

from __future__ import annotations

from lanescope.webapp.analysis.links import timeline_address
from lanescope.webapp.run import Run


def step_link(run: Run, rank: int, step: int) -> str:
    """Address of a step of a rank; of the whole timeline where the run does not hold the step."""
    steps = run.steps(rank)
    for index, low, high in zip(steps.index, steps.start_ns, steps.end_ns, strict=True):
        if index == step:
            return timeline_address(int(low), int(high), run.duration_ns)
    return "/timeline"
