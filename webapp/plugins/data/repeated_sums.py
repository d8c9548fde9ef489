"""Finds sums over ranks that are summed again, with something added in between.

`dist.all_reduce(parameter.grad)` after each of several backward passes of a step: the gradients of
the first pass are summed as often as passes follow, so they count more by the number of ranks each
time. Likewise a running total that is reduced in place after each batch.

Found where an all_reduce by a sum gets the same tensor as one before, and only additions in place
wrote to it in between: it was neither divided, nor zeroed, nor replaced. All ranks that call it
there must do so, as sums that one rank alone keeps, and the others zero, stay right.
"""

from __future__ import annotations

from collections import defaultdict

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector.format import schema
from lanescope.webapp.analysis.access_site import phase_names
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.nothing_to_check import need_accesses, need_ranks
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_TIMES = 3  # per rank and line
_MAX_SUMS = 5_000
"""The first ones of a rank are looked at: what a program does wrong, it does in each step."""

_SUM = "c10d::allreduce_"
_ADDS = ("aten::add_",)
_AT = ["thread", "start_ns", "depth"]
_BYTES = ["storage", "offset", "bytes"]
_BACKWARD = schema.PhaseKind.backward.name


def summed_again(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_gradient`, one per line. Raises NotApplicable."""
    need_ranks(run)
    need_accesses(run)
    calls: dict[str, dict[int, tuple[int, int, bool, int]]] = defaultdict(dict)
    for rank in run.ranks:
        for where, of_line in _of_rank(run, rank).items():
            calls[where][rank] = of_line
    return [
        _finding(run, where, own)
        for where, own in calls.items()
        if all(again >= _MIN_TIMES for again, *_ in own.values())
    ]


@per_rank
def _of_rank(run: Run, rank: int) -> dict[str, tuple[int, int, bool, int]]:
    """By line that sums: how often what was summed before, the size of the group, whether backward
    added to it, and when first (ns; of any call where never)."""
    calls = to_frame(run.events("collective", rank))
    calls = calls[(calls["name"] == "all_reduce") & (calls["group_size"] > 1)]
    sums = calls[calls["reduce_op"] == "sum"].sort_values("start_ns").head(_MAX_SUMS)
    if sums.empty:
        return {}
    backward = phase_names(run, rank).get(_BACKWARD, set())
    again = _again(_writes(run, rank, sums), {*sums["start_ns"]}, backward)
    found = {}
    places = {stack: own_place(run, rank, int(stack)) for stack in sums["stack"].dropna().unique()}
    for where, own in sums.groupby(sums["stack"].map(places)):
        hits = [again[start] for start in own["start_ns"] if start in again]
        first = min(own["start_ns"], key=lambda start: (start not in again, start))
        size = int(own["group_size"].max())
        found[str(where)] = (len(hits), size, bool(hits) and all(hits), int(first))
    return found


def _writes(run: Run, rank: int, sums: pd.DataFrame) -> pd.DataFrame:
    """What writes to storages that are summed more than once, in order: where it writes, the
    version before it, and the operator's name and phase."""
    window = int(sums["start_ns"].min()), int(sums["start_ns"].max()) + 1
    written = run.events("access", rank, columns=[*_AT, *_BYTES, "write", "version"], window=window)
    written = written.filter(written["write"])
    reduced = written.filter(pc.is_in(written["start_ns"], pa.array(sums["start_ns"])))
    counts = pc.value_counts(reduced["storage"])
    several = counts.filter(pc.greater(counts.field("counts"), 1)).field("values")
    found = to_frame(written.filter(pc.is_in(written["storage"], several)))
    ops = to_frame(run.events("op", rank, columns=[*_AT, "name", "phase"], window=window))
    return found.merge(ops, on=_AT).sort_values(["start_ns", "depth"])


def _again(writes: pd.DataFrame, sums: set[int], backward: set[str]) -> dict[int, bool]:
    """Start of each sum of what was summed before (ns) -> whether backward alone added to it."""
    found = {}
    for _, own in writes.groupby(_BYTES[0], sort=False):
        before: dict[tuple[int, int], int] = {}  # range -> its version at the last sum
        added: list[bool] = []
        for row in own.itertuples():
            place = (int(row.offset), int(row.bytes))
            if row.start_ns in sums and row.name == _SUM:
                # A tensor that is made at the same address, by torch.tensor() say, begins with
                # version 0. So does .data, but backward adds to nothing but gradients.
                same = row.version == before.get(place, 0) + len(added) or all(added)
                if added and place in before and same:
                    found[int(row.start_ns)] = all(added)
                before, added = {place: int(row.version)}, []
            elif row.name in _ADDS and place in before:
                added.append(row.phase in backward)
            else:
                before, added = {}, []
    return found


def _finding(run: Run, where: str, own: dict[int, tuple[int, int, bool, int]]) -> Finding:
    rank = min(own)
    again, size, gradients, first = own[rank]
    what, fix = (
        (
            "gradients",
            "Reduce them once, after the last backward pass of the step, or with ReduceOp.AVG.",
        )
        if gradients
        else ("a running total", "Reduce a copy (total.clone()), or zero the total after it.")
    )
    return finding_at(
        run,
        rank,
        pd.Series({"thread": "", "time_ns": first, "step": 0}),
        kind="wrong_gradient",
        severity="error",
        confidence="likely",
        title=f"{where} sums {what} over {size} ranks again, {units.count(again)} times: the "
        "tensor holds a sum over ranks already, to which something was added since. So what was "
        f"in that sum counts {size} times as much as what was added. {fix}",
        ranks=tuple(sorted(own)),
        where=where,
        evidence={"cause": "summed_again", "times": again},
    )
