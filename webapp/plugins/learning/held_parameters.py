"""Finds what optimizers hold in vain: frozen groups, and parameters that no model holds any more.

- frozen: at every sampled step, of MIN_SAMPLES or more, requires_grad was False and there was no
  gradient, for all parameters of an optimizer, or for all of a group whose settings are its own:
  someone set a learning rate for it. Frozen parameters among others of their group are usual;
- replaced: no module that ran holds parameters of an optimizer, and parameters of modules that ran
  have gradients that no optimizer uses: the model was given others when the optimizer was built.
"""

from __future__ import annotations

import pandas as pd

from lanescope.webapp.analysis.parameter_history import UNNAMED

_MIN_SAMPLES = 4  # sampled steps
_MIN_STEPS = 2  # sampled: a value can change between two
Found = dict[str, dict[str, tuple[int, int, list[int]]]]
"""Cause -> parameter -> since which step, its elements, its ranks."""


def frozen(sampled: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of `samples` of frozen groups, and of optimizers that hold nothing else."""
    held = sampled[sampled["optimizer"] >= 0]
    idle = ~held["trainable"].astype(bool) & held["missing"]
    parts = [held.iloc[:0]]
    for _, rows in held.assign(idle=idle).groupby(["rank", "optimizer"], sort=True):
        if not rows["idle"].any() or rows["step"].nunique() < _MIN_SAMPLES:
            continue
        settings = [rows[name].fillna(-1.0) for name in ("lr", "weight_decay")]
        # Settings may change from step to step, but for all of a group at once.
        active = (~rows["idle"]).groupby([rows["step"], *settings]).transform("any")
        never = (~active).groupby(rows["parameter"]).transform("all")
        parts.append(rows[never & (rows["lr"] > 0)])
    return pd.concat(parts)


def stuck(sampled: pd.DataFrame) -> bool:
    """Whether a parameter has gradients, and keeps its value."""
    if sampled["missing"].all() or len(sampled) < _MIN_STEPS:
        return False
    moved = sampled["norm"].max() - sampled["norm"].min()
    # The gradient of a model whose training is over stays the same to the last bit.
    return bool(moved == 0) and sampled["grad_norm"].nunique() > 1


def join_replaced(found: Found) -> None:
    """Puts what was replaced, and by what, under the cause `replaced`."""
    left = {name: one for name, one in found.get("unused", {}).items() if UNNAMED.fullmatch(name)}
    new = found.get("not_in_optimizer", {})
    ranks = {rank for *_, several in left.values() for rank in several}
    taken = {name: one for name, one in new.items() if ranks & set(one[2])}
    if not left or not taken:
        return
    for cause, gone in (("unused", left), ("not_in_optimizer", taken)):
        found[cause] = {name: one for name, one in found[cause].items() if name not in gone}
        if not found[cause]:
            del found[cause]
    found["replaced"] = taken
