"""Finds recurrences and attention that take the samples of a batch for the positions of a sequence.

torch's recurrent and attention layers expect [length, batch, features] unless batch_first=True. The
operators show which dimension is taken for the length, the loss shows how many samples there are:
as many as the length, and another number than the batch.

Or a loss flattens scores [length, batch, classes] and targets [batch, length], or a table of
positions is added to samples.

And recurrent cells between whose calls nothing but a detached state passes: no gradient goes from a
position to the one before it, so what comes early is not learned.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from lanescope.collector.format.loop_names import FLATTENED_APART
from lanescope.webapp.analysis.arrow_columns import ops_named, stack_of, texts_of, to_frame
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.forward_ops import DETACH, forward_rows
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import of_operators
from lanescope.webapp.analysis.op_inputs import tensor_shapes
from lanescope.webapp.analysis.parameter_history import samples
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.plugins.autograd_graph.autograd_graph import graph_nodes
from lanescope.webapp.plugins.losses.loss_graph import (
    LossGraph,
    LossNode,
    each_graph,
    each_rank_of_graphs,
    graph_finding,
    input_shapes,
    loss_facts,
    of_attention,
    of_class_losses,
)
from lanescope.webapp.runs.run import Run

_LOSSES = (
    "BinaryCrossEntropy",
    "BinaryCrossEntropyWithLogits",
    "HuberLoss",
    "MseLoss",
    "NllLoss",
    "SmoothL1Loss",
)
_RECURRENCE = re.compile(r"aten::(gru|lstm|rnn_relu|rnn_tanh)")
_CELL = re.compile(r"aten::(gru|lstm|rnn_relu|rnn_tanh)_cell")
_MIN_CALLS = 4  # of a cell in a forward: fewer may be rounds of a refinement
_MAX_CALLS = 64
_PROJECTION = "aten::linear"
_ATTENTION = "torch.nn.modules.activation.MultiheadAttention"


class _Layer(NamedTuple):
    """What a layer takes for positions and samples."""

    length: int
    batch: int
    kind: str
    stack: int | None


@each_graph
def sequence_dims(run: Run, rank: int, graph: LossGraph) -> Finding | None:
    """Returns findings of kind `mixed_samples`, at most one per rank. Raises NotApplicable."""
    shapes = _compared(graph)
    rows = {one[0] for one in shapes if one}
    if len(rows) != 1:
        return None
    samples = rows.pop()
    layers = list(_layers(run, rank, graph.time_ns))
    mixed = all(
        one.length == samples > 1 and one.batch > 1 and not any(one.batch in of for of in shapes)
        for one in layers
    )
    if not layers or not mixed:
        return None
    layer = layers[0]
    where = own_place(run, rank, layer.stack)
    at = at_place(where)
    return graph_finding(
        run,
        rank,
        graph,
        kind="mixed_samples",
        title=f"The {layer.kind}{at} takes the {layer.length} samples of the batch, which the loss "
        f"compares with as many targets, for the positions of a sequence, and the {layer.batch} "
        "positions for samples: it mixes samples. Its input is [batch, length, features] and "
        "should be [length, batch, features], or the other way round: change batch_first.",
        where=where,
        evidence={"cause": "batch_first", "samples": layer.length, "positions": layer.batch},
    )


def _compared(graph: LossGraph) -> list[list[int]]:
    """Shapes of what losses compare with targets."""
    losses = [one for one in graph.nodes.values() if one.name in _LOSSES]
    return [shape for one in losses for shape in input_shapes(one)[:1]]


def _layers(run: Run, rank: int, before_ns: int) -> Iterator[_Layer]:
    """Yields layers of the first forward for which lengths and batches are two numbers."""
    modules = run.events("module", rank, columns=["path", "class"]).to_pylist()
    attention = {str(one["path"]) for one in modules if str(one["class"]) == _ATTENTION}
    if not attention and not any(map(_RECURRENCE.fullmatch, texts_of(run, "op", "name", rank))):
        return
    columns = ["start_ns", "name", "module", "shapes", "stack"]
    for thread in run.threads_of(rank):
        ops = ops_named(
            run,
            rank,
            thread.thread,
            columns,
            lambda name: name == _PROJECTION or _RECURRENCE.fullmatch(name),
        )
        ops = ops[ops["start_ns"] < before_ns]
        seen = set[str]()
        for _, op in ops.iterrows():
            module = str(op["module"])
            if op["name"] != _PROJECTION:
                yield from _recurrence(op)
            elif module in attention and module not in seen:
                seen.add(module)
                shape = tensor_shapes(str(op["shapes"]))[0]
                if len(shape) == 3 and shape[0] != shape[1]:
                    yield _Layer(shape[0], shape[1], "attention", stack_of(op))


def _recurrence(op: pd.Series) -> Iterator[_Layer]:
    """The batch of the state is that of the input: one of its first two dimensions."""
    shapes = tensor_shapes(str(op["shapes"]))
    if len(shapes) < 2:
        return
    read, state = shapes[:2]
    if len(read) != 3 or len(state) != 3 or (read[0] == state[1]) == (read[1] == state[1]):
        return
    length = read[0] if read[1] == state[1] else read[1]
    yield _Layer(length, state[1], str(op["name"]).removeprefix("aten::"), stack_of(op))


@of_operators(_CELL, "calls no recurrent cell")
@each_graph
def cut_recurrences(run: Run, rank: int, graph: LossGraph) -> Finding | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    rows = forward_rows(run, rank, graph_nodes(run, rank))
    cells = rows[rows["name"].astype("str").str.fullmatch(_CELL.pattern)]
    for module, calls in cells.groupby("module", sort=False, observed=True):
        where = _cut_at(run, rank, rows, calls) if len(calls) >= _MIN_CALLS else None
        if where is not None and not _hands_back(graph, calls):
            return graph_finding(
                run,
                rank,
                graph,
                title=f"The state of the recurrent cell {module} is detached at {where} before "
                f"each of its next calls, {len(calls)} in a forward, and nothing else leads back: "
                "no gradient passes from a position to the one before it, so the cell does not "
                "learn what to remember. Leave detach() out of the loop over positions; detach the "
                "state once, where the next batch begins.",
                where=where,
                evidence={"cause": "cut_recurrence", "module": str(module), "calls": len(calls)},
            )
    return None


def _cut_at(run: Run, rank: int, rows: pd.DataFrame, calls: pd.DataFrame) -> str | None:
    """The line that detaches something between any two calls of a cell; None: no line does, or
    a call made no graph."""
    begins, ends = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    made = np.sort(rows.loc[rows["sequence"].notna(), "start_ns"].to_numpy())
    if (made.searchsorted(begins) == made.searchsorted(ends)).any():
        return None
    detaches = rows[rows["name"].isin(DETACH)]
    places: set[str | None] | None = None
    for end, begin in zip(ends[:-1], begins[1:], strict=True):
        between = detaches[(detaches["start_ns"] >= end) & (detaches["start_ns"] < begin)]
        own = {own_place(run, rank, stack_of(op)) for _, op in between.iterrows()}
        places = own if places is None else places & own
    return min(filter(None, places or ()), default=None)


def _hands_back(graph: LossGraph, calls: pd.DataFrame) -> bool:
    """Whether the graph leads from a call of a cell to an earlier one; true where the loss does not
    depend on the cell."""
    begins, ends = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    call_of, nodes_of = dict[int, int](), dict[int, list[int]]()
    for node in graph.nodes.values():
        if node.start_ns is None:
            continue
        place = int(begins.searchsorted(node.start_ns, "right")) - 1
        if place >= 0 and node.start_ns < ends[place]:
            call_of[node.number] = place
            nodes_of.setdefault(place, []).append(node.number)
    return not nodes_of or any(
        call_of.get(one.number, place) < place
        for place, own in [*nodes_of.items()][:_MAX_CALLS]
        for one in graph.below(*own)
    )


@of_attention
@each_graph
def positions_of_samples(run: Run, rank: int, graph: LossGraph) -> Finding | None:
    """Returns findings of kind `mixed_samples`, at most one per rank. Raises NotApplicable."""
    lengths = {length for node in graph.nodes.values() for length in _attended(node)}
    for node in graph.nodes.values():
        read, added = (*input_shapes(node), [], [])[:2]
        if node.name != "Add" or len(node.next) != 1 or len(read) != 3 or node.start_ns is None:
            continue
        rows, length, width = read
        if added != [rows, 1, width] or length not in lengths or rows in lengths or rows == 1:
            continue
        buffer = _buffer_read(run, rank, graph.thread, node.start_ns)
        if buffer is not None:
            return graph_finding(
                run,
                rank,
                graph,
                kind="mixed_samples",
                title=f"The sum{node.at} adds a row of {buffer} to each of {rows} samples, the "
                f"same at all {length} positions: attention takes the second dimension of {read} "
                "for positions, so the model does not know them, and distinguishes samples by "
                "their place in the batch. Add rows of the second dimension: "
                "pe[: x.size(1)].transpose(0, 1).",
                where=node.where,
                evidence={"cause": "positions_of_samples", "buffer": buffer, "samples": rows},
            )
    return None


def _attended(node: LossNode) -> list[int]:
    """How many positions a node of attention goes over."""
    if node.name.startswith("ScaledDotProduct"):
        return [one[-2] for one in input_shapes(node)[:1] if len(one) > 1]
    if node.name in ("SafeSoftmax", "Softmax"):
        return [one[-1] for one in input_shapes(node)[:1] if len(one) > 2 and one[-1] == one[-2]]
    return []


def _buffer_read(run: Run, rank: int, thread: str, start_ns: int) -> str | None:
    """The buffer of a module that an operator reads."""
    columns, window = ["start_ns", "storage", "write"], (start_ns, start_ns + 1)
    accesses = to_frame(run.events("access", rank, thread, columns, window))
    read = accesses.loc[(accesses["start_ns"] == start_ns) & ~accesses["write"], "storage"]
    names = to_frame(run.events("storage", rank, columns=["storage", "name"]))
    names = names[names["storage"].isin(read)]["name"].astype("str")
    return next((one for one in names[~names.isin(samples(run)["parameter"])]), None)


@of_class_losses
@each_rank_of_graphs
def flattened_apart(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `mixed_samples`, at most one per rank. Raises NotApplicable."""
    for fact in loss_facts(run, rank, FLATTENED_APART):
        length, rows = map(int, fact.rest)
        return fact.finding(
            run,
            rank,
            kind="mixed_samples",
            title=f"The loss{fact.node.at} flattens scores of [{length}, {rows}, classes] and "
            f"targets of [{rows}, {length}]: the one goes position by position, the other sample "
            "by sample, so each score is compared with the target of another place. Transpose one "
            "of them before view() or reshape(), or use batch_first=True.",
            evidence={"cause": "flattened_apart", "length": length, "samples": rows},
        )
    return None
