"""Finds layers and parameters that are made in each forward: they are trained by nothing.

Of layers the recording proves it: the first backward reached parameters of a module beside those
that an optimizer steps, no optimizer held them and they were gone when it stepped, and at MIN_STEPS
steps or more another module of that class ran. Parameters that the program's own lines make are
recorded as they are made. They are not reported where an optimizer steps parameters of no module,
which may be those.
"""

from __future__ import annotations

import pandas as pd
import pyarrow as pa

from lanescope.collector.format.names import MADE_PARAMETER
from lanescope.webapp.analysis.arrow_columns import having, stack_of, to_frame
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import and_more
from lanescope.webapp.analysis.nothing_to_check import need_steps
from lanescope.webapp.analysis.parameter_history import (
    UNNAMED,
    logged,
    samples,
    sharded_names,
)
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.plugins.autograd_graph.autograd_graph import reached_parameters
from lanescope.webapp.runs.run import Run

_MIN_STEPS = 3


def made_in_forward(run: Run) -> list[Finding]:
    """Findings of kind `dead_parameter`, at most one per rank. Raises NotApplicable."""
    held = need_steps(run)
    kept = {rank: set(names) for rank, names in samples(run).groupby("rank")["parameter"]}
    of_ranks = dict(tuple(held.groupby("rank")))
    found = []
    for rank in run.ranks:
        reached = reached_parameters(run, rank) - {""}
        mine = of_ranks.get(rank, held.iloc[:0])
        own = set(mine["parameter"])
        # The rows of a sharded parameter are those of one rank.
        gone = reached - own - kept.get(rank, set()) - sharded_names(run)
        if gone and reached & own:
            ops = _of_roots(run, rank, {_class(name) for name in gone})
            if ops["step"].nunique() >= _MIN_STEPS and ops["root"].nunique() >= _MIN_STEPS:
                found.append(_finding(run, rank, sorted(gone), ops))
                continue
        if not any(map(UNNAMED.fullmatch, own)):
            found += _parameters(run, rank, mine)
    return found


def made_of(run: Run, rank: int) -> dict[str, str]:
    """Returns parameters that a forward wraps again as new ones: name -> file.py:12."""
    return {name: where for where, name in _made(run, rank)[["where", "of"]].to_numpy() if name}


@per_rank
def _made(run: Run, rank: int) -> pd.DataFrame:
    """Parameters made in a forward: step, where, of."""
    rows = logged(run, rank, prefix=MADE_PARAMETER)
    parts = [str(name).partition("/") for name in rows["name"]]
    return rows[["step"]].assign(where=[one[0] for one in parts], of=[one[2] for one in parts])


def _parameters(run: Run, rank: int, held: pd.DataFrame) -> list[Finding]:
    """Parameters that are made in each forward, but for those of a parameter that never gets a
    gradient, which is found as such."""
    made = _made(run, rank)
    if made.empty:
        return []
    idle = held.groupby("parameter", observed=True)["missing"].all()
    idle = set(idle.index[idle])
    found = []
    for (where, of), rows in made.groupby(["where", "of"], sort=False):
        if of in idle or rows["step"].nunique() < _MIN_STEPS:
            continue
        step = int(rows["step"].min())
        found.append(
            finding_at(
                run,
                rank,
                step,
                kind="dead_parameter",
                confidence="likely",
                title=f"nn.Parameter(...) at {where} makes a new parameter in each forward: no "
                "optimizer steps it, and what it would learn is gone with the next forward. Make "
                "it once, in __init__, as an attribute of its module; leave nn.Parameter out where "
                "no parameter is meant.",
                where=str(where),
                evidence={"cause": "made_in_forward", "parameters": [of] if of else []},
            )
        )
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
    where = own_place(run, rank, stack_of(first))
    verb, exist = ("get", "exist") if len(gone) > 1 else ("gets", "exists")
    return finding_at(
        run,
        rank,
        step,
        kind="dead_parameter",
        severity="error",
        title=f"{gone[0]}{and_more(len(gone), 'parameter')} {verb} a gradient and no longer "
        f"{exist} when the optimizer steps: each forward makes a new layer"
        + (f", which runs at {where}" if where else "")
        + ". Make it once, in "
        "__init__, so that the optimizer trains it.",
        where=where,
        evidence={"cause": "made_in_forward", "parameters": gone},
    )
