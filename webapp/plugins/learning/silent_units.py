"""Finds layers most of whose units are dead or saturated.

- dead: at every sampled step the gradient of most elements of its bias was exactly zero, although
  the batch had rows enough: no row reached these units. Layers whose output nothing else uses are
  left out: of many outputs the loss may choose one. Nothing is said where the biases of these have
  such elements too: no activation cuts them off, so the program zeroes gradients itself, as where
  it compresses them to the largest.
- saturated: at every sampled step what a Tanh or a Sigmoid returned was next to its bounds, as its
  norm proves, or nearly so in several activations, and a layer came after it. The mean slope of
  tanh is 1 - mean square of its results; that of a sigmoid at most the root of the mean square of
  its results, or 1 - that mean square.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from lanescope.collector.format.names import BATCH_ROWS, SETTINGS
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import and_more
from lanescope.webapp.analysis.nothing_to_check import need_recorded
from lanescope.webapp.analysis.parameter_history import logged, samples
from lanescope.webapp.plugins.learning.gradient_paths import ways
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

MIN_DEAD_SHARE = 0.75  # of the elements of a bias
MIN_UNITS = 16
_MIN_ROWS = 8  # of a batch: of fewer, none may reach a unit by chance
_MIN_SAMPLES = 4  # sampled steps
SLOPE = 0.03  # mean slope of an activation below which it is saturated
_SLOPE_OF_SEVERAL, _SEVERAL = 0.12, 3  # activations one after the other, whose slopes multiply
_MIN_ELEMENTS = 64
_MIN_RATE = 0.9  # of a dropout
_LISTED = 20  # layers named in the evidence

_ADVICE = (
    "Check the scale of the input, the initialisation and the learning rate; normalise before the "
    "activation, or use one that has a gradient everywhere."
)


def silent_units(run: Run) -> list[Finding]:
    """Returns findings of kind `dead_parameter`. Raises NotApplicable."""
    sampled = need_recorded(samples(run), "record an optimizer step: no parameter was sampled")
    found = []
    for rank in run.ranks:
        found += _dead(run, rank, sampled[sampled["rank"] == rank])
        found += _saturated(run, rank)
    return found


def _dead(run: Run, rank: int, sampled: pd.DataFrame) -> list[Finding]:
    rows = logged(run, rank, prefix=BATCH_ROWS)
    few = rows["name"].astype("str").str.startswith("input/") & (rows["value"].abs() < _MIN_ROWS)
    known = ways(run, rank)
    inner = [layer for layer, passed in zip(known.layers, known.some, strict=True) if passed.any()]
    if rows.empty or few.any() or not inner:
        return []
    bias = sampled["parameter"].astype("str").str.rsplit(".", n=1).str[-1].eq("bias")
    ends = sampled[bias & ~sampled["layer"].isin(inner)]
    if len(ends) and (ends["grad_zeros"] > 0).all():
        return []
    own = sampled[bias & sampled["layer"].isin(inner) & (sampled["numel"] >= MIN_UNITS)]
    own = own[own["trainable"].astype(bool) & own["grad_zeros"].notna()]
    groups = own.groupby("layer", sort=False)
    least = groups["grad_zeros"].min()
    dead = (
        (least >= MIN_DEAD_SHARE)
        & (groups["grad_zeros"].max() > 0)
        & (groups.size() >= _MIN_SAMPLES)
    )
    dead &= groups["grad_norm"].max() > 0  # zero as a whole is another finding
    dead &= ~dead.index.isin(_reached(sampled, ~bias))
    if not dead.any():
        return []
    names = [str(one) for one in dead.index[dead]]
    first = own[own["layer"] == names[0]].iloc[0]
    count, steps = round(float(least[names[0]]) * first["numel"]), int(groups.size()[names[0]])
    title = (
        f"{count} of {first['numel']} units of {names[0]}{and_more(len(names), 'layer')} have a "
        f"gradient of exactly zero at each of {steps} sampled steps: they are dead (ReLU) or "
        f"saturated, and learn nothing. {_dropped_out(run, rank) or _ADVICE}"
    )
    return [_finding(run, rank, int(first["step"]), title, "dead_units", names)]


def _dropped_out(run: Run, rank: int) -> str | None:
    """What to do where a dropout leaves nearly all units out."""
    settings = logged(run, rank, prefix=SETTINGS)
    rates = settings[settings["name"].astype("str").str.endswith(".p")]
    rates = rates[rates["value"].between(_MIN_RATE, 1)]
    if rates.empty:
        return None
    name, rate = str(rates["name"].iloc[0]).removesuffix(".p"), float(rates["value"].iloc[0])
    return (
        f"Dropout {name} leaves out {units.share(rate)} of them: p is the share that is left out, "
        "not the share that is kept."
    )


def _reached(sampled: pd.DataFrame, other: pd.Series) -> set[str]:
    """Layers whose weights have too few gradients of zero for dead units: those of a bias cancel
    out, as a critic's of two batches with as many active rows."""
    own = sampled[other & sampled["trainable"].astype(bool) & sampled["grad_zeros"].notna()]
    return set(own.loc[own["grad_zeros"] < MIN_DEAD_SHARE, "layer"])


def _saturated(run: Run, rank: int) -> list[Finding]:
    rows = to_frame(run.events("activation", rank)).sort_values("time_ns")
    modules = to_frame(run.events("module", rank)).drop_duplicates("path").set_index("path")
    rows = rows[rows["training"].astype(bool)]
    if rows.empty or modules.empty:
        return []
    kind = rows["module"].map(modules["class"].astype("str").str.rsplit(".", n=1).str[-1])
    layer = rows["module"].map(modules["parameters"]).fillna(0) > 0
    last = rows["time_ns"].where(layer).groupby(rows["step"]).transform("max")
    square = rows["norm"] ** 2 / rows["numel"]
    slope = (1 - square).where(kind == "Tanh")
    # A sigmoid's results are of one sign, and so a mean square next to 1 means a mean next to 1.
    slope = slope.mask(kind == "Sigmoid", np.minimum(np.sqrt(square), 1 - square))
    own = rows.assign(slope=slope)[slope.notna() & (rows["time_ns"] < last)]
    own = own[own["numel"] >= _MIN_ELEMENTS]
    highest = own.groupby("module", sort=False, observed=True)["slope"].max()
    names = [str(one) for one in highest.index[highest < SLOPE]]
    several = [str(one) for one in highest.index[highest < _SLOPE_OF_SEVERAL]]
    if len(several) >= _SEVERAL:
        names = several
    if not names:
        return []
    steps = int(own.loc[own["module"] == names[0], "step"].nunique())
    at = "sampled step" if steps == 1 else f"of {steps} sampled steps"
    title = (
        f"{names[0]}{and_more(len(names), 'activation')} saturated at each {at}: what it returns "
        f"is next to its bounds, and its slope is {units.share(float(highest[names[0]]))} on "
        f"average, so almost no gradient passes. {_ADVICE}"
    )
    return [_finding(run, rank, int(own["step"].iloc[0]), title, "saturated", names)]


def _finding(run: Run, rank: int, step: int, title: str, cause: str, names: list[str]) -> Finding:
    return finding_at(
        run,
        rank,
        step,
        kind="dead_parameter",
        confidence="likely",
        title=title,
        evidence={"cause": cause, "layers": names[:_LISTED], "dead": len(names)},
    )
