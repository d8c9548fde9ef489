"""Finds stragglers: ranks that keep all others waiting, step after step.

With rounds the training steps (or single collectives, where a program has no steps), a rank is a
straggler when in three of four rounds it alone delays the others by a fifth of the round or more,
and by more than the operating system's scheduler does:

    delay(rank, round) = |union of [last but one arrival, last arrival) of the round's collectives
                          to which the rank came last|, each shortened by the time for which the
                          rank's thread was ready to run and had no processor
    lower quartile over rounds of delay / length of the round >= SHARE, and of delay >= MIN_WAIT_NS
    and >= the upper quartile of the delays of half of the other ranks

A rank that is last by chance is so in about as many rounds as the others. One that shares too few
processors with others may be so every time, in the order in which the system lets them run: that
says nothing about the rank, and then others are late by as much now and then.

It is information where ranks do different things, as a learner and its actors do: some run
backward and others do not. What a rank does now and then (`occasional_waits`) and a single wait
longer than a watchdog's timeout (`long_waits`) are reported as well.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.arrow_columns import texts_of
from lanescope.webapp.analysis.collective_calls import call_title
from lanescope.webapp.analysis.findings import Finding, NotRecorded
from lanescope.webapp.analysis.links import at_place, group_lane, timeline_address
from lanescope.webapp.analysis.rank_state import NO_PROGRESS, dumps, meanwhile
from lanescope.webapp.plugins.collectives.abandoned_calls import calls_left
from lanescope.webapp.plugins.collectives.occasional_waits import occasional_waits
from lanescope.webapp.plugins.collectives.skew import (
    COLLECTIVE_KEYS,
    MIN_SKEW_NS,
    arrival_evidence,
    arrivals,
    comparable_arrivals,
)
from lanescope.webapp.plugins.collectives.slow_places import SlowPlace, slow_place
from lanescope.webapp.runs import units
from lanescope.webapp.runs.rank_groups import ranks_in
from lanescope.webapp.runs.run import Run

MIN_ROUNDS = 9
"""The first round is left out (everything is slow once). On a busy machine the scheduler disfavours
one rank for half a dozen rounds in a row; fewer than eight prove nothing."""

MAX_ROUNDS = 20
"""Rounds in which it is looked for what the rank does meanwhile, the last ones."""

_SHARE = 0.2
"""Of half of the rounds, and a quarter of it of three in four: some evaluate, and take longer."""

_BACKWARD = schema.PhaseKind.backward.name


_MIN_SHARE = 0.5
"""Share of a watchdog's silence that the last-comer must account for."""


def stragglers(run: Run) -> list[Finding]:
    """Returns findings of kind `straggler`. NotApplicable: nothing, or too little, to compare."""
    came = comparable_arrivals(run)
    found = [_finding(run, rank, shares, came) for rank, shares in steadily_late(came).items()]
    known = {finding.rank for finding in found}
    found += occasional_waits(run, came, known)
    known = {finding.rank for finding in found}
    found += [one for one in long_waits(run) if one.rank not in known]
    steps = came["step"].nunique()
    if not found and (steps if steps > 1 else len(came)) < MIN_ROUNDS:
        raise NotRecorded(f"record at least {MIN_ROUNDS} steps")
    return found


def steadily_late(came: pd.DataFrame) -> dict[int, pd.DataFrame]:
    """Returns the rows of `by_round` of each rank that the others wait for in nearly all rounds."""
    rounds = by_round(came)
    late = {rank: float(shares["delay_ns"].quantile(0.75)) for rank, shares in rounds.items()}
    ranks = {*came["first_rank"], *came["last_rank"]}
    usual = {rank: np.median([late.get(one, 0.0) for one in ranks - {rank}]) for rank in rounds}
    return {rank: one for rank, one in rounds.items() if _is_late(one, usual[rank])}


def _is_late(shares: pd.DataFrame, usual_ns: float) -> bool:
    most, half = (shares[["delay_ns", "share"]].quantile(part) for part in (0.25, 0.5))
    late = most["delay_ns"] >= max(MIN_SKEW_NS, usual_ns) and most["share"] >= _SHARE / 4
    return bool(late and half["share"] >= _SHARE and len(shares) >= MIN_ROUNDS - 1)


def by_round(came: pd.DataFrame) -> dict[int, pd.DataFrame]:
    """Returns per rank that is ever last a row per round: round, length_ns, delay_ns, share.

    `came` are rows of `skew.arrivals`.
    """
    by_step = _by_step(came)
    number = came["step"] if by_step else pd.Series(np.arange(len(came)), index=came.index)
    length = came.groupby(number)["last_ns"].max().sort_index().diff().iloc[1:]
    found = {}
    for rank, mine in came.groupby("last_rank", sort=True):
        own = (mine["alone_ns"] - mine["runnable_ns"]).clip(lower=0)
        mine = mine.assign(begin=mine["last_ns"] - own).sort_values("begin")
        # What several collectives of one moment wait for is waited for once.
        before = mine["last_ns"].cummax().shift(fill_value=0)
        fresh = (mine["last_ns"] - np.maximum(mine["begin"], before)).clip(lower=0)
        delay = fresh.groupby(number[mine.index]).sum().reindex(length.index, fill_value=0)
        table = pd.DataFrame({"length_ns": length, "delay_ns": delay}).rename_axis("round")
        share = table["delay_ns"] / table["length_ns"].clip(lower=1)
        found[int(str(rank))] = table.assign(share=share).reset_index()
    return found


def _by_step(came: pd.DataFrame) -> bool:
    """True if rounds are training steps, False if they are single collectives."""
    return bool(came["step"].nunique() >= MIN_ROUNDS)


_ADVICE = "Compare its processor, clock rate and batches with those of the other ranks."


def _finding(run: Run, rank: int, shares: pd.DataFrame, came: pd.DataFrame) -> Finding:
    mine = came[came["last_rank"] == rank]
    # The place that is shown is of a round that counts: in the first, all start up.
    first = came["step"] == came["step"].min() if _by_step(came) else came.index == came.index[0]
    mine = mine[~first[came["last_rank"] == rank]]
    worst, since = mine.loc[mine["alone_ns"].idxmax()], mine.loc[mine["first_ns"].idxmin()]
    share, delay = float(shares["share"].median()), float(shares["delay_ns"].median())
    late = int((shares["delay_ns"] > 0).sum())
    start = int(worst["last_ns"])
    unit = "step" if _by_step(came) else "call"
    place = _place(run, rank, came, delay)
    at = (group_lane(rank, str(worst["group"])), start)
    return Finding(
        kind="straggler",
        severity="warning" if same_roles(run) else "info",
        confidence="likely",
        title=(
            f"{units.sentence(ranks_in(run, (rank,)))} keeps the other ranks waiting for "
            f"{units.duration(delay)} of each {unit} ({units.share(share)}). It came last "
            f"in {late} of {len(shares)} {unit}s"
            + (f", and is slower {place.words}: {place.advice}." if place else f". {_ADVICE}")
        ),
        rank=rank,
        step=int(since["step"]),
        time_ns=int(since["first_ns"]),
        where=place.where if place else None,
        evidence={
            "share": share,
            "delay_ns": int(delay),
            "rounds": len(shares),
            "last_in": late,
            "total_ns": int(shares["delay_ns"].sum()),
            "slower": {"doing": place.words, "excess_ns": place.excess_ns} if place else None,
            "worst": arrival_evidence(worst),
        },
        link=timeline_address(int(worst["first_ns"]), start, run.duration_ns, at),
    )


def same_roles(run: Run) -> bool:
    """Whether all ranks run backward, or none does. A learner and its actors wait by design."""
    trains = {_BACKWARD in texts_of(run, "phase", "kind", rank) for rank in run.ranks}
    return len(trains) == 1


def _place(run: Run, rank: int, came: pd.DataFrame, delay_ns: float) -> SlowPlace | None:
    """Finds what takes the rank longer in the last rounds, on the thread that calls collectives."""
    ends = came.groupby("step")["last_ns"].max().sort_index() if _by_step(came) else came["last_ns"]
    ends = ends.iloc[-1 - MAX_ROUNDS :]
    window = int(ends.iloc[0]), int(ends.iloc[-1])
    return slow_place(run, rank, window, len(ends) - 1, delay_ns)


def long_waits(run: Run) -> list[Finding]:
    """Returns a finding of kind `straggler` per rank and place, of its longest wait that was longer
    than a watchdog's timeout and then ended.

    That is slowness, not a hang: a checkpoint that one rank writes, an evaluation, a batch that
    took long. It is information, with what the rank was doing, where one wait is so long that a
    watchdog's timeout passed in it, and most of it was for the rank that came last.
    """
    seen = _seen_waiting(run)
    if not seen:
        return []
    came = arrivals(run).set_index(COLLECTIVE_KEYS)
    left = {(one.group, one.sequence) for one in calls_left(run)}
    longest: dict[tuple[int, str], tuple[int, Finding]] = {}
    for (group, sequence), (silence, waiting) in seen.items():
        if (group, sequence) not in came.index or (group, sequence) in left:
            continue
        call = came.loc[(group, sequence)]
        rank, waited = int(call["last_rank"]), int(call["skew_ns"])
        if waited < _MIN_SHARE * silence or rank in waiting:
            continue
        doing, where = meanwhile(run, rank, int(call["first_ns"]), int(call["last_ns"]))
        one = _long_wait(run, (group, sequence), call, sorted(waiting), doing, where)
        key = (rank, where or doing)
        longest[key] = max(longest.get(key, (0, one)), (waited, one), key=lambda pair: pair[0])
    return [finding for _, finding in longest.values()]


def _seen_waiting(run: Run) -> dict[tuple[str, int], tuple[int, set[int]]]:
    """Calls in which a watchdog saw ranks wait: its longest silence, and the ranks."""
    found: dict[tuple[str, int], tuple[int, set[int]]] = {}
    for rank in run.ranks:
        for row in dumps(run, rank):
            name, _, rest = str(row["collective"] or "").partition("\t")
            group, _, sequence = rest.partition("\t")
            if not name or row["reason"] not in NO_PROGRESS or not sequence.isdecimal():
                continue
            silence, ranks = found.get((group, int(sequence)), (0, set()))
            longer = max(silence, int(row["duration_ns"]))
            found[group, int(sequence)] = (longer, ranks | {rank})
    return found


def _long_wait(
    run: Run, key: tuple[str, int], call: Any, waiting: list[int], doing: str, where: str | None
) -> Finding:
    (group, sequence), rank = key, int(call["last_rank"])
    waited, first, last = (int(call[name]) for name in ("skew_ns", "first_ns", "last_ns"))
    name = call_title(run, str(call["name"]), group, sequence)
    return Finding(
        kind="straggler",
        severity="info",
        confidence="likely",
        title=f"{units.sentence(ranks_in(run, (rank,)))} kept "
        f"{ranks_in(run, waiting)} waiting for {units.duration(waited)} in {name}: {doing}"
        + at_place(where)
        + ". Share that work among all ranks, or move it out of the training loop.",
        rank=rank,
        step=int(call["step"]),
        time_ns=first,
        where=where,
        evidence={
            "group": group,
            "sequence": sequence,
            "op": str(call["name"]),
            "waiting": waiting,
            "missing": [{"rank": rank, "doing": doing, "where": where}],
            "waited_ns": waited,
        },
        link=timeline_address(first, last, run.duration_ns, (group_lane(rank, group), last)),
    )
