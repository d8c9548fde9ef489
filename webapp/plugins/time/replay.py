"""Replays a step forward with changed lengths of its work.

An actor is a thread or a stream in its step: stretches of work, each ended by an event.

    arrive(call)    its rank has come to a collective
    wait(call)      goes on at max over ranks of arrive(call) + transfer(call)
    post(token)     something is done: a kernel was launched, or has ended
    await(token)    goes on once that is done

Replayed, a stretch keeps its length or gets the new one, and a wait lasts as long as what it waits
for. The transfer of a call is what was recorded between the last arrival and the end of the wait.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from lanescope.webapp.analysis.findings import NotApplicable
from lanescope.webapp.plugins.time.buckets import MIB, assigned
from lanescope.webapp.plugins.time.job_steps import JobStep
from lanescope.webapp.plugins.time.lane_work import About
from lanescope.webapp.runs.types import Float64Array, Int64Array

CallKey = tuple[str, int]
"""Process group and sequence number."""

_REBUCKETED = "buckets of the replay"


class StretchEnd(NamedTuple):
    """What ends a stretch. `transfer_ns` is that of a wait."""

    kind: str  # arrive, wait, post, await, ready (a gradient), or none
    key: tuple[str, int]
    transfer_ns: float = 0.0


@dataclass(frozen=True, eq=False)
class Actor:
    """A thread's or stream's step. Event j ends stretch j; the last stretch ends the step.

    Of each elementary piece of work: `length` (ns), the `stretch` it belongs to, and what it is
    `about`: category, names (of the operator; of a kernel also the operators it was launched in)
    and module.
    """

    rank: int
    start_ns: float
    events: tuple[StretchEnd, ...]
    length: Float64Array
    stretch: Int64Array
    about: tuple[About, ...]
    lane: str = "host"
    """Which of the rank's actors it is: the same word on all ranks."""
    ends_step: bool = True
    gradients: Int64Array = field(default_factory=lambda: np.zeros(0, np.int64))
    """Bytes of each gradient, in the order of the ready events."""
    reductions: tuple[CallKey, ...] = ()
    """Calls that reduce these gradients, in order; empty where the sizes do not agree."""

    def stretches(self, factor: Float64Array | None = None) -> Float64Array:
        """Returns the length of each stretch, ns, with each piece's length times its factor."""
        length = self.length if factor is None else self.length * factor
        return np.bincount(self.stretch, length, len(self.events) + 1).astype(np.float64)

    def parts(self) -> Int64Array:
        """Returns the number of arrivals before each stretch: what ranks have in common, waits or
        not."""
        arrives = [one.kind == "arrive" for one in self.events]
        return np.concatenate([[0], np.cumsum(arrives, dtype=np.int64)])


_Stretches = Callable[[Actor], Float64Array]


@dataclass(frozen=True, eq=False)
class Replay:
    """All actors of a step."""

    window: JobStep
    actors: tuple[Actor, ...]
    outside: Mapping[CallKey, float]
    """Arrivals, ns, of ranks that came to a call in another step."""
    after: Mapping[CallKey, CallKey] = field(default_factory=dict)
    """Calls whose transfer begins once that of another call is over."""

    @property
    def recorded_ns(self) -> int:
        """Recorded length of the step."""
        return self.window.end_ns - self.window.start_ns

    @property
    def ranks(self) -> list[int]:
        """Ranks that have the step."""
        return sorted({one.rank for one in self.actors})

    def run(
        self, stretches: _Stretches = Actor.stretches, transfer: float = 1.0, wait: bool = True
    ) -> float:
        """Returns the length of the replayed step, ns."""
        length = [stretches(one).tolist() for one in self.actors]
        now = [float(one.start_ns) for one in self.actors]
        place = [0] * len(now)
        state = _State(self, transfer, wait)
        moved = True
        while moved:
            moved = False
            for i, one in enumerate(self.actors):
                events, own = one.events, length[i]
                while place[i] < len(events):
                    after = state.passed(events[place[i]], now[i] + own[place[i]])
                    if after is None:
                        break
                    now[i], moved = after, True
                    place[i] += 1
        if any(done < len(one.events) for done, one in zip(place, self.actors, strict=True)):
            raise NotApplicable("the collectives of the step wait for each other when replayed")
        ends = [
            at + own[-1]
            for at, own, one in zip(now, length, self.actors, strict=True)
            if one.ends_step
        ]
        return float(max(ends)) - self.window.start_ns

    def without_stragglers(self, ranks: Sequence[int]) -> float:
        """Returns the step with each stretch of `ranks` as long as the median of the other ranks';
        with several ranks the median of all."""
        table: dict[str, dict[int, Float64Array]] = defaultdict(dict)
        calls_of: dict[str, set[tuple[CallKey, ...]]] = defaultdict(set)
        for one in self.actors:
            lengths = np.bincount(one.parts(), one.stretches()).astype(np.float64)
            table[one.lane][one.rank] = lengths
            arrives = tuple(event.key for event in one.events if event.kind == "arrive")
            calls_of[one.lane].add(arrives)
        if any(len(found) > 1 for found in calls_of.values()):
            raise NotApplicable("the ranks make different collectives, so they cannot be compared")

        def usual(one: Actor) -> Float64Array:
            same = table[one.lane]
            if one.rank not in ranks or len(same) < 2:
                return one.stretches()
            own = same[one.rank]
            others = [part for rank, part in same.items() if rank != one.rank or len(ranks) > 1]
            median = np.median(others, axis=0)
            target = median if len(ranks) > 1 else np.minimum(median, own)
            scale: Float64Array = target / np.maximum(own, 1.0)
            return one.stretches() * scale[one.parts()]

        return self.run(usual)

    def scaled(self, chosen: Callable[[str, Sequence[str], str], bool], factor: float) -> float:
        """Returns the step with each piece for which `chosen(category, names, module)` times a
        factor."""

        def faster(one: Actor) -> Float64Array:
            factors = np.array([factor if chosen(*each) else 1.0 for each in one.about])
            return one.stretches(factors)

        return self.run(faster)

    def with_buckets(self, mib: float) -> float:
        """Returns the step with gradients reduced in buckets of another limit, one after the other.

        A transfer takes its share by bytes of what the recorded ones took.
        """
        trainers = [one for one in self.actors if len(one.gradients)]
        if not trainers or not all(one.reductions for one in trainers):
            raise NotApplicable(
                "no reduction of gradients by DistributedDataParallel was recognised in the step"
            )
        buckets = [assigned(one.gradients, mib * MIB) for one in trainers]
        if len({len(found) for found in buckets}) > 1:
            raise NotApplicable("the ranks have gradients of different sizes")
        cost = self._transfer_per_byte(trainers)
        changed = {
            one.rank: _rebucketed(one, found, cost)
            for one, found in zip(trainers, buckets, strict=True)
        }
        actors = tuple(changed.get(one.rank, one) for one in self.actors)
        keys = [(_REBUCKETED, k) for k in range(len(buckets[0]))]
        following = dict(zip(keys[1:], keys[:-1], strict=True))
        return dataclasses.replace(self, actors=actors, after=following).run()

    def _transfer_per_byte(self, trainers: Sequence[Actor]) -> float:
        """Nanoseconds that a byte of the gradients took: over the step's transfers, the mean over
        the ranks."""
        spent = [
            sum(event.transfer_ns for event in one.events if event.key in one.reductions)
            / int(one.gradients.sum())
            for one in trainers
        ]
        return float(np.mean(spent))


def _rebucketed(one: Actor, buckets: Sequence[Sequence[int]], per_byte: float) -> Actor:
    """The actor with its gradients reduced in other buckets: it comes to a reduction once the
    bucket's last gradient is ready, and waits for all where it has come to the last."""
    old = set(one.reductions)
    closes = {bucket[-1]: k for k, bucket in enumerate(buckets)}
    cost = [per_byte * float(one.gradients[bucket].sum()) for bucket in buckets]
    events: list[StretchEnd] = []
    of_stretch: list[int] = []  # the old stretch's place among the new ones
    gradient = 0
    for event in one.events:
        of_stretch.append(len(events))
        if event.kind == "ready":
            k = closes.get(gradient)
            events.append(event if k is None else StretchEnd("arrive", (_REBUCKETED, k)))
            gradient += 1
            if gradient == len(one.gradients):
                events += [
                    StretchEnd("wait", (_REBUCKETED, j), spent) for j, spent in enumerate(cost)
                ]
        else:
            events.append(StretchEnd("none", event.key) if event.key in old else event)
    of_stretch.append(len(events))
    return dataclasses.replace(
        one, events=tuple(events), stretch=np.array(of_stretch, np.int64)[one.stretch]
    )


def arriving_ranks(actors: Iterable[Actor]) -> dict[CallKey, set[int]]:
    """Returns per call the ranks that come to it in the step."""
    found: dict[CallKey, set[int]] = defaultdict(set)
    for one in actors:
        for event in one.events:
            if event.kind == "arrive":
                found[event.key].add(one.rank)
    return found


class _State:
    """What has happened so far in a replay."""

    def __init__(self, replay: Replay, transfer: float, wait: bool) -> None:
        self._transfer, self._wait = transfer, wait
        self._outside, self._after = replay.outside, replay.after
        self._missing: dict[CallKey, int] = defaultdict(int)
        for one in replay.actors:
            for event in one.events:
                if event.kind == "arrive":
                    self._missing[event.key] += 1
        self._last: dict[CallKey, float] = {}
        self._complete: dict[CallKey, float] = {}
        self._posted: dict[tuple[str, int], float] = {}

    def passed(self, event: StretchEnd, at: float) -> float | None:
        """When an actor that comes to an event at an instant goes on; None: not known yet."""
        kind, key, _ = event
        if kind == "arrive":
            self._missing[key] -= 1
            self._last[key] = max(self._last.get(key, self._outside.get(key, at)), at)
        elif kind == "post":
            self._posted[key] = at
        elif kind == "await":
            return max(at, self._posted[key]) if key in self._posted else None
        elif kind == "wait":
            if self._missing.get(key):
                return None
            if self._wait:
                return max(at, self._completion(event))
        return at

    def _completion(self, event: StretchEnd) -> float:
        begun = self._last.get(event.key, self._outside.get(event.key, 0.0))
        if event.key in self._after:
            begun = max(begun, self._complete.get(self._after[event.key], 0.0))
        done = begun + self._transfer * event.transfer_ns
        self._complete[event.key] = max(self._complete.get(event.key, 0.0), done)
        return done
