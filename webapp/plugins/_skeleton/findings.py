"""Does an operator take far longer than usual?

SKELETON: analyses import neither Dash nor Plotly. A run goes in, data frames and findings come out.
"""

from __future__ import annotations

from typing import Any, TypedDict

import pandas as pd

from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import thread_lane, timeline_address
from lanescope.webapp.analysis.nothing_to_check import need_rows
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_MIN_CALLS = 4
"""Of fewer calls nothing is usual."""

MIN_FACTOR = 100.0
"""Times the median from which a call is reported."""

_KEYS = ["rank", "name"]
_COLUMNS = ["start_ns", "duration_ns", "name", "step"]


class SlowCall(TypedDict):
    """SKELETON: what `evidence` of every finding of the kind holds; it is checked."""

    op: str
    factor: float


def call_durations(run: Run) -> pd.DataFrame:
    """Returns one row per rank and operator: rank, name, calls, median_ns, longest_ns."""
    grouped = _calls(run).groupby(_KEYS)["duration_ns"]
    found = grouped.agg(calls="size", median_ns="median", longest_ns="max")
    return found.reset_index().sort_values("longest_ns", ascending=False, ignore_index=True)


def slow_calls(run: Run) -> list[Finding]:
    """Returns findings of kind `skeleton_call`, one per rank and operator.

    SKELETON: raise NotApplicable, with the reason, where the run has nothing of the kind, and
    NotRecorded, which says what to record, where another recording would have.
    """
    calls = need_rows(_calls(run), "no operators were recorded")
    usual = call_durations(run)
    usual = usual[usual["calls"] >= _MIN_CALLS]
    longest = calls.loc[calls.groupby(_KEYS)["duration_ns"].idxmax()].merge(usual, on=_KEYS)
    longest["factor"] = longest["duration_ns"] / longest["median_ns"].clip(lower=1)
    return [_finding(run, row) for row in longest.itertuples() if row.factor >= MIN_FACTOR]


def _calls(run: Run) -> pd.DataFrame:
    """Finished calls: thread, rank and the columns of the op table."""
    frames = [
        run.events("op", thread.rank, thread.thread, _COLUMNS)
        .to_pandas()
        .assign(rank=thread.rank, thread=thread.thread)
        for thread in run.threads
    ]
    calls = pd.concat(frames, ignore_index=True).dropna(subset="duration_ns")
    return calls.assign(name=calls["name"].astype("str"))


def _finding(run: Run, row: Any) -> Finding:
    """SKELETON: say what is wrong with its size, where, why it matters, and what to do."""
    start, duration = int(row.start_ns), int(row.duration_ns)
    return Finding(
        kind="skeleton_call",
        severity="warning",
        confidence="likely",
        title=f"{row.name} takes {units.duration(duration)} in step {row.step} of rank {row.rank}, "
        f"{units.number(row.factor)} times its median: look at what runs beside it",
        rank=int(row.rank),
        thread=str(row.thread),
        step=int(row.step),
        time_ns=start,
        evidence={"op": str(row.name), "factor": float(row.factor)},
        link=timeline_address(
            start,
            start + duration,
            run.duration_ns,
            at=(thread_lane(int(row.rank), str(row.thread)), start),
        ),
    )
