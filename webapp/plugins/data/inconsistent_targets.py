"""Finds inputs and targets that do not belong together: the same row has another target each time.

Rows of the input that come again at a later sampled step have the target that they had before no
more often than by chance, and where it is another one, other rows have had it. So inputs and
targets are shuffled apart, or only one of them is. Or all rows of a batch are one row, another one
in each batch, while their targets differ.
"""

from __future__ import annotations

import re

from lanescope.collector.format.loop_names import PAIRED_ROWS
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.plugins.losses.loss_graph import (
    each_rank_of_graphs,
    graph_finding,
    loss_graph,
)
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_SEEN, _MIN_ALIKE = 64, 4
_MOST_AGREEMENT = 0.2
"""How far "same" is above chance: 0 by chance, 1 where the targets never change."""
_MOST_CHANCE = 0.8
_MIN_KNOWN = 0.6
"""Of the targets that changed those that other rows had."""

_LOSSES = re.compile(r"NllLoss|BinaryCrossEntropy(WithLogits)?|(Mse|SmoothL1|Huber)Loss")


@each_rank_of_graphs
def paired_rows(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    rows = logged(run, rank, prefix=PAIRED_ROWS)
    if rows.empty:
        return None
    last = rows.groupby("name", observed=True)["value"].last()
    alike = last.get("alike", 0)
    if alike >= _MIN_ALIKE or "seen" not in last:
        return _alike(run, rank, int(alike)) if alike >= _MIN_ALIKE else None
    seen, same, another, chance = (last[one] for one in ("seen", "same", "another", "chance"))
    if seen < _MIN_SEEN or chance > _MOST_CHANCE or another < _MIN_KNOWN * (seen - same):
        return None
    if (same / seen - chance) / (1 - chance) > _MOST_AGREEMENT:
        return None
    changed = units.share(float(1 - same / seen))
    return _finding(
        run,
        rank,
        f"Inputs and targets do not belong together: of {units.count(int(seen))} rows of the "
        f"input that came again, {changed} had another target in the loss{{at}}, one that belonged "
        "to other rows before, as often as by chance. Only one of the two is shuffled, or each in "
        "its own order: use one permutation for both.",
        {"cause": "paired_rows", "rows": int(seen), "same": int(same)},
    )


def _alike(run: Run, rank: int, batches: int) -> Finding | None:
    return _finding(
        run,
        rank,
        f"All rows of the input are one row, another one in each of {units.count(batches)} batches "
        "that were looked at, and their targets in the loss{at} differ: the program stores one "
        "array for all samples, and writes it again. Store copies: state.copy() or clone().",
        {"cause": "alike_rows", "batches": batches},
    )


def _finding(run: Run, rank: int, title: str, evidence: dict[str, object]) -> Finding | None:
    """A finding at the first loss; {at} in its title is for the line."""
    graph = loss_graph(run, rank)
    if graph is None:
        return None
    loss = next((node for node in graph.nodes.values() if _LOSSES.fullmatch(node.name)), None)
    where = loss.where if loss is not None else None
    title = title.format(at=at_place(where))
    return graph_finding(run, rank, graph, title=title, where=where, evidence=evidence)
