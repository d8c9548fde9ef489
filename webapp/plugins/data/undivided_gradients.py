"""Finds gradients that replicas sum by hand and do not average: more ranks make larger steps.

Found where

- the loss is the mean over the batch of a rank, and nothing else,
- ranks of a group of replicas reduce half of the parameters' bytes or more by a sum, between the
  backward and the optimizer of each step,
- nothing is multiplied or divided there, and
- the optimizer is SGD, whose steps are as large as the gradients: those of Adam are not.

Information: some programs choose the learning rate for the sum.

And gradients that the program scales by the number of ranks, though DistributedDataParallel has
averaged them in backward: it divides them by that number, or makes them as many times as large by a
sum over ranks, in each sampled step, and its line does not write that number.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.collector.format.loop_names import GRADIENT_FACTOR, MEAN_LOSS
from lanescope.collector.format.names import SETTINGS
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_backward, need_ranks, need_wrapped
from lanescope.webapp.analysis.parameter_history import logged, wrapped
from lanescope.webapp.analysis.source_lines import writes_number
from lanescope.webapp.analysis.stack_frames import own_frames, own_place, place_of
from lanescope.webapp.plugins.learning.replicas import (
    EQUAL_SHARE,
    bytes_of_step,
    group_calls,
    replicas,
)
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Window

_MIN_STEPS = 3
_REDUCES = ("all_reduce", "all_reduce_coalesced")
_SCALES = "div|mul|lerp|addc"
"""Within the names of operators that scale what they get."""


_SUMS = "allreduce"
"""Within the names of operators that sum over ranks."""

_PRECISION = 1e-3
"""Of the factor: norms of gradients of low precision are rounded."""


def summed_gradients(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_gradient`, one per group of replicas. Raises
    NotApplicable."""
    need_ranks(run)
    need_backward(run)
    found = []
    for group, ranks in replicas(run).items():
        rank = ranks[0]
        if rank in wrapped(run) or not by_sgd(run, rank):
            continue
        means = logged(run, None, MEAN_LOSS)
        if set(means["rank"]) < set(ranks):
            continue
        one = _summed(run, group, rank)
        if one is not None:
            found.append(_finding(run, ranks, *one))
    return found


def by_sgd(run: Run, rank: int) -> bool:
    """Returns whether all optimizers of a rank are SGD."""
    names = logged(run, rank, prefix=SETTINGS)["name"]
    kinds = {str(name).partition(" ")[0] for name in names if ", group " in str(name)}
    return kinds == {"SGD"}


def _summed(run: Run, group: str, rank: int) -> tuple[int, int, str | None] | None:
    """The number of steps, the first and the line of the sum; None: without a sum, or where it is
    scaled in some step."""
    calls = group_calls(run, group, rank, _REDUCES)
    windows = stretches(run, rank)
    least = EQUAL_SHARE * bytes_of_step(run, rank)
    steps, where = [], None
    for step, (begin, end) in windows.items():
        own = calls[(calls["start_ns"] >= begin) & (calls["start_ns"] < end)]
        if own["bytes"].sum() < least:
            continue
        if (own["reduce_op"] != "sum").any() or len(_scaling(run, rank, (begin, end))):
            return None
        steps.append(step)
        where = where or own_place(run, rank, int(own["stack"].iloc[0]))
    if len(steps) < _MIN_STEPS or len(steps) < len(windows) - 1:
        return None
    return len(steps), steps[0], where


def stretches(run: Run, rank: int) -> dict[int, Window]:
    """Returns by step the stretch from the end of the last backward to the first optimizer."""
    rows = to_frame(run.events("phase", rank, columns=["step", "kind", "start_ns", "duration_ns"]))
    backward = rows[rows["kind"] == schema.PhaseKind.backward.name]
    ends = (backward["start_ns"] + backward["duration_ns"]).groupby(backward["step"]).max()
    begins = rows[rows["kind"] == schema.PhaseKind.optimizer.name].groupby("step")["start_ns"].min()
    return {
        int(step): (int(ends[step]), int(begins[step]))
        for step in ends.index.intersection(begins.index)
        if ends[step] < begins[step]
    }


def scaling_stack(run: Run, rank: int, window: Window, names: str = _SCALES) -> int | None:
    """Returns the stack of the first operator that scales something and begins in a stretch of
    time; None: none does, or it has no stack. `names`: others, as an expression."""
    rows = _scaling(run, rank, window, names)
    return rows["stack"][0].as_py() if len(rows) else None


def _scaling(run: Run, rank: int, window: Window, names: str = _SCALES) -> pa.Table:
    """Operators that scale something and begin in a stretch of time, in order."""
    rows = run.events("op", rank, columns=["name", "start_ns", "stack"], window=window)
    begins = pc.and_(
        pc.greater_equal(rows["start_ns"], window[0]), pc.less(rows["start_ns"], window[1])
    )
    scales = pc.match_substring_regex(rows["name"].cast(pa.string()), names)
    return rows.filter(pc.and_(begins, scales)).sort_by("start_ns")


def _finding(
    run: Run, ranks: tuple[int, ...], steps: int, first: int, where: str | None
) -> Finding:
    at = at_place(where)
    return finding_at(
        run,
        ranks[0],
        first,
        kind="wrong_gradient",
        severity="info",
        confidence="likely",
        title=f"{units.sentence(ranks_in(run, ranks))} sum their gradients{at} in "
        f"{units.count(steps)} steps, and do not divide them by {len(ranks)}: each loss is the "
        f"mean of a rank's batch, so gradients and steps of SGD are {len(ranks)} times as large "
        "as those of the whole batch, and grow with the number of ranks. Divide by "
        "dist.get_world_size(), or reduce with ReduceOp.AVG, unless the learning rate is meant for "
        "it.",
        ranks=ranks,
        where=where,
        evidence={"cause": "summed", "steps": steps},
    )


def divided_again(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_gradient`, at most one. Raises NotApplicable."""
    factors = logged(run, None, GRADIENT_FACTOR)
    for rank, ranks in need_wrapped(run).items():
        own = factors[factors["rank"] == rank]
        if own["step"].nunique() < _MIN_STEPS:
            continue
        for factor in (1 / ranks, float(ranks)):
            if ((own["value"] / factor - 1).abs() < _PRECISION).all():
                found = _again(run, rank, ranks, factor, int(own["step"].min()))
                return [] if found is None else [found]
    return []


def _again(run: Run, rank: int, ranks: int, factor: float, step: int) -> Finding | None:
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
