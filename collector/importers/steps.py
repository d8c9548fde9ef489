"""Finds the training steps of a trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..format.record_kinds import PhaseKind
from .kineto import PROFILER_STEP
from .limits import MAX_STEPS
from .spill import PHASE_KIND, Rows, Trace, column
from .timestamps import Int64Array


@dataclass(frozen=True)
class Steps:
    """Step of each instant: `first` before `bounds[0]`, then `numbers[i]` from `bounds[i]` on."""

    bounds: Int64Array
    numbers: Int64Array
    first: int

    def of(self, rows: Rows) -> Int64Array:
        """Returns the step of each slice: from the trace, else by its start."""
        found = self.at(rows["start"])
        return np.where(rows["step"] >= 0, rows["step"], found)

    def at(self, instants: Int64Array) -> Int64Array:
        """Returns the step of each instant in ns."""
        place = np.searchsorted(self.bounds, instants, "right")
        return np.concatenate([[self.first], self.numbers])[place]


def steps_of(trace: Trace, slices: Rows) -> Steps:
    """Returns steps as numbered by torch's profiler (ProfilerStep#N), else by the first optimizer.

    A step ends with its optimizer, as in every run: later events of the same pass of the loop
    belong to the next step. Where a marked step has no optimizer, the marks are the steps; events
    before the first mark get the number before it, events after the last the number after it.
    Without marks and optimizers everything is step 0.
    """
    kind = column(slices, "kind")
    marks = _marks(trace, _few(trace, slices, kind == PHASE_KIND + PhaseKind.user))
    ends = _few(trace, slices, kind == PHASE_KIND + PhaseKind.optimizer)
    ends = ends[ends["duration"] >= 0]
    until = np.sort(ends["start"] + ends["duration"])
    if marks:
        places = [int(np.searchsorted(until, end, "right")) - 1 for _, end, _ in marks]
        pairs = zip(marks, places, strict=True)
        if all(place >= 0 and until[place] >= begin for (begin, _, _), place in pairs):
            return Steps(until[places], np.array([n + 1 for _, _, n in marks]), marks[0][2])
        bounds = [begin for begin, _, _ in marks] + [marks[-1][1]]
        numbers = [number for _, _, number in marks] + [marks[-1][2] + 1]
        return Steps(np.array(bounds), np.array(numbers), max(0, marks[0][2] - 1))
    if not len(ends):
        return Steps(np.empty(0, np.int64), np.empty(0, np.int64), 0)
    first = ends[np.argmin(ends["start"])]
    same = ends[(ends["name"] == first["name"]) & (ends["lane"] == first["lane"])]
    of_first = np.unique(same["start"] + same["duration"])
    return Steps(of_first, np.arange(1, len(of_first) + 1), 0)


def _few(trace: Trace, slices: Rows, chosen: NDArray[np.bool_]) -> Rows:
    """Returns the chosen slices; none if there are more than a program has steps."""
    count = int(chosen.sum())
    if count > MAX_STEPS:
        trace.counts["unread_ends_of_steps"] += count
        return slices[:0]
    return slices[chosen]


def _marks(trace: Trace, ranges: Rows) -> list[tuple[int, int, int]]:
    """Returns (begin, end, number) of the steps that the profiler marked, in order."""
    marks = []
    for row in ranges:
        found = PROFILER_STEP.fullmatch(trace.text(int(row["name"])))
        if found:
            begin = int(row["start"])
            marks.append((begin, begin + max(0, int(row["duration"])), int(found[1])))
    return sorted(marks)
