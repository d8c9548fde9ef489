"""Compares gradients between ranks, layer by layer.

Replicas that average their gradients have the same norms on every rank. So each norm is held
against the median of all ranks that have the layer at that step: where one rank of many is apart,
the median is what the others have. Shards that were put together are of no rank (see
`parameter_history`), and a layer that a single rank holds has nothing to be held against.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from lanescope.webapp.analysis.nothing_to_check import need_steps
from lanescope.webapp.analysis.parameter_history import gradient_rows
from lanescope.webapp.plugins.gradients.layer_map import as_in_model, in_any_order
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import BoolArray, Float64Array

EQUAL = 1e-6
"""Relative difference up to which norms are the same: what summing in another order changes."""


@dataclass(frozen=True, eq=False)
class RankMap:
    """Ratios of norms to their median over ranks; 1: as the others, NaN: nothing to compare."""

    layers: list[str]  # in the order of the model
    ranks: list[int]
    steps: list[int]
    ratios: Float64Array  # layers x ranks x steps

    @property
    def apart(self) -> BoolArray:
        """Whether a norm is another one than the median; layers x ranks x steps."""
        away: BoolArray = np.abs(self.ratios - 1) > EQUAL
        return away

    @property
    def compared(self) -> bool:
        """Whether any layer is on two ranks at a step."""
        return bool(np.isfinite(self.ratios).any())

    @property
    def layers_apart(self) -> list[str]:
        """Layers in which a rank differs."""
        return [one for one, mine in zip(self.layers, self.apart, strict=True) if mine.any()]

    @property
    def ranks_apart(self) -> list[int]:
        """Ranks that differ in a layer."""
        by_rank = self.apart.swapaxes(0, 1)
        return [one for one, mine in zip(self.ranks, by_rank, strict=True) if mine.any()]

    def farthest(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Returns per layer and rank the ratio farthest from 1, and its step (-1: nothing
        compared)."""
        with np.errstate(divide="ignore"):
            away = np.abs(np.log(self.ratios))
        away = np.where(np.isnan(away), -1.0, away)
        at = away.argmax(axis=2)
        ratio = np.take_along_axis(self.ratios, at[:, :, None], axis=2)[:, :, 0]
        step = np.where(away.max(axis=2) < 0, -1, np.array(self.steps)[at])
        return (
            pd.DataFrame(ratio, index=self.layers, columns=self.ranks),
            pd.DataFrame(step, index=self.layers, columns=self.ranks),
        )

    def of_rank(self, rank: int) -> pd.DataFrame:
        """Returns ratio per layer and step of a rank."""
        own = self.ratios[:, self.ranks.index(rank)]
        return pd.DataFrame(own, index=self.layers, columns=self.steps)


def ranks_with_gradients(run: Run) -> list[int]:
    """Returns the ranks with gradients; those of shards count for the lowest rank that has some."""
    return sorted({int(rank) for rank in gradient_rows(run)["rank"]})


@lru_cache(maxsize=4)
def rank_map(run: Run, depth: int | None = None) -> RankMap:
    """Returns the ratios of a run; `depth` cuts paths of modules after so many names. Raises
    NotApplicable where no optimizer stepped."""
    need_steps(run)
    ranks = ranks_with_gradients(run)
    tables = [in_any_order(run, rank, "gradient", depth) for rank in ranks]
    seen: dict[str, None] = {}
    for rank, table in zip(ranks, tables, strict=True):
        own = [str(layer) for layer in table.index]
        if not seen.keys() >= set(own):  # only then does the rank's own order matter
            seen |= dict.fromkeys(as_in_model(run, rank, own))
    layers = list(seen)
    steps = sorted({int(step) for table in tables for step in table.columns})
    norms = np.stack(
        [table.reindex(index=layers, columns=steps).to_numpy(float) for table in tables], axis=1
    )
    with warnings.catch_warnings(), np.errstate(divide="ignore", invalid="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)  # where no rank has the layer
        median = np.nanmedian(norms, axis=1, keepdims=True)
        ratios = np.where(norms == median, 1.0, norms / median)
    alone = (~np.isnan(norms)).sum(axis=1, keepdims=True) < 2
    return RankMap(layers, ranks, steps, np.where(alone | np.isnan(norms), np.nan, ratios))
