"""Finds layers within a model that get the same data for all samples, and at all sampled steps.

A number of each sample was lost on its way to the layer: a time step of a diffusion that was
divided with `//`, a share that was cast to a whole number. Such a row has zeros and ones; another
one may be the only condition that a model is tuned for, as a prompt, and is information.
"""

from __future__ import annotations

from lanescope.collector.format.loop_names import DATA_ROWS
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.plugins.losses.loss_graph import LossFact, each_rank_of_graphs, loss_facts
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_GRAPHS = 4


@each_rank_of_graphs
def constant_rows(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `repeated_data`, at most one per rank. Raises NotApplicable."""
    known = loss_facts(run, rank, DATA_ROWS)
    enough = [one for one in known if len(one.values) >= _MIN_GRAPHS]
    facts = [one for one in enough if not one.node.of_backward]  # that gets gradients
    if all(one.values.any() for one in facts):
        return None  # one sample may be repeated on purpose
    varied = {one.node.module for one in facts if not one.values.all() or one.values.nunique() > 1}
    constant = next((one for one in facts if one.node.module not in varied), None)
    return None if constant is None else _finding(run, rank, constant)


def _finding(run: Run, rank: int, fact: LossFact) -> Finding:
    steps, layer = len(fact.values), fact.node.module
    return fact.finding(
        run,
        rank,
        kind="repeated_data",
        severity="info" if (fact.values < 0).any() else "warning",
        title=f"{layer or 'A layer'}{fact.node.at} gets the same values for all samples, at all "
        f"{units.count(steps)} steps that were looked at, and other layers get data that vary: "
        "what distinguishes the samples was lost before it. Look for //, for a cast to whole "
        "numbers (.long(), .int()), or for a wrong index.",
        evidence={"cause": "constant_rows", "steps": steps, "layer": layer},
    )
