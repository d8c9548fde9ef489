"""Finds recurrences and attention that take the samples of a batch for the positions of a sequence.

torch's recurrent and attention layers expect [length, batch, features] unless batch_first=True. The
operators show which dimension is taken for the length, the loss shows how many samples there are:
as many as the length, and another number than the batch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

from lanescope.webapp.analysis.arrow_columns import ops_named, stack_of, texts_of
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.plugins.losses.loss_graph import (
    LossGraph,
    each_graph,
    graph_finding,
    input_shapes,
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
_PROJECTION = "aten::linear"
_ATTENTION = "torch.nn.modules.activation.MultiheadAttention"
_SHAPE = re.compile(r"\[([^\]]*)\]")


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
    return _finding(run, rank, graph, layers[0]) if layers and mixed else None


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
                shape = _shapes(op)[0]
                if len(shape) == 3 and shape[0] != shape[1]:
                    yield _Layer(shape[0], shape[1], "attention", stack_of(op))


def _recurrence(op: pd.Series) -> Iterator[_Layer]:
    """The batch of the state is that of the input: one of its first two dimensions."""
    shapes = _shapes(op)
    if len(shapes) < 2:
        return
    read, state = shapes[:2]
    if len(read) != 3 or len(state) != 3 or (read[0] == state[1]) == (read[1] == state[1]):
        return
    length = read[0] if read[1] == state[1] else read[1]
    yield _Layer(length, state[1], str(op["name"]).removeprefix("aten::"), stack_of(op))


def _shapes(op: pd.Series) -> list[list[int]]:
    found = _SHAPE.findall(str(op["shapes"]))
    return [[int(one) for one in sizes.split(",") if one.strip()] for sizes in found]


def _finding(run: Run, rank: int, graph: LossGraph, layer: _Layer) -> Finding:
    where = own_place(run, rank, layer.stack)
    at = f" at {where}" if where else ""
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
