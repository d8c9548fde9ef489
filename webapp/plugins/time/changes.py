"""Compares the categories of a run's steps with those of a baseline."""

from __future__ import annotations

import numpy as np
import pandas as pd

from lanescope.webapp.analysis.baseline_tables import BASE
from lanescope.webapp.analysis.nothing_to_check import need_rows
from lanescope.webapp.plugins.time.breakdown import CATEGORIES, mean_steps
from lanescope.webapp.runs.run import Run


def step_changes(base: Run, run: Run) -> pd.DataFrame:
    """Returns one row per pair of steps, in order: step, base_step, duration_ns, `<category>_ns`
    for each of `breakdown.CATEGORIES`, and base_duration_ns, `base_<category>_ns` likewise.

    All times are means over the ranks that have the step, ns, so categories add up to durations.
    Steps of the same number are a pair; without any, those at the same place.

    Raises NotApplicable where one of the runs has no step.
    """
    mine, theirs = mean_steps(run), mean_steps(base)
    for name, table in (("run", mine), ("baseline", theirs)):
        need_rows(table, f"the {name} holds no training step")
    mine = mine.drop(columns="start_ns")
    theirs = theirs.drop(columns="start_ns").add_prefix(BASE)
    if not mine["step"].isin(theirs[f"{BASE}step"]).any():
        both = min(len(mine), len(theirs))
        return pd.concat([mine.head(both), theirs.head(both)], axis=1)
    return mine.merge(theirs, left_on="step", right_on=f"{BASE}step")


def steady(changes: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of `step_changes` without the first of three or more, which warms up."""
    return changes.iloc[1:] if len(changes) > 2 else changes


def category_changes(changes: pd.DataFrame) -> pd.DataFrame:
    """Returns what changed over rows of `step_changes`: category, base_ns, run_ns, change_ns.

    Each time is a mean over the rows. The category that got longer by most comes first; categories
    that neither run has are left out. The changes add up to that of the step.
    """
    means = changes.mean()
    table = pd.DataFrame(
        {
            "category": list(CATEGORIES),
            "base_ns": [means[f"{BASE}{name}_ns"] for name in CATEGORIES],
            "run_ns": [means[f"{name}_ns"] for name in CATEGORIES],
        }
    )
    table["change_ns"] = table["run_ns"] - table["base_ns"]
    known = np.maximum(table["base_ns"], table["run_ns"]) > 0
    return table[known].sort_values("change_ns", ascending=False, kind="stable", ignore_index=True)
