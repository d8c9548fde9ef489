"""A step whose ranks compute on the host, ready to be replayed: an actor per rank."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd

from lanescope.webapp.analysis.collective_calls import calls, rank_calls
from lanescope.webapp.analysis.links import step_bounds
from lanescope.webapp.plugins.collectives.skew import COLLECTIVE_KEYS, arrivals
from lanescope.webapp.plugins.time.breakdown import collective_waits, training_thread
from lanescope.webapp.plugins.time.buckets import gradients_ready, reductions
from lanescope.webapp.plugins.time.critical_path import RankThread
from lanescope.webapp.plugins.time.job_steps import JobStep
from lanescope.webapp.plugins.time.lane_work import LaneWork
from lanescope.webapp.plugins.time.replay import (
    Actor,
    CallKey,
    Replay,
    StretchEnd,
    arriving_ranks,
)
from lanescope.webapp.runs.run import Run

_Wait = tuple[int, int, Any]
"""Start and end, ns, and label of the row of `calls`."""


def host_replay(run: Run, window: JobStep, gradients: bool) -> Replay:
    """Returns the training threads of all ranks in a step of the job; `gradients`: with these."""
    last = {
        (str(group), int(sequence)): int(came)
        for (group, sequence), came in arrivals(run).set_index(COLLECTIVE_KEYS)["last_ns"].items()
    }
    found = (_rank_step(run, rank, window.step, last, gradients) for rank in run.ranks)
    actors = tuple(one for one in found if one is not None)
    arriving = arriving_ranks(actors)
    outside: dict[CallKey, float] = {}
    frame = calls(run)
    for group, sequence, rank, start in frame[["group", "sequence", "rank", "start_ns"]].to_numpy():
        key = (str(group), int(sequence))
        if key in arriving and int(rank) not in arriving[key]:
            outside[key] = max(outside.get(key, 0.0), float(start))
    return Replay(window, actors, outside)


def _rank_step(
    run: Run, rank: int, step: int, last: dict[CallKey, int], gradients: bool
) -> Actor | None:
    bounds = step_bounds(run, rank, step)
    if bounds is None:
        return None
    start, end = bounds
    lane = RankThread(rank, training_thread(run, rank).thread)
    mine = rank_calls(run, rank)
    waits = _waits(run, lane, mine, (start, end))
    arriving = mine[(mine["start_ns"] >= start) & (mine["start_ns"] < end)]
    none = np.zeros(0, np.int64)
    ready, sizes = gradients_ready(run, rank, (start, end)) if gradients else (none, none)
    keys = {label: _key(mine, label) for label in {*arriving.index, *(w[2] for w in waits)}}
    # At one instant a gradient is ready before its call arrives, and that before the wait begins.
    events = [(at, 0, StretchEnd("ready", ("", i))) for i, at in enumerate(ready.tolist())]
    events += [
        (int(at), 1, StretchEnd("arrive", keys[label]))
        for label, at in arriving["start_ns"].items()
    ]
    for _, high, label in waits:
        transfer = max(high - last.get(keys[label], high), 0)
        events.append((high, 2, StretchEnd("wait", keys[label], transfer)))
    events.sort(key=lambda one: one[:2])
    instants = np.array([one[0] for one in events], np.int64)
    work = LaneWork(run, lane, (start, end))
    edges = np.unique(np.concatenate([[start, end], *([low, high] for low, high, _ in waits)]))
    cut = [
        piece
        for low, high in itertools.pairwise(edges.tolist())
        if not any(a <= low and high <= b for a, b, _ in waits)
        for piece in work.pieces(low, high, instants)
    ]
    return Actor(
        rank,
        start,
        tuple(event for _, _, event in events),
        np.array([length for _, length, _ in cut], float),
        np.searchsorted(instants, [begin for begin, *_ in cut], side="right"),
        tuple(about for _, _, about in cut),
        gradients=sizes,
        reductions=tuple(
            keys[label] for label in (reductions(arriving, ready, sizes) if gradients else ())
        ),
    )


def _waits(
    run: Run, lane: RankThread, calls_of: pd.DataFrame, step: tuple[int, int]
) -> list[_Wait]:
    """Waits of a training thread for collectives, within a step."""
    start, end = step
    found: list[_Wait] = [
        (int(low), int(high), label)
        for low, high, label in collective_waits(run, lane.rank).itertuples(index=False, name=None)
        if start <= low and high <= end
    ]
    own = calls_of[
        (calls_of["thread"] == lane.thread)
        & ~calls_of["asynchronous"]
        & (calls_of["returned_ns"] >= 0)
    ]
    inside = own[(own["start_ns"] >= start) & (own["returned_ns"] <= end)]
    return [*found, *zip(inside["start_ns"], inside["returned_ns"], inside.index, strict=True)]


def _key(frame: pd.DataFrame, label: Any) -> CallKey:
    return str(frame.at[label, "group"]), int(frame.at[label, "sequence"])
