"""Finds gradient penalties without effect: `autograd.grad()` without create_graph=True.

What it returns is a constant to autograd, so a penalty of it adds a number to the loss and no
gradient. Found where the loss of the first backward adds a tensor without gradients that was
computed, by operators without gradients, from what an earlier backward made.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import stack_of, to_frame
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.plugins.losses.attached_targets import added_nodes
from lanescope.webapp.plugins.losses.loss_graph import (
    LossGraph,
    LossNode,
    each_graph,
    graph_finding,
    input_shapes,
)
from lanescope.webapp.runs.run import Run

_ADDS = ("Add", "Sub")
_MOST = 40
"""Operators between gradients and the loss."""


@each_graph
def constant_penalty(run: Run, rank: int, graph: LossGraph) -> Finding | None:
    """Returns findings of kind `wrong_loss`, at most one per rank. Raises NotApplicable."""
    if not run.counts_of(rank)["access"]:
        return None
    sums = [
        one
        for one in added_nodes(graph)
        if one.name in _ADDS and len(one.next) == 1 and len(input_shapes(one)) == 2
    ]
    passes = _passes(run, rank, graph.time_ns) if sums else []
    for one in sums if passes else ():
        origin = _origin(run, rank, one, passes)
        if origin is not None:
            return _finding(run, rank, graph, one, origin)
    return None


def _passes(run: Run, rank: int, before_ns: int) -> list[tuple[str, int, int]]:
    """Thread, begin and end of backward passes that ended before an instant."""
    columns = ["thread", "start_ns", "duration_ns", "kind"]
    rows = run.events("phase", rank, columns=columns, window=(0, before_ns))
    backward = pc.equal(rows["kind"].cast(pa.string()), schema.PhaseKind.backward.name)
    own = to_frame(rows.filter(backward)).dropna()
    ends = own["start_ns"] + own["duration_ns"]
    own = own.assign(end=ends)[ends < before_ns]
    return [(str(one.thread), int(one.start_ns), int(one.end)) for one in own.itertuples()]


def _origin(run: Run, rank: int, node: LossNode, passes: list[tuple[str, int, int]]) -> str | None:
    """The line that computes a penalty from gradients; None: the sum adds nothing of the kind."""
    thread = passes[0][0]
    window = (0, (node.start_ns or 0) + 1)
    columns = ["start_ns", "depth", "sequence", "stack"]
    ops = to_frame(run.events("op", rank, thread, columns, window))
    ops = ops.drop_duplicates(["start_ns", "depth"]).set_index(["start_ns", "depth"])
    rows = to_frame(
        run.events("access", rank, thread, [*columns[:2], "storage", "write", "birth"], window)
    )
    born = rows[rows["birth"]]
    read = dict(list(rows[~rows["write"] & ~rows["birth"]].groupby(["start_ns", "depth"])))
    at = [key for key in read if key[0] == node.start_ns][:1]
    ahead, seen = [(key, "") for key in at], set[tuple[int, int]]()
    while ahead and len(seen) < _MOST:
        key, place = ahead.pop()
        seen.add(key)
        for storage in read[key]["storage"].unique() if key in read else ():
            made = born[(born["storage"] == storage) & (born["start_ns"] < key[0])]
            if made.empty:
                continue
            last = made.iloc[-1]
            origin = int(last["start_ns"]), int(last["depth"])
            if any(begin < origin[0] < end for _, begin, end in passes):
                return place or None
            if origin in ops.index and origin not in seen:
                op = ops.loc[origin]
                if op["sequence"] != op["sequence"]:  # it was computed without gradients
                    ahead.append((origin, own_place(run, rank, stack_of(op)) or ""))
    return None


def _finding(run: Run, rank: int, graph: LossGraph, node: LossNode, made: str) -> Finding:
    at = f" at {node.where}" if node.where else ""
    return graph_finding(
        run,
        rank,
        graph,
        title=f"What the loss{at} adds is computed at {made} from gradients that are constants to "
        "autograd, so it adds a number and trains nothing. Pass create_graph=True to "
        "autograd.grad() (or backward()), and leave out detach().",
        where=made,
        evidence={"cause": "constant_penalty", "added_at": node.where},
    )
