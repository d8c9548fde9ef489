"""Finds functions of the program's own whose backward ignores the gradient that it gets.

By the chain rule backward() multiplies by `grad_output`. Found where the operators of such a
backward read what forward saved and what they made of it, and nothing that this pass made before,
and where the next node reads their result: also a scale, a weight or a sign of the loss is lost.

Left out is what the recording cannot follow: gradients that no operator of the pass wrote, as the
one that backward begins with, results that are handed on as they came, and memory of other origin,
such as that of numpy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from lanescope.webapp.analysis.arrow_columns import stack_of, to_frame
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.forward_ops import BACKWARD
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_accesses
from lanescope.webapp.analysis.stack_frames import first_place
from lanescope.webapp.plugins.autograd_graph.autograd_graph import graph_nodes
from lanescope.webapp.plugins.losses.loss_graph import (
    LossGraph,
    each_rank_of_graphs,
    graph_finding,
    loss_graph,
)
from lanescope.webapp.plugins.losses.tensor_reads import (
    READ_COLUMNS,
    Tensor,
    TensorReads,
    backward_ends,
)
from lanescope.webapp.runs.run import Run

_MAX_FUNCTIONS = 50


@dataclass(frozen=True)
class _Pass:
    """A backward pass: its nodes, and what their operators touched."""

    graph: LossGraph
    times: dict[int, tuple[int, int]]  # node -> begin and end
    touched: TensorReads

    def ignores(self, node: int) -> bool:
        """Whether a function computes what it returns without what it gets."""
        begin, end = self.times[node]
        read, made = self._touched(begin, end)
        known = frozenset.union(*self._touched(0, self.graph.time_ns))
        before = self._touched(self.graph.time_ns, begin)[1]
        below = self._below(node)
        from_saved = read - made and read - made <= known
        returned = made & below and not before & (read | made | below)
        return bool(from_saved and returned) and self._is_written_above(node)

    def _is_written_above(self, node: int) -> bool:
        """Whether all that a node gets is what operators of this pass wrote."""
        above = [number for number, one in self.graph.nodes.items() if node in one.next]
        return bool(above) and all(
            one in self.times
            and (self._touched(*self.times[one])[1] or self._is_written_above(one))
            for one in above
        )

    def _below(self, node: int) -> frozenset[Tensor]:
        """What the next nodes read, and those after them where they are views."""
        found = frozenset[Tensor]()
        for one in self.graph.nodes[node].next:
            if one in self.times:
                found |= self._touched(*self.times[one])[0] or self._below(one)
        return found

    def _touched(self, since_ns: int, until_ns: int) -> tuple[frozenset[Tensor], frozenset[Tensor]]:
        """Returns the tensors that are read, and those that are written, in [since, until)."""
        reads = self.touched.read(since_ns, until_ns)
        return frozenset(reads), frozenset(self.touched.written(since_ns, until_ns))


@each_rank_of_graphs
def ignored_gradients(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `wrong_gradient`, at most one per rank. Raises NotApplicable."""
    need_accesses(run)
    graph = loss_graph(run, rank)
    own = [] if graph is None else [one for one in graph.nodes.values() if one.op == one.name]
    if graph is None or not own:
        return None
    end = next((one for one in backward_ends(run, rank, graph.thread) if one > graph.time_ns), 0)
    columns = ["start_ns", "duration_ns", "scope", "sequence", "stack"]
    rows = to_frame(run.events("op", rank, graph.thread, columns, (graph.time_ns, end)))
    times = _times(rows[rows["scope"] == BACKWARD], graph_nodes(run, rank))
    accesses = run.events("access", rank, graph.thread, READ_COLUMNS, (0, end))
    one_pass = _Pass(graph, times, TensorReads(_of_operators(accesses, rows, graph.time_ns)))
    for node in own[:_MAX_FUNCTIONS]:
        if node.number in times and one_pass.ignores(node.number):
            began, ended = times[node.number]
            inside = rows[rows["start_ns"].between(began, ended)].iloc[::-1]
            where = first_place(run, rank, map(stack_of, inside.itertuples()))
            return graph_finding(
                run,
                rank,
                graph,
                kind="wrong_gradient",
                title=f"backward() of {node.name}{at_place(where)} ignores the gradient that it "
                "gets: it computes what it returns from what forward saved alone. Layers before "
                "it learn nothing of those after it, nor of the loss. Multiply by grad_output.",
                where=where,
                evidence={"cause": "ignored_gradient", "function": node.name},
            )
    return None


def _of_operators(accesses: pa.Table, ops: pd.DataFrame, since_ns: int) -> pa.Table:
    """Leaves out, from an instant on, writes of no operator: memory that torch.empty() made, which
    NumPy or a kernel may fill."""
    starts = accesses["start_ns"].to_numpy()
    kept = (starts < since_ns) | np.isin(starts, ops["start_ns"].to_numpy())
    at = accesses.column_names.index("write")
    return accesses.set_column(at, "write", pa.array(accesses["write"].to_numpy() & kept))


def _times(rows: pd.DataFrame, nodes: pd.DataFrame) -> dict[int, tuple[int, int]]:
    """Returns when each node began and ended."""
    first = rows.dropna(subset=["sequence", "duration_ns"]).drop_duplicates("sequence")
    first = first.set_index("sequence")
    known = nodes[nodes["sequence"].isin(first.index)]
    begins = first["start_ns"].astype("int64")
    ends = begins + first["duration_ns"].astype("int64")
    return {
        int(node): (int(begins[sequence]), int(ends[sequence]))
        for node, sequence in zip(known["node"], known["sequence"], strict=True)
    }
