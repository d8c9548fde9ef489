"""Finds losses of batches without a target: all are ignored, or a mask leaves no element.

The mean is then 0 / 0. It is a fault where the NaN is the loss of the next backward. Where the
program hides it, or divides by another number, the batch teaches nothing if the step has no other
backward or only gradients of zero. That is a fault where all targets of many batches are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.names import EMPTY_MEAN, GRAPH_SERIES, NAN_LOSS
from lanescope.webapp.analysis.arrow_columns import phases_of_kind, to_frame
from lanescope.webapp.analysis.cluster import per_rank
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import at_place, step_link
from lanescope.webapp.analysis.nothing_to_check import need_backward
from lanescope.webapp.analysis.parameter_history import logged, rank_gradient_rows
from lanescope.webapp.analysis.stack_frames import own_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_BATCHES, _MIN_SHARE = 3, 0.1
"""Of the batches of a loss those that teach nothing, where the program hides it."""

_LISTED = 20


@dataclass(frozen=True)
class _Loss:
    """The empty means of one line."""

    where: str | None
    op: str
    rows: pd.DataFrame  # step, time_ns, value, reached, skipped, flat
    calls: int  # of that operator at that line


def empty_means(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_loss`, at most one per line and rank. Raises
    NotApplicable."""
    need_backward(run)
    found = []
    for rank in run.ranks:
        for loss in _losses(run, rank):
            reached = loss.rows[loss.rows["reached"]]
            wasted = loss.rows["skipped"] | loss.rows["flat"]
            wasted = loss.rows[wasted & (loss.rows["value"] > 0)]
            if len(reached):
                found.append(_finding(run, rank, loss, reached, hidden=False))
            elif len(wasted) >= max(_MIN_BATCHES, _MIN_SHARE * loss.calls):
                found.append(_finding(run, rank, loss, wasted, hidden=True))
    return found


@per_rank
def _losses(run: Run, rank: int) -> list[_Loss]:
    rows = logged(run, rank, EMPTY_MEAN)[["thread", "time_ns", "value"]]
    if rows.empty:
        return []
    calls = _calls(run, rank, set(rows["thread"]))
    calls = calls.merge(rows, "left", on=["thread", "time_ns"])
    calls = calls[calls["name"].isin(calls.loc[calls["value"].notna(), "name"])].copy()
    _add_effects(run, rank, calls)
    places = {one: own_place(run, rank, int(one)) or "" for one in calls["stack"].dropna().unique()}
    calls["where"] = calls["stack"].map(places).fillna("")
    found = []
    for (where, name), own in calls.groupby(["where", "name"], sort=False):
        if own["value"].notna().any():
            trained = (own["sequence"].notna() & ~own["skipped"]).any()
            own["skipped"] &= trained  # else it may be a loss that is only looked at
            found.append(_Loss(where or None, name, own[own["value"].notna()], len(own)))
    return found


def _calls(run: Run, rank: int, threads: set[str]) -> pd.DataFrame:
    """Operators of some threads: thread, time_ns, name, step, sequence, stack; without those that
    begin by a call of an operator of the same name."""
    columns = ["start_ns", "depth", "name", "step", "sequence", "stack"]
    found = []
    for thread in sorted(threads):
        ops = to_frame(run.events("op", rank, thread, columns)).assign(thread=thread)
        ops["name"] = ops["name"].astype("str")
        outer = (ops["name"].shift(-1) == ops["name"]) & (ops["depth"].shift(-1) > ops["depth"])
        found.append(ops[~outer].rename(columns={"start_ns": "time_ns"}))
    return pd.concat(found).sort_values("time_ns", ignore_index=True)


def _add_effects(run: Run, rank: int, calls: pd.DataFrame) -> None:
    """Adds of each call: reached (the loss of the next backward is NaN), skipped (no backward gets
    it) and flat (all gradients of its step are zero)."""
    begun = phases_of_kind(run, schema.PhaseKind.backward, rank)["start_ns"].to_numpy()
    following = np.searchsorted(begun, calls["time_ns"].to_numpy())
    nan = np.searchsorted(begun, logged(run, rank, NAN_LOSS)["time_ns"].to_numpy(), "right") - 1
    calls["reached"] = np.isin(following, nan)
    # Of the losses before a backward those are in its graph that were computed last.
    counts = logged(run, rank, prefix=GRAPH_SERIES)
    most = counts.loc[counts["name"].str.startswith("NllLoss"), "value"].max()
    counted = calls["sequence"].notna()
    later = calls[counted].groupby(following[counted]).cumcount(ascending=False)
    later = later.reindex(calls.index)
    calls["skipped"] = counted & ((later >= most) | (following == len(begun)))
    grads = rank_gradient_rows(run, rank)
    norms = grads[~grads["missing"]].groupby("step")["norm"].max()
    calls["flat"] = counted & (norms.reindex(calls["step"]).to_numpy() == 0)


def _finding(run: Run, rank: int, loss: _Loss, rows: pd.DataFrame, *, hidden: bool) -> Finding:
    first = rows.sort_values("time_ns").iloc[0]
    step, targets = int(first["step"]), int(first["value"])
    at = at_place(loss.where)
    often = f"in {units.count(len(rows))} of {units.count(loss.calls)} calls"
    if targets:
        what = f"all {units.count(targets)} targets of the loss{at} are ignored, {often}"
        advice = (
            "Check what masks the labels and cuts them off, and leave samples without a label out "
            "of the data."
        )
    else:
        what = f"{loss.op.removeprefix('aten::')}{at} gets no element, {often}"
        advice = "Leave it out where the mask is empty, or divide the sum by max(count, 1)."
    lead = f"The loss is NaN at step {step}: {what}, and the mean is 0 / 0."
    if hidden:
        lead = f"Batches teach nothing since step {step}: {what}, and the program hides it."
    return Finding(
        kind="wrong_loss",
        severity="warning",
        confidence="likely" if hidden else "certain",
        title=f"{lead} {advice}",
        rank=rank,
        step=step,
        time_ns=int(first["time_ns"]),
        where=loss.where,
        evidence={
            "cause": "empty",
            "op": loss.op,
            "targets": targets,
            "calls": loss.calls,
            "steps": [int(one) for one in rows["step"].unique()[:_LISTED]],
        },
        link=step_link(run, rank, step),
    )
