"""Finds parts of one model, on several ranks, that are each clipped by their own norm.

With tensor or expert parallelism a rank holds a part of the parameters. `clip_grad_norm_` on a rank
then knows the norm of that part alone, and the parts are scaled by different factors. Found where

- ranks of a group call collectives together in the backward of every step, as parts of one model
  do, and are no data-parallel replicas,
- the norms by which they clip differ in every step, and
- at least one of them is above the limit in MIN_STEPS steps, so that it is scaled.
"""

from __future__ import annotations

import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.names import CLIP_LIMIT, CLIP_NORM
from lanescope.webapp.analysis.collective_calls import collective_calls, group_title, members
from lanescope.webapp.analysis.findings import Finding, NotApplicable
from lanescope.webapp.analysis.links import step_link
from lanescope.webapp.analysis.parameter_history import last_logged
from lanescope.webapp.plugins.learning.consistency import replicas
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.run_warnings import ranks_named

MIN_STEPS = 3


def local_clipping(run: Run) -> list[Finding]:
    """Findings of kind `rank_divergence`, one per group. Raises NotApplicable."""
    if run.world_size == 1:
        raise NotApplicable("the job has a single rank")
    norms = {rank: last_logged(run, rank, CLIP_NORM) for rank in run.ranks}
    limits = {rank: last_logged(run, rank, CLIP_LIMIT) for rank in run.ranks}
    if not any(map(len, norms.values())):
        raise NotApplicable("the program does not call clip_grad_norm_")
    calls = collective_calls(run)
    calls = calls[calls["phase"] == schema.PhaseKind.backward.name]
    found = []
    for group, own in calls.groupby("group", sort=True):
        ranks = tuple(rank for rank in members(run)[str(group)] if rank in run.ranks)
        if len(ranks) < 2 or _are_replicas(run, ranks):
            continue
        table = pd.DataFrame({rank: norms[rank] for rank in ranks}).dropna()
        together = own.groupby("step")["rank"].nunique() == len(ranks)
        over = pd.DataFrame({rank: norms[rank] > limits[rank] for rank in ranks})
        scaled = over.reindex(table.index).fillna(value=False).any(axis=1)
        exchanged = together.reindex(table.index).fillna(value=False)
        apart = table.nunique(axis=1) > 1
        if scaled.sum() >= MIN_STEPS and exchanged.all() and apart.all():
            found.append(_finding(run, str(group), ranks, table[scaled]))
    return found


def _are_replicas(run: Run, ranks: tuple[int, ...]) -> bool:
    return any(len(set(ranks) & set(same)) > 1 for same in replicas(run).values())


def _finding(run: Run, group: str, ranks: tuple[int, ...], norms: pd.DataFrame) -> Finding:
    step, first = int(norms.index[0]), norms.iloc[0]
    low, high = first.min(), first.max()
    return Finding(
        kind="rank_divergence",
        severity="warning",
        confidence="likely",
        title=f"{ranks_named(ranks).capitalize()} hold parts of one model and clip each by its own "
        f"norm: {units.number(low)} to {units.number(high)} at step {step}, so the parts are "
        "scaled by different factors. Add up the squares of the norms over the ranks, and clip "
        "by the root with torch.nn.utils.clip_grads_with_norm_.",
        rank=ranks[0],
        ranks=ranks,
        step=step,
        evidence={
            "group": group,
            "group_title": group_title(run, group),
            "cause": "local_clipping",
            "norms": {str(rank): float(first[rank]) for rank in ranks},
            "steps": len(norms),
        },
        link=step_link(run, ranks[0], step),
    )
