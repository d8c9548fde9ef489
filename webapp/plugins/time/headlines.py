"""Figures of the first page: the length of a step, and what share each category takes of it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pandas as pd

from lanescope.webapp.analysis.findings import NotApplicable
from lanescope.webapp.analysis.headlines import Headline
from lanescope.webapp.plugins.collectives.communication import comm_compute_overlap
from lanescope.webapp.plugins.collectives.skew import comparable_arrivals, waiting_ranks
from lanescope.webapp.plugins.collectives.stragglers import same_roles, steadily_late
from lanescope.webapp.plugins.time.breakdown import mean_steps
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run


def step_length_headline(run: Run) -> Headline | None:
    """Returns the median length of a step, mean over ranks."""
    steps = mean_steps(run)
    length = steps["duration_ns"]
    median = float(length.median()) if len(length) else 0.0
    if not median:  # a step that only a call of step() makes takes no time
        return None
    rate = units.number(1e9 / median, 2)
    note = f"p90 {units.duration(length.quantile(0.9))} · {rate} steps/s"
    return Headline(units.duration(median), note, [*length])


def waiting_headline(run: Run) -> Headline | None:
    """Returns the share of a step in which ranks wait for others in a collective: red where they
    wait for the same rank in nearly all steps."""
    if len(run.ranks) < 2 or not run.clock_calibrated:  # then who came when is not known
        return None
    found = _share(run, "waiting_for_ranks")
    if found is None:
        return _waiting_of_run(run)
    with suppress(NotApplicable):
        if same_roles(run) and steadily_late(comparable_arrivals(run)):
            return replace(found, tone="bad")
    return found


def _waiting_of_run(run: Run) -> Headline | None:
    """The rank that waits longest for others, in a run without steps."""
    table = waiting_ranks(run, (0, run.duration_ns))
    if table.empty:
        return None
    most = table.loc[table["waiting_ns"].idxmax()]
    note = f"{units.duration(float(most['waiting_ns']))} of the run, on rank {most['rank']:.0f}"
    return Headline(units.share_cell(float(most["share"])), note)


def communication_headline(run: Run) -> Headline | None:
    """Returns the share of a step in which ranks only communicate."""
    if run.world_size == 1:
        return None
    hidden = [comm_compute_overlap(run, rank) for rank in run.ranks]
    known = [one for one in hidden if one is not None]
    note = f"{units.share_cell(sum(known) / len(known))} overlapped" if known else ""
    return _share(run, "exposed_communication", note)


def data_loading_headline(run: Run) -> Headline | None:
    """Returns the share of a step in which the training thread fetches a batch."""
    return _share(run, "data_loading")


def python_headline(run: Run) -> Headline | None:
    """Returns the share of a step in which no recorded operator runs."""
    return _share(run, "python")


def forward_headline(run: Run) -> Headline | None:
    """Returns the share of a step in operators of forward."""
    return _share(run, "forward")


def backward_headline(run: Run) -> Headline | None:
    """Returns the share of a step in operators of backward."""
    return _share(run, "backward")


def optimizer_headline(run: Run) -> Headline | None:
    """Returns the share of a step in operators of the optimizer."""
    return _share(run, "optimizer")


def _share(run: Run, category: str, note: str = "") -> Headline | None:
    """The median share of a category, with its course."""
    steps = mean_steps(run)
    spent: pd.Series = steps[f"{category}_ns"]
    if not spent.any() and category not in ("waiting_for_ranks", "exposed_communication"):
        return None
    if not steps["duration_ns"].any():  # no step, or one that takes no time
        return None
    shares = spent / steps["duration_ns"].clip(lower=1)
    about = note or f"{units.duration(float(spent.median()))} of each step"
    return Headline(units.share_cell(float(shares.median())), about, [*shares])
