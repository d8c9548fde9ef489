"""Pictures of the evidence of findings about collectives."""

from __future__ import annotations

import numpy as np

from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.headlines import HeatPicture
from lanescope.webapp.plugins.collectives.skew import KEYS, arrivals, lateness
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

MAX_RANKS = 12
"""Rows of a picture: the ranks that were latest, if there are more."""


def late_ranks(run: Run, _: Finding) -> HeatPicture | None:
    """How late each rank came to the collectives of each step, as a share of the latest."""
    steps = arrivals(run)[[*KEYS, "step"]]
    table = lateness(run).merge(steps, on=KEYS).pivot_table("late_ns", "rank", "step", "max")
    if table.empty or not table.to_numpy(float)[np.isfinite(table.to_numpy(float))].any():
        return None
    chosen = table.sum(axis=1).nlargest(MAX_RANKS).index.sort_values()
    values = table.loc[chosen].to_numpy(float)
    # A few steps of the start are far slower than all others, and would leave these pale.
    usual = float(np.nanquantile(values.max(axis=0), 0.9)) or float(np.nanmax(values))
    return HeatPicture(
        f"Late arrival by rank and step, up to {units.duration(usual)}",
        tuple(f"rank {rank}" for rank in chosen),
        np.minimum(values / usual, 1.0),
        f"step {table.columns[0]}",
        f"step {table.columns[-1]}",
    )
