"""Where the training steps of a rank begin and end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .array_types import Int64Array
from .record_kinds import PhaseKind

PHASE_COLUMNS = ("start_ns", "duration_ns", "kind", "step")
"""What `steps_of` needs of the phase table."""


_OPTIMIZER = PhaseKind.optimizer.name


_TRAINING = tuple(
    kind.name for kind in (PhaseKind.forward, PhaseKind.backward, PhaseKind.optimizer)
)


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps of one rank, int64, ascending: step `index[i]` is [start_ns[i], end_ns[i])."""

    index: Int64Array
    start_ns: Int64Array
    end_ns: Int64Array

    def __len__(self) -> int:
        return len(self.index)


def steps_of(phases: pa.Table) -> Steps:
    """Steps from the phases of a rank's own process; the definition stands at `Run.steps`."""
    finished = phases.filter(pc.is_valid(phases["duration_ns"]))
    step = finished["step"].to_numpy().astype(np.int64)
    end = pc.add(finished["start_ns"], finished["duration_ns"]).to_numpy()
    closing = pc.equal(finished["kind"].cast(pa.string()), _OPTIMIZER).to_numpy()
    # A mark has no extent: one before the first step, or after the last, makes no step.
    lasting = pc.greater(finished["duration_ns"], 0).to_numpy()
    chosen = closing if closing.any() else lasting
    if chosen.any():
        step, end = step[chosen], end[chosen]
    index, group = np.unique(step, return_inverse=True)
    ends = np.full(len(index), np.iinfo(np.int64).min)
    np.maximum.at(ends, group, end)
    # A number that went back (two optimizers, a resumed counter) must not make a step end before
    # the one in front of it.
    ends = np.maximum.accumulate(ends) if len(ends) else ends

    first = np.full(len(index), np.iinfo(np.int64).max)
    all_steps = phases["step"].to_numpy().astype(np.int64)
    place = np.searchsorted(index, all_steps)
    known = (place < len(index)) & np.isin(all_steps, index)
    start = phases["start_ns"].to_numpy()
    extended = pc.not_equal(phases["duration_ns"], 0).fill_null(True).to_numpy()
    np.minimum.at(first, place[known & extended], start[known & extended])
    rows = np.flatnonzero(known)
    only_marks = rows[first[place[rows]] == np.iinfo(np.int64).max]
    np.minimum.at(first, place[only_marks], start[only_marks])
    starts = first.copy()
    follows = np.flatnonzero(np.diff(index) == 1) + 1
    starts[follows] = ends[follows - 1]
    return Steps(index, np.minimum(starts, ends), ends)


def training_start(phases: pa.Table) -> int | None:
    """Returns the least start of a phase of training; None without any."""
    trains = pc.is_in(phases["kind"].cast(pa.string()), pa.array(_TRAINING))
    found: int | None = pc.min(phases.filter(trains)["start_ns"]).as_py()
    return found
