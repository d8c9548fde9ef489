"""Finds training that runs without gradients since a generator or coroutine stopped in no_grad().

The recorder saw that the function had entered the mode and did not run as a model in training was
called, and that backward began within the mode, or that the same line called a model with
gradients later.
"""

from __future__ import annotations

import pandas as pd

from lanescope.collector.format.loop_names import SUSPENDED_MODE
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_TIMES = 2


def suspended_modes(run: Run) -> list[Finding]:
    """Returns findings of kind `lost_context`, one per rank and line that calls a model."""
    rows = logged(run, None, prefix=SUSPENDED_MODE)
    groups = rows.groupby(["rank", "name"], sort=True, observed=True)
    return [
        _finding(run, int(rank), str(name), own.sort_values("time_ns"))
        for (rank, name), own in groups
        if len(own) >= _MIN_TIMES
    ]


def _finding(run: Run, rank: int, name: str, rows: pd.DataFrame) -> Finding:
    where, _, entered = name.partition("/")
    return finding_at(
        run,
        rank,
        rows.iloc[0],
        kind="lost_context",
        severity="warning",
        confidence="likely",
        title=f"A model in training is called without gradients at {where}, "
        f"{units.count(len(rows))} times: the generator or coroutine that turns gradients off at "
        f"{entered} yields or awaits meanwhile, and the mode holds for the whole thread until it "
        "goes on. Leave the `with` before each yield or await.",
        ranks=(rank,),
        where=where,
        evidence={"cause": "suspended", "entered_at": entered, "times": len(rows)},
    )
