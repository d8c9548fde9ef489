"""Finds parameters that an optimizer's steps do not change, or not for good.

- clipped: gradients were CLIPPED_AWAY times what they are clipped to, or at least half of the
  elements of a parameter's were at the bound of their values, and at every sampled step the
  parameters together changed by less than CHANGED of what they were, or with Adam, whose steps do
  not depend on the size of gradients above its eps, by less than STALLED of the learning rate;
- rounded: no sampled step changed a parameter in 16 bits that has gradients and a learning rate, as
  what it adds is less than half of the last bit; or plain SGD changed it by less than LOST of what
  it should add;
- no_rate: its learning rate was 0, or less than FADED of the largest it had, from the first half of
  the run on up to its end, and no sampled step changed it by more than CHANGED; or with Adam, or
  gradients of STEEP of the parameters or more and rates that do not rise, each sampled step changed
  the parameters together by less than CHANGED, for SLOW_STEPS;
- undone: steps changed a parameter, and before the next one it was again what it had been at first,
  to the last bit: something writes the old values back.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from lanescope.collector.format.loop_names import FADED_RATE
from lanescope.collector.format.names import CLIP_LIMIT, CLIP_NORM, CLIP_VALUE
from lanescope.webapp.analysis.parameter_history import last_logged, logged, samples
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

CLIPPED_AWAY = 1e4  # times the norm to which it is clipped
STALLED = 0.05  # of the learning rate, per element
_MIN_SAMPLES = 4  # sampled steps
_MIN_SHARE = 0.5  # of the elements
_ROUNDING = 1e-2  # of a bound, in 16 bits
_LOST = 0.25  # of the norm of a step
CHANGED = 1e-6  # of the norm of a parameter
SLOW_STEPS = 16
_STEEP = 1e-2  # of the norm of all parameters: smaller gradients may be those of a minimum
FADED = 1e-4  # of the largest learning rate
_FADED_SAMPLES = 3
_DECAY_SAMPLES = 3  # samples, the last of the run
_SHRUNK = 0.5  # of the first norm
_MIN_ELEMENTS = 17  # of fewer, two norms may be the same by chance, or at a bound that is kept

LOW = ("bfloat16", "float16")
SCALE_FREE = ("Adam", "NAdam", "RAdam")
"""Classes of optimizers (or what their names begin with) whose first step is the learning rate."""


def unmoved(run: Run, sampled: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Returns cause -> the rows of `samples` of its parameters, without causes that have none."""
    held = sampled[(sampled["optimizer"] >= 0) & sampled["trainable"].astype(bool)]
    found: dict[str, list[pd.DataFrame]] = {}
    for (rank, _), rows in held.groupby(["rank", "optimizer"], sort=True):
        by_cause = {
            "clipped": _clipped(run, int(rank), rows),
            "rounded": _rounded(rows),
            "no_rate": _without_rate(rows),
            "undone": rows[is_undone(rows)],
        }
        for cause, own in by_cause.items():
            if len(own):
                found.setdefault(cause, []).append(own)
    return {cause: pd.concat(parts) for cause, parts in found.items()}


def is_undone(rows: pd.DataFrame) -> pd.Series:
    """Returns which rows of an optimizer's samples are of a parameter whose changes are undone."""
    groups = rows.groupby("parameter", sort=False)
    same = groups["norm"].nunique(dropna=False) == 1
    if not same.any():
        return pd.Series(False, rows.index)
    same &= groups["norm"].first().notna()
    changed = groups["update_ratio"].min() > CHANGED  # infinite: it was zero
    often = groups.size() >= _MIN_SAMPLES
    large = groups["numel"].first() >= _MIN_ELEMENTS
    undone = same & changed & often & large
    return rows["parameter"].isin(set(undone.index[undone]))


def _clipped(run: Run, rank: int, rows: pd.DataFrame) -> pd.DataFrame:
    if not any(len(last_logged(run, rank, name)) for name in (CLIP_LIMIT, CLIP_VALUE)):
        return rows.iloc[:0]
    rows = rows[(rows["lr"] > 0) & rows["update_ratio"].notna() & rows["norm"].notna()]
    changes, ratio = together(rows)
    elements = rows["numel"] * (1 - rows["grad_zeros"].fillna(0.0))
    due = (rows["lr"] ** 2 * elements).groupby(rows["step"]).sum()
    adam = bool(rows["rule"].str.startswith(SCALE_FREE).all())
    still = (ratio < CHANGED) | (adam & (np.sqrt(changes / due) < STALLED))
    away = (_away_by_norm(run, rank, rows) | _away_by_value(run, rank, rows)) & still
    return rows if len(away) >= _MIN_SAMPLES and away.all() else rows.iloc[:0]


def together(rows: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Returns by step the square of the change of all parameters, and the change over their norm.
    NaN: that was zero. `rows`: of the parameter table."""
    rows = rows[rows["update_ratio"].notna() & rows["norm"].notna()]
    changes = ((rows["update_ratio"] * rows["norm"]) ** 2).groupby(rows["step"]).sum()
    whole = (rows["norm"] ** 2).groupby(rows["step"]).sum()
    return changes, np.sqrt(changes / whole.where(whole > 0))


def why_all_zero(run: Run, rank: int) -> str:
    """Returns what to do where all gradients are zero."""
    known = samples(run)
    _, ratio = together(known[(known["rank"] == rank) & (known["grad_norm"] > 0)])
    if len(ratio) and ratio.max() > 1:
        return (
            f"Step {ratio.idxmax()} changed the parameters by {units.number(float(ratio.max()))} "
            "times what they were, which kills units: lower the learning rate."
        )
    return (
        "The loss is flat (a margin that all samples keep, everything masked), the outputs are cut "
        "off (a dead ReLU), or zero_grad() is called before step()."
    )


def _is_slow(rows: pd.DataFrame) -> bool:
    """Whether no sampled step changed the parameters together: of Adam, which does not depend on
    the size of gradients, or with large gradients at a rate that is not one of a warm-up."""
    moved = rows[(rows["lr"] > 0) & (rows["grad_norm"] > 0) & rows["norm"].notna()]
    moved = moved.dropna(subset="update_ratio")
    if moved.empty:
        return False
    if not moved["rule"].str.startswith(SCALE_FREE).all():
        squares = (moved[["grad_norm", "norm"]] ** 2).groupby(moved["step"]).sum()
        steep = squares["grad_norm"] > _STEEP**2 * squares["norm"]
        rates = moved.groupby("step")["lr"].max()
        if not steep.all() or rates.iloc[-1] > rates.iloc[0]:
            return False
    _, ratio = together(moved)
    long = len(ratio) >= _MIN_SAMPLES and ratio.index[-1] >= SLOW_STEPS
    return long and bool((ratio < CHANGED).all())


def _away_by_norm(run: Run, rank: int, rows: pd.DataFrame) -> pd.Series:
    """By step, whether the norm was clipped to next to nothing of it, and the optimizer used what
    was left (not a part, as where it was unscaled after that)."""
    used = np.sqrt((rows["grad_norm"] ** 2).groupby(rows["step"]).sum())
    limit = last_logged(run, rank, CLIP_LIMIT).reindex(used.index)
    times = last_logged(run, rank, CLIP_NORM).reindex(used.index) / limit
    return (times > CLIPPED_AWAY) & (used > limit / 2)


def _away_by_value(run: Run, rank: int, rows: pd.DataFrame) -> pd.Series:
    """By step, whether half of the elements of some parameter, or more, are at the bound."""
    bound = rows["step"].map(last_logged(run, rank, CLIP_VALUE)).astype("float64")
    at_bound = (rows["grad_norm"] / bound) ** 2 > _MIN_SHARE * rows["numel"]
    within = rows["grad_max"] <= bound * (1 + _ROUNDING)
    return (at_bound & within).groupby(rows["step"]).any()


def _rounded(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of parameters in 16 bits that have a gradient at most elements, and stay."""
    rows = rows[rows["dtype"].isin(LOW) & (rows["lr"] > 0) & (rows["grad_norm"] > 0)]
    if rows.empty:
        return rows
    rows = rows[rows["update_ratio"].notna() & (rows["grad_zeros"].fillna(0.0) < _MIN_SHARE)]
    due = (rows["lr"] * rows["grad_norm"] / rows["norm"]).where(rows["rule"] == "SGD", np.inf)
    groups = rows.assign(kept=rows["update_ratio"] / due).groupby("parameter", sort=False)
    still = (groups["update_ratio"].max() == 0) & (groups["norm"].nunique() == 1)
    lost = groups["kept"].max().between(0, _LOST, inclusive="neither")
    stuck = (still | lost) & (groups.size() >= _MIN_SAMPLES)
    return rows[rows["parameter"].isin(set(stuck.index[stuck]))]


def _without_rate(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of parameters with gradients since their learning rate is next to nothing."""
    if _is_slow(rows):
        return rows
    groups = rows.groupby("parameter", sort=False)
    faded = rows["lr"] <= FADED * groups["lr"].transform("max")
    still = faded & (rows["update_ratio"].fillna(0.0) <= CHANGED)
    if not still.any():
        return rows.iloc[:0]
    last_step = rows["call"].where(~still).groupby(rows["parameter"]).transform("max")
    tail = rows[rows["call"] > last_step.fillna(-1)]
    tails = tail.groupby("parameter", sort=False)
    middle = (groups["step"].first() + groups["step"].last()) / 2
    long = (tails.size() >= _FADED_SAMPLES) & (
        tails["step"].first() < middle.reindex(tails.size().index)
    )
    learns = tails["grad_norm"].max() > 0
    return tail[tail["parameter"].isin(set(long.index[long & learns]))]


def faded_at(run: Run, rank: int) -> str | None:
    """Returns the line of the scheduler that brought a rate next to zero; None: not of one."""
    places = {str(name).partition("/")[0] for name in logged(run, rank, prefix=FADED_RATE)["name"]}
    return next(iter(places)) or None if len(places) == 1 else None


STRONGER = 10.0  # times the gradient; at a minimum of the regularised loss both are equal
MIN_DECAY_SHARE = 0.9  # of the update
HEAVY = 0.1  # of a parameter, which decay takes in a step

DECOUPLED = ("AdamW", "Lion", "Lamb", "LAMB", "Muon", "Sophia")
"""Classes of optimizers (or what their names begin with) that decay apart from the gradient."""


def decays(rows: pd.DataFrame) -> pd.Series:
    """Returns which rows of the parameter table show decay stronger than the gradient."""
    decay = rows["weight_decay"].fillna(0.0)
    apart = rows["rule"].str.startswith(DECOUPLED)
    pull, heavy = decay * rows["norm"], decay * rows["lr"].fillna(0.0) >= HEAVY
    within = pull > rows["grad_norm"] * np.where(heavy, 1 / STRONGER, STRONGER)
    share = decay * rows["lr"].fillna(0.0) >= MIN_DECAY_SHARE * rows["update_ratio"]
    changes = rows["update_ratio"] > 0
    return (decay > 0) & changes & (share.where(apart, within))


def decaying_since(samples_: pd.DataFrame) -> int | None:
    """Returns the step since which a parameter decays; None if it does not.

    `samples_`: of the parameter, with `decays`. At the last _DECAY_SAMPLES of them decay was
    stronger than the gradient, and the parameter has shrunk to _SHRUNK of what it was.
    """
    tail = samples_.iloc[-_DECAY_SAMPLES:]
    if len(samples_) <= _DECAY_SAMPLES or not tail["decays"].all():
        return None
    if not tail["norm"].iloc[-1] < _SHRUNK * samples_["norm"].iloc[0]:
        return None
    weak = samples_[~samples_["decays"]]
    after = samples_ if weak.empty else samples_[samples_["call"] > weak["call"].max()]
    return int(after["step"].iloc[0])
