"""Finds losses that are divided by the number of ranks before gradients that are averaged.

The number by which the loss was divided is that of the ranks between which DistributedDataParallel
averages gradients, at every recorded step; the program's line does not write it as a number; what
was divided is a loss, no sum of several; and each optimizer step follows a single backward, so that
it is not the number of passes that are accumulated.

And losses that each rank divides by a number of its own: the mean over its own tokens or samples.
What a rank with few tokens sees then counts more. Found where the numbers of the ranks are far
apart in half of the sampled steps or more. Likewise of batches whose gradients one line adds up
before a step, of cross-entropies of classes.
"""

from __future__ import annotations

from functools import partial

import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.loop_names import LOSS_COUNT
from lanescope.collector.format.names import LOSS_DIVISOR
from lanescope.webapp.analysis.arrow_columns import phases_of_kind
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_wrapped
from lanescope.webapp.analysis.parameter_history import logged, wrapped
from lanescope.webapp.analysis.source_lines import writes_number
from lanescope.webapp.analysis.stack_frames import own_frames, place_before, place_of
from lanescope.webapp.plugins.losses.loss_graph import LossGraph, loss_graph
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_STEPS = 3
"""Sampled steps."""

_LOSSES = ("BinaryCrossEntropy", "HuberLoss", "L1Loss", "Mean", "MseLoss", "NllLoss", "SmoothL1")

_APART = 2
"""The largest number of a step is so many times the smallest one."""


def loss_divisor(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_loss`, at most one. Raises NotApplicable."""
    averaged = need_wrapped(run)
    divisors = logged(run, None, LOSS_DIVISOR)
    for rank, ranks in averaged.items():
        own = divisors[divisors["rank"] == rank]
        if own["step"].nunique() < _MIN_STEPS:
            continue
        graph = loss_graph(run, rank)
        if graph is None or not (abs(own["value"] - ranks) < 1e-9 * ranks).all():
            continue
        where = _where(run, rank, graph, ranks)
        if where and _single_backward(run, rank):
            return [_finding(run, rank, ranks, where)]
    return []


def _where(run: Run, rank: int, graph: LossGraph, ranks: int) -> str | None:
    """The line that divides a loss by a number that it does not write; None: not found."""
    root = next(iter(graph.nodes.values()))
    source = graph.source(root)
    if root.name not in ("Div", "Mul") or source is None or not source.name.startswith(_LOSSES):
        return None
    frames = own_frames(run, rank, root.stack)
    if not frames or writes_number(run, rank, frames[0], (ranks, 1 / ranks)):
        return None
    return place_of(frames[0])


def _single_backward(run: Run, rank: int) -> bool:
    """Whether no step has two backward passes or more."""
    passes = phases_of_kind(run, schema.PhaseKind.backward, rank, columns=["start_ns", "step"])
    return bool(passes["step"].is_unique)


def _finding(run: Run, rank: int, ranks: int, where: str) -> Finding:
    return finding_at(
        run,
        rank,
        0,
        kind="wrong_loss",
        confidence="likely",
        title=f"The loss is divided by {ranks}, the number of ranks, at {where}, and "
        f"DistributedDataParallel averages the gradients of the {ranks} ranks as well: they are "
        f"{ranks} times too small. Leave the division out of the loss that backward() gets; divide "
        "the one that is logged.",
        ranks=tuple(run.ranks),
        where=where,
        evidence={"cause": "divided", "divisor": ranks},
    )


def own_counts(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_loss`, at most one. Raises NotApplicable."""
    counts = logged(run, None, LOSS_COUNT)
    added = counts[counts.duplicated(["rank", "step"], keep=False)]
    found = [one for one in map(partial(_of_batches, run, added), run.ranks) if one is not None]
    if found or (len(added) and not wrapped(run)):
        return found[:1]
    averaged = need_wrapped(run)
    table = counts[counts["rank"].isin(averaged.keys())].pivot_table(
        index="step", columns="rank", values="value", aggfunc="first"
    )
    table = table.dropna()
    if len(table.columns) < len(averaged) or len(table) < _MIN_STEPS:
        return []
    apart = table.max(axis=1) / table.min(axis=1)
    return [_of_counts(run, table, apart)] if apart.median() >= _APART else []


def _of_batches(run: Run, added: pd.DataFrame, rank: int) -> Finding | None:
    """What is wrong with the counts of a rank whose steps have several backward passes."""
    own = added[added["rank"] == rank]
    steps = own.groupby("step")["value"].agg(["min", "max"])
    apart = steps["max"] / steps["min"]
    graph = loss_graph(run, rank)
    if len(steps) < _MIN_STEPS or apart.median() < _APART or graph is None:
        return None
    where = next((one.where for one in graph.nodes.values() if one.name.startswith("NllLoss")), "")
    if where == "":
        return None  # not of classes
    step = int(apart.index[apart >= _APART][0])
    passes = own[own["step"] == step].sort_values("time_ns")
    places = {
        place_before(run, rank, str(row["thread"]), int(row["time_ns"]))
        for _, row in passes.iterrows()
    }
    if len(places) > 1:
        return None  # losses of several tasks
    least, most = (units.number(float(steps.loc[step, one])) for one in ("min", "max"))
    return finding_at(
        run,
        rank,
        step,
        kind="wrong_loss",
        confidence="likely",
        title=f"Each batch whose gradients are added up divides its loss by a number of its own"
        f"{at_place(where)}: from {least} to {most} at step {step}. A token or sample of one batch "
        f"counts {units.number(float(apart[step]))} times as much as one of another. Sum each loss "
        "(reduction='sum'), and divide it by the number of tokens of all batches of the step.",
        where=where,
        evidence={"cause": "own_counts", "passes": len(passes), "steps": len(steps)},
    )


def _of_counts(run: Run, table: pd.DataFrame, apart: pd.Series) -> Finding:
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
