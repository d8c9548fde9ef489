"""Finds training that runs without gradients since another function turned them off.

A generator or coroutine stopped in no_grad(), or a task of a pool left gradients off for its
thread. The recorder saw that the function did not run as a model in training was called, and that
backward began within the mode, or that the same line called a model with gradients later.
"""

from __future__ import annotations

import pandas as pd

from lanescope.collector.format.loop_names import LEFT_MODE, SUSPENDED_MODE
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_TIMES = 2

_CAUSES = {
    SUSPENDED_MODE: (
        "suspended",
        "the generator or coroutine that turns gradients off at {} yields or awaits meanwhile, and "
        "the mode holds for the whole thread until it goes on. Leave the `with` before each yield "
        "or await.",
    ),
    LEFT_MODE: (
        "left on",
        "a task that the same thread ran before turned gradients off at {}, and they stay off for "
        "all later tasks of this thread. Write `with torch.no_grad():` there.",
    ),
}
"""By series, with the reason to fill in."""


def suspended_modes(run: Run) -> list[Finding]:
    """Returns findings of kind `lost_context`, one per rank and line that calls a model."""
    return [
        _finding(run, int(rank), str(name), own.sort_values("time_ns"), *of_series)
        for series, of_series in _CAUSES.items()
        for (rank, name), own in logged(run, None, prefix=series).groupby(
            ["rank", "name"], sort=True, observed=True
        )
        if len(own) >= _MIN_TIMES
    ]


def _finding(
    run: Run, rank: int, name: str, rows: pd.DataFrame, cause: str, reason: str
) -> Finding:
    where, _, entered = name.partition("/")
    return finding_at(
        run,
        rank,
        rows.iloc[0],
        kind="lost_context",
        severity="warning",
        confidence="likely",
        title=f"A model in training is called without gradients at {where}, "
        f"{units.count(len(rows))} times: {reason.format(entered)}",
        ranks=(rank,),
        where=where,
        evidence={"cause": cause, "entered_at": entered, "times": len(rows)},
    )
