"""Finds backward passes that each go through the graphs of all before them once more.

`loss.backward(retain_graph=True)` for one window of a sequence after the other, while the state of
a recurrence keeps its graph: pass n costs n times the first. So it is too where each position of a
sequence has a backward of its own. Found by the autograd sequence numbers of the nodes that ran:
what a pass runs again grows with each, several times in a row.

Passes of autograd.grad(), which add to no gradient, are left out, as derivatives of derivatives are
nested by nature; and so are runs in which a pass leaves out some of what the one before ran again,
as where a history of several windows is meant. Losses that share a forward run the same again.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import phases_of_kind, to_frame
from lanescope.webapp.analysis.cluster import found_per_rank
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.forward_ops import BACKWARD
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_backward
from lanescope.webapp.analysis.stack_frames import phase_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_NESTED = 5  # passes in a row
_MOST = 100  # passes of a thread that are looked at
_ADDS = "AccumulateGrad"
_PASS = schema.PhaseKind.backward


@found_per_rank(need_backward)
def nested_passes(run: Run, rank: int) -> Finding | None:
    """Returns findings of kind `growth`, at most one per rank. Raises NotApplicable."""
    for thread in run.threads_of(rank):
        phases, passes = _nodes(run, rank, thread.thread)
        nested = _longest(passes)
        if len(nested) >= _MIN_NESTED:
            at = {"thread": thread.thread, **phases[nested[0]]}
            return _finding(run, rank, at, [len(passes[one]) for one in nested])
    return None


def _nodes(run: Run, rank: int, thread: str) -> tuple[list[dict[str, int]], list[set[int]]]:
    """Step and begin (time_ns) of passes that add to gradients, and the sequence numbers of the
    nodes of each."""
    columns = ["start_ns", "duration_ns", "step"]
    phases = phases_of_kind(run, _PASS, rank, thread, columns).dropna()[:_MOST]
    if len(phases) < _MIN_NESTED:
        return [], []
    begins = phases["start_ns"].to_numpy("int64")
    ends = begins + phases["duration_ns"].to_numpy("int64")
    columns = ["start_ns", "name", "scope", "sequence"]
    ops = to_frame(run.events("op", rank, thread, columns, (int(begins[0]), int(ends[-1]) + 1)))
    ops = ops[ops["scope"] == BACKWARD]
    at = np.searchsorted(begins, ops["start_ns"].to_numpy(), side="right") - 1
    own = ops.assign(own=at)[(at >= 0) & (ops["start_ns"].to_numpy() < ends[np.maximum(at, 0)])]
    adding = own.loc[own["name"] == _ADDS, "own"].unique()
    rows = own[own["own"].isin(adding)].dropna(subset=["sequence"])
    found = rows.groupby("own", sort=True)["sequence"].agg(set)
    steps = phases["step"].to_numpy("int64")
    return [{"step": int(steps[one]), "time_ns": int(begins[one])} for one in found.index], [*found]


def _longest(passes: list[set[int]]) -> range:
    """The longest row of passes that each run again what the one before did, and more; empty if one
    leaves out a part of that."""
    longest, first, again = range(0), 0, set[int]()
    for number, (before, own) in enumerate(pairwise(passes), 1):
        common = before & own
        if common and not common >= again:
            return range(0)
        if len(common) <= len(again):
            first = number
        again = common
        longest = max(longest, range(first, number + 1), key=len)
    return longest


def _finding(run: Run, rank: int, at: dict[str, Any], nodes: list[int]) -> Finding:
    where = phase_place(run, rank, _PASS.name, (at["time_ns"], run.duration_ns))
    return finding_at(
        run,
        rank,
        at,
        kind="growth",
        title=f"Each backward{at_place(where)} goes through the graphs of those before it again: "
        f"{units.count(nodes[0])} nodes at first, {units.count(nodes[-1])} after "
        f"{units.count(len(nodes) - 1)} more passes. A tensor of the last forward is used in the "
        "next one, such as the state of a recurrent layer, and retain_graph=True keeps its graph. "
        "detach() it before it is used again, or add the losses up and call backward() once.",
        where=where,
        evidence={"cause": "nested_passes"},
    )
