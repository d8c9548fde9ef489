"""Finds gradients that are too large from the first steps on.

There is nothing before to compare with, and the norm alone proves nothing: a loss that
is a sum over many large errors has one of millions, and learns, also where it is clipped to 1. So
where it is LARGE at the first LARGE_STEPS steps it is held against a scale that the program itself
has, in this order:

- updates: the first step changed the parameters by OVERTURNED times what they were;
- forward: the outputs of modules grow on their way through the model: the largest has GROWN times
  what the first one had, per element;
- backward: the gradient grows on its way from the loss: a layer has GROWN_BACK times that of the
  layers nearest to the loss, per element (`gradient_paths`);
- itself: it is above HUGE, whose square does not fit into float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.parameter_history import rank_gradient_rows, samples
from lanescope.webapp.plugins.learning.gradient_paths import growth, ways
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

LARGE_STEPS = 2  # consecutive
OVERTURNED = 10.0  # times the norm of all parameters
LARGE = 1e3  # norm of the whole gradient
GROWN = 1e6  # times, root mean square of the elements
GROWN_BACK = 1e4  # the same
HUGE = 1.9e19  # norm of the whole gradient


@dataclass(frozen=True)
class TooLarge:
    """Since which step, and against what it was held."""

    step: int
    cause: str
    measured: float
    limit: float
    words: str
    advice: str


def too_large(run: Run, rank: int, norms: pd.Series, optimizer: int) -> TooLarge | None:
    """Returns `norms`: of the whole gradient of an optimizer of a rank by step, before clipping."""
    if len(norms) < LARGE_STEPS or not (norms.iloc[:LARGE_STEPS] > LARGE).all():
        return None
    return (
        _overturned(run, rank, norms, optimizer)
        or _grown(run, rank, norms)
        or _grown_back(run, rank, norms, optimizer)
        or _huge(norms)
    )


def _overturned(run: Run, rank: int, norms: pd.Series, optimizer: int) -> TooLarge | None:
    rows = samples(run)
    rows = rows[(rows["rank"] == rank) & (rows["optimizer"] == optimizer)]
    rows = rows[rows["update_ratio"].notna() & rows["norm"].notna()]
    squares = ((rows["update_ratio"] * rows["norm"]) ** 2).groupby(rows["step"]).sum()
    whole = (rows["norm"] ** 2).groupby(rows["step"]).sum()
    times = np.sqrt(squares / whole.where(whole > 0)).reindex(norms.index[:1])
    if not (times > OVERTURNED).all():
        return None
    measured = float(times.iloc[0])
    return TooLarge(
        int(norms.index[0]),
        "updates",
        measured,
        OVERTURNED,
        f"the step changes the parameters by {units.number(measured)} times what they were",
        "the learning rate, initialisation, and the scale of the loss",
    )


def _grown(run: Run, rank: int, norms: pd.Series) -> TooLarge | None:
    rows = to_frame(run.events("activation", rank))
    rows = rows[(rows["step"] == norms.index[0]) & (rows["numel"] > 0)]
    sizes = (rows["norm"] / np.sqrt(rows["numel"]))[rows["norm"] > 0]
    if not len(sizes) or not sizes.max() > GROWN * sizes.iloc[0]:
        return None
    largest, beginning = rows.loc[sizes.idxmax(), "module"], rows.loc[sizes.index[0], "module"]
    measured = float(sizes.max() / sizes.iloc[0])
    return TooLarge(
        int(norms.index[0]),
        "forward",
        measured,
        GROWN,
        f"outputs of {largest or 'the model'} are {units.number(measured)} times those of "
        f"{beginning or 'the model'}",
        "initialisation, normalisation and residual paths",
    )


def _grown_back(run: Run, rank: int, norms: pd.Series, optimizer: int) -> TooLarge | None:
    rows = rank_gradient_rows(run, rank)
    rows = rows[rows["step"].isin(norms.index[:LARGE_STEPS])]
    held = set(rows.loc[rows["optimizer"] == optimizer, "layer"])
    table = growth(rows, ways(run, rank))
    least = table[[layer for layer in table.columns if layer in held]].min()
    if len(table) < LARGE_STEPS or not (least > GROWN_BACK).any():
        return None
    layer, measured = str(least.idxmax()), float(least.max())
    return TooLarge(
        int(norms.index[0]),
        "backward",
        measured,
        GROWN_BACK,
        f"in {layer or 'the model'} it is {units.number(measured)} times as large per element as "
        "nearest to the loss",
        "the gain of the layers between (recurrent weights, initialisation), gated cells or "
        "residual paths, and clip_grad_norm_",
    )


def _huge(norms: pd.Series) -> TooLarge | None:
    if not (norms.iloc[:LARGE_STEPS] > HUGE).all():
        return None
    return TooLarge(
        int(norms.index[0]),
        "itself",
        float(norms.iloc[0]),
        HUGE,
        "its square does not fit into float32, in which optimizers compute",
        "the gain of recurrent weights and other initialisation, the scale of inputs and targets, "
        "and the loss",
    )
