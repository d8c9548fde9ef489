"""Finds numbers about an evaluation that each rank uses for itself, and averages of unequal means.

A `ReduceLROnPlateau` that gets the loss of a rank's own validation data reduces the learning rate
when this rank stands still. Replicas need the same number, or their rates part sooner or later.

A mean over a rank's batches or samples that is summed over the ranks, and divided by their number,
is the mean of all of them only where each rank has as many. Found for single numbers that an
operator for means has just made, in an evaluation, from other numbers of elements on each rank.

Numbers of a step that are reduced one after the other, in the order of a set, have another order on
each rank: the loss of one rank is added to the accuracy of the next. Found where the
operators that made them are the same on all ranks, but in another order.
"""

from __future__ import annotations

import math
import re
from typing import Any

import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.loop_names import PLATEAU
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.collective_calls import collective_calls, group_members
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import at_place, step_bounds
from lanescope.webapp.analysis.nothing_to_check import need_accesses, need_ranks, need_rows
from lanescope.webapp.analysis.op_inputs import tensor_shapes
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.plugins.learning.replicas import replicas
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run

_MIN_CALLS = 3
_MIN_STEPS, _MAX_RANKS = 3, 16
"""Numbers in different orders: in how many steps, and of how many ranks that are looked at."""
_MAX_CALLS = 50
"""The last ones of a rank are looked at."""

_MIN_TIMES, _MOSTLY = 2, 0.5
"""Averages of unequal means: how many, and what part of those at one line."""

_ONE_NUMBER = 8  # bytes, at most
_MEANS = re.compile(r"aten::(mean|\w+_loss\w*|binary_cross_entropy\w*)")
_EVALUATION, _UPDATES = schema.PhaseKind.evaluation.name, schema.PhaseKind.optimizer.name


def own_plateaus(run: Run) -> list[Finding]:
    """Returns findings of kind `rank_divergence`, one per line and group. Raises NotApplicable."""
    need_ranks(run)
    rows = need_rows(logged(run, None, prefix=PLATEAU), "no ReduceLROnPlateau is stepped")
    rows = rows.sort_values("time_ns")
    found = []
    for ranks in replicas(run).values():
        for name, own in rows[rows["rank"].isin(ranks)].groupby("name", observed=True):
            calls = own.groupby("rank").cumcount()
            table = own.assign(call=calls).pivot_table(index="call", columns="rank", values="value")
            table = table.dropna()
            apart = table[table.nunique(axis=1) > 1]
            if len(table.columns) < len(ranks) or len(apart) < max(_MIN_CALLS, len(table) / 2):
                continue
            found.append(_of_plateau(run, ranks, str(name).partition("/")[0], own, apart))
    return found


def _of_plateau(
    run: Run, ranks: tuple[int, ...], where: str, own: pd.DataFrame, apart: pd.DataFrame
) -> Finding:
    low, high = apart.iloc[0].min(), apart.iloc[0].max()
    return finding_at(
        run,
        ranks[0],
        own.iloc[0],
        kind="rank_divergence",
        severity="warning",
        confidence="likely",
        title=f"ReduceLROnPlateau.step() at {where} gets another number on each rank, from "
        f"{units.number(float(low))} to {units.number(float(high))} at first, in "
        f"{units.count(len(apart))} calls: each rank reduces the learning rate when its own number "
        f"stands still, though {ranks_in(run, ranks)} are replicas, which part then. Average the "
        "number over the ranks with dist.all_reduce before step().",
        ranks=ranks,
        where=where,
        evidence={"cause": "own_plateau", "calls": len(apart)},
    )


def unequal_means(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_average`, one per line. Raises NotApplicable."""
    need_ranks(run)
    need_accesses(run)
    calls = collective_calls(run)
    calls = calls[(calls["name"] == "all_reduce") & (calls["group_size"] > 1)]
    calls = calls[(calls["bytes"] <= _ONE_NUMBER) & calls["reduce_op"].isin(["sum", "avg"])]
    need_rows(calls, "no single number is added up over ranks")
    found = []
    for group, own in calls.groupby("group", observed=True):
        ranks = [rank for rank in group_members(run)[str(group)] if rank in run.ranks]
        counts = {rank: _counts(run, rank, str(group)) for rank in ranks if len(own)}
        table = pd.DataFrame(counts).dropna()
        if len(ranks) < 2 or len(table) < _MIN_TIMES:
            continue
        first = own[own["rank"] == ranks[0]].drop_duplicates("sequence").set_index("sequence")
        known = first.loc[first.index.intersection(table.index)]
        places = {one: own_place(run, ranks[0], one) for one in known["stack"].dropna().unique()}
        for where, of_line in known.groupby(known["stack"].map(places)):
            rows = table.loc[of_line.index]
            apart = rows[rows.nunique(axis=1) > 1]
            if len(apart) >= max(_MIN_TIMES, _MOSTLY * len(rows)):
                found.append(_of_means(run, tuple(ranks), str(where), of_line, apart))
    return found


def _counts(run: Run, rank: int, group: str) -> pd.Series:
    """Over how many elements a number is the mean that a rank reduces in an evaluation, by the
    sequence number of the call."""
    calls = to_frame(run.events("collective", rank))
    calls = calls[(calls["group"] == group) & (calls["name"] == "all_reduce")]
    calls = calls[calls["bytes"] <= _ONE_NUMBER].sort_values("start_ns").tail(_MAX_CALLS)
    phases = to_frame(run.events("phase", rank, columns=["kind", "start_ns"]))
    phases = phases[phases["kind"].isin([_EVALUATION, _UPDATES])].sort_values("start_ns")
    counts = {}
    for call in calls.itertuples():
        before = phases[phases["start_ns"] < call.start_ns].tail(1)
        if before["kind"].astype("str").tolist() != [_EVALUATION]:
            continue
        window = int(before["start_ns"].iloc[0]), int(call.start_ns) + 1
        count = _mean_of(run, rank, str(call.thread), window)
        if count is not None:
            counts[int(call.sequence)] = count
    return pd.Series(counts, dtype="float64")


def _mean_of(run: Run, rank: int, thread: str, window: tuple[int, int]) -> int | None:
    """Returns the elements of the mean that is what the call at the end of a stretch of time gets;
    None: it gets something else."""
    name, shapes = _made_by(run, rank, thread, window)
    elements = tensor_shapes(shapes)
    return math.prod(elements[0]) if elements and _MEANS.fullmatch(name) else None


def _made_by(run: Run, rank: int, thread: str, window: tuple[int, int]) -> tuple[str, str]:
    """Returns the operator, and the shapes of its inputs, that made what the call at the end of a
    stretch of time gets; empty texts: not known."""
    at = ["start_ns", "depth", "storage", "write"]
    rows = to_frame(run.events("access", rank, thread, columns=at, window=window))
    call = rows["start_ns"] == window[1] - 1
    written = rows[rows["storage"].isin(rows.loc[call, "storage"]) & rows["write"] & ~call]
    if written.empty:
        return "", ""
    ops = to_frame(
        run.events(
            "op", rank, thread, columns=["start_ns", "depth", "name", "shapes"], window=window
        )
    )
    ops = ops[ops["depth"] == 0].sort_values("start_ns")
    last = ops[ops["start_ns"] <= written["start_ns"].max()].tail(1)
    return next(
        zip(last["name"].astype("str"), last["shapes"].astype("str"), strict=True), ("", "")
    )


def metric_orders(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_average`, one per group. Raises NotApplicable."""
    need_ranks(run)
    need_accesses(run)
    calls = collective_calls(run)
    calls = calls[calls["name"].isin(["all_reduce", "reduce"]) & (calls["group_size"] > 1)]
    calls = need_rows(
        calls[calls["bytes"] <= _ONE_NUMBER], "no single number is added up over ranks"
    )
    found = []
    for group, own in calls.groupby("group", observed=True):
        ranks = [rank for rank in group_members(run)[str(group)] if rank in set(own["rank"])]
        ranks = ranks[:_MAX_RANKS]
        own = own[own["rank"].isin(ranks)]
        several = own.groupby(["rank", "step"])["sequence"].transform("size") > 1
        steps = own.loc[several, "step"].drop_duplicates().nsmallest(_MIN_STEPS + 1)
        first = own[several & own["step"].isin(steps)].groupby("rank").head(_MAX_CALLS)
        if len(ranks) < 2 or first.empty:
            continue
        made = first.assign(made=[_maker(run, call) for call in first.itertuples()])
        table = made.pivot_table(
            index=["step", "sequence"], columns="rank", values="made", aggfunc="first"
        )
        apart = [rows for _, rows in table.groupby(level="step") if _in_other_order(rows, ranks)]
        if len(apart) >= _MIN_STEPS:
            found.append(_of_orders(run, ranks, own, apart))
    return found


def _maker(run: Run, call: Any) -> str:
    """The operator that made what a call gets, within the step before it or its own."""
    bounds = step_bounds(run, int(call.rank), int(call.step) - 1)
    since = bounds[0] if bounds is not None else 0
    window = since, int(call.start_ns) + 1
    return _made_by(run, int(call.rank), str(call.thread), window)[0]


def _in_other_order(rows: pd.DataFrame, ranks: list[int]) -> bool:
    """Whether the numbers of a step are made by the same operators, not in the same order."""
    if not {*ranks} <= {*rows.columns} or rows[ranks].isna().any(axis=None):
        return False
    orders = [tuple(rows[rank]) for rank in ranks]
    return (
        len({*orders}) > 1 and len({tuple(sorted(one)) for one in orders}) == 1 and all(orders[0])
    )


def _of_orders(
    run: Run, ranks: list[int], calls: pd.DataFrame, apart: list[pd.DataFrame]
) -> Finding:
    rows = apart[0]
    step, sequence = next(at for at, row in rows.iterrows() if row[ranks].nunique() > 1)
    made = rows.loc[(step, sequence), ranks]
    other = next(rank for rank in ranks if made[rank] != made[ranks[0]])
    one = calls[(calls["rank"] == ranks[0]) & (calls["sequence"] == sequence)].iloc[0]
    where = own_place(run, ranks[0], int(one["stack"]))
    return finding_at(
        run,
        ranks[0],
        one.rename({"start_ns": "time_ns"}),
        kind="wrong_average",
        severity="error",
        confidence="likely",
        title=f"{units.sentence(ranks_in(run, tuple(ranks)))} reduce {len(rows)} numbers in "
        f"different orders{at_place(where)}, in each of {len(apart)} steps: at step {step}, "
        f"what rank {ranks[0]} adds up is from {made[ranks[0]]}, and what rank {other} adds to it "
        f"from {made[other]}. Reduce them in one order on all ranks: that of a list or of sorted "
        "names, not of a set.",
        ranks=tuple(ranks),
        where=where,
        evidence={
            "cause": "metric_orders",
            "steps": len(apart),
            "made_by": {str(one): made[one] for one in ranks},
        },
    )


def _of_means(
    run: Run, ranks: tuple[int, ...], where: str, calls: pd.DataFrame, apart: pd.DataFrame
) -> Finding:
    first = apart.iloc[0]
    few, many = int(first.idxmin()), int(first.idxmax())
    return finding_at(
        run,
        ranks[0],
        calls.loc[apart.index[0]].rename({"start_ns": "time_ns"}),
        kind="wrong_average",
        severity="warning",
        confidence="likely",
        title=f"The number that is reduced{at_place(where)} is a mean over {int(first[few])} "
        f"elements on rank {few}, and over {int(first[many])} on rank {many}, in "
        f"{units.count(len(apart))} calls: the average over the ranks weighs each rank alike, "
        "however many samples it has seen. Reduce the sum and the count, and divide then.",
        ranks=ranks,
        where=where,
        evidence={"cause": "unequal_means", "counts": {str(r): int(first[r]) for r in ranks}},
    )
