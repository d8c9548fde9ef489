"""Is a gradient too large from the first steps on?

There is nothing before that it could be held against, and its norm alone tells nothing: a loss that
is a sum over many large errors has one of millions, and learns. So where it is LARGE at the first
LARGE_STEPS steps it is held against a scale that the program itself has, in this order:

- clipped: its norm was CLIPPED_AWAY times that to which it was clipped, at each of these steps;
- updates: the first step changed the parameters by OVERTURNED times what they were;
- forward: the outputs of modules grow on their way through the model: the largest has GROWN times
  what the first one had, per element.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from lanescope.collector.kinds import CLIP_LIMIT
from lanescope.webapp.analysis.frames import to_frame
from lanescope.webapp.analysis.learning import samples
from lanescope.webapp.analysis.logged import last_logged
from lanescope.webapp.run import Run

LARGE_STEPS = 2  # consecutive
CLIPPED_AWAY = 1e4  # times the norm to which it is clipped
OVERTURNED = 10.0  # times the norm of all parameters
LARGE = 1e3  # norm of the whole gradient
GROWN = 1e6  # times, root mean square of the elements


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
    """`norms`: of the whole gradient of an optimizer of a rank by step, before clipping."""
    if len(norms) < LARGE_STEPS or not (norms.iloc[:LARGE_STEPS] > LARGE).all():
        return None
    return (
        _clipped(run, rank, norms)
        or _overturned(run, rank, norms, optimizer)
        or _grown(run, rank, norms)
    )


def _clipped(run: Run, rank: int, norms: pd.Series) -> TooLarge | None:
    limits = last_logged(run, rank, CLIP_LIMIT)
    times = (norms / limits.reindex(norms.index)).iloc[:LARGE_STEPS]
    if not (limits > 0).all() or not (times > CLIPPED_AWAY).all():
        return None
    measured = float(times.iloc[0])
    return TooLarge(
        int(norms.index[0]), "clipped", measured, CLIPPED_AWAY,
        f"{measured:.3g} times what it is clipped to",
        "initialisation, normalisation, the scale of the loss and of max_norm, and that gradients "
        "are unscaled before they are clipped",
    )  # fmt: skip


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
        int(norms.index[0]), "updates", measured, OVERTURNED,
        f"the step changes the parameters by {measured:.3g} times what they were",
        "the learning rate, initialisation, and the scale of the loss",
    )  # fmt: skip


def _grown(run: Run, rank: int, norms: pd.Series) -> TooLarge | None:
    rows = to_frame(run.events("activation", rank))
    rows = rows[(rows["step"] == norms.index[0]) & (rows["numel"] > 0)]
    sizes = (rows["norm"] / np.sqrt(rows["numel"]))[rows["norm"] > 0]
    if not len(sizes) or not sizes.max() > GROWN * sizes.iloc[0]:
        return None
    largest, beginning = rows.loc[sizes.idxmax(), "module"], rows.loc[sizes.index[0], "module"]
    measured = float(sizes.max() / sizes.iloc[0])
    return TooLarge(
        int(norms.index[0]), "forward", measured, GROWN,
        f"outputs of {largest or 'the model'} are {measured:.3g} times those of "
        f"{beginning or 'the model'}",
        "initialisation, normalisation and residual paths",
    )  # fmt: skip
