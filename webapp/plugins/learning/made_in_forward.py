"""Finds layers that are made in each forward: their parameters are trained by nothing.

Proven by the recording: the first backward reached parameters of a module beside those that an
optimizer steps, no optimizer held them and they were gone when it stepped, and at MIN_STEPS steps
or more another module of that class ran.
"""

from __future__ import annotations

import pandas as pd
import pyarrow as pa

from lanescope.webapp.analysis.arrow_columns import having, to_frame
from lanescope.webapp.analysis.findings import Finding, NotApplicable
from lanescope.webapp.analysis.links import and_more, step_link
from lanescope.webapp.analysis.parameter_history import gradient_rows, samples
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.plugins.autograd_graph.autograd_graph import graph_nodes
from lanescope.webapp.runs.run import Run

_MIN_STEPS = 3


def made_in_forward(run: Run) -> list[Finding]:
    """Findings of kind `dead_parameter`, at most one per rank. Raises NotApplicable."""
    held = gradient_rows(run)
    if held.empty:
        raise NotApplicable("record an optimizer step: the run has no steps")
    found = []
    for rank in run.ranks:
        nodes = graph_nodes(run, rank)
        reached = set(nodes["parameter"]) - {""} if len(nodes) else set()
        own = set(held.loc[held["rank"] == rank, "parameter"])
        kept = samples(run)
        gone = reached - own - set(kept.loc[kept["rank"] == rank, "parameter"])
        if not gone or not reached & own:
            continue
        ops = _of_roots(run, rank, {_class(name) for name in gone})
        if ops["step"].nunique() >= _MIN_STEPS and ops["root"].nunique() >= _MIN_STEPS:
            found.append(_finding(run, rank, sorted(gone), ops))
    return found


def _class(path: str) -> str:
    """Linear of Linear#3.weight: what the recorder calls a module that no other holds."""
    return path.partition(".")[0].partition("#")[0]


def _of_roots(run: Run, rank: int, classes: set[str]) -> pd.DataFrame:
    """Operators of modules of these classes that no other module holds, with the `root`'s name."""
    parts = []
    for piece in run.pieces("op", rank, columns=["start_ns", "step", "module", "stack"]):
        there = having(piece["module"], lambda path: _class(path) in classes)
        parts.append(to_frame(piece.filter(pa.array(there))))
    if not parts:
        return pd.DataFrame(columns=["start_ns", "step", "module", "stack", "root"])
    ops = pd.concat(parts).sort_values("start_ns")
    return ops.assign(root=[str(path).partition(".")[0] for path in ops["module"]])


def _finding(run: Run, rank: int, gone: list[str], ops: pd.DataFrame) -> Finding:
    first, step = ops.iloc[0], int(ops["step"].iloc[0])
    where = own_place(run, rank, None if pd.isna(first["stack"]) else int(first["stack"]))
    verb, exist = ("get", "exist") if len(gone) > 1 else ("gets", "exists")
    return Finding(
        kind="dead_parameter",
        severity="error",
        title=f"{gone[0]}{and_more(len(gone), 'parameter')} {verb} a gradient and no longer "
        f"{exist} when the optimizer steps: each forward makes a new layer"
        + (f", which runs at {where}" if where else "")
        + ". Make it once, in "
        "__init__, so that the optimizer trains it.",
        rank=rank,
        ranks=(rank,),
        step=step,
        where=where,
        evidence={"cause": "made_in_forward", "parameters": gone},
        link=step_link(run, rank, step),
    )
