"""Finds samples and codes that a model computes with, and that pass no gradient to their origin.

`Normal(mu, sigma).sample()` and `torch.normal(mu, sigma)` are for actions and noise. In an
autoencoder, the decoder then trains and the encoder learns from the rest of the loss alone. Found
where mean and deviation are in the graph of the first backward, and layers alone read the sample: a
policy's gradient compares it with the mean.

The nearest rows of a table (`table[distances.argmin(1)]`) pass no gradient to what they are near to
either. Found where a layer reads these rows themselves, and what was compared is in the graph, as
by its distance to the rows; passed straight through, `z + (rows - z).detach()`, they are another
tensor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pandas as pd

from lanescope.webapp.analysis.arrow_columns import stack_of
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.forward_ops import Operator, add_accesses, forward_rows, outermost
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import of_operators
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.plugins.autograd_graph.autograd_graph import graph_nodes
from lanescope.webapp.plugins.losses.loss_graph import (
    LossGraph,
    each_graph,
    graph_finding,
)
from lanescope.webapp.runs.run import Run

_NEAREST, _LOOKUPS = "aten::argmin", ("aten::embedding", "aten::index", "aten::index_select")
_MOST = 40
"""Operators between a layer and argmin()."""

_DRAW, _JOIN = "aten::normal", "aten::cat"
_LAYERS = frozenset(
    f"aten::{name}"
    for name in (
        "addmm",
        "bmm",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "linear",
        "matmul",
        "mm",
    )
)


@of_operators(_DRAW, "draws no sample from a normal distribution")
@each_graph
def cut_samples(run: Run, rank: int, graph: LossGraph) -> Finding | None:
    """Returns findings of kind `wrong_gradient`, at most one per rank. Raises NotApplicable."""
    row = _cut_row(run, rank, _DRAW, _cut_draw)
    if row is None:
        return None
    where = own_place(run, rank, stack_of(row))
    return graph_finding(
        run,
        rank,
        graph,
        kind="wrong_gradient",
        title=f"The sample{at_place(where)} passes no gradient to its mean and "
        "deviation, and layers that the loss depends on compute with it: what makes the mean "
        "learns from the other terms of the loss alone. Use rsample() instead of sample(), or "
        "mean + deviation * torch.randn_like(deviation) instead of torch.normal().",
        where=where,
        evidence={"cause": "cut_sample"},
    )


@of_operators(_NEAREST, "does not call argmin()")
@each_graph
def cut_codes(run: Run, rank: int, graph: LossGraph) -> Finding | None:
    """Returns findings of kind `wrong_gradient`, at most one per rank. Raises NotApplicable."""
    row = _cut_row(run, rank, _NEAREST, _cut_lookup)
    if row is None:
        return None
    where = own_place(run, rank, stack_of(row))
    return graph_finding(
        run,
        rank,
        graph,
        kind="wrong_gradient",
        title=f"The codes{at_place(where)} pass no gradient to what they are the nearest rows to: "
        "argmin() has none, and layers compute with the rows themselves, so what comes before it "
        "learns nothing from what follows. Pass it straight through: "
        "codes = z + (codes - z).detach().",
        where=where,
        evidence={"cause": "cut_codes"},
    )


def _cut_row(
    run: Run, rank: int, name: str, cut: Callable[[list[Operator], set[int]], Operator | None]
) -> pd.Series | None:
    """The row of the operator that `cut` finds in the forward of the first graph, whose sequence
    numbers it gets; None also where no operator has that name."""
    nodes = graph_nodes(run, rank)
    rows = forward_rows(run, rank, nodes)
    ops = outermost(rows)
    if not any(op.name == name for op in ops):
        return None
    add_accesses(run, rank, nodes, ops)
    found = cut(ops, {int(one) for one in nodes["sequence"].dropna()})
    return None if found is None else rows.iloc[found.row]


def _cut_lookup(ops: list[Operator], in_graph: set[int]) -> Operator | None:
    """The first lookup of nearest rows which a layer of the graph reads; None where what they are
    near to and what layers made of the rows are joined, as by a straight way behind a layer."""
    writer, sources, cut = dict[int, int](), list[set[int]](), None
    near = dict[int, set[int]]()  # argmin, or a lookup by it -> operators before it
    lookup_of = dict[int, int]()  # rows, and results of them -> their lookup
    for number, op in enumerate(ops):
        own = {writer[one] for one in op.reads - op.born if one in writer}
        sources.append(own)
        writer |= dict.fromkeys(op.writes, number)
        if op.name == _NEAREST:
            near[number] = _before(sources, number)
        compared = set().union(*(near[one] for one in own & near.keys()))
        tables = op.reads - writer.keys()
        if op.name in _LOOKUPS and any(tables & ops[one].reads for one in compared):
            near[number], lookup_of[number] = compared, number
        elif lookups := {lookup_of[one] for one in own & lookup_of.keys()}:
            lookup = lookup_of[number] = min(lookups)
            encoded = {one for one in near[lookup] if ops[one].made & in_graph}
            if lookup not in own and encoded & own:
                return None
            if lookup in own and encoded and op.name in _LAYERS and op.made & in_graph:
                cut = cut or ops[lookup]
    return cut


def _before(sources: list[set[int]], number: int) -> set[int]:
    """Operators that an operator's input is made of, and itself."""
    found, waiting = {number}, [number]
    while waiting and len(found) < _MOST:
        new = sources[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def _cut_draw(ops: list[Operator], in_graph: set[int]) -> Operator | None:
    """The first draw from a distribution in the graph whose numbers layers of the graph read."""
    writer = dict[int, int]()
    readers = defaultdict[int, list[int]](list)  # number of an operator -> who reads its result
    draws = []
    for number, op in enumerate(ops):
        sources = {writer[one] for one in op.reads - op.born if one in writer}
        for source in sources:
            readers[source].append(number)
        if op.name == _DRAW and any(ops[one].made & in_graph for one in sources):
            draws.append(number)
        writer |= dict.fromkeys(op.writes, number)
    for draw in draws:
        read_by = list(readers[draw])
        for number in read_by:  # grows
            if ops[number].name == _JOIN:
                read_by += readers[number]
        found = [ops[number] for number in read_by if ops[number].name != _JOIN]
        if found and all(op.name in _LAYERS and op.made & in_graph for op in found):
            return ops[draw]
    return None
