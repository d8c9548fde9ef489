"""Several threads that train one model without waiting for each other (Hogwild, Niu et al. 2011).

That is one decision of the program and many races: every place where the model is read, its
gradients are added up or its parameters are stepped races with every other. It is told as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lanescope.collector import schema
from lanescope.webapp.analysis.races import Race
from lanescope.webapp.analysis.sites import storage_names
from lanescope.webapp.run import Run

_TRAINING = [
    schema.PhaseKind.forward.name, schema.PhaseKind.backward.name, schema.PhaseKind.optimizer.name,
]  # fmt: skip


@dataclass(frozen=True)
class Hogwild:
    """Threads of a rank whose optimizers write the same parameters, and all their races."""

    threads: tuple[str, ...]
    parameters: tuple[str, ...]  # names, sorted
    step: Race  # of two optimizers
    races: tuple[Race, ...]


def fold(run: Run, races: Sequence[Race]) -> tuple[list[Hogwild], list[Race]]:
    """What is Hogwild training, and the races that are not part of it."""
    found, rest = [], list(races)
    for rank in sorted({race.rank for race in races}):
        training, optimizer = _phases(run, rank)
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
            if set(race.threads) <= threads and {race.first.phase, race.second.phase} <= training
        ]
        parameters = sorted(named & {tensor for race in steps for tensor in race.tensors})
        found.append(Hogwild(tuple(sorted(threads)), tuple(parameters), steps[0], tuple(part)))
        rest = [race for race in rest if race not in part]
    return found, rest


def _phases(run: Run, rank: int) -> tuple[set[str], set[str]]:
    """Names of the phases of a rank that train, and of those among them that are optimizers'."""
    rows = run.events("phase", rank, columns=["name", "kind"])
    rows = pa.table({name: rows[name].cast(pa.string()) for name in rows.column_names})
    kept = rows.filter(pc.is_in(rows["kind"], pa.array(_TRAINING))).group_by(["name", "kind"])
    pairs = kept.aggregate([]).to_pylist()
    optimizers = {p["name"] for p in pairs if p["kind"] == schema.PhaseKind.optimizer.name}
    return {p["name"] for p in pairs}, optimizers
