"""Finds gradients that the program scales by the number of ranks, though they are averages already.

DistributedDataParallel averages gradients in backward. Found where the program then divides them by
the number of ranks, or makes them as many times as large by a sum over ranks, in each sampled step,
and its line does not write that number.
"""

from __future__ import annotations

from lanescope.collector.format.loop_names import GRADIENT_FACTOR
from lanescope.webapp.analysis.findings import Finding, NotApplicable, finding_at
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_ranks
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.source_lines import writes_number
from lanescope.webapp.analysis.stack_frames import own_frames, place_of
from lanescope.webapp.plugins.data.undivided_gradients import by_sgd, scaling_stack, stretches
from lanescope.webapp.plugins.learning.divergence_causes import wrapped
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_STEPS = 3
"""Sampled steps."""

_SUMS = "allreduce"
"""Within the names of operators that sum over ranks."""

_PRECISION = 1e-3
"""Of the factor: norms of gradients of low precision are rounded."""


def divided_again(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_gradient`, at most one. Raises NotApplicable."""
    need_ranks(run)
    averaged = wrapped(run)
    if not any(ranks > 1 for ranks in averaged.values()):
        raise NotApplicable("no model is within DistributedDataParallel")
    factors = logged(run, None, GRADIENT_FACTOR)
    for rank, ranks in averaged.items():
        own = factors[factors["rank"] == rank]
        if ranks < 2 or own["step"].nunique() < _MIN_STEPS:
            continue
        for factor in (1 / ranks, float(ranks)):
            if ((own["value"] / factor - 1).abs() < _PRECISION).all():
                found = _finding(run, rank, ranks, factor, int(own["step"].min()))
                return [] if found is None else [found]
    return []


def _finding(run: Run, rank: int, ranks: int, factor: float, step: int) -> Finding | None:
    window, small = stretches(run, rank).get(step), factor < 1
    names = () if small else (_SUMS,)
    stack = None if window is None else scaling_stack(run, rank, window, *names)
    frames = own_frames(run, rank, stack)
    if frames and writes_number(run, rank, frames[0], (ranks, 1 / ranks)):
        return None
    where = place_of(frames[0]) if frames else None
    done, wrong = ("divided", "small") if small else ("multiplied", "large")
    return finding_at(
        run,
        rank,
        step,
        kind="wrong_gradient",
        # The steps of others, as of Adam, do not depend on the scale of gradients.
        severity="warning" if by_sgd(run, rank) else "info",
        confidence="likely",
        title=f"Gradients are {done} by {ranks}, the number of ranks{at_place(where)}, between "
        "backward and the optimizer's step. DistributedDataParallel has averaged them over the "
        f"{units.count(ranks)} ranks in backward already, so they are {ranks} times too {wrong}. "
        "Leave this out.",
        ranks=tuple(run.ranks),
        where=where,
        evidence={"cause": "averaged_again", "factor": factor, "ranks": ranks},
    )
