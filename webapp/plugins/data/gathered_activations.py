"""Finds losses of activations that all_gather() took from other ranks, and that have no gradient.

Contrastive losses multiply what a rank computed with what all ranks computed. The results of
`torch.distributed.all_gather` are constants: no rank gets the gradient for its activations where
they are the negatives of others.

Found where an activation with a gradient is gathered, and a product with a gradient gets results of
that call which no operator with a gradient made: no rank put its own part back into them.
"""

from __future__ import annotations

import re

import pandas as pd
import pyarrow as pa

from lanescope.collector.format import schema
from lanescope.collector.format.loop_names import GATHERED_ACTIVATION
from lanescope.webapp.analysis.arrow_columns import phases_of_kind, to_frame
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_accesses, need_backward, need_ranks
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_TIMES = 3
_MAX_CALLS = 8
"""The first ones of a rank are followed: what a program does wrong, it does in each step."""

_PRODUCTS = re.compile(r"aten::(mm|bmm|addmm|baddbmm|matmul|_euclidean_dist|_cdist_forward|cdist)")
_AT = ["thread", "start_ns", "depth"]


def gathered_activations(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_gradient`, one per line that gathers. Raises
    NotApplicable."""
    need_ranks(run)
    need_accesses(run)
    need_backward(run)
    of_line: dict[str, dict[int, list[tuple[int, str | None]]]] = {}
    for rank in run.ranks:
        for line, uses in _of_rank(run, rank).items():
            of_line.setdefault(line, {})[rank] = uses
    return [
        _finding(run, line, own)
        for line, own in of_line.items()
        if all(len(uses) >= _MIN_TIMES for uses in own.values())
    ]


@per_rank
def _of_rank(run: Run, rank: int) -> dict[str, list[tuple[int, str | None]]]:
    """By line that gathers: when each of its calls began (ns), and the line of the product."""
    asked = logged(run, rank, GATHERED_ACTIVATION)
    if asked.empty:
        return {}
    calls = to_frame(run.events("collective", rank)).sort_values("start_ns")
    calls = calls[calls["name"].str.startswith("all_gather") & (calls["group_size"] > 1)]
    backwards = phases_of_kind(run, schema.PhaseKind.backward, rank)["start_ns"]
    found: dict[str, list[tuple[int, str | None]]] = {}
    places = {stack: own_place(run, rank, int(stack)) for stack in calls["stack"].dropna().unique()}
    for line, own in calls.groupby(calls["stack"].map(places)):
        for call in own.head(_MAX_CALLS).itertuples():
            known = (asked["thread"] == call.thread) & (asked["time_ns"] <= call.start_ns)
            later = backwards[backwards > call.start_ns]
            if not known.any() or later.empty:
                continue
            stack = _product(run, rank, call.thread, (int(call.start_ns), int(later.iloc[0])))
            if stack is not None:
                place = own_place(run, rank, stack)
                found.setdefault(str(line), []).append((int(call.start_ns), place))
    return found


def _product(run: Run, rank: int, thread: str, window: tuple[int, int]) -> int | None:
    """Returns the stack of the first operator with a gradient that reads what a call gathered, or
    what operators without a gradient made of it; None: no operator does, or another one than a
    product."""
    rows = _accesses(run, rank, thread, window)
    call = (rows["start_ns"] == window[0]) & rows["write"]
    gathered = {*rows.loc[call, "storage"]}
    for _, op in rows[rows["start_ns"] > window[0]].groupby(["start_ns", "depth"], sort=True):
        if gathered.isdisjoint(op.loc[~op["write"], "storage"]):
            continue
        first = op.iloc[0]
        if pd.isna(first["sequence"]):
            gathered.update(op.loc[op["write"], "storage"])
        else:
            return int(first["stack"]) if _PRODUCTS.fullmatch(str(first["name"])) else None
    return None


def _accesses(run: Run, rank: int, thread: str, window: tuple[int, int]) -> pd.DataFrame:
    """Accesses of a thread in a stretch of time, with names and nodes of their operators."""
    columns = [*_AT, "storage", "write"]
    rows = to_frame(run.events("access", rank, thread, columns=columns, window=window))
    of_ops = [*_AT, "name", "sequence", "stack"]
    ops: pa.Table = run.events("op", rank, thread, columns=of_ops, window=window)
    return rows.merge(to_frame(ops), on=_AT).sort_values(["start_ns", "depth"])


def _finding(run: Run, line: str, own: dict[int, list[tuple[int, str | None]]]) -> Finding:
    rank = min(own)
    start, product = own[rank][0]
    return finding_at(
        run,
        rank,
        pd.Series({"thread": "", "time_ns": start, "step": 0}),
        kind="wrong_gradient",
        severity="warning",
        confidence="likely",
        title=f"{line} gathers activations of {units.count(len(run.ranks))} ranks, and the product"
        f"{at_place(product)} gets them without gradients: the results of all_gather() are "
        "constants, so no rank gets the gradient for its activations where they are compared with "
        "those of other ranks. Gather with torch.distributed.nn.functional.all_gather, or put the "
        "rank's own activations back among the results and compute the loss of all ranks.",
        ranks=tuple(sorted(own)),
        where=line,
        evidence={"cause": "gathered", "product": product, "times": len(own[rank])},
    )
