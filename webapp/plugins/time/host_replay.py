"""A step whose ranks compute on the host, ready to be replayed: an actor per rank."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

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
from lanescope.webapp.runs.types import BoolArray, Int64Array

_Wait = tuple[int, int, int]
"""Start and end, ns, and label of the row of `calls`."""


def host_replay(run: Run, window: JobStep, gradients: bool) -> Replay:
    """Returns the training threads of all ranks in a step of the job; `gradients`: with these.

    Raises NotApplicable where collectives wait for each other, before any operator is read.
    """
    found = (_rank_step(run, rank, window.step, gradients) for rank in run.ranks)
    steps = [one for one in found if one is not None]
    actors = tuple(one.actor for one in steps)
    replay = Replay(window, actors, _outside(run, arriving_ranks(actors)))
    replay.run()
    return dataclasses.replace(replay, actors=tuple(_with_work(run, one) for one in steps))


def _outside(run: Run, arriving: Mapping[CallKey, set[int]]) -> dict[CallKey, float]:
    """Last arrivals of ranks that came to a call in another step."""
    found: dict[CallKey, float] = {}
    for key, came in _came(run).items():
        if key in arriving:
            for rank, start in came:
                if rank not in arriving[key]:
                    found[key] = max(found.get(key, 0.0), start)
    return found


@lru_cache(maxsize=4)
def _came(run: Run) -> dict[CallKey, list[tuple[int, float]]]:
    """Ranks and starts of each call."""
    frame = calls(run)
    found: dict[CallKey, list[tuple[int, float]]] = {}
    columns = (frame[name].tolist() for name in (*COLLECTIVE_KEYS, "rank", "start_ns"))
    for group, sequence, rank, start in zip(*columns, strict=True):
        found.setdefault((str(group), int(sequence)), []).append((int(rank), float(start)))
    return found


@lru_cache(maxsize=4)
def _last_arrivals(run: Run) -> dict[CallKey, int]:
    table = arrivals(run)
    columns = (table[name].tolist() for name in (*COLLECTIVE_KEYS, "last_ns"))
    return {
        (str(group), int(sequence)): int(came)
        for group, sequence, came in zip(*columns, strict=True)
    }


@dataclass(frozen=True, eq=False)
class _RankStep:
    """The training thread of a rank in a step."""

    actor: Actor  # without its work
    lane: RankThread
    bounds: tuple[int, int]
    waits: list[_Wait]
    instants: Int64Array  # of the actor's events


def _rank_step(run: Run, rank: int, step: int, gradients: bool) -> _RankStep | None:
    bounds = step_bounds(run, rank, step)
    if bounds is None:
        return None
    start, end = bounds
    lane = RankThread(rank, training_thread(run, rank).thread)
    own, last = _calls_of(run, lane), _last_arrivals(run)
    waits = own.waits(start, end)
    came = np.flatnonzero((own.start >= start) & (own.start < end))
    none = np.zeros(0, np.int64)
    ready, sizes = gradients_ready(run, rank, (start, end)) if gradients else (none, none)
    # At one instant a gradient is ready before its call arrives, and that before the wait begins.
    events = [(at, 0, StretchEnd("ready", ("", i))) for i, at in enumerate(ready.tolist())]
    events += [(int(own.start[i]), 1, StretchEnd("arrive", own.keys[i])) for i in came.tolist()]
    for _, high, label in waits:
        key = own.keys[label - own.first]
        events.append((high, 2, StretchEnd("wait", key, max(high - last.get(key, high), 0))))
    events.sort(key=lambda one: one[:2])
    reduced: list[int] = []
    if gradients:
        reduced = reductions(rank_calls(run, rank).iloc[came], ready, sizes)
    actor = Actor(
        rank,
        start,
        tuple(event for _, _, event in events),
        np.zeros(0),
        none,
        (),
        gradients=sizes,
        reductions=tuple(own.keys[label - own.first] for label in reduced),
    )
    instants = np.array([one[0] for one in events], np.int64)
    return _RankStep(actor, lane, bounds, waits, instants)


def _with_work(run: Run, step: _RankStep) -> Actor:
    """Returns the actor with its operators and the gaps between them, without its waits."""
    waits = step.waits
    work = LaneWork(run, step.lane, step.bounds)
    edges = np.unique(np.concatenate([step.bounds, *([low, high] for low, high, _ in waits)]))
    cut = [
        piece
        for low, high in itertools.pairwise(edges.tolist())
        if not any(a <= low and high <= b for a, b, _ in waits)
        for piece in work.pieces(low, high, step.instants)
    ]
    return dataclasses.replace(
        step.actor,
        length=np.array([length for _, length, _ in cut], float),
        stretch=np.searchsorted(step.instants, [begin for begin, *_ in cut], side="right"),
        about=tuple(about for _, _, about in cut),
    )


@dataclass(frozen=True, eq=False)
class _Calls:
    """The collective calls of a rank, by start. Labels are those of `calls`, from `first` on."""

    first: int
    keys: list[CallKey]
    start: Int64Array
    returned: Int64Array
    blocking: BoolArray  # calls of the training thread in which it waits
    later: list[_Wait]  # waits of that thread after a call

    def waits(self, start: int, end: int) -> list[_Wait]:
        """Returns waits of the training thread for collectives, within a step."""
        found = [one for one in self.later if start <= one[0] and one[1] <= end]
        inside = self.blocking & (self.start >= start) & (self.returned <= end)
        for i in np.flatnonzero(inside).tolist():
            found.append((int(self.start[i]), int(self.returned[i]), self.first + i))
        return found


@lru_cache(maxsize=2048)
def _calls_of(run: Run, lane: RankThread) -> _Calls:
    frame = rank_calls(run, lane.rank)
    groups, sequences = (frame[name].tolist() for name in COLLECTIVE_KEYS)
    returned = frame["returned_ns"].to_numpy()
    blocking = (frame["thread"] == lane.thread) & ~frame["asynchronous"]
    later = collective_waits(run, lane.rank).itertuples(index=False, name=None)
    return _Calls(
        int(frame.index[0]) if len(frame) else 0,
        [(str(group), int(n)) for group, n in zip(groups, sequences, strict=True)],
        frame["start_ns"].to_numpy(),
        returned,
        blocking.to_numpy(bool) & (returned >= 0),
        [(int(low), int(high), int(label)) for low, high, label in later],
    )
