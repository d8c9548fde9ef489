"""Finds evaluations over a DistributedSampler that counts some samples twice.

It gives each rank as many samples: where they cannot be shared out so, the first ones are handed
out again at the end. Training does not mind, but a sum over the ranks weighs these twice. Found
where a model is called without gradients in the iteration, and the ranks then reduce a number and
gather nothing, as gathered results can be cut to the length of the dataset.
"""

from __future__ import annotations

import pandas as pd

from lanescope.collector.format import schema
from lanescope.collector.format.loader_names import SAMPLER_PADDING
from lanescope.webapp.analysis.arrow_columns import to_frame
from lanescope.webapp.analysis.collective_calls import collective_calls
from lanescope.webapp.analysis.findings import Finding, finding_at
from lanescope.webapp.analysis.links import at_place
from lanescope.webapp.analysis.nothing_to_check import need_ranks, need_rows
from lanescope.webapp.analysis.parameter_history import logged
from lanescope.webapp.analysis.process_exits import of_last_attempt
from lanescope.webapp.analysis.stack_frames import own_place, phase_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_LEAST_SHARE, _MUCH = 0.005, 0.02  # of the samples; fewer than much hardly change a result
_MAX_ITERATIONS = 16
_EVALUATION = schema.PhaseKind.evaluation.name
_CALLS = (_EVALUATION, schema.PhaseKind.forward.name, schema.PhaseKind.backward.name)


def padded_evaluations(run: Run) -> list[Finding]:
    """Returns findings of kind `wrong_average`, one per dataset. Raises NotApplicable."""
    need_ranks(run)
    rows = of_last_attempt(run, logged(run, None, prefix=SAMPLER_PADDING))
    rows = need_rows(rows, "no DistributedSampler pads its dataset")
    rank = int(rows["rank"].min())
    rows = rows[rows["rank"] == rank].sort_values("time_ns")
    phases = to_frame(run.events("phase", rank, columns=["start_ns", "kind"]))
    phases = phases[phases["kind"].isin(_CALLS)].sort_values("start_ns")
    found: dict[str, Finding] = {}
    for name, own in rows.groupby("name", sort=False, observed=True):
        length = int(name)
        for _, row in own.head(_MAX_ITERATIONS).iterrows():
            call = _sum_after(run, rank, phases, int(row["time_ns"]))
            if call is not None and row["value"] >= _LEAST_SHARE * length:
                found.setdefault(str(name), _finding(run, rank, row, length, call))
    return list(found.values())


def _sum_after(run: Run, rank: int, phases: pd.DataFrame, begin: int) -> pd.Series | None:
    """The reduction of what an evaluation counts that begins with an iteration; None without.
    `phases`: calls of models and backward passes, in their order."""
    phases = phases[phases["start_ns"] >= begin]
    trains = phases.loc[phases["kind"] != _EVALUATION, "start_ns"]
    until = int(trains.min()) if len(trains) else run.duration_ns
    evaluated = phases[phases["start_ns"] < until]
    if evaluated.empty:
        return None
    calls = collective_calls(run)
    mine = calls[(calls["rank"] == rank) & calls["start_ns"].between(begin, until)]
    mine = mine[mine["group_size"] > 1]
    sums = mine[mine["name"].isin(["all_reduce", "reduce"]) & (mine["reduce_op"] != "max")]
    if sums.empty or mine["name"].str.contains("gather").any():
        return None
    return sums.iloc[0]


def _finding(run: Run, rank: int, row: pd.Series, length: int, call: pd.Series) -> Finding:
    twice, begin = int(row["value"]), int(row["time_ns"])
    window = begin, int(call["start_ns"])
    where = phase_place(run, rank, schema.PhaseKind.data.name, window)
    said = f"{units.count(twice)} of {units.count(length)} samples"
    return finding_at(
        run,
        rank,
        row,
        kind="wrong_average",
        severity="warning" if twice >= _MUCH * length else "info",
        confidence="likely",
        title=f"An evaluation counts {said} twice{at_place(where)}: its DistributedSampler pads "
        "the dataset, so that each rank has as many samples, and the sum over the ranks"
        f"{at_place(own_place(run, rank, int(call['stack'])))} takes them all. Evaluate the rest "
        "apart (drop_last=True, and the last samples on one rank), or share the samples out "
        "without padding: sampler=range(rank, len(dataset), world_size).",
        where=where,
        evidence={"cause": "padded_evaluation", "padding": twice, "samples": length},
    )
