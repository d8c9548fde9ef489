"""Several threads that train one model without waiting for each other (Hogwild, Niu et al. 2011).

That is one decision of the program and many races: every place where the model is read, its
gradients are added up or its parameters are stepped races with every other. It is one finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lanescope.collector.format import schema
from lanescope.webapp.analysis.access_site import MemoryAccess, phase_names, storage_names
from lanescope.webapp.plugins.races.races import Race
from lanescope.webapp.runs.run import Run

_OPTIMIZER = schema.PhaseKind.optimizer.name
_TRAINING = (schema.PhaseKind.forward.name, schema.PhaseKind.backward.name, _OPTIMIZER)


@dataclass(frozen=True)
class Hogwild:
    """Threads of a rank whose optimizers write the same parameters, and all their races."""

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
