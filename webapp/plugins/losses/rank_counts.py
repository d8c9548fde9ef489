"""Finds losses that each rank divides by a number of its own, before gradients are averaged.

A rank's loss is the mean over its own tokens or samples, and DistributedDataParallel averages the
gradients of all ranks alike: what a rank with few tokens sees counts more. Found where the numbers
of the ranks are far apart in half of the sampled steps or more.
"""

from __future__ import annotations

import pandas as pd

from lanescope.collector.format.loop_names import LOSS_COUNT
from lanescope.collector.format.names import REPLICAS
from lanescope.webapp.analysis.findings import Finding, NotApplicable, finding_at
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_ranks
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.plugins.losses.loss_graph import loss_graph
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_STEPS = 3
"""Sampled steps."""

_APART = 2
"""The largest number of a step is so many times the smallest one."""


def own_counts(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_loss`, at most one. Raises NotApplicable."""
    need_ranks(run)
    replicas = logged(run, None, REPLICAS)
    averaged = replicas.loc[replicas["value"] > 1, "rank"].unique()
    if len(averaged) < 2:
        raise NotApplicable("no model is within DistributedDataParallel")
    counts = logged(run, None, LOSS_COUNT)
    table = counts[counts["rank"].isin(averaged)].pivot_table(
        index="step", columns="rank", values="value", aggfunc="first"
    )
    table = table.dropna()
    if len(table.columns) < len(averaged) or len(table) < _MIN_STEPS:
        return []
    apart = table.max(axis=1) / table.min(axis=1)
    return [_finding(run, table, apart)] if apart.median() >= _APART else []


def _finding(run: Run, table: pd.DataFrame, apart: pd.Series) -> Finding:
    step = int(apart.index[apart >= _APART][0])
    few, many = int(table.loc[step].idxmin()), int(table.loc[step].idxmax())
    graph = loss_graph(run, few)
    where = None if graph is None else next(iter(graph.nodes.values())).where
    least, most = (units.number(float(table.loc[step, rank])) for rank in (few, many))
    return finding_at(
        run,
        few,
        step,
        kind="wrong_loss",
        severity="warning",
        confidence="likely",
        title=f"Each rank divides its loss by a number of its own{at_place(where)}: rank {few} by "
        f"{least} and rank {many} by {most} at step {step}. DistributedDataParallel averages the "
        f"gradients of all ranks alike, so a token or sample of rank {few} counts "
        f"{units.number(float(apart[step]))} times as much as one of rank {many}. Sum the numbers "
        "over the ranks with dist.all_reduce, divide by the sum, and multiply the loss by the "
        "number of ranks.",
        ranks=tuple(int(rank) for rank in table.columns),
        where=where,
        evidence={
            "cause": "own_counts",
            "counts": {str(rank): float(table.loc[step, rank]) for rank in table.columns},
            "steps": len(table),
        },
    )
