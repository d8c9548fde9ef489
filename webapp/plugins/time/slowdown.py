"""Measures what stragglers cost a job, by replaying its steps with ideal durations.

The measures are those of J. Lin et al., "Understanding Stragglers in Large Model Training Using
What-if Analysis" (OSDI '25, https://arxiv.org/abs/2505.05713) and of its published code
(https://github.com/ByteDance-Seed/StragglerAnalysis). In the ideal step work of one type takes the
mean over workers and steps, and a transfer the median. With T the mean length of the replayed steps
as they were recorded, and T_ideal of the ideal ones:

    S   = T / T_ideal              slowdown of the job; 1 - 1 / S is the share of time wasted
    S_t = T_t / T_ideal            T_t: operations of type t as recorded, all others ideal
    S_w = T_w / T_ideal            T_w: worker w as recorded, all others ideal
    M_W = (T - T_W) / (T - T_ideal)   T_W: the slowest 3 % of the workers ideal, others as recorded
    M_S = (T - T_S) / (T - T_ideal)   T_S: workers of the last pipeline stage ideal, likewise

A worker is a rank. The study's traces name their operations; here an operation is all work of one
category between two collectives of a lane, and its place among them makes it the same one on other
ranks and in other steps. Ranks that make different numbers of collectives, as the stages of a
pipeline do, are compared by all their work of a category in the step.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pandas as pd

from lanescope.webapp.analysis.findings import NotApplicable
from lanescope.webapp.analysis.nothing_to_check import if_applicable
from lanescope.webapp.plugins.time.critical_path import TRANSFER
from lanescope.webapp.plugins.time.job_steps import job_steps
from lanescope.webapp.plugins.time.replay import Actor, Replay
from lanescope.webapp.plugins.time.what_if import checked_replay
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Float64Array

SLOWEST = 0.03
"""Share of the workers that are the slowest ones of M_W; at least one is."""

MIN_SLOWDOWN = 1.01
"""A smaller slowdown of the job is not divided among workers: the replay is not more exact."""

MAX_REPLAYS = 1500
_MAX_OPS = 400_000
"""Replays of a run, and operators in the replayed steps: of a longer run, steps at equal distances
are taken."""

_BY_STEP = ["rank", "step", "slowdown"]
_PIPELINE = re.compile(r"(?<![a-z])(pp|pipeline|pipe)(?![a-z])")

_Place = tuple[str, int, str]
"""Lane, number of collectives before, type: identifies an operation on all ranks and steps."""


@dataclass(frozen=True, eq=False)
class Slowdown:
    """What stragglers cost a job. Slowdowns are factors of at least about 1; shares are of 1."""

    steps: tuple[int, ...]  # replayed
    step_ns: float  # T
    ideal_ns: float  # T_ideal
    operations: Mapping[str, float]  # S_t by type: a category of work, or exposed_communication
    workers: Mapping[int, float]  # S_w by rank
    slowest: tuple[int, ...]  # ranks of M_W
    slowest_share: float | None  # M_W; None: the slowdown is below MIN_SLOWDOWN
    last_stage: tuple[int, ...]  # ranks of the last pipeline stage; none without such groups
    last_stage_share: float | None  # M_S
    by_step: pd.DataFrame  # rank, step, slowdown: S_w of one step

    @property
    def job(self) -> float:
        """S."""
        return self.step_ns / self.ideal_ns

    @property
    def wasted(self) -> float:
        """Share of the job's time that stragglers cost, 1 - 1 / S."""
        return 1 - self.ideal_ns / self.step_ns

    @property
    def slowest_part(self) -> str:
        """M_W in words: without the slowest ranks the others may even be faster than ideal ones."""
        share = self.slowest_share or 0.0
        return "all" if share >= 1 else units.share(share)


@lru_cache(maxsize=4)
def slowdown(run: Run) -> Slowdown:
    """Returns the slowdown of a job by stragglers, as the module's docstring defines it.

    The first of three or more steps is left out, for it warms up; so are steps whose replay
    differs from the recording.

    Raises NotApplicable for a run of one rank, and where no step can be replayed.
    """
    if len(run.ranks) < 2:
        raise NotApplicable("slowdown by stragglers needs two ranks or more")
    steps = [one.step for one in job_steps(run)]
    steps = steps[1:] if len(steps) > 2 else steps
    replays: dict[int, Replay] = {}
    reason = NotApplicable("no training step was recorded")
    for step in _chosen(run, steps):
        try:
            replays[step] = checked_replay(run, step, gradients=False)
        except NotApplicable as found:
            reason = found
    if not replays:
        raise reason
    return slowdown_of(replays, pipeline_stages(run))


def _chosen(run: Run, steps: list[int]) -> list[int]:
    """Returns the steps to replay: all, or as many as MAX_REPLAYS and MAX_OPS allow."""
    per_step = run.counts["op"] // max(len(steps), 1)
    most = min(MAX_REPLAYS // (2 * len(run.ranks)), _MAX_OPS // max(per_step, 1))
    return steps[:: -(-len(steps) // max(most, 1))] if steps else []


def worker_slowdown(run: Run) -> pd.DataFrame:
    """Returns one row per rank and replayed step: rank, step, slowdown (S_w of that step). No rows
    where the slowdown cannot be measured."""
    found = if_applicable(slowdown, run, otherwise=None)
    return pd.DataFrame(columns=_BY_STEP) if found is None else found.by_step


def pipeline_stages(run: Run) -> dict[int, int]:
    """Returns the stage of each rank: its position in the group of pipeline parallelism that the
    run lists; empty without such groups."""
    return {
        rank: stage
        for name, group in run.manifest["groups"].items()
        if _PIPELINE.search(f"{group['description']} {name}".lower())
        for stage, rank in enumerate(group["ranks"])
    }


def slowdown_of(replays: Mapping[int, Replay], stages: Mapping[int, int]) -> Slowdown:
    """Returns the slowdown of a job from the replays of its steps, by step.

    `stages`: pipeline stage of each rank, empty where the job has none.

    Raises NotApplicable where a step would take no time.
    """
    workers = _workers(replays)
    ranks = sorted({one.actor.rank for found in workers.values() for one in found})

    def lengths(kept: _Kept, start: Callable[[int], bool] = lambda _: False) -> Float64Array:
        """Length of each step with the kept operations as recorded, ns."""
        return np.array(
            [
                dataclasses.replace(
                    replay, actors=tuple(one.changed(kept, start) for one in workers[step])
                ).run()
                for step, replay in replays.items()
            ]
        )

    recorded = np.array([one.run() for one in replays.values()])
    ideal = lengths(lambda *_: False)
    if not ideal.all():  # a collective that never completed, and nothing else
        raise NotApplicable("a step has no work that ranks could share")
    of_worker = {rank: lengths(_of_ranks({rank}), {rank}.__contains__) for rank in ranks}
    types = sorted({name for found in workers.values() for one in found for name in one.types})
    of_type = {name: lengths(_of_type(name)) for name in types}
    lost = float(recorded.mean() - ideal.mean())
    slow = bool(recorded.mean() >= MIN_SLOWDOWN * ideal.mean())

    def share(fixed: Sequence[int]) -> float | None:
        """Share of the slowdown that is gone once these ranks are ideal."""
        if not slow or not fixed:
            return None
        others = {*ranks} - {*fixed}
        without = lengths(_of_ranks(others), others.__contains__)
        return float(recorded.mean() - without.mean()) / lost

    slowest = sorted(ranks, key=lambda rank: -of_worker[rank].mean())
    slowest = slowest[: -(-len(ranks) * int(100 * SLOWEST) // 100)]
    last = [rank for rank in ranks if stages and stages.get(rank) == max(stages.values())]
    rows = [
        (rank, step, float(length / base))
        for rank, found in of_worker.items()
        for step, length, base in zip(replays, found, ideal, strict=True)
    ]
    mean = float(ideal.mean())
    return Slowdown(
        tuple(replays),
        float(recorded.mean()),
        mean,
        {name: float(found.mean()) / mean for name, found in of_type.items()},
        {rank: float(found.mean()) / mean for rank, found in of_worker.items()},
        tuple(slowest),
        share(slowest),
        tuple(last),
        share(last),
        pd.DataFrame(rows, columns=_BY_STEP),
    )


_Kept = Callable[[int, str], bool]
"""Whether operations of a rank and type are as recorded."""


def _of_ranks(ranks: Collection[int]) -> _Kept:
    return lambda rank, _: rank in ranks


def _of_type(name: str) -> _Kept:
    return lambda _, one: one == name


@dataclass(frozen=True, eq=False)
class _Worker:
    """A thread or stream of a rank in a step, with the recorded and ideal length of its work."""

    actor: Actor
    start_ns: int  # of the step
    recorded: Mapping[str, Float64Array]  # type -> length in each stretch, ns
    ideal: Mapping[str, Float64Array]
    transfers: Mapping[int, float]  # number of the event -> ideal length, ns

    @property
    def types(self) -> set[str]:
        """Types of its operations."""
        return {*self.ideal, *([TRANSFER] if self.transfers else [])}

    def changed(self, kept: _Kept, start: Callable[[int], bool]) -> Actor:
        """Returns the actor with ideal operations but for those that are kept as recorded."""
        rank = self.actor.rank
        length = np.zeros(len(self.actor.events) + 1)
        for name, ideal in self.ideal.items():
            length += self.recorded[name] if kept(rank, name) else ideal
        events = self.actor.events
        if not kept(rank, TRANSFER):
            events = tuple(
                one._replace(transfer_ns=self.transfers.get(i, one.transfer_ns))
                for i, one in enumerate(events)
            )
        return dataclasses.replace(
            self.actor,
            start_ns=self.actor.start_ns if start(rank) else self.start_ns,
            events=events,
            length=length,
            stretch=np.arange(len(length)),
            about=(),
        )


def _workers(replays: Mapping[int, Replay]) -> dict[int, list[_Worker]]:
    """Returns the actors of each step with the ideal lengths of their operations."""
    placed = [(step, one) for step, replay in replays.items() for one in replay.actors]
    actors = [one for _, one in placed]
    alike = _alike(actors)  # else all of an actor's work is one part, and its transfers one place
    work: dict[_Place, list[float]] = defaultdict(list)
    transfers: dict[_Place, list[float]] = defaultdict(list)
    tables = [_by_type(one) for one in actors]
    parts = [one.parts() if alike else np.zeros_like(one.parts()) for one in actors]
    waits = [_waits(one, alike) for one in actors]
    for one, table, own, ends in zip(actors, tables, parts, waits, strict=True):
        for name, lengths in table.items():
            for part, total in enumerate(np.bincount(own, lengths).tolist()):
                work[one.lane, part, name].append(total)
        for place, i in ends:
            transfers[place].append(one.events[i].transfer_ns)
    # An operation that an actor does not have took it no time.
    count: dict[str, int] = defaultdict(int)
    for one in actors:
        count[one.lane] += 1
    mean = {place: sum(found) / count[place[0]] for place, found in work.items()}
    median = {place: float(np.median(found)) for place, found in transfers.items()}
    workers: dict[int, list[_Worker]] = {step: [] for step in replays}
    for (step, one), table, own, ends in zip(placed, tables, parts, waits, strict=True):
        ideal = {i: median[place] for place, i in ends}
        start_ns = replays[step].window.start_ns
        workers[step].append(_worker(one, start_ns, table, own, mean, ideal))
    return workers


def _worker(
    one: Actor,
    start_ns: int,
    recorded: Mapping[str, Float64Array],
    parts: np.ndarray,
    mean: Mapping[_Place, float],
    transfers: Mapping[int, float],
) -> _Worker:
    """Returns an actor whose ideal work is spread over its stretches as the recorded work is."""
    nothing = np.zeros(len(parts))
    ideal: dict[str, Float64Array] = {}
    for lane, part, name in mean:
        if lane != one.lane or not (parts == part).any():
            continue
        own = np.where(parts == part, recorded.get(name, nothing), 0.0)
        if not own.sum():
            own[np.argmax(parts == part)] = 1.0
        made = ideal.setdefault(name, nothing.copy())
        made += own / own.sum() * mean[lane, part, name]
    return _Worker(
        one, start_ns, {name: recorded.get(name, nothing) for name in ideal}, ideal, transfers
    )


def _by_type(one: Actor) -> dict[str, Float64Array]:
    """Returns for each category the length of its work in each stretch, ns."""
    names = np.array([about[0] for about in one.about], dtype=object)
    found = {}
    for name in dict.fromkeys(names.tolist()):
        mine = names == name
        found[str(name)] = np.bincount(
            one.stretch[mine], one.length[mine], len(one.events) + 1
        ).astype(np.float64)
    return found


def _alike(actors: Iterable[Actor]) -> bool:
    """Returns True if every lane has the same number of collectives on all ranks and steps."""
    counts: dict[str, set[int]] = defaultdict(set)
    for one in actors:
        counts[one.lane].add(int(one.parts()[-1]))
    return all(len(found) == 1 for found in counts.values())


def _waits(one: Actor, alike: bool) -> list[tuple[_Place, int]]:
    """Returns the place and number of each event that ends a transfer."""
    arrives = [event.key for event in one.events if event.kind == "arrive"]
    found = []
    for i, event in enumerate(one.events):
        if event.kind == "wait":
            known = alike and event.key in arrives
            found.append(((one.lane, arrives.index(event.key) if known else -1, TRANSFER), i))
    return found
