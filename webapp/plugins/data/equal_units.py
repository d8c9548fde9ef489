"""Finds layers whose units are copies of each other.

All rows of a weight begin as one row (`nn.init.constant_`, `torch.ones`), and either at each
sampled step all elements of the bias have a gradient of one size, or the layers after it begin so
as well: nothing makes one unit differ from the others, but for a bias, so the layer computes hardly
more than a single unit. Layers at the end are left out: a sum of outputs has such gradients too.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from lanescope.collector.format.loop_names import EQUAL_ROWS
from lanescope.collector.format.names import CLIP_VALUE
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import and_more
from lanescope.webapp.analysis.nothing_to_check import need_recorded
from lanescope.webapp.analysis.parameter_history import last_logged, logged, samples
from lanescope.webapp.plugins.learning.gradient_paths import ways
from lanescope.webapp.runs.run import Run

_MIN_SAMPLES = 4
_MIN_UNITS = 8
_ROUNDING = 1e-4
_LISTED = 20


def equal_units(run: Run) -> list[Finding]:
    """Returns findings of kind `dead_parameter`, at most one per rank. Raises NotApplicable."""
    sampled = need_recorded(samples(run), "record an optimizer step: no parameter was sampled")
    found = []
    for rank in run.ranks:
        rows = logged(run, rank, prefix=EQUAL_ROWS)
        # A bound makes gradients of any layer equal.
        if len(rows) and not len(last_logged(run, rank, CLIP_VALUE)):
            own = sampled[sampled["rank"] == rank]
            names = _copies(run, rank, own, _equal(rows, own))
            if names:
                found.append(_finding(run, rank, int(rows["step"].iloc[0]), names))
    return found


def _equal(rows: pd.DataFrame, sampled: pd.DataFrame) -> dict[str, float]:
    """Layers -> rows of a weight, where those of each of its weights are one row."""
    counts = dict(zip(rows["name"].astype("str"), rows["value"], strict=True))
    found = dict[str, float]()
    for layer, names in sampled.groupby("layer", sort=False)["parameter"].unique().items():
        own = [counts.get(str(name), 0.0) for name in names if "bias" not in str(name)]
        if own and min(own) > 0:
            found[str(layer)] = max(own)
    return found


def _copies(run: Run, rank: int, sampled: pd.DataFrame, equal: dict[str, float]) -> list[str]:
    """Layers of copies; `equal`: layer -> rows of its weight, where these are one row."""
    known = ways(run, rank)
    of_matrix = sampled.groupby("layer", sort=False)["numel"].agg(lambda one: one.max() > one.min())
    matrices = set(of_matrix.index[of_matrix])
    found = []
    for layer, passed in zip(known.layers, known.some, strict=True):
        after = {one for one, there in zip(known.layers, passed, strict=True) if there}
        if equal.get(layer, 0) >= _MIN_UNITS and after:
            own = sampled[sampled["layer"] == layer]
            if (after & matrices and after & matrices <= equal.keys()) or _same_gradients(own):
                found.append(layer)
    return found


def _same_gradients(sampled: pd.DataFrame) -> bool:
    """Whether all elements of a layer's bias have a gradient of one size at each sampled step."""
    bias = sampled["parameter"].astype("str").str.rsplit(".", n=1).str[-1].eq("bias")
    own = sampled[bias & (sampled["grad_norm"] > 0)]
    apart = (own["grad_max"] * np.sqrt(own["numel"]) - own["grad_norm"]).abs()
    return len(own) >= _MIN_SAMPLES and bool((apart <= _ROUNDING * own["grad_norm"]).all())


def _finding(run: Run, rank: int, step: int, names: list[str]) -> Finding:
    return finding_at(
        run,
        rank,
        step,
        kind="dead_parameter",
        confidence="likely",
        title=f"All units of {names[0]}{and_more(len(names), 'layer')} are copies of each other: "
        "they begin with the same weights, and get the same gradients, so the layer can do hardly "
        "more than a single unit. Begin with random weights, such as those of "
        "nn.init.kaiming_uniform_() or of nn.Linear itself.",
        evidence={"cause": "equal_units", "layers": names[:_LISTED]},
    )
