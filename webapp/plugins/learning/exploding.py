"""Finds gradients that explode.

- a gradient holds NaN or Inf at a step that was taken (`zero_eps`: what its optimizer divides by
  was rounded to 0); or
- the whole norm (before clipping, where it is clipped) is EXPLODED times the largest of the first
  FIRST_STEPS steps and above a usual one, for EXPLODED_STEPS in a row: a loss that leaves a
  plateau has hardly any gradient before. Information where it is not ABRUPT times the median of
  the BEFORE_STEPS steps before: a likelihood that learns its scale divides by ever less; or
- it is too large from the first steps on (`_high`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from lanescope.collector.format.loop_names import INPUT_SCALE
from lanescope.collector.format.names import CLIP_NORM, SKIPPED_STEPS
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.findings import Finding, Severity, finding_at
from lanescope.webapp.analysis.links import and_more, step_link
from lanescope.webapp.analysis.nothing_to_check import need_steps
from lanescope.webapp.analysis.parameter_history import (
    HEALTHY_NORMS,
    last_logged,
    logged,
    rank_gradient_rows,
    samples,
    streaks,
)
from lanescope.webapp.plugins.learning.gradient_paths import growth, ways
from lanescope.webapp.plugins.learning.lost_gradients import where_infinite
from lanescope.webapp.plugins.learning.scaling import zero_eps
from lanescope.webapp.plugins.learning.update_effects import together
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.typed_json import json_number

EXPLODED = 100.0  # times the largest of the first steps
EXPLODED_STEPS = 2  # consecutive steps
FIRST_STEPS = 5  # steps
ABRUPT = 10.0  # times the median of the steps before
BEFORE_STEPS = 20  # steps
_LISTED = 20  # parameters named in the evidence

_TooLarge = tuple[float, str]
"""How far a scale is exceeded, in numbers and words."""


LARGE_STEPS = 2  # consecutive
OVERTURNED = 10.0  # times the norm of all parameters
_DIVERGED = 1.0  # the same, before gradients became infinite
LARGE = 1e3  # norm of the whole gradient
GROWN = 1e6  # times, root mean square of the elements
GROWN_BACK = 1e4  # the same
HUGE = 1.9e19  # norm of the whole gradient


def exploding(run: Run) -> list[Finding]:
    """Returns findings of kind `exploding_gradient`, at most one per optimizer. Raises
    NotApplicable."""
    found: dict[int, Finding] = {}
    ranks: dict[int, list[int]] = {}
    rows = need_steps(run)
    for rank in sorted(int(one) for one in rows["rank"].unique()):
        for optimizer, one in _of_rank(run, rank).items():
            found.setdefault(optimizer, one)
            ranks.setdefault(optimizer, []).append(rank)
    return [
        Finding(**{**vars(one), "ranks": tuple(ranks[optimizer])})
        for optimizer, one in found.items()
    ]


@per_rank
def _of_rank(run: Run, rank: int) -> dict[int, Finding]:
    """What is wrong with the gradients of each optimizer of a rank."""
    found: dict[int, Finding] = {}
    for optimizer, own in rank_gradient_rows(run, rank).groupby("optimizer", sort=True):
        one = _not_finite(run, rank, own)
        if one is None:
            series = _whole_norms(run, rank, own)
            one = _growing(run, rank, own, series) or _high(run, rank, own, series)
        if one is not None:
            found[int(str(optimizer))] = one
    return found


def _not_finite(run: Run, rank: int, rows: pd.DataFrame) -> Finding | None:
    skipped = set(logged(run, rank, SKIPPED_STEPS)["step"])
    wrong = rows[~rows["missing"] & ~np.isfinite(rows["norm"]) & ~rows["step"].isin(skipped)]
    if wrong.empty:
        return None
    first = wrong[wrong["call"] == wrong["call"].min()]
    step, names = int(first["step"].iloc[0]), list(first["parameter"])
    others = and_more(len(names), "parameter")
    rounded = None if step == rows["step"].min() else zero_eps(run, rank, names)
    where, advice = (
        _given(run, rank, step)
        or where_infinite(run, rank)
        or (
            None,
            _too_large_before(run, rank, rows[rows["call"] < first["call"].iloc[0]])
            or "Check the loss, the learning rate, and divisions or logarithms of 0.",
        )
    )
    if rounded is not None:
        where, advice = None, rounded
    return Finding(
        kind="exploding_gradient",
        severity="error",
        title=f"The gradient of {names[0]}{others} is NaN or infinite at step {step}, and the "
        f"optimizer used it. {advice}",
        rank=rank,
        thread=str(first["thread"].iloc[0]),
        step=step,
        time_ns=int(first["time_ns"].iloc[0]),
        where=where,
        evidence={
            "cause": "not_finite" if rounded is None else "zero_eps",
            "parameters": names[:_LISTED],
            "not_finite": len(names),
            "norm": json_number(float(first["norm"].iloc[0])),
            "all_parameters": int((rows["call"] == first["call"].iloc[0]).sum()),
        },
        link=step_link(run, rank, step),
    )


def _given(run: Run, rank: int, step: int) -> tuple[None, str] | None:
    """What to do where a model is given NaN at a step; None: it is not. The place is that of the
    first layer, which reads it."""
    given = logged(run, rank, prefix=INPUT_SCALE)
    names = given.loc[(given["step"] == step) & given["value"].isna(), "name"]
    if names.empty:
        return None
    model, _, place = str(names.iloc[0]).rpartition("/")
    return None, (
        f"The data have it already: input {int(place) + 1} of {model} is NaN before the model "
        "computes anything. Look where they are read and scaled: missing values, and divisions, "
        "powers and logarithms of 0."
    )


def _too_large_before(run: Run, rank: int, rows: pd.DataFrame) -> str | None:
    """What to do where steps before the first infinite gradient changed the parameters by more than
    they were, or where the gradient was too large from the first step on; None: neither."""
    norms = _whole_norms(run, rank, rows)
    if norms.empty:
        return None
    for cause, _, held_against, advice in _SCALES if norms.iloc[0] > LARGE else ():
        found = held_against(run, rank, norms.iloc[:1], rows["optimizer"].iloc[0])
        if found is not None and cause in ("forward", "backward"):
            return f"At step {norms.index[0]} {found[1]}. Check {advice}."
    times = _changes(run, rank, rows["optimizer"].iloc[0]).reindex(norms.index).dropna()
    if len(times) and times.max() > _DIVERGED:
        return (
            f"Training diverges: step {times.idxmax()} changed the parameters by "
            f"{units.number(float(times.max()))} times what they were. Lower the learning rate, or "
            'take the mean in the loss where it is a sum (reduction="sum").'
        )
    return None


def _growing(run: Run, rank: int, rows: pd.DataFrame, series: pd.Series) -> Finding | None:
    if len(series) < FIRST_STEPS + EXPLODED_STEPS:
        return None
    first = float(series.iloc[:FIRST_STEPS].max())
    limit = max(EXPLODED * first, HEALTHY_NORMS[1])
    if not 0 < first < np.inf:
        return None
    norms = series.to_numpy()
    found = [one for one in streaks(norms > limit) if one[1] - one[0] >= EXPLODED_STEPS]
    abrupt = [one for one in found if _abrupt(norms, one[0])]
    for low, high in (abrupt or found)[:1]:
        step, norm = int(series.index[low]), float(norms[low:high].max())
        at = _largest(rows, step)
        times = f"{units.number(norm / first)} times the largest of the first "
        times += f"{FIRST_STEPS} steps, most of it in {at['parameter']}. "
        return _exploding(
            run,
            at,
            f"The gradient explodes at step {step}: {times}Check the learning rate, clipping and "
            "that step's data."
            if abrupt
            else f"The gradient grows slowly: from step {step} on it is up to {times}A loss that "
            "learns its own scale does so, for example a likelihood. Otherwise lower the rate.",
            {
                "cause": "growth",
                "norm": json_number(norm),
                "limit": limit,
                "clipped": step in last_logged(run, rank, CLIP_NORM).index,
            },
            "warning" if abrupt else "info",
        )
    return None


def _abrupt(norms: np.ndarray, low: int) -> bool:
    """True if the first norms from `low` on are far above those before, or these are too few."""
    before = norms[max(low - BEFORE_STEPS, 0) : low]
    first = norms[low : low + EXPLODED_STEPS].max()
    return len(before) < BEFORE_STEPS or bool(first > ABRUPT * np.median(before))


def _high(run: Run, rank: int, rows: pd.DataFrame, norms: pd.Series) -> Finding | None:
    """Too large from the first steps on; `norms`: of the whole gradient by step, before clipping.

    There is nothing before to compare with, and the norm alone proves nothing: a loss that is a sum
    over many large errors has one of millions, and learns, also where it is clipped to 1. So where
    it is LARGE at the first LARGE_STEPS steps it is held against a scale that the program itself
    has, in this order:

    - updates: the first step changed the parameters by OVERTURNED times what they were;
    - forward: the outputs of modules grow on their way through the model: the largest has GROWN
      times what the first one had, per element;
    - backward: the gradient grows on its way from the loss: a layer has GROWN_BACK times that of
      the layers nearest to the loss, per element (`gradient_paths`);
    - itself: it is above HUGE, whose square does not fit into float32.
    """
    if len(norms) < LARGE_STEPS or not (norms.iloc[:LARGE_STEPS] > LARGE).all():
        return None
    for cause, limit, held_against, advice in _SCALES:
        found = held_against(run, rank, norms, rows["optimizer"].iloc[0])
        if found is None:
            continue
        measured, words = found
        step, norm = int(norms.index[0]), json_number(float(norms.iloc[0]))
        at = _largest(rows, step)
        return _exploding(
            run,
            at,
            f"The gradient is too large since step {step}, with a norm of "
            f"{units.number(float(norms.iloc[0]))}: {words}, most of it in {at['parameter']}. "
            f"Check {advice}.",
            {"cause": cause, "norm": norm, "limit": limit, "measured": json_number(measured)},
        )
    return None


def _whole_norms(run: Run, rank: int, rows: pd.DataFrame) -> pd.Series:
    """Norm of the whole gradient by step, before clipping where it was clipped."""
    there = rows[~rows["missing"]]
    total = np.sqrt((there["norm"] ** 2).groupby(there["call"]).sum())
    steps = rows.groupby("call")["step"].first()
    clipped = last_logged(run, rank, CLIP_NORM)
    # Clipped gradients all have the same norm: use the one before clipping.
    norms = {int(steps[call]): clipped.get(steps[call], norm) for call, norm in total.items()}
    return pd.Series(norms, dtype=float)


def _largest(rows: pd.DataFrame, step: int) -> pd.Series:
    """Of the optimizer's first call in a step, the row of the parameter whose gradient is most."""
    own = rows[~rows["missing"] & (rows["step"] == step)]
    return own[own["call"] == own["call"].iloc[0]].nlargest(1, "norm").iloc[0]


def _exploding(
    run: Run, at: pd.Series, title: str, evidence: dict[str, Any], severity: Severity = "warning"
) -> Finding:
    return finding_at(
        run,
        int(at["rank"]),
        at,
        kind="exploding_gradient",
        severity=severity,
        confidence="likely",
        title=title,
        evidence={"parameter": at["parameter"], **evidence},
    )


def _overturned(run: Run, rank: int, norms: pd.Series, optimizer: int) -> _TooLarge | None:
    times = _changes(run, rank, optimizer).reindex(norms.index[:1])
    if not (times > OVERTURNED).all():
        return None
    measured = float(times.iloc[0])
    said = f"the step changes the parameters by {units.number(measured)} times what they were"
    return measured, said


def _changes(run: Run, rank: int, optimizer: int) -> pd.Series:
    """By sampled step, the change of all parameters of an optimizer over their norm."""
    rows = samples(run)
    _, times = together(rows[(rows["rank"] == rank) & (rows["optimizer"] == optimizer)])
    return times


def _grown(run: Run, rank: int, norms: pd.Series, optimizer: int) -> _TooLarge | None:
    rows = to_frame(run.events("activation", rank))
    rows = rows[(rows["step"] == norms.index[0]) & (rows["numel"] > 0)]
    sizes = (rows["norm"] / np.sqrt(rows["numel"]))[rows["norm"] > 0]
    if not len(sizes) or not sizes.max() > GROWN * sizes.iloc[0]:
        return None
    largest, beginning = rows.loc[sizes.idxmax(), "module"], rows.loc[sizes.index[0], "module"]
    measured = float(sizes.max() / sizes.iloc[0])
    return measured, (
        f"outputs of {largest or 'the model'} are {units.number(measured)} times those of "
        f"{beginning or 'the model'}"
    )


def _grown_back(run: Run, rank: int, norms: pd.Series, optimizer: int) -> _TooLarge | None:
    rows = rank_gradient_rows(run, rank)
    rows = rows[rows["step"].isin(norms.index[:LARGE_STEPS])]
    held = set(rows.loc[rows["optimizer"] == optimizer, "layer"])
    table = growth(rows, ways(run, rank))
    least = table[[layer for layer in table.columns if layer in held]].min()
    if len(table) < LARGE_STEPS or not (least > GROWN_BACK).any():
        return None
    layer, measured = str(least.idxmax()), float(least.max())
    return measured, (
        f"in {layer or 'the model'} it is {units.number(measured)} times as large per element as "
        "nearest to the loss"
    )


def _huge(run: Run, rank: int, norms: pd.Series, optimizer: int) -> _TooLarge | None:
    if not (norms.iloc[:LARGE_STEPS] > HUGE).all():
        return None
    said = "its square does not fit into float32, in which optimizers compute"
    return float(norms.iloc[0]), said


_SCALES: tuple[tuple[str, float, Callable[[Run, int, pd.Series, int], _TooLarge | None], str], ...]
_SCALES = (
    (
        "updates",
        OVERTURNED,
        _overturned,
        "the learning rate, initialisation, and the scale of the loss",
    ),
    ("forward", GROWN, _grown, "initialisation, normalisation and residual paths"),
    (
        "backward",
        GROWN_BACK,
        _grown_back,
        "the gain of the layers between (recurrent weights, initialisation), gated cells or "
        "residual paths, and clip_grad_norm_",
    ),
    (
        "itself",
        HUGE,
        _huge,
        "the gain of recurrent weights and other initialisation, the scale of inputs and targets, "
        "and the loss",
    ),
)
"""What the norm is held against: cause, limit, how it is measured, and what to check."""
