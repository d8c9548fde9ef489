"""Says whether two runs begin with other parameters, or train their models in other modes."""

from __future__ import annotations

import pandas as pd

from lanescope.collector.format.names import TRAINING_MODE
from lanescope.webapp.analysis.parameter_history import logged, samples
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_APART = 1e-6
"""Relative difference of norms. They may be added up in another order."""

_KEYS = ["rank", "parameter", "dtype", "numel"]
_MODES = ("evaluation", "training")


def start_notes(base: Run, run: Run) -> list[str]:
    """Returns sentences about modes and first parameters that differ."""
    return [*_modes(base, run), *_parameters(base, run)]


def _modes(base: Run, run: Run) -> list[str]:
    sides = [_by_step(one) for one in (base, run)]
    for name in sides[0].columns.intersection(sides[1].columns):
        both = pd.concat([side[name] for side in sides], axis=1).ffill().dropna()
        apart = both[both.iloc[:, 0] != both.iloc[:, 1]]
        if len(apart):
            was, now = (_MODES[int(one)] for one in apart.iloc[0])
            return [
                f"the mode differs: {units.printable(str(name))} is trained in {now} mode since "
                f"step {int(apart.index[0])}, and in {was} mode in the baseline: eval() or train() "
                "is called in one of them alone"
            ]
    return []


def _by_step(run: Run) -> pd.DataFrame:
    """Step -> the last mode of each model, of the lowest rank; only where one changes."""
    rows = logged(run, min(run.ranks), prefix=TRAINING_MODE)
    rows = rows.astype({"name": "str"}).sort_values("time_ns", kind="stable")
    return rows.drop_duplicates(["step", "name"], keep="last").pivot(
        index="step", columns="name", values="value"
    )


def _parameters(base: Run, run: Run) -> list[str]:
    sides = [_first_norms(one) for one in (base, run)]
    both = sides[0].merge(sides[1], on=_KEYS, suffixes=("_base", "_run"))
    low, high = both["norm_base"], both["norm_run"]
    apart = both[(low - high).abs() > _APART * low.abs().clip(lower=_APART)]
    if apart.empty:
        return []
    first = apart.iloc[0]
    return [
        f"the first parameters differ: {units.count(len(apart))} of {units.count(len(both))} "
        f"before the first step, {units.printable(str(first['parameter']))} at first: its norm "
        f"{first['norm_base']:.9g} became {first['norm_run']:.9g}; compare the seed, the "
        "initialisation and the state that is loaded"
    ]


def _first_norms(run: Run) -> pd.DataFrame:
    """The norms of trained parameters before the first step of their optimizer."""
    rows = samples(run)
    rows = rows[(rows["call"] == 0) & (rows["optimizer"] >= 0) & rows["norm"].notna()]
    rows = rows.drop_duplicates(["rank", "parameter"])[[*_KEYS, "norm"]]
    return rows.astype({"parameter": "str", "dtype": "str"})
