"""Finds losses without a lower bound: binary cross-entropies below zero, whose targets are outside
of 0 to 1, and mean log-likelihoods of the targets that training lowers, as a minus is missing."""

from __future__ import annotations

import re

from lanescope.collector.format.loop_names import MAXIMIZES
from lanescope.collector.format.names import NEGATIVE_LOSS
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_backward
from lanescope.webapp.analysis.parameter_history import gradient_rows, logged
from lanescope.webapp.plugins.losses.loss_graph import graph_finding, loss_graph
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_LOSSES = 3
_MIN_STEPS = 5
_REDUCES = re.compile(r"Mean|Squeeze|Sum|View")


def below_zero(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    need_backward(run)
    found = _not_negated(run)
    for rank in run.ranks:
        rows = logged(run, rank, NEGATIVE_LOSS)
        if len(rows) >= _MIN_LOSSES:
            graph = loss_graph(run, rank)
            nodes = [] if graph is None else [*graph.nodes.values()]
            where = next((one.where for one in nodes if "CrossEntropy" in one.name), None)
            first = rows.sort_values("time_ns").iloc[0]
            found.append(_finding(run, rank, where, int(first["step"]), len(rows)))
    return found


def _not_negated(run: Run) -> list[Finding]:
    """Means over a choice of what log_softmax returns, of runs that train downhill."""
    found = []
    trains = gradient_rows(run)["call"].nunique() >= _MIN_STEPS
    for rank in run.ranks if trains and logged(run, None, MAXIMIZES).empty else ():
        graph = loss_graph(run, rank)
        if graph is None or not graph.nodes:
            continue
        root = next(iter(graph.nodes.values()))
        chosen = graph.down(root, lambda one: _REDUCES.fullmatch(one.name))
        made = graph.source(chosen) if chosen.name in ("Gather", "Index") else None
        if made is not None and made.name == "LogSoftmax" and root.name in ("Mean", "Sum"):
            found.append(
                graph_finding(
                    run,
                    rank,
                    graph,
                    title=f"The loss{root.at} is the log-likelihood of the targets without a minus "
                    "sign: training makes them less likely, and it has no lower bound. Negate it, "
                    "or use cross_entropy on the logits.",
                    where=root.where,
                    evidence={"cause": "not_negated"},
                )
            )
    return found


def _finding(run: Run, rank: int, where: str | None, step: int, count: int) -> Finding:
    return finding_at(
        run,
        rank,
        step,
        kind="wrong_loss",
        title=f"The binary cross-entropy{at_place(where)} is below zero in "
        f"{units.count(count)} steps: targets are outside of 0 to 1, so it has no lower bound. "
        "Scale them (divide masks of 0 and 255 by 255, map labels of -1 and 1 to 0 and 1).",
        where=where,
        evidence={"cause": "below_zero", "losses": count},
    )
