"""Finds the layers that a layer's gradient passes on its way from the loss.

The autograd graph of the first backward (`autograd_graph`) shows them: each node has the module
whose forward made it. Layers that made no node of it are unknown: those of another model than the
one that ran backward first, and those that torch.compile or a checkpoint made one node of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from lanescope.webapp.analysis.parameter_history import rank_gradient_rows
from lanescope.webapp.plugins.autograd_graph.autograd_graph import graph_nodes
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import BoolArray

NEAREST = 2  # layers: of a single one the gradient may be next to zero by construction


@dataclass(frozen=True)
class Ways:
    """Between each of some layers and the loss."""

    layers: tuple[str, ...]
    some: BoolArray  # [i, j]: a part of layer i's gradient passes layer j
    nearest: dict[str, tuple[str, ...]]  # at most NEAREST to the loss that all of it passes

    @property
    def inner(self) -> frozenset[str]:
        """Layers that the gradient of another passes."""
        return frozenset(np.array(self.layers, object)[self.some.any(axis=0)])


@lru_cache(maxsize=8)
def ways(run: Run, rank: int) -> Ways:
    """Returns the ways of a rank's layers that have nodes in the graph."""
    nodes = graph_nodes(run, rank)
    if nodes.empty:
        return Ways((), np.zeros((0, 0), bool), {})
    layers = [str(one) for one in rank_gradient_rows(run, rank)["layer"].unique()]
    places = {layer: i for i, layer in enumerate(layers)}
    own = {
        int(row.node): places.get(str(row.module), -1) if row.parameter == "" else -1
        for row in nodes.itertuples()
    }
    following = {
        int(row.node): [int(one) for one in str(row.next).split() if int(one) in own]
        for row in nodes.itertuples()
    }
    # Sets of layers as bits of a number: there may be thousands, at each of 20,000 nodes.
    some, every = dict.fromkeys(own, 0), dict.fromkeys(own, -1)
    some_of, every_of = dict.fromkeys(own.values(), 0), dict.fromkeys(own.values(), -1)
    for node in _from_the_loss(following):
        place = own[node]
        certain = max(every[node], 0)  # -1: the loss itself
        some_of[place] |= some[node]
        every_of[place] &= certain
        bit = 1 << place if place >= 0 else 0
        for one in following[node]:
            some[one] |= some[node] | bit
            every[one] &= certain | bit
    known = sorted(place for place in some_of if place >= 0)
    passed = np.zeros((len(known), len(layers)), bool)
    for i, place in enumerate(known):
        passed[i] = _flags(some_of[place], len(layers))
        passed[i, place] = False
    passed = passed[:, known]
    far = passed.sum(axis=1)
    nearest = {}
    for place in known:
        all_ = np.flatnonzero(_flags(every_of[place], len(layers))[known])
        order = [known[i] for i in all_[np.argsort(far[all_], kind="stable")]]
        nearest[layers[place]] = tuple(layers[i] for i in order if i != place)[:NEAREST]
    return Ways(tuple(layers[place] for place in known), passed, nearest)


def _flags(bits: int, count: int) -> BoolArray:
    read = np.frombuffer(bits.to_bytes(count // 8 + 1, "little"), np.uint8)
    return np.unpackbits(read, bitorder="little")[:count].astype(bool)


def _from_the_loss(following: dict[int, list[int]]) -> Iterable[int]:
    """The nodes, each after all that hand gradients to it."""
    waits = Counter(one for targets in following.values() for one in targets)
    ready = [node for node in following if not waits[node]]
    while ready:
        node = ready.pop()
        yield node
        for one in following[node]:
            waits[one] -= 1
            if not waits[one]:
                ready.append(one)


def layer_norms(rows: pd.DataFrame, index: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Squares of norms, and elements, by `index` (rows: step, or call) and layer (columns).

    NaN: the layer had no gradient then.
    """
    there = rows[~rows["missing"] & (rows["numel"] > 0)]
    there = there.assign(square=there["norm"] ** 2)
    groups = there.groupby([index, "layer"], sort=False)
    squares, elements = (groups[one].sum().unstack() for one in ("square", "numel"))
    return squares.sort_index(), elements.sort_index()


def relative_to_passed(rows: pd.DataFrame, known: Ways) -> pd.DataFrame:
    """Returns a layer's gradient per element in parts of that of the layers that it passed, by
    step.

    `rows` are a rank's. Columns are layers of `known`. NaN: the layer had no gradient then, or
    those that it passed had none, or it passes none. Parameters of one element, which have a unit
    of their own, are not among what was passed, nor are gradients that are NaN or infinite.
    """
    last = rows.drop_duplicates(["step", "parameter"], keep="last")
    layers = list(known.layers)
    squares, elements = (one.reindex(columns=layers) for one in layer_norms(last, "step"))
    passed = last[(last["numel"] > 1) & np.isfinite(last["norm"])]
    others, weights = (
        one.reindex(index=squares.index, columns=layers).fillna(0).to_numpy()
        for one in layer_norms(passed, "step")
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        whole = (others @ known.some.T) / (weights @ known.some.T)
    return np.sqrt((squares / elements) / np.where(whole > 0, whole, np.nan))


def growth(rows: pd.DataFrame, known: Ways) -> pd.DataFrame:
    """Returns how much larger a layer's gradient is than near the loss, by step.

    Per element, the smallest of its parameters over the largest of the NEAREST layers to the loss
    that all of its gradient passed, or, without such layers, of all that it passed. `rows` are a
    rank's; columns are the layers of `known` with a known path. The first layer's weight alone
    does not count, for its gradient is multiplied by the model's inputs, nor does a parameter of
    one element, which has its own unit.
    """
    last = rows.drop_duplicates(["step", "parameter"], keep="last")
    last = last[~last["missing"] & (last["numel"] > 1)]
    means = (last["norm"] / np.sqrt(last["numel"])).groupby([last["step"], last["layer"]])
    least, most = means.min().unstack().sort_index(), means.max().unstack().sort_index()
    several = last.groupby("layer")["parameter"].nunique() > 1
    names, inner = np.array(known.layers, object), known.inner
    found = {}
    for i, layer in enumerate(known.layers):
        passed = [one for one in known.nearest[layer] if one in most.columns]
        passed = passed or [one for one in names[known.some[i]] if one in most.columns]
        if layer in least.columns and passed and (several[layer] or layer in inner):
            near = most[passed].max(axis=1)
            found[layer] = least[layer] / near.where(near > 0)
    return pd.DataFrame(found)
