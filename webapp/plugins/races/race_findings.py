"""Races as findings: which tensor, which two lines, and what is missing between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypedDict

import pandas as pd

from lanescope.collector.format import schema
from lanescope.webapp.analysis.access_site import MemoryAccess, phase_names, storage_names
from lanescope.webapp.analysis.findings import Confidence, Finding, Severity
from lanescope.webapp.analysis.links import and_more, thread_lane, timeline_address
from lanescope.webapp.analysis.nothing_to_check import need_accesses, need_threads
from lanescope.webapp.analysis.stack_frames import in_program, line_and_function
from lanescope.webapp.plugins.races.default_draws import DEFAULT_GENERATOR, default_draws
from lanescope.webapp.plugins.races.forked_functions import forked_races
from lanescope.webapp.plugins.races.locksets import held_at
from lanescope.webapp.plugins.races.races import Race
from lanescope.webapp.plugins.races.shared_memory import races_of_processes
from lanescope.webapp.plugins.races.stream_races import all_races
from lanescope.webapp.plugins.races.tensor_names import GENERATOR
from lanescope.webapp.runs import units
from lanescope.webapp.runs.run import Run

_OPTIMIZER = schema.PhaseKind.optimizer.name
_TRAINING = (schema.PhaseKind.forward.name, schema.PhaseKind.backward.name, _OPTIMIZER)


class AccessEvidence(TypedDict):
    """An access to a tensor, as `MemoryAccess.to_json` makes it."""

    op: str
    thread: str
    where: str | None
    time_ns: int
    access: str


class RaceEvidence(TypedDict):
    """Two accesses that nothing orders."""

    tensor: str
    first: AccessEvidence
    second: AccessEvidence


def race_findings(run: Run) -> list[Finding]:
    """Returns findings of kind `race`. Raises NotApplicable."""
    need_accesses(run)
    found = all_races(run)
    trained, rest = split_hogwild(run, [race for race in found if not race.of_streams])
    findings = [
        *(_hogwild(run, one) for one in trained),
        *(_finding(run, race) for race in rest if GENERATOR not in race.tensors),
        *_of_generators(run, [race for race in rest if _draws(race)]),
        *_of_generators(run, default_draws(run)),
        *(_of_streams(run, race) for race in found if race.of_streams),
        *(_of_forked(run, race) for race in forked_races(run)),
        *(_of_processes(run, race) for race in races_of_processes(run)),
    ]
    if not findings:
        need_threads(run)
    return findings


def races(run: Run) -> pd.DataFrame:
    """Returns races as a data frame, a row per pair of places, by instant of the first access.

    rank; tensor (the first of `tensors`), tensors (how many); for each of the two accesses op,
    thread, where ("file.py:12", None where no stack was captured), time_ns (from the start of the
    run) and access (read or write), prefixed first_ and second_; overlapped (both were under way
    at an instant); pairs (of unordered segments of the two threads, at these places).
    """
    rows = []
    for race in all_races(run):
        row: dict[str, Any] = {
            "rank": race.rank,
            "tensor": race.tensors[0],
            "tensors": len(race.tensors),
        }
        for side, touch in (("first", race.first), ("second", race.second)):
            access = touch.to_json()
            row |= {f"{side}_{name}": access[name] for name in _COLUMNS}
        rows.append(row | {"overlapped": race.overlapped, "pairs": race.pairs})
    sides = [f"{side}_{name}" for side in ("first", "second") for name in _COLUMNS]
    columns = ["rank", "tensor", "tensors", *sides, "overlapped", "pairs"]
    return pd.DataFrame(rows, columns=columns)


_COLUMNS = ("op", "thread", "where", "time_ns", "access")


def _finding(run: Run, race: Race) -> Finding:
    first, second = race.first, race.second
    names = {t.thread: t.name for t in run.threads_of(race.rank)}
    verbs = [f"{names[t.thread]} {_verb(t)} at {t.place}" for t in (first, second)]
    how = "at the same time" if race.overlapped else "in no fixed order"
    tensor = race.named_tensors
    if race.published:
        return _published(run, race, tensor, names)
    locks = [held_at(run, race.rank, t.thread, t.start_ns) for t in (first, second)]
    advice = (
        "Let one wait for the other (join, a lock around both, a queue or an event between them), "
        "or give each thread its own tensor."
    )
    if bool(locks[0]) != bool(locks[1]):
        careful, careless = (first, second) if locks[0] else (second, first)
        advice = (
            f"{names[careful.thread]} holds a lock at {careful.place}, {names[careless.thread]} "
            f"holds none at {careless.place}: take the same lock in both places."
        )
    elif locks[0] and locks[1]:  # none in common, or they would be in order
        advice = (
            f"{names[first.thread]} and {names[second.thread]} each hold a lock, but not the same "
            "one: take the same lock in both places."
        )
    sides = {
        name: touch.to_json() | {"locks": len(own)}
        for name, touch, own in zip(("first", "second"), (first, second), locks, strict=True)
    }
    return _race_finding(
        run, race, f"Data race on {tensor}: {verbs[0]}, {verbs[1]}, {how}", advice, sides
    )


def _draws(race: Race) -> bool:
    return GENERATOR in race.tensors and not race.published


_MAX_DRAWS = 3
"""Places named in the sentence; the evidence has all."""


def _of_generators(run: Run, races: Sequence[Race]) -> Iterator[Finding]:
    """One finding per rank: the draws of one generator race with each other at many places."""
    for rank in sorted({race.rank for race in races}):
        own = [race for race in races if race.rank == rank]
        draws = {
            f"{touch.op} at {touch.place}": touch.to_json()
            for race in own
            for touch in (race.first, race.second)
        }
        names = {t.thread: t.name for t in run.threads_of(rank)}
        threads = sorted({names[thread] for race in own for thread in race.threads})
        many = threads[0] + and_more(len(threads), "thread")
        said = ", ".join(list(draws)[:_MAX_DRAWS]) + and_more(len(draws) - _MAX_DRAWS + 1, "place")
        given = GENERATOR in own[0].tensors
        of = "one torch.Generator" if given else DEFAULT_GENERATOR
        yield _race_finding(
            run,
            own[0],
            f"{many if len(threads) > 2 else ' and '.join(threads)} draw from {of} "
            f"in no fixed order ({said}): which numbers each of them gets changes "
            "from run to run, whatever the seed",
            "Give each task a generator of its own, seeded by its number: "
            "torch.Generator().manual_seed(seed + number).",
            {"draws": list(draws.values()), "threads": threads},
            severity="warning",
            confidence="likely",  # a program may do without the same numbers
        )


def _of_streams(run: Run, race: Race) -> Finding:
    first, second = race.first, race.second
    tensor = race.named_tensors
    names = {t.thread: t.name for t in run.threads_of(race.rank)}
    who = [touch.stream or names[touch.thread] for touch in (first, second)]
    verbs = [
        f"{one} {_verb(touch)}" + (f" at {touch.place}" if touch.where else "")
        for one, touch in zip(who, (first, second), strict=True)
    ]
    places = [touch.place if touch.where else touch.op for touch in (first, second)]
    if first.stream and second.stream:
        fact = "neither stream waits for the other"
        advice = (
            f"Before {places[1]}, let its stream wait for the other: call wait_stream(), or wait "
            f"for an event recorded after {places[0]}."
        )
    else:
        fact = f"{who[0] if second.stream else who[1]} does not wait for the copy"
        advice = (
            "A copy between pinned memory and a device goes on after a call with "
            f"non_blocking=True. Before {places[1]}, wait for it: synchronize the stream, or an "
            f"event recorded after {places[0]}."
        )
    return _race_finding(
        run, race, f"Data race on {tensor}: {verbs[0]}, {verbs[1]}, and {fact}", advice
    )


def _of_forked(run: Run, race: Race) -> Finding:
    verbs = [_verb(touch) for touch in (race.first, race.second)]
    return _race_finding(
        run,
        race,
        f"Data race on {race.tensors[0]} between functions that torch.jit.fork started near "
        f"{race.first.place}: one {verbs[0]} while another {verbs[1]}",
        "Give each function a tensor of its own, or wait for one before the next is forked.",
    )


def _of_processes(run: Run, race: Race) -> Finding:
    tensor = race.named_tensors
    pids = {t.thread: t.pid for t in run.threads_of(race.rank)}
    sides = [
        f"process {pids[touch.thread]} {_verb(touch)} at {touch.place}"
        for touch in (race.first, race.second)
    ]
    severity: Severity
    said = f"{tensor} in shared memory: {sides[0]}, {sides[1]}, in no fixed order"
    if any(map(_by_worker_of_library, (race.first, race.second))):
        said, severity = f"A library's own processes write {said} that was recorded", "info"
        advice = "Flags in shared memory, by which libraries take turns, are not recorded."
    else:
        said, severity = f"Data race between processes on {said}", "error"
        advice = "Hold one multiprocessing.Lock around both, or give each process a part of its "
        advice += "own; allow the finding where updates may be lost on purpose (Hogwild)."
    # A lock on a file, or a flag in that memory, is not recorded.
    return _race_finding(run, race, said, advice, severity=severity, confidence="likely")


def _by_worker_of_library(touch: MemoryAccess) -> bool:
    """Whether a process made an access that a library started for a loop of its own: the stack is
    whole, and no frame of it is the program's."""
    files = [line_and_function(frame)[0].rpartition(":")[0] for frame in touch.stack]
    whole = bool(files) and touch.stack[-1].endswith(" <module>")
    return whole and not any(map(in_program, files))


def _published(run: Run, race: Race, tensor: str, names: Mapping[str, str]) -> Finding:
    """A tensor that one thread makes and another uses: never half written, so information only."""
    first, second = race.first, race.second
    return _race_finding(
        run,
        race,
        f"{tensor} is shared without synchronisation: {names[first.thread]} makes it at "
        f"{first.place}, {names[second.thread]} {_verb(second)} at {second.place}",
        "Pass it by a queue, an event or a future if a different one may be there each time.",
        severity="info",
    )


def _hogwild(run: Run, one: Hogwild) -> Finding:
    places = {race.first.place for race in one.races} | {race.second.place for race in one.races}
    return _race_finding(
        run,
        one.step,
        f"Data races between {len(one.threads)} threads that train the same {len(one.parameters)} "
        f"parameters without waiting for each other (Hogwild): "
        f"{units.counted(len(places), 'place')}, the optimizer step at {one.step.first.place}",
        "Let the threads step in turn, or, where this is meant, allow it in lanescope.toml.",
        {
            "tensors": list(one.parameters),
            "threads": list(one.threads),
            "places": [
                {
                    "first": race.first.place,
                    "second": race.second.place,
                    "pairs": race.pairs,
                    "tensors": list(race.tensors),
                }
                for race in one.races
            ],
            "pairs": sum(race.pairs for race in one.races),
        },
    )


def _race_finding(
    run: Run,
    race: Race,
    title: str,
    advice: str,
    more: Mapping[str, Any] = MappingProxyType({}),
    severity: Severity = "error",
    confidence: Confidence = "certain",
) -> Finding:
    first, second = race.first, race.second
    start, end = min(first.start_ns, second.start_ns), max(first.end_ns, second.end_ns)
    return Finding(
        kind="race",
        severity=severity,
        confidence=confidence,
        title=f"{title}. {advice}",
        rank=race.rank,
        thread=first.thread,
        step=first.step,
        time_ns=first.start_ns,
        where=first.where,
        evidence={
            "tensor": race.tensors[0],
            "tensors": list(race.tensors),
            "first": first.to_json(),
            "second": second.to_json(),
            "overlapped": race.overlapped,
            "pairs": race.pairs,
            "bytes": [race.low, race.high],
            "advice": advice,
            **more,
        },
        link=timeline_address(
            start, end, run.duration_ns, at=(thread_lane(race.rank, first.thread), first.start_ns)
        ),
    )


def _verb(touch: MemoryAccess) -> str:
    return f"{'writes' if touch.write else 'reads'} it ({touch.op})"


@dataclass(frozen=True)
class Hogwild:
    """Threads of a rank whose optimizers write the same parameters without waiting for each other
    (Niu et al. 2011), and all their races.

    That is one decision of the program and many races: every place where the model is read, its
    gradients are added up or its parameters are stepped races with every other. It is one finding.
    """

    threads: tuple[str, ...]
    parameters: tuple[str, ...]  # names, sorted
    step: Race  # of two optimizers
    races: tuple[Race, ...]


def split_hogwild(run: Run, races: Sequence[Race]) -> tuple[list[Hogwild], list[Race]]:
    """Returns the Hogwild training, and the races that are not part of it."""
    found, rest = [], list(races)
    for rank in sorted({race.rank for race in races}):
        phases = phase_names(run, rank)
        optimizer = phases.get(_OPTIMIZER, set())
        training = set().union(*(phases.get(kind, ()) for kind in _TRAINING))
        named = set(storage_names(run, rank).values())
        mine = [race for race in rest if race.rank == rank]
        steps = [
            race
            for race in mine
            if {race.first.phase, race.second.phase} <= optimizer
            and race.first.write
            and race.second.write
            and named & set(race.tensors)
        ]
        if not steps:
            continue
        threads = {thread for race in steps for thread in race.threads}
        part = [
            race
            for race in mine
            if set(race.threads) <= threads
            and all(_trains(touch, training) for touch in (race.first, race.second))
        ]
        parameters = sorted(named & {tensor for race in steps for tensor in race.tensors})
        found.append(Hogwild(tuple(sorted(threads)), tuple(parameters), steps[0], tuple(part)))
        rest = [race for race in rest if race not in part]
    return found, rest


def _trains(touch: MemoryAccess, phases: set[str]) -> bool:
    return touch.phase in phases or touch.op in schema.GRADIENT_RELEASES
