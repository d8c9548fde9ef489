"""What is behind the first difference: its operator, settings of optimizers or gradients tell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from lanescope.webapp.analysis.dataframes import to_frame
from lanescope.webapp.runs.run import Run

RANDOM = (
    "bernoulli", "cauchy_", "exponential_", "geometric_", "log_normal_", "multinomial",
    "native_dropout", "normal", "poisson", "rand", "randint", "randn", "random_", "randperm",
    "uniform",
)  # fmt: skip
"""Operators that draw, without namespace and without the _ of one that changes its input."""

_SETTINGS = {"lr": "learning rate", "weight_decay": "weight decay"}


def hints(base: Run, run: Run, first: dict[str, Any]) -> list[str]:
    """About the first operator that differs, as `diff --json` tells it."""
    found = []
    shapes = [[one["shape"] for one in first[side]["tensors"]] for side in ("base", "run")]
    if first["origin"]["kind"] == "compute" and shapes[0] == shapes[1] and draws(first["op"]):
        found.append(
            f"{first['op']} draws random numbers: another seed, other draws before it, or another "
            "distribution (a dropout rate, say)"
        )
    return [*found, *_settings(base, run, first)]


def draws(op: str) -> bool:
    """Whether an operator takes numbers from a generator."""
    name = op.rpartition("::")[2]
    return name in RANDOM or name.removesuffix("_") in RANDOM or name.startswith("rand")


def resumed(base: Run, run: Run) -> list[str]:
    """Whether the run's first step is a later one of the base, to the last bit of all gradients.

    Where the gradients of steps after it part, what the step itself does is another.
    """
    rank = min(run.ranks)
    known, own = _norms(base, rank), _norms(run, rank)
    begun = min(own, default=0)
    like = [step for step, norms in known.items() if norms == own.get(begun)]
    if len(like) != 1 or like[0] <= begun:
        return []
    later = like[0] - begun
    both = [step for step in sorted(own) if step + later in known]
    parted = next((step for step in both if own[step] != known[step + later]), None)
    said = f"step {begun} has the gradients of step {like[0]} of the base, to the last bit"
    if len(both) == 1:
        return [said]
    if parted is None:
        return [f"{said}, and so have all after it: the run goes on where the base was then"]
    return [
        f"{said}, and step {parted} not those of step {parted + later}: the run goes on with the "
        "parameters that the base had then, and not with all else (state of the optimizer, "
        "learning rate, data, random numbers)"
    ]


def _norms(run: Run, rank: int) -> dict[int, tuple[int, int]]:
    """By step what its gradients are known by: a sum of hashes, for there may be millions, and how
    many they are."""
    if rank not in run.ranks:
        return {}
    columns = ["step", "parameter", "optimizer", "norm"]
    rows = to_frame(run.events("gradient", rank, columns=columns))
    rows = rows[rows["norm"] > 0]
    hashes = pd.util.hash_pandas_object(rows[columns[1:]], index=False)
    steps = hashes.groupby(rows["step"])
    return {
        int(step): (int(own), int(many))
        for (step, own), many in zip(steps.sum().items(), steps.size(), strict=True)
    }


def _settings(base: Run, run: Run, first: dict[str, Any]) -> list[str]:
    """What optimizers were set to otherwise, at the first step at which both runs know."""
    keys = ["step", "parameter", "optimizer"]
    sides = []
    for one in (base, run):
        rows = one.events("parameter", first["rank"], columns=[*keys, *_SETTINGS, "rule"])
        frame = to_frame(rows).astype({"parameter": object, "rule": object})
        sides.append(frame.dropna(subset=["rule"]))
    both = sides[0].merge(sides[1], on=keys, suffixes=("_base", "_run"))
    both = both.sort_values(keys, kind="stable")
    other = both[both["rule_base"].astype(str) != both["rule_run"].astype(str)]
    if len(other):
        row = other.iloc[0]
        return [f"parameters are updated by {row['rule_run']}, in the base by {row['rule_base']}"]
    for name, words in _SETTINGS.items():
        low, high = (both[f"{name}_{side}"].to_numpy(np.float64) for side in ("base", "run"))
        apart = np.flatnonzero((low != high) & ~np.isnan(low) & ~np.isnan(high))
        if len(apart):
            at = apart[0]
            return [
                f"the {words} in step {both['step'].iloc[at]} is {high[at]:g}, in the base "
                f"{low[at]:g}: the first of the sampled steps in which it is another"
            ]
    return []
