"""Finds parameters that two optimizers update by the same gradient.

A tied weight is handed to the optimizer of the encoder and to that of the decoder, say. Both step
after the same backward, one after the other, so the weight moves twice by one gradient.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import phases_of_kind
from lanescope.webapp.analysis.fault_series import found_in_rows
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import and_more
from lanescope.webapp.analysis.nothing_to_check import need_rows, need_steps
from lanescope.webapp.analysis.stack_frames import phase_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_TWICE = 3  # backward passes
_MIN_SHARE = 0.9  # of those whose gradients an optimizer used
_LISTED = 20


def _several(run: Run) -> pd.DataFrame:
    """Rows of the ranks that have two optimizers or more."""
    rows = need_steps(run)
    several = rows.groupby("rank")["optimizer"].transform("nunique") > 1
    return need_rows(rows[several], "the program has no second optimizer")


@found_in_rows(_several)
def updated_twice(run: Run, rank: int, rows: pd.DataFrame) -> Finding | None:
    """Returns findings of kind `shared_parameter`, one per rank. Raises NotApplicable."""
    twice = _twice(run, rank, rows)
    if twice.empty:
        return None
    first = twice.iloc[0]
    step, passes = int(first["step"]), int(first["passes"])
    return finding_at(
        run,
        rank,
        step,
        kind="shared_parameter",
        severity="error",
        title=f"Two optimizers update {first['parameter']}{and_more(len(twice), 'parameter')} by "
        f"the same gradient, after each of {units.count(passes)} backward passes since step "
        f"{step}: it moves twice per step. Leave it out of one of them, as a tied weight belongs "
        "to one optimizer.",
        where=phase_place(run, rank, schema.PhaseKind.optimizer.name, None),
        evidence={
            "cause": "updated_twice",
            "parameters": [str(name) for name in twice["parameter"][:_LISTED]],
            "steps": passes,
        },
    )


def _twice(run: Run, rank: int, own: pd.DataFrame) -> pd.DataFrame:
    """Rows of parameters that two optimizers updated after the same backward: `parameter`, `step`,
    `passes` and `used` (how often twice and at all)."""
    passes = phases_of_kind(run, schema.PhaseKind.backward, rank)["start_ns"].to_numpy()
    steps = phases_of_kind(run, schema.PhaseKind.optimizer, rank)
    own = own[~own["missing"] & (own["norm"] > 0)]
    # An optimizer within another's step (Lookahead, ZeroRedundancyOptimizer) is a part of it.
    before = np.searchsorted(steps["start_ns"].to_numpy(), own["time_ns"].to_numpy()) - 1
    ends = np.maximum.accumulate((steps["start_ns"] + steps["duration_ns"].fillna(0)).to_numpy())
    within = (before >= 0) & (own["time_ns"].to_numpy() < ends[np.maximum(before, 0)])
    own = own[~within]
    own = own.assign(passed=np.searchsorted(passes, own["time_ns"].to_numpy()))
    groups = own.groupby(["parameter", "passed"], sort=False, observed=True)
    table = groups.agg(optimizers=("optimizer", "nunique"), step=("step", "first")).reset_index()
    names = table.groupby("parameter", sort=False, observed=True)
    result = names.agg(
        passes=("optimizers", lambda one: int((one > 1).sum())),
        used=("optimizers", "size"),
        step=("step", "first"),
    ).reset_index()
    often = (result["passes"] >= _MIN_TWICE) & (result["passes"] >= _MIN_SHARE * result["used"])
    return result[often]
