"""Finds what a rank does now and then while the others wait for it: a checkpoint, a long log.

A straggler is late in three of four steps. This is late a few times, always at one place of the
program, and by far more than chance makes ranks late.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

import numpy as np
import pandas as pd

from lanescope.webapp.analysis.collective_calls import collective_calls
from lanescope.webapp.analysis.findings import Finding
from lanescope.webapp.analysis.links import group_lane, timeline_address
from lanescope.webapp.plugins.collectives.skew import arrival_evidence
from lanescope.webapp.plugins.collectives.slow_places import SlowPlace, slow_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run

_MIN_TIMES = 3
_MIN_WAIT_NS = 100_000_000
_STANDS_OUT = 3.0
"""Times the longest of nine in ten delays by other ranks, which are chance."""

_MIN_SHARE = 0.05
_WARNS_FROM = 0.2
"""Share of the time after the first step that the waits must take, and from which they are a
warning."""

_MAX_LOOKED_AT = 20


def occasional_waits(
    run: Run, came: pd.DataFrame, without: Collection[int | None]
) -> list[Finding]:
    """Returns findings of kind `straggler`, at most one per rank and place. `came`: rows of
    `skew.arrivals`; `without`: ranks that are late in most steps."""
    later = came[came["step"] > came["step"].min()]
    delay = (later["alone_ns"] - later["runnable_ns"]).clip(lower=0)
    length = max(1, int(later["last_ns"].max()) - int(later["first_ns"].min())) if len(later) else 1
    found = []
    for rank, mine in later.groupby("last_rank", sort=True):
        number = int(str(rank))
        if number in without:
            continue
        others = delay[later["last_rank"] != rank]
        usual = float(others.quantile(0.9)) if len(others) else 0.0
        waits = mine.assign(wait=delay[mine.index])
        waits = waits[waits["wait"] >= max(_MIN_WAIT_NS, _STANDS_OUT * usual)]
        if len(waits) < _MIN_TIMES or waits["wait"].sum() < _MIN_SHARE * length:
            continue
        for place, its in _by_place(run, number, waits):
            share = its["wait"].sum() / length
            if len(its) >= _MIN_TIMES and share >= _MIN_SHARE:
                found.append(_finding(run, number, place, its, share))
    return found


def _by_place(run: Run, rank: int, waits: pd.DataFrame) -> Iterator[tuple[SlowPlace, pd.DataFrame]]:
    """The longest waits by the place at which the rank spent them."""
    frame = collective_calls(run)
    starts = frame.loc[frame["rank"] == rank, "start_ns"].to_numpy()
    rows: dict[str, list[int]] = defaultdict(list)
    places: dict[str, SlowPlace] = {}
    for label, row in waits.nlargest(_MAX_LOOKED_AT, "wait").iterrows():
        last = int(row["last_ns"])
        before = int(starts[max(0, int(np.searchsorted(starts, last)) - 1)])
        place = slow_place(run, rank, (before, last + 1), 1, float(row["wait"]))
        if place is not None and place.where is not None:
            places[place.where] = place
            rows[place.where].append(int(str(label)))
    for where, labels in rows.items():
        yield places[where], waits.loc[labels]


def _finding(run: Run, rank: int, place: SlowPlace, waits: pd.DataFrame, share: float) -> Finding:
    worst = waits.loc[waits["wait"].idxmax()]
    usual, first, last = (
        int(one) for one in (waits["wait"].median(), worst["first_ns"], worst["last_ns"])
    )
    others = tuple(one for one in run.ranks if one != rank)
    return Finding(
        kind="straggler",
        severity="warning" if share >= _WARNS_FROM else "info",
        confidence="likely",
        title=f"{units.sentence(ranks_in(run, (rank,)))} keeps {ranks_in(run, others)} waiting for "
        f"{units.duration(usual)} {units.counted(len(waits), 'time')} ({units.share(share)} of the "
        f"training), each time {place.words}. If it writes a checkpoint or a log there, write a "
        "copy from another thread, or less often.",
        rank=rank,
        step=int(worst["step"]),
        time_ns=first,
        where=place.where,
        evidence={
            "cause": "occasional",
            "share": share,
            "delay_ns": usual,
            "total_ns": int(waits["wait"].sum()),
            "rounds": len(waits),
            "worst": arrival_evidence(worst),
        },
        link=timeline_address(
            first, last, run.duration_ns, (group_lane(rank, str(worst["group"])), last)
        ),
    )
