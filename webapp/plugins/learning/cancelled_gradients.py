"""Finds weights whose gradient is exactly zero at every step while the bias beside them learns.

The layer runs and gets a gradient, so what cuts off its weight is in how the weight is used:
`w + (round(w) - w)` without detach() cancels, round(), sign() and argmax() have no gradient, and an
input of zeros gives none.
"""

from __future__ import annotations

import pandas as pd

from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import and_more
from lanescope.webapp.analysis.nothing_to_check import need_steps
from lanescope.webapp.plugins.learning.lora import is_lora
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_STEPS = 8
_MIN_ELEMENTS = 17  # of a scale or a gate a gradient may well be zero


def cancelled_gradients(run: Run) -> list[Finding]:
    """Returns findings of kind `dead_parameter`, at most one per rank. Raises NotApplicable."""
    rows = need_steps(run)
    rows = rows[~is_lora(rows["parameter"])]
    facts = _facts(rows)
    found = []
    for rank in facts.index.unique("rank"):
        dead = _cancelled(facts.loc[rank])
        if dead:
            own = rows[rows["rank"] == rank]
            names = [str(name) for name in own["parameter"].drop_duplicates() if name in dead]
            found.append(_finding(run, int(str(rank)), own, names))
    return found


def _facts(rows: pd.DataFrame) -> pd.DataFrame:
    """By rank and parameter: layer, numel, steps, and whether all its gradients are zero, or none
    of them."""
    groups = rows.assign(zero=rows["norm"] == 0, some=rows["norm"] > 0)
    return groups.groupby(["rank", "parameter"]).agg(
        layer=("layer", "first"),
        numel=("numel", "first"),
        steps=("call", "nunique"),
        zero=("zero", "all"),
        some=("some", "all"),
    )


def _cancelled(facts: pd.DataFrame) -> set[str]:
    """Weights without a gradient in layers whose bias always has one."""
    if not facts["zero"].any() or facts.groupby("layer")["zero"].all().any():
        return set()  # a dead layer before gives an input of zeros
    last = facts.index.to_series().str.rsplit(".", n=1).str[-1]
    learning = set(facts.loc[(last == "bias") & facts["some"], "layer"])
    dead = (last == "weight") & facts["zero"] & facts["layer"].isin(learning)
    dead &= (facts["steps"] >= _MIN_STEPS) & (facts["numel"] >= _MIN_ELEMENTS)
    return {str(name) for name in facts.index[dead]}


def _finding(run: Run, rank: int, rows: pd.DataFrame, names: list[str]) -> Finding:
    own = rows[rows["parameter"] == names[0]]
    steps = units.count(own["call"].nunique())
    have = "has a gradient" if len(names) == 1 else "have gradients"
    return finding_at(
        run,
        rank,
        own.iloc[0],
        kind="dead_parameter",
        confidence="likely",
        title=f"{names[0]}{and_more(len(names), 'parameter')} {have} of exactly zero in all "
        f"{steps} steps, and the bias of the same layer learns. What the layer makes of its weight "
        "has no gradient: a straight-through estimator needs w + (q - w).detach(), and round(), "
        "sign() and argmax() give none. Or its input is always zero.",
        evidence={"cause": "cancelled", "parameters": names[:20]},
    )
