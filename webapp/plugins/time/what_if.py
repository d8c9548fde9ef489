"""What-if: the length of a step if some of its work took less, by replaying it.

On each rank the training thread's step is a row of stretches of work between collectives. Replayed,
a stretch keeps its length or gets the new one, and a wait lasts until what it waited for:

    complete(call) = max over ranks of arrival(call) + transfer(call)

where the transfer is what was recorded between the last arrival and the end of the wait. Waits for
other threads keep their length. The unchanged replay has to give the recorded step within
MAX_ERROR; else nothing is predicted.

The slowdown that stragglers cause is that of "Understanding Stragglers in Large Model Training
Using What-if Analysis" (OSDI '25): the recorded step over the one in which every stretch takes the
median over ranks.
"""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

import numpy as np

from lanescope.webapp.analysis.collective_calls import calls
from lanescope.webapp.analysis.findings import NotApplicable
from lanescope.webapp.plugins.collectives.devices import talks_on_device
from lanescope.webapp.plugins.collectives.skew import KEYS, arrivals
from lanescope.webapp.plugins.time.breakdown import collective_waits, training_thread
from lanescope.webapp.plugins.time.critical_path import Lane, LaneWork, Window, job_step
from lanescope.webapp.runs.run import Run
from lanescope.webapp.runs.types import Float64Array, Int64Array

MAX_ERROR = 0.01
"""Share of the step by which the unchanged replay may differ from it."""

MIN_GAIN = 0.02
"""What gains less is not worth a line."""

READY_MADE = (
    "straggler=none",
    "phase=forward:x0.5",
    "phase=backward:x0.5",
    "phase=optimizer:x0.5",
    "transfer=0",
    "data=0",
    "python:x0.5",
)
"""Specifications that make sense for every run."""


@dataclass(frozen=True)
class Prediction:
    """What a change would bring."""

    spec: str
    words: str
    step_ns: int
    speedup: float  # recorded step over predicted step


_CallKey = tuple[str, int]


@dataclass(frozen=True, eq=False)
class _RankStep:
    """A rank's step as it is replayed. Event j ends stretch j; the last stretch ends the step.

    `pieces` says of each elementary piece of work (ns): its length, stretch, phase, operator and
    module.
    """

    rank: int
    start_ns: int
    events: tuple[tuple[str, _CallKey, int], ...]  # "arrive" or "wait", call, recorded instant, ns
    length: Float64Array
    stretch: Int64Array
    categories: tuple[str, ...]
    names: tuple[str, ...]
    modules: tuple[str, ...]

    def stretches(self, factor: Float64Array | None = None) -> Float64Array:
        """Length of each stretch, ns, with each piece's length times its factor."""
        length = self.length if factor is None else self.length * factor
        return np.bincount(self.stretch, length, len(self.events) + 1).astype(np.float64)

    def parts(self) -> Int64Array:
        """Number of arrivals before each stretch: what ranks have in common, waits or not."""
        arrives = [kind == "arrive" for kind, _, _ in self.events]
        return np.concatenate([[0], np.cumsum(arrives, dtype=np.int64)])


def what_if(run: Run, specs: Sequence[str], step: int | None = None) -> list[Prediction]:
    """Predicts the length of a step of the job for each specification.

    `rank=2:delay=0`      rank 2 takes the median of the others for each stretch
    `straggler=none`      every rank does
    `op=aten::mm*:x0.5`   operators whose name matches take half as long
    `module=blocks.3:x0.8`, `phase=backward:x0.5`, `python:x0.5`   likewise
    `data=0`, `transfer=0`   data loading, or transfers, are free
    `communication=0`     so are the waits for collectives

    Raises ValueError for a specification that cannot be read, NotApplicable where the run cannot be
    replayed.
    """
    changes = [(spec, _parsed(spec)) for spec in specs]
    replay = _replay_of(run, step)
    recorded = replay.recorded_ns
    found = []
    for spec, (words, change) in changes:
        length = max(change(replay), 1.0)
        found.append(Prediction(spec, words, round(length), recorded / length))
    return found


def ready_made(run: Run, step: int | None = None) -> list[Prediction]:
    """Predictions of READY_MADE that gain MIN_GAIN or more, the best first; with more than one rank
    also for the rank whose delay costs most."""
    specs = [*READY_MADE]
    if len(run.ranks) > 1:
        specs += [f"rank={rank}:delay=0" for rank in run.ranks]
    found = what_if(run, specs, step)
    ranks = [one for one in found if one.spec.startswith("rank=")]
    others = [one for one in found if one not in ranks]
    best = max(ranks, key=lambda one: one.speedup, default=None)
    if best is not None:
        others = [one for one in others if one.spec != "straggler=none"] + [
            best if best.speedup >= others[0].speedup * 0.98 else others[0]
        ]
    gains = [one for one in others if one.speedup >= 1 + MIN_GAIN]
    return sorted(gains, key=lambda one: -one.speedup)


class _Replay:
    """All ranks of a step, replayed forward."""

    def __init__(self, run: Run, window: Window) -> None:
        self.window = window
        frame = calls(run)
        found = (_rank_step(run, rank, window.step) for rank in run.ranks)
        self.ranks = [one for one in found if one is not None]
        self.recorded_ns = window.end_ns - window.start_ns
        self._origin = max(one.start_ns for one in self.ranks)
        self._came = {
            (str(group), int(sequence)): int(last)
            for (group, sequence), last in arrivals(run).set_index(KEYS)["last_ns"].items()
        }
        self._arriving: dict[_CallKey, set[int]] = defaultdict(set)
        for one in self.ranks:
            for kind, key, _ in one.events:
                if kind == "arrive":
                    self._arriving[key].add(one.rank)
        # Ranks that came to a call in another step came when they did.
        self._outside: dict[_CallKey, float] = {}
        for row in frame.itertuples():
            key = (str(row.group), int(row.sequence))
            if key in self._arriving and int(row.rank) not in self._arriving[key]:
                self._outside[key] = max(self._outside.get(key, 0.0), float(row.start_ns))

    def run(
        self,
        stretches: Callable[[_RankStep], Float64Array] | None = None,
        transfer: float = 1.0,
        wait: bool = True,
    ) -> float:
        """Length of the replayed step, ns."""
        length = {
            one.rank: one.stretches() if stretches is None else stretches(one) for one in self.ranks
        }
        now = {one.rank: float(one.start_ns) for one in self.ranks}
        place = dict.fromkeys(now, 0)
        arrived: dict[_CallKey, dict[int, float]] = defaultdict(dict)
        moved = True
        while moved:
            moved = False
            for one in self.ranks:
                while place[one.rank] <= len(one.events):
                    j = place[one.rank]
                    kind, key, instant = ("end", ("", 0), 0)
                    if j < len(one.events):
                        kind, key, instant = one.events[j]
                    if kind == "wait" and len(arrived[key]) < len(self._arriving[key]):
                        break
                    now[one.rank] += float(length[one.rank][j])
                    if kind == "arrive":
                        arrived[key][one.rank] = now[one.rank]
                    elif kind == "wait" and wait:
                        last = max([*arrived[key].values(), self._outside.get(key, 0.0)])
                        recorded = max(instant - self._came.get(key, instant), 0)
                        now[one.rank] = max(now[one.rank], last + transfer * recorded)
                    place[one.rank] = j + 1
                    moved = True
        if any(place[one.rank] <= len(one.events) for one in self.ranks):
            raise NotApplicable("the collectives of the step wait for each other when replayed")
        return max(now.values()) - self._origin

    def without_stragglers(self, ranks: Sequence[int]) -> float:
        """The step with each stretch of `ranks` as long as the median of the other ranks'."""
        calls_of = {
            one.rank: tuple(key for kind, key, _ in one.events if kind == "arrive")
            for one in self.ranks
        }
        if len(set(calls_of.values())) > 1:
            raise NotApplicable("the ranks make different collectives, so they cannot be compared")
        table = {one.rank: np.bincount(one.parts(), one.stretches()) for one in self.ranks}

        def usual(one: _RankStep) -> Float64Array:
            if one.rank not in ranks or len(table) < 2:
                return one.stretches()
            own = table[one.rank]
            others = [part for rank, part in table.items() if rank != one.rank or len(ranks) > 1]
            median = np.median(others, axis=0)
            target = median if len(ranks) > 1 else np.minimum(median, own)
            scale: Float64Array = target / np.maximum(own, 1.0)
            return one.stretches() * scale[one.parts()]

        return self.run(usual)

    def scaled(self, chosen: Callable[[str, str, str], bool], factor: float) -> float:
        """The step with each piece for which `chosen(category, name, module)` times a factor."""

        def faster(one: _RankStep) -> Float64Array:
            about = zip(one.categories, one.names, one.modules, strict=True)
            factors = np.array([factor if chosen(*each) else 1.0 for each in about])
            return one.stretches(factors)

        return self.run(faster)


@lru_cache(maxsize=8)
def _replay_of(run: Run, step: int | None) -> _Replay:
    """The replay of a step that gives what was recorded."""
    window = job_step(run, step)
    if any(talks_on_device(run, rank) for rank in run.ranks):
        raise NotApplicable("steps that run on a device cannot be replayed")
    replay = _Replay(run, window)
    again, recorded = replay.run(), replay.recorded_ns
    if abs(again - recorded) > MAX_ERROR * recorded:
        raise NotApplicable(
            f"replayed unchanged, step {window.step} takes {again * 1e-6:.1f} ms instead of "
            f"{recorded * 1e-6:.1f} ms: what else it waited for was not recorded"
        )
    return replay


def _rank_step(run: Run, rank: int, step: int) -> _RankStep | None:
    steps = run.steps(rank)
    found = np.flatnonzero(steps.index == step)
    if not len(found):
        return None
    start, end = int(steps.start_ns[found[0]]), int(steps.end_ns[found[0]])
    lane = Lane(rank, training_thread(run, rank).thread)
    frame = calls(run)
    mine = frame[frame["rank"] == rank]
    waits = [
        (int(low), int(high), label)
        for low, high, label in collective_waits(run, rank).itertuples(index=False, name=None)
        if start <= low and high <= end
    ]
    own = mine[(mine["thread"] == lane.thread) & ~mine["asynchronous"] & (mine["returned_ns"] >= 0)]
    inside = own[(own["start_ns"] >= start) & (own["returned_ns"] <= end)]
    waits += [*zip(inside["start_ns"], inside["returned_ns"], inside.index, strict=True)]
    arriving = mine[(mine["start_ns"] >= start) & (mine["start_ns"] < end)]
    # An arrival comes before the wait that begins at the same instant.
    events = [(int(row.start_ns), 0, "arrive", row.Index) for row in arriving.itertuples()]
    events += [(high, 1, "wait", label) for _, high, label in waits]
    events.sort(key=lambda one: one[:2])
    instants = np.array([one[0] for one in events], np.int64)
    named = tuple(
        (kind, (str(frame.at[label, "group"]), int(frame.at[label, "sequence"])), instant)
        for instant, _, kind, label in events
    )
    work = LaneWork(run, lane, Window(step, start, end, rank))
    edges = np.unique(np.concatenate([[start, end], *([low, high] for low, high, _ in waits)]))
    rows = []
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if not any(a <= low and high <= b for a, b, _ in waits):
            rows += work.rows(low, high)
    cut = [piece for row in rows for piece in _cut(row, instants)]
    return _RankStep(
        rank,
        start,
        named,
        np.array([until - begin for begin, until, *_ in cut], float),
        np.searchsorted(instants, [begin for begin, *_ in cut], side="right"),
        tuple(one[2] for one in cut),
        tuple(one[3] for one in cut),
        tuple(one[4] for one in cut),
    )


def _cut(
    row: tuple[int, str, int, int, str, str, str, str], instants: Int64Array
) -> list[tuple[int, int, str, str, str]]:
    """The row of a lane's work in pieces that hold no event: begin, end, category, name, module."""
    _, _, begin, end, category, name, module, _ = row
    inside = instants[(instants > begin) & (instants < end)].tolist()
    edges = [begin, *dict.fromkeys(inside), end]
    return [(a, b, category, name, module) for a, b in itertools.pairwise(edges)]


_Change = Callable[[_Replay], float]
_SCALED = re.compile(r"(op|module|phase)=(.+):x([0-9.]+)|(python|transfer):x([0-9.]+)")


def _parsed(spec: str) -> tuple[str, _Change]:
    """Words for a specification, and what it does."""
    if found := re.fullmatch(r"rank=(\d+):delay=0", spec):
        rank = int(found[1])
        return f"rank {rank} as fast as the others", lambda replay: replay.without_stragglers(
            [rank]
        )
    if spec == "straggler=none":
        every = "every rank as fast as the median"
        return every, lambda replay: replay.without_stragglers([one.rank for one in replay.ranks])
    if spec == "data=0":
        return "data loading free", lambda replay: replay.scaled(
            lambda category, *_: category == "data_loading", 0.0
        )
    if spec == "transfer=0":
        return "transfers free", lambda replay: replay.run(transfer=0.0)
    if spec == "communication=0":
        return "no communication", lambda replay: replay.run(wait=False)
    found = _SCALED.fullmatch(spec)
    if found is None:
        raise ValueError(
            f"{spec!r} is not a what-if; expected for example rank=2:delay=0, straggler=none, "
            "op=aten::mm*:x0.5, module=blocks.3:x0.8, phase=backward:x0.5, data=0, transfer=0"
        )
    what, pattern = (found[1] or found[4]), found[2] or ""
    factor = float(found[3] or found[5])
    times = f"{1 / factor:.3g} times as fast" if factor else "free"
    times = "twice as fast" if factor == 0.5 else times
    if what == "transfer":
        return f"transfers {times}", lambda replay: replay.run(transfer=factor)
    chosen: dict[str, Callable[[str, str, str], bool]] = {
        "op": lambda _, name, __: fnmatchcase(name, pattern),
        "module": lambda _, __, module: module == pattern or module.startswith(f"{pattern}."),
        "phase": lambda category, *_: category == pattern,
        "python": lambda category, *_: category == "python",
    }
    named = {"python": "Python between operators", "phase": pattern}.get(what, pattern)
    return f"{named} {times}", lambda replay: replay.scaled(chosen[what], factor)
