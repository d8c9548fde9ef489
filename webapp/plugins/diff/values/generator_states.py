"""Which generators of random numbers are in another state than in the baseline?"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import pandas as pd

from lanescope.collector.format.names import OTHER_RANDOM_STATE, RANDOM_STATE
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.runs.run import Run


@dataclass(frozen=True)
class GeneratorStates:
    """Of the generators that a program draws from, as its model is called: "torch", "Python" and
    "NumPy"."""

    step: int  # of both runs
    apart: tuple[str, ...]
    same: tuple[str, ...]


@lru_cache(maxsize=4)
def states_apart(base: Run, run: Run, rank: int, since: int = 0) -> GeneratorStates | None:
    """Returns the states in the first step from `since` on that both runs sampled; None without
    one. Generators that never move are left out: the program does not draw from them."""
    sides = [_states(one, rank) for one in (base, run)]
    both = sides[0].merge(sides[1], on=["step", "name"])
    both = both[both["step"] >= since]
    if both.empty:
        return None
    step = int(both["step"].min())
    first = both[both["step"] == step]
    # Where workers load the data, they draw from their own: this one may stand still.
    moves = [
        {str(name) for name, own in side.groupby("name")["value"] if own.nunique() > 1}
        for side in sides
    ]
    first = first[first["name"].isin(moves[0] & moves[1])]
    other = first["value_x"] != first["value_y"]
    return GeneratorStates(step, tuple(first.loc[other, "name"]), tuple(first.loc[~other, "name"]))


def _states(run: Run, rank: int) -> pd.DataFrame:
    """step, name, value: of torch those of all devices."""
    parts = []
    for prefix, name in ((RANDOM_STATE, "torch"), (OTHER_RANDOM_STATE, None)):
        rows = logged(run, rank, prefix=prefix).sort_values(["step", "name"], kind="stable")
        rows = rows.assign(name=name or rows["name"].astype("str"))
        parts.append(rows.groupby(["step", "name"], sort=False)["value"].agg(tuple).reset_index())
    return pd.concat(parts, ignore_index=True)
