"""Finds updates of parameters that nothing reads.

`p = p - lr * p.grad` in a loop over parameters gives the result a name and leaves the parameter as
it is. So does `p.data.clamp(-c, c)` without its underscore, and an average that is not written into
the model that should hold it. Found where, outside of forward, backward and optimizers, an operator
computes from a whole parameter a tensor of its size, and no operator uses that tensor before its
memory holds another one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from typing import Any

import pandas as pd

from lanescope.webapp.analysis.access_site import accesses_among
from lanescope.webapp.analysis.arrow_columns import ops_named, texts_of, to_frame
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import and_more
from lanescope.webapp.analysis.nothing_to_check import need_accesses, need_backward
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_UPDATES = re.compile(r"aten::(add|sub|mul|div|lerp|addcmul|addcdiv|clamp|clamp_min|clamp_max)")
_WITHIN = re.compile(r"forward|evaluation|backward|.*\.step")

_MIN_STEPS, _MIN_PARAMETERS = 5, 2
_STEPS, _OF_LINE = 16, 60
"""Steps that are looked at, and operators of one line in each."""

_OPS = ["start_ns", "duration_ns", "depth", "name", "step", "phase", "stack"]
_ACCESS = ["start_ns", "depth", "storage", "bytes", "run", "write", "birth"]


def dropped_updates(run: Run) -> list[Finding]:
    """Returns findings of kind `dead_parameter`, one per line and rank. Raises NotApplicable."""
    need_backward(run)
    need_accesses(run)
    return [one for rank in run.ranks for one in _of_rank(run, rank)]


@per_rank
def _of_rank(run: Run, rank: int) -> list[Finding]:
    columns = ["storage", "name"]
    names = to_frame(run.events("storage", rank, columns=columns)).drop_duplicates("storage")
    known = texts_of(run, "parameter", "parameter", rank)  # others are buffers
    names = names[names["name"].astype("str").isin(known)]
    parameters = dict(zip(names["storage"], names["name"].astype("str"), strict=True))
    found = []
    for thread in run.threads_of(rank):
        ops = _candidates(run, rank, thread.thread)
        if ops["step"].nunique() < _MIN_STEPS:
            continue
        results = _results(run, rank, thread.thread, ops, parameters)
        dropped = unused(run, rank, results)
        for stack, own in results.groupby("stack", sort=False):
            lost = own[own["start_ns"].isin(dropped)]
            last = set(own.groupby(["step", "of"])["start_ns"].max())
            lost = lost[lost["start_ns"].isin(last)]
            steps = lost["step"].nunique()
            if steps >= max(_MIN_STEPS, own["step"].nunique() - 1):
                of = list(lost["of"].drop_duplicates())
                if len(of) >= _MIN_PARAMETERS:
                    first = lost.iloc[0].copy()
                    first["thread"] = thread.thread
                    found.append(_finding(run, rank, int(str(stack)), first, of, steps))
    return found


def _candidates(run: Run, rank: int, thread: str) -> pd.DataFrame:
    """Operators that could update a parameter, of lines of the program outside of passes."""
    ops = ops_named(run, rank, thread, _OPS, _UPDATES.fullmatch)
    phases = ops["phase"].astype("str")
    ops = ops[(ops["stack"] >= 0) & ~phases.str.fullmatch(_WITHIN.pattern)]
    ops = ops[ops["step"].isin(ops["step"].drop_duplicates().iloc[:_STEPS])]
    return ops.groupby(["step", "stack"], sort=False).head(_OF_LINE)


def _results(
    run: Run, rank: int, thread: str, ops: pd.DataFrame, parameters: dict[int, str]
) -> pd.DataFrame:
    """What operators made of a parameter: the operators with `of`, the first parameter, `storage`
    and `end_ns`."""
    rows = accesses_among(run, rank, "start_ns", ops["start_ns"], _ACCESS, thread)
    of_op = defaultdict[tuple[int, int], list[Any]](list)
    for row in rows[rows["bytes"] == rows["run"]].itertuples():
        of_op[row.start_ns, row.depth].append(row)
    made: dict[int, tuple[str, int]] = {}  # storage -> parameter, bytes
    found = []
    for op in ops.itertuples():
        own = of_op.get((op.start_ns, op.depth), [])
        origin = [
            (parameters[one.storage], one.bytes) if one.storage in parameters else made[one.storage]
            for one in own
            if not (one.write or one.birth) and (one.storage in parameters or one.storage in made)
        ]
        for one in own:
            if not one.birth:
                continue
            made.pop(one.storage, None)
            if origin and origin[0][1] == one.bytes:
                made[one.storage] = origin[0]
                end = op.start_ns + (0 if pd.isna(op.duration_ns) else op.duration_ns)
                found.append((op.Index, origin[0][0], one.storage, int(end)))
    extra = pd.DataFrame(found, columns=["op", "of", "storage", "end_ns"]).set_index("op")
    return ops.join(extra, how="inner")


def unused(run: Run, rank: int, results: pd.DataFrame) -> set[int]:
    """Returns starts of the operators whose result no other one reads or writes. `results`: with
    `storage`, start_ns and end_ns."""
    rows = accesses_among(run, rank, "storage", results["storage"], _ACCESS)
    used, born = (_times(rows[rows["birth"] == is_birth]) for is_birth in (False, True))
    return {
        int(one.start_ns)
        for one in results.itertuples()
        if _next(used[one.storage], one.end_ns) >= _next(born[one.storage], one.end_ns)
    }


def _times(rows: pd.DataFrame) -> dict[int, list[int]]:
    found = defaultdict[int, list[int]](list)
    for storage, own in rows.groupby("storage"):
        found[int(str(storage))] = own["start_ns"].tolist()
    return found


def _next(times: list[int], after: int) -> float:
    at = bisect_right(times, after)
    return times[at] if at < len(times) else float("inf")


def _finding(
    run: Run, rank: int, stack: int, first: pd.Series, names: list[str], steps: int
) -> Finding:
    where = own_place(run, rank, stack)
    return finding_at(
        run,
        rank,
        first,
        kind="dead_parameter",
        confidence="likely",
        title=f"What{f' {where}' if where else ' a line'} computes from {names[0]}"
        f"{and_more(len(names), 'parameter')} is never used, in {units.count(steps)} steps: the "
        "parameters stay as they are. p = ... in a loop over parameters gives only the name p to "
        "another tensor. Write into the parameter: p.copy_(...), p.sub_(...), p.clamp_(...) "
        "within torch.no_grad().",
        where=where,
        evidence={"cause": "dropped_update", "parameters": names[:20], "op": first["name"]},
    )
