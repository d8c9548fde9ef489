"""Reads the autograd graph of the first backward: what a node gets its input from, and its line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any

import pandas as pd

from lanescope.webapp.analysis.arrow_columns import stack_of, texts_of
from lanescope.webapp.analysis.cluster import found_per_rank
from lanescope.webapp.analysis.findings import (
    Confidence,
    Finding,
    NotApplicable,
    NotRecorded,
    Severity,
)
from lanescope.webapp.analysis.links import at_place, timeline_address
from lanescope.webapp.analysis.op_inputs import tensor_shapes
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.plugins.autograd_graph.autograd_graph import forward_operators, graph_nodes
from lanescope.webapp.runs.run import Run

_SUFFIX = re.compile(r"Backward\d*$")

SAME_NUMBERS = re.compile(
    r"(Alias|AsStrided|Clone|Expand|Index|Permute|ReshapeAlias|Select|Slice|Squeeze|T|ToCopy"
    r"|Transpose|UnsafeView|Unsqueeze|View)"
)
"""Nodes of operators that hand on the numbers of their input, in another shape or dtype."""


@dataclass(frozen=True)
class LossNode:
    """A node: its name without Backward0, and the operator that made it."""

    number: int
    name: str
    next: tuple[int, ...]
    parameter: str
    module: str
    op: str  # aten::sub; empty: not recorded
    shapes: str
    stack: int | None
    where: str | None  # file.py:12
    start_ns: int | None  # of that operator
    of_backward: bool  # that operator ran in a backward, as that of create_graph=True

    @property
    def at(self) -> str:
        """` at file.py:12`; empty: the place is not known."""
        return at_place(self.where)


@dataclass(frozen=True)
class LossGraph:
    """The graph of a rank's first backward."""

    step: int
    time_ns: int
    thread: str
    nodes: dict[int, LossNode]  # by number, the loss first

    def source(self, node: LossNode) -> LossNode | None:
        """Returns the node that made the numbers of a node's first input; None: a leaf."""
        if not node.next:
            return None
        made = self.down(self.nodes[node.next[0]], lambda one: SAME_NUMBERS.fullmatch(one.name))
        return None if SAME_NUMBERS.fullmatch(made.name) else made

    def down(self, node: LossNode, passes: Callable[[LossNode], object]) -> LossNode:
        """Returns the first node that does not pass, or a leaf: from a node along first inputs."""
        for _ in self.nodes:  # a damaged file may hold a circle
            if not node.next or not passes(node):
                break
            node = self.nodes[node.next[0]]
        return node

    def below(
        self, *numbers: int, passes: Callable[[LossNode], object] = lambda node: True
    ) -> Iterator[LossNode]:
        """Yields some nodes and those below them, the nearest first; none that only nodes lead to
        that do not pass."""
        ahead = [*dict.fromkeys(numbers)]
        seen = {*ahead}
        for number in ahead:
            node = self.nodes[number]
            yield node
            if passes(node):
                ahead += dict.fromkeys(one for one in node.next if one not in seen)
                seen.update(node.next)


@dataclass(frozen=True)
class LossFact:
    """What the recorder wrote about a node, once per graph that it looked at."""

    graph: LossGraph
    node: LossNode
    rest: list[str]  # what follows the node's number in the name of the series
    values: pd.Series[float]  # in the order of recording, at least one

    def finding(self, run: Run, rank: int, **facts: Any) -> Finding:
        """Returns a `graph_finding` at the node."""
        return graph_finding(run, rank, self.graph, where=self.node.where, **facts)


def input_shapes(node: LossNode) -> list[list[int]]:
    """Returns the shapes of the inputs of the operator of a node; empty: it was not recorded."""
    return tensor_shapes(node.shapes)


def need_graphs(run: Run) -> None:
    """Raises NotApplicable where no rank recorded a graph."""
    if not any(run.counts_of(rank)["node"] for rank in run.ranks):
        raise NotRecorded("record a backward pass: the run has no autograd graph")


each_rank_of_graphs = found_per_rank(need_graphs, ahead=False)


def each_graph(
    ask: Callable[[Run, int, LossGraph], Finding | None],
) -> Callable[[Run], list[Finding]]:
    """Turns a question about the graph of a rank into one about a run."""

    @each_rank_of_graphs
    @wraps(ask)
    def of_rank(run: Run, rank: int) -> Finding | None:
        graph = loss_graph(run, rank)
        return None if graph is None else ask(run, rank, graph)

    return of_rank


def of_nodes(
    names: str, words: str
) -> Callable[[Callable[[Run], list[Finding]]], Callable[[Run], list[Finding]]]:
    """Makes a question that finds nothing inapplicable to runs whose graphs have no node of these
    names, a regular expression. A compiled function may hide some."""

    def of_question(ask: Callable[[Run], list[Finding]]) -> Callable[[Run], list[Finding]]:
        @wraps(ask)
        def asked(run: Run) -> list[Finding]:
            found, sought = ask(run), re.compile(f"{names}|CompiledFunction")
            if not found and not any(map(sought.search, texts_of(run, "node", "name"))):
                raise NotApplicable(f"the graph of backward has no {words}")
            return found

        return asked

    return of_question


of_class_losses = of_nodes("NllLoss", "cross-entropy of classes")
of_attention = of_nodes("ScaledDotProduct|(^|Safe)Softmax", "attention")


def graph_finding(
    run: Run,
    rank: int,
    graph: LossGraph,
    *,
    title: str,
    where: str | None,
    evidence: Mapping[str, Any],
    kind: str = "wrong_loss",
    severity: Severity = "warning",
    confidence: Confidence = "likely",
) -> Finding:
    """Returns a finding about what a graph shows; its link leads to the begin of backward."""
    return Finding(
        kind=kind,
        severity=severity,
        confidence=confidence,
        title=title,
        rank=rank,
        step=graph.step,
        time_ns=graph.time_ns,
        where=where,
        evidence=evidence,
        link=timeline_address(graph.time_ns, graph.time_ns + 1, run.duration_ns),
    )


def loss_facts(run: Run, rank: int, prefix: str) -> Iterator[LossFact]:
    """Yields what the series of a prefix say, `prefix/number/...`, in the order of recording."""
    rows = logged(run, rank, prefix=prefix)
    graph = None if rows.empty else loss_graph(run, rank)
    for name, own in rows.groupby("name", sort=False, observed=True):
        number, *rest = str(name).split("/")
        node = None if graph is None else graph.nodes.get(int(number))
        if graph is not None and node is not None:
            yield LossFact(graph, node, rest, own["value"])


@lru_cache(maxsize=8)
def loss_graph(run: Run, rank: int) -> LossGraph | None:
    """Returns the graph of a rank's first backward; None: it was not recorded."""
    rows = graph_nodes(run, rank)
    if rows.empty:
        return None
    instant, thread = int(rows["time_ns"].iloc[0]), str(rows["thread"].iloc[0])
    columns = ["sequence", "name", "shapes", "stack", "phase"]
    made = forward_operators(run, rank, rows, columns).dropna(subset="sequence")
    made = made.drop_duplicates("sequence", keep="last")
    ops = {op["sequence"]: op for _, op in made.iterrows()}
    nodes = {}
    numbers = {int(number) for number in rows["node"]}  # a damaged file may lack some
    for row in rows.itertuples():
        op = ops.get(row.sequence)
        stack = None if op is None else stack_of(op)
        nodes[int(row.node)] = LossNode(
            number=int(row.node),
            name=_SUFFIX.sub("", str(row.name)),
            next=tuple(one for one in map(int, str(row.next).split()) if one in numbers),
            parameter=str(row.parameter),
            module=str(row.module),
            op="" if op is None else str(op["name"]),
            shapes="" if op is None else str(op["shapes"]),
            stack=stack,
            where=own_place(run, rank, stack),
            start_ns=None if op is None else int(op["start_ns"]),
            of_backward=op is not None and op["phase"] == "backward",
        )
    return LossGraph(int(rows["step"].iloc[0]), instant, thread, nodes)
