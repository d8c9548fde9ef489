"""Finds layers whose gradients vanish on their way from the loss.

A layer is a module with parameters of its own. Its gradient per element at a step is held against
that of the layers that it passed on its way (`gradient_paths`), so that neither a small loss, nor a
head of its own whose loss is small, nor a small model is taken for a sick one; a bias whose
gradient is zero by construction (of attention keys, before a normalisation) goes with its weight,
and is not looked at where the weight is frozen. Where the way is not known it is held against that
of all parameters that the optimizer holds:

    relative = (|g of the layer| / sqrt(its elements)) / (|g of these| / sqrt(their elements))

It has vanished where `relative` is below VANISHED at VANISHED_STEPS consecutive steps, or below
GONE and stays below VANISHED to the end. A gradient that rises is on its way up (zero-initialised
branches, small layer scales in their first steps) and is not reported, unless it is HOPELESS and
takes more than RISING_STEPS to rise so much. Nor is one that vanishes in the first steps, as those
of a warm-up, and then for at least as many steps no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import and_more
from lanescope.webapp.analysis.nothing_to_check import need_steps
from lanescope.webapp.analysis.parameter_history import rank_gradient_rows, streaks
from lanescope.webapp.plugins.learning.gradient_paths import layer_norms, relative_to_passed, ways
from lanescope.webapp.plugins.learning.lora import is_lora
from lanescope.webapp.plugins.learning.scaling import rounded_gradients
from lanescope.webapp.runs.run import Run

VANISHED = 1e-5  # of the gradient that it is held against, per element
VANISHED_STEPS = 5  # consecutive steps
GONE = 1e-6  # the same
GONE_STEPS = 2  # consecutive steps, the last of the run among them
RISING = 10.0  # times, from the first step of a streak to its last
RISING_STEPS = 10  # steps
HOPELESS = 1e-8  # the same as VANISHED
_LISTED = 20  # layers named in the evidence
_BIAS = "bias"  # ends the names of biases, as k.bias and in_proj_bias

PASSED, _MODEL = "the layers after it", "the model"
"""What a layer's gradient is held against."""


@dataclass(frozen=True)
class Vanished:
    """A layer whose gradient is gone."""

    layer: str
    step: int  # since
    last: int  # until, at least
    relative: float  # the smallest
    against: str


def vanishing(run: Run) -> list[Finding]:
    """Returns findings of kind `vanishing_gradient`, one for ranks that are alike, and one per rank
    for float16. Raises NotApplicable."""
    rows = need_steps(run)
    found: dict[tuple[Vanished, ...], list[int]] = {}
    for rank in sorted(int(one) for one in rows["rank"].unique()):
        if gone := _of_rank(run, rank):
            found.setdefault(gone, []).append(rank)
    return [_finding(run, gone, ranks) for gone, ranks in found.items()] + rounded_gradients(run)


@per_rank
def _of_rank(run: Run, rank: int) -> tuple[Vanished, ...]:
    rows = rank_gradient_rows(run, rank)
    own = rows[~is_lora(rows["parameter"])]
    names = own["parameter"].unique()
    biases = own["parameter"].isin([one for one in names if one.endswith(_BIAS)])
    own = own[own["layer"].isin(own.loc[~biases, "layer"].unique())]
    judged = (_vanished(*one) for one in _relative(run, rank, own))
    gone = [one for one in judged if one is not None]
    return tuple(sorted(gone, key=lambda one: (one.step, one.relative)))


def _relative(run: Run, rank: int, rows: pd.DataFrame) -> Iterator[tuple[str, pd.Series, str]]:
    """Layer, its relative gradient by step, and against what."""
    known = ways(run, rank)
    table = relative_to_passed(rows, known) if known.layers else pd.DataFrame()
    for layer in table.columns:
        yield str(layer), table[layer].dropna(), PASSED
    for _, own in rows[~rows["layer"].isin(set(known.layers))].groupby("optimizer", sort=True):
        together = rows[rows["optimizer"] == own["optimizer"].iloc[0]]
        table = _relative_to_all(together)
        steps = together.groupby("call")["step"].first()
        for layer in own["layer"].unique():
            if layer in table.columns:
                series = table[layer].dropna()
                yield str(layer), series.set_axis(steps[series.index]), _MODEL


def _relative_to_all(rows: pd.DataFrame) -> pd.DataFrame:
    """By call of an optimizer (rows) and layer (columns). NaN: it had no gradient then."""
    squares, elements = layer_norms(rows, "call")
    whole = squares.sum(axis=1) / elements.sum(axis=1)
    return np.sqrt((squares / elements).div(whole.where(whole > 0), axis=0))


def _vanished(layer: str, series: pd.Series, against: str) -> Vanished | None:
    for low, high in streaks(series.to_numpy() < VANISHED):
        values = series.to_numpy()[low:high]
        positive = values[values > 0]
        began_so = not low and high <= len(series) // 2 and series.iloc[high:].min() >= VANISHED
        if not len(positive) or _rises(values) or began_so:
            continue  # zero all along is another finding; what rises is healthy
        ends = high == len(series)
        gone = ends and len(values) >= GONE_STEPS and bool((values < GONE).any())
        if len(values) >= VANISHED_STEPS or gone:
            first, last = int(series.index[low]), int(series.index[high - 1])
            return Vanished(layer, first, last, float(positive.min()), against)
    return None


def _rises(values: Any) -> bool:
    window = values if values[-1] >= HOPELESS else values[-RISING_STEPS:]
    begin = window[window > 0][:1]
    return bool(len(begin)) and bool(values[-1] > RISING * begin[0])


def _layer(path: str) -> str:
    return f"layer {path}" if path else "the model itself"


def _finding(run: Run, gone: tuple[Vanished, ...], ranks: list[int]) -> Finding:
    worst = min(gone, key=lambda one: one.relative)
    since = min(one.step for one in gone)
    others = and_more(len(gone), "layer")
    return finding_at(
        run,
        ranks[0],
        since,
        kind="vanishing_gradient",
        confidence="likely",
        title=f"The gradient vanishes in {_layer(worst.layer)}{others} since step "
        f"{since}: per element it is {worst.relative:.1e} of that of {worst.against}. Check "
        "saturating activations, initialisation, residual paths and normalisation before it.",
        ranks=tuple(ranks),
        evidence={
            "layers": [asdict(one) for one in gone[:_LISTED]],
            "vanished": len(gone),
            "limit": VANISHED,
            "limit_at_once": GONE,
        },
    )
