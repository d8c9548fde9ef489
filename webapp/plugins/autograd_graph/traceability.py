"""Is every autograd node that a backward reached tied to what was recorded of it?

    graph traceability = nodes tied / nodes reached

over the backwards whose graph the recorder walked (steps 0, 1, 2, 4, 8, ...). A node is tied where
the backward recorded it running, and where the operator that made it was recorded: by name and
sequence number, or as part of one that bears its number (`forward_ops.maker`). Views are left
out of recordings by default, so their nodes need no operator; neither do gradients' accumulators.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, lru_cache, partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.collector.format.marks import BackwardRaised
from lanescope.webapp.analysis.arrow_columns import ends_ns, having
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.findings import Finding, NotRecorded
from lanescope.webapp.analysis.forward_ops import BACKWARD, shared_stem
from lanescope.webapp.analysis.links import thread_lane, timeline_address
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import BoolArray, Int64Array, Window

_WITHOUT_OPERATOR = frozenset(
    {
        "CopySlices",  # made by autograd beside the node of an operator in place on a view
        "DifferentiableGraphBackward",  # of a part of a program that TorchScript runs as one
    }
)
_PHASE = ("start_ns", "duration_ns", "depth", "kind", "name", "thread")
_VIEWS = [pattern.replace("_", "") for pattern in schema.NOT_COMPUTING]

_AT_ONCE = 1_000_000
"""Operators of a rank up to which they are read once, not the window of each backward."""

_MAX_NODES = 1 << 40
"""Of one name in one graph."""


@dataclass(frozen=True)
class Walk:
    """One backward whose graph was walked. Names are those of nodes."""

    rank: int
    thread: str
    step: int
    start_ns: int
    end_ns: int
    reached: int
    not_run: Counter[str]  # reached, and no such node was recorded in it
    no_operator: Counter[str]  # recorded, but not the operator that made it

    @property
    def tied(self) -> int:
        """Nodes that are tied to both."""
        return self.reached - self.not_run.total() - self.no_operator.total()


def graph_traceability(run: Run) -> float | None:
    """Returns the metric, over all walks; None where no graph was walked (no backward, portable
    engine)."""
    found = walks(run)
    reached = sum(walk.reached for walk in found)
    return max(0, sum(walk.tied for walk in found)) / reached if reached else None


def untraceable_graphs(run: Run) -> list[Finding]:
    """Returns findings of kind `untraceable_graph`, one per rank. NotApplicable where none was
    walked."""
    if not walks(run):
        raise NotRecorded(
            "record a backward pass with the native engine: no autograd graph was walked"
        )
    by_rank: dict[int, list[Walk]] = {}
    for walk in walks(run):
        if walk.tied < walk.reached:
            by_rank.setdefault(walk.rank, []).append(walk)
    return [_finding(run, rank, found) for rank, found in by_rank.items()]


@lru_cache(maxsize=4)
def walks(run: Run) -> tuple[Walk, ...]:
    """Returns the backward passes whose graph was walked."""
    return tuple(walk for rank in run.ranks for walk in _of_rank(run, rank))


@per_rank
def _of_rank(run: Run, rank: int) -> tuple[Walk, ...]:
    return tuple(_walks(run, rank))


def _walks(run: Run, rank: int) -> Iterator[Walk]:
    counts = logged(run, rank, prefix=schema.GRAPH_SERIES)
    if counts.empty:
        return
    phases = run.events("phase", rank, columns=_PHASE)
    said = having(phases["name"], lambda name: name.startswith(BackwardRaised.PREFIX))
    raised = _by_thread(phases.filter(pa.array(said)), run)
    said = having(phases["kind"], schema.PhaseKind.backward.name.__eq__)
    backward = _by_thread(phases.filter(pa.array(said)), run)
    engine = [t.thread for t in run.threads_of(rank) if t.kind == "native"]
    at_once = run.counts_of(rank)["op"] <= _AT_ONCE
    nodes_of = cache(partial(_nodes, run, rank))
    walked: list[tuple[str, int, Window, Counter[str], _Ran]] = []
    for (thread, step), rows in counts.groupby(["thread", "step"]):
        own = backward.get(thread, _NO_PHASES)
        at = int(rows["time_ns"].iloc[0])
        around = np.flatnonzero((own.start <= at) & (own.end >= at))
        if not len(around):
            continue
        phase = around[np.argsort(own.depth[around], kind="stable")[-1]]
        low, high = window = int(own.start[phase]), int(own.end[phase])
        over = raised.get(thread, _NO_PHASES).start
        if not own.ended[phase] or ((low <= over) & (over <= high)).any():
            continue  # killed in it, or it raised: the rest of its nodes never ran
        of_it = [t.thread for t in run.threads_of(rank) if t.thread in (*engine, thread)]
        ran = _ran(nodes_of, own, window, of_it, at_once=at_once)
        numbers = rows["value"].to_numpy(np.float64)
        if not ((numbers >= 0) & (numbers <= _MAX_NODES)).all():
            continue  # a damaged record: no graph has as many nodes, or NaN of them
        reached = Counter(dict(zip(rows["name"], numbers.astype(int).tolist(), strict=True)))
        walked.append((str(thread), int(step), window, reached, ran))
    made = _makers(run, rank, {n for *_, (_, numbers) in walked for n in numbers if n is not None})
    for name, number, window, reached, (nodes, sequences) in walked:
        untied = Counter(
            node
            for node, sequence in zip(nodes, sequences, strict=True)
            if sequence is not None and not _is_tied(node, sequence, made)
        )
        yield Walk(
            rank,
            name,
            number,
            *window,
            reached.total(),
            reached - Counter(map(_bare, nodes)),
            untied,
        )


class _Phases(NamedTuple):
    """Phases of a thread, by start."""

    start: Int64Array  # ns
    end: Int64Array  # ns; the run's where it had not ended
    depth: npt.NDArray[np.int16]
    ended: BoolArray


_NO_PHASES = _Phases(
    np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int16), np.empty(0, np.bool_)
)


def _by_thread(phases: pa.Table, run: Run) -> dict[str, _Phases]:
    found = {}
    for thread in pc.unique(phases["thread"]).to_pylist():
        own = phases.filter(pa.array(having(phases["thread"], thread.__eq__)))
        start, depth = own["start_ns"].to_numpy(), own["depth"].to_numpy()
        ended = own["duration_ns"].is_valid().to_numpy()
        found[thread] = _Phases(start, ends_ns(own, run), depth, ended)
    return found


_Ran = tuple[list[str], list[int | None]]
"""Names of nodes that ran, and the sequence number of each; None: it has none."""


def _nodes(run: Run, rank: int, thread: str, window: Window | None) -> pa.Table:
    """Slices of autograd nodes on a thread."""
    ops = run.events("op", rank, thread, ["start_ns", "name", "scope", "sequence"], window)
    return ops.filter(pa.array(having(ops["scope"], BACKWARD.__eq__)))


def _ran(
    nodes_of: Callable[[str, Window | None], pa.Table],
    own: _Phases,
    window: Window,
    threads: Sequence[str],
    *,
    at_once: bool,
) -> _Ran:
    """The nodes of a backward, without those of backwards within it (checkpointing)."""
    nested = (own.start > window[0]) & (own.end <= window[1])
    bounds = list(zip(own.start[nested], own.end[nested], strict=True))
    names: list[str] = []
    numbers: list[int | None] = []
    for thread in threads:
        nodes = nodes_of(thread, None if at_once else window)
        start = nodes["start_ns"].to_numpy()
        inside = (start >= window[0]) & (start < window[1])
        for low, high in bounds:
            inside &= (start < low) | (start >= high)
        nodes = nodes.filter(pa.array(inside))
        names += nodes["name"].to_pylist()
        numbers += nodes["sequence"].to_pylist()
    return names, numbers


def _makers(run: Run, rank: int, numbers: set[int]) -> set[int]:
    """Those of some sequence numbers that recorded forward operators bear."""
    wanted = pa.array(sorted(numbers), pa.int64())
    made: set[int] = set()
    for ops in run.pieces("op", rank, columns=["scope", "sequence"]) if numbers else ():
        forward = pa.array(~having(ops["scope"], BACKWARD.__eq__))
        bear = pc.and_(forward, pc.is_in(ops["sequence"], wanted))
        made.update(ops.filter(bear)["sequence"].unique().to_pylist())
    return made


def _is_tied(node: str, sequence: int, made: set[int]) -> bool:
    return sequence in made or node in _WITHOUT_OPERATOR or _is_view(node)


@lru_cache(maxsize=4096)
def _is_view(name: str) -> bool:
    return any(fnmatchcase(f"aten::{shared_stem(name)}", pattern) for pattern in _VIEWS)


def _bare(name: str) -> str:
    return name.rpartition("::")[2]


def _finding(run: Run, rank: int, found: list[Walk]) -> Finding:
    worst = max(found, key=lambda walk: walk.reached - walk.tied)
    missing = worst.not_run + worst.no_operator
    named = ", ".join(f"{count} {name}" for name, count in missing.most_common(5))
    more = f" and {len(missing) - 5} more kinds" if len(missing) > 5 else ""
    at = (thread_lane(rank, worst.thread), worst.start_ns)
    return Finding(
        kind="untraceable_graph",
        severity="error",  # as the check is that it fails
        title=f"{units.count(missing.total())} of {units.count(worst.reached)} autograd nodes that "
        f"backward reached in step {worst.step} are not tied to recorded operators: {named}{more}. "
        "Record without --min-duration, and --include these operators.",
        rank=rank,
        thread=worst.thread,
        step=worst.step,
        time_ns=worst.start_ns,
        evidence={
            "reached": worst.reached,
            "tied": worst.tied,
            "no_node": dict(worst.not_run.most_common()),
            "no_operator": dict(worst.no_operator.most_common()),
            "backwards": len(found),
            "advice": "--include the missing operators, and record without --min-duration",
        },
        link=timeline_address(worst.start_ns, worst.end_ns, run.duration_ns, at),
    )
