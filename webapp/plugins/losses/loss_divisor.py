"""Finds losses that are divided by the number of ranks before gradients that are averaged.

The number by which the loss was divided is that of the ranks between which DistributedDataParallel
averages gradients, at every recorded step; the program's line does not write it as a number; what
was divided is a loss, no sum of several; and each optimizer step follows a single backward, so that
it is not the number of passes that are accumulated.
"""

from __future__ import annotations

import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.collector.format.names import LOSS_DIVISOR, REPLICAS
from lanescope.webapp.analysis.findings import Finding, NotApplicable, finding_at
from lanescope.webapp.analysis.nothing_to_check import need_ranks
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.source_lines import writes_number
from lanescope.webapp.analysis.stack_frames import own_frames, place_of
from lanescope.webapp.plugins.losses.loss_graph import LossGraph, loss_graph
from lanescope.webapp.runs.run import Run

_MIN_STEPS = 3
"""Sampled steps."""

_LOSSES = ("BinaryCrossEntropy", "HuberLoss", "L1Loss", "Mean", "MseLoss", "NllLoss", "SmoothL1")
_BACKWARD = schema.PhaseKind.backward.name


def loss_divisor(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_loss`, at most one. Raises NotApplicable."""
    need_ranks(run)
    replicas = logged(run, None, REPLICAS)
    if replicas.empty:
        raise NotApplicable("no model is within DistributedDataParallel")
    divisors = logged(run, None, LOSS_DIVISOR)
    for rank in run.ranks:
        ranks = replicas.loc[replicas["rank"] == rank, "value"].unique()
        own = divisors[divisors["rank"] == rank]
        if len(ranks) != 1 or ranks[0] < 2 or own["step"].nunique() < _MIN_STEPS:
            continue
        graph = loss_graph(run, rank)
        if graph is None or not (abs(own["value"] - ranks[0]) < 1e-9 * ranks[0]).all():
            continue
        where = _where(run, rank, graph, int(ranks[0]))
        if where and _single_backward(run, rank):
            return [_finding(run, rank, int(ranks[0]), where)]
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
    rows = run.events("phase", rank, columns=["kind", "step"])
    steps = rows.filter(pc.equal(rows["kind"].cast("string"), _BACKWARD))["step"]
    return len(pc.unique(steps)) == len(steps)


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
